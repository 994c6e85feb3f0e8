"""What ops and transfers of a group cost, by emitting and pricing their instructions; the cost of a group (R4).

Prices depend on shapes, types and attributes only, so each is found once per process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import engine.tpu.ops  # noqa: F401  (fills the registry)
from engine.errors import UserError
from engine.op import REGISTRY, TpuOp
from engine.passes.layer_group.chains import GroupOps, LocalOp, Tensor
from engine.passes.layer_group.plan import ItemKind, Secs
from engine.passes.layer_group.slicing import Sliced, number_of
from engine.passes.layer_group.time_steps import COMPUTE_STAGE, STAGES, Table, Transfer
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

    def compute(self, op: LocalOp, group: GroupOps, shapes: Mapping[str, Shape4]) -> int:
        """Cycles of an op on slices of these shapes in local memory."""
        if not op.moves:
            return 0
        replaced = group.in_place.get(op.result)
        number = -1 if replaced is None else op.operands.index(replaced)
        key = ("compute", number, *_key(op, shapes))
        if key not in self._known:
            self._known[key] = self._price_compute(op, group.tensors, shapes, number)
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

        Raises UserError, which names the op's location, or ValueError when its kernel cannot be emitted.
        """
        key = structure(record)
        if key not in self._known:
            try:
                self._known[key] = self._price_globally(record)
            except UserError as error:
                if record.location in str(error):
                    raise
                raise UserError(f"{record.kind} at {record.location}: {error}") from error
        return self._known[key]

    def least(self, group: GroupOps, *, alone: bool) -> float:
        """Cycles that ops take at least, as one group or (`alone`) one op run globally, by what is computed and moved.

        Nothing is assumed of how a global kernel computes, only that it moves every byte once at the best speed.
        """
        tensors = group.tensors
        moved = [sum(tensors[v].type.nbytes for v in values) for values in (group.inputs, group.outputs)]
        speeds = zip(
            self.chip.costs["transfer_bytes_per_cycle"],
            self.chip.costs["matrix_bytes_per_cycle"],
            strict=False,
        )
        cycles_moving = _ROUNDED_DOWN * sum(n / max(speed) for n, speed in zip(moved, speeds, strict=False))
        if alone:
            return float(cycles_moving) if group.ops[0].moves else 0.0
        if any(op.kind == "MatMul" and tensors[op.result].shape[0] > 1 for op in group.ops):
            return float(cycles_moving)
        shapes = {value: tensor.shape for value, tensor in tensors.items()}
        return float(max(sum(self.compute(op, group, shapes) for op in group.ops), cycles_moving))

    def _price_compute(
        self, op: LocalOp, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape4], replaced: int
    ) -> int:
        """replaced: number of the operand whose place the result takes, or -1."""
        emit = Emitter(self.chip, {})
        sources, result, end = self._locals(op, tensors, shapes)
        if replaced >= 0:
            result = sources[replaced]
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


_ROUNDED_DOWN = 0.99
"""Each transfer is rounded down to whole cycles, so many small ones may take a little less than their bytes do."""

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


def structure(record: OpRecord) -> tuple[Any, ...]:
    """All of a record on which its cost depends, as something that can be a key."""
    return (record.name, _plain(record.attributes), record.operand_types, record.result_types)


def _plain(value: Any) -> Any:
    """Attributes as something that can be a key."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, _plain(inner)) for name, inner in value.items()))
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class SliceCycles:
    """Cycles of one slice: of each op by position, and of each load and store by value."""

    computing: tuple[int, ...]
    loading: Mapping[str, int]
    storing: Mapping[str, int]

    def moving(self, transfers: Sequence[Transfer]) -> list[int]:
        """Cycles of these transfers."""
        return [(self.loading if t.is_load else self.storing)[t.value] for t in transfers]


@dataclass(frozen=True)
class Profile:
    """What the slices of a group cost, whatever its time steps are.

    slices: one for each shape of slice; the first is the first (and largest) slice and no other. steps: how often each
    combination of slices occurs in the pipeline: (loaded, computed, stored), None for no slice.
    """

    slices: tuple[SliceCycles, ...]
    steps: Mapping[tuple[int | None, ...], int]

    @classmethod
    def of(cls, group: GroupOps, secs: Secs, slices: Mapping[str, Sliced], prices: Prices) -> Profile:
        """Price every shape of slice."""
        kinds: dict[tuple[object, ...], int] = {}
        order = []
        costs = []
        for index in range(secs.slices):
            number = number_of(secs, index)
            shapes = {value: sliced.shape(number) for value, sliced in slices.items()}
            key = (index == 0, *shapes.values())
            if key not in kinds:
                kinds[key] = len(kinds)
                costs.append(_slice_cycles(group, shapes, prices))
            order.append(kinds[key])
        around: list[int | None] = [None] * (STAGES - 1)
        padded = [*around, *order, *around]
        steps = Counter(
            tuple(padded[p + STAGES - 1 - stage] for stage in range(STAGES))
            for p in range(secs.slices + STAGES - 1)
        )
        return cls(tuple(costs), steps)

    @property
    def largest(self) -> SliceCycles:
        """Of the largest slice."""
        return self.slices[0]

    def cycles(self, table: Table) -> int:
        """R4: over pipeline steps and time steps, the slower of the two engines.

        At pipeline step p an item of stage s works on slice p - s; what is held is loaded for slice 0 only.
        """
        computing = [[sum(s.computing[op] for op in ops) for ops in table.computes] for s in self.slices]
        moving = [[[0] * table.rows for _ in range(STAGES)] for _ in self.slices]
        for kind, costs in enumerate(self.slices):
            for transfer, cost in zip(table.transfers, costs.moving(table.transfers), strict=True):
                if not transfer.held or kind == 0:
                    moving[kind][transfer.stage][transfer.row] += cost
        total = 0
        for active, times in self.steps.items():
            moved = [moving[kind][stage] for stage, kind in enumerate(active) if kind is not None]
            middle = active[COMPUTE_STAGE]
            computed = [0] * table.rows if middle is None else computing[middle]
            together = [sum(row) for row in zip(*moved, strict=True)]
            total += times * sum(map(max, computed, together))
        return total


def _slice_cycles(group: GroupOps, shapes: Mapping[str, Shape4], prices: Prices) -> SliceCycles:
    tensors = group.tensors
    return SliceCycles(
        tuple(prices.compute(op, group, shapes) for op in group.ops),
        {v: prices.transfer(tensors[v], shapes[v], ItemKind.LOAD) for v in group.inputs},
        {v: prices.transfer(tensors[v], shapes[v], ItemKind.STORE) for v in group.outputs},
    )
