"""top.MatMul."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_matmul
from engine.snapshot import OpRecord


class MatMul(TopOp):
    """output = input x right (+ bias). input [..., M, K]; right [K, N], or [N, K] with right_transpose; bias [N].

    In `lm_head` the weight [V, H] is the left operand and the hidden state [1, H] the right one, transposed.
    """

    operands = ("input", "right", "bias?")
    attributes = {"right_transpose": bool}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_matmul(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        left, right, bias = inputs
        assert left is not None
        assert right is not None
        output = left @ (right.T if op.attributes["right_transpose"] else right)
        return (output if bias is None else output + bias.reshape(-1),)
