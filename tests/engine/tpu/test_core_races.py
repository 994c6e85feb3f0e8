"""Cores that write what another one uses: found to the byte, and only where no barrier stands between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sim.machine import Machine
from engine.tpu.chip import chip
from engine.tpu.core_races import CoreRace, core_races
from engine.tpu.isa import BARRIER, INSTRUCTION, Arena, Direction, Global, Local, Opcode, Stream

CHIP = chip("bm1688")
WIDTH = 16


def columns(first: int, count: int = 4, offset: int = 0, arena: Arena = Arena.IO) -> Global:
    """Four rows of a matrix of 16 columns, f32: some of the columns."""
    return Global(arena, offset + 4 * first, "f32", (1, 4, 1, count), (0, WIDTH, WIDTH, 1))


def store(stream: Stream, to: Global, core: int, flags: int = 0) -> None:
    local = Local(0, "f32", to.shape, (to.shape[3] * 4, to.shape[3], to.shape[3], 1))
    stream.append(
        Opcode.TENSOR, to, (local,), op=0, wait=0, direction=Direction.STORE, core=core, flags=flags
    )


def load(stream: Stream, source: Global, core: int, flags: int = 0, history: int = 0) -> None:
    local = Local(0, "f32", source.shape, (source.shape[3] * 4, source.shape[3], source.shape[3], 1))
    stream.append(
        Opcode.TENSOR, local, (source,), op=0, wait=0, direction=Direction.LOAD, core=core, flags=flags, history=history
    )  # fmt: skip


def test_interleaved_columns_do_not_race() -> None:
    # GIVEN two cores that store columns of the same rows
    stream = Stream()
    store(stream, columns(0), 0, BARRIER)
    store(stream, columns(4), 1)
    store(stream, columns(8), 0)
    load(stream, columns(12), 1)
    assert core_races(stream.program()) == []


def test_a_column_too_many_is_found_with_both_instructions() -> None:
    stream = Stream()
    store(stream, columns(0, 5), 0, BARRIER)
    store(stream, columns(4), 1)
    (race,) = core_races(stream.program())
    assert race == CoreRace(writer=1, other=0, writes=True, arena=Arena.IO, start=16)
    assert "instruction 1 writes byte 16 of the io arena, which instruction 0 on another core writes" in str(
        race
    )


def test_reading_what_another_core_writes_is_a_race_whatever_the_order() -> None:
    for cores in ((0, 1), (1, 0)):
        stream = Stream()
        load(stream, columns(2), cores[0], BARRIER)
        store(stream, columns(4), cores[1])
        (race,) = core_races(stream.program())
        assert (race.writer, race.other, race.writes) == (1, 0, False)


def test_a_barrier_parts_them_even_if_its_instruction_is_dropped() -> None:
    stream = Stream()
    store(stream, columns(0), 0, BARRIER)
    load(stream, columns(40), 0, BARRIER, history=9)
    load(stream, columns(0), 1)
    program = stream.program()
    assert core_races(program) == []
    assert core_races(program, np.array([True, False, True])) == []
    # WHEN the barrier is gone
    program = program.copy()
    program["flags"][1] = 0
    assert len(core_races(program)) == 1


def test_other_arenas_and_one_core_do_not_race() -> None:
    stream = Stream()
    store(stream, columns(0), 0, BARRIER)
    store(stream, columns(0, arena=Arena.NEURON), 1)
    store(stream, columns(0), 0)
    assert core_races(stream.program()) == []
    assert core_races(np.zeros(0, INSTRUCTION)) == []


def test_a_dropped_instruction_does_not_race() -> None:
    stream = Stream()
    store(stream, columns(0), 0, BARRIER)
    load(stream, columns(0), 1)
    assert core_races(stream.program(), np.array([True, False])) == []


Access = tuple[int, bool, int, int, int, int]


ACCESSES = st.tuples(
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 20),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 9),
)


@given(st.lists(ACCESSES, max_size=8))
def test_against_bytes_marked_one_by_one(accesses: Sequence[Access]) -> None:
    # GIVEN loads and stores of strided pieces by three cores
    stream = Stream()
    touched: dict[tuple[int, bool], set[int]] = {}
    for core, writes, start, rows, width, pitch in accesses:
        tensor = Global(Arena.IO, 4 * start, "f32", (1, rows, 1, width), (0, pitch, 0, 1))
        (store if writes else load)(stream, tensor, core)
        piece = {start + row * pitch + column for row in range(rows) for column in range(width)}
        touched.setdefault((core, writes), set()).update(piece)
    # THEN pairs of cores are found if and only if they share a written element
    expected = set()
    for (core, writes), mine in touched.items():
        for (other, _), theirs in touched.items():
            if writes and core != other and mine & theirs:
                expected.add(frozenset((core, other)))
    program = stream.program()
    found = core_races(program)
    cores = program["core"]
    assert {frozenset((int(cores[r.writer]), int(cores[r.other]))) for r in found} == expected
    for race in found:
        assert program["direction"][race.writer] == Direction.STORE


@pytest.mark.parametrize("races", [False, True])
def test_the_machine_reports_it(races: bool) -> None:
    stream = Stream()
    load(stream, columns(0), 0, BARRIER)
    load(stream, columns(0), 1)
    store(stream, columns(0), 0, BARRIER)
    store(stream, columns(3 if races else 4), 1)
    machine = Machine(CHIP, {Arena.IO: np.zeros(1024, np.uint8)}, checks=True)
    machine.mark_written(Arena.IO)
    machine.run(stream.program())
    kinds = [violation.kind for violation in machine.violations]
    assert kinds == (["cores"] if races else [])
