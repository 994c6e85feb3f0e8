"""Events of the two engines: they are the schedule, and ops fill the time without gaps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from compiled import tiny_compilation

from engine.compiler import Compilation
from engine.errors import CompileError, UserError
from engine.sim.events import timeline
from engine.sim.timing import time_module
from engine.tpu.isa import Arena, Engine


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return tiny_compilation()


def test_a_modules_events_are_its_schedule(compilation: Compilation) -> None:
    snapshot = compilation.snapshots("block_0").after("codegen")
    timing = time_module(snapshot.report, compilation.options.chip)
    (run,) = timeline(compilation, "block_0").runs
    events = run.events.instructions
    assert [e.start for e in events] == timing.schedule.start.tolist()
    assert [e.start + e.cycles - 1 for e in events] == timing.schedule.end.tolist()
    assert sum(e.nbytes for e in events if e.direction == "load") == timing.load_bytes
    assert sum(e.cycles for e in events if e.engine is Engine.TIU) == timing.tiu_busy_cycles
    assert run.events.cycles == timing.total_cycles


def test_events_of_an_engine_never_overlap(compilation: Compilation) -> None:
    (run,) = timeline(compilation, "block_cache_0").runs
    for engine in Engine:
        mine = [e for e in run.events.instructions if e.engine is engine]
        assert all(a.start + a.cycles <= b.start for a, b in pairwise(mine))


def test_ops_fill_the_modules_time(compilation: Compilation) -> None:
    (run,) = timeline(compilation, "block_cache_0").runs
    at = 0
    for op in run.events.ops:
        assert op.start == at
        at += op.cycles
    assert at == run.events.cycles


def test_a_decoded_token_is_every_layer_in_order(compilation: Compilation) -> None:
    found = timeline(compilation)
    assert [run.name for run in found.runs] == [
        "embedding_cache",
        "block_cache_0",
        "block_cache_1",
        "block_cache_2",
        "lm_head",
    ]
    starts = [run.start for run in found.runs]
    assert np.diff([*starts, found.cycles]).tolist() == [run.events.cycles for run in found.runs]
    # layers that share a module share its events, not its addresses
    one, two = found.runs[1:3]
    assert one.events is two.events
    assert one.bases[Arena.COEFF] != two.bases[Arena.COEFF]
    assert one.bases[Arena.NEURON] == two.bases[Arena.NEURON]


def test_places_are_those_of_the_instructions(compilation: Compilation) -> None:
    program = compilation.snapshots("lm_head").after("codegen").report
    (run,) = timeline(compilation, "lm_head").runs
    load = next(e for e in run.events.instructions if e.direction == "load")
    row = program[[e is load for e in run.events.instructions].index(True)]
    assert (load.operands[0].space, load.result.space) == ("DDR", "LMEM")
    assert load.operands[0].address == row["operands"][0]["address"]
    assert load.result.bank == row["result"]["address"] // compilation.options.chip.bank_bytes


def test_a_shorter_history_has_fewer_events(compilation: Compilation) -> None:
    whole, part = (timeline(compilation, "block_kv_0", history) for history in (None, 1))
    assert part.cycles <= whole.cycles
    assert len(part.runs[0].events.instructions) <= len(whole.runs[0].events.instructions) + 8


def test_a_module_alone_keeps_its_own_addresses(compilation: Compilation) -> None:
    # GIVEN a compilation of one module only
    part = Compilation(compilation.config, compilation.options, compilation.specs)
    part.modules["block_0"] = compilation.modules["block_0"]
    (run,) = timeline(part, "block_1").runs
    snapshot = compilation.modules["block_0"].after("codegen")
    assert (run.name, run.bases[Arena.IO]) == ("block_1", snapshot.attributes["io_addr"])


def test_what_is_not_there_is_named(compilation: Compilation) -> None:
    with pytest.raises(UserError, match="unknown module"):
        timeline(compilation, "block_9")
    empty = Compilation(compilation.config, compilation.options, compilation.specs)
    with pytest.raises(CompileError, match="not compiled"):
        timeline(empty, "block_0")
