"""tpu.FAttention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import UserError
from engine.op import TpuOp
from engine.shapes import verify_attention
from engine.snapshot import OpRecord
from engine.top.ops.attention import attention_scores_mask
from engine.tpu.attention_kernel import AttentionKernel
from engine.tpu.emit import Emitter
from engine.tpu.numerics import round_to


class FAttention(TpuOp):
    """Attention with an online softmax (see top.FAttention for operands and masks).

    Scores, maximum and sum are f32; exponentials are rounded to the half type before they meet the values; the
    output is divided by the sum in f32 and rounded once.
    """

    operands = ("queries", "keys", "values", "mask?", "history_length?")
    attributes = {
        "batch": int,
        "dim": int,
        "kv_head": int,
        "mask_size": int,
        "mk": int,
        "mq": int,
        "q_head": int,
        "scale": float,
    }

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_attention(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        q, k, v, mask, history = inputs
        assert q is not None
        assert k is not None
        assert v is not None
        a = op.attributes
        dtype = op.result_types[0].dtype
        groups = a["q_head"] // a["kv_head"]
        queries = q[0].reshape(a["mq"], a["kv_head"], groups, a["dim"]).transpose(1, 2, 0, 3)
        queries = queries.reshape(a["kv_head"], groups * a["mq"], a["dim"])
        scores = queries @ k[0].transpose(1, 2, 0) * np.float32(a["scale"])
        added = attention_scores_mask(op, mask, history)
        if added is not None:
            scores = (scores.reshape(a["kv_head"], groups, a["mq"], -1) + added).reshape(scores.shape)
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        total = weights.sum(axis=-1, keepdims=True)
        output = round_to(weights, dtype) @ v[0].transpose(1, 0, 2) / total
        output = output.reshape(a["kv_head"], groups, a["mq"], a["dim"]).transpose(2, 0, 1, 3)
        return (round_to(output.reshape(a["batch"], a["mq"], -1), dtype),)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Any head counts, lengths and float dtype. Raises UserError for a batch or what local memory cannot hold."""
        batch = op.attributes["batch"]
        if batch != 1:
            raise UserError(
                f"{op.location}: attention over a batch of {batch} has no kernel; compile with batch 1"
            )
        AttentionKernel(op, emit).run()
