"""Modules with quantised products: their records, their text, and their numbers, to be streamed and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from group_bench import Built, build
from group_records import Records

import engine.options
from engine.passes.layer_group.plan import GroupPlan, LayerGroupReport
from engine.passes.layer_group.stream import search
from engine.sim.arithmetic import NUMPY_DTYPES
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip
from engine.tpu.chip import chip as table_chip
from engine.tpu.emit import ceil_div
from engine.tpu.numerics import round_to
from engine.tpu.weights import WeightReference

GROUP_SIZE = 64


@dataclass
class StreamRecords(Records):
    """Records with products of quantised weights."""

    lanes: int = 64

    def product(self, x: str, columns: int, *, bits: int = 4, bias: bool = False) -> str:
        """x times a quantised weight, its scales and zero points in the order of the lanes."""
        type_ = self.types[x]
        depth = type_.shape[-1]
        blocks = (self.lanes, ceil_div(columns, self.lanes), ceil_div(depth, GROUP_SIZE))
        operands = (
            x,
            self.weight(columns, depth * bits // 8, dtype="ui8"),
            self.weight(*blocks, dtype=type_.dtype),
            self.weight(*blocks, dtype="ui8"),
            self.weight(columns, dtype=type_.dtype) if bias else "",
        )
        attributes = {"q_group_size": GROUP_SIZE, "weight_bits": bits, "w_transpose": True}
        result = TensorType((*type_.shape[:-1], columns), type_.dtype)
        return self._append("tpu.A16MatMul", operands, result, attributes)


def feed_forward(
    rows: int, hidden: int = 128, inner: int = 320, *, lanes: int = 64, dtype: str = "bf16", **product: Any
) -> tuple[OpRecord, ...]:
    """From the product behind attention to the last sum: what stays in local memory between two attentions."""
    module = StreamRecords(lanes=lanes)
    states, attended = module.input(1, rows, hidden, dtype=dtype), module.input(1, rows, hidden, dtype=dtype)
    residual = module.add(states, module.product(attended, hidden, **product))
    normal = module.norm(residual)
    gate = module.cast(module.product(normal, inner, **product), "f32")
    active = module.cast(module.silu(gate), dtype)
    lifted = module.mul(active, module.product(normal, inner, **product))
    total = module.add(residual, module.product(lifted, hidden, **product))
    return module.done(total, module.norm(total))


def heads(
    rows: int, hidden: int = 128, count: int = 4, size: int = 32, *, lanes: int = 64, **product: Any
) -> tuple[OpRecord, ...]:
    """Norm, q, k and v with norms of heads and rotary positions: what stays in local memory before an attention."""
    module = StreamRecords(lanes=lanes)
    normal = module.norm(module.input(1, rows, hidden))
    sin, cos = module.input(1, rows, 1, size), module.input(1, rows, 1, size)
    q, k, v = (
        module.reshape(module.product(normal, size * n, **product), 1, rows, n, size) for n in (count, 2, 2)
    )
    turned = [module.rope(module.norm(x), sin, cos) for x in (q, k)]
    return module.done(*turned, v)


def sums(rows: int, hidden: int = 128, inner: int = 192, **product: Any) -> tuple[OpRecord, ...]:
    """Two products with a sum and a product of numbers, all of them exact on small integers."""
    module = StreamRecords(**{name: product.pop(name) for name in ("lanes",) if name in product})
    x, y = module.input(1, rows, hidden), module.input(1, rows, inner)
    first = module.mul(y, module.product(x, inner, **product))
    return module.done(first, module.add(x, module.product(first, hidden, **product)))


# -- text ----------------------------------------------------------------------------------------------------------


def text_of(ops: Sequence[OpRecord]) -> str:
    """A module's text from its records."""
    inputs = [op for op in ops if op.name == "top.Input"]
    arguments = ", ".join(f"%arg{at}: {op.result_types[0]}" for at, op in enumerate(inputs))
    results = ", ".join(map(str, ops[-1].operand_types))
    lines = ['%none = "top.None"() : () -> none']
    for op in ops[:-1]:
        operands = tuple(value or "%none" for value in op.operands)
        types = list(map(str, op.operand_types))
        attributes: dict[str, Any] = dict(op.attributes)
        if op.name == "top.Input":
            operands, types = (f"%arg{inputs.index(op)}",), [str(op.result_types[0])]
        if op.name == "top.Weight":
            attributes = {"tensors": [op.location], "transforms": []}
        lines.append(
            f'{op.results[0]} = "{op.name}"({", ".join(operands)}) {{{_attributes(attributes)}}} : '
            f'({", ".join(types)}) -> {op.result_types[0]} loc("{op.location}")'
        )
    returned = ", ".join(ops[-1].operands)
    body = "\n    ".join([*lines, f"return {returned} : {results}"])
    return f"module @m {{\n  func.func @main({arguments}) -> ({results}) {{\n    {body}\n  }}\n}}\n"


def _attributes(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:e} : f64" if isinstance(value, float) else f"{value} : i64"


# -- numbers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """Weights by name, drawn anew. whole: scales are 1/2 or 1, and everything else small integers."""

    bits: int = 4
    whole: bool = False

    def load(self, references: Sequence[WeightReference], layer: int) -> list[np.ndarray]:
        return [self._one(reference) for reference in references]

    def _one(self, reference: WeightReference) -> np.ndarray:
        random = np.random.default_rng(sum(map(ord, reference.tensors[0])))
        shape, dtype = reference.type.shape, NUMPY_DTYPES[reference.type.dtype]
        if reference.type.dtype == "ui8":
            zero_point = len(shape) == 3
            low, high = (6, 11) if zero_point and self.bits == 4 else (120, 137) if zero_point else (0, 256)
            return random.integers(low, high, shape).astype(dtype)
        if len(shape) == 3:
            values = random.choice([0.5, 1.0], shape) if self.whole else 2 ** random.uniform(-7, -5, shape)
        else:
            values = random.integers(-2, 3, shape) if self.whole else random.standard_normal(shape)
        return values.astype(np.float32).astype(dtype)


def random_values(ops: Sequence[OpRecord], *, whole: bool = False) -> dict[str, np.ndarray]:
    """Inputs of a module. whole: integers from -2 to 2."""
    random = np.random.default_rng(3)
    found = {}
    for op in ops:
        if op.name == "top.Input":
            shape, dtype = op.result_types[0].shape, op.result_types[0].dtype
            values = random.integers(-2, 3, shape) if whole else random.standard_normal(shape)
            found[op.origins[0]] = round_to(values.astype(np.float32), dtype)
    return found


# -- building ------------------------------------------------------------------------------------------------------


def small(lmem_bytes: int, name: str = "bm1684x") -> Chip:
    """A chip with less local memory."""
    return replace(table_chip(name), lmem_bytes=lmem_bytes)


@contextmanager
def compiling_for(chip: Chip) -> Iterator[None]:
    """Options name this chip, whatever they are asked for."""
    with patch.object(engine.options, "chip", lambda name: chip):
        yield


def planned(ops: Sequence[OpRecord], chip: Chip) -> LayerGroupReport:
    """What `--fuse-weights` plans."""
    return search.plan_fused(ops, chip, opt=2)


def streamed(
    ops: Sequence[OpRecord],
    chip: Chip,
    numbers: Numbers | None = None,
    planner: Callable[[Sequence[OpRecord], Chip], Sequence[GroupPlan]] | None = None,
) -> Built:
    """The module with its streams, as far as instructions. The records given must be those of their text."""
    plans = planner or (lambda records, chip: planned(records, chip).groups)
    with compiling_for(chip):
        built = build(text_of(ops), plans, chip_name=chip.name)
    return replace(built, loader=numbers or Numbers())  # type: ignore[arg-type]
