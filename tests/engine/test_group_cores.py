"""What each core runs of a layer group, against the program that is emitted for it and the time that it takes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from compiled import compile_here
from core_cases import SMALL
from lmem_cases import OPS, PLAN

from engine.compiler import Compilation
from engine.errors import UserError
from engine.group_cores import (
    CoreShare,
    core_cycles,
    core_shares,
    on_core,
    pipeline_cycles,
    price_items,
    step_cycles,
    whole_share,
)
from engine.passes.layer_group.plan import GroupPlan, LayerGroupReport, Secs
from engine.passes.layer_group.view import group_indices, read_group
from engine.sim.timing import time_module
from engine.snapshot import OpRecord
from engine.tables import memory_table
from engine.tpu.chip import chip

CORES = 2


@cache
def compiled() -> Compilation:
    """A block of two cores with a group that is cut into several slices."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(SMALL))
        return compile_here(
            path,
            ["block_0"],
            quantize="bf16",
            seq_length=1024,
            history=False,
            chip_name="bm1688",
            cores=CORES,
        )


def snapshot(pass_name: str) -> Any:
    return compiled().modules["block_0"].after(pass_name)


def group(**attributes: Any) -> OpRecord:
    """The record of a group on some cores."""
    return OpRecord("tpu.Group", (), (), (), (), attributes, ("group",))


def sliced(count: int) -> GroupPlan:
    return replace(PLAN, secs=Secs(c=count))


def shares_of(plan: GroupPlan, record: OpRecord, cores: int) -> tuple[CoreShare, ...]:
    return core_shares(LayerGroupReport((plan,), (), {}), [record], cores)[0]


class TestShares:
    def test_slices_are_dealt_out_in_ranges(self) -> None:
        # GIVEN a group of five slices on two of three cores
        record = group(run_core_id=[0, 1], core_split=[[0, 3], [3, 2]])
        first, second, third = shares_of(sliced(5), record, 3)
        # THEN each knows its slices, and the core that is left over that it has none
        assert (first.numbers, second.numbers, third.numbers) == ((0, 1, 2), (3, 4), ())
        assert first.text == "core 0 of 3 · slices 0..2 of 5"
        assert second.text == "core 1 of 3 · slices 3..4 of 5"
        assert third.text == "core 2 of 3 · no slice"
        assert (first.idle, third.idle) == (False, True)

    @pytest.mark.parametrize(
        ("slices", "record", "texts"),
        [
            (1, group(run_core_id=[0]), ["the one slice", "no slice"]),
            (4, group(run_core_id=[1]), ["no slice", "slices 0..3 of 4"]),
            (2, group(run_core_id=[0, 1], core_split=[[0, 1], [1, 1]]), ["slice 0 of 2", "slice 1 of 2"]),
            (3, group(), ["slices 0..2 of 3", "no slice"]),
        ],
    )
    def test_in_words(self, slices: int, record: OpRecord, texts: list[str]) -> None:
        assert [share.slices_text for share in shares_of(sliced(slices), record, 2)] == texts

    def test_each_part_is_a_pipeline_of_its_own(self) -> None:
        # GIVEN a core with two ranges of slices
        record = group(run_core_id=[0, 1], core_split=[[0, 2], [2, 2], [4, 1]])
        share = shares_of(sliced(5), record, 2)[0]
        # THEN it fills and drains the pipeline twice, and holds weights anew for each
        assert share.slices_text == "slices 0..1, 4 of 5"
        assert share.pipeline_steps == (2 + 2) + (1 + 2)
        assert [share.slice_at(1, step) for step in range(7)] == [None, 0, 1, None, None, 4, None]
        held = next(item for item in PLAN.items if item.held)
        assert [share.runs(held, step) for step in range(7)] == [
            True,
            False,
            False,
            False,
            True,
            False,
            False,
        ]

    def test_the_whole_group_is_one_pipeline(self) -> None:
        share = whole_share(sliced(4))
        assert share.whole
        assert share.pipeline_steps == 6
        assert [share.slice_at(stage, 2) for stage in range(3)] == [2, 1, 0]
        assert share.slice_at(0, 6) is None

    def test_a_core_without_slices_has_nothing_in_its_memory(self) -> None:
        idle = shares_of(PLAN, group(run_core_id=[0]), 2)[1]
        assert (on_core(PLAN, idle).buffers, on_core(PLAN, idle).steps, core_cycles(PLAN, idle, {})) == (
            (),
            (),
            0,
        )
        assert on_core(PLAN, whole_share(PLAN)) is PLAN


class TestCycles:
    def test_on_one_core_they_are_the_plans(self) -> None:
        costs = price_items(PLAN, OPS, chip("bm1684x"))
        assert sum(pipeline_cycles(PLAN, whole_share(PLAN), costs)) == PLAN.cycles

    def test_a_step_of_the_loop_is_that_of_the_cores_largest_slice(self) -> None:
        # GIVEN slices of which the second costs less
        costs = {item.id: (10, 4) for item in PLAN.items}
        share = CoreShare(1, 2, 2, 3, ((1, 1),))
        # WHEN the core runs the second one alone THEN that is what its steps cost
        first = PLAN.steps[0]
        assert step_cycles(PLAN, share, costs, 0, None) == (4 * len(first.computes), 4 * len(first.transfers))

    @pytest.mark.parametrize("core", range(CORES))
    def test_every_pipeline_step_takes_what_the_emitted_program_takes(self, core: int) -> None:
        # GIVEN the instructions of a block for two cores, scheduled
        report, program = snapshot("layer-group").report, snapshot("codegen").report
        timing = time_module(program, compiled().options.chip)
        start, end = timing.schedule.start, timing.schedule.end
        shares = core_shares(report, snapshot("core-parallel").ops, CORES)
        ops = snapshot("codegen").ops
        assert any(len(row[core].numbers) > 1 for row in shares)
        for plan, row, index in zip(report.groups, shares, group_indices(ops), strict=True):
            share, view = row[core], read_group(ops, index)
            mine = (program["core"] == core) & (program["op"] >= view.index) & (program["op"] <= view.last)
            costs = price_items(plan, snapshot("op-reorder").ops, compiled().options.chip)
            expected = pipeline_cycles(plan, share, costs)
            # THEN each pipeline step of the core spans as many cycles as are said of it
            number = program["step"] // len(plan.steps)
            found = [
                int(end[mine & (number == at)].max() - start[mine & (number == at)].min() + 1)
                for at in np.unique(number[mine])
            ]
            assert found == [cycles for cycles in expected if cycles]
            assert core_cycles(plan, share, costs) == sum(found)


class TestTable:
    def test_groups_list_what_every_core_runs(self) -> None:
        table = memory_table(compiled(), "block_0")
        for row in table["groups"]:
            assert (row["core"], len(row["cores"])) == (None, CORES)
            slices = [part for core in row["cores"] for part in core["slices"]]
            assert slices[0][0] == 0
            assert sum(count for _, count in slices) == np.prod(row["secs"])
            for core in row["cores"]:
                assert sum(step["cycles"] for step in core["pipeline"]) == core["cycles"]
                stored = [step["store"] for step in core["pipeline"] if step["store"] is not None]
                assert stored == [at + n for at, count in core["slices"] for n in range(count)]

    def test_one_cores_rows_leave_out_the_groups_that_it_does_not_run(self) -> None:
        first, second = (memory_table(compiled(), "block_0", core) for core in range(CORES))
        busy = [row["group"] for row in second["groups"] if row["cores"][1]["slices"]]
        assert {row["group"] for row in first["lmem"]} == {row["group"] for row in first["groups"]}
        assert sorted({row["group"] for row in second["lmem"]}) == busy
        assert 0 < len(busy) < len(second["groups"])
        assert all(bool(row["steps"]) == (row["group"] in busy) for row in second["groups"])

    def test_an_unknown_core_is_refused(self) -> None:
        with pytest.raises(UserError, match="no core 2: this program is compiled for cores 0 to 1"):
            memory_table(compiled(), "block_0", 2)
