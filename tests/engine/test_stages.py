"""Modules of the three stages: names, shapes, who serves which layer."""

from __future__ import annotations

from engine.options import resolve
from engine.stages import Kind, ModelShape, Stage, find, kv_rows, plan

SHAPE = ModelShape(layers=28, hidden=64, kv_heads=2, head_dim=16, vocab=100)


def test_modules_of_a_model_with_history_and_variants() -> None:
    options = resolve(max_positions=4096, stored_dtype="bf16", seq_length=512)
    specs = plan(SHAPE, options)
    assert [s.name for s in specs] == [
        "embedding",
        "block_0",
        "block_27",
        "block_kv_0",
        "block_kv_27",
        "embedding_cache",
        "block_cache_0",
        "block_cache_27",
        "block_cache_0_1",
        "block_cache_27_1",
        "block_cache_0_2",
        "block_cache_27_2",
        "lm_head",
    ]
    assert [find(specs, f"block_cache_3{suffix}")[0].cache for suffix in ("", "_1", "_2")] == [512, 256, 128]
    assert kv_rows(options) == 512 + 128
    without = resolve(max_positions=4096, stored_dtype="bf16", seq_length=512, history=False)
    assert kv_rows(without) == 512 + 1


def test_inputs_and_outputs_have_the_designed_shapes() -> None:
    options = resolve(max_positions=4096, stored_dtype="bf16", seq_length=512, quantize="bf16")
    specs = plan(SHAPE, options)
    block, kv, decode = (find(specs, name)[0] for name in ("block_0", "block_kv_0", "block_cache_0"))
    assert {t.name: (t.type.shape, t.type.dtype) for t in kv.inputs} == {
        "input_states": ((1, 128, 64), "bf16"),
        "position_ids": ((1, 128), "si32"),
        "history_k": ((1, 512, 2, 16), "bf16"),
        "history_v": ((1, 512, 2, 16), "bf16"),
        "history_length": ((1,), "si32"),
    }
    assert [t.name for t in block.inputs] == ["input_states", "position_ids"]
    assert {t.name: t.type.shape for t in decode.inputs}["attention_mask"] == (1, 1, 1, 513)
    assert [t.type.shape for t in decode.outputs] == [(1, 1, 64), (1, 1, 2, 16), (1, 1, 2, 16)]


def test_a_model_of_one_layer_has_only_the_last_block() -> None:
    options = resolve(max_positions=64, stored_dtype="f32", history=False)
    blocks = [s for s in plan(ModelShape(1, 8, 1, 4, 10), options) if s.kind is Kind.BLOCK]
    assert [(s.name, s.last, s.stage) for s in blocks] == [
        ("block_0", True, Stage.PREFILL),
        ("block_cache_0", True, Stage.DECODE),
    ]


def test_sampling_has_three_heads() -> None:
    options = resolve(max_positions=64, stored_dtype="f32", sample=True)
    names = [s.name for s in plan(SHAPE, options)][-3:]
    assert names == ["lm_head", "greedy_head", "sample_head"]


def test_full_mask_is_an_input_of_prefill_only() -> None:
    options = resolve(max_positions=64, stored_dtype="f32", prefill_mask="full")
    specs = plan(SHAPE, options)
    assert "attention_mask" in {t.name for t in find(specs, "block_0")[0].inputs}
    assert "attention_mask" not in {t.name for t in find(specs, "block_kv_0")[0].inputs}
