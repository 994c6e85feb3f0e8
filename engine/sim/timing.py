"""When every instruction of a module runs, and what its ops cost: cycles, engine time and DDR traffic.

The schedule is rule R1 of the cost model: two in-order queues, each command waiting for one command of the other.
The costs of single instructions come from `engine.tpu.cost`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.tpu.chip import Chip
from engine.tpu.cost import cycles as price
from engine.tpu.isa import Direction, Engine, moved_bytes, runs_with_history

Bound = Literal["memory", "compute"]


@dataclass(frozen=True)
class Schedule:
    """start, end: first and last cycle of each instruction (int64; an instruction of 0 cycles ends before it starts).

    total_cycles: from the first start to the last end of any core.
    """

    start: np.ndarray
    end: np.ndarray
    total_cycles: int


@dataclass(frozen=True)
class Work:
    """Engine time (cycles, summed over cores) and DDR traffic (bytes) of an op or a module.

    A DDR-to-DDR byte counts once as read and once as written.
    """

    tiu_busy_cycles: int
    gdma_busy_cycles: int
    load_bytes: int
    store_bytes: int
    ddr_to_ddr_bytes: int

    @property
    def ddr_read_bytes(self) -> int:
        """Bytes read from DDR."""
        return self.load_bytes + self.ddr_to_ddr_bytes

    @property
    def ddr_write_bytes(self) -> int:
        """Bytes written to DDR."""
        return self.store_bytes + self.ddr_to_ddr_bytes

    @property
    def bound(self) -> Bound:
        """The busier engine: data movement ("memory") or compute."""
        return "memory" if self.gdma_busy_cycles >= self.tiu_busy_cycles else "compute"


@dataclass(frozen=True)
class OpTiming(Work):
    """One op. op: its index in the module. cycles: what it adds to the module's time, so ops sum to the total."""

    op: int
    cycles: int


@dataclass(frozen=True)
class ModuleTiming(Work):
    """One run of a module.

    ops: sorted by op index; ops without instructions are absent. instructions: indices in the program of those that
    run. instruction_cycles, schedule: one entry for each of them.
    """

    total_cycles: int
    ops: list[OpTiming]
    instructions: np.ndarray
    instruction_cycles: np.ndarray
    schedule: Schedule


def schedule(program: np.ndarray, cycles: np.ndarray) -> Schedule:
    """Start and end of every instruction by rule R1; cores run apart (R46).

    program: INSTRUCTION records in issue order. cycles: of each. A wait for a command that is absent (dropped with the
    history) means the last one before it. Raises ValueError when an instruction waits for one that is issued later.
    """
    end = np.zeros(len(program), np.int64)
    engine, number, wait, core = (program[name].copy() for name in ("engine", "id", "wait", "core"))
    for one in np.unique(core):
        own = core == one
        end[own] = _ends(engine[own], number[own], wait[own], cycles[own])
    start = end - cycles + 1
    return Schedule(start, end, int(end.max(initial=-1)) + 1)


def _ends(engine: np.ndarray, number: np.ndarray, wait: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    """Last cycle of each instruction of one core, from its columns of the program."""
    queues = [np.flatnonzero(engine == queue) for queue in (Engine.TIU, Engine.GDMA)]
    waited = np.zeros(len(engine), np.int64)
    for own, other in (queues, queues[::-1]):
        waited[own] = np.searchsorted(number[other], wait[own], side="right")
    ends: tuple[list[int], list[int]] = ([-1], [-1])
    try:
        for queue, position, duration in zip(engine.tolist(), waited.tolist(), cycles.tolist(), strict=True):
            mine = ends[queue]
            mine.append(max(mine[-1], ends[1 - queue][position]) + duration)
    except IndexError:
        at = len(ends[0]) + len(ends[1]) - 2
        raise ValueError(f"instruction {at} waits for command {wait[at]}, which is issued later") from None
    result = np.empty(len(engine), np.int64)
    for queue, positions in enumerate(queues):
        result[positions] = ends[queue][1:]
    return result


def time_module(program: np.ndarray, chip: Chip, history_length: int | None = None) -> ModuleTiming:
    """Price and schedule a module's program.

    history_length: rows of history that hold data; None for all. Work on key blocks beyond it is dropped.
    """
    instructions = np.flatnonzero(runs_with_history(program, history_length))
    if len(instructions) < len(program):
        program = program[instructions]
    cycles = price(program, chip)
    plan = schedule(program, cycles)
    columns = _work_columns(program, cycles)
    numbers, op = np.unique(program["op"], return_inverse=True)
    sums = np.zeros((len(numbers), columns.shape[1]), np.int64)
    np.add.at(sums, op, columns)
    ends = np.full(len(numbers), -1, np.int64)
    np.maximum.at(ends, op, plan.end)
    ops = [
        OpTiming(tiu, gdma, loaded, stored, copied, number, cost)
        for number, (tiu, gdma, loaded, stored, copied), cost in zip(
            numbers.tolist(), sums.tolist(), _shares(ends).tolist(), strict=True
        )
    ]
    tiu, gdma, loaded, stored, copied = columns.sum(axis=0, dtype=np.int64).tolist()
    return ModuleTiming(tiu, gdma, loaded, stored, copied, plan.total_cycles, ops, instructions, cycles, plan)


def _work_columns(program: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    """The fields of Work for each instruction: int64 [instructions, 5]."""
    tiu, moved = program["engine"] == Engine.TIU, moved_bytes(program)
    ways = [np.where(program["direction"] == way, moved, 0) for way in Direction]
    return np.column_stack([np.where(tiu, cycles, 0), np.where(tiu, 0, cycles), *ways])


def _shares(ends: np.ndarray) -> np.ndarray:
    """Cycles that each op adds: from the latest end before its own to its own."""
    order = np.argsort(ends, kind="stable")
    shares = np.empty_like(ends)
    shares[order] = np.diff(ends[order], prepend=-1)
    return shares
