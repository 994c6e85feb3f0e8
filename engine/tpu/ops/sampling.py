"""tpu.TopK and tpu.Sample: they run on the host, as TPU-MLIR's TopK sits in a subnet of its own."""

from __future__ import annotations

from engine.op import TpuOp
from engine.top.ops import sampling as top


class TopK(TpuOp, top.TopK):
    """Indices of the K largest values of the last axis, largest first. logits [1, V] -> [1, K] si32."""

    host = True


class Sample(TpuOp, top.Sample):
    """Candidate tokens with probabilities (see top.Sample)."""

    host = True
