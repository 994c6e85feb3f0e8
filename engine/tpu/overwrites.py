"""Writes over bytes that hold something which is still to be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.tpu.chip import Chip
from engine.tpu.extents import byte_runs, extents
from engine.tpu.isa import Arena, Space

Array = NDArray[Any]


@dataclass(frozen=True)
class Reserved:
    """Bytes from `start` up to `end` (exclusive) that these instructions (indices) must not write.

    arena: None for local memory, where the bytes are those of every lane. holds: what lies there.
    """

    arena: Arena | None
    start: int
    end: int
    instructions: Array
    holds: str

    def __str__(self) -> str:
        where = "local memory" if self.arena is None else f"the {self.arena.name.lower()} arena"
        return f"{self.holds} (bytes {self.start} to {self.end - 1} of {where})"


@dataclass(frozen=True)
class Overwrite:
    """An instruction writes `byte` and maybe more of what is reserved."""

    instruction: int
    byte: int
    reserved: Reserved

    def __str__(self) -> str:
        return f"writes byte {self.byte} of {self.reserved}, which is still in use"


def overwrites(
    program: np.ndarray, chip: Chip, reserved: Iterable[Reserved], runs: Array | None = None
) -> list[Overwrite]:
    """Every instruction that writes into bytes reserved while it runs.

    program: INSTRUCTION records. runs: which of them run (bool; default all). Exact to the byte, whatever the strides.
    """
    result = program["result"]
    start, end = extents(result, chip.lanes)
    runs = np.ones(len(program), bool) if runs is None else runs
    writes: dict[Arena | None, Array] = {
        arena: runs & (result["space"] == Space.DDR) & (result["arena"] == arena) for arena in Arena
    }
    writes[None] = runs & (result["space"] == Space.LOCAL)
    found = []
    for place in reserved:
        rows = place.instructions[writes[place.arena][place.instructions]]
        near = rows[(start[rows] < place.end) & (end[rows] > place.start)]
        for row in near.tolist():
            byte = _first_byte(result[row], chip.lanes, place)
            if byte is not None:
                found.append(Overwrite(row, byte, place))
    return found


def _first_byte(operand: np.void, lanes: int, place: Reserved) -> int | None:
    """The first byte of the place that an operand covers."""
    starts, length = byte_runs(operand, lanes)
    inside = starts[(starts < place.end) & (starts + length > place.start)]
    return max(int(inside.min()), place.start) if inside.size else None
