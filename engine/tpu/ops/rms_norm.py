"""tpu.RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_rms_norm
from engine.snapshot import OpRecord
from engine.tpu.numerics import round_to


class RMSNorm(TpuOp):
    """output = round(input / sqrt(mean(input^2) + eps)) * gamma over the last axis, statistics in f32.

    input [..., C]; gamma C elements. The normalised value is rounded before it is multiplied by gamma, as the chip does.
    """

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
        dtype = op.result_types[0].dtype
        mean = np.einsum("...i,...i->...", x, x) / np.float32(x.shape[-1])
        scale = np.float32(1.0) / np.sqrt(mean + np.float32(op.attributes["eps"]))
        return (round_to(round_to(x * scale[..., None], dtype) * gamma.reshape(-1), dtype),)
