"""top.RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_rms_norm
from engine.snapshot import OpRecord


def rms_norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * gamma over the last axis, in float32."""
    mean = np.einsum("...i,...i->...", x, x) / np.float32(x.shape[-1])
    scale = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
    return np.asarray(x * scale[..., None] * gamma.reshape(-1))


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
