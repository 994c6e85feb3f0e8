"""Which bytes the operands of instructions cover, in an arena or in every lane of local memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import BITS
from engine.tpu.isa import DTYPES, INSTRUCTION, OPERAND, OPERANDS, Space

Array = NDArray[Any]

_WIDTHS = np.array([BITS[name] // 8 for name in DTYPES], np.int64)
_TENSORS = np.dtype((OPERAND, 1 + OPERANDS))
_TENSORS_OF = np.dtype(
    {
        "names": ["tensors"],
        "formats": [_TENSORS],
        "offsets": [INSTRUCTION.itemsize - _TENSORS.itemsize],
        "itemsize": INSTRUCTION.itemsize,
    }
)
assert INSTRUCTION.names is not None
assert INSTRUCTION.names[-2:] == ("result", "operands")


def tensors_of(program: Array) -> Array:
    """Result and operands of every instruction: OPERAND records [instructions, 1 + OPERANDS]."""
    return np.asarray(np.ascontiguousarray(program).view(_TENSORS_OF)["tensors"])


def extents(operands: Array, lanes: int = 1) -> tuple[Array, Array]:
    """First byte of each operand and the one behind its last.

    operands: OPERAND records. lanes: of the chip; in DDR they do not matter.
    """
    start = operands["address"]
    last = ((_planes(operands, lanes) - 1) * operands["stride"]).sum(axis=1)
    return start, start + (last + 1) * _WIDTHS[operands["dtype"]]


def byte_runs(operand: np.void, lanes: int = 1) -> tuple[Array, int]:
    """First byte of each run of consecutive bytes of an operand, and the length of them all. lanes: see `extents`."""
    shape = _planes(np.array([operand]), lanes)[0].tolist()
    width = int(_WIDTHS[operand["dtype"]])
    dims = sorted(
        (stride * width, length)
        for stride, length in zip(operand["stride"].tolist(), shape, strict=True)
        if length > 1 and stride
    )
    length = width
    outer: list[tuple[int, int]] = []
    for step, count in dims:
        if step == length and not outer:
            length *= count
        else:
            outer.append((step, count))
    starts = np.array([int(operand["address"])], np.int64)
    for step, count in outer:
        starts = (starts[:, None] + step * np.arange(count)).reshape(-1)
    return starts, length


def _planes(operands: Array, lanes: int) -> Array:
    """Shapes in DDR; in local memory with the number of channel blocks in the place of the channels."""
    shape = operands["shape"].astype(np.int64)
    local = operands["space"] == Space.LOCAL
    shape[local, 1] = -(-(operands["lane"][local] + shape[local, 1]) // lanes)
    return shape
