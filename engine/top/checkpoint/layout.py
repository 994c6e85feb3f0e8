"""Names and shapes of the tensors that a checkpoint of a dense decoder-only model must hold."""

from __future__ import annotations

from engine.top.checkpoint.config import ModelConfig
from engine.top.checkpoint.tensors import EMBEDDING, LM_HEAD

FINAL_NORM = "model.norm.weight"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its Hugging Face name; linears are [outputs, inputs].

    `lm_head.weight` is left out when the embedding serves as the head.
    """
    hidden = config.hidden_size
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    block = block_tensors(config)
    for layer in range(config.layers):
        tensors |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    tensors[FINAL_NORM] = (hidden,)
    if not config.tie_word_embeddings:
        tensors[LM_HEAD] = (config.vocab_size, hidden)
    return tensors


def block_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of one decoder layer, named within `model.layers.<i>.`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    norms = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": (config.head_dim,), "self_attn.k_norm": (config.head_dim,)}
    linears = {
        "self_attn.q_proj": ((q_width, hidden), config.qkv_bias),
        "self_attn.k_proj": ((kv_width, hidden), config.qkv_bias),
        "self_attn.v_proj": ((kv_width, hidden), config.qkv_bias),
        "self_attn.o_proj": ((hidden, q_width), config.output_bias),
        "mlp.gate_proj": ((inner, hidden), config.mlp_bias),
        "mlp.up_proj": ((inner, hidden), config.mlp_bias),
        "mlp.down_proj": ((hidden, inner), config.mlp_bias),
    }
    tensors: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in norms.items()}
    for name, (shape, has_bias) in linears.items():
        tensors[f"{name}.weight"] = shape
        if has_bias:
            tensors[f"{name}.bias"] = shape[:1]
    return tensors
