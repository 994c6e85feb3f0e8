"""top.RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_rms_norm
from engine.snapshot import OpRecord


def inverse_rms(x: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(mean(x^2) + eps) of every row, float32 [..., 1]."""
    if x.size == x.shape[-1]:
        squares = np.dot(x.reshape(-1), x.reshape(-1))  # a single row, as in decode
    else:
        squares = np.einsum("...i,...i->...", x, x)[..., None]
    return np.asarray(np.float32(1.0) / np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(eps)))


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * gamma over the last axis, in float32."""
    return np.asarray(x * inverse_rms(x, eps) * gamma.reshape(-1))


class RMSNorm(TopOp):
    """output = input / sqrt(mean(input^2) + eps) * gamma over the last axis. input [..., C], gamma C elements."""

    operands = ("input", "gamma")
    attributes = {"eps": float}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_rms_norm(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        x, gamma = inputs
        assert x is not None
        assert gamma is not None
        return (rms_norm(x, gamma, op.attributes["eps"]),)
