"""transformers' numbers recomputed live (needs torch): the golden files, and checkpoints that they do not cover."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.cases import CASES, FIRST_ROW, TOKENS
from running import compiled_runtime, cosine, forced_logits
from tiny import write_tiny

pytest.importorskip("torch", reason="torch is not installed: pip install '.[parity]'")

from golden.reference import greedy, load, logits

pytestmark = pytest.mark.parity

UNUSUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one KV head, heads wider than hidden": (
        "qwen3",
        {"kv_heads": 1, "heads": 6, "head_dim": 24, "seed": 3},
    ),
    "untied shards": ("qwen3", {"tie": False, "shards": 3, "seed": 4}),
    "odd sizes": ("llama", {"hidden": 60, "heads": 3, "kv_heads": 3, "head_dim": 20, "intermediate": 101}),
    "float16 weights, one layer": ("mistral", {"dtype": "f16", "layers": 1, "seed": 5}),
    "older spelling of llama3 RoPE": (
        "llama",
        {
            "older_spelling": True,
            "rope": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 2.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "biased keys with yarn and attention factor": (
        "qwen2",
        {
            "max_positions": 128,
            "rope": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.3,
            },
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_logits_are_those_of_transformers(name: str, tmp_path: Path, data: Path) -> None:
    golden: Mapping[str, np.ndarray] = np.load(data / "golden_logits.npz")
    case = CASES[name]
    live = logits(load(case.write(tmp_path), case.scheme), TOKENS)[FIRST_ROW:]
    tolerance = 2e-2 if case.scheme else 2e-5
    np.testing.assert_allclose(golden[name].astype(np.float32), live, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("quantize", ["f32", "bf16"])
def test_unusual_checkpoints_equal_transformers(name: str, quantize: str, tmp_path: Path) -> None:
    # GIVEN a checkpoint, lengths that divide nothing, and a prompt of several segments
    family, values = UNUSUAL[name]
    folder = write_tiny(tmp_path, family, **values)
    runtime = compiled_runtime(
        folder, seq_length=45, max_input_length=11, decode_chunks=[19, 31], quantize=quantize
    )
    expected = logits(load(folder), TOKENS[:44])
    for prompt in (5, 28):
        # WHEN it runs the prompt and every further token
        found, _ = forced_logits(runtime, TOKENS[:44], prompt)
        # THEN all logits are those of one forward pass
        if quantize == "f32":
            np.testing.assert_allclose(found, expected[prompt - 1 :], rtol=0, atol=1e-4)
        else:
            assert cosine(found, expected[prompt - 1 :]) >= 0.9995


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_greedy_text_equals_transformers(family: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, family, seed=11)
    runtime = compiled_runtime(folder, seq_length=64, max_input_length=16, quantize="f32")
    found = [token.token for token in runtime.generate(TOKENS[:21], 30)]
    assert found == greedy(load(folder), TOKENS[:21], 30)
