"""tpu.FAttention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import UserError
from engine.op import TpuOp
from engine.snapshot import OpRecord
from engine.top.ops import attention as top
from engine.tpu.attention_blocks import attention_blocks
from engine.tpu.attention_kernel import AttentionKernel, attention_shape
from engine.tpu.chip import Chip
from engine.tpu.cores import CoreSplit, Range, even_split
from engine.tpu.emit import Emitter
from engine.tpu.numerics import round_to


class FAttention(TpuOp, top.FAttention):
    """Attention with an online softmax (see top.FAttention for operands and masks).

    Scores, maximum and sum are f32; exponentials are rounded to the half type before they meet the values; the
    output is divided by the sum in f32 and rounded once.
    """

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
        k, v = top.filled_rows(op, k, v, history)
        queries = (
            q.reshape(mq, kv_heads, groups, dim).transpose(1, 2, 0, 3).reshape(kv_heads, groups * mq, dim)
        )
        scores = queries @ k[0].transpose(1, 2, 0)
        scores *= np.float32(a["scale"])
        added = top.attention_scores_mask(op, mask, history)
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
        _require_one_batch(op)
        AttentionKernel(op, emit).run()

    @classmethod
    def core_split(cls, op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
        """KV heads with their query heads; under the small causal mask query tiles, dealt out in turn, because later
        tiles see more keys (R51)."""
        shape = op.result_types[0].shape
        if not op.attributes["mask_size"]:
            return even_split(shape[2], 2, cores, _columns_of_kv_head(op))
        rows = attention_blocks(chip, attention_shape(op)).rows
        parts = tuple((start, min(rows, shape[1] - start)) for start in range(0, shape[1], rows))
        return CoreSplit(1, parts) if len(parts) > 1 else None

    @classmethod
    def kernel_parts(cls, op: OpRecord, emit: Emitter, split: CoreSplit) -> None:
        _require_one_batch(op)
        if split.dim == 1:
            kernel = AttentionKernel(op, emit)
            _require_tiles(op, kernel, split.parts)
            kernel.run(tiles=split.parts)
            return
        unit = _columns_of_kv_head(op)
        if split.dim != 2 or any(start % unit or length % unit for start, length in split.parts):
            raise ValueError(
                f"{op.location}: attention is cut along rows (1) or whole KV heads (2, {unit} columns each), "
                f"not along {split.dim} into {[list(part) for part in split.parts]}"
            )
        for start, length in split.parts:
            emit.sync()
            AttentionKernel(op, emit, _most_kv_heads(op)).run(heads=(start // unit, length // unit))


def _require_one_batch(op: OpRecord) -> None:
    batch = op.attributes["batch"]
    if batch != 1:
        raise UserError(
            f"{op.location}: attention over a batch of {batch} has no kernel; compile with batch 1"
        )


def _require_tiles(op: OpRecord, kernel: AttentionKernel, parts: Sequence[Range]) -> None:
    """Raise ValueError for rows that are no query tiles: one that is too long overruns its buffers."""
    foreign = [list(part) for part in parts if part not in kernel.tiles]
    if foreign:
        raise ValueError(
            f"{op.location}: rows {foreign[0]} are no query tile; tiles begin every {kernel.blocks.rows} rows"
        )


def _columns_of_kv_head(op: OpRecord) -> int:
    """Columns of the result that depend on one KV head."""
    return int(op.attributes["q_head"] // op.attributes["kv_head"] * op.attributes["dim"])


def _most_kv_heads(op: OpRecord) -> int:
    """KV heads of the core that has most of them: it decides the blocks of all cores."""
    longest = max(length for _, length in op.attributes["core_split"])
    return int(longest // _columns_of_kv_head(op))
