"""Snapshots as numbers: any pass, weights made once, KV in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from compiled import compile_here
from running import cosine, weights_of
from tiny import write_tiny

from engine.compiler import Compilation, open_model
from engine.errors import CompileError, UserError
from engine.passes import PASS_NAMES
from engine.sim.interpreter import (
    CheckpointWeights,
    Interpreter,
    PreparedWeights,
    StoredWeights,
    run_snapshot,
)
from engine.snapshot import OpRecord, Snapshot, TensorType
from engine.tpu.weights import WeightReference, materialize

S, L, HIDDEN, KV_HEADS, HEAD_DIM = 24, 8, 64, 2, 32
DECODE, PREFILL, PREFILL_KV = "block_cache_0", "block_0", "block_kv_0"


class CountingWeights:
    """A loader that counts what it is asked for."""

    def __init__(self, inner: CheckpointWeights) -> None:
        self.inner, self.loads = inner, Counter[str]()

    def load(self, references: Sequence[WeightReference], layer: int) -> Iterable[np.ndarray]:
        self.loads.update(reference.key(layer) for reference in references)
        return self.inner.load(references, layer)


@cache
def program(quantize: str) -> tuple[Compilation, CheckpointWeights]:
    # kept for the session: the compilation reads nothing, the weights are mapped
    folder = TemporaryDirectory()
    _FOLDERS.append(folder)
    path = write_tiny(Path(folder.name) / "model", "qwen3")
    return compile_here(path, seq_length=S, max_input_length=L, quantize=quantize), weights_of(
        open_model(path)
    )


_FOLDERS: list[TemporaryDirectory[str]] = []


def inputs(module: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a block whose values are exact in bf16."""
    random = np.random.default_rng(seed)
    rows = 1 if module == DECODE else L

    def values(*shape: int) -> np.ndarray:
        return (random.integers(-64, 64, shape) / 32).astype(np.float32)

    found = {
        "input_states": values(1, rows, HIDDEN),
        "position_ids": np.arange(5, 5 + rows, dtype=np.int32)[None],
    }
    if module != PREFILL:
        found |= {name: values(1, S, KV_HEADS, HEAD_DIM) for name in ("history_k", "history_v")}
    if module == DECODE:
        found["attention_mask"] = np.where(np.arange(S + 1) < S - 3, 0, -10000).astype(np.float32)[
            None, None, None
        ]
    if module == PREFILL_KV:
        found["history_length"] = np.array([5], np.int32)
    return found


@pytest.mark.parametrize("module", [PREFILL, PREFILL_KV, DECODE])
def test_every_pass_leaves_the_numbers_of_an_f32_module_alone(module: str) -> None:
    # GIVEN a block compiled in f32, where lowering rounds nothing
    compilation, weights = program("f32")
    snapshots = compilation.modules[module]
    imported = list(run_snapshot(snapshots.after("import"), inputs(module), weights).values())
    for name in PASS_NAMES:
        # WHEN the module after each pass is run
        found = list(run_snapshot(snapshots.after(name), inputs(module), weights).values())
        # THEN it gives what the imported module gives
        for one, expected in zip(found, imported, strict=True):
            np.testing.assert_allclose(one, expected, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("quantize", ["bf16", "f16"])
def test_lowered_modules_are_close_to_top_and_rounded(quantize: str) -> None:
    compilation, weights = program(quantize)
    snapshots = compilation.modules[DECODE]
    top = run_snapshot(snapshots.after("top-canonicalize"), inputs(DECODE), weights)
    lowered = run_snapshot(snapshots.after("codegen"), inputs(DECODE), weights)
    for one, expected in zip(lowered.values(), top.values(), strict=True):
        assert cosine(one, expected) > 0.9995
        mantissa = 7 if quantize == "bf16" else 10
        assert not (one.view(np.uint32) & ((1 << (23 - mantissa)) - 1)).any()
    assert any((one != expected).any() for one, expected in zip(lowered.values(), top.values(), strict=True))


@pytest.mark.parametrize("quantize", ["w4bf16", "w8bf16"])
def test_reordered_scales_give_the_same_numbers(quantize: str) -> None:
    compilation, weights = program(quantize)
    snapshots = compilation.modules[DECODE]
    plain = run_snapshot(snapshots.after("tpu-canonicalize"), inputs(DECODE), weights)
    reordered = run_snapshot(snapshots.after("codegen"), inputs(DECODE), weights)
    for one, expected in zip(reordered.values(), plain.values(), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_layers_have_their_own_weights() -> None:
    compilation, weights = program("f32")
    snapshot = compilation.modules[PREFILL].after("codegen")
    first, second = (
        list(run_snapshot(snapshot, inputs(PREFILL), weights, layer).values()) for layer in (0, 1)
    )
    assert np.abs(first[0] - second[0]).max() > 0.1


def test_modules_of_a_layer_load_every_weight_once() -> None:
    # GIVEN all blocks of a layer over one set of prepared weights
    compilation, weights = program("w4bf16")
    counting = CountingWeights(weights)
    prepared = PreparedWeights(counting)
    Interpreter(compilation.modules[PREFILL].after("codegen"), prepared)
    after_first = prepared.nbytes
    # WHEN the other modules of the layer are made ready
    for module in (PREFILL_KV, DECODE, f"{DECODE}_1", f"{DECODE}_2"):
        Interpreter(compilation.modules[module].after("codegen"), prepared)
    # THEN nothing is loaded, let alone dequantised, again
    assert max(counting.loads.values()) == 1
    assert any("quantize(w4" in key for key in counting.loads)
    assert prepared.nbytes == after_first


def test_a_dequantised_weight_keeps_no_packed_parts() -> None:
    compilation, weights = program("w4bf16")
    prepared = PreparedWeights(weights)
    Interpreter(compilation.modules[DECODE].after("codegen"), prepared)
    linears = HIDDEN * (4 * HEAD_DIM * 2 + 2 * KV_HEADS * HEAD_DIM + 3 * 128)
    assert prepared.nbytes == pytest.approx(4 * linears, rel=0.1)


def test_embedding_table_is_not_copied() -> None:
    compilation, weights = program("bf16")
    prepared = PreparedWeights(weights)
    embedding = Interpreter(compilation.modules["embedding_cache"].after("codegen"), prepared)
    (table,) = (array for made in prepared._prepared.values() for array in made.values())
    assert table.base is not None
    assert not table.flags.writeable
    row = embedding.run({"input_ids": np.array([[7]], np.int32)})["embedding"]
    assert row.dtype == np.float32
    np.testing.assert_array_equal(row[0, 0], table[7].astype(np.float32))


@pytest.mark.parametrize("module", [PREFILL, PREFILL_KV, DECODE])
@pytest.mark.parametrize("pass_name", ["import", "codegen"])
def test_regions_hold_history_and_new_rows(module: str, pass_name: str) -> None:
    # GIVEN regions with more rows than the module reads
    compilation, weights = program("bf16")
    given = inputs(module)
    spec, _ = compilation.find(module)
    names = [tensor.name for tensor in spec.outputs]
    snapshot = compilation.modules[module].after(pass_name)
    block = Interpreter(snapshot, PreparedWeights(weights), outputs=names)
    regions = {
        name: np.full((1, S + L, KV_HEADS, HEAD_DIM), 9, np.float32) for name in ("k_cache", "v_cache")
    }
    cache = 0 if module == PREFILL else S
    if cache:
        regions["k_cache"][:, :S], regions["v_cache"][:, :S] = given["history_k"], given["history_v"]
    plain = block.run(given)
    # WHEN the module runs on them, without histories among its inputs
    rest = {
        name: value for name, value in given.items() if not name.startswith("history_") or value.ndim == 1
    }
    in_place = block.run(rest, regions)
    # THEN it gives the same and leaves its new rows right behind the rows that it reads
    for name in names:
        np.testing.assert_array_equal(in_place[name], plain[name])
    rows = plain["k_cache"].shape[1]
    for name, region in regions.items():
        np.testing.assert_array_equal(region[:, cache : cache + rows], plain[name])
        assert (region[:, cache + rows :] == 9).all()
    if cache:
        np.testing.assert_array_equal(regions["k_cache"][:, :cache], given["history_k"])


def test_observed_values_come_with_the_outputs() -> None:
    compilation, weights = program("bf16")
    snapshot = compilation.modules["lm_head"].after("codegen")
    top_k = next(op for op in snapshot.ops if op.kind == "TopK")
    head = Interpreter(snapshot, PreparedWeights(weights), observe={"logits": top_k.operands[0]})
    found = head.run({"hidden_states": np.ones((1, HIDDEN), np.float32)})
    assert found["token_id"].reshape(-1)[0] == found["logits"].argmax()


def test_inputs_are_checked() -> None:
    compilation, weights = program("f32")
    block = Interpreter(compilation.modules[PREFILL].after("codegen"), PreparedWeights(weights))
    given = inputs(PREFILL)
    with pytest.raises(UserError, match="block_0: input position_ids is missing"):
        block.run({"input_states": given["input_states"]})
    with pytest.raises(UserError, match=r"input_states has shape \[1, 7, 64\], needed \[1, 8, 64\]"):
        block.run(given | {"input_states": given["input_states"][:, 1:]})


def test_stored_weights_ask_for_one_reference_at_a_time() -> None:
    _, weights = program("w4bf16")
    reference = WeightReference(("model.norm.weight",), ("cast(bf16)",), TensorType((HIDDEN,), "bf16"))
    stored = StoredWeights(lambda one, layer: materialize(one, layer, weights.source))
    (found,) = stored.load([reference], 0)
    np.testing.assert_array_equal(found, next(iter(weights.load([reference], 0))))


def record(name: str, operands: Sequence[str], result: str, **attributes: object) -> OpRecord:
    type_ = TensorType((1, 2), "f32")
    origins = (str(attributes.pop("origin", result)),)
    parent = attributes.pop("parent", None)
    results = (result,) if result else ()
    return OpRecord(
        name,
        tuple(operands),
        (type_,) * len(operands),
        results,
        (type_,) * len(results),
        attributes,
        origins,
        parent=parent,  # type: ignore[arg-type]
    )


def snapshot(*ops: OpRecord) -> Snapshot:
    return Snapshot("m", "test", "", ops, {}, True, 0.0)


class NoWeights:
    def load(self, references: Sequence[WeightReference], layer: int) -> Iterable[np.ndarray]:
        raise AssertionError("no weights")


def test_ops_in_a_region_run_in_their_place() -> None:
    # GIVEN a group op whose region doubles the input and yields it
    ops = (
        record("top.Input", ["%a"], "%0", origin="x"),
        record("tpu.Group", ["%0"], "%1"),
        record("tpu.Add", ["%0", "%0"], "%2", parent=1),
        record("tpu.Yield", ["%2"], "", parent=1),
        record("tpu.Mul", ["%1", "%0"], "%3", origin="y"),
        record("func.return", ["%3"], ""),
    )
    found = run_snapshot(snapshot(*ops), {"x": np.array([[3, 4]], np.float32)}, NoWeights())
    np.testing.assert_array_equal(found["y"], [[18, 32]])


def test_an_op_without_meaning_is_named() -> None:
    ops = (record("top.Input", ["%a"], "%0", origin="x"), record("tpu.Strange", ["%0"], "%1"))
    with pytest.raises(CompileError, match=r"module m: op tpu\.Strange"):
        Interpreter(snapshot(*ops), PreparedWeights(NoWeights()))
