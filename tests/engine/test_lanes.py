"""Lanes of a module: the schedule as columns, with what every instruction moves and waits for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from compiled import compile_here, tiny_compilation
from tiny import write_tiny

from engine.compiler import Compilation
from engine.errors import CompileError, UserError
from engine.lanes import NOBODY, Lanes, module_lanes
from engine.sim.events import timeline
from engine.sim.timing import time_module
from engine.tpu.isa import Engine

MODULES = ("block_0", "block_kv_0", "block_cache_0", "lm_head")


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return tiny_compilation()


@pytest.mark.parametrize("module", MODULES)
def test_lanes_and_the_trace_are_the_same_events(compilation: Compilation, module: str) -> None:
    # GIVEN the events that a trace is written from
    (run,) = timeline(compilation, module).runs
    events = run.events.instructions
    lanes = module_lanes(compilation, module)
    # THEN the lanes have the same instructions at the same times
    rows = zip(
        *(
            getattr(lanes, name).tolist()
            for name in ("engine", "core", "number", "op", "start", "length", "nbytes")
        ),
        strict=True,
    )
    assert list(rows) == [(e.engine, e.core, e.number, e.op, e.start, e.cycles, e.nbytes) for e in events]
    assert [lanes.kind(i) for i in range(len(lanes))] == [e.kind for e in events]
    assert [lanes.direction(i) for i in range(len(lanes))] == [e.direction for e in events]
    assert lanes.cycles == run.events.cycles


@pytest.mark.parametrize("module", MODULES)
def test_an_engine_stands_still_only_for_the_instruction_that_it_needs(
    compilation: Compilation, module: str
) -> None:
    lanes = module_lanes(compilation, module)
    numbers = lanes.number.tolist()
    for index, (needs, wait) in enumerate(
        zip(lanes.needs.tolist(), lanes.program["wait"].tolist(), strict=True)
    ):
        assert (0 if needs == NOBODY else numbers[needs]) == wait
        assert needs == NOBODY or lanes.engine[needs] != lanes.engine[index]
    held = np.flatnonzero(lanes.idle > 0)
    assert len(held)
    assert (lanes.end[lanes.needs[held]] == lanes.start[held]).all()
    # AND an engine's busy and idle cycles are all up to its last end
    for engine in Engine:
        rows = lanes.rows(0, engine)
        assert lanes.length[rows].sum() + lanes.idle[rows].sum() == lanes.end[rows[-1]]


@pytest.mark.parametrize("module", MODULES)
def test_op_spans_fill_the_time_and_sum_to_what_ops_cost(compilation: Compilation, module: str) -> None:
    lanes = module_lanes(compilation, module)
    assert lanes.spans[0].start == 0
    assert lanes.spans[-1].end == lanes.cycles
    assert all(a.end == b.start and a.index != b.index for a, b in pairwise(lanes.spans))
    program = compilation.snapshots(module).after("codegen").report
    for op in time_module(program, compilation.options.chip).ops:
        assert sum(s.end - s.start for s in lanes.spans if s.index == op.op) == op.cycles


def _moved(lanes: Lanes) -> dict[tuple[str, str, str], int]:
    """Bytes by tensor, kind of data and direction."""
    found: dict[tuple[str, str, str], int] = {}
    for index in lanes.rows(0, Engine.GDMA).tolist():
        tensor = lanes.moved(index)
        assert tensor is not None
        key = tensor.name, tensor.data, lanes.direction(index)
        found[key] = found.get(key, 0) + int(lanes.nbytes[index])
    return found


def test_every_transfer_names_its_tensor(compilation: Compilation) -> None:
    moved = _moved(module_lanes(compilation, "block_cache_0"))
    place = "model.layers.{i}.self_attn"
    # whole weights, with their scales and zero points
    snapshot = compilation.snapshots("block_cache_0").after("codegen")
    weight = next(op for op in snapshot.ops if op.name == "top.Weight" and "q_proj.weight" in op.location)
    assert moved[f"{place}.q_proj.weight", "weights", "load"] == weight.result_types[0].nbytes
    assert (f"{place}.q_proj.weight.scale", "weights", "load") in moved
    # the history and the new rows
    assert (f"{place}.keys", "kv_cache", "load") in moved
    stored = [name for name, data, way in moved if (data, way) == ("kv_cache", "store")]
    assert any("k_" in name for name in stored)
    assert any("v_proj" in name for name in stored)
    # tables that no checkpoint stores
    assert {name for name, data, _ in moved if data == "other"} >= {"@rope.cos", "@rope.sin"}
    assert ("input_states", "activations", "load") in moved


def test_names_are_those_of_the_layer(compilation: Compilation) -> None:
    lanes = module_lanes(compilation, "block_cache_1")
    assert (lanes.name, lanes.spec_name, lanes.layer) == ("block_cache_1", "block_cache_0", 1)
    rows = lanes.to_json()["instructions"]
    assert "model.layers.1.self_attn.q_proj.weight" in {row["tensor"] for row in rows}
    assert "{i}" not in str(rows)


def test_utilisation_is_a_part_of_the_peak(compilation: Compilation) -> None:
    lanes = module_lanes(compilation, "block_0")
    known = lanes.utilisation[~np.isnan(lanes.utilisation)]
    assert (known >= 0).all()
    assert (known <= 1).all()
    unknown = {lanes.kind(i) for i in np.flatnonzero(np.isnan(lanes.utilisation)).tolist()}
    assert unknown <= {"CW_TRANSPOSE", "WC_TRANSPOSE"}
    load = next(i for i in range(len(lanes)) if lanes.direction(i) == "load")
    assert lanes.rate[load] == lanes.nbytes[load] / lanes.length[load]


def test_a_shorter_history_drops_instructions(compilation: Compilation) -> None:
    whole, part = (module_lanes(compilation, "block_kv_0", history) for history in (None, 0))
    assert len(part) < len(whole)
    assert part.cycles < whole.cycles
    assert part.cycles == timeline(compilation, "block_kv_0", 0).cycles


def test_several_cores_have_lanes_of_their_own(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m", "llama", layers=1)
    options = {"chip_name": "bm1688", "cores": 2, "seq_length": 64, "quantize": "bf16", "decode_chunks": ()}
    lanes = module_lanes(compile_here(path, ["block_0"], **options), "block_0")
    assert lanes.cores == 2
    for core in range(2):
        rows = lanes.rows(core, Engine.TIU)
        assert (lanes.end[rows][:-1] <= lanes.start[rows][1:]).all()
        needed = lanes.needs[lanes.core == core]
        assert (lanes.core[needed[needed != NOBODY]] == core).all()
    assert {(row["core"], row["engine"]) for row in lanes.to_json()["engines"]} == {
        (core, engine) for core in (0, 1) for engine in ("GDMA", "TIU")
    }


def test_a_result_of_a_group_is_read_by_the_name_of_the_op_that_made_it(tmp_path: Path) -> None:
    # GIVEN a module with a group that has more ops than results, and what is stored at each address
    path = write_tiny(tmp_path / "qwen2", "qwen2")
    lanes = module_lanes(compile_here(path, ["block_0"], seq_length=64, quantize="bf16"), "block_0")
    groups = [record for record in lanes.records if record.name == "tpu.Group"]
    assert any(1 < len(group.results) < len(group.origins) for group in groups)
    stored = {r.result_types[0].address: r.location for r in lanes.records if r.name == "tpu.Store"}
    made = {
        value: stored[type_.address]
        for group in groups
        for value, type_ in zip(group.results, group.result_types, strict=True)
    }
    # WHEN a load reads a result THEN its instructions move what the op inside made, by its name
    read = {
        (lanes.tensors[tensor].name, made[lanes.records[op].operands[0]])
        for op, tensor in zip(lanes.op.tolist(), lanes.tensor.tolist(), strict=True)
        if lanes.records[op].name == "tpu.Load" and lanes.records[op].operands[0] in made
    }
    assert read
    assert all(name == expected for name, expected in read)


def test_modules_that_are_not_there(compilation: Compilation, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown module 'block_9'"):
        module_lanes(compilation, "block_9")
    empty = Compilation(compilation.config, compilation.options, compilation.specs)
    with pytest.raises(CompileError, match="block_0 was not compiled"):
        module_lanes(empty, "block_0")
