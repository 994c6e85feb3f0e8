"""Programs for several cores: the machine gives the numbers of one core, and no core gets into another one's way."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from compiled import compile_here
from group_bench import HandPlan, build
from group_bench import options as group_options
from machine_cases import Arrays, largest_error, random_inputs
from running import weights_of
from tiny import FAMILIES, write_tiny

from engine import mlir
from engine.check import check
from engine.compiler import Compilation, open_model
from engine.errors import CompileError, UserError
from engine.passes import pipeline
from engine.passes.base import PassContext
from engine.passes.codegen import Codegen
from engine.passes.core_parallel import CoreParallel
from engine.passes.layer_group.plan import Secs
from engine.sim.interpreter import WeightLoader
from engine.sim.machine_runtime import MachineExecutor, MachineExecutors
from engine.sim.runtime import PROGRAM_PASS
from engine.sim.timing import time_module
from engine.snapshot import OpRecord
from engine.stages import ModuleSpec, plan
from engine.tpu.core_races import core_races
from engine.tpu.cores import CoreSplit, CoreUse
from engine.tpu.isa import BARRIER
from engine.tpu.memory import ArenaLayout, check_addresses, tensor_places
from engine.tpu.numerics import round_to

MODES = ("f32", "bf16", "w4bf16")
ON = {"bm1688": 2, "bm1690": 8}
LENGTHS = {"bm1688": (192, 160), "bm1690": (160, 144)}
"""S and L with which the small mask has several query tiles."""


@cache
def program(family: str, mode: str, chip_name: str, cores: int) -> tuple[Compilation, WeightLoader]:
    """One layer: embedding, prefill, prefill_kv, decode and lm_head."""
    path = write_tiny(
        Path(mkdtemp(prefix="cores-")) / family, family, layers=1, heads=8, head_dim=8, hidden=256
    )
    length, rows = LENGTHS[chip_name]
    compiled = compile_here(
        path,
        seq_length=length,
        max_input_length=rows,
        decode_chunks=(),
        quantize=mode,
        chip_name=chip_name,
        cores=cores,
    )
    return compiled, weights_of(open_model(path))


def machine_of(made: tuple[Compilation, WeightLoader], spec: ModuleSpec, *, checks: bool) -> MachineExecutor:
    compiled, loader = made
    snapshot = compiled.modules[spec.name].after(PROGRAM_PASS)
    return MachineExecutors(compiled, loader, checks=checks)(spec, snapshot, 0)


def records(compiled: Compilation, module: str, after: str = "codegen") -> tuple[OpRecord, ...]:
    return compiled.modules[module].after(after).ops


@pytest.mark.parametrize("chip_name", ON)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_several_cores_give_the_numbers_of_one(family: str, mode: str, chip_name: str) -> None:
    # GIVEN a program for one core and one for several
    one, several = (program(family, mode, chip_name, cores) for cores in (1, ON[chip_name]))
    # THEN all invariants hold
    assert check(several[0]) == []
    for spec in several[0].specs:
        inputs = random_inputs(several[0], spec, spec.cache // 2 + 1)
        # WHEN each module runs on one machine and on the other
        expected = machine_of(one, spec, checks=False).run(inputs)
        machine = machine_of(several, spec, checks=True)
        found = machine.run(inputs)
        # THEN the outputs are the same, and nothing was read too early or by two cores at once
        assert not machine.violations, (spec.name, machine.violations[:3])
        for name, values in expected.items():
            tolerance = 0 if values.dtype == np.int32 else 1e-5 if mode == "f32" else 2e-2
            assert largest_error(found[name], values) <= tolerance, (spec.name, name)


def test_every_core_works_and_meets_the_others_between_ops() -> None:
    compiled, _ = program("llama", "w4bf16", "bm1690", 8)
    for spec in compiled.specs:
        snapshot = compiled.modules[spec.name].after("codegen")
        ops = snapshot.ops
        # GIVEN the ops that have instructions, in the program's order
        instructions = snapshot.report
        top = [index if ops[index].parent is None else ops[index].parent for index in instructions["op"]]
        starts = np.flatnonzero(np.diff([-1, *top]))
        # THEN each begins with a barrier, and there are no others
        np.testing.assert_array_equal(np.flatnonzero(instructions["flags"] & BARRIER), starts)
        # THEN an op's instructions run on the cores that the IR names
        for index in set(top):
            use = CoreUse.of(ops[index])
            assert use is not None
            ran = {int(core) for core, owner in zip(instructions["core"], top, strict=True) if owner == index}
            assert ran == set(use.cores), ops[index].location
    blocks = compiled.modules["block_0"].after("codegen").report
    assert set(blocks["core"].tolist()) == set(range(8))


def test_one_core_is_as_before() -> None:
    compiled, _ = program("llama", "w4bf16", "bm1688", 1)
    for module in compiled.modules.values():
        snapshot = module.after("core-parallel")
        assert not snapshot.changed
        assert snapshot.text is module.after("layer-group").text
        assert all(CoreUse.of(op) is None for op in module.after("codegen").ops)
        assert not (module.after("codegen").report["flags"] & BARRIER).any()
        assert not module.after("codegen").report["core"].any()


# -- what runs where -----------------------------------------------------------------------------------------------


def uses(compiled: Compilation, module: str) -> dict[str, CoreUse]:
    found = {}
    for op in records(compiled, module):
        use = CoreUse.of(op)
        if use is not None:
            found[op.location.removeprefix("model.layers.{i}.") + f" {op.kind}"] = use
    return found


@cache
def config_only(mode: str = "w4bf16", cores: int = 2, **options: Any) -> Compilation:
    """SmolLM2-135M's sizes from a config alone, BM1688."""
    sizes = {"hidden": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate": 1536, "layers": 1}
    path = write_tiny(Path(mkdtemp(prefix="config-")) / "m", "llama", **sizes) / "config.json"
    fixed = {"seq_length": 512, "quantize": mode, "chip_name": "bm1688", "history": False}
    return compile_here(path, cores=cores, **fixed, **options)


def test_decode_is_split_as_in_the_reference() -> None:
    # GIVEN a decode block of SmolLM2-135M's sizes on two cores (R52 and the vendor's modules of these sizes)
    found = uses(config_only(), "block_cache_0")
    both = (0, 1)
    # THEN products go by columns, k and v, gate and up, cosine and sine beside each other
    halves = CoreUse(both, CoreSplit(2, ((0, 288), (288, 288))))
    assert found["self_attn.q_proj A16MatMul"] == halves
    assert found["self_attn.o_proj A16MatMul"] == halves
    assert found["mlp.down_proj A16MatMul"] == halves
    pairs = [
        ("self_attn.k_proj A16MatMul", "self_attn.v_proj A16MatMul"),
        ("rope.cos Gather", "rope.sin Gather"),
        ("mlp.gate_proj A16MatMul", "mlp.up_proj A16MatMul"),
    ]
    for number, pair in enumerate(pairs):
        assert [found[name] for name in pair] == [CoreUse((core,), parallel=number) for core in both]
    # THEN attention by KV heads, core 0 first; activations by channels; one row and one slice on core 0
    assert found["self_attn.attention FAttention"] == CoreUse(both, CoreSplit(2, ((0, 384), (384, 192))))
    assert found["mlp.act Active"] == CoreUse(both, CoreSplit(2, ((0, 768), (768, 768))))
    assert found["input_layernorm RMSNorm"] == CoreUse((0,))
    groups = [use for name, use in found.items() if name.endswith("Group")]
    assert groups == [CoreUse((0,))] * len(groups)


def test_prefill_is_split_as_in_the_reference() -> None:
    found = uses(config_only(prefill_mask="full"), "block_0")
    both = (0, 1)
    assert found["input_layernorm RMSNorm"] == CoreUse(both, CoreSplit(1, ((0, 256), (256, 256))))
    assert found["mlp.mul Mul"] == CoreUse(both, CoreSplit(1, ((0, 256), (256, 256))))
    assert found["self_attn.attention FAttention"] == CoreUse(both, CoreSplit(2, ((0, 384), (384, 192))))
    # THEN the first half of a group's slices is core 0's (csecs 2 and 4 in the reference)
    assert found["post_attention_layernorm Group"].split == CoreSplit(None, ((0, 1), (1, 1)))
    assert found["mlp.act Group"].split == CoreSplit(None, ((0, 2), (2, 2)))
    (embedding,) = uses(config_only(), "embedding").values()
    assert embedding.split == CoreSplit(1, ((0, 256), (256, 256)))


def test_ops_beside_each_other_keep_their_tensors_apart() -> None:
    # GIVEN k and v, of which v was moved up; both read the norm, which dies behind the later one
    compiled = config_only("w4bf16")
    snapshot = compiled.modules["block_0"].after("codegen")
    spec = next(s for s in compiled.specs if s.name == "block_0")
    assert check_addresses(snapshot.ops, snapshot.attributes, spec, compiled.options) == []
    pair = [i for i, op in enumerate(snapshot.ops) if op.attributes.get("group_parallel") == 2]
    gate, up = pair
    assert up == gate + 1
    # THEN what either reads or makes lives while both run
    places = {p.value: p for p in tensor_places(snapshot.ops, ArenaLayout.of(snapshot.attributes))}
    for index in pair:
        (result,) = snapshot.ops[index].results
        assert places[result].first == gate
        assert places[snapshot.ops[index].operands[0]].last >= up


def test_equal_products_beyond_the_cores_are_split() -> None:
    # GIVEN as many KV heads as heads: q, k and v are equal products of one tensor
    path = write_tiny(Path(mkdtemp()) / "m", "llama", kv_heads=4, layers=1)
    compiled = compile_here(path, seq_length=64, chip_name="bm1688", cores=2, quantize="w4bf16")
    found = uses(compiled, "block_cache_0")
    # THEN the first is split and the other two run beside each other
    assert found["self_attn.q_proj A16MatMul"].split is not None
    assert found["self_attn.k_proj A16MatMul"].parallel == found["self_attn.v_proj A16MatMul"].parallel == 0
    # THEN eight cores split all of them
    compiled = compile_here(path, seq_length=64, chip_name="bm1690", cores=8, quantize="w4bf16")
    assert all(use.parallel is None for use in uses(compiled, "block_cache_0").values())


# -- groups --------------------------------------------------------------------------------------------------------

X = "tensor<1x200x96xbf16>"
GROUP = f"""module @m {{
  func.func @main(%arg0: {X}, %arg1: {X}) -> ({X}, {X}) {{
    %0 = "top.Input"(%arg0) : ({X}) -> {X} loc("x")
    %1 = "top.Input"(%arg1) : ({X}) -> {X} loc("y")
    %2 = "top.Weight"() {{tensors = ["gain"], transforms = ["cast(bf16)"]}} : () -> tensor<96xbf16> loc("gain")
    %3 = "tpu.Add"(%0, %1) : ({X}, {X}) -> {X} loc("sum")
    %4 = "tpu.RMSNorm"(%3, %2) {{eps = 1.0e-6 : f64}} : ({X}, tensor<96xbf16>) -> {X} loc("norm")
    %5 = "tpu.Mul"(%4, %1) : ({X}, {X}) -> {X} loc("product")
    return %3, %5 : {X}, {X}
  }}
}}
"""  # fmt: skip


def inputs() -> Arrays:
    random = np.random.default_rng(1)
    return {n: round_to(random.standard_normal((1, 200, 96)).astype(np.float32), "bf16") for n in ("x", "y")}


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(
    ("chip_name", "slices", "cores"), [("bm1688", 3, 2), ("bm1688", 2, 2), ("bm1690", 4, 8), ("bm1690", 4, 3)]
)
def test_slices_of_a_group(chip_name: str, slices: int, cores: int, pipelined: bool) -> None:
    # GIVEN a group in slices with a weight that is held
    made = [
        build(
            GROUP,
            lambda ops, chip: [
                HandPlan(ops, [3, 4, 5], Secs(c=slices), chip, held=frozenset({"%2"}), pipelined=pipelined).build()
            ],
            chip_name=chip_name,
            cores=count,
        )
        for count in (1, cores)
    ]  # fmt: skip
    # WHEN it runs on one core and on several
    machine = made[1].machine()
    found, expected = machine.run(inputs()), made[0].machine().run(inputs())
    # THEN every core pipelines its own slices, and the numbers are the same to the bit
    assert not machine.violations, machine.violations[:3]
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    group = next(op for op in made[1].snapshot.ops if op.name == "tpu.Group")
    each = -(-slices // cores)
    assert group.attributes["core_split"] == [[i, min(each, slices - i)] for i in range(0, slices, each)]
    instructions = made[1].snapshot.report
    held = next(i for i, op in enumerate(made[1].snapshot.ops) if op.attributes.get("held"))
    assert (instructions["op"] == held).sum() == len(group.attributes["run_core_id"])


def test_a_group_that_stores_something_uncut_stays_on_one_core() -> None:
    # GIVEN a group that runs twice over the same slices of its stores
    def planner(ops: Any, chip: Any) -> list[Any]:
        return [HandPlan(ops, [3, 4, 5], Secs(c=2), chip, held=frozenset({"%2"})).build()]

    made = build(GROUP, planner, chip_name="bm1688")
    with mlir.using(mlir.new_context()):
        module = mlir.parse(made.snapshot.text.replace("nsecs = 1 : i64", "nsecs = 2 : i64"))
        # WHEN it is shared between two cores
        CoreParallel().run(module, PassContext(None, None, group_options("bm1688", 2)))  # type: ignore[arg-type]
        group = next(op for op in mlir.records(module) if op.name == "tpu.Group")
    # THEN one of them runs it all
    assert CoreUse.of(group) == CoreUse((0,))


# -- time ----------------------------------------------------------------------------------------------------------


def test_the_estimate_is_the_busiest_core_and_no_barrier_costs() -> None:
    one, several = config_only(cores=1), config_only()
    chip = several.options.chip
    for module in ("block_0", "block_cache_0", "lm_head"):
        instructions = several.modules[module].after("codegen").report
        timing = time_module(instructions, chip)
        # GIVEN each core's commands alone
        alone = [
            time_module(instructions[instructions["core"] == core], chip).total_cycles for core in (0, 1)
        ]
        # THEN the total is the longer one's, and shorter than on one core
        assert timing.total_cycles == max(alone)
        assert timing.total_cycles == sum(op.cycles for op in timing.ops)
        assert (
            timing.total_cycles < time_module(one.modules[module].after("codegen").report, chip).total_cycles
        )


def test_strided_columns_move_no_byte_twice() -> None:
    # GIVEN decode, where k and v and the attention heads are each read by one core
    programs = [config_only(cores=cores).modules["block_cache_0"].after("codegen").report for cores in (1, 2)]
    one, several = (time_module(instructions, config_only().options.chip) for instructions in programs)
    # THEN what several cores read twice is activations only: less than a percent of the weights
    assert several.store_bytes == one.store_bytes
    assert several.ddr_to_ddr_bytes == one.ddr_to_ddr_bytes
    assert 0 <= several.load_bytes - one.load_bytes < one.load_bytes / 100


# -- bad input -----------------------------------------------------------------------------------------------------


BESIDE = "group_parallel = 0 : i64, q_group_size = 64 : i64, run_core_id = "


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("run_core_id = [0, 1]", "run_core_id = [0, 2]", "runs on core 2, the program has 2"),
        ("[[0, 288], [288, 288]]", "[[0, 280], [280, 296]]", "no multiple of the 32 lanes"),
        ("[[0, 384], [384, 192]]", "[[0, 300], [300, 276]]", "whole KV heads"),
        (f"{BESIDE}[1]", f"{BESIDE}[0]", "two of them run on one core"),
    ],
)
def test_wrong_splits_stop_codegen(old: str, new: str, message: str) -> None:
    # GIVEN IR whose split was changed by hand
    compiled = config_only()
    text = compiled.modules["block_cache_0"].after("address-assign").text
    assert old in text
    spec = next(s for s in compiled.specs if s.name == "block_cache_0")
    with mlir.using(mlir.new_context()):
        module = mlir.parse(text.replace(old, new, 1))
        # THEN no instruction is emitted for it
        with pytest.raises(CompileError) as caught:
            Codegen().run(module, PassContext(spec, compiled.config, compiled.options))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "core_split = [[0, 288], [288, 288]]",
            "core_split = [[0, 288], [300, 276]]",
            "gap or an overlap at 288",
        ),
        ("core_dim = 2 : i64", "core_dim = 7 : i64", "core_dim is 7"),
        ("run_core_id = [0, 1]", "run_core_id = [1, 1]", "run_core_id is [1, 1]"),
        ("run_core_id = [0, 1]", "core_id = [0, 1]", "attribute core_id is unknown"),
    ],
)
def test_malformed_ir_is_refused_with_op_and_place(old: str, new: str, message: str) -> None:
    text = config_only().modules["block_cache_0"].after("core-parallel").text.replace(old, new, 1)
    with mlir.using(mlir.new_context()), pytest.raises(UserError) as caught:
        mlir.parse(text)
    assert message in str(caught.value)
    assert "tpu." in str(caught.value)


def test_a_lost_barrier_is_a_race() -> None:
    # GIVEN a program without the barrier in front of an op that reads what both cores made
    instructions = config_only().modules["block_cache_0"].after("codegen").report.copy()
    assert core_races(instructions) == []
    barriers = np.flatnonzero(instructions["flags"] & BARRIER)
    found = 0
    for row in barriers[1:].tolist():
        changed = instructions.copy()
        changed["flags"][row] ^= BARRIER
        found += bool(core_races(changed))
    # THEN the check finds most of them; ops on core 0 behind one on core 0 need none
    assert found > len(barriers) // 2


def test_more_cores_than_the_chip_has(tmp_path: Path) -> None:
    model = open_model(write_tiny(tmp_path / "m", "llama"))
    with pytest.raises(UserError, match="--cores 3 is out of range; accepted: 1 to 2"):
        model.resolve(chip_name="bm1688", cores=3)


def test_the_pass_explains_itself() -> None:
    model = open_model(write_tiny(Path(mkdtemp()) / "m", "llama"))
    options = model.resolve(seq_length=64, chip_name="bm1688", cores=2, quantize="w4bf16")
    spec = next(s for s in plan(model.shape, options) if s.name == "block_cache_0")
    snapshots = {s.pass_name: s for s in pipeline.run(PassContext(spec, model.config, options))}
    note = snapshots["core-parallel"].notes[0]
    assert note.startswith(
        f"{sum('core_split' in op.attributes for op in snapshots['core-parallel'].ops)} ops shared"
    )
    assert "6 side by side" in note
