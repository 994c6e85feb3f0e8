"""A small architecture with a layer group that is cut into several slices, for tests of several cores."""

from __future__ import annotations

SMALL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "vocab_size": 512,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""At 1024 rows on bm1688 the last of its three groups has eight slices, the others have one."""
