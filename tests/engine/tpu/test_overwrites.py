"""Writes into reserved bytes: to the byte, and only by what must not write there."""

from __future__ import annotations

import numpy as np
import pytest

from engine.tpu.chip import chip
from engine.tpu.isa import Arena, Constant, Direction, Global, Local, Opcode, Stream
from engine.tpu.overwrites import Overwrite, Reserved, overwrites

CHIP = chip("bm1684x")
EVERY = np.arange(3)


def program() -> np.ndarray:
    """A fill of every second f32 from byte 64 on, a load there, and a store of four rows with gaps."""
    stream = Stream()
    odd = Local(64, "f32", (1, 64, 1, 8), (16, 16, 16, 2))
    rows = Global(Arena.IO, 256, "f32", (1, 4, 1, 8), (64, 16, 16, 1))
    stream.append(Opcode.COPY, odd, (Constant(0.0),), op=1, wait=0)
    stream.append(Opcode.TENSOR, odd, (rows,), op=1, wait=0, direction=Direction.LOAD)
    stream.append(Opcode.TENSOR, rows, (odd,), op=1, wait=0, direction=Direction.STORE)
    return stream.program()


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Reserved(None, 60, 68, EVERY, "x"), [(0, 64), (1, 64)]),
        (Reserved(None, 0, 64, EVERY, "before"), []),
        (Reserved(None, 68, 72, EVERY, "in a gap"), []),
        (Reserved(None, 68, 73, EVERY, "over a gap"), [(0, 72), (1, 72)]),
        (Reserved(None, 124, 200, EVERY, "behind"), []),
        (Reserved(None, 0, 999, np.array([1]), "from the load alone"), [(1, 64)]),
        (Reserved(Arena.IO, 320, 330, EVERY, "row 1"), [(2, 320)]),
        (Reserved(Arena.IO, 288, 320, EVERY, "between rows"), []),
        (Reserved(Arena.NEURON, 0, 999, EVERY, "another arena"), []),
    ],
    ids=lambda value: value.holds if isinstance(value, Reserved) else "",
)
def test_only_bytes_that_are_written_count(place: Reserved, expected: list[tuple[int, int]]) -> None:
    found = overwrites(program(), CHIP, [place])
    assert [(write.instruction, write.byte) for write in found] == expected
    assert all(write.reserved is place for write in found)


def test_what_does_not_run_writes_nothing() -> None:
    place = Reserved(None, 0, 999, EVERY, "x")
    found = overwrites(program(), CHIP, [place], np.array([False, True, True]))
    assert found == [Overwrite(1, 64, place)]


def test_a_place_says_what_it_holds_and_where() -> None:
    assert str(Reserved(Arena.IO, 4, 8, EVERY, "x")) == "x (bytes 4 to 7 of the io arena)"
    assert str(Reserved(None, 4, 8, EVERY, "x")) == "x (bytes 4 to 7 of local memory)"
