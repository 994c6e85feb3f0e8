"""Corruptions of the IR and of programs: the checker names each, or the machine that runs it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest
from group_bench import Built
from group_cases import group_of, inputs, module
from machine_cases import largest_error, tiny_program
from tiny import FAMILIES

from engine import mlir
from engine.check import CHECKS, check, check_module, report
from engine.compiler import Compilation
from engine.errors import CompileError
from engine.passes.base import PassContext
from engine.passes.codegen import Codegen
from engine.passes.layer_group.occupancy import bank_conflicts, live_buffers, problems
from engine.passes.layer_group.view import GroupView
from engine.sim.machine import MachineError
from engine.snapshot import Snapshot
from engine.stages import Kind, ModuleSpec, Stage
from engine.tpu.isa import Arena, Engine, Space
from engine.tpu.memory import ArenaLayout
from engine.tpu.program_check import program_problems


def original() -> Built:
    """A pipelined group of three ops in four slices, and an op behind it."""
    return module(pipelined=True)


def findings(snapshot: Snapshot) -> list[str]:
    """What the checker says about a module."""
    built = original()
    spec = ModuleSpec("m", Stage.BOTH, Kind.LM_HEAD, (), (), (), 1)
    compilation = Compilation(None, built.options, (spec,))  # type: ignore[arg-type]
    return [problem.message for problem in check_module(snapshot, spec, compilation)]


@dataclass(frozen=True)
class Outcome:
    """What a corrupted module came to: the checker's findings, and how the machine noticed it, if it did."""

    checker: list[str]
    machine: str


def outcome(text: str) -> Outcome:
    """Emit the instructions of a corrupted module anew and run them."""
    built = original()
    with mlir.using(mlir.new_context()):
        parsed = mlir.parse(text)
        printed = mlir.print_module(parsed)
        records, attributes = mlir.records(parsed, printed), mlir.module_attributes(parsed)
        snapshot = replace(built.snapshot, text=printed, ops=records, attributes=attributes)
        try:
            made = Codegen().run(parsed, PassContext(None, None, built.options))  # type: ignore[arg-type]
        except CompileError as error:
            return Outcome(findings(replace(snapshot, report=None)), f"not emitted: {error}")
    assert made is not None
    snapshot = replace(snapshot, report=made.data)
    return Outcome(findings(snapshot), run(replace(built, snapshot=snapshot)))


def run(built: Built) -> str:
    """How the machine notices that a module is wrong; empty when it does not."""
    machine = built.machine()
    expected = original().machine().run(inputs())
    try:
        found = machine.run(inputs())
    except (MachineError, CompileError) as error:
        return f"stopped: {error}"
    if machine.violations:
        return machine.violations[0].kind
    wrong = [n for n, v in expected.items() if not largest_error(found[n], v) <= 1e-6]
    return f"other numbers in {', '.join(wrong)}" if wrong else ""


def view_of(text: str) -> GroupView:
    with mlir.using(mlir.new_context()):
        return group_of(mlir.records(mlir.parse(text)))


def set_field(op: str, field: str, value: object, occurrence: int = 0) -> Callable[[str], str]:
    """Change a field of the ginfo (or an attribute) of the n-th op of a kind."""

    def change(text: str) -> str:
        lines = text.split("\n")
        at = [i for i, line in enumerate(lines) if f'"tpu.{op}"' in line and "ginfo" in line][occurrence]
        lines[at], count = re.subn(rf"\b{field} = (\[[^\]]*\]|\w+)", f"{field} = {value}", lines[at], count=1)
        assert count == 1, field
        return "\n".join(lines)

    return change


def swap(old: str, new: str, count: int = 1) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, count)

    return change


def address_of(op: str, occurrence: int = 0, field: str = "out_addr") -> int:
    lines = [
        line for line in original().snapshot.text.split("\n") if f'"tpu.{op}"' in line and "ginfo" in line
    ]
    match = re.search(rf"{field} = (\d+)", lines[occurrence])
    assert match is not None
    return int(match[1])


def test_the_module_as_compiled_is_right() -> None:
    found = outcome(original().snapshot.text)
    assert found == Outcome([], "")


def _scratch() -> int:
    return address_of("RMSNorm", 0, "buffer_addr")


LMEM = [
    ("result over an operand", lambda: set_field("Add", "out_addr", address_of("Load", 1)), "overlaps", True),
    ("operand over scratch", lambda: set_field("Load", "out_addr", _scratch(), 1), "overlaps", True),
    (
        "scratch over an operand",
        lambda: set_field("RMSNorm", "buffer_addr", address_of("Load", 1)),
        "overlaps",
        True,
    ),
    ("held weight over scratch", lambda: set_field("Load", "out_addr", _scratch(), 2), "overlaps", True),
    ("behind local memory", lambda: set_field("Mul", "out_addr", 262080), "ends behind", True),
    ("off the grid", lambda: set_field("Mul", "out_addr", address_of("Mul") + 2), "off the grid", False),
    (
        "store from elsewhere",
        lambda: set_field("Store", "out_addr", address_of("Mul")),
        "reads address",
        False,
    ),
    ("scratch too small", lambda: set_field("RMSNorm", "buffer_size", 64), "bytes of scratch", False),
    ("result too small", lambda: set_field("Mul", "out_size", 64), "its largest slice needs", False),
    (
        "slice starts off by one",
        lambda: set_field("Load", "c_idx", "[0, 64, 129, 192]"),
        "do not cover",
        True,
    ),
    (
        "store starts off by one",
        lambda: set_field("Store", "c_idx", "[0, 64, 127, 192]"),
        "do not cover",
        True,
    ),
    ("slice one short", lambda: set_field("Load", "c_slice", "[64, 63, 64, 8]"), "do not cover", True),
    ("row one short", lambda: set_field("Load", "h_slice", "[95]"), "do not cover", True),
    ("slices swapped", lambda: set_field("Store", "c_idx", "[64, 0, 128, 192]"), "do not cover", True),
    ("held though it changes", lambda: set_field("Load", "held", "true"), "loaded once, but", True),
    ("computed a stage early", lambda: set_field("RMSNorm", "stage", 0), "before tpu.Add sum, which", True),
    ("stored a stage early", lambda: set_field("Store", "stage", 0), "before tpu.Add sum, which", True),
    ("loaded a stage late", lambda: set_field("Load", "stage", 1), "before tpu.Load sum, which", True),
    ("fewer slices", lambda: swap("csecs = 4", "csecs = 2"), "4 slices where the group has 2", True),
    ("fewer stages", lambda: swap("swpipl_stage_num = 2", "swpipl_stage_num = 1"), "a pipeline of 1", True),
    (
        "another reading",
        lambda: swap("group_type = 4 : i64, hsecs", "group_type = 2 : i64, hsecs"),
        "of type 2",
        True,
    ),
]
"""Name, change, what the checker says, whether the machine notices too."""


@pytest.mark.parametrize(
    ("change", "message", "noticed"), [case[1:] for case in LMEM], ids=[case[0] for case in LMEM]
)
def test_corrupt_places_and_times_in_local_memory(
    change: Callable[[], Callable[[str], str]], message: str, noticed: bool
) -> None:
    # GIVEN one field of the IR corrupted
    text = change()(original().snapshot.text)
    # WHEN the module is checked, its instructions emitted anew and run
    found = outcome(text)
    # THEN the checker says what is wrong, and the machine notices where bytes are
    assert any(message in line for line in found.checker), found
    if noticed:
        assert found.machine, found


def test_order_of_time_steps() -> None:
    flow = view_of(original().snapshot.text).record.attributes["flow"]
    rows = str(flow).replace("[", "").replace("]", "").split("-")[1:]
    steps = [row.split(",", 1)[1].strip(" ,") for row in rows]
    caught = 0
    for order in permutations(range(len(steps))):
        # GIVEN the time steps in another order
        if order == tuple(range(len(steps))):
            continue
        new = ", ".join(f"{-1 - at}, {steps[i]}" for at, i in enumerate(order))
        found = outcome(original().snapshot.text.replace(f"flow = {flow}", f"flow = [{new}]"))
        # THEN whenever the numbers are wrong, the checker knew
        if found.machine:
            assert found.checker, order
            caught += 1
    assert caught > 10


def test_any_two_buffers_in_one_place_are_found() -> None:
    view = view_of(original().snapshot.text)
    chip = original().options.chip
    buffers = live_buffers(view)
    assert len(buffers) == 7
    for one, other in permutations(range(len(buffers)), 2):
        moved = replace(buffers[one], address=buffers[other].address)
        meets = not (moved.last < buffers[other].first or buffers[other].last < moved.first)
        if moved.last == buffers[other].first or buffers[other].last == moved.first:
            continue  # may be in place
        item = view.items[moved.item]
        field = "buffer_addr" if moved.kind.value == "scratch" else "out_addr"
        ginfo = replace(item.ginfo, **{field: moved.address})
        items = {**view.items, moved.item: replace(item, ginfo=ginfo)}
        maker = {i.value: i for i in items.values()}
        found = problems(replace(view, items=items, maker=maker), chip)
        if meets or moved.held or buffers[other].held:
            assert any("overlaps" in line for line in found), (str(moved), str(buffers[other]))


def test_an_op_may_work_in_place_where_its_operand_dies() -> None:
    # GIVEN the sum where x was, which nothing reads afterwards
    change = set_field("Add", "out_addr", address_of("Load"))
    text = change(original().snapshot.text)
    found = outcome(set_field("Store", "out_addr", address_of("Load"))(text))
    # THEN neither the checker nor the machine minds
    assert not [line for line in found.checker if "bank" not in line]
    assert not found.machine


def test_a_shared_bank_must_be_noted() -> None:
    # GIVEN the sum's store beside the norm: both moved into one bank
    text = original().snapshot.text
    chip = original().options.chip
    noted = bank_conflicts(view_of(text), chip)
    assert noted
    assert f"bank_conflicts = {noted}" in text
    # WHEN the note is taken away
    found = outcome(text.replace(f"bank_conflicts = {noted}, ", ""))
    # THEN both the checker and the machine miss it
    assert any("shares a bank with the other engine" in line for line in found.checker)
    assert found.machine == "bank"


# -- DDR -----------------------------------------------------------------------------------------------------------


def ddr_addresses() -> dict[str, int]:
    ops = original().snapshot.ops
    return {
        op.location if op.name != "tpu.Group" else f"group{i}": t.address
        for op in ops
        if op.parent is None
        for i, t in enumerate(op.result_types)
        if t.address is not None
    }


@pytest.mark.parametrize(
    ("moved", "onto", "kind"),
    [
        ("group1", "twice", "overwrite"),
        ("group0", "x", "overwrite"),
        ("group0", "group1", "overwrite"),
        ("y", "x", "other numbers"),
    ],
)
def test_corrupt_ddr_addresses(moved: str, onto: str, kind: str) -> None:
    # GIVEN a tensor's address changed everywhere to that of another one
    at = ddr_addresses()
    text = original().snapshot.text.replace(f"{at[moved]} : i64", f"{at[onto]} : i64")
    found = outcome(text)
    # THEN the checker finds that they overlap, and the machine who writes over whom
    assert any("overlaps" in line for line in found.checker), found
    assert found.machine.startswith(kind), found


def test_a_store_that_misses_its_result() -> None:
    at = ddr_addresses()["group0"]
    lines = original().snapshot.text.split("\n")
    index = next(i for i, line in enumerate(lines) if '"tpu.Store"' in line and f"{at} : i64" in line)
    lines[index] = lines[index].replace(f"{at} : i64", f"{at + 4096} : i64")
    name = lines[index].split("=")[0].strip()
    index = next(i for i, line in enumerate(lines) if '"tpu.Yield"' in line and name in line)
    lines[index] = lines[index].replace(f"{at} : i64", f"{at + 4096} : i64", 1)
    found = outcome("\n".join(lines))
    assert any("is stored at" in line for line in found.checker), found.checker
    assert found.machine


def test_kv_rows_off_their_slot_and_arenas_that_overlap() -> None:
    program, _ = tiny_program("qwen2", "bf16")
    spec = next(s for s in program.specs if s.name == "block_cache_0")
    snapshot = program.modules[spec.name].snapshots[-1]
    returned = snapshot.ops[-1]
    types = list(returned.operand_types)
    types[1] = replace(types[1], address=types[1].address + 64)
    ops = (*snapshot.ops[:-1], replace(returned, operand_types=tuple(types)))
    found = [p.message for p in check_module(replace(snapshot, ops=ops), spec, program)]
    assert any("k_cache is written at" in line for line in found)
    attributes = {**snapshot.attributes, "io_size": snapshot.attributes["io_size"] + 4096}
    found = [p.message for p in check_module(replace(snapshot, attributes=attributes), spec, program)]
    assert any("behind the start" in line for line in found)


# -- programs ------------------------------------------------------------------------------------------------------


def corrupted(change: Callable[[np.ndarray], None]) -> list[str]:
    snapshot = original().snapshot
    program = snapshot.report.copy()
    change(program)
    layout = ArenaLayout.of(snapshot.attributes)
    return program_problems(program, snapshot.ops, layout, original().options.chip)


def put(field: str, value: int, row: int = 5) -> Callable[[np.ndarray], None]:
    def change(program: np.ndarray) -> None:
        program[field][row] = value

    return change


def put_operand(space: Space, part: str, value: int, *, result: bool) -> Callable[[np.ndarray], None]:
    """Change the first instruction whose result (or first operand) is in that space."""

    def change(program: np.ndarray) -> None:
        operand = program["result"] if result else program["operands"][:, 0]
        row = int(np.flatnonzero(operand["space"] == space)[0])
        target = operand[part]
        target[row] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("opcode", 99), "unknown opcode"),
        (put("engine", 1 - Engine.TIU, 4), "wrong engine"),
        (put("id", 77), "id out of order"),
        (put("wait", 10_000), "waits for a command of the other queue that is not issued"),
        (put("op", 500), "belongs to no op"),
        (put("op", 0), "belongs to no op"),
        (put_operand(Space.LOCAL, "address", 1 << 20, result=True), "outside of the 262144 bytes of a lane"),
        (put_operand(Space.LOCAL, "lane", 64, result=True), "outside of the 262144 bytes of a lane"),
        (put_operand(Space.DDR, "address", 1 << 40, result=False), "bytes of the io arena"),
        (put_operand(Space.DDR, "address", -4, result=True), "bytes of the io arena"),
        (put_operand(Space.DDR, "arena", Arena.COEFF, result=True), "coeff arena"),
        (put_operand(Space.DDR, "address", 0, result=True), "writes DDR outside of the results of tpu.Store"),
    ],
)
def test_corrupt_programs(change: Callable[[np.ndarray], None], message: str) -> None:
    found = corrupted(change)
    assert any(message in line for line in found), found


def test_a_lost_wait_is_a_race_on_the_machine() -> None:
    built = original()
    program = built.snapshot.report
    caught = 0
    waiting = np.flatnonzero((program["wait"] > 0) & (program["op"] <= 10))
    for row in waiting[:40].tolist():
        # GIVEN one instruction that waits for nothing any more
        changed = program.copy()
        changed["wait"][row] = 0
        noticed = run(replace(built, snapshot=replace(built.snapshot, report=changed)))
        assert noticed in ("", "race", "uninitialised", "bank")
        caught += bool(noticed)
    # THEN the machine finds those that touch memory which the other engine still uses
    assert caught >= 5


# -- whole programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantize", ["f32", "bf16", "w4bf16", "w8f16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tiny_program_is_clean(family: str, quantize: str) -> None:
    program, _ = tiny_program(family, quantize)
    found = check(program)
    assert found == []
    said = report(program, found)
    assert said["ok"]
    assert said["modules"] == [spec.name for spec in program.specs]
    assert set(said["checks"]) == set(CHECKS)
    assert said["groups"] > 0
    assert said["instructions"] > 1000


def test_a_program_whose_layers_overlap_is_reported() -> None:
    program, _ = tiny_program("llama", "bf16")
    merged = program.merged
    key = ("block_1", 1)
    bases = {**merged.bases, key: replace(merged.bases[key], io=merged.bases[key].coeff)}
    broken = Compilation.restored(
        program.config, program.options, program.specs, program.modules, replace(merged, bases=bases)
    )
    found = check(broken)
    assert any(problem.check == "merge" and "behind the start" in problem.message for problem in found)
    said = report(broken, found)
    assert not said["ok"]
    assert said["problems"][0]["message"]
