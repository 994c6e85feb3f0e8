"""top.SiLU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_elementwise
from engine.snapshot import OpRecord


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)) in float32, without overflow."""
    with np.errstate(over="ignore"):
        return np.asarray(x / (np.float32(1) + np.exp(-x)))


class SiLU(TopOp):
    """output = input * sigmoid(input). Same shape."""

    operands = ("input",)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (silu(x),)
