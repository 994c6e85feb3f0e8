"""tpu.FAttention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import UserError
from engine.op import TpuOp
from engine.shapes import verify_attention
from engine.snapshot import OpRecord
from engine.top.ops.attention import attention_scores_mask, filled_rows
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
        mq, kv_heads, dim = a["mq"], a["kv_head"], a["dim"]
        groups = a["q_head"] // kv_heads
        k, v = filled_rows(op, k, v, history)
        queries = (
            q.reshape(mq, kv_heads, groups, dim).transpose(1, 2, 0, 3).reshape(kv_heads, groups * mq, dim)
        )
        scores = queries @ k[0].transpose(1, 2, 0)
        scores *= np.float32(a["scale"])
        added = attention_scores_mask(op, mask, history)
        if added is not None:
            by_query = scores.reshape(kv_heads, groups, mq, -1)
            by_query += added
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        total = weights.sum(axis=-1, keepdims=True)
        output = round_to(weights, dtype) @ v[0].transpose(1, 0, 2)
        output /= total
        output = output.reshape(kv_heads, groups, mq, dim).transpose(2, 0, 1, 3)
        return (round_to(output.reshape(a["batch"], mq, -1), dtype),)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Any head counts, lengths and float dtype. Raises UserError for a batch or what local memory cannot hold."""
        batch = op.attributes["batch"]
        if batch != 1:
            raise UserError(
                f"{op.location}: attention over a batch of {batch} has no kernel; compile with batch 1"
            )
        AttentionKernel(op, emit).run()
