"""What a streamed group keeps, from its records: nothing overlaps, and it is there as long as somebody reads it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from stream_bench import compiling_for, feed_forward, heads, small, streamed
from stream_changes import find, weight_load

from engine.passes.layer_group.view import group_indices
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.stream_memory import Kept, StreamMemory

CHIP = small(32768)


def memory_of(records: tuple[OpRecord, ...], chip: Chip = CHIP) -> tuple[StreamMemory, tuple[OpRecord, ...]]:
    with compiling_for(chip):
        ops = streamed(records, chip).snapshot.ops
    return StreamMemory.of(ops, longest(ops), chip), ops


def longest(ops: tuple[OpRecord, ...]) -> int:
    """The group with the most runs."""
    return max(group_indices(ops), key=lambda index: len(ops[index].attributes["flow"]))


def steps(kept: Kept) -> range:
    found = [run.step for run in kept.users]
    return range(min(found), max(found) + 1)


@pytest.mark.parametrize(
    ("make", "lmem_bytes"),
    [
        (lambda: feed_forward(1, 256, 2560), 32768),
        (lambda: feed_forward(70, 256, 1280), 32768),
        (lambda: feed_forward(700, 128, 448), 12288),
        (lambda: heads(70, 256), 24576),
    ],
)
def test_nothing_lies_where_something_else_is_kept(
    make: Callable[[], tuple[OpRecord, ...]], lmem_bytes: int
) -> None:
    memory, _ = memory_of(make(), small(lmem_bytes))
    kept = list(memory.kept())
    assert len(kept) > 30
    for one, other in combinations(kept, 2):
        # GIVEN two things that are in use in one time step, other than a result that takes its operand's place
        together = set(steps(one)) & set(steps(other))
        inherits = one.heirs == other.writers or other.heirs == one.writers
        if not together or inherits or ("scratch" in one.holds and "scratch" in other.holds):
            continue  # scratch is used by one op after the other
        # THEN their bytes are not the same
        assert one.end <= other.address or other.end <= one.address, (one, other)


def test_tiles_are_kept_from_their_load_to_their_product() -> None:
    memory, ops = memory_of(feed_forward(70, 256, 1280))
    load, product = weight_load(ops, 1), find(ops, "A16MatMul", 1)
    tiles = [kept for kept in memory.kept() if kept.writers.op == load]
    assert len(tiles) == 3
    for number, kept in enumerate(tiles):
        # THEN each has one load and one product a step later, and they lie in turn in two places
        assert kept.holds.startswith(f"tile {number + 1} of weight_")
        assert [(run.op, run.number) for run in kept.users] == [(load, number), (product, number)]
        assert len(steps(kept)) == 2
        assert kept.address == tiles[number % 2].address
    # and the last one, which is smaller, keeps no more than it fills
    assert tiles[-1].nbytes < tiles[0].nbytes


def test_a_sum_takes_the_place_of_its_operand() -> None:
    memory, ops = memory_of(feed_forward(70, 256, 1280))
    total, lifted = find(ops, "Add", 1), find(ops, "Mul")
    heirs = {kept.holds: kept.heirs.op for kept in memory.kept() if kept.heirs is not None}
    assert heirs[ops[find(ops, "Add")].location] == total
    assert lifted in heirs.values()
    # and while it comes, the columns behind a tile are still the operand's
    guarded = [g for g in memory.guarded() if g.run.op == total]
    assert len(guarded) > 1
    assert {g.holds.split(" of ")[1] for g in guarded} == {ops[find(ops, "Add", n)].location for n in (0, 1)}


def test_one_token_is_transposed_for_all_tiles() -> None:
    memory, ops = memory_of(feed_forward(1, 256, 2560))
    product = find(ops, "A16MatMul", 1)
    (kept,) = [
        kept
        for kept in memory.kept()
        if kept.holds.startswith("the transposed x") and kept.writers.op == product
    ]
    # THEN the first run leaves it for the last one, and only that writes it
    assert (kept.writers.first, kept.writers.last) == (0, 0)
    assert len(kept.users) > 2
    assert {run.op for run in kept.users} == {product}


def test_slices_of_rows_are_kept_one_by_one() -> None:
    memory, ops = memory_of(feed_forward(700, 128, 448), small(12288))
    group = longest(ops)
    starts = ops[group].attributes["row_idx"]
    assert len(starts) > 2
    norm = next(at for at, op in enumerate(ops) if op.parent == group and op.kind == "RMSNorm")
    found = [kept.holds for kept in memory.kept() if kept.writers.op == norm and "scratch" not in kept.holds]
    # THEN what an op makes for one is not what it makes for the next
    location = ops[norm].location
    assert found == [f"{location} in slice {number + 1} of the rows" for number in range(len(starts))]
