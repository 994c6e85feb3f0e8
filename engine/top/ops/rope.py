"""top.Rope."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_rope
from engine.snapshot import OpRecord


def rotate(x: np.ndarray, mode: str) -> np.ndarray:
    """The rotated partner of every element: (-second half, first half), or per pair (-odd, even)."""
    if mode == "contiguous_halves":
        half = x.shape[-1] // 2
        return np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return np.stack((-pairs[..., 1], pairs[..., 0]), axis=-1).reshape(x.shape)


class Rope(TopOp):
    """Rotary position embedding: output = input * cos + rotate(input) * sin.

    input [1, L, heads, d]; sin, cos [1, L, 1, d] -> [1, L, heads, d].
    """

    operands = ("input", "sin", "cos")
    attributes = {"rope_mode": str}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_rope(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        x, sin, cos = inputs
        assert x is not None
        return (x * cos + rotate(x, op.attributes["rope_mode"]) * sin,)
