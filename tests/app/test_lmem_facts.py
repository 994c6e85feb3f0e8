"""What is said about a group's local memory: lifetimes, slices, pipeline, free space, problems, cycles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from lmem_cases import INDEX, OPS, PLAN, with_buffer
from stream_bench import feed_forward, planned, small

from app.widgets.lmem_facts import GroupFacts, Part, parts_of, slice_text
from app.widgets.lmem_words import kib, secs_text
from engine.group_cores import price_items
from engine.passes.layer_group.plan import BufferKind, GroupPlan, Secs
from engine.passes.layer_group.search import plan_groups
from engine.tpu.chip import chip

CHIP = chip("bm1684x")


def facts_of(plan: GroupPlan = PLAN) -> GroupFacts:
    return GroupFacts(plan, OPS, CHIP)


def test_a_lifetime_around_the_end_of_the_loop_has_two_parts() -> None:
    # GIVEN a buffer that is loaded in step 2 for step 1 of the next pass
    buffer = PLAN.buffers[INDEX["attention"]]
    # WHEN its rectangles are asked for THEN there are two, and one for a buffer that does not wrap
    assert parts_of(0, buffer, 3) == (Part(0, 1, 2, goes_on=True), Part(0, 0, 0, came_on=True))
    assert parts_of(1, PLAN.buffers[INDEX["residual"]], 3) == (Part(1, 1, 2),)


def test_live_buffers_come_by_address() -> None:
    live = facts_of().live_at(1)
    assert [PLAN.buffers[i].address for i in live] == sorted(PLAN.buffers[i].address for i in live)
    assert INDEX["residual"] in live
    assert INDEX["norm"] not in live


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("o_proj weight", ("%13 o_proj", "%13 o", "%13")),
        ("gamma", ("%14 gamma of post_attention_layernorm", "%14 gamma", "%14")),
        ("residual", ("%32 attention_residual · Add", "%32 attention_residual", "%32")),
        ("input", ("%1 input_states", "%1")),
    ],
)
def test_names_from_long_to_short(name: str, texts: tuple[str, ...]) -> None:
    assert tuple(facts_of().names(INDEX[name])) == texts


def test_scratch_is_named_after_its_op() -> None:
    assert facts_of().names(INDEX["scratch"])[1] == "scratch of %33 RMSNorm"


def test_readers_writer_and_moves() -> None:
    facts = facts_of()
    residual = INDEX["residual"]
    writer = facts.writer(residual)
    assert writer is not None
    assert (writer.value, facts.step_of[writer.id]) == ("%32", 1)
    assert [item.value for item in facts.readers(residual)] == ["%33"]
    assert [item.kind.value for item in facts.moves(residual)] == ["store"]
    assert facts.touched(residual) == ({1, 2}, {2})


def test_free_bytes_and_fragmentation_of_a_step() -> None:
    # GIVEN step 2 with 72 + 12 + 12 + 12 + 12 + 3 KiB live up to 179 KiB
    memory = facts_of().memory(1)
    # THEN live, top and free add up, and the largest hole is the one behind the last buffer
    assert (memory.live, memory.top) == (123 * 1024, 179 * 1024)
    assert memory.free == CHIP.lmem_bytes - memory.live
    assert memory.largest_free == CHIP.lmem_bytes - memory.top
    assert memory.holes == 6
    assert memory.fragmentation == pytest.approx(1 - 77 / 133)


class TestPipeline:
    def test_stages_work_on_slices_one_behind_the_other(self) -> None:
        facts = facts_of()
        assert facts.pipeline_steps == 4
        assert [facts.slice_at(stage, 1) for stage in range(3)] == [1, 0, None]
        assert facts.pipeline_text(1) == "pipeline step 2/4, slices: loads 1, computes 0"

    def test_both_parts_of_a_buffer_hold_different_slices(self) -> None:
        # GIVEN pipeline step 2 of 4 WHEN the loaded value wraps
        ahead, behind = parts_of(INDEX["attention"], PLAN.buffers[INDEX["attention"]], 3)
        facts = facts_of()
        # THEN its first part is slice 1 being loaded, its second part slice 0 being computed
        assert (facts.slice_of(ahead, 1), facts.slice_of(behind, 1)) == (1, 0)
        # AND at the ends of the pipeline one of them is empty
        assert (facts.slice_of(ahead, 0), facts.slice_of(behind, 0)) == (0, None)
        assert (facts.slice_of(ahead, 2), facts.slice_of(behind, 2)) == (None, 1)

    def test_held_weights_are_there_for_every_computed_slice(self) -> None:
        part = parts_of(INDEX["o_proj weight"], PLAN.buffers[INDEX["o_proj weight"]], 3)[0]
        assert [facts_of().slice_of(part, step) for step in range(4)] == [0, 0, 1, None]

    def test_what_is_not_in_use_is_not_counted(self) -> None:
        facts = facts_of()
        assert facts.memory(0, 3).live == 12288  # only the last store is left
        assert facts.memory(1, 3).live == 0

    def test_slices_in_words(self) -> None:
        slices = PLAN.items[0].slices
        assert slice_text(slices, PLAN.secs, 1) == "c 256..511 of 512, h 0..1535"
        assert slice_text(slices, PLAN.secs, None) == "c 256 of 512, h 0..1535"
        assert secs_text(Secs(n=2, c=4).as_tuple()) == "nsecs 2 csecs 4"
        assert secs_text(Secs().as_tuple()) == "1 slice"


class TestProblems:
    def test_a_good_plan_has_none(self) -> None:
        assert facts_of().problems == {}

    def test_behind_the_end(self) -> None:
        problems = facts_of(with_buffer("norm", address=255 * 1024)).problems
        assert problems == {
            INDEX["norm"]: "ends 11,264 B behind the end of local memory (262,144 B)",
        }

    def test_overlap_names_both(self) -> None:
        problems = facts_of(with_buffer("residual", address=98304)).problems
        assert problems[INDEX["residual"]].startswith("overlaps %")
        assert problems[INDEX["o_proj"]] == "overlaps %32 at 98,304 in step 2"

    def test_overlap_in_different_steps_is_reuse(self) -> None:
        # GIVEN scratch of step 3 where the input of steps 1 and 2 lies THEN nothing is wrong
        scratch, values = PLAN.buffers[INDEX["scratch"]], PLAN.buffers[INDEX["input"]]
        assert scratch.address < values.address < scratch.address + scratch.nbytes
        assert facts_of().problems == {}

    def test_a_longer_life_is_found(self) -> None:
        problems = facts_of(with_buffer("input", last_step=2)).problems
        assert set(problems) == {INDEX["input"], INDEX["scratch"]}

    def test_not_aligned_and_not_placed(self) -> None:
        assert "multiple of 64 B" in facts_of(with_buffer("gamma", address=180225)).problems[INDEX["gamma"]]
        assert facts_of(with_buffer("gamma", address=-1)).problems[INDEX["gamma"]] == "has no address"


def test_banks_that_both_engines_touch() -> None:
    # GIVEN the residual stored in step 3 while RMSNorm reads it THEN its bank is shared in that step only
    assert [sorted(banks) for banks in facts_of().clashes] == [[], [], [9]]


def test_values_without_a_buffer_lie_in_their_operand() -> None:
    # GIVEN a sum that replaces its operand: one buffer, two values at one address
    items = [replace(i, out_address=98304) if i.value == "%32" else i for i in PLAN.items]
    buffers = [b for b in PLAN.buffers if b.value != "%32"]
    facts = facts_of(replace(PLAN, items=tuple(items), buffers=tuple(buffers)))
    # THEN the sum's memory is the product's, and so are the sum's reader and its store
    assert facts.root("%32") == "%31"
    assert {item.value for item in facts.readers(INDEX["o_proj"])} == {"%32", "%33"}
    assert [item.value for item in facts.moves(INDEX["o_proj"])] == ["%32"]


@pytest.mark.parametrize("name", ["bm1684x", "bm1688"])
def test_cycles_of_pipeline_steps_add_up_to_the_groups(name: str) -> None:
    # GIVEN what the pass plans for these ops on a chip
    report = plan_groups(OPS, chip(name))
    assert report.groups
    for plan in report.groups:
        # WHEN every item is priced for every slice
        facts = GroupFacts(plan, OPS, chip(name), pricer=partial(price_items, plan, OPS, chip(name)))
        # THEN the slower engine of every step of every pipeline step gives the group's cycles
        total = sum(facts.cost(s, p).cycles for p in range(facts.pipeline_steps) for s in range(facts.steps))
        assert total == plan.cycles


def test_bound_and_slack_of_a_step() -> None:
    facts = facts_of()
    assert [(facts.cost(s).bound, facts.cost(s).slack) for s in range(3)] == [
        ("TIU", 39751),
        ("DMA", 14175),
        ("DMA", 102845),
    ]
    engine, share = facts.bound_share()
    assert (engine, round(share, 2)) == ("DMA", 0.62)


def test_kib() -> None:
    assert [kib(n) for n in (0, 2304, 73728, 1 << 18)] == ["0", "2.2", "72", "256"]


def test_a_group_that_streams_weights_keeps_tiles_and_scratch_in_banks_of_their_own() -> None:
    # GIVEN a feed-forward network whose weights come tile by tile, on little local memory
    little = small(32768)
    ops = feed_forward(1, 256, 2560)
    (plan,) = planned(ops, little).groups
    facts = GroupFacts(plan, ops, little, pricer=partial(price_items, plan, ops, little))
    apart = [
        index
        for index, buffer in enumerate(plan.buffers)
        if buffer.kind is BufferKind.SCRATCH or (buffer.kind is BufferKind.WEIGHT and buffer.nbytes > 1024)
    ]
    banks = {bank for index in apart for bank in facts.banks(index)}
    assert any(plan.buffers[index].kind is BufferKind.WEIGHT for index in apart)
    # THEN no step has both engines in one of those banks, and every buffer is touched while it lives
    assert not any(banks & clash for clash in facts.clashes)
    assert not facts.problems
    for index, buffer in enumerate(plan.buffers):
        computed, moved = facts.touched(index)
        assert min(computed | moved) == buffer.first_step
        assert max(computed | moved) == buffer.last_step
    # and there is one pipeline step, with the costs of the plan
    assert facts.pipeline_steps == 1
    assert [facts.cost(step, 0) for step in range(facts.steps)] == [facts.cost(s) for s in range(facts.steps)]
