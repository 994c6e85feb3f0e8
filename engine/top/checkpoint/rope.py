"""Rotary position embedding: what a config asks for, and the cos/sin tables that the modules gather from."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log, pi

import numpy as np

from engine.errors import UserError
from engine.top.checkpoint.fields import Fields

ROPE_KINDS = ("default", "linear", "llama3", "yarn")
"""Supported values of `rope_type`."""

_KEYS_OF_OTHER_KINDS = ("mrope_section", "mrope_interleaved", "short_factor", "long_factor")


@dataclass(frozen=True)
class RopeConfig:
    """Parameters of one rotary embedding, named as in Hugging Face's `rope_parameters`.

    All `head_dim` elements of a head rotate, in pairs half a head apart. `factor` is used by linear, llama3
    and yarn, `original_max_positions` by llama3 and yarn, the two `_freq_factor` by llama3, the rest by yarn.
    """

    kind: str
    theta: float
    head_dim: int
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


def read_rope(config: Fields, head_dim: int, max_positions: int) -> RopeConfig:
    """The rotary embedding of a config.json, in its older and newer spelling.

    Older files say `rope_theta` and `rope_scaling` (with `type` or `rope_type`), newer `rope_parameters`; of
    several the one that transformers takes is taken. Raises UserError for an unsupported kind, a
    partial or multi-section rotation, or bad values.
    """
    older = config.values.get("rope_scaling") not in (None, {})
    rope = config.nested("rope_scaling" if older else "rope_parameters")
    kind = _kind(rope)
    _refuse_other_rotations(config, rope)
    theta = (rope if rope.has("rope_theta") else config).number("rope_theta")
    plain = RopeConfig(kind, theta, head_dim)
    if kind == "default":
        return plain
    if kind == "linear":
        return RopeConfig(kind, theta, head_dim, factor=rope.number("factor"))
    owner = next((place for place in (config, rope) if place.has("original_max_position_embeddings")), None)
    original = owner.integer("original_max_position_embeddings") if owner else max_positions
    if kind == "llama3":
        return _llama3(plain, rope, original)
    return _yarn(plain, rope, original, max_positions)


def rope_tables(rope: RopeConfig, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin) of positions 0..positions-1, each float32 [positions, head_dim], both halves of a row equal.

    Angles are float32 products of position and inverse frequency, as in transformers; the attention factor of
    yarn is multiplied in.
    """
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse_frequencies(rope)
    scale = np.float32(rope.attention_factor)
    cos, sin = (np.tile(turn(angles) * scale, 2) for turn in (np.cos, np.sin))
    return cos, sin


def inverse_frequencies(rope: RopeConfig) -> np.ndarray:
    """Radians per position of each rotating pair, float32 [head_dim / 2]. Source: transformers' RoPE."""
    exponents = np.arange(0, rope.head_dim, 2, dtype=np.float32) / np.float32(rope.head_dim)
    periods = np.power(np.float64(rope.theta), exponents.astype(np.float64)).astype(np.float32)
    frequencies = (1 / periods).astype(np.float32)
    if rope.kind == "linear":
        return frequencies / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, frequencies)
    if rope.kind == "yarn":
        return _yarn_frequencies(rope, periods)
    return frequencies


def _llama3_frequencies(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """Short wavelengths stay, long ones are divided by the factor, those between are blended."""
    original, low, high = (
        np.float32(v) for v in (rope.original_max_positions, rope.low_freq_factor, rope.high_freq_factor)
    )
    wavelengths = np.float32(2 * pi) / frequencies
    slowed = frequencies / np.float32(rope.factor)
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / np.float32(rope.factor) + blend * frequencies
    medium = (wavelengths >= original / high) & (wavelengths <= original / low)
    outer: np.ndarray = np.where(wavelengths > original / low, slowed, frequencies)
    return np.where(medium, blended, outer)


def _yarn_frequencies(rope: RopeConfig, periods: np.ndarray) -> np.ndarray:
    """Pairs that turn often within the original context stay, rare ones are divided, a ramp lies between."""
    low, high = (_pair_turning(rope, turns) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    width = high - low or 0.001
    ramp = np.arange(rope.head_dim // 2, dtype=np.float32) - np.float32(low)
    kept = 1 - np.clip(ramp / np.float32(width), 0, 1)
    divided: np.ndarray = 1 / (np.float32(rope.factor) * periods)
    frequencies: np.ndarray = divided * (1 - kept) + (1 / periods) * kept
    return frequencies


def _pair_turning(rope: RopeConfig, turns: float) -> float:
    """Index, not rounded, of the pair that makes `turns` full turns over the original context."""
    return rope.head_dim * log(rope.original_max_positions / (turns * 2 * pi)) / (2 * log(rope.theta))


def _kind(rope: Fields) -> str:
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise UserError(f"{rope.where}: RoPE by layer type is not supported; accepted: one for all layers")
    key = next((name for name in ("rope_type", "type") if rope.has(name)), None)
    kind = rope.text(key) if key else "default"
    if key and kind not in ROPE_KINDS:
        raise rope.refusal(key, f"this RoPE kind is not supported; supported: {', '.join(ROPE_KINDS)}")
    return kind


def _refuse_other_rotations(config: Fields, rope: Fields) -> None:
    for key in _KEYS_OF_OTHER_KINDS:
        if rope.has(key):
            raise rope.refusal(key, f"this RoPE is not supported; supported kinds: {', '.join(ROPE_KINDS)}")
    for place in (config, rope):
        if place.has("partial_rotary_factor") and place.number("partial_rotary_factor") != 1:
            raise place.refusal("partial_rotary_factor", "only 1 (all of a head rotates) is supported")


def _llama3(plain: RopeConfig, rope: Fields, original: int) -> RopeConfig:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.refusal("high_freq_factor", f"it must be above 'low_freq_factor', {low:g}")
    return RopeConfig(
        plain.kind,
        plain.theta,
        plain.head_dim,
        factor=rope.number("factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(plain: RopeConfig, rope: Fields, original: int, max_positions: int) -> RopeConfig:
    if plain.theta <= 1:
        raise UserError(f"{rope.where}: yarn needs a 'rope_theta' above 1, found {plain.theta:g}")
    factor = rope.number("factor") if rope.has("factor") else max_positions / original
    return RopeConfig(
        plain.kind,
        plain.theta,
        plain.head_dim,
        factor=factor,
        original_max_positions=original,
        beta_fast=rope.optional_number("beta_fast") or 32.0,
        beta_slow=rope.optional_number("beta_slow") or 1.0,
        truncate=rope.flag("truncate", absent=True),
        attention_factor=_yarn_attention_factor(rope, factor),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    """What cos and sin are multiplied by (YaRN paper, section 3.4, and DeepSeek's mscale pair)."""
    given = rope.optional_number("attention_factor")
    if given is not None:
        return given

    def growth(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * log(factor) + 1

    over, under = rope.values.get("mscale"), rope.values.get("mscale_all_dim")
    if not over or not under:
        return growth(1.0)
    return growth(rope.number("mscale")) / growth(rope.number("mscale_all_dim"))
