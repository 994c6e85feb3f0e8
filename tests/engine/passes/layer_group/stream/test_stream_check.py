"""Corrupted streamed groups: what the check of the IR reports, and what the machine makes of their instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from group_bench import Built
from stream_bench import compiling_for, feed_forward, random_values, small, streamed
from stream_changes import Ops, find, ginfo, move, weight_load, with_flow, with_ginfo

from engine.errors import CompileError
from engine.passes.layer_group.emission import emit_group
from engine.passes.layer_group.stream.check import stream_bank_conflicts, stream_problems
from engine.passes.layer_group.view import GroupView, group_indices, read_group
from engine.sim.interpreter import Interpreter, PreparedWeights
from engine.sim.machine import MachineError
from engine.tpu.emit import Emitter
from engine.tpu.memory import ArenaLayout

CHIP = small(32768)
BUILT: dict[int, Built] = {}


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    with compiling_for(CHIP):
        yield


def built(rows: int) -> Built:
    """One streamed group whose products have several tiles."""
    if rows not in BUILT:
        BUILT[rows] = streamed(feed_forward(rows, 256, 1280 if rows > 1 else 2560), CHIP)
    return BUILT[rows]


def view_of(ops: Ops) -> GroupView:
    (index,) = group_indices(ops)
    return read_group(ops, index)


def shifted(kind: str, number: int, by: int) -> Callable[[Ops], Ops]:
    """The result of an op, and whatever reads it there, somewhere else."""

    def change(ops: Ops) -> Ops:
        index = find(ops, kind, number)
        found = with_ginfo(ops, index, out_addr=ginfo(ops, index)["out_addr"] + by)
        stores = [
            at for at, op in enumerate(ops) if op.kind == "Store" and ops[index].results[0] in op.operands
        ]
        for at in stores:
            found = with_ginfo(found, at, out_addr=ginfo(ops, at)["out_addr"] + by)
        return found

    return change


def over_its_operand(ops: Ops) -> Ops:
    """The norm's result where the sum lies that is read again behind it."""
    there = ginfo(ops, find(ops, "Add"))["out_addr"]
    index = find(ops, "RMSNorm")
    return shifted("RMSNorm", 0, there - ginfo(ops, index)["out_addr"])(ops)


def one_place_for_tiles(ops: Ops) -> Ops:
    index = weight_load(ops, 1)
    return with_ginfo(ops, index, tile_addr=ginfo(ops, index)["tile_addr"][:1])


def tile_over_scratch(ops: Ops) -> Ops:
    scratch = ginfo(ops, find(ops, "A16MatMul", 1))["buffer_addr"]
    index = weight_load(ops, 1)
    return with_ginfo(ops, index, tile_addr=[scratch, ginfo(ops, index)["tile_addr"][1]])


def late_load(ops: Ops) -> Ops:
    return move(ops, weight_load(ops, 1), 1, 1)


def early_load(ops: Ops) -> Ops:
    return move(ops, weight_load(ops, 1), 2, -1)


def early_store(ops: Ops) -> Ops:
    return move(ops, find(ops, "Store"), 0, -1)


def early_product(ops: Ops) -> Ops:
    return move(ops, find(ops, "A16MatMul", 1), 0, -1)


def shorter_piece(ops: Ops) -> Ops:
    index = weight_load(ops, 1)
    lengths = ginfo(ops, index)["c_slice"]
    return with_ginfo(ops, index, c_slice=[lengths[0] - 64, *lengths[1:]])


def one_run_less(ops: Ops) -> Ops:
    number = ginfo(ops, find(ops, "A16MatMul", 1))["id"] + 1

    def change(steps: list[list[int]]) -> None:
        next(step for step in steps if number in step).remove(number)

    return with_flow(ops, change)


def little_scratch(ops: Ops) -> Ops:
    index = find(ops, "A16MatMul", 2)
    return with_ginfo(ops, index, buffer_size=ginfo(ops, index)["buffer_size"] - 64)


def small_place(ops: Ops) -> Ops:
    index = weight_load(ops, 3)
    return with_ginfo(ops, index, out_size=ginfo(ops, index)["out_size"] - 64)


def outside(ops: Ops) -> Ops:
    index = find(ops, "A16MatMul", 0)
    return with_ginfo(ops, index, buffer_addr=CHIP.lmem_bytes - CHIP.bank_bytes)


def off_the_grid(ops: Ops) -> Ops:
    return shifted("RMSNorm", 0, 8)(ops)


def store_elsewhere(ops: Ops) -> Ops:
    index = find(ops, "Store", 1)
    return with_ginfo(ops, index, out_addr=ginfo(ops, index)["out_addr"] + 64)


CORRUPTIONS: dict[str, tuple[Callable[[Ops], Ops], str]] = {
    "address": (over_its_operand, "reads"),
    "one place for all tiles": (one_place_for_tiles, "meet in time step"),
    "tile over scratch": (tile_over_scratch, ""),
    "load too late": (late_load, "meet in time step"),
    "load too early": (early_load, "meet in time step"),
    "store too early": (early_store, ""),
    "product too early": (early_product, ""),
    "piece": (shorter_piece, "do not cover"),
    "one run less": (one_run_less, "runs"),
    "scratch": (little_scratch, "of scratch"),
    "place": (small_place, "it needs"),
    "outside": (outside, "behind the"),
    "grid": (off_the_grid, "off the grid"),
    "store": (store_elsewhere, "where it lies"),
}


@pytest.mark.parametrize("rows", [1, 70])
def test_a_sound_group_has_no_problems(rows: int) -> None:
    assert stream_problems(view_of(built(rows).snapshot.ops), CHIP) == []


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_are_reported(name: str, rows: int) -> None:
    # GIVEN a group in which one number is wrong
    corrupt, expected = CORRUPTIONS[name]
    ops = built(rows).snapshot.ops
    assert len(ginfo(ops, weight_load(ops, 1))["c_idx"]) > 2
    # WHEN the IR is checked THEN it says what
    try:
        problems = stream_problems(view_of(corrupt(ops)), CHIP)
    except CompileError as error:
        problems = [str(error)]
    assert problems
    assert any(expected in problem for problem in problems), problems


def run(rows: int, ops: Ops) -> tuple[dict[str, np.ndarray], Any]:
    """What the machine makes of the instructions that these records give."""
    sound = built(rows)
    emitter = Emitter(CHIP, ArenaLayout.of(sound.snapshot.attributes).spans())
    emit_group(view_of(ops), emitter)
    machine = replace(sound, snapshot=replace(sound.snapshot, ops=ops, report=emitter.program())).machine()
    return machine.run(random_values(sound.snapshot.ops)), machine


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize(
    "name",
    [
        "address",
        "one place for all tiles",
        "tile over scratch",
        "load too late",
        "store too early",
        "outside",
    ],
)
def test_the_machine_notices_too(name: str, rows: int) -> None:
    # GIVEN the instructions of a corrupted group
    ops = CORRUPTIONS[name][0](built(rows).snapshot.ops)
    sound = built(rows)
    expected = Interpreter(sound.snapshot, PreparedWeights(sound.loader), outputs=sound.outputs).run(
        random_values(sound.snapshot.ops)
    )
    # WHEN they run THEN the machine's checks object, or the numbers are wrong
    try:
        found, machine = run(rows, ops)
    except MachineError:
        return
    wrong = any(
        not np.allclose(found[name], values, rtol=0.05, atol=0.5) for name, values in expected.items()
    )
    assert machine.violations or wrong


def test_the_sound_instructions_run_without_objection() -> None:
    for rows in (1, 70):
        found, machine = run(rows, built(rows).snapshot.ops)
        assert not machine.violations
        assert all(np.isfinite(values).all() for values in found.values())


def test_banks_that_both_engines_touch_are_noted() -> None:
    # GIVEN a group whose next tile is loaded into the bank of the scratch
    ops = built(1).snapshot.ops
    (index,) = group_indices(ops)
    noted = set(ops[index].attributes.get("bank_conflicts", ()))
    assert set(stream_bank_conflicts(view_of(ops), CHIP)) == noted
    scratch = ginfo(ops, find(ops, "A16MatMul", 1))
    load = weight_load(ops, 1)
    changed = with_ginfo(ops, load, tile_addr=[scratch["buffer_addr"] + scratch["buffer_size"]] * 2)
    # THEN both are named
    found = set(stream_bank_conflicts(view_of(changed), CHIP))
    assert {ginfo(ops, load)["id"], scratch["id"]} <= found
    assert not {ginfo(ops, load)["id"]} & noted
