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
