"""Instructions reckoned ahead of compiling against those that codegen emits, and the refusal of too many."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compiled import compile_here
from tiny import write_tiny

from engine import program_size
from engine.compiler import Model, compile_model, open_model
from engine.errors import CompileError, UserError
from engine.program_size import PLANNED_PROGRAM, estimated_instructions
from engine.stages import find, plan
from engine.tpu import emit
from engine.tpu.isa import INSTRUCTION


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with long positions and enough heads that attention decides the size of its programs."""
    return write_tiny(
        tmp_path_factory.mktemp("long") / "tiny",
        "llama",
        hidden=256,
        heads=8,
        kv_heads=4,
        head_dim=64,
        intermediate=512,
        layers=2,
        max_positions=131072,
    )


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("block_kv_0", {}),
        ("block_kv_1", {"max_input_length": 200}),
        ("block_0", {"max_input_length": 2048}),
        ("block_kv_0", {"chip_name": "bm1688"}),
        ("block_kv_0", {"chip_name": "bm1688", "cores": 2}),
        ("block_0", {"quantize": "f32", "max_input_length": 2048, "chip_name": "bm1688"}),
        ("block_0", {"prefill_mask": "full", "max_input_length": 2048}),
        ("block_0", {"prefill_mask": "full", "max_input_length": 2048, "chip_name": "bm1688", "cores": 2}),
    ],
)
def test_the_estimate_is_what_codegen_emits(checkpoint: Path, module: str, options: dict[str, Any]) -> None:
    # GIVEN a block whose program is mostly attention
    compilation = compile_here(checkpoint, [module], seq_length=2048, **options)
    emitted = len(compilation.snapshots(module).after("codegen").report)
    # THEN the estimate from its sizes alone is near
    spec, _ = compilation.find(module)
    found = estimated_instructions(spec, compilation.config, compilation.options)
    assert 0.8 * emitted < found < 1.12 * emitted


def test_decode_and_heads_are_not_estimated(checkpoint: Path) -> None:
    model = open_model(checkpoint)
    options = model.resolve(seq_length=131072)
    specs = {spec.name: spec for spec in plan(model.shape, options)}
    for name in ("block_cache_0", "embedding", "lm_head"):
        assert estimated_instructions(specs[name], model.config, options) == 0


def refused(model: Model, **options: Any) -> str:
    started = time.perf_counter()
    with pytest.raises(UserError) as refusal:
        compile_model(model, model.resolve(**options))
    # in no time: nothing was compiled
    assert time.perf_counter() - started < 2
    return str(refusal.value)


def test_a_length_that_takes_too_much_is_refused_with_one_that_fits(checkpoint: Path) -> None:
    model = open_model(checkpoint)
    text = refused(model, seq_length=131072)
    # THEN module, need, limit and a way out are named
    assert text.startswith("block_kv_0 would take about ")
    assert "for 32,768 rows behind 131,072 rows of history" in text
    assert f"accepted: {PLANNED_PROGRAM:,} a module (0.62 GB)" in text
    assert text.endswith(" fits (the default is a quarter of --seq-length)")
    # AND the length is the largest that fits, in steps of tiles
    rows = int(text.partition("--max-input-length ")[2].split()[0])
    assert rows % 64 == 0
    for given, fits in ((rows, True), (rows + 64, False)):
        options = model.resolve(seq_length=131072, max_input_length=given)
        needed = [estimated_instructions(s, model.config, options) for s in plan(model.shape, options)]
        assert (max(needed) <= PLANNED_PROGRAM) == fits


def test_a_refusal_without_history_is_about_prefill(checkpoint: Path) -> None:
    text = refused(open_model(checkpoint), seq_length=131072, history=False)
    assert text.startswith("block_0 would take about ")
    assert "for 131,072 rows; accepted" in text
    assert text.endswith(" fits (the default is --seq-length)")


def test_when_no_length_fits_the_sequence_is_too_long(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_size, "PLANNED_PROGRAM", 100)
    text = refused(open_model(checkpoint), seq_length=4096)
    assert text.endswith("choose a smaller --seq-length: at this one not even --max-input-length 1 fits")


def test_modules_that_are_small_enough_are_compiled_at_any_length(checkpoint: Path) -> None:
    # GIVEN lengths at which prefill is refused
    model = open_model(checkpoint)
    compilation = compile_model(model, model.resolve(seq_length=131072), only=["block_cache_0"])
    # THEN a block of decode is not
    assert not compilation.failures
    assert compilation.snapshots("block_cache_0").after("codegen")


def test_an_8b_model_has_room_for_16384_rows(checkpoint: Path) -> None:
    # GIVEN the sizes of an 8B model: 32 heads on 8 of keys and values
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "layers": 32, "head_dim": 128}
    model = Model(replace(open_model(checkpoint).config, **sizes, heads=32, kv_heads=8), None)
    # THEN the default lengths up to there are planned, and 32768 is not
    needed = {
        length: estimated_instructions(
            find(plan(model.shape, options), "block_kv_0")[0], model.config, options
        )
        for length in (8192, 16384, 32768)
        for options in [model.resolve(seq_length=length)]
    }
    assert needed[8192] == pytest.approx(525_565, rel=0.01)
    assert needed[16384] < PLANNED_PROGRAM < needed[32768]


def test_a_program_that_outgrows_its_estimate_is_stopped(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a bound below what the module takes
    monkeypatch.setattr(emit, "_LARGEST_BYTES", 500 * INSTRUCTION.itemsize)
    # WHEN it is compiled THEN codegen stops as the user's mistake, and names the op
    with pytest.raises(
        CompileError, match=r"tpu\.\w+ at model.layers.*beyond 2,500,000 instructions"
    ) as found:
        compile_here(checkpoint, ["block_kv_0"], seq_length=2048)
    assert isinstance(found.value.__cause__, UserError)
    assert "--max-input-length" in str(found.value)
