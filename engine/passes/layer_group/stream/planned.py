"""A placed stream as a group's plan: its runs as items, its steps and its buffers."""

from __future__ import annotations

from collections.abc import Mapping

from engine.passes.layer_group.plan import (
    BufferKind,
    GroupPlan,
    GroupType,
    Item,
    ItemKind,
    LmemBuffer,
    Secs,
    Slices,
    TimeStep,
)
from engine.passes.layer_group.stream.moves import Role, part_box
from engine.passes.layer_group.stream.schedule import Run
from engine.passes.layer_group.stream.trial import Placed
from engine.tpu.isa import Shape4


def stream_plan(placed: Placed) -> GroupPlan:
    """The group as the pass reports it. Ids count the runs, those of one op together, ops in the order of the IR."""
    schedule = placed.schedule
    numbers = {id(track): at for at, track in enumerate(schedule.tracks.values())}
    ordered = sorted(schedule.runs, key=lambda run: numbers[id(run.track)])
    ids = {id(run): number for number, run in enumerate(ordered)}
    items = tuple(_item(number, run, placed) for number, run in enumerate(ordered))
    return GroupPlan(
        records=tuple(op.index for op in schedule.stream.ops),
        type=GroupType.STREAM,
        secs=Secs(),
        stages=1,
        items=items,
        steps=_steps(placed, ids),
        buffers=_buffers(placed, ids),
        cycles=placed.cycles,
        peak_bytes=placed.buffers.used_bytes,
        row_starts=tuple(start for start, _ in schedule.cut.rows),
    )


def _item(number: int, run: Run, placed: Placed) -> Item:
    schedule, buffers, track = placed.schedule, placed.buffers, run.track
    value, rows = track.value, track.role is Role.ROWS
    spread = value in schedule.stream.spread
    whole = not rows or schedule.stream.is_whole(schedule.stream.roots[value])
    own_place = track.parity or not whole
    scratch = buffers.scratch(run.op, run) if run.op is not None else (0, 0)
    return Item(
        id=number,
        kind=track.kind,
        record=track.record,
        value=value,
        stage=0,
        held=False,
        out_address=buffers.address(value, run.tile),
        out_bytes=buffers.size(value, run.tile),
        buffer_address=scratch[0],
        buffer_bytes=scratch[1],
        eu_align=not spread,
        slices=_slices(run, spread, schedule.prices.chip.lanes),
        own_place=own_place,
    )


def _slices(run: Run, spread: bool, lanes: int) -> Slices:
    starts, lengths = part_box(run.track.type, run.track.role, run.part, lanes)
    if spread:
        (at, count), one = run.part.columns, (1, 1)
        starts, lengths = (0, at, 0, 0), (1, count, *one)
    return Slices(_five(starts, 0), _five(lengths, 1))


def _five(values: Shape4, d: int) -> tuple[tuple[int], ...]:
    """One-entry lists in n, c, d, h, w."""
    n, c, h, w = values
    return ((n,), (c,), (d,), (h,), (w,))


def _steps(placed: Placed, ids: Mapping[int, int]) -> tuple[TimeStep, ...]:
    schedule = placed.schedule
    computes: list[list[int]] = [[] for _ in range(schedule.steps)]
    stores: list[list[int]] = [[] for _ in range(schedule.steps)]
    loads: list[list[int]] = [[] for _ in range(schedule.steps)]
    lists = {ItemKind.COMPUTE: computes, ItemKind.STORE: stores, ItemKind.LOAD: loads}
    for run in schedule.runs:
        lists[run.track.kind][run.step].append(ids[id(run)])
    return tuple(
        TimeStep(tuple(computed), (*stored, *loaded), *cycles)
        for computed, stored, loaded, cycles in zip(
            computes, stores, loads, schedule.step_cycles, strict=True
        )
    )


def _buffers(placed: Placed, ids: Mapping[int, int]) -> tuple[LmemBuffer, ...]:
    """Every buffer as the first slice of rows uses it, in the order of the first use."""
    first: dict[tuple[object, str], int] = {}
    schedule, buffers = placed.schedule, placed.buffers
    for run in schedule.runs:
        if run.slice == 0 and run.track.kind is not ItemKind.STORE:
            root = schedule.stream.roots.get(run.track.value, run.track.value)
            first.setdefault((buffers.key(run.track.value, run.tile), root), ids[id(run)])
    products = {
        op.result: ids[id(run)] for run in schedule.runs if (op := run.op) is not None and run.tile == 0
    }
    found = []
    for key, value, kind, address, nbytes, begin, end in buffers.listed():
        item = products[value] if kind is BufferKind.SCRATCH else first[key, value]
        found.append(LmemBuffer(value, kind, address, nbytes, begin, end, False, item))
    return tuple(sorted(found, key=lambda buffer: (buffer.first_step, buffer.item)))
