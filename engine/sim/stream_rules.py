"""What the instructions of a group that streams weights must leave alone in local memory.

Time steps keep the engines apart, and within a step each engine runs its own commands in order: what is there for a
step of one engine only is kept from that engine's first command for it to the last one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.isa import Engine, Opcode
from engine.tpu.overwrites import Reserved
from engine.tpu.stream_memory import Kept, Run, Runs, StreamMemory

Array = NDArray[Any]


def stream_reserved(
    ops: Sequence[OpRecord], index: int, program: np.ndarray, chip: Chip
) -> Iterator[Reserved]:
    """Every place of the streamed group at a record, kept from all instructions of the group that must not write there.

    program: INSTRUCTION records of the module.
    """
    memory = StreamMemory.of(ops, index, chip)
    commands = _Commands.of(memory, program)
    for kept in memory.kept():
        yield Reserved(None, kept.address, kept.end, commands.foreign(kept), kept.holds)
    for guarded in memory.guarded():
        yield Reserved(None, guarded.address, guarded.end, commands.of_run(guarded.run), guarded.holds)


@dataclass(frozen=True)
class _Commands:
    """The instructions of a group, ordered by time step. rows: their indices; step, engine, op: time step, engine and
    record of each; run: numbers of the first and the last run to which it may belong, [instructions, 2]. broadcast: the
    address where it copies a vector to all lanes in place, or -1. moving: records of loads and stores."""

    rows: Array
    step: Array
    engine: Array
    op: Array
    run: Array
    broadcast: Array
    moving: frozenset[int]

    @classmethod
    def of(cls, memory: StreamMemory, program: np.ndarray) -> _Commands:
        """Those of all ops."""
        rows = np.flatnonzero(np.isin(program["op"], [op.index for op in memory.ops]))
        rows = rows[np.argsort(program["step"][rows], kind="stable")]
        part = program[rows]
        address, source = part["result"]["address"], part["operands"]["address"][:, 0]
        in_place = (part["opcode"] == Opcode.LANE_BROADCAST) & (address == source)
        return cls(
            rows,
            part["step"].astype(np.int64),
            part["engine"],
            part["op"],
            _run_numbers(memory, part),
            np.where(in_place, address, -1),
            frozenset(op.index for op in memory.ops if op.record.kind in ("Load", "Store")),
        )

    @cached_property
    def _steps(self) -> list[int]:
        steps: list[int] = self.step.tolist()
        return steps

    @cached_property
    def _by_run(self) -> dict[tuple[int, int], list[int]]:
        """Indices of the instructions that may belong to each run, in order."""
        found: dict[tuple[int, int], list[int]] = {}
        for row, op, (first, last) in zip(
            self.rows.tolist(), self.op.tolist(), self.run.tolist(), strict=True
        ):
            for run in range(first, last + 1):
                found.setdefault((op, run), []).append(row)
        return found

    @cached_property
    def _shared(self) -> frozenset[int]:
        """Indices of the instructions that may belong to several runs."""
        return frozenset(self.rows[self.run[:, 0] != self.run[:, 1]].tolist())

    def of_run(self, run: Run) -> Array:
        """Indices of the instructions that belong to a run for certain."""
        found = self._by_run.get((run.op, run.number), ())
        return np.array([row for row in found if row not in self._shared], np.int64)

    def foreign(self, kept: Kept) -> Array:
        """Indices of the instructions that run while something is kept and must not write there."""
        first, last = (edge(run.step for run in kept.users) for edge in (min, max))
        inside = slice(bisect_left(self._steps, first), bisect_right(self._steps, last))
        rows, engine = self.rows[inside], self.engine[inside]
        found = ~self._are(kept.writers, inside)
        if kept.heirs is not None:
            found &= ~self._are(kept.heirs, inside)
        if kept.is_vector:
            found &= self.broadcast[inside] != kept.address
        begin = self._used_by([run for run in kept.users if run.step == first])
        end = self._used_by([run for run in kept.users if run.step == last])
        if begin is not None:
            found &= (engine != begin[0]) | (rows >= begin[1])
        if end is not None:
            found &= (engine != end[0]) | (rows <= end[2])
        return rows[found]

    def _are(self, runs: Runs, inside: slice) -> Array:
        """Which instructions may belong to these runs."""
        first, last = self.run[inside].T
        return np.asarray((self.op[inside] == runs.op) & (last >= runs.first) & (first <= runs.last))

    def _used_by(self, runs: Sequence[Run]) -> tuple[Engine, int, int] | None:
        """The engine of these runs with their first and last instruction; None if they have not one engine."""
        found = [at for run in runs for at in self._by_run.get((run.op, run.number), ())]
        moves = {run.op in self.moving for run in runs}
        if not found or len(moves) > 1:
            return None
        return (Engine.GDMA if moves.pop() else Engine.TIU, min(found), max(found))


def _run_numbers(memory: StreamMemory, part: np.ndarray) -> Array:
    """The first and the last run to which each instruction may belong; -1 in steps where its op does not run.

    Instructions of several runs in one step are shared evenly, in order; where that leaves a rest they may belong to
    any of them.
    """
    found = np.full((len(part), 2), -1, np.int64)
    for op in memory.ops:
        mine = np.flatnonzero(part["op"] == op.index)
        steps = part["step"][mine].tolist()
        at_step: dict[int, list[int]] = {}
        for run in op.runs:
            at_step.setdefault(run.step, []).append(run.number)
        for step, numbers in at_step.items():
            rows = mine[bisect_left(steps, step) : bisect_right(steps, step)]
            if len(rows) % len(numbers):
                found[rows] = min(numbers), max(numbers)
            else:
                found[rows] = np.repeat(numbers, len(rows) // len(numbers))[:, None]
    return found
