"""Costs of whole programs: traffic counted once more by hand, stages added up, lengths and history respected."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from compiled import compile_here, tiny_compilation
from tiny import write_json

from engine.compiler import Compilation
from engine.errors import UserError
from engine.sim.throughput import CATEGORIES, Simulator, simulate, tokens_per_second_curve
from engine.stages import Kind, ModuleSpec, Stage
from engine.tpu.isa import DTYPES

S, L, LAYERS = 64, 16, 3
ROW_BYTES = 2 * 16 * 2
"""Two KV heads of 16 in bf16."""
VENDOR_BYTES = 30 * (2_376_078 + 36_096 + 256) + 56_722_560 + 294_912
"""What TPU-MLIR's SmolLM2-135M at W4BF16 and S 512 moves for a token: thirty decode blocks and lm_head."""
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}


@cache
def smollm2() -> Compilation:
    with TemporaryDirectory() as folder:
        config = write_json(Path(folder) / "config.json", SMOLLM2)
        return compile_here(config, seq_length=512, quantize="w4bf16")


def program() -> Compilation:
    return tiny_compilation("qwen2", "w4bf16")


# -- an independent count ------------------------------------------------------------------------------------------

BYTES = {
    "f32": 4,
    "si32": 4,
    "ui32": 4,
    "f16": 2,
    "bf16": 2,
    "si16": 2,
    "ui16": 2,
    "si8": 1,
    "ui8": 1,
    "none": 0,
}


def ddr_bytes(compilation: Compilation, spec: ModuleSpec) -> int:
    """Bytes that a module's instructions read from and write to DDR, one instruction after the other."""
    total = 0
    for instruction in compilation.modules[spec.name].after("codegen").report:
        if instruction["engine"] != 1 or instruction["flags"] & 2:
            continue
        load, store, gather = (
            instruction["direction"] == 0,
            instruction["direction"] == 1,
            instruction["opcode"] == 3,
        )
        side = instruction["operands"][0] if load and not gather else instruction["result"]
        elements = 1
        for size in side["shape"]:
            elements *= int(size)
        size = elements * BYTES[DTYPES[side["dtype"]]]
        total += size if load or store else 2 * size
    return total


def decoded_bytes(compilation: Compilation, variant: int) -> int:
    """Bytes of one decode step without the runtime's copy."""
    modules = [s for s in compilation.specs if s.name in ("embedding_cache", "lm_head")]
    blocks = [s for s in compilation.specs if s.name.startswith("block_cache") and s.variant == variant]
    return sum(ddr_bytes(compilation, s) * (len(s.layers) or 1) for s in (*modules, *blocks))


@pytest.mark.parametrize(
    ("filled", "variant", "moved"), [(40, 0, 1), (20, 1, 1), (32, 1, 0), (16, 2, 0), (3, 2, 1)]
)
def test_bytes_per_token_are_those_of_the_instructions(filled: int, variant: int, moved: int) -> None:
    # GIVEN a history of `filled` rows, whose new row is moved unless it lies where it belongs
    found = simulate(program(), prompt_length=filled, generate=1).decode
    # THEN the bytes are those of every instruction, and of the copy of a K and a V row in each layer, read and written
    copied = moved * LAYERS * 2 * 2 * ROW_BYTES
    assert found.ddr_bytes_per_token == decoded_bytes(program(), variant) + copied
    assert sum(found.breakdown.values()) == found.ddr_bytes_per_token


def test_smollm2_moves_what_the_vendor_moves() -> None:
    # GIVEN SmolLM2-135M at W4BF16, S 512
    compilation = smollm2()
    found = simulate(compilation, prompt_length=300, generate=100).to_json()
    # THEN a decoded token moves within 5 % of the vendor's bytes, and exactly what the instructions say
    moved = found["decode"]["ddr_bytes_per_token"]
    assert moved == pytest.approx(VENDOR_BYTES, rel=0.05)
    assert moved == decoded_bytes(compilation, 0) + 30 * 2 * 2 * 3 * 64 * 2


# -- breakdown -----------------------------------------------------------------------------------------------------


def test_breakdown_tells_weights_from_kv_and_activations() -> None:
    # GIVEN a decode step that reads 64 rows of history
    found = simulate(program(), prompt_length=50, generate=1).decode.breakdown
    assert set(found) == set(CATEGORIES)
    # THEN the blocks' weights are read once: everything in the coeff arenas but the RoPE tables
    weights = Counter[str]()
    for spec in (s for s in program().specs if s.stage == "decode" and s.variant == 0):
        for op in program().modules[spec.name].after("codegen").ops:
            if op.name == "top.Weight":
                table = op.attributes["tensors"][0].startswith("@")
                weights["table" if table else "weights"] += op.result_types[0].nbytes * (
                    len(spec.layers) or 1
                )
    embedding = 320 * 64 * 2
    row = 64 * 2
    assert found["weights"] == pytest.approx(weights["weights"] - embedding + row, rel=0.02)
    # and the KV rows: 65 each of K and V read, one of each written and moved
    assert found["kv_cache"] >= LAYERS * 2 * (65 + 1 + 2) * ROW_BYTES
    assert found["kv_cache"] < LAYERS * 2 * (65 + 1 + 2 + 8) * ROW_BYTES
    # and of the RoPE tables one row of cos and sin, not the tables
    assert found["other"] == LAYERS * 2 * 16 * 2
    assert found["state"] == 0
    assert found["activations"] > 0
    # lm_head is whole: its weight, its input and the logits
    assert found["lm_head"] > 320 * 64 * 2


def test_utilisation_is_of_the_peak() -> None:
    chip = program().options.chip
    found = simulate(program(), prompt_length=40, generate=4).decode
    assert found.utilisation_traffic == pytest.approx(
        found.tokens_per_s * found.ddr_bytes_per_token / chip.ddr_bandwidth
    )
    assert 0 < found.utilisation_traffic < 1
    # the file's size, where it is known; the coefficients of all layers and heads, counted once, where it is not
    sized = simulate(program(), prompt_length=40, generate=4, file_bytes=10**6).decode
    assert sized.utilisation_paper == pytest.approx(found.tokens_per_s * 1e6 / chip.ddr_bandwidth)
    merged, sizes = program().merged, {}
    for (module, _), bases in merged.bases.items():
        size = program().modules[module].after("codegen").attributes["coeff_size"]
        sizes[bases.coeff] = max(size, sizes.get(bases.coeff, 0))
    assert found.utilisation_paper == pytest.approx(
        found.tokens_per_s * sum(sizes.values()) / chip.ddr_bandwidth
    )


# -- stages --------------------------------------------------------------------------------------------------------


def seconds(simulator: Simulator, names: dict[str, int], history: int | None = None) -> float:
    """Seconds of the given modules, so many times each."""
    by_name = {spec.name: spec for spec in simulator.program.specs}
    return (
        sum(
            simulator.timing(by_name[name], history if name.startswith("block_kv") else None).total_cycles
            * times
            for name, times in names.items()
        )
        / simulator.chip.clock_hz
    )


def test_short_prompt_is_one_prefill_and_lm_head() -> None:
    found = simulate(program(), prompt_length=9)
    expected = seconds(Simulator(program()), {"embedding": 1, "block_0": 2, "block_2": 1, "lm_head": 1})
    assert found.prefill.seconds == pytest.approx(expected)
    assert (found.prefill.tokens, found.prefill_kv.tokens, found.prefill_kv.seconds) == (9, 0, 0)
    assert found.time_to_first_token == found.prefill.seconds


def test_long_prompt_adds_segments_with_their_history_and_moved_rows() -> None:
    # GIVEN a prompt of three segments: 16, 16 and 8 rows
    simulator = Simulator(program())
    found = simulator.simulate(prompt_length=40)
    blocks = {"embedding": 1, "block_kv_0": 2, "block_kv_2": 1}
    computed = (
        seconds(simulator, blocks, 16) + seconds(simulator, blocks, 32) + seconds(simulator, {"lm_head": 1})
    )
    first = seconds(simulator, {"embedding": 1, "block_0": 2, "block_2": 1})
    assert (found.prefill.tokens, found.prefill_kv.tokens, found.prefill_kv.history) == (16, 24, 32)
    assert found.prefill.seconds == pytest.approx(first)
    # THEN the rest is the copy of 24 rows of K and V in three layers at 26.077 bytes a cycle, a whole cycle each
    copies = sum(int(rows * ROW_BYTES / 26.077) for rows in (16, 8)) * 2 * LAYERS
    assert found.prefill_kv.seconds == pytest.approx(computed + copies / 1e9)
    assert found.time_to_first_token == found.prefill.seconds + found.prefill_kv.seconds


def test_shorter_history_drops_key_blocks() -> None:
    # GIVEN a model whose history takes several key blocks
    simulator = Simulator(smollm2())
    spec = next(s for s in smollm2().specs if s.name == "block_kv_0")
    whole, part, none = (simulator.module_cost(spec, history) for history in (None, 100, 0))
    # THEN a short history reads less, and none reads only the new rows
    assert none.ddr_read_bytes < part.ddr_read_bytes < whole.ddr_read_bytes
    assert none.cycles < part.cycles < whole.cycles
    assert whole.ddr_read_bytes == simulator.module_cost(spec, 512).ddr_read_bytes


def test_decode_speed_is_the_mean_over_the_variants_that_run() -> None:
    # GIVEN tokens on both sides of a variant's limit
    one, other = (simulate(program(), prompt_length=p, generate=1).decode.tokens_per_s for p in (31, 33))
    both = simulate(program(), prompt_length=30, generate=6).decode
    exact = simulate(program(), prompt_length=32, generate=1).decode.tokens_per_s
    assert other < one <= exact
    assert both.tokens == 5
    assert both.tokens_per_s == pytest.approx(5 / (2 / one + 1 / exact + 2 / other))


def test_decoded_tokens_say_where_they_ran_and_what_the_runtime_moved() -> None:
    # GIVEN tokens behind few rows: all run in the smallest variant
    decode = simulate(program(), prompt_length=4, generate=4).decode
    smallest = max(s.variant for s in program().specs if s.stage is Stage.DECODE)
    assert decode.steps == {smallest: 3}
    # WHEN what the modules of one token move is taken away THEN the rows that the runtime moves are left
    run = [
        s
        for s in program().specs
        if s.kind is Kind.LM_HEAD
        or (s.stage is Stage.DECODE and (s.kind is Kind.EMBEDDING or s.variant == smallest))
    ]
    found = simulate(program())
    inside = sum(
        (cost.ddr_read_bytes + cost.ddr_write_bytes) * max(1, len(s.layers))
        for s in run
        for cost in [found.module(s.name)]
    )
    assert decode.moved_rows_bytes == decode.ddr_bytes_per_token - inside > 0
    cycles = sum(found.module(s.name).cycles * max(1, len(s.layers)) for s in run)
    assert cycles + decode.moved_rows_cycles == pytest.approx(
        program().options.chip.clock_hz / decode.tokens_per_s
    )


def test_several_cores_have_several_times_the_peak() -> None:
    one, two = (replace(program().options, chip_name="bm1688", cores=cores) for cores in (1, 2))
    assert two.ddr_bandwidth == 2 * one.ddr_bandwidth == 2 * one.chip.ddr_bandwidth


def test_without_a_prompt_the_compiled_lengths_count() -> None:
    found = simulate(program())
    full = simulate(program(), prompt_length=S - 1, generate=2)
    assert found.prefill.tokens == L
    assert (found.prefill_kv.tokens, found.prefill_kv.history) == (L, S)
    assert found.decode == full.decode
    lm_head = seconds(Simulator(program()), {"lm_head": 1})
    assert found.prefill.seconds > lm_head
    assert found.prefill_kv.seconds > found.prefill.seconds


def test_curve_falls_from_variant_to_variant() -> None:
    curve = tokens_per_second_curve(program(), [0, 16, 17, 32, 33, 63])
    lengths, speeds = zip(*curve, strict=True)
    assert lengths == (0, 16, 17, 32, 33, 63)
    assert speeds[1] > speeds[2]
    assert speeds[3] > speeds[4]
    assert speeds[4] == speeds[5]


@pytest.mark.parametrize(
    ("lengths", "tokens", "history"),
    [
        ({"prompt_length": 50}, S - 50, 50),
        ({"prompt_length": 50, "generate": 15}, 14, 50),
        ({"prompt_length": 50, "generate": 2}, 1, 50),
        ({"prompt_length": 50, "generate": 1}, 0, 50),
        ({"prompt_length": S}, 0, S - 1),
        ({"generate": S}, S - 1, 1),
        ({"generate": 1}, 0, S - 1),
        ({}, 1, S - 1),
    ],
)
def test_the_first_new_token_is_of_the_prefill(lengths: dict[str, Any], tokens: int, history: int) -> None:
    # GIVEN new tokens, of which `run` gives S - P + 1 behind a prompt of P
    found = simulate(program(), **lengths)
    # THEN all but the first are decoded, and what is decoded is said where it is none
    assert (found.decode.tokens, found.decode.history) == (tokens, history)
    assert sum(found.decode.steps.values()) == max(1, tokens)
    speeds = [Simulator(program()).tokens_per_second(history + i) for i in range(max(1, tokens))]
    assert found.decode.tokens_per_s == pytest.approx(len(speeds) / sum(1 / speed for speed in speeds))
    assert found.to_json()["decode"]["tokens"] == tokens


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"prompt_length": 65}, "prompt of 65 tokens does not fit; accepted: 1 to 64"),
        ({"prompt_length": 0}, "prompt of 0 tokens"),
        ({"prompt_length": 60, "generate": 6}, "6 new tokens do not fit; accepted: 1 to 5"),
        ({"prompt_length": 64, "generate": 2}, "2 new tokens do not fit; accepted: 1 to 1"),
        ({"generate": 65}, "65 new tokens do not fit; accepted: 1 to 64"),
        ({"generate": 0}, "0 new tokens do not fit"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(program(), **lengths)
    with pytest.raises(UserError, match="64 rows of history do not fit"):
        tokens_per_second_curve(program(), [64])


# -- modules and ops -----------------------------------------------------------------------------------------------


def test_ops_add_up_to_their_module_and_name_their_records() -> None:
    found = simulate(program(), prompt_length=40)
    assert [module.name for module in found.modules] == [spec.name for spec in program().specs]
    for module in found.modules:
        assert sum(op.cycles for op in module.ops) == module.cycles
        assert sum(op.ddr_read_bytes for op in module.ops) == module.ddr_read_bytes
        assert sum(op.ddr_write_bytes for op in module.ops) == module.ddr_write_bytes
        records = program().modules[module.name].after("codegen").ops
        assert all(records[op.index].name == op.name for op in module.ops)
        assert all(records[op.index].location == op.location for op in module.ops)
    assert found.module("block_kv_0").history == 32
    assert found.module("block_0").history is None
    with pytest.raises(KeyError, match="no module 'block_9'"):
        found.module("block_9")


def test_json_has_the_documented_shape() -> None:
    found = simulate(program(), prompt_length=40, generate=8).to_json()
    assert list(found) == ["chip", "quantize", "seq_length", "modules", "prefill", "prefill_kv", "decode"]
    assert (found["chip"], found["quantize"], found["seq_length"]) == ("bm1684x", "w4bf16", S)
    module = next(m for m in found["modules"] if m["name"] == "block_0")
    assert module["layers"] == [0, 1]
    assert module["stage"] == "prefill"
    assert set(module) == {
        "name", "stage", "layers", "cycles", "ddr_read_bytes", "ddr_write_bytes", "tiu_busy_cycles",
        "gdma_busy_cycles", "ops",
    }  # fmt: skip
    assert set(module["ops"][0]) == {
        "name", "location", "cycles", "ddr_read_bytes", "ddr_write_bytes", "bound", "group"
    }  # fmt: skip
    assert set(found["prefill"]) == {"tokens", "seconds"}
    assert set(found["prefill_kv"]) == {"tokens", "history", "seconds"}
    assert set(found["decode"]) == {
        "tokens",
        "history",
        "tokens_per_s",
        "ddr_bytes_per_token",
        "breakdown",
        "bandwidth_utilisation",
    }
    assert set(found["decode"]["bandwidth_utilisation"]) == {"paper", "traffic"}
    assert list(found["decode"]["breakdown"]) == list(CATEGORIES)
    plain = (str, int, float, list, dict)
    assert all(isinstance(value, plain) and not isinstance(value, np.generic) for value in module.values())


def test_program_without_history_has_no_prefill_kv(tmp_path: Path) -> None:
    config = write_json(tmp_path / "config.json", SMOLLM2 | {"num_hidden_layers": 2, "vocab_size": 512})
    compilation = compile_here(config, seq_length=32, history=False, quantize="bf16")
    found = simulate(compilation, prompt_length=20, generate=3)
    assert found.to_json()["prefill_kv"] == {"tokens": 0, "history": 0, "seconds": 0.0}
    assert simulate(compilation).prefill_kv.tokens == 0
