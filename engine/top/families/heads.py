"""Modules outside of the blocks, the same for every family: embedding, lm_head, greedy and sample heads."""

from __future__ import annotations

from collections.abc import Callable

from engine import mlir
from engine.stages import Kind, ModuleSpec
from engine.top.builder import TopBuilder
from engine.top.checkpoint.config import ModelConfig
from engine.top.checkpoint.tensors import EMBEDDING, LM_HEAD


def build_embedding(spec: ModuleSpec, config: ModelConfig) -> mlir.Module:
    """Rows of the embedding table by input_ids."""
    b = TopBuilder(spec)
    table = b.weight(EMBEDDING, (config.vocab_size, config.hidden_size))
    return b.finish([b.gather(table, b.inputs["input_ids"], "embedding")])


def build_lm_head(spec: ModuleSpec, config: ModelConfig) -> mlir.Module:
    """Hidden state [1, H] to logits [1, V] or, where the spec says so, to the most likely token id [1, 1].

    The weight [V, H] is the left operand, as in TPU-MLIR: its rows spread over the lanes.
    """
    b = TopBuilder(spec)
    name = EMBEDDING if config.tie_word_embeddings else LM_HEAD
    weight = b.weight(name, (config.vocab_size, config.hidden_size))
    product = b.matmul(weight, b.inputs["hidden_states"], b.none, "lm_head", right_transpose=True)
    logits = b.reshape(product, (1, config.vocab_size), "logits")
    if spec.outputs[0].name == "logits":
        return b.finish([logits])
    return b.finish([b.top_k(logits, 1, "token_id")])


def build_greedy_head(spec: ModuleSpec, config: ModelConfig) -> mlir.Module:
    """Logits [1, V] to the most likely token id [1, 1]."""
    b = TopBuilder(spec)
    return b.finish([b.top_k(b.inputs["logits"], 1, "token_id")])


def build_sample_head(spec: ModuleSpec, config: ModelConfig) -> mlir.Module:
    """Logits and sampling parameters to candidate tokens with probabilities."""
    b = TopBuilder(spec)
    return b.finish(b.sample(list(b.inputs.values()), [t.top_type for t in spec.outputs], "candidates"))


BUILDERS: dict[Kind, Callable[[ModuleSpec, ModelConfig], mlir.Module]] = {
    Kind.EMBEDDING: build_embedding,
    Kind.LM_HEAD: build_lm_head,
    Kind.GREEDY_HEAD: build_greedy_head,
    Kind.SAMPLE_HEAD: build_sample_head,
}
