"""Schedules against whole traces of the reference compiler, and the tables made from them."""

from __future__ import annotations

import numpy as np
import pytest
from vendor_trace import read_trace

from engine.sim.timing import schedule, time_module
from engine.tpu.chip import chip
from engine.tpu.isa import (
    Arena,
    Constant,
    Direction,
    Global,
    Local,
    Opcode,
    Stream,
    contiguous,
)

BM1684X = chip("bm1684x")
TRACES = {
    "smollm2-135m__w4bf16_s512__block_cache_0": (75508, 14904, 2376078),
    "smollm2-135m__w4bf16_s512__lm_head": (59288, 289, 1182848),
    "qwen3-tiny__bf16_s256__block_0": (98142, 44150, 2231552),
    "qwen3-tiny__w4bf16_s256__block_0": (208423, 45798, 3733760),
    "qwen3-tiny__bf16_s256__block_cache_0": (31676, 11369, 1316874),
}
"""The vendor's figures: total cycles, TIU busy cycles, bytes loaded."""


@pytest.mark.parametrize("name", list(TRACES))
def test_a_trace_is_scheduled_to_the_cycle(name: str) -> None:
    # GIVEN a whole module of the reference compiler
    program, cycles, start = read_trace(name)
    # WHEN priced and scheduled by our rules
    timing = time_module(program, BM1684X)
    # THEN every start and end, the total, the engine time and the bytes are the vendor's
    np.testing.assert_array_equal(timing.schedule.start, start)
    np.testing.assert_array_equal(timing.schedule.end, start + cycles - 1)
    assert (timing.total_cycles, timing.tiu_busy_cycles, timing.load_bytes) == TRACES[name]


@pytest.mark.parametrize("name", list(TRACES))
def test_ops_add_up_to_the_module(name: str) -> None:
    program, _, _ = read_trace(name)
    timing = time_module(program, BM1684X)
    ops = timing.ops
    assert [op.op for op in ops] == sorted(set(program["op"].tolist()))
    assert sum(op.cycles for op in ops) == timing.total_cycles
    for field in ("tiu_busy_cycles", "gdma_busy_cycles", "load_bytes", "store_bytes", "ddr_to_ddr_bytes"):
        assert sum(getattr(op, field) for op in ops) == getattr(timing, field)


def lines(count: int) -> tuple[Local, Global]:
    shape = (1, 64, 1, count)
    return Local(0, "f32", shape, contiguous(shape)), Global(Arena.NEURON, 0, "f32", shape, contiguous(shape))


def small_program() -> Stream:
    """Op 3: load 16 KiB, fill twice; op 5: copy in DDR, store 16 KiB."""
    stream, (local, memory) = Stream(), lines(64)
    stream.append(Opcode.TENSOR, local, (memory,), op=3, wait=0, direction=Direction.LOAD)
    stream.append(Opcode.COPY, local, (Constant(0.0),), op=3, wait=0)
    stream.append(Opcode.COPY, local, (Constant(0.0),), op=3, wait=1)
    stream.append(Opcode.TENSOR, memory, (memory,), op=5, wait=2, direction=Direction.DDR_TO_DDR)
    stream.append(Opcode.TENSOR, memory, (local,), op=5, wait=0, direction=Direction.STORE)
    return stream


def test_engines_overlap_until_a_wait_names_the_other() -> None:
    program = small_program().program()
    plan = schedule(program, np.array([10, 3, 2, 5, 1]))
    # load 0..9 and fill 0..2 overlap; the second fill waits for the load, the DDR copy for the second fill
    assert plan.start.tolist() == [0, 0, 10, 12, 17]
    assert plan.end.tolist() == [9, 2, 11, 16, 17]
    assert plan.total_cycles == 18


def test_ddr_to_ddr_bytes_count_as_read_and_as_written() -> None:
    timing = time_module(small_program().program(), BM1684X)
    size = 64 * 64 * 4
    assert (timing.load_bytes, timing.store_bytes, timing.ddr_to_ddr_bytes) == (size, size, size)
    assert (timing.ddr_read_bytes, timing.ddr_write_bytes) == (2 * size, 2 * size)
    first, second = timing.ops
    assert (first.op, first.ddr_read_bytes, first.ddr_write_bytes) == (3, size, 0)
    assert (second.op, second.ddr_read_bytes, second.ddr_write_bytes) == (5, size, 2 * size)


def test_the_busier_engine_is_the_bound() -> None:
    stream, (local, memory) = small_program(), lines(64)
    for _ in range(200):
        stream.append(Opcode.DIV, local, (local, local), op=7, wait=4)
    timing = time_module(stream.program(), BM1684X)
    assert [op.bound for op in timing.ops] == ["memory", "memory", "compute"]
    assert timing.bound == "compute"
    assert memory.arena == Arena.NEURON


def test_an_op_that_ends_inside_another_adds_nothing() -> None:
    # GIVEN op 1's long load around op 0's short fill
    stream, (local, memory) = Stream(), lines(64)
    stream.append(Opcode.TENSOR, local, (memory,), op=1, wait=0, direction=Direction.LOAD)
    stream.append(Opcode.COPY, local, (Constant(0.0),), op=0, wait=0)
    timing = time_module(stream.program(), BM1684X)
    # THEN all the time is op 1's: without the fill it would be the same, and the fill says what hides it
    assert [op.cycles for op in timing.ops] == [0, timing.total_cycles]
    assert [op.under for op in timing.ops] == [1, None]


def test_history_beyond_the_length_takes_no_time() -> None:
    # GIVEN three key blocks of 64 rows; what follows waits for the last of them
    stream, (local, memory) = Stream(), lines(64)
    for block in range(3):
        stream.append(
            Opcode.TENSOR, local, (memory,), op=0, wait=0, direction=Direction.LOAD, history=1 + 64 * block
        )
    stream.append(Opcode.COPY, local, (Constant(0.0),), op=0, wait=3)
    program = stream.program()
    whole, part = time_module(program, BM1684X), time_module(program, BM1684X, history_length=65)
    none = time_module(program, BM1684X, history_length=0)
    # THEN only the blocks that begin before the length are run, and the wait is for the last of those
    assert part.instructions.tolist() == [0, 1, 3]
    assert none.instructions.tolist() == [3]
    load, fill = whole.instruction_cycles[0], whole.instruction_cycles[-1]
    totals = [timing.total_cycles for timing in (whole, part, none)]
    assert totals == [3 * load + fill, 2 * load + fill, fill]
    assert part.load_bytes == 2 * 64 * 64 * 4


def test_cores_run_apart() -> None:
    stream, (local, memory) = Stream(), lines(64)
    stream.append(Opcode.TENSOR, local, (memory,), op=0, wait=0, direction=Direction.LOAD)
    stream.append(Opcode.COPY, local, (Constant(0.0),), op=0, wait=1, core=1)
    program = stream.program()
    assert schedule(program, np.array([10, 3])).total_cycles == 10


def test_cores_side_by_side_share_the_time() -> None:
    # GIVEN two loads of one size, one on each core, then one on the first core alone
    stream, (local, memory) = Stream(), lines(64)
    for op, core in ((3, 0), (4, 1), (7, 0)):
        stream.append(Opcode.TENSOR, local, (memory,), op=op, wait=0, direction=Direction.LOAD, core=core)
    timing = time_module(stream.program(), BM1684X)
    # THEN the first two halve the time in which both run, the third has its own, and nothing is lost
    load = int(timing.instruction_cycles[0])
    assert timing.total_cycles == 2 * load
    cycles = [op.cycles for op in timing.ops]
    assert sum(cycles) == timing.total_cycles
    assert cycles[2] == load
    assert abs(cycles[0] - cycles[1]) <= 1
    assert [op.under for op in timing.ops] == [None, None, None]


def test_an_op_is_hidden_by_what_its_own_core_waits_for() -> None:
    # GIVEN a long load on each core, and op 9's fill beside the second core's
    stream, (local, memory) = Stream(), lines(64)
    for core in range(2):
        stream.append(Opcode.TENSOR, local, (memory,), op=core, wait=0, direction=Direction.LOAD, core=core)
    stream.append(Opcode.COPY, local, (Constant(0.0),), op=9, wait=0, core=1)
    ops = {op.op: op for op in time_module(stream.program(), BM1684X).ops}
    assert (ops[9].cycles, ops[9].under) == (0, 1)


def test_a_wait_for_a_later_command_is_refused() -> None:
    stream, (local, memory) = Stream(), lines(64)
    stream.append(Opcode.COPY, local, (Constant(0.0),), op=0, wait=1)
    stream.append(Opcode.TENSOR, local, (memory,), op=0, wait=0, direction=Direction.LOAD)
    with pytest.raises(ValueError, match="instruction 0 waits for command 1"):
        schedule(stream.program(), np.array([1, 1]))


def test_an_empty_module_takes_no_time() -> None:
    timing = time_module(Stream().program(), BM1684X)
    assert (timing.total_cycles, timing.ops, timing.load_bytes) == (0, [], 0)
