"""Tables and provenance of a compiled tiny model against facts that are derived another way."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from compiled import compile_here, tiny_compilation
from tiny import write_tiny

from engine.compiler import Compilation
from engine.diff import diff
from engine.errors import CompileError, UserError
from engine.passes.layer_group.occupancy import live_buffers
from engine.passes.layer_group.plan import ItemKind
from engine.passes.layer_group.view import group_indices, read_group
from engine.provenance import origin_of, provenance, uses_of_tensor
from engine.snapshot import ModuleSnapshots
from engine.tables import (
    explain_table,
    ir_text,
    is_provisional,
    kv_slots,
    kv_table,
    memory_problems,
    memory_table,
    modules_table,
    passes_table,
    snapshot_after,
)
from engine.top.checkpoint.layout import block_tensors, expected_tensors
from engine.tpu.isa import Arena


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return tiny_compilation()


def size(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def test_parameters_of_all_layers_add_up_to_the_checkpoint(compilation: Compilation) -> None:
    # GIVEN an untied model: block_0 serves two layers, block_2 one
    rows = {row["name"]: row for row in modules_table(compilation)}
    prefill = ("embedding", "block_0", "block_2", "lm_head")
    total = sum(rows[name]["parameters"] * max(1, len(rows[name]["layers"])) for name in prefill)
    # THEN every number of the checkpoint is in exactly one of the prefill modules
    assert total == sum(size(shape) for shape in expected_tensors(compilation.config).values())
    assert rows["block_0"]["layers"] == [0, 1]
    assert rows["block_cache_0"]["parameters"] == rows["block_0"]["parameters"]


def test_weight_bytes_of_a_quantised_block(compilation: Compilation) -> None:
    row = next(row for row in modules_table(compilation) if row["name"] == "block_0")
    linears = {n: s for n, s in block_tensors(compilation.config).items() if len(s) == 2}
    assert row["weight_bytes"]["linear"] == sum(size(shape) for shape in linears.values()) // 2
    # bf16 scales: 64 lanes x rows rounded up to lanes x groups of 64 along K (K = 144 is not a multiple)
    assert row["weight_bytes"]["scale"] == 2 * row["weight_bytes"]["zero_point"] > 0
    assert row["weight_bytes"]["bias"] > 0
    assert row["weight_bytes"]["norm"] == 2 * 2 * compilation.config.hidden_size
    assert row["weight_bytes"]["rope"] == 2 * 64 * compilation.config.head_dim * 2


def test_modules_list_inputs_with_shapes(compilation: Compilation) -> None:
    rows = {row["name"]: row for row in modules_table(compilation)}
    shapes = {tensor["name"]: tensor["shape"] for tensor in rows["block_cache_0_1"]["inputs"]}
    assert shapes["attention_mask"] == [1, 1, 1, 33]
    assert shapes["history_k"][:2] == [1, 32]
    assert {tensor["name"] for tensor in rows["block_kv_0"]["inputs"]} >= {"history_length", "history_v"}


def test_passes_chain_their_op_counts(compilation: Compilation) -> None:
    rows = passes_table(compilation, "block_1")
    assert [row["pass"] for row in rows][:2] == ["import", "top-canonicalize"]
    assert rows[0]["ops_before"] == 0
    assert all(one["ops_after"] == two["ops_before"] for one, two in pairwise(rows))
    assert any(row["ops_after"] != row["ops_before"] for row in rows if row["pass"] == "convert-top-to-tpu")
    assert not next(row for row in rows if row["pass"] == "codegen")["changed"]
    assert "instructions" in rows[-1]["notes"][0]


# -- memory ----------------------------------------------------------------------------------------------------------

ATTENTION = [
    "block_cache_0",
    "block_cache_0_1",
    "block_cache_0_2",
    "block_kv_0",
    "block_cache_2",
    "block_kv_2",
]


@pytest.mark.parametrize("module", ATTENTION)
def test_new_rows_follow_the_history_in_every_layer(compilation: Compilation, module: str) -> None:
    rows = memory_table(compilation, module)["kv_cache"]
    spec, _ = compilation.find(module)
    assert [row["layer"] for row in rows] == list(spec.layers)
    for row in rows:
        assert row["rows"] == spec.cache
        assert row["k_append_address"] == row["k_address"] + row["rows"] * row["row_bytes"]
        assert row["v_append_address"] == row["v_address"] + row["rows"] * row["row_bytes"]


def test_all_modules_of_a_layer_share_its_kv_regions(compilation: Compilation) -> None:
    bases = {
        (row["layer"], row["k_address"], row["v_address"])
        for spec in compilation.specs
        for row in memory_table(compilation, spec.name)["kv_cache"]
    }
    assert len(bases) == 3
    assert sorted(layer for layer, _, _ in bases) == [0, 1, 2]


def test_ddr_rows_carry_the_asked_layer(compilation: Compilation) -> None:
    zero, one = (memory_table(compilation, f"block_cache_{layer}")["ddr"] for layer in (0, 1))
    names = [row["tensor"] for row in one]
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert not any("{i}" in name for name in names)
    for arena in ("coeff", "io"):
        shifts = {b["address"] - a["address"] for a, b in zip(zero, one, strict=True) if a["arena"] == arena}
        assert len(shifts) == 1
        assert shifts != {0}
    assert [r["address"] for r in zero if r["arena"] == "neuron"] == [
        r["address"] for r in one if r["arena"] == "neuron"
    ]


def test_ddr_rows_of_a_group_have_the_names_of_what_its_ops_make(compilation: Compilation) -> None:
    # GIVEN the stores inside of layer 1's groups
    snapshot = snapshot_after(compilation, "block_1", "address-assign")
    stored = {op.operands[0] for op in snapshot.ops if op.name == "tpu.Store"}
    made = [op.location.replace("{i}", "1") for op in snapshot.ops if stored.intersection(op.results)]
    # WHEN the module's DDR is listed
    spec, _ = compilation.find("block_1")
    outputs = {tensor.name for tensor in spec.outputs}
    rows = [row for row in memory_table(compilation, "block_1")["ddr"] if row["op"] == "tpu.Group"]
    names = [row["tensor"] for row in rows if row["tensor"] not in outputs]
    # THEN there is one row for each, by name
    assert len(rows) == len(made) == len(set(made))
    assert len(names) == len(set(names)) > 1
    assert set(names) < set(made)


def test_live_tensors_of_all_layers_do_not_overlap(compilation: Compilation) -> None:
    # GIVEN the weights of both layers and the lm_head at their merged addresses
    spans = {
        (row["address"], row["address"] + row["bytes"])
        for module in ("block_cache_0", "block_cache_1", "block_cache_2", "lm_head", "embedding")
        for row in memory_table(compilation, module)["ddr"]
        if row["arena"] == "coeff"
    }
    ordered = sorted(spans)
    assert all(one[1] <= two[0] for one, two in pairwise(ordered))


def test_addresses_keep_the_contract(compilation: Compilation) -> None:
    assert [
        problem for spec in compilation.specs for problem in memory_problems(compilation, spec.name)
    ] == []


def test_kv_table_holds_all_layers_without_problems(compilation: Compilation) -> None:
    table = kv_table(compilation)
    assert [layer.layer for layer in table.layers] == [0, 1, 2]
    assert [layer.problems for layer in table.layers] == [(), (), ()]
    assert table.cache_lengths == (64, 32, 16)
    assert table.layers[0].append == {length: length * table.row_bytes for length in (0, 16, 32, 64)}
    assert table.history_bytes == 3 * 2 * 64 * table.row_bytes
    assert (table.variant(16), table.variant(17), table.variant(65)) == (16, 32, None)


def test_kv_table_reports_a_slot_in_the_wrong_place() -> None:
    # GIVEN a decode module whose IR returns the new keys one row too early
    good = tiny_compilation()
    moved = Compilation(good.config, good.options, good.specs, dict(good.modules), {}, False, good._finished)
    module = moved.modules["block_cache_0"]
    addressed = module.after("address-assign")
    last = addressed.ops[-1]
    k_new = last.operand_types[1]
    assert k_new.address
    bad = type(k_new)(k_new.shape, k_new.dtype, k_new.address - 32)
    types = (last.operand_types[0], bad, last.operand_types[2])
    broken = type(last)(last.name, last.operands, types, (), (), last.attributes, last.origins)
    fields = {**vars(addressed), "ops": (*addressed.ops[:-1], broken)}
    snapshots = tuple(type(s)(**fields) if s.pass_name == "address-assign" else s for s in module.snapshots)
    moved.modules["block_cache_0"] = ModuleSnapshots("block_cache_0", snapshots)
    # THEN the layers that it serves are marked
    problems = [layer.problems for layer in kv_table(moved).layers]
    assert "block_cache_0 does not append behind row 63" in problems[0]
    assert problems[2] == ()


# -- local memory ------------------------------------------------------------------------------------------------------


def test_buffers_of_groups_are_those_of_the_ir() -> None:
    # GIVEN a block with layer groups
    compilation = tiny_compilation("qwen2", "bf16")
    found = memory_table(compilation, "block_1")
    ops = snapshot_after(compilation, "block_1", "codegen").ops
    views = [read_group(ops, index) for index in group_indices(ops)]
    assert len(found["groups"]) == len(views) > 0
    for row, view in zip(found["groups"], views, strict=True):
        # THEN ops and slices, and every buffer's kind and place, are what the IR says
        computing = [item.record for item in view.items.values() if item.kind is ItemKind.COMPUTE]
        assert sorted(row["ops"]) == sorted(op.name for op in computing)
        assert tuple(row["secs"]) == view.secs.as_tuple()
        rows = [buffer for buffer in found["lmem"] if buffer["group"] == row["group"]]
        assert sorted((b["kind"], b["address"], b["bytes"]) for b in rows) == sorted(
            (str(b.kind), b.address, b.nbytes) for b in live_buffers(view)
        )
        # AND steps do what the flow lists
        for step, ids in zip(row["steps"], view.steps, strict=True):
            kinds = [view.items[number].kind for number in ids]
            assert len(step["computes"]) == kinds.count(ItemKind.COMPUTE)
            assert len(step["loads"]) == kinds.count(ItemKind.LOAD)
            assert len(step["stores"]) == kinds.count(ItemKind.STORE)


def test_local_memory_carries_names_of_the_asked_layer() -> None:
    compilation = tiny_compilation("qwen2", "bf16")
    tensors = {row["tensor"] for row in memory_table(compilation, "block_1")["lmem"]}
    assert "model.layers.1.input_layernorm.weight" in tensors
    assert "{i}" not in str(memory_table(compilation, "block_1"))
    assert "{i}" not in str(explain_table(compilation, "block_1"))


def test_records_of_an_explanation_can_be_demanded() -> None:
    # GIVEN the ops of a group as the explanation numbers them
    compilation = tiny_compilation("qwen2", "bf16")
    (group,) = explain_table(compilation, "block_0", 0)["groups"]
    before = snapshot_after(compilation, "block_0", "op-reorder").ops
    assert [before[index].name for index in group["records"]] == group["ops"]
    with pytest.raises(UserError, match="module lm_head has no layer group 0; it has none"):
        explain_table(compilation, "lm_head", 0)


# -- a shared module as one layer sees it ------------------------------------------------------------------------------


def ir_places(text: str) -> dict[str, int]:
    """Weight -> address, as the text of the IR has them; of a quantised one its packed numbers."""
    pattern = re.compile(r'"top.Weight"\(\) \{.*?tensors = \["([^"]*)"\].*-> tensor<[^>]*, (\d+) : i64>')
    return {
        match[1]: int(match[2])
        for line in text.splitlines()
        if (match := pattern.search(line)) and ".scale" not in line and ".zero_point" not in line
    }


def memory_places(compilation: Compilation, module: str) -> dict[str, int]:
    return {row["tensor"]: row["address"] for row in memory_table(compilation, module)["ddr"]}


@pytest.mark.parametrize("pass_name", ["address-assign", "codegen"])
def test_ir_has_the_names_and_addresses_that_memory_has(compilation: Compilation, pass_name: str) -> None:
    # GIVEN every name that a module goes by: shared, of one layer, outside of the layers
    names = [name for spec in compilation.specs for name in spec.names]
    assert {"block_0", "block_1", "block_2", "block_cache_1_2", "embedding", "lm_head"} <= set(names)
    for name in names:
        # WHEN its IR is read
        text = ir_text(compilation, name, pass_name)
        # THEN it is about that layer and nothing else
        assert f"module @{name} " in text
        assert "{i}" not in text
        # AND every weight, and the arenas themselves, lie where the memory table and merge put them
        places = memory_places(compilation, name)
        found = ir_places(text)
        assert found.items() <= places.items()
        assert found
        bases = compilation.merged.bases[compilation.find(name)[0].name, compilation.find(name)[1]]
        attributes = re.findall(r"module\.(coeff|io|neuron)_addr = (\d+)", text)
        assert {arena: int(address) for arena, address in attributes} == {
            arena.name.lower(): bases.of(arena) for arena in Arena
        }


def test_ir_has_history_where_the_kv_slots_are(compilation: Compilation) -> None:
    for module, spec_name in (("block_cache_0", "block_cache_0"), ("block_kv_1", "block_kv_0")):
        spec, layer = compilation.find(module)
        assert spec.name == spec_name
        slots = next(row for row in kv_slots(compilation, spec) if row.layer == layer)
        head = next(line for line in ir_text(compilation, module, "codegen").splitlines() if "@main" in line)
        history = re.search(r'tensor<[^>]*, (\d+) : i64> loc\("history_k"\)', head)
        assert history is not None
        assert int(history[1]) == slots.k_address


def test_a_module_without_weights_keeps_its_empty_arena_where_merge_put_it(tmp_path: Path) -> None:
    # GIVEN a head that reads logits only: its coeff arena is empty, so coeff and io start at one address
    compilation = compile_here(write_tiny(tmp_path, "llama"), seq_length=64, sample=True)
    text = ir_text(compilation, "greedy_head", "codegen")
    bases = compilation.merged.bases["greedy_head", 0]
    assert f"module.coeff_addr = {bases.coeff} " in text
    assert f"module.io_addr = {bases.io} " in text


def test_addresses_are_provisional_until_all_modules_are_compiled(compilation: Compilation) -> None:
    # GIVEN the same program of which one module is compiled
    alone = Compilation(compilation.config, compilation.options, compilation.specs)
    alone.modules["block_0"] = compilation.modules["block_0"]
    # WHEN layer 1 is read
    last, first = (snapshot_after(alone, "block_1", name) for name in ("codegen", "import"))
    text = ir_text(alone, "block_1", "codegen")
    # THEN its names are known, and its addresses are told to be provisional where there are any
    assert "module @block_1 " in text
    assert "model.layers.1.input_layernorm.weight" in text
    assert f"module.coeff_addr = {compilation.options.chip.ddr_base} " in text
    assert is_provisional(alone, last)
    assert not is_provisional(alone, first)
    assert not is_provisional(compilation, last)


def test_unknown_pass_and_module_are_named_with_what_there_is(compilation: Compilation) -> None:
    with pytest.raises(UserError, match="has no pass 'nope'; it has: import, top-canonicalize"):
        snapshot_after(compilation, "block_0", "nope")
    with pytest.raises(UserError, match="unknown module 'block_9'"):
        passes_table(compilation, "block_9")


def test_a_pass_that_was_not_reached_is_a_compile_failure(compilation: Compilation) -> None:
    failed = Compilation(compilation.config, compilation.options, compilation.specs)
    first = compilation.modules["block_0"].snapshots[:2]
    failed.modules["block_0"] = ModuleSnapshots("block_0", first, "pass processor-assign aborted")
    with pytest.raises(CompileError, match="processor-assign aborted"):
        snapshot_after(failed, "block_0", "codegen")
    assert len(passes_table(failed, "block_0")) == 2


# -- provenance --------------------------------------------------------------------------------------------------------


def test_a_tensor_is_followed_to_instructions_and_back(compilation: Compilation) -> None:
    # GIVEN the stored name of a quantised linear of layer 1
    (found,) = uses_of_tensor(compilation, "block_1", "model.layers.1.self_attn.k_proj.weight")
    assert [op.name for _, op in found.top_ops] == ["top.MatMul"]
    assert [op.name for _, op in found.tpu_ops] == ["tpu.A16MatMul"]
    assert found.via[0] == "import"
    assert "convert-top-to-tpu" in found.via
    # the stored matrix is [outputs, inputs] and the bias a vector
    shapes = block_tensors(compilation.config)
    assert {(t.name.removeprefix("model.layers.{i}."), t.shape) for t in found.tensors} == {
        (f"self_attn.k_proj.{part}", shapes[f"self_attn.k_proj.{part}"]) for part in ("weight", "bias")
    }
    # its instructions are those of the op, and they lead back
    program = snapshot_after(compilation, "block_0", "codegen").report
    position, op = found.tpu_ops[0]
    assert [i for i, index in enumerate(program["op"]) if index == position] == [
        i for start, end in found.instructions for i in range(start, end)
    ]
    assert found.tiu + found.gdma == sum(end - start for start, end in found.instructions) > 0
    assert origin_of(compilation, "block_1", op) == found


def test_one_mlp_becomes_several_ops(compilation: Compilation) -> None:
    found = provenance(compilation, "block_0", "model.layers.{i}.mlp")
    assert [op.name for _, op in found.top_ops] == ["top.MLP"]
    assert [op.kind for _, op in found.tpu_ops].count("A16MatMul") == 3
    assert len(found.tensors) == 3
    # AND a part of it has its own tensor, but comes from the whole
    (part,) = uses_of_tensor(compilation, "block_0", "model.layers.0.mlp.gate_proj.weight")
    assert part.key == "model.layers.{i}.mlp.gate_proj"
    assert (part.top_ops, len(part.tpu_ops), len(part.tensors)) == (found.top_ops, 1, 1)
    assert 0 < part.tiu < found.tiu


def test_a_residual_and_the_product_that_took_it_lead_to_one_op() -> None:
    # GIVEN decode in bf16, where the sum behind o_proj became the product's bias
    compilation = tiny_compilation(quantize="bf16")
    layer = "model.layers.{i}."
    keys = [layer + name for name in ("self_attn.o_proj", "attention_residual", "self_attn.o_proj.add")]
    # WHEN each of its names is followed
    ways = [provenance(compilation, "block_cache_0", key) for key in keys]
    # THEN all find the op, both TopOps, the tensor and the pass
    for way in ways:
        (op,) = [op for _, op in way.tpu_ops if op.name == "tpu.MatMul"]
        assert op.origins == tuple(keys)
        assert {op.name for _, op in way.top_ops} == {"top.MatMul", "top.Add"}
        assert layer + "self_attn.o_proj.weight" in [tensor.name for tensor in way.tensors]
        assert "tpu-canonicalize" in way.via
        assert way.tiu > 0
    # AND the diff of the pass shows the sum as gone
    snapshots = compilation.snapshots("block_cache_0").snapshots
    before, after = next((a, b) for a, b in pairwise(snapshots) if b.pass_name == "tpu-canonicalize")
    hunks = {hunk.key: hunk for hunk in diff(before, after).hunks}
    assert hunks[keys[1]].kind == "removed"
    assert [op.location for op in hunks[keys[0]].after if op.name == "tpu.MatMul"] == [keys[2]]


def test_a_weight_leads_to_the_op_that_reads_it(compilation: Compilation) -> None:
    last = snapshot_after(compilation, "block_0", "codegen")
    scale = next(op for op in last.ops if str(op.attributes.get("path", "")).endswith("scale"))
    assert origin_of(compilation, "block_0", scale).key + ".weight" == scale.location


def test_a_tensor_that_is_not_read_is_named_with_those_that_are(compilation: Compilation) -> None:
    with pytest.raises(UserError, match=r"does not read tensor 'lm_head.weight'; it reads: .*q_proj"):
        uses_of_tensor(compilation, "block_0", "lm_head.weight")


@pytest.mark.parametrize("module", ["block_cache_0", "block_cache_1"])
def test_addressed_ir_parses_with_plain_mlir(compilation: Compilation, module: str) -> None:
    # GIVEN upstream MLIR, which knows nothing of Top and Tpu
    from torch_mlir import ir

    text = ir_text(compilation, module, "address-assign")
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        parsed = ir.Module.parse(text)
    assert re.search(r"tensor<[\dx]+xbf16, \d{10} : i64>", str(parsed))
    assert f"@{module} " in text
