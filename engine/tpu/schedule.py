"""When every instruction of a program runs: two in-order queues, each command waiting for the other (rule R1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.tpu.isa import Engine


@dataclass(frozen=True)
class Schedule:
    """start, end: first and last cycle of each instruction (int64; an instruction of 0 cycles ends before it starts).

    total_cycles: from the first start to the last end of any core.
    """

    start: np.ndarray
    end: np.ndarray
    total_cycles: int


def schedule(program: np.ndarray, cycles: np.ndarray) -> Schedule:
    """Start and end of every instruction by rule R1.

    Cores run apart, as in the vendor's estimate (R46): each one's time is that of its own commands, a barrier
    (isa.BARRIER) costs nothing and nobody waits at it. Time in which a core idles behind another one is therefore not
    counted, and the total is that of the core with most to do: a lower bound where the slowest core changes from op to
    op.

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
