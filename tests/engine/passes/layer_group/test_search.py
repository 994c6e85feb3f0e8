"""The cut of chains into groups: cost orders, the exact solver, demanded groups, explanations, bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_records import Records, mlp, norms
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from engine.passes.layer_group.allocation import BANK_RULE, FRAGMENTATION, MEMORY
from engine.passes.layer_group.chains import Program, group_of
from engine.passes.layer_group.cost import prices_of
from engine.passes.layer_group.cutting import MAX_UNITS, Chain, cut_cheapest, cut_greedily
from engine.passes.layer_group.exact import best_table
from engine.passes.layer_group.placing import Placed, draft, place, with_table
from engine.passes.layer_group.plan import GroupPlan, ItemKind, LayerGroupReport, Secs
from engine.passes.layer_group.search import plan_groups
from engine.passes.layer_group.trial import CHEAPEST, EXACT, GREEDY
from engine.snapshot import OpRecord
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
Ops = tuple[OpRecord, ...]


def total(report: LayerGroupReport) -> int:
    return sum(group.cycles for group in report.groups) + sum(report.global_cycles.values())


def kinds(ops: Ops, group: GroupPlan) -> list[str]:
    return [ops[index].kind for index in group.records]


def gate(tokens: int = 512, inner: int = 8960) -> Ops:
    module = Records()
    wide = module.cast(module.input(1, tokens, inner), "f32")
    return module.done(module.cast(module.silu(wide), "bf16"))


def attention_out(tokens: int = 512, hidden: int = 1536) -> Ops:
    module = Records()
    product = module.matmul(module.input(1, tokens, hidden), hidden)
    total_ = module.add(module.input(1, tokens, hidden), product)
    return module.done(total_, module.norm(total_))


def ropes() -> Ops:
    module = Records()
    sin, cos = module.input(1, 512, 1, 64), module.input(1, 512, 1, 64)
    q = module.rope(module.input(1, 512, 9, 64), sin, cos)
    return module.done(q, module.rope(module.input(1, 512, 3, 64), sin, cos))


@pytest.mark.parametrize(
    ("make", "secs", "cycles"),
    [
        (norms, Secs(), 50912),
        (ropes, Secs(), 38600),
        (gate, Secs(c=8), 418448),
        (attention_out, Secs(c=2), 321885),
    ],
)
def test_groups_are_sliced_as_the_reference_slices_them(
    make: Callable[[], Ops], secs: Secs, cycles: int
) -> None:
    # GIVEN chains of SmolLM2-135M and Qwen2.5-1.5B, S = 512, which the reference makes one group
    ops = make()
    report = plan_groups(ops, CHIP)
    # THEN so do we, with its slices, and its cycles or fewer
    (group,) = report.groups
    assert (group.secs, group.cycles) == (secs, cycles)
    assert not report.global_cycles


def test_ops_that_are_cheaper_apart_stay_apart() -> None:
    # GIVEN one decode row: weights are read as fast by a kernel of its own
    ops = mlp(1, 1024, 3072)
    report = plan_groups(ops, CHIP)
    assert {ops[index].kind for index in report.global_cycles} >= {"MatMul"}


@pytest.mark.parametrize("ops", [norms(), mlp(), mlp(1), mlp(512, 576, 1536), gate(), ropes()])
def test_the_cheapest_cut_is_never_dearer_than_the_greedy_one(ops: Ops) -> None:
    assert total(plan_groups(ops, CHIP, opt=CHEAPEST)) <= total(plan_groups(ops, CHIP, opt=GREEDY))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.sampled_from([1, 200]))
def test_no_cut_beats_the_cheapest(lengths: list[int], tokens: int) -> None:
    # GIVEN a chain and any cut of it
    ops = mlp(tokens, 128, 256)
    program = Program.of(ops, CHIP)
    (indices,) = program.chains()
    chain = Chain(program, indices, prices_of(CHIP))
    at, cost = 0, 0.0
    for length in [*lengths, len(indices)]:
        last = min(at + length, len(indices)) - 1
        if at > last:
            break
        part = chain.cost(at, last)
        cost = float("inf") if part is None else cost + part
        at = last + 1
    # THEN the cheapest cut costs no more
    best = cut_cheapest(chain, [(i, i) for i in range(len(indices))])
    assert sum(part.cycles for part in best) <= cost


def test_greedy_takes_as_many_ops_as_fit_from_the_tail() -> None:
    ops = mlp()
    program = Program.of(ops, CHIP)
    (indices,) = program.chains()
    parts = cut_greedily(Chain(program, indices, prices_of(CHIP)), [(i, i) for i in range(len(indices))])
    assert [(part.first, part.last) for part in parts] == [(0, len(indices) - 1)]


def test_long_chains_are_cut_piece_by_piece() -> None:
    # GIVEN more ops than are cut at once
    module = Records()
    x = module.input(1, 64, 64)
    y = x
    for _ in range(MAX_UNITS + 10):
        y = module.add(y, x)
    ops = module.done(y)
    report = plan_groups(ops, CHIP)
    # THEN every op is in one group or global
    placed = [index for group in report.groups for index in group.records] + list(report.global_cycles)
    assert sorted(placed) == [index for index, op in enumerate(ops) if op.kind == "Add"]
    assert len(report.groups) < 5


# -- plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ops", [norms(), mlp(512, 576, 1536), gate(), ropes(), attention_out()])
def test_plans_are_whole(ops: Ops) -> None:
    for group in plan_groups(ops, CHIP).groups:
        # every item runs in one time step, every op is computed once
        in_steps = sorted(i for step in group.steps for i in (*step.computes, *step.transfers))
        assert in_steps == [item.id for item in group.items]
        computed = [item.record for item in group.items if item.kind is ItemKind.COMPUTE]
        assert computed == list(group.records)
        # every item's memory is inside a buffer of its value's, and everything is inside local memory
        spans = [(b.address, b.address + b.nbytes) for b in group.buffers]
        for item in group.items:
            end = item.out_address + item.out_bytes
            assert any(start <= item.out_address and end <= stop for start, stop in spans)
        assert group.peak_bytes == max(stop for _, stop in spans) <= CHIP.lmem_bytes
        assert group.flow[0] == -1
        assert group.flow.count(-len(group.steps)) == 1


def test_the_same_structure_gets_the_same_plan_whatever_its_names() -> None:
    # GIVEN the norms twice in one module, the second time with other names
    module = Records()
    x = module.input(1, 512, 576)
    first = module.add(module.input(1, 512, 576), x)
    read = module.attention(module.norm(first))
    second = module.add(first, read)
    ops = module.done(second, module.norm(second))
    # WHEN groups are planned
    one, two = plan_groups(ops, CHIP).groups
    # THEN both are alike, each with its own values and records
    assert (one.secs, one.cycles, one.flow) == (two.secs, two.cycles, two.flow)
    assert {item.value for item in one.items}.isdisjoint({i.value for i in two.items} - {first})
    for group in (one, two):
        for item in group.items:
            record = ops[item.record]
            assert item.value in (*record.operands, *record.results)


# -- the exact solver ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ops", [norms(), mlp(256, 128, 256), mlp(1, 128, 256), gate(512, 4864), ropes(), attention_out()]
)
def test_exact_time_steps_show_how_far_the_others_are_from_the_best(ops: Ops) -> None:
    pytest.importorskip("scipy")
    prices = prices_of(CHIP)
    program = Program.of(ops, CHIP)
    (indices,) = program.chains()
    for first in range(len(indices) - 1):
        part = indices[first : first + 5]
        for secs in (Secs(), Secs(c=2)):
            group = group_of(program, part)
            if secs.c > 1 and group.tensors[group.outputs[0]].shape[1] <= CHIP.lanes:
                continue
            found = draft(group, secs, prices)
            heuristic = place(found, prices)
            table = best_table(found, CHIP)
            # GIVEN time steps that fit, the solver finds some, too, and none cost less
            if isinstance(heuristic, Placed):
                assert table is not None
                assert found.profile.cycles(table) <= heuristic.cycles
                assert heuristic.cycles <= 1.3 * found.profile.cycles(table)
            # AND what the solver says holds: every transfer is where it may be, and memory suffices
            if table is not None:
                assert all(t.earliest <= t.row <= t.latest for t in table.transfers)
                with_table(found, table, prices)


@pytest.mark.parametrize("ops", [norms(), gate(512, 4864), mlp(256, 128, 256)])
def test_exact_search_costs_no_more_than_the_cheapest_cut(ops: Ops) -> None:
    pytest.importorskip("scipy")
    exact, cheapest = (total(plan_groups(ops, CHIP, opt=opt)) for opt in (EXACT, CHEAPEST))
    assert exact <= cheapest <= 1.1 * exact


# -- demanded groups and bad input ---------------------------------------------------------------------------------


def test_a_demanded_group_is_made_even_if_it_costs_more() -> None:
    ops = mlp(1, 512, 512)
    plain = plan_groups(ops, CHIP)
    indices = [index for index, op in enumerate(ops) if op.kind in ("Mul", "MatMul")][-2:]
    span = (indices[0], indices[1])
    assert span not in [(g.records[0], g.records[-1]) for g in plain.groups]
    report = plan_groups(ops, CHIP, forced=[span])
    assert span in [(g.records[0], g.records[-1]) for g in report.groups]
    number = [(g.records[0], g.records[-1]) for g in report.groups].index(span)
    assert report.explanations[number].begins == "as the user demanded"


def test_a_demanded_group_that_cannot_be_names_op_bytes_and_what_fits() -> None:
    # GIVEN a chain whose weights exceed local memory together: 2 x 192 KiB a lane
    module = Records()
    x = module.input(1, 512, 2048)
    y = module.matmul(module.matmul(module.norm(x), 3072), 2048)
    ops = module.done(module.norm(module.add(x, y)))
    indices = Program.of(ops, CHIP).chains()[0]
    with pytest.raises(UserError) as raised:
        plan_groups(ops, CHIP, forced=[(indices[0], indices[-1])])
    text = str(raised.value)
    assert f"--force-group {indices[0]}..{indices[-1]}" in text
    assert "MatMul at matmul_" in text
    assert str(CHIP.lmem_bytes) in text
    assert "bytes" in text
    # THEN the part that it says fits, does
    span = text.rsplit("; ", 1)[1].split(" ", 1)[0]
    first, last = map(int, span.split(".."))
    assert plan_groups(ops, CHIP, forced=[(first, last)])


def test_a_demanded_group_over_a_global_op_names_it() -> None:
    module = Records()
    x = module.norm(module.input(1, 8, 64))
    read = module.attention(x)
    ops = module.done(module.norm(module.add(read, x)))
    with pytest.raises(UserError, match=r"FAttention at fattention_\d+\) has no kernel.*may cover 4\.\.6"):
        plan_groups(ops, CHIP, forced=[(2, 6)])


@pytest.mark.parametrize(
    ("forced", "reason"),
    [
        ([(3, 3)], "no two ops"),
        ([(0, 99)], "no two ops"),
        ([(2, 4), (4, 4)], "no two ops"),
        ([(0, 2)], "nothing"),
    ],
)
def test_a_demanded_group_must_be_ops_of_a_chain(forced: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        plan_groups(norms(), CHIP, forced=forced)


def test_demanded_groups_must_not_overlap() -> None:
    ops = mlp()
    chain = Program.of(ops, CHIP).chains()[0]
    with pytest.raises(UserError, match="also in the demanded group"):
        plan_groups(ops, CHIP, forced=[(chain[0], chain[2]), (chain[2], chain[3])])


def test_an_unknown_search_is_refused() -> None:
    with pytest.raises(UserError, match="--opt 4 is unknown; accepted: 1"):
        plan_groups(norms(), CHIP, opt=4)


def test_an_op_too_large_for_local_memory_stays_global() -> None:
    # GIVEN a weight of 2 MiB a lane, and a SiLU of which not even one row per lane fits at once
    module = Records()
    x = module.input(1, 64, 8192)
    ops = module.done(module.norm(module.add(x, module.matmul(x, 8192))))
    report = plan_groups(ops, CHIP)
    product = next(index for index, op in enumerate(ops) if op.kind == "MatMul")
    assert product in report.global_cycles


# -- explanations --------------------------------------------------------------------------------------------------


def test_the_slice_counts_that_failed_are_explained_with_bytes() -> None:
    # GIVEN the group that the reference cuts in two: whole, it does not find a place for everything
    report = plan_groups(attention_out(), CHIP)
    (explanation,) = report.explanations
    failed, taken = explanation.attempts
    assert failed.secs == Secs()
    assert failed.reason in (MEMORY, FRAGMENTATION, BANK_RULE)
    assert failed.needed_bytes > failed.available_bytes == CHIP.lmem_bytes
    assert failed.cycles is None
    assert (taken.secs, taken.reason, taken.cycles) == (Secs(c=2), "", 321885)
    assert taken.needed_bytes <= CHIP.lmem_bytes
    assert explanation.begins == "the module begins"
    assert explanation.ends == "the module ends"


def test_slice_counts_that_no_op_fits_are_explained_once() -> None:
    # GIVEN a SiLU that takes ten times as much as there is
    (explanation,) = plan_groups(gate(), CHIP).explanations
    failed, taken = explanation.attempts
    # THEN the whole is said to fail, and the next slicing tried is one that each op alone fits
    assert (failed.secs, failed.reason, failed.needed_bytes) == (Secs(), MEMORY, 8 * 8960 * 4 * 4 + 64)
    assert taken.secs == Secs(c=8)


def test_the_ends_of_a_group_are_explained_with_what_else_was_possible() -> None:
    # GIVEN attention between two groups, and a product that is too large to join
    module = Records()
    x = module.input(1, 512, 576)
    total_ = module.add(x, module.attention(module.norm(x)))
    normal = module.norm(total_)
    ops = module.done(total_, module.matmul(normal, 49152))
    (explanation,) = plan_groups(ops, CHIP).explanations
    assert explanation.begins.startswith("FAttention at fattention_")
    assert "no kernel" in explanation.begins
    assert explanation.ends.startswith("MatMul at matmul_")
    assert "cannot join" in explanation.ends
    (alternative,) = explanation.alternatives
    assert alternative.joined_cycles is None
    assert alternative.split_cycles > 0


def test_a_cheaper_split_is_explained_with_both_costs() -> None:
    # GIVEN one decode row of norm, two small products and a large one: the large one is cheaper global
    module = Records()
    x = module.norm(module.input(1, 1, 2048))
    ops = module.done(module.matmul(x, 128), module.matmul(x, 1024))
    report = plan_groups(ops, CHIP)
    assert [kinds(ops, group) for group in report.groups] == [["RMSNorm", "MatMul"]]
    (alternative,) = report.explanations[0].alternatives
    assert alternative.joined_cycles is not None
    assert alternative.joined_cycles > alternative.split_cycles
    assert str(alternative.split_cycles) in report.explanations[0].ends


def test_several_n_are_sliced_one_by_one_for_a_product() -> None:
    # GIVEN rows of two sequences; a product in local memory takes one n
    module = Records()
    ops = module.done(module.norm(module.matmul(module.input(2, 64, 64), 64)))
    (group,) = plan_groups(ops, CHIP, forced=[(2, 4)]).groups
    assert group.secs == Secs(n=2)
