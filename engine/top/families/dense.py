"""Dense decoder-only models: llama, mistral, qwen2, qwen3.

They differ in facts that the config states (biases of q, k, v and o, norms of q and k, head size), not in structure.
"""

from __future__ import annotations

from engine import mlir
from engine.options import CompileOptions
from engine.stages import ModuleSpec, Stage
from engine.top.builder import LAYER, TopBuilder
from engine.top.checkpoint.config import ModelConfig
from engine.top.checkpoint.layout import FINAL_NORM


def build_block(spec: ModuleSpec, config: ModelConfig, options: CompileOptions) -> mlir.Module:
    """One Transformer layer for any stage: `block_i`, `block_kv_i` (with history) or `block_cache_i` (decode)."""
    b = TopBuilder(spec)
    states = b.inputs["input_states"]
    attended, k, v = _attention(b, states, config, options)
    states = b.add(states, attended, f"{LAYER}attention_residual")
    normed = b.rms_norm(states, f"{LAYER}post_attention_layernorm", config.rms_norm_eps)
    fed = b.mlp(normed, f"{LAYER}mlp", config.intermediate_size, bias=config.mlp_bias)
    states = b.add(states, fed, f"{LAYER}mlp_residual")
    if spec.last:
        states = b.rms_norm(states, FINAL_NORM.removesuffix(".weight"), config.rms_norm_eps)
    return b.finish([states, k, v])


def _attention(
    b: TopBuilder, states: mlir.Value, config: ModelConfig, options: CompileOptions
) -> tuple[mlir.Value, mlir.Value, mlir.Value]:
    """(output of o_proj, new keys, new values)."""
    name, d = f"{LAYER}self_attn", config.head_dim
    normed = b.rms_norm(states, f"{LAYER}input_layernorm", config.rms_norm_eps)
    q = _heads(b, normed, f"{name}.q_proj", config.heads, d, bias=config.qkv_bias)
    k = _heads(b, normed, f"{name}.k_proj", config.kv_heads, d, bias=config.qkv_bias)
    v = _heads(b, normed, f"{name}.v_proj", config.kv_heads, d, bias=config.qkv_bias)
    if config.qk_norm:
        q = b.rms_norm(q, f"{name}.q_norm", config.rms_norm_eps)
        k = b.rms_norm(k, f"{name}.k_norm", config.rms_norm_eps)
    positions = b.inputs["position_ids"]
    cos, sin = (
        b.gather(b.weight(f"@rope.{part}", (options.seq_length, 1, d)), positions, f"rope.{part}")
        for part in ("cos", "sin")
    )
    q = b.rope(q, sin, cos, f"{name}.q_rope")
    k = b.rope(k, sin, cos, f"{name}.k_rope")
    keys, values = k, v
    if b.spec.stage is not Stage.PREFILL:
        keys = b.concat([b.inputs["history_k"], k], 1, f"{name}.keys")
        values = b.concat([b.inputs["history_v"], v], 1, f"{name}.values")
    mask, mask_size = _mask(b, options)
    history_length = b.inputs.get("history_length", b.none)
    output = b.attention(
        q, keys, values, mask, history_length, f"{name}.attention", scale=d**-0.5, mask_size=mask_size
    )
    return b.linear(output, f"{name}.o_proj", config.hidden_size, bias=config.output_bias), k, v


def _heads(b: TopBuilder, x: mlir.Value, name: str, heads: int, d: int, *, bias: bool) -> mlir.Value:
    projected = b.linear(x, name, heads * d, bias=bias)
    return b.reshape(projected, (*b.shape(x)[:-1], heads, d), f"{name}.heads")


def _mask(b: TopBuilder, options: CompileOptions) -> tuple[mlir.Value, int]:
    """The mask operand and its size: an input (0), or the small causal mask kept as a weight."""
    if "attention_mask" in b.inputs:
        return b.inputs["attention_mask"], 0
    size = options.chip.mask_size
    return b.weight("@causal_mask", (size, size)), size
