"""Groups planned by hand, in the IR and on the machine: slices of n, c, h and w, held weights, reshapes, results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from group_bench import Built, HandPlan, build
from machine_cases import largest_error
from running import cosine

from engine.errors import CompileError
from engine.passes.layer_group.occupancy import live_buffers, problems, slice_problems
from engine.passes.layer_group.plan import BufferKind, GroupPlan, GroupType, ItemKind, Secs
from engine.passes.layer_group.view import GroupView, group_indices, read_group
from engine.sim.timing import time_module
from engine.tpu.isa import Opcode
from engine.tpu.memory import ArenaLayout, tensor_places
from engine.tpu.numerics import round_to

ROWS = 200


def vector_module(dtype: str = "bf16", shape: str = f"1x{ROWS}x96") -> str:
    x = f"tensor<{shape}x{dtype}>"
    return f"""module @m {{
  func.func @main(%arg0: {x}, %arg1: {x}) -> ({x}, {x}) {{
    %0 = "top.Input"(%arg0) : ({x}) -> {x} loc("x")
    %1 = "top.Input"(%arg1) : ({x}) -> {x} loc("y")
    %2 = "top.Weight"() {{tensors = ["gain"], transforms = []}} : () -> tensor<96x{dtype}> loc("gain")
    %3 = "tpu.Add"(%0, %1) : ({x}, {x}) -> {x} loc("sum")
    %4 = "tpu.RMSNorm"(%3, %2) {{eps = 1.0e-6 : f64}} : ({x}, tensor<96x{dtype}>) -> {x} loc("norm")
    %5 = "tpu.Mul"(%4, %1) : ({x}, {x}) -> {x} loc("product")
    return %3, %5 : {x}, {x}
  }}
}}
"""


ELEMENTWISE = f"""module @m {{
  func.func @main(%arg0: tensor<2x{ROWS}x6x32xbf16>) -> (tensor<2x{ROWS}x6x32xbf16>) {{
    %0 = "top.Input"(%arg0) : (tensor<2x{ROWS}x6x32xbf16>) -> tensor<2x{ROWS}x6x32xbf16> loc("x")
    %1 = "tpu.Cast"(%0) : (tensor<2x{ROWS}x6x32xbf16>) -> tensor<2x{ROWS}x6x32xf32> loc("wide")
    %2 = "tpu.Active"(%1) {{mode = "SILU"}} : (tensor<2x{ROWS}x6x32xf32>) -> tensor<2x{ROWS}x6x32xf32> loc("silu")
    %3 = "tpu.Cast"(%2) : (tensor<2x{ROWS}x6x32xf32>) -> tensor<2x{ROWS}x6x32xbf16> loc("narrow")
    return %3 : tensor<2x{ROWS}x6x32xbf16>
  }}
}}
"""

PRODUCT = f"""module @m {{
  func.func @main(%arg0: tensor<1x{ROWS}x64xbf16>, %arg1: tensor<1x{ROWS}x1x16xbf16>) -> (tensor<1x{ROWS}x6x16xbf16>) {{
    %0 = "top.Input"(%arg0) : (tensor<1x{ROWS}x64xbf16>) -> tensor<1x{ROWS}x64xbf16> loc("x")
    %1 = "top.Input"(%arg1) : (tensor<1x{ROWS}x1x16xbf16>) -> tensor<1x{ROWS}x1x16xbf16> loc("angles")
    %2 = "top.Weight"() {{tensors = ["w"], transforms = []}} : () -> tensor<64x96xbf16> loc("w")
    %3 = "top.Weight"() {{tensors = ["b"], transforms = []}} : () -> tensor<96xbf16> loc("b")
    %4 = "tpu.MatMul"(%0, %2, %3) {{right_transpose = false}}
       : (tensor<1x{ROWS}x64xbf16>, tensor<64x96xbf16>, tensor<96xbf16>) -> tensor<1x{ROWS}x96xbf16> loc("product")
    %5 = "tpu.Reshape"(%4) : (tensor<1x{ROWS}x96xbf16>) -> tensor<1x{ROWS}x6x16xbf16> loc("heads")
    %6 = "tpu.Rope"(%5, %1, %1) {{rope_mode = "contiguous_halves"}}
       : (tensor<1x{ROWS}x6x16xbf16>, tensor<1x{ROWS}x1x16xbf16>, tensor<1x{ROWS}x1x16xbf16>)
       -> tensor<1x{ROWS}x6x16xbf16> loc("rope")
    return %6 : tensor<1x{ROWS}x6x16xbf16>
  }}
}}
"""


ROW, WIDE = "tensor<1x1x96xf16>", "tensor<96x96xf16>"
RESIDUAL = f"""module @m {{
  func.func @main(%arg0: {ROW}, %arg1: {ROW}) -> ({ROW}, {ROW}) {{
    %0 = "top.Input"(%arg0) : ({ROW}) -> {ROW} loc("x")
    %1 = "top.Input"(%arg1) : ({ROW}) -> {ROW} loc("y")
    %2 = "top.Weight"() {{tensors = ["w"], transforms = []}} : () -> {WIDE} loc("w")
    %3 = "tpu.MatMul"(%0, %2, %1) {{right_transpose = false}} : ({ROW}, {WIDE}, {ROW}) -> {ROW} loc("states")
    %4 = "tpu.Add"(%3, %1) : ({ROW}, {ROW}) -> {ROW} loc("sum")
    %5 = "tpu.MatMul"(%4, %2, %3) {{right_transpose = false}} : ({ROW}, {WIDE}, {ROW}) -> {ROW} loc("more states")
    return %3, %5 : {ROW}, {ROW}
  }}
}}
"""
"""A residual from DDR that is read again behind its product, and one that the group made and stores; f16 holds the
numbers exactly."""


def inputs_of(built: Built, whole: bool = False) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    found = {}
    for op in built.snapshot.ops:
        if op.name == "top.Input":
            type_ = op.result_types[0]
            values = random.integers(-2, 3, type_.shape) if whole else random.standard_normal(type_.shape)
            found[op.origins[0]] = round_to(values.astype(np.float32), type_.dtype)
    return found


def dtype_of(built: Built) -> str:
    return built.snapshot.ops[-1].operand_types[0].dtype


def views(built: Built) -> list[GroupView]:
    ops = built.snapshot.ops
    return [read_group(ops, index) for index in group_indices(ops)]


def agrees(built: Built, *, exact: bool = False) -> None:
    """The machine's outputs are the interpreter's, nothing was found wrong, and the IR says why it can work."""
    found, expected, machine = built.run(inputs_of(built, whole=exact))
    assert not machine.violations, machine.violations[:3]
    for view in views(built):
        assert problems(view, built.options.chip) == []
        assert slice_problems(view, built.options.chip) == []
    for name, values in expected.items():
        if exact:
            np.testing.assert_array_equal(found[name], values)
        else:
            assert np.isfinite(found[name]).all()
            assert cosine(found[name], values) >= 0.9999
            assert largest_error(found[name], values) <= (1e-5 if dtype_of(built) == "f32" else 0.02)


def one_group(indices: list[int], secs: Secs, **more: object) -> Callable[..., list[GroupPlan]]:
    return lambda ops, chip: [HandPlan(ops, indices, secs, chip, **more).build()]  # type: ignore[arg-type]


@pytest.mark.parametrize("chip", ["bm1684x", "bm1688"])
@pytest.mark.parametrize("csecs", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_rows_cut_over_the_lanes(dtype: str, csecs: int, chip: str) -> None:
    # GIVEN a group of a norm between element-wise ops over 200 rows, in 1, 2 or 4 slices (the last one shorter)
    built = build(vector_module(dtype), one_group([3, 4, 5], Secs(c=csecs)), chip_name=chip)
    # THEN the machine computes what the ops mean
    agrees(built)


def test_a_held_weight_is_loaded_once() -> None:
    # GIVEN the same group in 4 slices with and without its gain held
    programs = []
    for held in (frozenset[str](), frozenset({"%2"})):
        built = build(vector_module(), one_group([3, 4, 5], Secs(c=4), held=held))
        agrees(built)
        programs.append(built.snapshot.report)
    # THEN the held gain saves three loads
    loads = [int((program["opcode"] == Opcode.TENSOR).sum()) for program in programs]
    assert loads[0] - loads[1] == 3


@pytest.mark.parametrize("secs", [Secs(n=2), Secs(h=3), Secs(w=2), Secs(n=2, c=2, h=2, w=4)])
def test_element_wise_ops_cut_in_every_dimension(secs: Secs) -> None:
    agrees(build(ELEMENTWISE, one_group([1, 2, 3], secs)))


def test_heads_on_the_lanes() -> None:
    # GIVEN [2, 192, 6, 32] read as 36 x 64 channels of 32
    text = ELEMENTWISE.replace(f"2x{ROWS}x6", "2x192x6")
    built = build(text, one_group([1, 2, 3], Secs(n=4), type=GroupType.SMALL_C))
    (view,) = views(built)
    assert view.items[0].ginfo.lengths[0] == (9, 9, 9, 9)
    agrees(built)


@pytest.mark.parametrize("csecs", [1, 4])
def test_a_product_with_bias_a_reshape_and_rope(csecs: int) -> None:
    agrees(build(PRODUCT, one_group([4, 5, 6], Secs(c=csecs))))


@pytest.mark.parametrize("chip", ["bm1684x", "bm1688"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_residual_as_bias_keeps_its_value(pipelined: bool, chip: str) -> None:
    built = build(RESIDUAL, one_group([3, 4, 5], Secs(), pipelined=pipelined), whole=True, chip_name=chip)
    agrees(built, exact=True)


def test_integers_are_exact() -> None:
    # GIVEN a product and sums of whole numbers, which bf16 holds exactly
    text = PRODUCT.replace(
        '"tpu.Rope"(%5, %1, %1) {rope_mode = "contiguous_halves"}', '"tpu.Mul"(%5, %5)'
    ).replace(
        f"(tensor<1x{ROWS}x6x16xbf16>, tensor<1x{ROWS}x1x16xbf16>, tensor<1x{ROWS}x1x16xbf16>)",
        f"(tensor<1x{ROWS}x6x16xbf16>, tensor<1x{ROWS}x6x16xbf16>)",
    )
    agrees(build(text, one_group([4, 5, 6], Secs(c=2)), whole=True), exact=True)


def test_two_groups_hand_a_value_over_in_ddr() -> None:
    # GIVEN the chain cut behind the norm: the sum and the norm leave the first group, the second loads the norm
    def plans(ops, chip):  # type: ignore[no-untyped-def]
        return [
            HandPlan(ops, [3, 4], Secs(c=2), chip).build(),
            HandPlan(ops, [5], Secs(c=4), chip).build(),
        ]

    built = build(vector_module(), plans)
    first, second = views(built)
    assert len(first.record.results) == 2
    assert first.record.results[1] in second.record.operands
    agrees(built)


def test_what_stays_inside_has_no_address_and_results_have_one() -> None:
    built = build(vector_module(), one_group([3, 4, 5], Secs(c=2)))
    (view,) = views(built)
    for item in view.items.values():
        addressed = item.record.result_types[0].address is not None
        assert addressed == (item.kind is ItemKind.STORE)
    stored = [item.record.result_types[0].address for item in view.yielded]
    assert stored == [type_.address for type_ in view.record.result_types]
    # AND instructions belong to the ops inside
    inside = set(range(view.index + 1, view.last + 1))
    assert set(built.snapshot.report["op"].tolist()) <= inside


def test_time_steps_wait_for_each_other_and_count_on() -> None:
    built = build(vector_module(), one_group([3, 4, 5], Secs(c=2)))
    program = built.snapshot.report
    assert (np.diff(program["step"]) >= 0).all()
    assert program["step"].max() == 2 * 5 - 1
    last = {0: 0, 1: 0}
    for step in range(10):
        ids = program[program["step"] == step]
        for engine in (0, 1):
            mine = ids[ids["engine"] == engine]
            assert (mine["wait"] == last[1 - engine]).all()
        for engine in (0, 1):
            last[engine] = max([last[engine], *ids[ids["engine"] == engine]["id"].tolist()])


def test_a_value_read_outside_but_not_stored_is_refused() -> None:
    def plans(ops, chip):  # type: ignore[no-untyped-def]
        plan = HandPlan(ops, [3, 4, 5], Secs(), chip).build()
        return [
            GroupPlan(
                plan.records, plan.type, plan.secs, 1, plan.items[:-1], plan.steps, (), 0, plan.peak_bytes
            )
        ]

    with pytest.raises(CompileError, match="product is read outside of its group but not stored"):
        build(vector_module(), plans)


def test_scratch_and_tensors_are_listed_with_their_times() -> None:
    built = build(vector_module(), one_group([3, 4, 5], Secs(c=2)))
    (view,) = views(built)
    times = {(b.value, b.kind): (b.first, b.last) for b in live_buffers(view)}
    # loads in step 0, ops in 1, 2 and 3, stores in 4
    _, other, gain, sum_, norm, product = (item.value for item in list(view.items.values())[:6])
    assert times[other, BufferKind.ACTIVATION] == (0, 3)
    assert times[gain, BufferKind.WEIGHT] == (0, 2)
    assert times[sum_, BufferKind.ACTIVATION] == (1, 4)
    assert times[norm, BufferKind.ACTIVATION] == (2, 3)
    assert times[norm, BufferKind.SCRATCH] == (2, 2)
    assert times[product, BufferKind.ACTIVATION] == (3, 4)


def test_every_cycle_of_a_group_is_charged_to_the_engine_that_all_wait_for() -> None:
    # GIVEN a group that does not overlap loads, ops and stores
    built = build(vector_module(), one_group([3, 4, 5], Secs(c=4)))
    program, (view,) = built.snapshot.report, views(built)
    # WHEN it is timed
    timing = time_module(program, built.options.chip)
    # THEN each op is charged with what it takes, and all together with the whole time
    taken = np.zeros(len(built.snapshot.ops), np.int64)
    np.add.at(taken, program["op"], timing.instruction_cycles)
    assert {op.op: op.cycles for op in timing.ops} == {
        item.index: taken[item.index] for item in view.items.values()
    }
    assert sum(op.cycles for op in timing.ops) == timing.total_cycles


@pytest.mark.parametrize(
    "text", [vector_module(), vector_module("f32"), PRODUCT], ids=["bf16", "f32", "product"]
)
def test_a_pipelined_group_overlaps_slices_and_takes_what_the_rule_says(text: str) -> None:
    # GIVEN loads of the next slice beside the stores of the last one
    indices = [4, 5, 6] if text is PRODUCT else [3, 4, 5]
    built = build(text, one_group(indices, Secs(c=4), pipelined=True))
    agrees(built)
    # WHEN it is timed
    program = built.snapshot.report
    timing = time_module(program, built.options.chip)
    # THEN its span is the sum over steps of the busier engine (R4)
    work = np.zeros((int(program["step"].max()) + 1, 2), np.int64)
    np.add.at(work, (program["step"], program["engine"]), timing.instruction_cycles)
    assert timing.total_cycles == work.max(axis=1).sum()
    assert timing.total_cycles < work.sum() or text is PRODUCT


def test_what_a_group_reads_and_stores_lives_in_ddr_while_any_of_its_ops_runs() -> None:
    # GIVEN a chain cut in two groups: the norm goes from one to the other in DDR, and the sum leaves the module
    built = build(
        vector_module(),
        lambda ops, chip: [
            HandPlan(ops, [3, 4], Secs(c=2), chip).build(),
            HandPlan(ops, [5], Secs(c=2), chip).build(),
        ],
    )
    first, second = views(built)
    ops = built.snapshot.ops
    places = {p.value: p for p in tensor_places(ops, ArenaLayout.of(built.snapshot.attributes))}
    # THEN nothing inside has a place, and the norm is kept to the last op of the group that loads it
    assert {ops[i].results[0] for i in range(first.index + 1, first.last) if ops[i].results}.isdisjoint(
        places
    )
    norm = places[first.record.results[1]]
    assert (norm.first, norm.last) == (first.index, second.last)
