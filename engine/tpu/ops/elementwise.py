"""tpu.Add and tpu.Mul."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_elementwise
from engine.snapshot import OpRecord
from engine.tpu.numerics import round_to


class Add(TpuOp):
    """output = left + right, rounded. Same shape."""

    operands = ("left", "right")

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        left, right = inputs
        assert left is not None
        return (round_to(left + right, op.result_types[0].dtype),)


class Mul(TpuOp):
    """output = left * right, rounded. Same shape."""

    operands = ("left", "right")

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        left, right = inputs
        assert left is not None
        return (round_to(left * right, op.result_types[0].dtype),)
