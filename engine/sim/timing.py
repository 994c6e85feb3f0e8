"""When every instruction of a module runs, and what its ops cost: cycles, engine time and DDR traffic.

The costs of single instructions come from `engine.tpu.cost`, when they run from `engine.tpu.schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.tpu.chip import Chip
from engine.tpu.cost import cycles as price
from engine.tpu.isa import Direction, Engine, moved_bytes, runs_with_history
from engine.tpu.schedule import Schedule, schedule

Bound = Literal["memory", "compute"]


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
    """One op. op: its index in the module. cycles: what it adds to the module's time, so ops sum to the total, and the
    ops of a layer group to the group's span."""

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


def time_module(program: np.ndarray, chip: Chip, history_length: int | None = None) -> ModuleTiming:
    """Price and schedule a module's program; on several cores the total is the longest core's (see `schedule`).

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
    ops = [
        OpTiming(tiu, gdma, loaded, stored, copied, number, cost)
        for number, (tiu, gdma, loaded, stored, copied), cost in zip(
            numbers.tolist(), sums.tolist(), _shares(program["core"], op, plan).tolist(), strict=True
        )
    ]
    tiu, gdma, loaded, stored, copied = columns.sum(axis=0, dtype=np.int64).tolist()
    return ModuleTiming(tiu, gdma, loaded, stored, copied, plan.total_cycles, ops, instructions, cycles, plan)


def _work_columns(program: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    """The fields of Work for each instruction: int64 [instructions, 5]."""
    tiu, moved = program["engine"] == Engine.TIU, moved_bytes(program)
    ways = [np.where(program["direction"] == way, moved, 0) for way in Direction]
    return np.column_stack([np.where(tiu, cycles, 0), np.where(tiu, 0, cycles), *ways])


def critical_path(core: np.ndarray, plan: Schedule) -> np.ndarray:
    """The instructions that explain the module's length, in order: indices, int64.

    Each begins in the cycle behind the one before it, the first in cycle 0 and the last ends the slowest core's work.
    core: of each instruction.
    """
    if not len(core):
        return np.zeros(0, np.int64)
    running = np.flatnonzero((plan.end >= plan.start) & (core == core[np.argmax(plan.end)]))
    ends_in = dict(zip(plan.end[running].tolist(), running.tolist(), strict=True))
    starts, found = plan.start.tolist(), []
    cycle = max(ends_in, default=-1)
    while cycle >= 0:
        found.append(ends_in[cycle])
        cycle = starts[found[-1]] - 1
    return np.array(found[::-1], np.int64)


def _shares(core: np.ndarray, op: np.ndarray, plan: Schedule) -> np.ndarray:
    """Cycles that each op adds, by number in `op`: on the slowest core the time that nothing else explains.

    Backwards from the end of the program: whatever ends in a cycle is charged with its own cycles, then what ended
    before it started. Between two waits for all, as in a layer group, that is the busier engine.
    """
    shares = np.zeros(int(op.max(initial=-1)) + 1, np.int64)
    path = critical_path(core, plan)
    np.add.at(shares, op[path], plan.end[path] + 1 - plan.start[path])
    return shares
