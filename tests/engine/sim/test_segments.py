"""Prompts, segments and decode variants of awkward lengths: always the same text.

The reference is the same model with one prefill of S rows, no history module and one decode module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import compiled_runtime, cosine
from tiny import VOCABULARY, write_tiny

from engine.sim.runtime import GeneratedToken, Runtime

SEQ_LENGTH = 37
TOKENS = np.random.default_rng(3).integers(3, VOCABULARY, SEQ_LENGTH).tolist()
SIZES: dict[str, dict[str, int]] = {
    "llama": {"hidden": 72, "heads": 6, "kv_heads": 2, "intermediate": 100},
    "mistral": {"hidden": 56, "heads": 3, "kv_heads": 3, "head_dim": 24},
    "qwen2": {"hidden": 72, "kv_heads": 1, "intermediate": 36, "layers": 2},
    "qwen3": {"hidden": 40, "head_dim": 24, "layers": 1},
}
"""No size but the head's is a multiple of anything that the chips like."""

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"quantize": "f32", "max_input_length": 5, "decode_chunks": (7, 20)}),
    ("llama", {"quantize": "w4bf16", "max_input_length": 12, "symmetric": True, "q_group_size": 24}),
    ("mistral", {"quantize": "f16", "max_input_length": 31, "decode_chunks": (), "prefill_mask": "full"}),
    ("mistral", {"quantize": "w8bf16", "max_input_length": 9, "chip_name": "bm1690", "q_group_size": 128}),
    ("qwen2", {"quantize": "bf16", "max_input_length": 1, "decode_chunks": (2,)}),
    ("qwen2", {"quantize": "w4f16", "max_input_length": 16, "decode_chunks": (36, 1)}),
    ("qwen3", {"quantize": "w8f16", "max_input_length": 37, "sample": True}),
    ("qwen3", {"quantize": "f32", "max_input_length": 9, "chip_name": "bm1688"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a family."""
    root = tmp_path_factory.mktemp("segments")
    return cache(lambda family: write_tiny(root / family, family, **SIZES[family]))


def generated(runtime: Runtime, prompt: int) -> list[GeneratedToken]:
    return list(runtime.generate(TOKENS[:prompt], SEQ_LENGTH, stop=(), logits=True))


@pytest.mark.parametrize(("family", "options"), CASES)
def test_segments_and_variants_do_not_change_the_text(
    folder: Callable[[str], Path], family: str, options: dict[str, Any]
) -> None:
    # GIVEN a program with segments and variants, and one with neither
    weights = {key: options[key] for key in ("quantize", "symmetric", "q_group_size") if key in options}
    runtime = compiled_runtime(folder(family), seq_length=SEQ_LENGTH, **options)
    whole = compiled_runtime(folder(family), seq_length=SEQ_LENGTH, history=False, **weights)
    length = options["max_input_length"]
    for prompt in sorted(
        {1, length - 1, length, length + 1, SEQ_LENGTH - 1, SEQ_LENGTH} - {0, SEQ_LENGTH + 1}
    ):
        # WHEN both generate until the history is full
        found, expected = generated(runtime, prompt), generated(whole, prompt)
        # THEN tokens and, to rounding, logits are the same
        assert [t.token for t in found] == [t.token for t in expected], f"prompt of {prompt}"
        assert len(found) == SEQ_LENGTH - prompt + 1
        logits, right = (np.stack([t.logits for t in tokens]) for tokens in (found, expected))
        assert cosine(logits, right) > (0.9999999 if options["quantize"] == "f32" else 0.9995)
        assert len(found[0].segments) == -(-prompt // length)
