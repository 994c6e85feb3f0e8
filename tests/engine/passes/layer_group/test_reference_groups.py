"""A sample of the reference's modules: the same groups, slices and costs (all of them: benchmarks/layer_groups.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from layer_groups import OurModule, compile_module, options_for, same_groups  # noqa: E402
from reference_groups import DATA, ReferenceModule, load  # noqa: E402

from engine.compiler import open_model  # noqa: E402
from engine.passes import pipeline  # noqa: E402
from engine.passes.base import PassContext  # noqa: E402
from engine.sim.timing import time_module  # noqa: E402
from engine.stages import find, plan  # noqa: E402

REFERENCE = load(DATA)
SAMPLE = (
    "smollm2-135m w4bf16 S=512 block_0",
    "smollm2-135m w4bf16 S=2048 kv block_kv_0",
    "smollm2-135m w8bf16 S=1024 block_cache_0",
    "smollm2-135m bf16 S=512 block_0",
    "qwen3-0p6b w4bf16 S=512 block_0",
    "qwen3-0p6b bf16 S=512 block_0",
    "qwen3-0p6b w4bf16 S=512 block_cache_0",
    "qwen3-4b w4bf16 S=2048 block_0",
    "qwen25-1p5b bf16 S=512 block_0",
    "llama32-1b bf16 S=1024 block_0",
    "llama32-1b w4bf16 S=2048 bm1688 block_0",
    "qwen25-1p5b bf16 S=512 block_cache_0",
    "qwen3-tiny bf16 S=256 block_cache_0",
)


def compiled(theirs: ReferenceModule, folder: Path) -> OurModule:
    config = folder / "config.json"
    config.write_text(json.dumps(REFERENCE.configs[theirs.shape]))
    model = open_model(config)
    return compile_module(model, options_for(model, theirs, 2), theirs.module)


@pytest.mark.parametrize("label", SAMPLE)
def test_groups_are_those_of_the_reference(label: str, tmp_path: Path) -> None:
    # GIVEN a module that the reference compiled, too
    theirs = next(module for module in REFERENCE.modules if module.label == label)
    # WHEN we compile it
    ours = compiled(theirs, tmp_path)
    # THEN all groups have the same ops and slices, and none costs more (0.1 % for a product in an operand's place)
    assert same_groups(ours.groups, theirs.groups) == len(theirs.groups) == len(ours.groups)
    for mine, other in zip(ours.groups, theirs.groups, strict=True):
        assert mine.cycles is not None
        assert other.cycles is not None
        if theirs.chip == "bm1684x":  # on BM1688 the reference runs slices on two cores
            assert mine.cycles <= 1.001 * other.cycles
            assert ours.moved <= theirs.moved


DECODE_CYCLES = {
    "smollm2-135m bf16 S=512 block_cache_0": 153_386,
    "qwen25-1p5b bf16 S=512 block_cache_0": 1_652_488,
    "qwen3-0p6b bf16 S=512 block_cache_0": 622_654,
    "qwen3-tiny bf16 S=256 block_cache_0": 31_676,
}
"""Of whole modules, in the reference's own estimate."""


@pytest.mark.parametrize("label", DECODE_CYCLES)
def test_decode_in_the_half_type_takes_the_cycles_of_the_reference(label: str, tmp_path: Path) -> None:
    # GIVEN a module in which products take the residual as their bias
    theirs = next(module for module in REFERENCE.modules if module.label == label)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(REFERENCE.configs[theirs.shape]))
    # WHEN it is compiled to instructions
    model = open_model(config)
    options = options_for(model, theirs, 2)
    spec, _ = find(plan(model.shape, options), theirs.module)
    *_, last = pipeline.run(PassContext(spec, model.config, options))
    # THEN no sum is left, and the program takes as long to the cycle
    assert "tpu.Add" not in {op.name for op in last.ops}
    assert time_module(last.report, options.chip).total_cycles == DECODE_CYCLES[label]


def test_the_sample_says_when_groups_differ() -> None:
    theirs = next(module for module in REFERENCE.modules if module.label == SAMPLE[0])
    assert same_groups(theirs.groups[1:], theirs.groups) == len(theirs.groups) - 1
