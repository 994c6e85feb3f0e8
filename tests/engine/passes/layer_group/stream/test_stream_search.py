"""Which parts of a module are streamed, why, and that nothing is without `--fuse-weights`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from compiled import compile_here
from stream_bench import StreamRecords, feed_forward, heads, planned, small
from tiny import write_tiny

from engine.compiler import Compilation
from engine.errors import UserError
from engine.group_tables import ModuleGroups
from engine.options import CompileOptions, resolve
from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.cost import prices_of
from engine.passes.layer_group.plan import GroupType
from engine.passes.layer_group.search import plan_groups
from engine.passes.layer_group.stream.search import NEARLY, StreamChain, plan_fused
from engine.snapshot import OpRecord
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
Ops = tuple[OpRecord, ...]


def decoder(rows: int) -> Ops:
    """A block: what stands before attention, attention, what stands behind it."""
    before, behind = heads(rows), feed_forward(rows)
    module = StreamRecords(ops=list(before[:-1]))
    module.types = {op.results[0]: op.result_types[0] for op in before[:-1]}
    names = {name: module.attention(before[-1].operands[at]) for at, name in enumerate(["%0", "%1"])}
    for op in behind[2:-1]:
        operands = tuple(names.get(name, name) for name in op.operands)
        names[op.results[0]] = module._append(op.name, operands, op.result_types[0], dict(op.attributes))
    return module.done(*(names[name] for name in behind[-1].operands))


@pytest.mark.parametrize("make", [feed_forward, heads])
@pytest.mark.parametrize("rows", [1, 64, 200])
def test_a_chain_is_streamed_as_a_whole_when_it_fits(make, rows: int) -> None:  # type: ignore[no-untyped-def]
    ops = make(rows)
    report = planned(ops, CHIP)
    (plan,) = report.groups
    assert plan.type is GroupType.STREAM
    assert plan.records == tuple(at for at, op in enumerate(ops) if op.dialect == "tpu")
    # THEN it takes fewer cycles than its ops one by one, or in groups of the usual kind
    prices, usual = prices_of(CHIP), plan_groups(ops, CHIP)
    inside = {index for group in usual.groups for index in group.records}
    apart = sum(prices.globally(ops[index]) for index in plan.records if index not in inside)
    assert plan.cycles < apart + sum(group.cycles for group in usual.groups)
    assert not report.global_cycles


def test_the_cut_is_nearly_the_cheapest() -> None:
    # GIVEN so little local memory that the chain does not fit as a whole
    ops = feed_forward(300, 256, 640)
    on = small(12288)
    program = Program.of(ops, on)
    (indices,) = [tuple(at for at, op in enumerate(ops) if op.dialect == "tpu")]
    chain = StreamChain(program, indices, prices_of(on))
    count = len(indices)
    best = [0.0]
    for end in range(count):
        costs = [(best[start], chain.cost(start, end)) for start in range(end + 1)]
        best.append(min(before + cost for before, cost in costs if cost is not None))
    # WHEN the search cuts it THEN no other cut is much cheaper
    report = plan_fused(ops, on, opt=2)
    inside = {index for group in report.groups for index in group.records}
    outside = sum(prices_of(on).globally(ops[index]) for index in indices if index not in inside)
    found = sum(group.cycles for group in report.groups) + outside
    assert len(report.groups) > 1
    assert best[-1] <= found <= NEARLY * best[-1] + 1


def test_attention_stays_between_two_groups() -> None:
    ops = decoder(1)
    report = planned(ops, CHIP)
    assert [group.type for group in report.groups] == [GroupType.STREAM] * 2
    inside = {index for group in report.groups for index in group.records}
    assert all(ops[index].kind != "FAttention" for index in inside)


def test_explanations_name_ends_attempts_and_what_it_costs_otherwise() -> None:
    report = planned(feed_forward(600, 256, 448), small(24576))
    (plan,) = report.groups
    (why,) = report.explanations
    assert (why.begins, why.ends) == ("the module begins", "the module ends")
    # THEN the numbers of slices that did not fit are there with bytes needed and available
    failed = [attempt for attempt in why.attempts if attempt.cycles is None]
    assert failed
    assert all(attempt.needed_bytes > attempt.available_bytes == 24576 for attempt in failed)
    assert plan.cycles == min(attempt.cycles for attempt in why.attempts if attempt.cycles is not None)
    assert why.alternatives[0].joined_cycles == plan.cycles < why.alternatives[0].split_cycles


def test_tables_show_streams_like_other_groups() -> None:
    ops = feed_forward(1)
    tables = ModuleGroups(planned(ops, CHIP), ops, CHIP, str)
    (group,) = tables.groups()
    assert group["type"] == "STREAM"
    assert (
        sum(max(step["compute_cycles"], step["transfer_cycles"]) for step in group["steps"])
        == group["cycles"]
    )
    buffers = tables.lmem()
    assert {buffer["kind"] for buffer in buffers} == {"weight", "activation", "scratch"}
    assert max(buffer["address"] + buffer["bytes"] for buffer in buffers) <= group["peak_bytes"]
    (why,) = tables.explanations()
    assert [attempt["taken"] for attempt in why["attempts"]] == [True]


def test_the_slices_taken_are_marked() -> None:
    ops = feed_forward(600, 256, 448)
    on = small(24576)
    tables = ModuleGroups(planned(ops, on), ops, on, str)
    (why,) = tables.explanations()
    assert [attempt["slices"] for attempt in why["attempts"] if attempt["taken"]] == [2]


def test_a_demanded_group_is_not_streamed() -> None:
    ops = feed_forward(64)
    first = next(at for at, op in enumerate(ops) if op.name == "tpu.Cast")
    report = plan_fused(ops, CHIP, opt=2, forced=[(first, first + 2)])
    # THEN it is a group of the usual kind, and streams stand on both sides of it
    types = {group.records[0]: group.type for group in report.groups}
    assert types[first] is not GroupType.STREAM
    assert [type_ for at, type_ in types.items() if at != first] == [GroupType.STREAM] * 2


def test_a_demand_for_what_would_be_streamed_is_told_so() -> None:
    ops = feed_forward(64)
    product = next(at for at, op in enumerate(ops) if op.name == "tpu.A16MatMul")
    with pytest.raises(
        UserError, match=r"block_0.*A16MatMul.*those that --fuse-weights streams cannot be demanded"
    ):
        plan_fused(ops, CHIP, opt=2, forced=[(product, product + 1)], module="block_0")


def test_other_products_are_left_as_they_are() -> None:
    # GIVEN weights that are not quantised
    module = StreamRecords()
    x = module.input(1, 64, 128)
    ops = module.done(module.add(x, module.matmul(module.norm(x), 128)))
    assert planned(ops, CHIP) == plan_groups(ops, CHIP)


# -- the option ----------------------------------------------------------------------------------------------------


@cache
def compiled(fuse: bool | None) -> Compilation:
    path = write_tiny(Path(mkdtemp(prefix="tiny-")) / "m", "qwen3", layers=1)
    given = {} if fuse is None else {"fuse_weights": fuse}
    return compile_here(path, seq_length=64, quantize="w4bf16", decode_chunks=(), **given)


def test_without_the_option_nothing_is_streamed() -> None:
    for spec in compiled(None).specs:
        report = compiled(None).modules[spec.name].after("layer-group").report
        assert all(group.type is not GroupType.STREAM for group in report.groups)
        other = compiled(False).modules[spec.name]
        assert [s.text for s in compiled(None).modules[spec.name].snapshots] == [
            s.text for s in other.snapshots
        ]


def test_with_the_option_weights_stay_where_they_are() -> None:
    for spec in compiled(True).specs:
        plain, fused = (compiled(fuse).modules[spec.name].after("codegen") for fuse in (False, True))
        places = [
            {op.origins: [t.address for t in op.result_types] for op in s.ops if op.name == "top.Weight"}
            for s in (plain, fused)
        ]
        assert places[0] == places[1]


def test_the_option_is_kept_and_checked() -> None:
    limits = {"max_positions": 512, "stored_dtype": "bf16"}
    chosen = resolve(**limits, fuse_weights=True)  # type: ignore[arg-type]
    assert chosen.fuse_weights
    assert CompileOptions.from_dict(chosen.to_dict()) == chosen
    assert not resolve(**limits).fuse_weights  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--no-layer-group"):
        resolve(**limits, fuse_weights=True, layer_group=False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="one core"):
        resolve(**limits, fuse_weights=True, cores=2, chip_name="bm1688")  # type: ignore[arg-type]
