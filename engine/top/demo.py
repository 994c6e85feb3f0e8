"""The bundled demo: a small checkpoint made here, and the architecture of a known model. Nothing is downloaded.

The checkpoint has the structure of a real one (Llama block, grouped-query attention, byte-level tokenizer, bf16) and
seeded random layers. Its lm_head is solved so that the model knows one sentence: each word's final state is mapped to
the next word, anything else to the first. What the compiled program generates therefore shows whether it computes
right.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from engine.top.checkpoint.config import load_config
from engine.top.checkpoint.layout import expected_tensors
from engine.top.checkpoint.tensors import EMBEDDING, LM_HEAD

VERSION = 1
"""Part of the folder's name: raise it when the contents change."""

SENTENCE = (
    "Hello from tpuscope: this tiny demo model knows only one sentence, which its compiled program recites on the"
    " simulator."
)
"""What the model continues any prompt with. No word may occur twice: the next word depends on the last one alone."""

_BOS, _EOS = 0, 1
_SPECIAL = ("<s>", "</s>")
_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _INTERMEDIATE, _POSITIONS = 256, 4, 8, 4, 768, 1024
_BRANCH = 0.02
"""How much of a layer's input the random attention and MLP add to it: enough to be computed, too little to forget."""

QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "bos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""Architecture of Qwen3-0.6B, from its published config.json."""


@dataclass(frozen=True)
class DemoModel:
    """One entry of the demo. path: what to open. about: one line for a list."""

    title: str
    path: Path
    about: str


def demo_models(folder: Path) -> tuple[DemoModel, ...]:
    """The demo's entries below `folder`, written there unless they are there already.

    Each is written whole or not at all, also when several processes ask at once. Raises UserError when the folder
    cannot be written.
    """
    checkpoint = _once(folder / f"demo-{VERSION}" / "tpuscope-demo", _write_checkpoint)
    architecture = _once(folder / f"demo-{VERSION}" / "Qwen3-0.6B", _write_architecture)
    return (
        DemoModel("tpuscope-demo", checkpoint, "3 M parameters made by tpuscope; generates text"),
        DemoModel("Qwen3-0.6B", architecture, "architecture only: everything but numbers"),
    )


def _once(path: Path, write: Callable[[Path], None]) -> Path:
    if path.is_dir():
        return path
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        draft.mkdir(parents=True)
        write(draft)
        _publish(draft, path)
    except OSError as error:
        raise UserError(
            f"the demo cannot be written to {path}: {error}; set XDG_CACHE_HOME to a folder that can be, or open a "
            "model of your own: tpuscope MODEL"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _publish(draft: Path, path: Path) -> None:
    try:
        draft.rename(path)
    except OSError:
        # another process was first
        if not path.is_dir():
            raise


def _write_architecture(folder: Path) -> None:
    _write_json(folder / "config.json", QWEN3_0_6B)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


# -- the checkpoint --------------------------------------------------------------------------------------------------


def _write_checkpoint(folder: Path) -> None:
    from safetensors.numpy import save_file

    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _SPECIAL[_BOS],
            "eos_token": _SPECIAL[_EOS],
        },
    )
    _write_json(folder / "config.json", _config(tokenizer.get_vocab_size()))
    tensors = _tensors(folder, tokenizer.encode(SENTENCE).ids)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _config(vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
        "dtype": "bfloat16",
        "head_dim": _HIDDEN // _HEADS,
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "max_position_embeddings": _POSITIONS,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": _LAYERS,
        "num_key_value_heads": _KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "vocab_size": vocabulary,
    }


def _tokenizer() -> Any:
    """Byte-level Unigram: every byte is a token, and so is each word of the sentence."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = [piece for piece, _ in level.pre_tokenize_str(SENTENCE) if len(piece) > 1]
    pieces = [*((token, 0.0) for token in _SPECIAL), *((byte, -10.0) for byte in sorted(level.alphabet()))]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((word, -1.0) for word in words)], unk_id=_BOS))
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    return tokenizer


def _tensors(folder: Path, sentence: list[int]) -> dict[str, NDArray[Any]]:
    """All tensors of the checkpoint in bf16."""
    random = np.random.default_rng(VERSION)
    shapes = expected_tensors(load_config(folder))
    found = {name: _layer_weight(random, name, shape) for name, shape in shapes.items()}
    found[LM_HEAD] = _solved_head(found[EMBEDDING], sentence)
    return {name: value.astype(ml_dtypes.bfloat16) for name, value in found.items()}


def _layer_weight(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = random.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        return np.ones(shape, np.float32) + (values / np.float32(16) if "layers" in name else 0)
    if name == EMBEDDING:
        return values
    scale = _BRANCH if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return values * np.float32(scale / np.sqrt(shape[1]))


def _solved_head(embedding: NDArray[np.float32], sentence: list[int]) -> NDArray[np.float32]:
    """Rows that give the right next token a logit of 8 and the others 0, for printable bytes and the sentence.

    The state behind the last norm is close to the token's embedding, normalised, so that the least-squares solution on
    the embeddings serves.
    """
    vocabulary, hidden = embedding.shape
    follows = dict.fromkeys(_starters(vocabulary, sentence), sentence[0])
    follows |= dict(zip(sentence, [*sentence[1:], _EOS], strict=True))
    contexts = sorted(follows)
    states = embedding[contexts].astype(np.float64)
    states /= np.sqrt((states**2).mean(axis=1, keepdims=True))
    wanted = np.zeros((len(contexts), vocabulary))
    wanted[np.arange(len(contexts)), [follows[token] for token in contexts]] = 8.0
    # fewer equations than columns, so that they are met exactly
    assert len(contexts) < hidden
    head: NDArray[Any] = np.linalg.lstsq(states, wanted, rcond=None)[0].T
    # safetensors writes an array's memory as it lies
    return np.ascontiguousarray(head, np.float32)


def _starters(vocabulary: int, sentence: list[int]) -> list[int]:
    """Tokens after which the sentence starts: the special ones and printable ASCII."""
    printable = range(ord("!"), ord("~") + 1)
    # the byte-level alphabet in order starts with printable ASCII, behind the special tokens
    return [_BOS, *range(len(_SPECIAL), len(_SPECIAL) + len(printable))]
