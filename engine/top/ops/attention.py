"""top.FAttention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_attention
from engine.snapshot import OpRecord

MASKED = np.float32(-1e9)
"""Score of a key that a query must not see."""


def visible_keys(mq: int, mk: int, history_length: int) -> np.ndarray:
    """bool [mq, mk]: keys are mk - mq history rows, of which the first `history_length` hold data, then mq new rows,
    of which query i sees the first i + 1."""
    rows = mk - mq
    key = np.arange(mk)
    in_history = key < min(history_length, rows)
    new = (key >= rows)[None, :] & (key[None, :] - rows <= np.arange(mq)[:, None])
    return in_history[None, :] | new


def filled_rows(
    op: OpRecord, k: np.ndarray, v: np.ndarray, history: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values without the history rows that hold no data: masked, they would add nothing."""
    if history is None:
        return k, v
    rows = op.attributes["mk"] - op.attributes["mq"]
    length = _history_length(op, history)
    if length == rows:
        return k, v
    kept_k, kept_v = (np.concatenate((x[:, :length], x[:, rows:]), axis=1) for x in (k, v))
    return kept_k, kept_v


def attention_scores_mask(
    op: OpRecord, mask: np.ndarray | None, history: np.ndarray | None
) -> np.ndarray | None:
    """What is added to the scores [mq, keys] of `filled_rows`, from the mask operand or from the causal rule."""
    a = op.attributes
    if not a["mask_size"]:
        return None if mask is None else mask.reshape(a["mq"], a["mk"])
    return _causal_mask(a["mq"], _history_length(op, history))


def _history_length(op: OpRecord, history: np.ndarray | None) -> int:
    rows = op.attributes["mk"] - op.attributes["mq"]
    return int(rows if history is None else min(rows, history.reshape(-1)[0]))


@lru_cache(maxsize=4)
def _causal_mask(mq: int, history: int) -> np.ndarray:
    """The same for all layers of a run: [mq, history + mq], read-only."""
    mask = np.where(visible_keys(mq, history + mq, history), np.float32(0), MASKED)
    mask.flags.writeable = False
    return mask


class FAttention(TopOp):
    """Attention with an online softmax: softmax(queries keys^T * scale + mask) values, heads grouped (GQA).

    queries [batch, mq, q_head, d]; keys, values [batch, mk, kv_head, d] -> [batch, mq, q_head * d]. mask_size 0: mask
    [batch, 1, mq, mk] is added, or nothing. mask_size m: mask is the fixed causal [m, m] block used tile by tile; the
    last mq keys are the queries' own rows and the mk - mq before them are history, of which `history_length` [1] si32
    rows hold data (all, when absent).
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
        groups = a["q_head"] // a["kv_head"]
        k, v = filled_rows(op, k, v, history)
        # [kv, group * mq, d] x [kv, d, mk]: one matrix product per KV head
        queries = q[0].reshape(a["mq"], a["kv_head"], groups, a["dim"]).transpose(1, 2, 0, 3)
        scores = queries @ k[0].transpose(1, 2, 0)[:, None] * np.float32(a["scale"])
        added = attention_scores_mask(op, mask, history)
        if added is not None:
            scores = scores + added
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        output = weights @ v[0].transpose(1, 0, 2)[:, None]
        return (output.transpose(2, 0, 1, 3).reshape(a["batch"], a["mq"], -1),)
