"""Which instructions must leave a place of a streamed group alone: by time step, and by order within one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from group_bench import Built
from stream_bench import compiling_for, feed_forward, small, streamed
from stream_changes import find

from engine.passes.layer_group.view import group_indices
from engine.sim.stream_rules import stream_reserved
from engine.tpu.isa import Engine
from engine.tpu.overwrites import Reserved, overwrites

CHIP = small(32768)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    with compiling_for(CHIP):
        yield


@cache
def built() -> Built:
    return streamed(feed_forward(70, 256, 1280), CHIP)


def reserved(program: np.ndarray) -> list[Reserved]:
    ops = built().snapshot.ops
    return list(stream_reserved(ops, group_indices(ops)[0], program, CHIP))


def test_scratch_is_kept_from_the_dma_for_a_step_and_from_nobody_else() -> None:
    # GIVEN the scratch of a product, in whose steps other ops use the same bytes behind it
    program, ops = built().snapshot.report, built().snapshot.ops
    product = find(ops, "A16MatMul", 1)
    mine = program["op"] == product
    steps = np.unique(program["step"][mine]).tolist()
    found = [place for place in reserved(program) if place.holds == f"scratch of {ops[product].location}"]
    assert len(found) == len(steps) > 2
    for step, place in zip(steps, found, strict=True):
        # THEN nothing but transfers of the step is kept off, as compute is one op after the other
        moving = np.flatnonzero((program["step"] == step) & (program["engine"] == Engine.GDMA))
        inside = moving[
            np.isin(program["op"][moving], [at for at, op in enumerate(ops) if op.parent is not None])
        ]
        assert place.instructions.tolist() == inside.tolist()


def test_who_reads_may_not_write() -> None:
    # GIVEN a tile that is computed and stored in a whole value in the same step
    program, ops = built().snapshot.report, built().snapshot.ops
    product, cast = find(ops, "A16MatMul", 1), find(ops, "Cast")
    (place, *_) = [p for p in reserved(program) if p.holds == f"tile 1 of {ops[product].location}"]
    writers = program["op"][place.instructions].tolist()
    # THEN its reader is kept off it, its maker is not, nor is who comes later
    assert cast in writers
    assert product not in writers
    assert find(ops, "Active") not in writers


def test_pieces_in_one_step_that_cannot_be_told_apart_are_given_the_benefit() -> None:
    # GIVEN a norm in two pieces of rows in one step, and one of its instructions gone
    program, ops = built().snapshot.report, built().snapshot.ops
    norm = find(ops, "RMSNorm")
    runs = Counter(zip(program["op"].tolist(), program["step"].tolist(), strict=True))
    assert len([key for key in runs if key[0] == norm]) == 1
    guard = f"64 rows above in {ops[norm].location}"
    assert guard in {place.holds for place in reserved(program) if place.instructions.size}
    fewer = np.delete(program, np.flatnonzero(program["op"] == norm)[3])
    # THEN nothing is found wrong with the others
    assert overwrites(fewer, CHIP, reserved(fewer)) == []
    assert all(place.instructions.size == 0 for place in reserved(fewer) if place.holds == guard)
