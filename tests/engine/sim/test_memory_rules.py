"""The rules of a module by its records: every corruption of a place, a time or a bank is found when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from group_bench import build
from group_cases import MODULE, group_of, inputs, module, plan
from machine_cases import random_inputs, tiny_program
from stream_bench import compiling_for, feed_forward, random_values, small, streamed

from engine.passes.layer_group.occupancy import live_buffers, problems
from engine.passes.layer_group.plan import GroupPlan
from engine.passes.layer_group.view import group_indices
from engine.sim.machine import Violation
from engine.sim.machine_runtime import module_executor
from engine.sim.memory_rules import MemoryRules, memory_rules
from engine.sim.runtime import PROGRAM_PASS
from engine.snapshot import OpRecord, Snapshot
from engine.tpu.chip import Chip
from engine.tpu.isa import Opcode, Space
from engine.tpu.memory import ArenaLayout
from engine.tpu.overwrites import overwrites


def rules_of(snapshot: Snapshot, chip: Chip) -> MemoryRules:
    return memory_rules(snapshot.ops, ArenaLayout.of(snapshot.attributes), snapshot.report, chip)


def violations(snapshot: Snapshot, pipelined: bool = False) -> list[Violation]:
    """What the machine finds in a module."""
    machine = replace(module(pipelined), snapshot=snapshot).machine()
    machine.run(inputs())
    return machine.violations


# -- instructions that write elsewhere ------------------------------------------------------------------------------


def places(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """(arena, address) by what lies there, in local memory or in DDR."""
    layout = ArenaLayout.of(snapshot.attributes)
    names = ("x", "y", "gain", "sum", "norm", "scratch", "product")
    buffers = live_buffers(group_of(snapshot.ops))
    found = {name: (0, buffer.address) for name, buffer in zip(names, buffers, strict=True)}
    for op in snapshot.ops:
        if op.name in ("top.Input", "tpu.Group"):
            for number, type_ in enumerate(op.result_types):
                name = op.location if op.name == "top.Input" else ("stored sum", "stored product")[number]
                assert type_.address is not None
                found[f"{name} in DDR"] = layout.find(type_.address)
    return found


def redirected(writer: Callable[[OpRecord, int], bool], space: Space, target: str) -> Snapshot:
    """The first instruction that an op makes in a space and of a kind now writes where something else lies."""
    snapshot = module(False).snapshot
    program = snapshot.report.copy()
    rows = [
        at
        for at, (op, opcode) in enumerate(
            zip(program["op"].tolist(), program["opcode"].tolist(), strict=True)
        )
        if program["result"]["space"][at] == space and writer(snapshot.ops[op], opcode)
    ]
    program["result"]["arena"][rows[0]], program["result"]["address"][rows[0]] = places(snapshot)[target]
    return replace(snapshot, report=program)


def of(name: str) -> Callable[[OpRecord, int], bool]:
    return lambda op, _: f"{op.kind} {op.location}" == name


def test_the_module_as_compiled_is_clean() -> None:
    for pipelined in (False, True):
        assert violations(module(pipelined).snapshot, pipelined) == []


@pytest.mark.parametrize(
    ("writer", "space", "target", "said"),
    [
        ("Add sum", Space.LOCAL, "y", "tpu.Add sum writes byte {at} of y (bytes {at} to"),
        ("Add sum", Space.LOCAL, "gain", "tpu.Add sum writes byte {at} of gain"),
        ("Load sum", Space.LOCAL, "y", "tpu.Load sum writes byte {at} of y"),
        ("RMSNorm norm", Space.LOCAL, "sum", "tpu.RMSNorm norm writes byte {at} of sum"),
        ("Mul product", Space.LOCAL, "sum", "tpu.Mul product writes byte {at} of sum"),
        ("Store sum", Space.DDR, "x in DDR", "tpu.Store sum writes byte {at} of x (bytes {at} to"),
        ("Store sum", Space.DDR, "stored product in DDR", "tpu.Store sum writes byte {at} of product"),
        ("Add twice", Space.DDR, "stored sum in DDR", "tpu.Add twice writes byte {at} of sum"),
    ],
)
def test_a_write_over_live_data_names_both(writer: str, space: Space, target: str, said: str) -> None:
    # GIVEN one instruction that writes where something lies that is still to be read
    changed = redirected(of(writer), space, target)
    expected = said.format(at=places(module(False).snapshot)[target][1])
    # WHEN it runs THEN it is found, with who writes and what is lost
    found = [violation.message for violation in violations(changed) if violation.kind == "overwrite"]
    assert len(found) >= 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("writer", "space", "target"),
    [
        ("Mul product", Space.LOCAL, "x"),
        ("Mul product", Space.LOCAL, "scratch"),
        ("Add sum", Space.LOCAL, "norm"),
    ],
)
def test_what_nobody_is_going_to_read_may_be_written_over(writer: str, space: Space, target: str) -> None:
    found = violations(redirected(of(writer), space, target))
    assert "overwrite" not in {violation.kind for violation in found}


def test_a_vector_may_be_spread_over_lanes_where_it_lies() -> None:
    # GIVEN the norm's instruction that copies gain to all lanes, writing in place
    snapshot = redirected(lambda op, code: code == Opcode.LANE_BROADCAST, Space.LOCAL, "gain")
    assert "overwrite" not in {violation.kind for violation in violations(snapshot)}
    # WHEN another instruction writes there THEN it is found
    snapshot = redirected(of("RMSNorm norm"), Space.LOCAL, "gain")
    assert "overwrite" in {violation.kind for violation in violations(snapshot)}


def test_findings_come_when_their_instruction_runs() -> None:
    # GIVEN a module whose last op writes over live data
    built = replace(module(False), snapshot=redirected(of("Add twice"), Space.DDR, "stored sum in DDR"))
    machine = built.machine()
    machine.prepare(inputs())
    program = built.snapshot.report
    first = int(np.flatnonzero(program["op"] == len(built.snapshot.ops) - 2)[0])
    # WHEN it stops before that op THEN nothing is found yet
    machine.advance(first)
    assert machine.violations == []
    machine.advance(len(program))
    assert {violation.kind for violation in machine.violations} >= {"overwrite"}
    assert all(violation.instruction >= first for violation in machine.violations)


# -- places and times in the IR ------------------------------------------------------------------------------------


def moved(found: GroupPlan, old: int, new: int) -> GroupPlan:
    """The plan with the buffer at an address at another one."""
    return replace(
        found,
        items=tuple(
            replace(
                item,
                out_address=new if item.out_address == old else item.out_address,
                buffer_address=new
                if item.buffer_bytes and item.buffer_address == old
                else item.buffer_address,
            )
            for item in found.items
        ),
    )


@pytest.mark.parametrize("pipelined", [False, True])
def test_machine_and_checker_agree_on_any_two_buffers_in_one_place(pipelined: bool) -> None:
    buffers = live_buffers(group_of(module(pipelined).snapshot.ops))
    assert len(buffers) == 7
    wrong = 0
    for one, other in permutations(buffers, 2):
        # GIVEN one buffer moved onto another one
        old, new = one.address, other.address
        built = build(MODULE, lambda ops, chip: [moved(plan(ops, chip, pipelined), old, new)])  # noqa: B023
        # WHEN the plan is examined, and the instructions that it gives
        chip = built.options.chip
        planned = [line for line in problems(group_of(built.snapshot.ops), chip) if "overlaps" in line]
        written = overwrites(built.snapshot.report, chip, rules_of(built.snapshot, chip).reserved)
        # THEN both find it wrong, or both right
        assert bool(planned) == bool(written), (str(one), str(other))
        wrong += bool(written)
    assert wrong >= 20


# -- banks ---------------------------------------------------------------------------------------------------------


def without_notes(snapshot: Snapshot) -> Snapshot:
    """The same module, but its groups do not say that anything shares a bank."""
    ops = tuple(
        replace(op, attributes={k: v for k, v in op.attributes.items() if k != "bank_conflicts"})
        for op in snapshot.ops
    )
    return replace(snapshot, ops=ops)


def test_engines_in_one_bank_must_be_noted() -> None:
    # GIVEN a pipelined group whose small buffers all lie in bank 0, as it notes
    snapshot = module(pipelined=True).snapshot
    assert group_of(snapshot.ops).record.attributes["bank_conflicts"]
    # WHEN the note is gone
    found = violations(without_notes(snapshot), pipelined=True)
    # THEN the machine names the bank and both ops
    assert {violation.kind for violation in found} == {"bank"}
    said = " ".join(violation.message for violation in found)
    assert said.startswith("tpu.Store sum may use bank 0")
    assert "of tpu.RMSNorm norm on the TIU queue" in said


def test_a_note_about_some_ops_excuses_no_others() -> None:
    snapshot = module(pipelined=True).snapshot
    at = group_indices(snapshot.ops)[0]
    group = snapshot.ops[at]
    for left_out in group.attributes["bank_conflicts"]:
        noted = [number for number in group.attributes["bank_conflicts"] if number != left_out]
        changed = replace(group, attributes={**group.attributes, "bank_conflicts": noted})
        ops = (*snapshot.ops[:at], changed, *snapshot.ops[at + 1 :])
        assert "bank" in {v.kind for v in violations(replace(snapshot, ops=ops), pipelined=True)}


def test_ops_that_run_alone_share_banks_as_they_like_but_are_counted() -> None:
    # GIVEN decode, whose attention loads into the bank in which it computes
    program, loader = tiny_program("llama", "bf16")
    spec, _ = program.find("block_cache_0")
    snapshot = program.modules[spec.name].after(PROGRAM_PASS)
    machine = module_executor(spec, snapshot, program.options.chip, loader, checks=True)
    machine.run(random_inputs(program, spec, spec.cache))
    # THEN that is no violation, but there to be read
    assert machine.violations == []
    ((name, count),) = machine.bank_conflicts.items()
    assert name.startswith("tpu.FAttention ")
    assert count > 10


def test_groups_that_stream_weights_share_no_banks_where_there_is_room() -> None:
    program, loader = tiny_program("llama", "w4bf16", fuse_weights=True)
    spec, _ = program.find("block_cache_0")
    snapshot = program.modules[spec.name].after(PROGRAM_PASS)
    assert "bank_conflicts" not in group_of(snapshot.ops).record.attributes
    machine = module_executor(spec, snapshot, program.options.chip, loader, checks=True)
    machine.run(random_inputs(program, spec, spec.cache))
    assert machine.violations == []


def test_groups_that_stream_weights_note_what_shares_banks() -> None:
    # GIVEN two banks, in which the tiles of several weights and what is computed from them must lie
    on = small(32768)
    built = streamed(feed_forward(70, 256, 1280), on)
    assert group_of(built.snapshot.ops).record.attributes["bank_conflicts"]
    with compiling_for(on):
        for snapshot, kinds in ((built.snapshot, set()), (without_notes(built.snapshot), {"bank"})):
            machine = replace(built, snapshot=snapshot).machine()
            machine.run(random_values(snapshot.ops))
            # THEN the machine finds nothing but what has no note
            assert {violation.kind for violation in machine.violations} == kinds
