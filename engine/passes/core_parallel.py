"""core-parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from engine import mlir
from engine.op import REGISTRY, TpuOp
from engine.passes.base import Pass, PassContext, PassReport
from engine.snapshot import OpRecord
from engine.tpu.cores import CoreSplit, CoreUse, even_split
from engine.tpu.ginfo import DIMENSIONS
from engine.tpu.ops.group import SECS

SHARED_OPERAND = {"tpu.A16MatMul": 0, "tpu.MatMul": 0, "tpu.Gather": 1}
"""Kinds of ops that may run beside one of their kind, and the operand that both must read."""


@dataclass(frozen=True)
class CoreParallel(Pass):
    """Shares every op between the cores of the chip: matrix products by columns, attention by KV heads (by query tiles
    under the small causal mask), layer groups by slices, everything else by rows, or by channels where there is one
    row. As many equal products of one tensor as there are cores (k and v, gate and up) run side by side instead, a
    whole one on each core, as do the cosine and sine Gathers. What cannot be cut runs on core 0. Products store their
    columns where they belong, so no Concat joins them: no DDR byte is moved twice but what several cores read. All
    cores wait for each other between ops."""

    name = "core-parallel"

    def applies(self, context: PassContext) -> bool:
        return context.options.cores > 1

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        cores = context.options.cores
        _stand_together(module, cores)
        records = mlir.records(module)
        uses = dict(_uses(records, context))
        top = [index for index, record in enumerate(records) if record.parent is None]
        for index, operation in zip(top, mlir.body_operations(module), strict=True):
            if index in uses:
                for name, value in uses[index].attributes().items():
                    mlir.set_attribute(operation, name, value)
        return PassReport((_note(list(uses.values())),))


# -- ops side by side ----------------------------------------------------------------------------------------------


def _siblings(records: Sequence[OpRecord], cores: int) -> list[tuple[int, ...]]:
    """Indices of equal ops of one tensor, as many as there are cores; of more the first ones are left over."""
    alike: dict[object, list[int]] = {}
    for index, record in enumerate(records):
        if record.name in SHARED_OPERAND and record.parent is None:
            key = (
                record.name,
                record.operands[SHARED_OPERAND[record.name]],
                record.operand_types,
                record.result_types,
                str(record.attributes),
            )
            alike.setdefault(key, []).append(index)
    found = []
    for members in alike.values():
        spare = len(members) % cores
        found += [tuple(members[at : at + cores]) for at in range(spare, len(members), cores)]
    made_at = {name: index for index, record in enumerate(records) for name in record.results}
    return [group for group in found if _can_move(records, group, made_at)]


def _can_move(records: Sequence[OpRecord], members: Sequence[int], made_at: dict[str, int]) -> bool:
    """Whether all operands are there when the first of the ops runs."""
    return all(made_at.get(name, -1) < members[0] for index in members for name in records[index].operands)


def _stand_together(module: mlir.Module, cores: int) -> None:
    """Move ops that run side by side behind the first of them."""
    records = mlir.records(module)
    top = [index for index, record in enumerate(records) if record.parent is None]
    operations = dict(zip(top, mlir.body_operations(module), strict=True))
    for first, *others in _siblings(records, cores):
        behind = operations[top[top.index(first) + 1]]
        for index in others:
            if operations[index] is not behind:
                mlir.move_before(operations[index], behind)


# -- which cores run what ------------------------------------------------------------------------------------------


def _uses(records: Sequence[OpRecord], context: PassContext) -> Iterator[tuple[int, CoreUse]]:
    """Index and cores of every op that emits instructions."""
    cores = context.options.cores
    beside = {
        index: CoreUse((place,), parallel=number)
        for number, members in enumerate(_siblings(records, cores))
        for place, index in enumerate(members)
    }
    for index, record in enumerate(records):
        if record.parent is not None or not _runs(record):
            continue
        split = None if index in beside else _split(records, index, context)
        use = CoreUse((0,)) if split is None else _cut(split, cores)
        yield index, beside.get(index, use)


def _runs(record: OpRecord) -> bool:
    """Whether an op runs on the accelerator: reshapes and in-place appends move nothing."""
    declaration = REGISTRY.get(record.name)
    if declaration is None or not issubclass(declaration, TpuOp) or declaration.host:
        return False
    return record.kind != "Reshape" and not record.attributes.get("only_merge", False)


def _split(records: Sequence[OpRecord], index: int, context: PassContext) -> CoreSplit | None:
    record, cores = records[index], context.options.cores
    if record.name == "tpu.Group":
        return _split_group(records, index, cores)
    declaration = REGISTRY[record.name]
    assert issubclass(declaration, TpuOp)
    return declaration.core_split(record, context.options.chip, cores)


def _split_group(records: Sequence[OpRecord], index: int, cores: int) -> CoreSplit | None:
    """Slices, the first ceil(slices / cores) on the first core (R52); none if slices write the same bytes."""
    secs = [records[index].attributes[name] for name in SECS]
    for record in records:
        if record.parent == index and record.name == "tpu.Store":
            cuts = [len(record.attributes["ginfo"][f"{dim}_idx"]) for dim in DIMENSIONS]
            if cuts != secs:
                return None
    return even_split(prod(secs), None, cores)


def _cut(split: CoreSplit, cores: int) -> CoreUse:
    return CoreUse(tuple(range(min(cores, len(split.parts)))), split)


def _note(uses: Sequence[CoreUse]) -> str:
    shared = sum(use.split is not None for use in uses)
    beside = sum(use.parallel is not None for use in uses)
    parts = [f"{shared} ops shared between cores", f"{beside} side by side" if beside else ""]
    parts.append(f"{len(uses) - shared - beside} on core 0")
    return ", ".join(part for part in parts if part)
