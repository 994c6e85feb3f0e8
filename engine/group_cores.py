"""What each core runs of a layer group: its slices, one pipeline over them, and what that costs (R4, R52).

Local memory is the same on every core; which slices pass through it differs. Cycles are priced as the layer-group pass
prices them, so on one core they sum to the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from engine.passes.layer_group.plan import BufferKind, GroupPlan, GroupType, Item, ItemKind, LayerGroupReport
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.cores import CoreUse, Range

GROUP = "tpu.Group"
LOAD_STAGE, COMPUTE_STAGE, STORE_STAGE = range(3)

ItemCycles = Mapping[int, Sequence[int]]
"""Cycles of every item by its id: one number for each slice of the group."""


@dataclass(frozen=True)
class CoreShare:
    """What one core runs of a layer group.

    core: its number; cores: how many the program has. slices: of the whole group. stages: of its pipeline. parts:
    ranges of slices, each run as a pipeline of its own; none on a core that has nothing to do.
    """

    core: int
    cores: int
    slices: int
    stages: int
    parts: tuple[Range, ...]

    @property
    def idle(self) -> bool:
        """It has nothing to do."""
        return not self.parts

    @property
    def whole(self) -> bool:
        """It runs the whole group."""
        return self.parts == ((0, self.slices),)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The slices that it runs."""
        return tuple(number for first, count in self.parts for number in range(first, first + count))

    @cached_property
    def _steps(self) -> tuple[tuple[Range, int], ...]:
        """For each pipeline step the part that is run, and which of the part's steps it is."""
        return tuple((part, at) for part in self.parts for at in range(part[1] + self.stages - 1))

    @property
    def pipeline_steps(self) -> int:
        """How often the time steps run: once a slice, plus filling and draining."""
        return len(self._steps)

    def part_at(self, pipeline_step: int) -> tuple[Range, int]:
        """The part that a pipeline step belongs to, and which of its steps it is."""
        return self._steps[pipeline_step]

    def slice_at(self, stage: int, pipeline_step: int) -> int | None:
        """The slice of the group on which a stage works in a pipeline step; None when it rests."""
        if not 0 <= pipeline_step < len(self._steps):
            return None
        (first, count), at = self._steps[pipeline_step]
        number = at - stage
        return first + number if 0 <= number < count else None

    def runs(self, item: Item, pipeline_step: int) -> bool:
        """Whether an item does something in a pipeline step; what is held is loaded with a part's first slice."""
        number = self.slice_at(item.stage, pipeline_step)
        if number is None:
            return False
        return not item.held or number == self._steps[pipeline_step][0][0]

    @property
    def text(self) -> str:
        """`core 0 of 2 · slices 0..1 of 4`."""
        return f"core {self.core} of {self.cores} · {self.slices_text}"

    @property
    def slices_text(self) -> str:
        """`slices 0..1 of 4`."""
        if self.idle:
            return "no slice"
        if self.slices == 1:
            return "the one slice"
        ranges = ", ".join(
            str(first) if count == 1 else f"{first}..{first + count - 1}" for first, count in self.parts
        )
        return f"slice{'s' if len(self.numbers) > 1 else ''} {ranges} of {self.slices}"


def whole_share(plan: GroupPlan) -> CoreShare:
    """All of a group, as a program for one core runs it."""
    slices = plan.secs.slices
    return CoreShare(0, 1, slices, plan.stages, ((0, slices),))


def core_shares(
    report: LayerGroupReport, ops: Sequence[OpRecord], cores: int
) -> tuple[tuple[CoreShare, ...], ...]:
    """What each of the program's cores runs of every group. ops: the records that `core-parallel` left."""
    records = [record for record in ops if record.name == GROUP]
    return tuple(
        tuple(_share(plan, CoreUse.of(record) or CoreUse((0,)), core, cores) for core in range(cores))
        for plan, record in zip(report.groups, records, strict=True)
    )


def _share(plan: GroupPlan, use: CoreUse, core: int, cores: int) -> CoreShare:
    slices = plan.secs.slices
    parts: tuple[Range, ...] = ()
    if core in use.cores:
        parts = ((0, slices),) if use.split is None else use.parts_of(use.cores.index(core))
    return CoreShare(core, cores, slices, plan.stages, parts)


def on_core(plan: GroupPlan, share: CoreShare) -> GroupPlan:
    """The plan as a core runs it: nothing of it where the core has nothing to do."""
    if not share.idle:
        return plan
    return replace(plan, items=(), steps=(), buffers=(), cycles=0, peak_bytes=0)


def value_roots(plan: GroupPlan, ops: Sequence[OpRecord]) -> dict[str, str]:
    """The value in whose local memory another value lies: of reshapes, and of results that replace an operand."""
    own = {b.value for b in plan.buffers if b.kind is not BufferKind.SCRATCH}
    places = {item.value: item.out_address for item in plan.items}
    found: dict[str, str] = {}
    for record in (ops[index] for index in plan.records):
        result = record.results[0]
        for value in () if result in own else record.operands:
            if record.kind == "Reshape" or places.get(value) == places.get(result, -1):
                found[result] = found.get(value, value)
                break
    return found


# -- cycles --------------------------------------------------------------------------------------------------------


def price_items(plan: GroupPlan, ops: Sequence[OpRecord], chip: Chip) -> dict[int, tuple[int, ...]]:
    """Cycles of every item for every slice, priced as the pass does it; items of equal slices are priced once.

    None for a group that streams weights: its steps are those of all its pieces already.
    """
    if plan.type is GroupType.STREAM:
        return {}
    # pricing needs every op's kernel, which takes long to import for screens that may never ask
    from engine.passes.layer_group.chains import Program, group_of
    from engine.passes.layer_group.cost import prices_of
    from engine.passes.layer_group.slicing import number_of

    prices, roots = prices_of(chip), value_roots(plan, ops)
    group = group_of(Program.of(ops, chip), plan.records, plan.type)
    replaced = {op.result: op.operands for op in group.ops if op.moves and op.result in roots}
    in_place = {
        result: next(value for value in operands if roots.get(value, value) == roots[result])
        for result, operands in replaced.items()
    }
    group = replace(group, in_place=in_place)
    op_of = {op.index: op for op in group.ops}
    slices = {item.value: item.slices for item in plan.items}
    numbers = [number_of(plan.secs, index).as_tuple() for index in range(plan.secs.slices)]

    def shape(value: str, at: Sequence[int]) -> tuple[int, int, int, int]:
        if value not in slices:
            return group.tensors[value].shape
        n, c, _, h, w = (
            lengths[number if len(lengths) > 1 else 0]
            for lengths, number in zip(slices[value].lengths, at, strict=True)
        )
        return (n, c, h, w)

    def price(item: Item, at: Sequence[int]) -> int:
        if item.kind is not ItemKind.COMPUTE:
            return prices.transfer(group.tensors[item.value], shape(item.value, at), item.kind)
        shapes = {value: shape(value, at) for value in group.tensors}
        return prices.compute(op_of[item.record], group, shapes)

    return {item.id: tuple(price(item, at) for at in numbers) for item in plan.items}


def step_cycles(
    plan: GroupPlan, share: CoreShare, costs: ItemCycles, step: int, pipeline_step: int | None
) -> tuple[int, int]:
    """Cycles of a time step on the TIU and on the DMA: in a pipeline step, or (None) of the core's largest slice with
    everything that is loaded for it. costs: of `price_items`; the plan's own numbers where there are none."""
    found = plan.steps[step]
    if not costs or (pipeline_step is None and share.whole):
        return found.compute_cycles, found.transfer_cycles
    items = {item.id: item for item in plan.items}

    def total(ids: Sequence[int]) -> int:
        if pipeline_step is None:
            return max(sum(costs[item][number] for item in ids) for number in share.numbers)
        return sum(_in_pipeline(items[item], share, costs, pipeline_step) for item in ids)

    return total(found.computes), total(found.transfers)


def _in_pipeline(item: Item, share: CoreShare, costs: ItemCycles, pipeline_step: int) -> int:
    number = share.slice_at(item.stage, pipeline_step)
    if number is None or not share.runs(item, pipeline_step):
        return 0
    return costs[item.id][number]


def pipeline_cycles(plan: GroupPlan, share: CoreShare, costs: ItemCycles) -> list[int]:
    """Cycles of each pipeline step of a core: in every time step those of the slower engine."""
    if not costs:
        return [plan.cycles] * share.pipeline_steps
    return [
        sum(max(step_cycles(plan, share, costs, step, at)) for step in range(len(plan.steps)))
        for at in range(share.pipeline_steps)
    ]


def core_cycles(plan: GroupPlan, share: CoreShare, costs: ItemCycles) -> int:
    """What a core takes for all its slices of a group."""
    if share.whole:
        return plan.cycles
    return sum(pipeline_cycles(plan, share, costs))
