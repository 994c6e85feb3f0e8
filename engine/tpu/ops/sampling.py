"""tpu.TopK and tpu.Sample: they run on the host, as TPU-MLIR's TopK sits in a subnet of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_sample, verify_top_k
from engine.snapshot import OpRecord
from engine.top.ops import sampling as top


class TopK(TpuOp):
    """Indices of the K largest values of the last axis, largest first. logits [1, V] -> [1, K] si32."""

    operands = ("logits",)
    attributes = {"K": int}
    host = True

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_top_k(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        return top.TopK.compute(op, inputs)


class Sample(TpuOp):
    """Candidate tokens with probabilities (see top.Sample)."""

    operands = ("logits", "input_ids", "penalty", "temperature", "top_k", "top_p")
    results = ("probabilities", "tokens")
    host = True

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_sample(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        return top.Sample.compute(op, inputs)
