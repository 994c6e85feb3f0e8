"""An op's way through the compilation, both ways: checkpoint tensor, TopOp, TpuOps, instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from engine.compiler import Compilation
from engine.diff import diff
from engine.errors import UserError
from engine.snapshot import OpRecord, Snapshot
from engine.stages import Kind
from engine.tables import weight_ops, weight_tensors
from engine.tpu.isa import Engine

CODEGEN = "codegen"
"""The pass whose report is the module's program."""

_OF_MANY = ("tpu.Group", "tpu.Yield")
"""Ops that come from everything in their region, which is found by itself."""


@dataclass(frozen=True)
class SourceTensor:
    """A checkpoint tensor (or a computed one, `@...`) with its stored shape."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Provenance:
    """One origin followed through the whole compilation, both ways.

    key: the origin, of a whole TopOp (`model.layers.{i}.mlp`) or of a part of it (`...mlp.gate_proj`). tensors: what
    the checkpoint holds for it. top_ops, tpu_ops: before lowering and at the end, with their positions in the first
    and last snapshot. instructions: half-open ranges of the module's program. via: the passes that changed these ops.
    """

    key: str
    tensors: tuple[SourceTensor, ...]
    top_ops: tuple[tuple[int, OpRecord], ...]
    tpu_ops: tuple[tuple[int, OpRecord], ...]
    instructions: tuple[tuple[int, int], ...]
    tiu: int
    gdma: int
    via: tuple[str, ...]


def origin_of(compilation: Compilation, module: str, op: OpRecord) -> Provenance:
    """Where an op (of any snapshot) came from and what became of it. A weight counts as the op that reads it."""
    if op.name == "top.Weight":
        snapshots = compilation.snapshots(module).snapshots
        readers = _readers(snapshots[-1].ops, weight_tensors(op))
        return provenance(compilation, module, readers[0].location if readers else op.location)
    return provenance(compilation, module, op.location)


def uses_of_tensor(compilation: Compilation, module: str, tensor: str) -> tuple[Provenance, ...]:
    """What a module does with a checkpoint tensor: one entry for each origin that reads it.

    The name may carry the layer or its placeholder. Raises UserError when the module does not read it.
    """
    spec, _ = compilation.find(module)
    last = compilation.snapshots(module).snapshots[-1]
    wanted = re.sub(r"(?<=\.)\d+(?=\.)", "{i}", tensor, count=1) if spec.kind is Kind.BLOCK else tensor
    readers = _readers(last.ops, (tensor, wanted))
    if not readers:
        known = ", ".join(dict.fromkeys(name for op in weight_ops(last) for name in weight_tensors(op)))
        raise UserError(f"module {module} does not read tensor {tensor!r}; it reads: {known}")
    return tuple(provenance(compilation, module, key) for key in dict.fromkeys(op.location for op in readers))


def provenance(compilation: Compilation, module: str, key: str) -> Provenance:
    """Everything that carries an origin."""
    snapshots = compilation.snapshots(module).snapshots
    first, last = snapshots[0], snapshots[-1]
    tpu_ops = _placed(last.ops, {key}, any_origin=True)
    roots = {origin for _, op in tpu_ops for origin in op.origins} or {key}
    top_ops = _placed(first.ops, roots, any_origin=False)
    ranges, tiu, gdma = _instructions(last, {index for index, _ in tpu_ops})
    readers = tpu_ops or top_ops
    return Provenance(
        key,
        _read_tensors(first.ops, last.ops if tpu_ops else first.ops, [op for _, op in readers]),
        top_ops,
        tpu_ops,
        ranges,
        tiu,
        gdma,
        _via(snapshots, roots),
    )


def _placed(ops: Iterable[OpRecord], keys: set[str], *, any_origin: bool) -> tuple[tuple[int, OpRecord], ...]:
    return tuple(
        (index, op)
        for index, op in enumerate(ops)
        if op.name not in _OF_MANY and keys.intersection(op.origins if any_origin else op.origins[:1])
    )


def _readers(ops: Sequence[OpRecord], tensors: Sequence[str]) -> list[OpRecord]:
    values = {
        op.results[0] for op in ops if op.name == "top.Weight" and set(tensors) & set(weight_tensors(op))
    }
    return [op for op in ops if values.intersection(op.operands)]


def _read_tensors(
    first: Sequence[OpRecord], ops: Sequence[OpRecord], readers: Sequence[OpRecord]
) -> tuple[SourceTensor, ...]:
    """The tensors that some of `ops` read, with the shapes that the import knew."""
    weights = {op.results[0]: op for op in ops if op.name == "top.Weight"}
    stored = {
        name: _stored_shape(op) for op in first if op.name == "top.Weight" for name in weight_tensors(op)
    }
    read = [weights[value] for reader in readers for value in reader.operands if value in weights]
    names = dict.fromkeys(name for weight in read for name in weight_tensors(weight))
    return tuple(SourceTensor(name, stored.get(name, ())) for name in names)


def _stored_shape(weight: OpRecord) -> tuple[int, ...]:
    """The shape before the transforms that the import wrote (a transpose, or a reshape of a vector)."""
    shape = weight.result_types[0].shape
    transforms = weight.attributes.get("transforms") or ()
    if "transpose" in transforms:
        return shape[::-1]
    return (prod(shape),) if any(text.startswith("reshape") for text in transforms) else shape


def _instructions(last: Snapshot, indices: set[int]) -> tuple[tuple[tuple[int, int], ...], int, int]:
    """(ranges of the program, TIU count, GDMA count) of some ops; nothing before codegen."""
    if last.pass_name != CODEGEN or last.report is None or not indices:
        return (), 0, 0
    program: np.ndarray[Any, Any] = last.report
    mine = np.isin(program["op"], list(indices))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mine, [False])).astype(np.int8)))
    ranges = tuple((int(start), int(end)) for start, end in edges.reshape(-1, 2))
    tiu = int((program["engine"][mine] == Engine.TIU).sum())
    return ranges, tiu, int(mine.sum()) - tiu


def _via(snapshots: Sequence[Snapshot], keys: set[str]) -> tuple[str, ...]:
    passes = [snapshots[0].pass_name]
    for before, after in pairwise(snapshots):
        if not after.changed:
            continue
        ops = {hunk.kind for hunk in diff(before, after).hunks if hunk.key in keys}
        if ops - {"equal"}:
            passes.append(after.pass_name)
    return tuple(passes)
