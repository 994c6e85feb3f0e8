"""What ops and transfers of a group cost, by emitting and pricing their instructions; the cost of a group (R4).

Prices depend on shapes, types and attributes only, so each is found once per process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import engine.tpu.ops  # noqa: F401  (fills the registry)
from engine.op import REGISTRY, TpuOp
from engine.passes.layer_group.chains import LocalOp, Tensor
from engine.passes.layer_group.plan import ItemKind, Secs
from engine.passes.layer_group.slicing import Sliced, number_of
from engine.passes.layer_group.time_steps import COMPUTE_STAGE, STAGES, Table
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.cost import cycles
from engine.tpu.emit import Emitter, align_up
from engine.tpu.isa import Arena, Global, Local, Shape4, contiguous
from engine.tpu.schedule import schedule

_EVERYWHERE = 1 << 48
"""Size of the arena in which global ops are priced: every address lies in it."""


@dataclass
class Prices:
    """Leaf costs on one chip, in cycles; scratch in bytes per lane."""

    chip: Chip
    _known: dict[Any, int] = field(default_factory=dict)

    def compute(self, op: LocalOp, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape4]) -> int:
        """Cycles of an op on slices of these shapes in local memory."""
        if not op.moves:
            return 0
        key = ("compute", *_key(op, shapes))
        if key not in self._known:
            self._known[key] = self._price_compute(op, tensors, shapes)
        return self._known[key]

    def scratch(self, op: LocalOp, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape4]) -> int:
        """Bytes per lane that an op needs beside its operands and its result."""
        if not op.moves:
            return 0
        key = ("scratch", *_key(op, shapes))
        if key not in self._known:
            sources, result, _ = self._locals(op, tensors, shapes)
            needed = _local_class(op.record).local_buffer(self.chip, sources, [result])
            self._known[key] = int(needed)
        return self._known[key]

    def transfer(self, tensor: Tensor, shape: Shape4, kind: ItemKind) -> int:
        """Cycles of loading or storing a slice of a DDR tensor (R5, R35)."""
        key = (kind, tensor.shape, shape, tensor.dtype, tensor.aligned)
        if key not in self._known:
            self._known[key] = self._price_transfer(tensor, shape, kind)
        return self._known[key]

    def globally(self, record: OpRecord) -> int:
        """Cycles of an op with operands and results in DDR; 0 for ops that move nothing.

        Raises UserError or ValueError when its kernel cannot be emitted.
        """
        key = (record.name, _plain(record.attributes), record.operand_types, record.result_types)
        if key not in self._known:
            self._known[key] = self._price_globally(record)
        return self._known[key]

    def _price_compute(self, op: LocalOp, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape4]) -> int:
        emit = Emitter(self.chip, {})
        sources, result, end = self._locals(op, tensors, shapes)
        _local_class(op.record).local(op.record, emit, sources, [result], end)
        return int(cycles(emit.program(), self.chip).sum())

    def _locals(
        self, op: LocalOp, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape4]
    ) -> tuple[list[Local], Local, int]:
        """Operands, result and the address behind them: one behind the other, so that nothing is in place."""
        emit, at, found = Emitter(self.chip, {}), 0, []
        for value in (*op.operands, op.result):
            tensor = tensors[value]
            found.append(emit.local(at, tensor.dtype, shapes[value], aligned=tensor.aligned))
            at += align_up(tensor.lane_bytes(self.chip, shapes[value]), self.chip.eu_bytes)
        return found[:-1], found[-1], at

    def _price_transfer(self, tensor: Tensor, shape: Shape4, kind: ItemKind) -> int:
        emit = Emitter(self.chip, {})
        outside = Global(Arena.NEURON, 0, tensor.dtype, shape, contiguous(tensor.shape))
        inside = emit.local(0, tensor.dtype, shape, aligned=tensor.aligned)
        if kind is ItemKind.LOAD:
            emit.load(inside, outside)
        else:
            emit.store(outside, inside)
        return int(cycles(emit.program(), self.chip).sum())

    def _price_globally(self, record: OpRecord) -> int:
        emit = Emitter(self.chip, {Arena.NEURON: (0, _EVERYWHERE)})
        placed = replace(
            record,
            operand_types=tuple(replace(t, address=0) for t in record.operand_types),
            result_types=tuple(replace(t, address=0) for t in record.result_types),
        )
        emit.begin(0, placed)
        _declaration(record).kernel(placed, emit)
        program = emit.program()
        return schedule(program, cycles(program, self.chip)).total_cycles


_PRICES: dict[Any, Prices] = {}


def prices_of(chip: Chip) -> Prices:
    """The prices found so far on a chip."""
    key = (chip.name, chip.lanes, chip.eu_bytes, chip.lmem_bytes, chip.banks)
    return _PRICES.setdefault(key, Prices(chip))


def _declaration(record: OpRecord) -> type[TpuOp]:
    declaration = REGISTRY[record.name]
    assert issubclass(declaration, TpuOp)
    return declaration


def _local_class(record: OpRecord) -> Any:
    """The class of an op with `local` and `local_buffer`."""
    return _declaration(record)


def _key(op: LocalOp, shapes: Mapping[str, Shape4]) -> tuple[Any, ...]:
    dtypes = tuple(t.dtype for t in (*op.record.operand_types, *op.record.result_types))
    values = tuple(shapes[value] for value in (*op.operands, op.result))
    return (op.record.name, _plain(op.record.attributes), dtypes, values)


def _plain(value: Any) -> Any:
    """Attributes as something that can be a key."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, _plain(inner)) for name, inner in value.items()))
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class StepCycles:
    """Cycles of one slice: of each op, and of each transfer, in the order of the table."""

    computing: tuple[int, ...]
    moving: tuple[int, ...]


def step_cycles(table: Table, shapes: Mapping[str, Shape4], prices: Prices) -> StepCycles:
    """Costs of a slice with these shapes."""
    tensors = table.group.tensors
    return StepCycles(
        tuple(prices.compute(op, tensors, shapes) for op in table.group.ops),
        tuple(prices.transfer(tensors[t.value], shapes[t.value], t.kind) for t in table.transfers),
    )


def group_cycles(table: Table, secs: Secs, slices: Mapping[str, Sliced], prices: Prices) -> int:
    """R4: over pipeline steps and time steps, the slower of the two engines.

    At pipeline step p an item of stage s works on slice p - s; what is held is loaded for slice 0 only.
    """
    numbers = [number_of(secs, index) for index in range(secs.slices)]
    kinds: dict[tuple[Any, ...], int] = {}
    kind_of = [
        kinds.setdefault((index == 0, *_lengths(slices, number)), len(kinds))
        for index, number in enumerate(numbers)
    ]
    first_of = {kind: index for index, kind in reversed(list(enumerate(kind_of)))}
    costs = {
        kind: step_cycles(table, {v: s.shape(numbers[at]) for v, s in slices.items()}, prices)
        for kind, at in first_of.items()
    }
    none = -1
    padded = [none] * (STAGES - 1) + kind_of + [none] * (STAGES - 1)
    steps = Counter(
        tuple(padded[p + STAGES - 1 - stage] for stage in range(STAGES))
        for p in range(secs.slices + STAGES - 1)
    )
    return sum(times * _pipeline_step(table, active, costs, kind_of[0]) for active, times in steps.items())


def _lengths(slices: Mapping[str, Sliced], number: Secs) -> tuple[int, ...]:
    """What tells slices of different shapes apart."""
    found: dict[Shape4, None] = {}
    for sliced in slices.values():
        if not sliced.is_whole:
            found[sliced.shape(number)] = None
    return tuple(length for shape in found for length in shape)


def _pipeline_step(table: Table, active: Sequence[int], costs: Mapping[int, StepCycles], first: int) -> int:
    """Cycles of one pipeline step. active: kind of slice on which each stage works, -1 for none."""
    moving = [0] * table.rows
    for number, transfer in enumerate(table.transfers):
        kind = active[transfer.stage]
        if kind >= 0 and (not transfer.held or kind == first):
            moving[transfer.row] += costs[kind].moving[number]
    kind = active[COMPUTE_STAGE]
    total = 0
    for row, ops in enumerate(table.computes):
        computing = sum(costs[kind].computing[op] for op in ops) if kind >= 0 else 0
        total += max(computing, moving[row])
    return total
