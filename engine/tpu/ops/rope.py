"""tpu.Rope."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_rope
from engine.snapshot import OpRecord
from engine.top.ops.rope import rotate
from engine.tpu.numerics import round_to


class Rope(TpuOp):
    """output = input * cos + rotate(input) * sin, every product and the sum rounded.

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
        dtype = op.result_types[0].dtype
        straight = round_to(x * cos, dtype)
        return (round_to(straight + round_to(rotate(x, op.attributes["rope_mode"]) * sin, dtype), dtype),)
