"""Streamed groups compute what their ops mean: on the machine, with its checks on, in every layout and cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from compiled import compile_here
from group_bench import Built
from machine_cases import both, random_inputs
from running import cosine, weights_of
from stream_bench import (
    Numbers,
    compiling_for,
    feed_forward,
    heads,
    planned,
    random_values,
    small,
    streamed,
    sums,
)
from tiny import FAMILIES, write_tiny

from engine.check import check
from engine.compiler import Compilation, open_model
from engine.passes.layer_group.plan import GroupType
from engine.passes.layer_group.stream.check import stream_problems
from engine.passes.layer_group.view import GroupView, group_indices, read_group
from engine.sim.interpreter import Interpreter, PreparedWeights, WeightLoader
from engine.sim.machine_runtime import MachineExecutors
from engine.sim.runtime import Runtime
from engine.sim.timing import time_module
from engine.snapshot import OpRecord
from engine.tpu.chip import chip

MODES = ("w4bf16", "w8bf16")


def streams(built: Built) -> list[GroupView]:
    ops = built.snapshot.ops
    views = [read_group(ops, index) for index in group_indices(ops)]
    return [view for view in views if view.type is GroupType.STREAM]


def agrees(built: Built, *, exact: bool = False) -> None:
    """The machine's outputs are the interpreter's, and neither its checks nor those of the IR find anything."""
    inputs = random_values(built.snapshot.ops, whole=exact)
    machine = built.machine()
    found = machine.run(inputs)
    expected = Interpreter(built.snapshot, PreparedWeights(built.loader), outputs=built.outputs).run(inputs)
    assert not machine.violations, machine.violations[:3]
    for view in streams(built):
        assert stream_problems(view, built.options.chip) == []
    for name, values in expected.items():
        if exact:
            np.testing.assert_array_equal(found[name], values)
        else:
            assert np.isfinite(found[name]).all()
            assert cosine(found[name], values) >= 0.9999


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("make", [feed_forward, heads])
def test_one_token_and_many(
    make: Callable[..., tuple[OpRecord, ...]], rows: int, bits: int, bias: bool
) -> None:
    # GIVEN one token, spread over the lanes where it can be, or some rows that do not fill their lanes
    built = streamed(make(rows, bits=bits, bias=bias), chip("bm1684x"), Numbers(bits))
    # THEN all of it is one streamed group, and the machine computes what the ops mean
    assert len(streams(built)) == 1
    agrees(built)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 40])
def test_another_chip(rows: int, dtype: str) -> None:
    # GIVEN 32 lanes, rows of 16 bytes, and 4-bit operands
    agrees(streamed(feed_forward(rows, lanes=32, dtype=dtype), chip("bm1688")))


@pytest.mark.parametrize("rows", [1, 90])
@pytest.mark.parametrize("bits", [4, 8])
def test_integers_are_exact(bits: int, rows: int) -> None:
    agrees(streamed(sums(rows, bits=bits), chip("bm1684x"), Numbers(bits, whole=True)), exact=True)


def test_columns_that_do_not_fill_the_lanes() -> None:
    # GIVEN products of 100 and 168 columns: one token cannot be spread over the lanes
    for rows in (1, 30):
        agrees(streamed(feed_forward(rows, hidden=100, inner=168), chip("bm1684x")))


@pytest.mark.parametrize(
    ("rows", "hidden", "lmem_bytes", "slices"), [(400, 256, 16384, 2), (700, 128, 12288, 3)]
)
def test_rows_in_slices(rows: int, hidden: int, lmem_bytes: int, slices: int) -> None:
    # GIVEN a chip with so little local memory that not all rows fit
    built = streamed(feed_forward(rows, hidden, 448), small(lmem_bytes))
    # THEN at least so many slices of them go through one after the other
    assert max(len(view.record.attributes["row_idx"]) for view in streams(built)) >= slices
    with compiling_for(small(lmem_bytes)):
        agrees(built)


def test_time_of_a_group_is_what_the_plan_says() -> None:
    # GIVEN groups of one token, of many, and of slices
    for ops, on in (
        (feed_forward(1), chip("bm1684x")),
        (heads(130), chip("bm1684x")),
        (feed_forward(330, 128, 448), small(12288)),
    ):
        plans = planned(ops, on).groups
        snapshot = streamed(ops, on).snapshot
        timing = time_module(snapshot.report, on)
        # THEN the instructions of each take the cycles of its plan's steps, and all ops what the module takes
        cycles = Counter[int]()
        for op in timing.ops:
            cycles[snapshot.ops[op.op].parent or -1] += op.cycles
        assert cycles.total() == timing.total_cycles
        assert [cycles[at] for at in group_indices(snapshot.ops)] == [plan.cycles for plan in plans]
        for plan in plans:
            assert plan.cycles == sum(max(s.compute_cycles, s.transfer_cycles) for s in plan.steps)


# -- whole models --------------------------------------------------------------------------------------------------


@cache
def fused(family: str, mode: str) -> tuple[Compilation, WeightLoader]:
    """A tiny checkpoint of one layer at S 64, L 16; the folder stays for the process."""
    path = write_tiny(Path(mkdtemp(prefix="tiny-")) / family, family, layers=1)
    options = {"seq_length": 64, "quantize": mode, "decode_chunks": (), "fuse_weights": True}
    return compile_here(path, **options), weights_of(open_model(path))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_computes_what_the_interpreter_computes(family: str, mode: str) -> None:
    program, loader = fused(family, mode)
    assert check(program) == []
    for spec in program.specs:
        # GIVEN a module with random inputs behind half of its history
        found, expected, machine = both(program, loader, spec, random_inputs(program, spec, spec.cache // 2))
        # WHEN its instructions run on the machine THEN they give the interpreter's numbers
        assert not machine.violations, (spec.name, machine.violations[:3])
        for name, values in expected.items():
            if values.dtype != np.int32:
                assert cosine(found[name], values) >= 0.9999, (spec.name, name)
        if spec.layers:
            groups = program.modules[spec.name].after("layer-group").report.groups
            assert [group.type for group in groups] == [GroupType.STREAM] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_on_the_machine_gives_the_interpreters_tokens(family: str) -> None:
    program, loader = fused(family, "w4bf16")
    tokens = [
        [token.token for token in Runtime(program, loader, execute).generate([1, 2, 3], 4)]
        for execute in (None, MachineExecutors(program, loader))
    ]
    assert tokens[0] == tokens[1]


def test_a_model_whose_rows_do_not_fit(tmp_path: Path) -> None:
    # GIVEN 300 rows on a chip with a sixteenth of the local memory
    path = write_tiny(tmp_path / "m", "qwen3", hidden=256, head_dim=64, intermediate=448, layers=1)
    with compiling_for(small(16384)):
        program = compile_here(path, seq_length=300, history=False, quantize="w4bf16", fuse_weights=True)
        assert check(program) == []
        loader = weights_of(open_model(path))
        for spec in program.specs:
            found, expected, machine = both(
                program, loader, spec, random_inputs(program, spec, spec.cache // 2)
            )
            # THEN the machine still gives the interpreter's numbers
            assert not machine.violations, (spec.name, machine.violations[:3])
            for name, values in expected.items():
                if values.dtype != np.int32:
                    assert cosine(found[name], values) >= 0.9999, (spec.name, name)
