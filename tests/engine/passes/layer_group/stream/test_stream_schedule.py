"""Tiles, slices, time steps and addresses of streamed groups."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_bench import feed_forward, heads, small

from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.plan import BufferKind, ItemKind
from engine.passes.layer_group.stream.buffers import Buffers
from engine.passes.layer_group.stream.chain import Stream, stream_of, stretches
from engine.passes.layer_group.stream.memory import Full, Request, most_used, place
from engine.passes.layer_group.stream.planned import stream_plan
from engine.passes.layer_group.stream.prices import stream_prices
from engine.passes.layer_group.stream.schedule import Cut, Schedule, even_rows, even_tiles
from engine.passes.layer_group.stream.trial import Placed, least_cycles, try_stream
from engine.tpu.chip import Chip, chip

CHIP = chip("bm1684x")


def stream(rows: int, on: Chip = CHIP, **sizes: int) -> Stream:
    program = Program.of(feed_forward(rows, **sizes), on)
    (indices,) = stretches(program)
    return stream_of(program, indices)


def placed(rows: int, on: Chip = CHIP, **sizes: int) -> Placed:
    found = try_stream(stream(rows, on, **sizes), stream_prices(on)).placed
    assert found is not None
    return found


# -- tiles ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(1, 20), st.sampled_from([32, 64, 320]))
def test_tiles_cover_all_columns_once(columns: int, units: int, unit: int) -> None:
    tiles = even_tiles(columns, units * unit, unit)
    assert tiles[0][0] == 0
    assert sum(tiles[-1]) == columns
    assert all(start + count == following for (start, count), (following, _) in pairwise(tiles))
    assert all(start % unit == 0 and count <= units * unit for start, count in tiles)


@given(st.integers(1, 3000), st.integers(1, 50))
def test_slices_cover_all_rows_once(rows: int, count: int) -> None:
    slices = even_rows(rows, count, 64)
    assert sum(length for _, length in slices) == rows
    assert all(start + length == following for (start, length), (following, _) in pairwise(slices))
    assert len(slices) <= count


# -- addresses -----------------------------------------------------------------------------------------------------

requests = st.lists(
    st.builds(
        Request,
        st.just("%0"),
        st.sampled_from(list(BufferKind)),
        st.integers(1, 60000),
        st.integers(1, (1 << 12) - 1),
        st.integers(0, (1 << 12) - 1),
        st.integers(0, (1 << 12) - 1),
        st.just(None),
        st.booleans(),
    ),
    max_size=14,
)


@given(requests)
@settings(max_examples=200)
def test_buffers_in_use_together_do_not_overlap(listed: list[Request]) -> None:
    found = place(listed, CHIP)
    if isinstance(found, Full):
        assert found.needed == most_used(listed, CHIP)
        return
    for (a, first), (b, second) in combinations(zip(found, listed, strict=True), 2):
        apart = a + first.nbytes <= b or b + second.nbytes <= a
        assert apart or not first.steps & second.steps
    for address, request in zip(found, listed, strict=True):
        assert address % (CHIP.bank_bytes if request.apart else CHIP.eu_bytes) == 0
        assert 0 <= address <= CHIP.lmem_bytes - request.nbytes


def test_more_than_fits_is_said_with_what_is_needed() -> None:
    one = Request("%0", BufferKind.ACTIVATION, 200_000, 0b11, 0b11, 0, None, False)
    two = Request("%1", BufferKind.SCRATCH, 100_000, 0b10, 0b10, 0, None, True)
    # GIVEN two buffers of which the second is rounded up to whole banks
    found = place([one, two], CHIP)
    assert isinstance(found, Full)
    assert found.needed == 200_000 // 64 * 64 + 7 * CHIP.bank_bytes


def test_engines_get_banks_of_their_own_where_there_is_room() -> None:
    # GIVEN something loaded in the step in which another buffer is computed, and as much as fills local memory
    computed = Request("%0", BufferKind.ACTIVATION, 100, 0b111, 0b111, 0, None, False)
    loaded = Request("%1", BufferKind.ACTIVATION, 100, 0b110, 0b100, 0b010, None, False)
    large = replace(computed, value="%2", nbytes=CHIP.lmem_bytes - 256)
    # THEN it lies in the next bank, or in the same one if need be
    assert place([computed, loaded], CHIP) == (0, CHIP.bank_bytes)
    assert place([loaded, large], CHIP) == (CHIP.lmem_bytes - 256, 0)


@pytest.mark.parametrize(("rows", "lmem_bytes"), [(1, 262144), (300, 262144), (500, 16384)])
def test_no_buffers_of_a_plan_meet(rows: int, lmem_bytes: int) -> None:
    on = small(lmem_bytes)
    found = placed(rows, on, hidden=256, inner=448)
    plan = stream_plan(found)
    period = found.schedule.period if len(plan.row_starts) > 1 else len(plan.steps)

    def steps(first: int, last: int) -> set[int]:
        return {step % period for step in range(first, last + 1)}

    for one, other in combinations(plan.buffers, 2):
        if one.address < other.address + other.nbytes and other.address < one.address + one.nbytes:
            assert not steps(one.first_step, one.last_step) & steps(other.first_step, other.last_step)
    assert plan.peak_bytes <= lmem_bytes


# -- steps ---------------------------------------------------------------------------------------------------------


def test_next_tile_is_loaded_while_one_is_computed() -> None:
    # GIVEN two tiles a product
    cut = Cut(
        even_rows(64, 1, 64),
        tuple(even_tiles(columns, columns // 2, 64) for columns in (128, 256, 256, 128)),
        frozenset(),
    )
    schedule = Schedule.of(stream(64, inner=256), cut, stream_prices(CHIP))
    runs = {
        (run.track.kind, run.track.value, run.tile): run.step
        for run in schedule.runs
        if run.track.kind is not ItemKind.LOAD or run.track.parity
    }
    products = schedule.stream.products
    for phase, product in enumerate(products):
        weight = product.record.operands[1]
        for tile in range(2):
            # THEN each tile has a step, its weight comes a step before, also the first one of the next product
            assert runs[ItemKind.COMPUTE, product.result, tile] == 1 + 2 * phase + tile
            assert runs[ItemKind.LOAD, weight, tile] == 2 * phase + tile
    # and what leaves is stored a step later
    total = next(value for value in schedule.stream.outputs if schedule.stream.values[value].rank.phase == 3)
    assert runs[ItemKind.STORE, total, 1] == runs[ItemKind.COMPUTE, total, 1] + 1


def test_slices_follow_each_other() -> None:
    # GIVEN three slices of rows and two tiles for the first product
    tiles = (((0, 64), (64, 64)), *(((0, n),) for n in (320, 320)))
    program = Program.of(feed_forward(192), CHIP)
    (indices,) = stretches(program)
    schedule = Schedule.of(
        stream_of(program, indices[:8]), Cut(even_rows(192, 3, 64), tiles, frozenset()), stream_prices(CHIP)
    )
    Buffers.of(schedule)
    weight = schedule.stream.products[0].record.operands[1]
    # THEN the first weight comes again in the last step of each slice that computes
    assert (schedule.computing, schedule.gap) == (4, 0)
    assert [run.step for run in schedule.runs if run.track.value == weight] == [0, 1, 4, 5, 8, 9]


def test_a_value_in_use_for_a_whole_slice_makes_a_pause() -> None:
    # GIVEN a group that begins with the norm of a value that its last sum reads
    ops = feed_forward(192)
    program = Program.of(ops, CHIP)
    (indices,) = stretches(program)
    late = stream_of(program, indices[2:])
    cut = Cut(even_rows(192, 3, 64), tuple(((0, n),) for n in (320, 320, 128)), frozenset())
    schedule = Schedule.of(late, cut, stream_prices(CHIP))
    Buffers.of(schedule)
    assert schedule.gap > 0
    assert schedule.steps == 2 * schedule.period + schedule.computing + 2


def test_bound_is_below_what_is_found() -> None:
    for rows in (1, 64, 300):
        given_stream, prices = stream(rows, hidden=256, inner=640), stream_prices(CHIP)
        found = try_stream(given_stream, prices)
        assert least_cycles(given_stream, prices) <= found.rank
        assert least_cycles(given_stream, prices, sliced=True) <= found.rank


def test_what_fits_in_no_way_is_told() -> None:
    # GIVEN a product of 2048 by 2048 on 8 KiB a lane
    on = small(8192)
    trial = try_stream(stream(256, on, hidden=2048, inner=2048), stream_prices(on))
    assert trial.placed is None
    # THEN every number of slices was tried, and the reason names bytes needed and available
    assert [attempt.secs.c for attempt in trial.attempts] == [1, 2, 4]
    assert all(attempt.needed_bytes > attempt.available_bytes for attempt in trial.attempts)
    assert "of 8192 bytes a lane (memory)" in trial.reason


def test_heads_and_rows_are_planned_alike() -> None:
    program = Program.of(heads(100), CHIP)
    (indices,) = stretches(program)
    found = try_stream(stream_of(program, indices), stream_prices(CHIP)).placed
    assert found is not None
    plan = stream_plan(found)
    # THEN ids of the runs count up, each in one step
    listed = [number for step in plan.steps for number in (*step.computes, *step.transfers)]
    assert sorted(listed) == [item.id for item in plan.items] == list(range(len(plan.items)))
    assert plan.records == indices
