"""Tiny random checkpoints of each supported family, written with NumPy: seeded, some 300 KB, no download."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.top.checkpoint.config import DTYPES, load_config
from engine.top.checkpoint.layout import EMBEDDING, LM_HEAD, expected_tensors

BOS, EOS, PAD = 0, 1, 2
"""Token ids of the three special tokens, "<s>", "</s>" and "<pad>"."""

VOCABULARY = 320
_NUMPY_DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_SILENT_KEYS = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "attention_bias": False},
}


@dataclass(frozen=True)
class _Sizes:
    layers: int = 2
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 128
    tie: bool = False


_SIZES = {
    "llama": _Sizes(),
    "mistral": _Sizes(kv_heads=4),
    "qwen2": _Sizes(layers=3, intermediate=144),
    "qwen3": _Sizes(head_dim=32, tie=True),
}
FAMILIES = tuple(_SIZES)


def write_tiny(
    path: Path,
    family: str,
    *,
    seed: int = 0,
    dtype: str = "bf16",
    rope: Mapping[str, Any] | None = None,
    tie: bool | None = None,
    shards: int = 1,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    intermediate: int | None = None,
    layers: int | None = None,
    vocab: int = VOCABULARY,
    max_positions: int = 512,
    older_spelling: bool = False,
    **config: Any,
) -> Path:
    """Write config.json, safetensors (with an index for several shards) and a tokenizer; return `path`.

    `family` is one of FAMILIES and sets what is None. `rope` holds the keys of `rope_parameters`;
    `older_spelling` writes `rope_theta`, `rope_scaling` and `torch_dtype` as transformers 4 did. Further
    keywords go into config.json, for example attention_bias=True.
    """
    sizes = _SIZES[family]
    stored = next(name for name, ours in DTYPES.items() if ours == dtype)
    rotary = {"rope_theta": 10000.0, "rope_type": "default"} | dict(rope or {})
    values = {
        "architectures": [f"{_CLASSES[family]}ForCausalLM"],
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate or sizes.intermediate,
        "num_hidden_layers": layers or sizes.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or sizes.kv_heads,
        "head_dim": head_dim or sizes.head_dim,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": sizes.tie if tie is None else tie,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        **_SILENT_KEYS[family],
        **(_older(rotary, stored) if older_spelling else {"rope_parameters": rotary, "dtype": stored}),
        **config,
    }
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "config.json", values)
    _write_weights(path, seed, _NUMPY_DTYPES[dtype], shards)
    _write_tokenizer(path, vocab)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write `value` as JSON; return the path."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    return path


def _older(rotary: dict[str, Any], stored: str) -> dict[str, Any]:
    scaling = {key: value for key, value in rotary.items() if key != "rope_theta"}
    plain = rotary["rope_type"] == "default"
    return {
        "rope_theta": rotary["rope_theta"],
        "rope_scaling": None if plain else scaling,
        "torch_dtype": stored,
    }


def _write_weights(path: Path, seed: int, dtype: Any, shards: int) -> None:
    random = np.random.default_rng(seed)
    shapes = expected_tensors(load_config(path))
    tensors = {name: _weight(random, name, shape).astype(dtype) for name, shape in shapes.items()}
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard, names in enumerate(np.array_split(list(tensors), shards), start=1):
        file = f"model-{shard:05d}-of-{shards:05d}.safetensors"
        save_file({str(name): tensors[name] for name in names}, path / file, metadata={"format": "pt"})
        weight_map |= {str(name): file for name in names}
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(path / "model.safetensors.index.json", index)


def _weight(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Scaled so that every activation, score and logit has a spread of about one to four."""
    values = random.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        return 1 + values / 8
    if name.endswith(".bias"):
        return values / 8
    if name in (EMBEDDING, LM_HEAD):
        return values * (4 / np.sqrt(shape[1]))
    return values / np.sqrt(shape[1])


def _write_tokenizer(path: Path, vocab: int) -> None:
    """Byte-level BPE whose ids are the special tokens, the 256 bytes, then pairs of lower-case letters."""
    tokens = ["<s>", "</s>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    pairs = [(first, second) for first in letters for second in letters][: max(0, vocab - len(tokens))]
    tokens += ["".join(pair) for pair in pairs]
    bpe = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[BOS],
        "eos_token": tokens[EOS],
        "pad_token": tokens[PAD],
    }
    write_json(path / "tokenizer_config.json", settings)
