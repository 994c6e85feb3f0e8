"""Data races between cores: bytes of DDR that one core writes while another one reads or writes them.

Between two barriers (isa.BARRIER) nothing orders the cores, so whatever one of them writes there must be its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.tpu.extents import byte_runs, extents
from engine.tpu.isa import BARRIER, OPERANDS, Arena, Space

Array = NDArray[Any]


@dataclass(frozen=True)
class CoreRace:
    """`writer` (an instruction) writes bytes from `start` on in an arena that `other`, an instruction of another core,
    reads or writes (`writes`) without a barrier in between."""

    writer: int
    other: int
    writes: bool
    arena: Arena
    start: int

    def __str__(self) -> str:
        return (
            f"instruction {self.writer} writes byte {self.start} of the {self.arena.name.lower()} arena, which "
            f"instruction {self.other} on another core {'writes' if self.writes else 'reads'} without a barrier between"
        )


@dataclass(frozen=True)
class _Accesses:
    """Accesses of DDR, one entry each. start, end: bytes in the arena; tensor: the operand, for its strides."""

    instruction: Array
    segment: Array
    core: Array
    writes: Array
    arena: Array
    start: Array
    end: Array
    tensor: Array

    def __getitem__(self, rows: Array) -> _Accesses:
        return _Accesses(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def core_races(program: np.ndarray, runs: Array | None = None) -> list[CoreRace]:
    """The first race of every pair of cores between two barriers; empty for a program of one core.

    program: INSTRUCTION records. runs: which of them run (bool; default all). Rows picked by a GATHER count as a read
    of the whole table.
    """
    if not len(program) or not program["core"].any():
        return []
    accesses = _accesses(program, runs)
    found = []
    for segment, arena in sorted({*zip(accesses.segment.tolist(), accesses.arena.tolist(), strict=True)}):
        here = accesses[(accesses.segment == segment) & (accesses.arena == arena)]
        found += list(_races(here, Arena(arena)))
    return found


def _accesses(program: np.ndarray, runs: Array | None) -> _Accesses:
    segment = np.cumsum((program["flags"] & BARRIER) != 0)
    parts = []
    columns = [("result", program["result"])]
    columns += [("operands", program["operands"][:, number]) for number in range(OPERANDS)]
    for name, tensor in columns:
        remote = tensor["space"] == Space.DDR
        rows = np.flatnonzero(remote if runs is None else remote & runs)
        picked = tensor[rows]
        start, end = extents(picked)
        writes = np.full(len(rows), name == "result")
        arena = picked["arena"]
        parts.append((rows, segment[rows], program["core"][rows], writes, arena, start, end, picked))
    return _Accesses(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _races(accesses: _Accesses, arena: Arena) -> Iterator[CoreRace]:
    """Races inside one segment and arena."""
    for core in np.unique(accesses.core[accesses.writes]).tolist():
        mine = accesses[(accesses.core == core) & accesses.writes]
        # two writers are found once, by the core of the higher number
        others = accesses[(accesses.core < core) | ((accesses.core > core) & ~accesses.writes)]
        near = others[(others.start < mine.end.max()) & (others.end > mine.start.min())]
        written = _Runs.of(mine)
        for other in np.unique(near.core).tolist():
            race = _first(written, near[near.core == other], arena)
            if race is not None:
                yield race


@dataclass(frozen=True)
class _Runs:
    """Runs of consecutive bytes: start and end of each, sorted by start, and the access that it belongs to."""

    start: Array
    end: Array
    instruction: Array
    writes: Array

    @classmethod
    def of(cls, accesses: _Accesses) -> _Runs:
        """All runs of the accesses."""
        starts, ends, owners = [], [], []
        for index, tensor in enumerate(accesses.tensor):
            first, length = byte_runs(tensor)
            starts.append(first)
            ends.append(first + length)
            owners.append(np.full(len(first), index))
        start, end, owner = (np.concatenate(part) for part in (starts, ends, owners))
        order = np.argsort(start, kind="stable")
        owner = owner[order]
        return cls(start[order], end[order], accesses.instruction[owner], accesses.writes[owner])


def _first(written: _Runs, others: _Accesses, arena: Arena) -> CoreRace | None:
    """The first byte that both have."""
    runs = _Runs.of(others)
    # the furthest end of all written runs up to each one, and which run has it
    furthest = np.maximum.accumulate(written.end)
    last = np.searchsorted(written.start, runs.end, side="left") - 1
    hit = (last >= 0) & (furthest[np.maximum(last, 0)] > runs.start)
    if not hit.any():
        return None
    run = int(np.argmax(hit))
    start, end = int(runs.start[run]), int(runs.end[run])
    writer = int(np.argmax((written.start < end) & (written.end > start)))
    byte = max(start, int(written.start[writer]))
    return CoreRace(
        int(written.instruction[writer]), int(runs.instruction[run]), bool(runs.writes[run]), arena, byte
    )
