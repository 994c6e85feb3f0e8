"""When every instruction of a module runs, and what its ops cost: cycles, engine time and DDR traffic.

The costs of single instructions come from `engine.tpu.cost`, when they run from `engine.tpu.schedule`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Literal

import numpy as np

from engine.tpu.chip import Chip
from engine.tpu.cost import cycles as price
from engine.tpu.isa import Direction, Engine, moved_bytes, runs_with_history
from engine.tpu.schedule import Schedule, schedule

Bound = Literal["memory", "compute"]

NOBODY = -1
"""In columns of op numbers: none."""


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
    ops of a layer group to the group's span; several cores share the time in which they run side by side.

    under: the op in whose time it runs when it adds nothing, else None.
    """

    op: int
    cycles: int
    under: int | None = None


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
    shares, under = _shares(program["core"], op, plan)
    ops = [
        OpTiming(
            tiu, gdma, loaded, stored, copied, number, cost, None if other == NOBODY else int(numbers[other])
        )
        for number, (tiu, gdma, loaded, stored, copied), cost, other in zip(
            numbers.tolist(), sums.tolist(), shares.tolist(), under.tolist(), strict=True
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
    return _core_path(core, plan, int(core[np.argmax(plan.end)]))


def _core_path(core: np.ndarray, plan: Schedule, one: int) -> np.ndarray:
    """As `critical_path`, for the work of one core."""
    running = np.flatnonzero((plan.end >= plan.start) & (core == one))
    ends_in = dict(zip(plan.end[running].tolist(), running.tolist(), strict=True))
    starts, found = plan.start.tolist(), []
    cycle = max(ends_in, default=-1)
    while cycle >= 0:
        found.append(ends_in[cycle])
        cycle = starts[found[-1]] - 1
    return np.array(found[::-1], np.int64)


def _shares(core: np.ndarray, op: np.ndarray, plan: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Cycles that each op adds, by number in `op`, and for those that add none the op that hides them.

    Backwards from the end of a core's work: whatever ends in a cycle is charged with its own cycles, then what ended
    before it started. Between two waits for all, as in a layer group, that is the busier engine. In a cycle in which
    several cores run, what each of them is charged with gets an equal part; a core that has ended gets none.
    """
    numbers = int(op.max(initial=-1)) + 1
    paths = [path for one in np.unique(core).tolist() if len(path := _core_path(core, plan, one))]
    edges = np.unique(np.concatenate([np.zeros(0, np.int64), *(plan.start[path] for path in paths)]))
    width = np.diff(edges, append=plan.total_cycles)
    busy = [edges <= plan.end[path[-1]] for path in paths]
    whole = lcm(*range(1, len(paths) + 1))
    part = width * whole // np.maximum(1, np.sum(busy, axis=0))
    shares, under = np.zeros(numbers, np.int64), np.full(numbers, NOBODY, np.int64)
    for path, runs in zip(paths, busy, strict=True):
        np.add.at(shares, op[_running(path, plan, edges[runs])], part[runs])
    for number in np.flatnonzero(shares == 0).tolist():
        under[number] = _hides(np.flatnonzero(op == number), core, op, plan, paths)
    return _rounded(shares, whole), under


def _running(path: np.ndarray, plan: Schedule, cycle: np.ndarray) -> np.ndarray:
    """The instructions of a path that run in some cycles."""
    return np.asarray(path[np.searchsorted(plan.start[path], cycle, side="right") - 1])


def _hides(
    mine: np.ndarray, core: np.ndarray, op: np.ndarray, plan: Schedule, paths: Sequence[np.ndarray]
) -> int:
    """The op that its core is charged with for most of the time of some instructions; NOBODY if they take none."""
    time: Counter[int] = Counter()
    for path in paths:
        own = mine[(core[mine] == core[path[0]]) & (plan.end[mine] >= plan.start[mine])]
        beside = op[_running(path, plan, (plan.start[own] + plan.end[own]) // 2)]
        for other, cycles in zip(
            beside.tolist(), (plan.end[own] + 1 - plan.start[own]).tolist(), strict=True
        ):
            time[other] += cycles
    return max(time, key=lambda other: time[other], default=NOBODY)


def _rounded(shares: np.ndarray, whole: int) -> np.ndarray:
    """Shares in parts of a cycle as cycles with the same sum: the largest remainders are rounded up."""
    cycles, rest = np.divmod(shares, whole)
    cycles[np.argsort(-rest, kind="stable")[: int(rest.sum()) // whole]] += 1
    return np.asarray(cycles)
