"""Every module of every family: the machine that runs its instructions agrees with the interpreter of its ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import compile_here
from machine_cases import both, largest_error, random_inputs, tiny_program
from running import cosine, forced_logits, weights_of
from tiny import FAMILIES, write_tiny

from engine.check import check
from engine.compiler import open_model
from engine.errors import UserError
from engine.passes.layer_group.view import group_indices, read_group
from engine.sim.machine_runtime import MachineExecutor, MachineExecutors
from engine.sim.runtime import PROGRAM_PASS, Runtime
from engine.sim.timing import time_module
from engine.stages import ModuleSpec, Stage
from engine.tpu.chip import Chip

MODES = ("f32", "bf16", "w4bf16")


def histories(spec: ModuleSpec) -> list[int]:
    """History lengths worth a run: none, one row, a part of a key block, a whole one and a bit, all."""
    if spec.stage is Stage.PREFILL_KV:
        return [1, 7, spec.cache // 2 + 1, spec.cache]
    if spec.stage is Stage.DECODE and spec.cache:
        return [0, spec.cache - 3, spec.cache]
    return [0]


def assert_agree(found: np.ndarray, expected: np.ndarray, mode: str, name: str) -> None:
    assert np.isfinite(found).all(), name
    if mode == "f32":
        assert largest_error(found, expected) <= 1e-5, name
    else:
        assert cosine(found, expected) >= 0.9999, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_computes_what_the_interpreter_computes(family: str, mode: str) -> None:
    program, loader = tiny_program(family, mode)
    for spec in program.specs:
        for history in histories(spec):
            # GIVEN a module with random inputs and `history` rows of history
            inputs = random_inputs(program, spec, history)
            # WHEN its instructions run on the machine and its ops in the interpreter
            found, expected, machine = both(program, loader, spec, inputs)
            # THEN they agree, and the machine's checks found nothing
            label = f"{spec.name} with {history} rows"
            assert not machine.violations, (label, machine.violations[:3])
            for name, values in expected.items():
                if values.dtype == np.int32:
                    np.testing.assert_array_equal(found[name], values, err_msg=label)
                else:
                    assert_agree(found[name], values, mode, f"{name} of {label}")


@pytest.mark.parametrize("mode", ["f32", "f16", "bf16", "w8f16", "w8bf16", "w4f16", "w4bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_on_the_machine_gives_the_interpreters_tokens(family: str, mode: str) -> None:
    # GIVEN a model with an lm_head of its own: with tied random embeddings every token begets itself
    program, loader = tiny_program(family, mode, tie=False)
    # WHEN tokens are generated on both
    tokens = [
        [token.token for token in Runtime(program, loader, execute).generate([40, 7, 19], 4)]
        for execute in (None, MachineExecutors(program, loader))
    ]
    # THEN they are the same, and several
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) >= 3


@pytest.mark.parametrize("mode", ["f32", "w4bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_sequence_runs_through_every_stage(family: str, mode: str) -> None:
    # GIVEN a prompt of two segments, and tokens enough to outgrow the shortest decode variant
    program, loader = tiny_program(family, mode)
    tokens = np.random.default_rng(4).integers(3, program.config.vocab_size, 36).tolist()
    # WHEN both give the logits behind every token
    (expected, modules), (found, _) = (
        forced_logits(Runtime(program, loader, execute), tokens, 20)
        for execute in (None, MachineExecutors(program, loader))
    )
    # THEN they agree, whatever was read from the KV regions
    assert {"block_0", "block_kv_0", "block_cache_0", "block_cache_0_1"} <= set(modules)
    assert cosine(found, expected) >= (1 - 1e-6 if mode == "f32" else 0.9998)


@pytest.mark.parametrize("chip", ["bm1688", "bm1684x"])
def test_sampling_heads_and_other_chips(chip: str) -> None:
    # GIVEN a program with sampling heads, a full prefill mask, per-group symmetric weights
    program, loader = tiny_program(
        "qwen3", "w4bf16", sample=True, prefill_mask="full", symmetric=True, chip_name=chip
    )
    for spec in program.specs:
        inputs = random_inputs(program, spec, spec.cache)
        # WHEN each module runs on both
        found, expected, machine = both(program, loader, spec, inputs)
        # THEN they agree
        assert not machine.violations, (spec.name, machine.violations[:3])
        for name, values in expected.items():
            assert_agree(found[name].astype(np.float32), values.astype(np.float32), "w4bf16", spec.name)


@pytest.mark.parametrize(
    "options",
    [
        {"layer_group": False},
        {"opt": 1},
        {"opt": 3},
        {"history": False, "seq_length": 48},
        {"chip_name": "bm1688", "cores": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_ways_to_compile(options: dict[str, Any]) -> None:
    # GIVEN a program with other groups, stages or cores
    program, loader = tiny_program("qwen2", "bf16", **options)
    assert check(program) == []
    for spec in program.specs:
        inputs = random_inputs(program, spec, spec.cache // 2)
        # WHEN each module runs on both
        found, expected, machine = both(program, loader, spec, inputs)
        # THEN they agree
        assert not machine.violations, (spec.name, machine.violations[:3])
        for name, values in expected.items():
            assert_agree(found[name].astype(np.float32), values.astype(np.float32), "bf16", spec.name)


@pytest.mark.parametrize("mode", ["bf16", "w4bf16"])
def test_pipelined_slices_of_a_wider_model_on_a_smaller_chip(mode: str, tmp_path: Path) -> None:
    # GIVEN a block too wide for the local memory of BM1688: its groups run in slices
    path = write_tiny(
        tmp_path / "qwen3", "qwen3", hidden=512, heads=8, head_dim=64, intermediate=1536, layers=2
    )
    names = ("block_0", "block_kv_0", "block_cache_0")
    program = compile_here(
        path, names, seq_length=512, max_input_length=320, quantize=mode, chip_name="bm1688"
    )
    loader, slices = weights_of(open_model(path)), []
    for name in names:
        spec, _ = program.find(name)
        inputs = random_inputs(program, spec, min(200, spec.cache))
        # WHEN it runs on both
        found, expected, machine = both(program, loader, spec, inputs)
        # THEN they agree, and every group takes the cycles that the pass planned
        assert not machine.violations, (name, machine.violations[:3])
        for output, values in expected.items():
            assert_agree(found[output], values, mode, f"{output} of {name}")
        plans = program.modules[name].after("layer-group").report.groups
        assert planned_cycles(machine, program.options.chip) == [plan.cycles for plan in plans]
        slices += [plan.secs.slices for plan in plans]
    assert max(slices) >= 3


def planned_cycles(machine: MachineExecutor, chip: Chip) -> list[int]:
    """Span of each group in the schedule."""
    timing, ops = time_module(machine.program, chip), machine.snapshot.ops
    op, found = machine.program["op"][timing.instructions], []
    for index in group_indices(ops):
        inside = (op > index) & (op <= read_group(ops, index).last)
        found.append(int(timing.schedule.end[inside].max() - timing.schedule.start[inside].min()) + 1)
    return found


def test_regions_are_read_and_appended_to_in_place() -> None:
    # GIVEN KV regions whose first rows hold a history
    program, loader = tiny_program("llama", "bf16")
    spec = next(s for s in program.specs if s.stage is Stage.DECODE and s.cache)
    inputs = random_inputs(program, spec, 5)
    snapshot = program.modules[spec.name].after(PROGRAM_PASS)
    machine = MachineExecutors(program, loader)(spec, snapshot, 0)
    expected = machine.run(inputs)
    rows = spec.cache + 1
    shape = (1, rows, *inputs["history_k"].shape[2:])
    regions = {name: np.zeros(shape, np.float32) for name in ("k_cache", "v_cache")}
    for name, source in (("k_cache", "history_k"), ("v_cache", "history_v")):
        regions[name][:, : spec.cache] = inputs.pop(source)
    # WHEN the module runs with the regions in the place of the inputs
    found = machine.run(inputs, regions)
    # THEN it gives the same states and leaves the new rows behind the rows that it reads
    np.testing.assert_array_equal(found["output_states"], expected["output_states"])
    np.testing.assert_array_equal(regions["k_cache"][:, spec.cache :], expected["k_cache"])
    np.testing.assert_array_equal(regions["v_cache"][:, spec.cache :], expected["v_cache"])


def test_stops_at_any_instruction_and_goes_on() -> None:
    # GIVEN a machine in front of a module's first instruction
    program, loader = tiny_program("llama", "bf16")
    spec = next(s for s in program.specs if s.name == "block_0")
    inputs = random_inputs(program, spec, 0)
    found, _, machine = both(program, loader, spec, inputs)
    # WHEN it stops in the middle
    machine.prepare(inputs)
    middle = len(machine.program) // 2
    assert machine.advance(middle) == middle
    # THEN memory shows a program half done, and going on gives the same outputs
    assert not np.isfinite(machine.outputs()["output_states"]).all()
    assert machine.advance(len(machine.program)) == len(machine.program)
    np.testing.assert_array_equal(machine.outputs()["output_states"], found["output_states"])


def test_a_missing_or_misshaped_input_is_named() -> None:
    program, loader = tiny_program("llama", "bf16")
    spec = next(s for s in program.specs if s.name == "block_0")
    machine = MachineExecutors(program, loader)(spec, program.modules["block_0"].after(PROGRAM_PASS), 0)
    inputs = random_inputs(program, spec, 0)
    with pytest.raises(UserError, match=r"input input_states has shape \[1, 3\]"):
        machine.run({**inputs, "input_states": np.zeros((1, 3), np.float32)})
    del inputs["position_ids"]
    with pytest.raises(UserError, match="input position_ids is missing"):
        machine.run(inputs)
