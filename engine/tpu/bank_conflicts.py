"""Banks of local memory that both engines may use at the same time.

A bank of a lane serves one of the engines at a time, so where both want it one of them is held up. That is a matter of
speed alone: the numbers are right, and neither rule R1 nor the reference's estimate counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.tpu.chip import Chip
from engine.tpu.extents import extents, tensors_of
from engine.tpu.isa import Engine, Space

Array = NDArray[Any]

CONFLICT = np.dtype([("instruction", "<i8"), ("other", "<i8"), ("bank", "<i8")])
"""`other` is issued first, on the other engine; bank: the lowest that both use."""
_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class _Accesses:
    """Uses of local memory by operands and results, in the order of issue. id: of the instruction. wait: id of the last
    command of the other engine that has ended. lanes, banks: the first one and the one behind the last, [accesses, 2].
    owner: as in `bank_conflicts`."""

    instruction: Array
    engine: Array
    id: Array
    wait: Array
    lanes: Array
    banks: Array
    owner: Array

    def __getitem__(self, rows: Array) -> _Accesses:
        return _Accesses(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def bank_conflicts(
    program: np.ndarray, chip: Chip, *, runs: Array | None = None, owners: Array | None = None
) -> np.ndarray:
    """CONFLICT records: pairs of instructions of one core that use the same bank of a lane and that nothing keeps from
    running at the same time (by their waits, rule R1).

    program: INSTRUCTION records. runs: which of them run (bool, one per instruction; default all). owners: for each
    result and operand [instructions, 1 + OPERANDS] the number of the buffer in which it lies, if that should have its
    banks to itself, otherwise 0: then only pairs of two different numbers are listed (default: all pairs). A tensor
    counts for all banks from its first byte to its last.
    """
    kept = np.arange(len(program)) if runs is None else np.flatnonzero(runs)
    found = [np.zeros(0, CONFLICT)]
    for core in np.unique(program["core"]).tolist():
        rows = kept[program["core"][kept] == core]
        accesses = _accesses(program, rows, chip, owners)
        for engine in Engine:
            mine, others = (accesses[accesses.engine == one] for one in (engine, 1 - engine))
            found += list(_conflicts(mine, others))
    listed = np.concatenate(found)
    listed = listed[np.lexsort((listed["bank"], listed["other"], listed["instruction"]))]
    _, first = np.unique(listed["instruction"] * len(program) + listed["other"], return_index=True)
    return np.asarray(listed[first])


def _accesses(program: np.ndarray, rows: Array, chip: Chip, owners: Array | None) -> _Accesses:
    part = program[rows]
    wait = np.zeros(len(part), np.int64)
    for engine in Engine:
        mine = part["engine"] == engine
        wait[mine] = np.maximum.accumulate(part["wait"][mine])
    tensors = tensors_of(part)
    at, slot = np.nonzero(tensors["space"] == Space.LOCAL)
    used = tensors[at, slot]
    start, end = extents(used, chip.lanes)
    low = used["lane"].astype(np.int64)
    high = low + used["shape"][:, 1]
    wraps = high > chip.lanes
    lanes = np.stack([np.where(wraps, 0, low), np.where(wraps, chip.lanes, high)], axis=1)
    banks = np.stack([start // chip.bank_bytes, -(-end // chip.bank_bytes)], axis=1)
    owner = np.arange(1, len(at) + 1) if owners is None else owners[rows[at], slot]
    return _Accesses(
        rows[at], part["engine"][at], part["id"][at].astype(np.int64), wait[at], lanes, banks, owner
    )


def _conflicts(mine: _Accesses, others: _Accesses) -> Iterator[np.ndarray]:
    """Conflicts of one engine's accesses with those that the other engine has been given before."""
    first = np.searchsorted(others.id, mine.wait, side="right")
    last = np.searchsorted(others.instruction, mine.instruction)
    count = np.maximum(last - first, 0)
    total = np.cumsum(count)
    begin = 0
    while begin < len(count):
        before = int(total[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(total, before + _PAIRS_AT_ONCE, side="right")))
        rows = np.repeat(np.arange(begin, end), count[begin:end])
        inside = np.arange(len(rows)) - np.repeat(
            total[begin:end] - count[begin:end] - before, count[begin:end]
        )
        yield _shared(mine[rows], others[first[rows] + inside])
        begin = end


def _shared(mine: _Accesses, others: _Accesses) -> np.ndarray:
    """The pairs, entry by entry, that use the same bank of a lane."""
    lanes = np.maximum(mine.lanes[:, 0], others.lanes[:, 0]) < np.minimum(
        mine.lanes[:, 1], others.lanes[:, 1]
    )
    bank = np.maximum(mine.banks[:, 0], others.banks[:, 0])
    banks = bank < np.minimum(mine.banks[:, 1], others.banks[:, 1])
    hit = lanes & banks & (mine.owner != others.owner)
    found = np.zeros(int(hit.sum()), CONFLICT)
    found["instruction"], found["other"], found["bank"] = (
        mine.instruction[hit],
        others.instruction[hit],
        bank[hit],
    )
    return found
