"""What a pass left behind, as plain data: tensors, op records and snapshots.

Everything outside the passes (the explorer, the simulator, the exporters, the command line) reads these and never an
MLIR object, so they are immutable, picklable and small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

BITS = {
    "f32": 32,
    "f16": 16,
    "bf16": 16,
    "si32": 32,
    "ui32": 32,
    "si16": 16,
    "ui16": 16,
    "si8": 8,
    "ui8": 8,
    "none": 0,
}
"""Bits of one element of each dtype that the IR uses."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; `address` is its DDR byte address once `address-assign` has run."""

    shape: tuple[int, ...]
    dtype: str
    address: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements; 0 for `none`."""
        return 0 if self.dtype == "none" else prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes, densely packed."""
        return self.elements * BITS[self.dtype] // 8

    @property
    def is_none(self) -> bool:
        """True for the type of an absent operand."""
        return self.dtype == "none"

    def __str__(self) -> str:
        if self.dtype == "none":
            return "none"
        address = "" if self.address is None else f", {self.address} : i64"
        return f"tensor<{'x'.join(map(str, self.shape))}x{self.dtype}{address}>"


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op of a module after a pass.

    name: full name (`tpu.A16MatMul`). operands, results: SSA names (`%5`), with their types in the same order.
    attributes: plain Python values (bool, int, float, str, lists and dicts of these). origins: where the op came from
    (checkpoint tensor prefix such as `model.layers.{i}.mlp`, or a module input), the key by which ops are followed
    through passes. history: the passes that rewrote it, oldest first. line: 0-based line in the snapshot's text.
    parent: index of the record whose region holds this op, or None for the top level of the module.
    """

    name: str
    operands: tuple[str, ...]
    operand_types: tuple[TensorType, ...]
    results: tuple[str, ...]
    result_types: tuple[TensorType, ...]
    attributes: Mapping[str, Any]
    origins: tuple[str, ...]
    history: tuple[str, ...] = ()
    line: int = 0
    parent: int | None = None

    @property
    def dialect(self) -> str:
        """`top`, `tpu` or `func`."""
        return self.name.partition(".")[0]

    @property
    def kind(self) -> str:
        """Name without the dialect (`A16MatMul`)."""
        return self.name.partition(".")[2]

    @property
    def location(self) -> str:
        """The most specific origin: what people call this op (a part of an MLP by its own name)."""
        return self.origins[-1] if self.origins else "?"


@dataclass(frozen=True)
class Snapshot:
    """A module after one pass.

    text: the IR with locations. ops: records in program order (`top.Input`, `top.Weight`, `top.None`, ops and one
    final `func.return`). attributes: the module's attributes as plain values, without their `module.` prefix. seconds:
    wall time of the pass. report: the typed report that the pass returned, if any (for `codegen` the instructions).
    notes: one-line remarks for the pass list.
    """

    module: str
    pass_name: str
    text: str
    ops: tuple[OpRecord, ...]
    attributes: Mapping[str, Any]
    changed: bool
    seconds: float
    notes: tuple[str, ...] = ()
    report: Any = None

    @property
    def op_count(self) -> int:
        """Ops that compute something: without inputs, weights, absent operands and the return."""
        return sum(is_computation(op) for op in self.ops)


NOT_COMPUTATION = {"top.Input", "top.Weight", "top.None", "func.return", "tpu.Yield"}


def is_computation(op: OpRecord) -> bool:
    """True for ops that compute or move data when the program runs."""
    return op.name not in NOT_COMPUTATION


@dataclass(frozen=True)
class ModuleSnapshots:
    """All snapshots of one compiled module, in pass order, and the failure that ended them, if one did."""

    name: str
    snapshots: tuple[Snapshot, ...]
    error: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def after(self, pass_name: str) -> Snapshot:
        """The snapshot after `pass_name`. Raises KeyError with the list of passes when there is none."""
        for snapshot in self.snapshots:
            if snapshot.pass_name == pass_name:
                return snapshot
        known = ", ".join(s.pass_name for s in self.snapshots)
        raise KeyError(f"module {self.name} has no pass {pass_name!r}; it has: {known}")
