from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import UserError
from engine.top.checkpoint.fields import Fields
from engine.top.checkpoint.rope import RopeConfig, inverse_frequencies, read_rope, rope_tables

GOLDEN = ["default", "linear", "llama3", "yarn", "yarn_mscale", "yarn_attention_factor"]


def read(config: dict[str, Any], head_dim: int = 16, max_positions: int = 2048) -> RopeConfig:
    return read_rope(Fields("config.json", config), head_dim, max_positions)


@pytest.mark.parametrize("case", GOLDEN)
def test_tables_equal_transformers(data: Path, case: str) -> None:
    # GIVEN cos and sin rows that transformers computed with torch in float32
    golden = np.load(data / f"rope_{case}.npz")
    config = json.loads(str(golden["config"]))
    rope = read(config, config["head_dim"], config.get("max_position_embeddings", 2048))
    # WHEN the tables are made
    cos, sin = rope_tables(rope, int(golden["rows"].max()) + 1)
    # THEN they agree to the last bits, at the far positions too
    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == (golden["rows"].max() + 1, config["head_dim"])
    np.testing.assert_allclose(inverse_frequencies(rope), golden["frequencies"], rtol=2e-7, atol=0)
    np.testing.assert_allclose(cos[golden["rows"]], golden["cos"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(sin[golden["rows"]], golden["sin"], rtol=0, atol=1e-6)


def test_llama3_keeps_the_fastest_pair_and_divides_the_slowest_by_exactly_the_factor() -> None:
    # GIVEN Llama 3.2 1B's rotary embedding and the same without scaling
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled = inverse_frequencies(read({"rope_theta": 500000.0, "rope_scaling": scaling}, 64, 131072))
    # WHEN both are compared
    plain = inverse_frequencies(read({"rope_theta": 500000.0}, 64))
    # THEN only the fastest pair is unchanged and the slowest is divided
    assert scaled[0] == plain[0]
    assert scaled[-1] == plain[-1] / np.float32(32)


@pytest.mark.parametrize("scaling", [{"type": "linear"}, {"rope_type": "linear"}])
def test_older_and_newer_spelling_mean_the_same(scaling: dict[str, Any]) -> None:
    older = read({"rope_theta": 5e5, "rope_scaling": scaling | {"factor": 2}})
    newer = read({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2}})
    assert older == newer == RopeConfig("linear", 5e5, 16, factor=2.0)


def test_theta_inside_rope_parameters_wins() -> None:
    rope = read({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    assert rope == RopeConfig("default", 1e6, 16)


def test_yarn_takes_its_factor_from_the_lengths_when_it_has_none() -> None:
    parameters = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512}
    rope = read({"rope_theta": 1e4, "rope_parameters": parameters}, max_positions=2048)
    assert (rope.factor, rope.original_max_positions) == (4.0, 512)


def test_original_length_at_top_level_wins() -> None:
    parameters = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    config = {"rope_theta": 1e4, "original_max_position_embeddings": 256, "rope_scaling": parameters}
    assert read(config).original_max_positions == 256


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["'type'", "dynamic", "default, linear"]),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, ["longrope", "yarn"]),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}}, ["mrope_section"]),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}, ["mrope"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ["partial_rotary_factor", "0.25"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["layer type"]),
        ({"rope_scaling": {"type": "linear"}}, ["'factor'", "missing"]),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, ["'factor'", "above zero"]),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, ["'factor'", '"2"']),
        ({"rope_scaling": {"type": 7}}, ["'type'", "string"]),
        ({"rope_scaling": [1]}, ["'rope_scaling'", "object"]),
        ({"rope_scaling": LLAMA3}, ["'high_freq_factor'", "low_freq_factor"]),
        ({"rope_theta": True}, ["'rope_theta'"]),
        ({"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}, ["rope_theta", "above 1"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        read({"rope_theta": 1e4} | config)
    assert all(word in str(refusal.value) for word in ["config.json", *named])
