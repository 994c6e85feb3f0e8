"""top.TopK and top.Sample: from logits to tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_sample, verify_top_k
from engine.snapshot import OpRecord


def top_k(logits: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest values of each row, largest first, ties by lowest index; int32."""
    if count == 1:
        return np.asarray(logits.argmax(axis=-1).astype(np.int32)[..., None])
    order = np.argsort(-logits, axis=-1, kind="stable")
    return np.asarray(order[..., :count].astype(np.int32))


def sample_candidates(
    logits: np.ndarray,
    ids: np.ndarray,
    *,
    penalty: float,
    temperature: float,
    keep: int,
    top_p: float,
    count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates of one row of logits [1, V], in the order of transformers' logits processors.

    Repetition penalty over the tokens in `ids` (negative ids are padding), temperature, the `keep` most likely (0: all
    `count`), then the smallest set whose probability reaches top_p; the rest get probability 0. Returns probabilities
    [1, count] float32 that sum to 1 and tokens [1, count] int32.
    """
    scores = logits[0].astype(np.float32).copy()
    seen = np.unique(ids[ids >= 0])
    scores[seen] = np.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
    scores /= np.float32(max(temperature, 1e-5))
    tokens = top_k(scores[None], count)[0]
    kept = count if keep <= 0 else min(keep, count)
    weights = np.exp(scores[tokens] - scores[tokens[0]])
    weights[kept:] = 0
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    weights[before >= top_p] = 0
    return (weights / weights.sum())[None].astype(np.float32), tokens[None]


class TopK(TopOp):
    """Indices of the K largest values of the last axis, largest first. logits [1, V] -> [1, K] si32."""

    operands = ("logits",)
    attributes = {"K": int}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_top_k(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (logits,) = inputs
        assert logits is not None
        return (top_k(logits, op.attributes["K"]),)


class Sample(TopOp):
    """Candidate tokens with probabilities after repetition penalty, temperature, top-k and top-p.

    logits [1, V] f32; input_ids [1, S] si32 (negative: padding); penalty, temperature, top_p [1] f32; top_k [1] si32 ->
    probabilities [1, count] f32, tokens [1, count] si32.
    """

    operands = ("logits", "input_ids", "penalty", "temperature", "top_k", "top_p")
    results = ("probabilities", "tokens")

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_sample(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        logits, ids, penalty, temperature, keep, top_p = inputs
        assert logits is not None
        assert ids is not None
        return sample_candidates(
            logits,
            ids,
            penalty=_scalar(penalty),
            temperature=_scalar(temperature),
            keep=int(_scalar(keep)),
            top_p=_scalar(top_p),
            count=op.result_types[0].shape[-1],
        )


def _scalar(x: np.ndarray | None) -> float:
    assert x is not None
    return float(x.reshape(-1)[0])
