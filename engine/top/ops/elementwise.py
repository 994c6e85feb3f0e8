"""top.Add and top.Mul."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_elementwise
from engine.snapshot import OpRecord


class Add(TopOp):
    """output = left + right. Same shape."""

    operands = ("left", "right")

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        left, right = inputs
        assert left is not None
        return (left + right,)


class Mul(TopOp):
    """output = left * right. Same shape."""

    operands = ("left", "right")

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        left, right = inputs
        assert left is not None
        return (left * right,)
