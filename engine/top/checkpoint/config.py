"""A model's architecture, read from the config.json of a Hugging Face checkpoint.

The JSON is read directly. Keys that it leaves out take the defaults of transformers' config class, which is
imported only then, because the import takes a second.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.top.checkpoint.fields import Fields, read_json_object
from engine.top.checkpoint.rope import RopeConfig, read_rope
from engine.top.checkpoint.tensors import has_weights, open_checkpoint

DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""Hugging Face's names of the dtypes that weights may be stored in, and ours."""


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of a dense decoder-only model.

    `family` selects the block template; `dtype` is how the weights are stored (bf16, f16 or f32); `qkv_bias`
    is for q, k and v, `output_bias` for o. Any of `eos_token_ids` ends generation. `source` is the file.
    """

    name: str
    source: Path
    model_type: str
    family: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    hidden_act: str
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


@dataclass(frozen=True)
class _Family:
    """How a family differs from the plain Llama block, and the further keys that its config class has.

    `eos` is the class's default end of sequence, kept here because it alone is not worth the import.
    """

    qkv_bias: bool = False
    qk_norm: bool = False
    derives_head_dim: bool = True
    keys: tuple[str, ...] = ()
    eos: tuple[int, ...] = ()


_FAMILIES = {
    "llama": _Family(keys=("attention_bias", "mlp_bias"), eos=(2,)),
    "mistral": _Family(keys=("sliding_window",), eos=(2,)),
    "qwen2": _Family(qkv_bias=True, keys=("use_sliding_window",)),
    "qwen3": _Family(
        qk_norm=True, derives_head_dim=False, keys=("head_dim", "attention_bias", "use_sliding_window")
    ),
}
_COMMON_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "tie_word_embeddings",
)
_ACTIVATIONS = {"silu": "silu", "swish": "silu"}
_CHANGES_THE_MODEL = (
    "attention_bias",
    "mlp_bias",
    "lm_head_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope_interleaved",
    "use_qk_norm",
)


def load_config(path: Path | str) -> ModelConfig:
    """Architecture of the checkpoint at `path`, a folder with a config.json or such a file itself.

    Raises UserError naming the file and key for anything missing, malformed, inconsistent or not supported.
    """
    file = _config_file(Path(path))
    raw = read_json_object(file)
    config = Fields(str(file), raw)
    model_type = _supported_model_type(config)
    _refuse_quantised(config)
    family = _FAMILIES[model_type]
    if absent := _absent(raw, family):
        defaults = _class_defaults(model_type)
        config = Fields(str(file), {key: defaults[key] for key in absent} | raw)
    _refuse_unread(config, family)
    _refuse_sliding_window(config, family)
    return _model(file, config, model_type)


def _model(file: Path, config: Fields, model_type: str) -> ModelConfig:
    family = _FAMILIES[model_type]
    generation = _generation_fields(file)
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads") if config.has("num_key_value_heads") else heads
    if heads % kv_heads:
        raise config.refusal("num_key_value_heads", f"it must divide 'num_attention_heads', {heads}")
    head_dim = _head_dim(config, family, heads)
    max_positions = config.integer("max_position_embeddings")
    attention_bias = "attention_bias" in family.keys and config.flag("attention_bias")
    return ModelConfig(
        name=_name(file),
        source=file,
        model_type=model_type,
        family=model_type,
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        layers=_layers(config),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        max_positions=max_positions,
        rms_norm_eps=config.number("rms_norm_eps"),
        hidden_act=_activation(config),
        rope=read_rope(config, head_dim, max_positions),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        dtype=_dtype(file, config),
        bos_token_id=_first(generation.token_ids("bos_token_id") or config.token_ids("bos_token_id")),
        eos_token_ids=_eos(generation, config, family),
        pad_token_id=_first(generation.token_ids("pad_token_id") or config.token_ids("pad_token_id")),
    )


def _config_file(path: Path) -> Path:
    if path.is_dir():
        path = path / "config.json"
    if not path.exists():
        raise UserError(
            f"{path}: no such file; a checkpoint folder, a config.json or a compiled file is needed"
        )
    if path.suffix != ".json":
        raise UserError(
            f"{path}: not a config and not a compiled file; a checkpoint folder, a .json file or a compiled file is "
            "accepted"
        )
    return path


def _supported_model_type(config: Fields) -> str:
    model_type = config.text("model_type")
    if model_type in _FAMILIES:
        return model_type
    inner = next((key for key in ("text_config", "llm_config", "language_config") if config.has(key)), None)
    wrapper = f" (it wraps a language model in '{inner}')" if inner else ""
    reason = f"this model is not supported{wrapper}; supported: {', '.join(_FAMILIES)}"
    raise config.refusal("model_type", reason)


def _refuse_quantised(config: Fields) -> None:
    for key in ("quantization_config", "compression_config"):
        if config.has(key):
            method = config.nested(key).values.get("quant_method", "unnamed")
            raise UserError(
                f"{config.where}: '{key}' says that the weights are quantised (quant_method {method!r}),"
                f" which is not supported; use a {', '.join(DTYPES.values())} checkpoint and --quantize"
            )


def _absent(raw: Mapping[str, Any], family: _Family) -> list[str]:
    absent = [key for key in (*_COMMON_KEYS, *family.keys) if key not in raw]
    scopes = (raw, raw.get("rope_scaling"), raw.get("rope_parameters"))
    if not any(isinstance(scope, dict) and scope.get("rope_theta") is not None for scope in scopes):
        absent.append("rope_theta")
    return absent


def _class_defaults(model_type: str) -> dict[str, Any]:
    """Defaults of the fields of transformers' config class, and its `rope_theta`."""
    # Without this the import prints that torch is not installed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    defaults = {field.name: field.default for field in fields(config_class) if field.default is not MISSING}
    return defaults | {"rope_theta": config_class.default_theta}


def _refuse_unread(config: Fields, family: _Family) -> None:
    """Refuse what other models compute and this family's block does not have."""
    for key in _CHANGES_THE_MODEL:
        harmless = key in family.keys or (key == "attention_bias" and family.qkv_bias)
        if not harmless and config.values.get(key):
            raise config.refusal(key, "models of this type do not have it; remove the key if it is unused")


def _refuse_sliding_window(config: Fields, family: _Family) -> None:
    advice = "sliding-window attention is not supported; supported: full attention"
    layer_types = config.values.get("layer_types") or []
    if not isinstance(layer_types, list):
        raise config.refusal("layer_types", "a list is needed")
    if any(kind != "full_attention" for kind in layer_types):
        raise config.refusal("layer_types", advice)
    if config.flag("use_sliding_window"):
        raise config.refusal("use_sliding_window", f"{advice} (false)")
    switched_off = "use_sliding_window" in config.values and "sliding_window" not in family.keys
    if config.has("sliding_window") and not switched_off:
        raise config.refusal("sliding_window", f"{advice} (null)")


def _layers(config: Fields) -> int:
    layers = config.integer("num_hidden_layers")
    listed_layers = len(config.values.get("layer_types") or [])
    if listed_layers not in (0, layers):
        raise config.refusal("num_hidden_layers", f"'layer_types' lists {listed_layers} layers")
    return layers


def _head_dim(config: Fields, family: _Family, heads: int) -> int:
    if config.has("head_dim") or not family.derives_head_dim:
        head_dim = config.integer("head_dim")
    else:
        hidden = config.integer("hidden_size")
        if hidden % heads:
            reason = f"without 'head_dim' it must be a multiple of 'num_attention_heads', {heads}"
            raise config.refusal("hidden_size", reason)
        head_dim = hidden // heads
    if head_dim % 2:
        raise UserError(f"{config.where}: 'head_dim' is {head_dim}; RoPE needs an even number")
    return head_dim


def _activation(config: Fields) -> str:
    name = config.text("hidden_act")
    if name not in _ACTIVATIONS:
        reason = f"this activation is not supported; supported: {', '.join(_ACTIVATIONS)}"
        raise config.refusal("hidden_act", reason)
    return _ACTIVATIONS[name]


def _dtype(file: Path, config: Fields) -> str:
    """As the config says; else as the first weight is stored; else transformers' default, float32."""
    key = next((name for name in ("dtype", "torch_dtype") if config.has(name)), None)
    if key is None:
        return open_checkpoint(file).dtype if has_weights(file) else "f32"
    dtype = DTYPES.get(config.text(key).removeprefix("torch."))
    if dtype is None:
        raise config.refusal(key, f"this weight type is not supported; supported: {', '.join(DTYPES)}")
    return dtype


def _generation_fields(file: Path) -> Fields:
    """The generation_config.json beside a folder's config.json; empty when there is none."""
    generation = file.parent / "generation_config.json"
    present = file.name == "config.json" and generation.exists()
    return Fields(str(generation), read_json_object(generation) if present else {})


def _eos(generation: Fields, config: Fields, family: _Family) -> tuple[int, ...]:
    if ids := generation.token_ids("eos_token_id") or config.token_ids("eos_token_id"):
        return ids
    return () if "eos_token_id" in config.values else family.eos


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None


def _name(file: Path) -> str:
    """The file's own name; for a config.json its folder's, or the model's when it lies in a hub cache."""
    if file.name != "config.json":
        return file.stem
    folder = file.absolute().parent
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--"):
        return folder.parents[1].name.split("--")[-1]
    return folder.name
