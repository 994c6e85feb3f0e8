"""Corrupted instructions of groups that stream weights: the check names each, and so does the machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from compiled import compile_here
from group_bench import Built
from group_cases import group_of, module
from machine_cases import both, largest_error, random_inputs, tiny_program
from running import weights_of
from stream_bench import compiling_for, feed_forward, heads, random_values, small, streamed
from stream_changes import move, weight_load
from tiny import FAMILIES, write_tiny

from engine.check import check
from engine.compiler import open_model
from engine.instruction_check import instruction_problems
from engine.passes.layer_group.emission import emit_group
from engine.passes.layer_group.view import group_indices
from engine.sim.machine import MachineError, Violation
from engine.sim.memory_rules import MemoryRules, memory_rules
from engine.snapshot import OpRecord
from engine.tpu.emit import Emitter
from engine.tpu.extents import byte_runs
from engine.tpu.isa import DTYPES, Engine, Opcode, Space, dtype_bytes
from engine.tpu.memory import ArenaLayout
from engine.tpu.overwrites import Overwrite, overwrites
from engine.tpu.stream_memory import StreamMemory

DTYPE_BYTES = [dtype_bytes(name) for name in DTYPES]
CASES: dict[str, tuple[Callable[[], tuple[OpRecord, ...]], int]] = {
    "one token": (lambda: feed_forward(1, 256, 2560), 32768),
    "70 rows": (lambda: feed_forward(70, 256, 1280), 32768),
    "slices of rows": (lambda: feed_forward(330, 128, 448), 12288),
    "heads": (lambda: heads(70, 256, bits=8), 24576),
}
"""Records, and bytes of local memory per lane of the chip for which they are streamed."""


@cache
def built(name: str) -> Built:
    make, lmem_bytes = CASES[name]
    return streamed(make(), small(lmem_bytes))


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(name: str) -> Iterator[Built]:
    with compiling_for(small(CASES[name][1])):
        yield built(name)


ROWS = "70 rows"
only_rows = pytest.mark.parametrize("name", [ROWS])


def findings(of: Built) -> list[str]:
    return list(instruction_problems(of.snapshot, of.options))


def rules_of(of: Built, program: np.ndarray) -> MemoryRules:
    layout = ArenaLayout.of(of.snapshot.attributes)
    return memory_rules(of.snapshot.ops, layout, program, of.options.chip)


def written_over(of: Built, program: np.ndarray) -> list[Overwrite]:
    return overwrites(program, of.options.chip, rules_of(of, program).reserved)


def with_program(of: Built, program: np.ndarray) -> Built:
    return replace(of, snapshot=replace(of.snapshot, report=program))


@cache
def values(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs, and the outputs that the sound instructions make of them."""
    given = random_values(built(name).snapshot.ops)
    return given, built(name).machine(checks=False).run(given)


def noticed(of: Built, name: str) -> list[Violation] | str:
    """What the machine finds, or how its numbers are wrong."""
    given, expected = values(name)
    machine = of.machine()
    try:
        found = machine.run(given)
    except MachineError as error:
        return str(error)
    if machine.violations:
        return machine.violations
    wrong = [n for n, numbers in expected.items() if not largest_error(found[n], numbers) <= 0]
    return f"other numbers in {', '.join(wrong)}" if wrong else []


# -- what is lost, found otherwise ---------------------------------------------------------------------------------


@dataclass
class Cells:
    """Bytes of every lane. live: whether what is there is going to be read, [lanes, bytes]."""

    live: np.ndarray
    lanes: int

    def of(self, operand: np.void) -> np.ndarray:
        """Which bytes of which lanes an operand covers."""
        found = np.zeros_like(self.live)
        block = np.array([operand])
        channels, lane, at = int(operand["shape"][1]), int(operand["lane"]), int(operand["address"])
        while channels > 0:
            count = min(channels, self.lanes - lane)
            block["shape"][0, 1], block["lane"], block["address"] = count, lane, at
            starts, length = byte_runs(block[0], self.lanes)
            inside = (starts[:, None] + np.arange(length)).reshape(-1)
            found[lane : lane + count, inside[inside < found.shape[1]]] = True
            at += int(operand["stride"][1]) * int(DTYPE_BYTES[operand["dtype"]])
            channels, lane = channels - count, 0
        return found

    def undo(self, instruction: np.void) -> None:
        """Go back before an instruction."""
        if instruction["result"]["space"] == Space.LOCAL:
            self.live &= ~self.of(instruction["result"])
        for operand in instruction["operands"]:
            if operand["space"] == Space.LOCAL:
                self.live |= self.of(operand)


def losses(of: Built, chosen: Sequence[int], targets: Sequence[int]) -> set[tuple[int, int]]:
    """(instruction, address) where the result, put there, destroys a byte that a later instruction reads."""
    program, chip = of.snapshot.report, of.options.chip
    cells = Cells(np.zeros((chip.lanes, chip.lmem_bytes), bool), chip.lanes)
    found = set()
    for row in range(len(program) - 1, -1, -1):
        if row in chosen:
            others = cells.live & ~cells.of(program[row]["result"])
            for target in targets:
                moved = program[row : row + 1].copy()
                moved["result"]["address"] = target
                if (others & cells.of(moved[0]["result"])).any():
                    found.add((row, target))
        cells.undo(program[row])
    return found


def chosen_rows(of: Built) -> list[int]:
    """Of every op of a group the instructions into local memory with which a run in the middle begins and ends."""
    program, ops = of.snapshot.report, of.snapshot.ops
    found = []
    for op in (at for at in np.unique(program["op"]).tolist() if ops[at].parent is not None):
        mine = np.flatnonzero((program["op"] == op) & (program["result"]["space"] == Space.LOCAL))
        if mine.size:
            steps = np.unique(program["step"][mine])
            run = mine[program["step"][mine] == steps[len(steps) // 2]]
            found += [int(run[0]), int(run[-1])]
    return sorted(set(found))


def places(of: Built) -> list[int]:
    """Where buffers begin."""
    ops, chip = of.snapshot.ops, of.options.chip
    memories = [StreamMemory.of(ops, index, chip) for index in group_indices(ops)]
    return sorted({kept.address for memory in memories for kept in memory.kept()})


def test_the_instructions_as_compiled_are_right(case: Built, name: str) -> None:
    assert findings(case) == []
    assert noticed(case, name) == []


def test_no_result_that_is_put_over_live_data_stays_unseen(case: Built) -> None:
    # GIVEN instructions of every op of a group, each with its result where another buffer is
    program, chosen, targets = case.snapshot.report, chosen_rows(case), places(case)
    lost = losses(case, chosen, targets)
    assert len(lost) > 40
    unseen, seen = [], 0
    sound = rules_of(case, program)
    for row in chosen:
        for target in targets:
            if target == program[row]["result"]["address"]:
                continue
            changed = program.copy()
            changed["result"]["address"][row] = target
            # WHEN its writes are compared with what is kept
            in_place = program["opcode"][row] == Opcode.LANE_BROADCAST
            rules = rules_of(case, changed) if in_place else sound
            found = {write.instruction for write in overwrites(changed, case.options.chip, rules.reserved)}
            # THEN nobody else is blamed, and it is found whenever somebody reads what it destroys
            assert found <= {row}
            seen += bool(found)
            unseen += [(row, target)] if (row, target) in lost and not found else []
    assert unseen == []
    # and not everything is found wrong: there are places where nothing is kept
    assert seen < len(chosen) * (len(targets) - 1)


# -- mutations -----------------------------------------------------------------------------------------------------


def changed_at(of: Built, row: int, part: str, address: int) -> Built:
    """One instruction with its result, or its first operand, somewhere else."""
    program = of.snapshot.report.copy()
    (program["result"] if part == "result" else program["operands"][:, 0])["address"][row] = address
    return with_program(of, program)


def a_loss(of: Built, row: int) -> Built | None:
    """The result of an instruction over the first live data of another buffer."""
    for target in places(of):
        changed = changed_at(of, row, "result", target)
        if written_over(of, changed.snapshot.report):
            return changed
    return None


def test_check_and_machine_say_who_destroys_what(case: Built, name: str) -> None:
    # GIVEN for each op an instruction that writes where something is that is still to be read
    every = [changed for row in chosen_rows(case) if (changed := a_loss(case, row)) is not None]
    assert len(every) > 10
    for changed in every[:: max(1, len(every) // 6)]:
        # WHEN it is checked, and run
        said, seen = findings(changed), noticed(changed, name)
        # THEN both name the op, the byte and what is lost
        assert isinstance(seen, list)
        (message, *_) = [violation.message for violation in seen if violation.kind == "overwrite"]
        assert re.fullmatch(r"tpu\.\w+ \w+ writes byte \d+ of .+ \(bytes .* of local memory\), .*", message)
        assert any(message in line for line in said), (message, said)
        # and the check also says what the records give
        assert any("is not what its records give: the address of its result is" in line for line in said)


def loads_of(of: Built, index: int) -> list[int]:
    return np.flatnonzero(of.snapshot.report["op"] == index).tolist()


@only_rows
def test_tiles_in_each_others_places(case: Built) -> None:
    program = case.snapshot.report
    load = weight_load(case.snapshot.ops, 1)
    rows = loads_of(case, load)
    assert len(rows) > 2
    for one, other in pairwise(rows):
        # GIVEN two tiles of a weight that follow each other, each loaded into the other's place
        changed = program.copy()
        changed["result"]["address"][[one, other]] = program["result"]["address"][[other, one]]
        of = with_program(case, changed)
        # THEN check and machine say that one is loaded over the other
        said, seen = findings(of), noticed(of, ROWS)
        assert any(
            re.search(r"tpu\.Load a16matmul_12 writes byte \d+ of tile \d of weight_9", line) for line in said
        )
        assert isinstance(seen, list)
        assert {"overwrite"} <= {violation.kind for violation in seen}


@pytest.mark.parametrize("part", ["result", "operand"])
def test_loads_off_by_a_row(case: Built, name: str, part: str) -> None:
    program = case.snapshot.report
    for index, op in enumerate(case.snapshot.ops):
        if op.kind != "Load":
            continue
        # GIVEN a load that begins a row later, in local memory or in DDR: in the first slice of rows, as what is
        # loaded anew for the next ones would still be there
        row = loads_of(case, index)[0]
        tensor = program["result"][row] if part == "result" else program["operands"][row, 0]
        pitch = int(tensor["stride"][1]) * DTYPE_BYTES[tensor["dtype"]]
        of = changed_at(case, row, part, int(tensor["address"]) + pitch)
        # THEN the check says so, and the machine finds fault or gives other numbers
        where = "result" if part == "result" else "operand 0"
        assert any(f"the address of its {where} is" in line for line in findings(of)), op.location
        assert noticed(of, name), op.location


@only_rows
def test_a_tile_loaded_one_step_early(case: Built) -> None:
    # GIVEN a tile that is loaded while the one before the last is still read in the same place
    ops = case.snapshot.ops
    early = move(ops, weight_load(ops, 1), 2, -1)
    emit = Emitter(case.options.chip, ArenaLayout.of(case.snapshot.attributes).spans())
    emit_group(group_of(early), emit)
    for records in (ops, early):  # whether the records say so or not
        snapshot = replace(case.snapshot, ops=records, report=emit.program())
        of = replace(case, snapshot=snapshot)
        # THEN check and machine say which tile is lost
        said, seen = findings(of), noticed(of, ROWS)
        assert any(
            "tpu.Load a16matmul_12 writes" in line and "of tile 1 of weight_9" in line for line in said
        )
        assert isinstance(seen, list)
        assert {"overwrite", "race"} <= {violation.kind for violation in seen}


@only_rows
def test_an_instruction_more_or_less(case: Built) -> None:
    program = case.snapshot.report
    said = findings(with_program(case, np.delete(program, 30)))
    assert any(
        f"has {len(program) - 1} instructions, its records give {len(program)}" in line for line in said
    )


def test_a_lost_wait_of_a_group_is_found() -> None:
    # GIVEN an ordinary group in which one instruction waits for nothing any more
    of = module(pipelined=True)
    assert findings(of) == []
    program = of.snapshot.report.copy()
    row = int(np.flatnonzero((program["wait"] > 0) & (program["engine"] == Engine.TIU))[1])
    wait = int(program["wait"][row])
    program["wait"][row] = 0
    # THEN the check says what it should wait for
    (line,) = findings(with_program(of, program))
    assert line.startswith(f"instruction {row} of tpu.")
    assert line.endswith(f"is not what its records give: the wait is 0, not {wait}")


# -- ops outside of groups -----------------------------------------------------------------------------------------

Change = Callable[[np.ndarray, np.ndarray], int]
"""(program, rows of one op) -> the row that was changed, in place."""


def first_of(program: np.ndarray, rows: np.ndarray, engine: Engine) -> int:
    return int(rows[program["engine"][rows] == engine][0])


def waits_zeroed(program: np.ndarray, rows: np.ndarray) -> int:
    row = int(rows[program["wait"][rows] > 0][0])
    program["wait"][rows] = 0
    return row


def operand_moved(program: np.ndarray, rows: np.ndarray) -> int:
    row = first_of(program, rows, Engine.TIU)
    program["operands"]["address"][row, 0] += 64
    return row


def opcode_swapped(program: np.ndarray, rows: np.ndarray) -> int:
    row = first_of(program, rows, Engine.TIU)
    program["opcode"][row] = Opcode.ADD if program["opcode"][row] != Opcode.ADD else Opcode.MUL
    return row


def row_short(program: np.ndarray, rows: np.ndarray) -> int:
    row = first_of(program, rows, Engine.GDMA)
    program["operands"]["shape"][row, 0, 1] -= 1
    program["result"]["shape"][row, 1] -= 1
    return row


def stride_changed(program: np.ndarray, rows: np.ndarray) -> int:
    row = first_of(program, rows, Engine.GDMA)
    program["operands"]["stride"][row, 0, 1] -= 1
    return row


def history_moved(program: np.ndarray, rows: np.ndarray) -> int:
    row = int(rows[0])
    program["history"][rows] += 64
    return row


CHANGES: dict[Change, str] = {
    waits_zeroed: "wait",
    operand_moved: "address of its operand 0",
    opcode_swapped: "opcode",
    row_short: "shape of its result",
    stride_changed: "stride of its operand 0",
    history_moved: "history",
}
"""Corruptions, and the field of which the check speaks."""


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", ["A16MatMul", "FAttention", "RMSNorm", "Gather"])
@pytest.mark.parametrize("cores", [1, 2])
def test_a_corruption_outside_of_groups_is_named(kind: str, change: Change, cores: int) -> None:
    # GIVEN a block whose op runs by itself, and one corruption of its instructions
    program, _ = tiny_program("qwen3", "w4bf16", chip_name="bm1688", cores=cores, layer_group=False)
    snapshot = program.modules["block_kv_0"].snapshots[-1]
    assert list(instruction_problems(snapshot, program.options)) == []
    index = next(i for i, op in enumerate(snapshot.ops) if op.kind == kind and op.parent is None)
    op, corrupted = snapshot.ops[index], snapshot.report.copy()
    row = change(corrupted, np.flatnonzero(corrupted["op"] == index))
    # WHEN it is checked
    said = list(instruction_problems(replace(snapshot, report=corrupted), program.options))
    # THEN the instruction, its op and the first field that differs are named
    wanted = (
        f"instruction {row} of {op.name} {op.location} is not what its records give: the {CHANGES[change]} is"
    )
    assert any(line.startswith(wanted) for line in said), said


def test_only_the_op_that_lacks_an_instruction_is_blamed() -> None:
    program, _ = tiny_program("qwen3", "w4bf16", layer_group=False)
    snapshot = program.modules["block_0"].snapshots[-1]
    index = next(i for i, op in enumerate(snapshot.ops) if op.kind == "FAttention")
    rows = np.flatnonzero(snapshot.report["op"] == index)
    # GIVEN a program without one instruction, whose queues were numbered anew
    lost = int(rows[3])
    engine, number = snapshot.report["engine"][lost], snapshot.report["id"][lost]
    shorter = np.delete(snapshot.report, lost)
    shorter["id"][(shorter["engine"] == engine) & (shorter["id"] > number)] -= 1
    shorter["wait"][(shorter["engine"] != engine) & (shorter["wait"] >= number)] -= 1
    # THEN the op and both counts are named, and no op behind it
    op = snapshot.ops[index]
    said = list(instruction_problems(replace(snapshot, report=shorter), program.options))
    assert [line for line in said if "records give" in line] == [
        f"{op.name} {op.location} has {len(rows) - 1} instructions, its records give {len(rows)}"
    ]


# -- whole programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantize", ["w4bf16", "w8bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_programs_of_the_small_chip_are_clean(family: str, quantize: str, tmp_path: Path) -> None:
    # GIVEN prefill with and without history and decode, for 32 lanes
    path = write_tiny(tmp_path / family, family, layers=1)
    program = compile_here(
        path, chip_name="bm1688", seq_length=64, quantize=quantize, decode_chunks=(), fuse_weights=True
    )
    kinds = {op.name for m in program.modules.values() for op in m.snapshots[-1].ops}
    assert "tpu.Group" in kinds
    assert check(program) == []
    # THEN the machine finds nothing either
    loader = weights_of(open_model(path))
    for spec in program.specs:
        if spec.layers:
            inputs = random_inputs(program, spec, spec.cache // 2)
            assert both(program, loader, spec, inputs)[2].violations == [], spec.name


def test_programs_for_two_cores_are_clean() -> None:
    program, _ = tiny_program("llama", "w4bf16", chip_name="bm1688", cores=2)
    assert any(op.name == "tpu.Group" for m in program.modules.values() for op in m.snapshots[-1].ops)
    assert check(program) == []
