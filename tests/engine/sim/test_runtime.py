"""The generation loop against transformers' logits, and what it promises about segments, variants and KV rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import compile_here
from golden.cases import (
    CASES,
    DECODED,
    FIRST_ROW,
    INPUT_LENGTH,
    LONG_PROMPT,
    SEQ_LENGTH,
    SHORT_PROMPT,
    TOKENS,
)
from running import compiled_runtime, cosine, forced_logits, weights_of
from safetensors.numpy import load_file, save_file
from tiny import write_tiny

from engine.compiler import open_model
from engine.errors import UserError
from engine.sim.interpreter import Interpreter, PreparedWeights, Regions
from engine.sim.runtime import GeneratedToken, ModuleExecutor, Progress, Runtime, Sampling
from engine.snapshot import Snapshot
from engine.stages import ModuleSpec
from engine.top.checkpoint.tensors import EMBEDDING, LM_HEAD
from engine.tpu.weights import TensorSource

HALF_COSINE = 0.9995
F32_ERROR = 1e-4
SCHEMES: dict[str, dict[str, Any]] = {
    "w4,g64,asymmetric": {"quantize": "w4bf16"},
    "w4,g32,symmetric": {"quantize": "w4bf16", "q_group_size": 32, "symmetric": True},
    "w8,g64,asymmetric": {"quantize": "w8bf16"},
}
FLOAT_CASES = [name for name, case in CASES.items() if not case.scheme]
QUANTISED_CASES = [name for name, case in CASES.items() if case.scheme]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a case."""
    root = tmp_path_factory.mktemp("checkpoints")

    @cache
    def write(name: str) -> Path:
        return CASES[name].write(root / name)

    return write


@pytest.fixture(scope="module")
def golden(data: Path) -> Mapping[str, np.ndarray]:
    return np.load(data / "golden_logits.npz")


@pytest.fixture(scope="module")
def runtime(folders: Callable[[str], Path]) -> Runtime:
    """The llama checkpoint in f32."""
    return case_runtime(folders("llama"), quantize="f32")


def case_runtime(path: Path, **options: Any) -> Runtime:
    return compiled_runtime(path, seq_length=SEQ_LENGTH, max_input_length=INPUT_LENGTH, **options)


def all_logits(runtime: Runtime, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(found, expected) rows: a short prompt (prefill) and a long one (prefill_kv), each with decoded tokens behind it.

    Together they run every module of the program.
    """
    found, rows, ran = [], [], set()
    for prompt in (SHORT_PROMPT, LONG_PROMPT):
        logits, modules = forced_logits(runtime, TOKENS[: prompt + DECODED], prompt)
        found.append(logits)
        rows.append(expected[prompt - 1 - FIRST_ROW :][: DECODED + 1])
        ran |= set(modules)
    assert ran == {"block_0", "block_kv_0", "block_cache_0", "block_cache_0_1", "block_cache_0_2"}
    return np.concatenate(found), np.concatenate(rows)


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_f32_logits_equal_those_of_transformers(
    name: str, folders: Callable[[str], Path], golden: Mapping[str, np.ndarray]
) -> None:
    found, expected = all_logits(case_runtime(folders(name), quantize="f32"), golden[name])
    np.testing.assert_allclose(found, expected, rtol=0, atol=F32_ERROR)


@pytest.mark.parametrize(
    ("name", "half"), [*((name, "bf16") for name in FLOAT_CASES), ("llama", "f16"), ("qwen3", "f16")]
)
def test_half_logits_point_where_those_of_transformers_do(
    name: str, half: str, folders: Callable[[str], Path], golden: Mapping[str, np.ndarray]
) -> None:
    found, expected = all_logits(case_runtime(folders(name), quantize=half), golden[name])
    assert cosine(found, expected) >= HALF_COSINE
    assert np.abs(found - expected).max() > F32_ERROR


@pytest.mark.parametrize("name", QUANTISED_CASES)
def test_quantised_logits_equal_the_same_model_with_dequantised_weights(
    name: str, folders: Callable[[str], Path], golden: Mapping[str, np.ndarray]
) -> None:
    runtime = case_runtime(folders(name), **SCHEMES[CASES[name].scheme])
    found, expected = all_logits(runtime, golden[name].astype(np.float32))
    assert cosine(found, expected) >= HALF_COSINE
    # quantisation moved the logits by more than rounding does, so unquantised weights would show
    _, unquantised = all_logits(runtime, golden[CASES[name].family])
    assert 1 - cosine(found, unquantised) > 2 * (1 - cosine(found, expected))


@pytest.mark.parametrize("rows", [7, 13, 40])
@pytest.mark.parametrize("quantize", ["f32", "bf16"])
def test_one_prefill_equals_prefill_and_any_number_of_prefill_kv(
    rows: int, quantize: str, folders: Callable[[str], Path]
) -> None:
    # GIVEN one program that takes the whole prompt at once, and one that takes it in pieces of `rows`
    prompt = TOKENS[:43]
    whole = compiled_runtime(folders("llama"), seq_length=48, max_input_length=48, quantize=quantize)
    pieces = compiled_runtime(folders("llama"), seq_length=48, max_input_length=rows, quantize=quantize)
    # WHEN both fill their KV regions
    expected, one = whole.prefill(prompt)
    found, several = pieces.prefill(prompt)
    # THEN the histories were what the pieces add up to, and states and KV rows agree
    assert [segment.history for segment in several] == list(range(0, 43, rows))
    assert sum(segment.rows for segment in several) == 43
    assert len(one) == 1
    if quantize == "bf16":
        assert cosine(found, expected) > HALF_COSINE
        return
    np.testing.assert_allclose(found, expected, atol=F32_ERROR)
    for layer in range(2):
        for name, array in pieces.kv.regions(f"block_{layer}", layer).items():
            other = whole.kv.regions(f"block_{layer}", layer)[name]
            np.testing.assert_allclose(array[:, :43], other[:, :43], atol=F32_ERROR)


def test_full_prefill_mask_gives_the_same(
    folders: Callable[[str], Path], golden: Mapping[str, np.ndarray]
) -> None:
    runtime = case_runtime(folders("llama"), quantize="f32", prefill_mask="full")
    found, expected = all_logits(runtime, golden["llama"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=F32_ERROR)


def test_without_history_a_prompt_is_one_prefill(
    folders: Callable[[str], Path], golden: Mapping[str, np.ndarray]
) -> None:
    runtime = compiled_runtime(folders("llama"), seq_length=SEQ_LENGTH, history=False, quantize="f32")
    found, modules = forced_logits(runtime, TOKENS, LONG_PROMPT)
    assert modules == ["block_0", *["block_cache_0"] * DECODED]
    np.testing.assert_allclose(found, golden["llama"][LONG_PROMPT - 1 - FIRST_ROW :], rtol=0, atol=F32_ERROR)


# -- KV memory -----------------------------------------------------------------------------------------------------


def test_all_modules_of_a_layer_share_its_regions(runtime: Runtime) -> None:
    modules = ["block_0", "block_kv_0", "block_cache_0", "block_cache_0_1", "block_cache_0_2"]
    found = [runtime.kv.regions(module, 0) for module in modules]
    assert all(regions["k_cache"] is found[0]["k_cache"] for regions in found)
    assert all(regions["v_cache"] is found[0]["v_cache"] for regions in found)
    other = runtime.kv.regions("block_1", 1)
    arrays = [*found[0].values(), *other.values()]
    assert len({id(array) for array in arrays}) == 4
    assert all(array.shape[1] == SEQ_LENGTH + INPUT_LENGTH for array in arrays)


def test_moved_rows_are_counted(runtime: Runtime) -> None:
    # GIVEN f32 rows of two KV heads of 16 in two layers
    row = 2 * 2 * 2 * 16 * 4
    tokens = list(runtime.generate(TOKENS[:20], 29, stop=()))
    # THEN prefill_kv moves the prompt's 4 further rows from slot S, decode each new row from slot C
    assert tokens[0].copied_bytes == 4 * row
    by_filled = {token.position - 1: token.copied_bytes for token in tokens[1:]}
    # WHEN the filled rows are exactly C, the new row is where it belongs
    assert {filled for filled, moved in by_filled.items() if moved == 0} == {32}
    assert {moved for filled, moved in by_filled.items() if filled != 32} == {row}
    assert runtime.filled == SEQ_LENGTH


def test_the_smallest_variant_that_holds_the_history_runs(runtime: Runtime) -> None:
    found = {filled: runtime.decode_module(filled).cache for filled in (1, 16, 17, 32, 33, 47)}
    assert found == {1: 16, 16: 16, 17: 32, 32: 32, 33: 48, 47: 48}


# -- the loop ------------------------------------------------------------------------------------------------------


def test_generation_is_greedy_and_forgets_the_prompt_before(runtime: Runtime) -> None:
    first = [token.token for token in runtime.generate(TOKENS[:SHORT_PROMPT], 6, stop=())]
    list(runtime.generate(TOKENS[5:30], 3, stop=()))
    again = list(runtime.generate(TOKENS[:SHORT_PROMPT], 6, stop=(), logits=True))
    assert [token.token for token in again] == first
    forced, _ = forced_logits(runtime, [*TOKENS[:SHORT_PROMPT], *first[:-1]], SHORT_PROMPT)
    assert first == forced.argmax(axis=1).tolist()
    for token, row in zip(again, forced, strict=True):
        assert token.logits is not None
        np.testing.assert_array_equal(token.logits, row)
        best = token.top()
        assert best[0][0] == token.token
        assert len(best) == 5
        assert 0 < sum(probability for _, probability in best) <= 1


def test_what_a_token_says(runtime: Runtime) -> None:
    first, second = runtime.generate(TOKENS[:20], 2, stop=())
    assert [(s.module, s.history, s.rows) for s in first.segments] == [
        ("block_0", 0, 16),
        ("block_kv_0", 16, 4),
    ]
    assert (first.module, first.position) == ("block_kv_0", 20)
    assert (second.module, second.position, second.segments) == ("block_cache_0_1", 21, ())
    assert first.seconds > 0
    assert first.logits is None
    assert first.top() == []


def test_generation_stops_at_a_stop_token(runtime: Runtime) -> None:
    free = [token.token for token in runtime.generate(TOKENS[:9], 8, stop=())]
    stop = free[3]
    stopped = [token.token for token in runtime.generate(TOKENS[:9], 8, stop=[stop])]
    assert stopped == free[: free.index(stop) + 1]


def test_generation_stops_when_the_history_is_full(runtime: Runtime) -> None:
    # GIVEN 45 tokens of 48 rows
    tokens = list(runtime.generate(TOKENS[:45], 50, stop=()))
    # THEN the three rows left give three tokens beside the prompt's own
    assert len(tokens) == 4
    assert runtime.filled == SEQ_LENGTH
    with pytest.raises(UserError, match="the history is full: 48 of --seq-length 48"):
        runtime.decode(3)


def test_generation_runs_only_as_far_as_it_is_asked(runtime: Runtime) -> None:
    # WHEN only the first token is taken
    stream = runtime.generate(TOKENS[:9], 30, stop=())
    next(stream)
    # THEN nothing but the prompt has been computed
    assert runtime.filled == 9


def test_the_way_to_each_token_can_be_watched(folders: Callable[[str], Path]) -> None:
    # GIVEN a program that has not run yet
    runtime = case_runtime(folders("llama"))
    layers = runtime.program.config.layers
    seen: list[Progress] = []
    # WHEN it generates THEN each layer is told of, first as it is made ready and then as it runs
    tokens = runtime.generate(TOKENS[:SHORT_PROMPT], 2, stop=(), watch=seen.append)
    next(tokens)
    every = range(1, layers + 1)
    ready = [Progress("weights", "block_0", layer, layers) for layer in every]
    assert seen == [
        *ready,
        *(Progress("blocks", "block_0", layer, layers) for layer in every),
        Progress("blocks", "lm_head", 0, 1),
    ]
    # AND a layer that is ready is not made ready again
    seen.clear()
    list(runtime.generate(TOKENS[:SHORT_PROMPT], 1, stop=(), watch=seen.append))
    assert not [turn for turn in seen if turn.doing == "weights"]


def test_a_watcher_can_end_a_generation(runtime: Runtime) -> None:
    def refuse(progress: Progress) -> None:
        raise KeyboardInterrupt

    expected = [token.token for token in runtime.generate(TOKENS[:SHORT_PROMPT], 2, stop=())]
    with pytest.raises(KeyboardInterrupt):
        next(runtime.generate(TOKENS[:SHORT_PROMPT], 2, stop=(), watch=refuse))
    # THEN the next one is as if it had not been, and nobody watches it
    assert [token.token for token in runtime.generate(TOKENS[:SHORT_PROMPT], 2, stop=())] == expected


def test_a_later_generation_ends_the_one_before(runtime: Runtime) -> None:
    # GIVEN a stream that is not at its end
    older = runtime.generate(TOKENS[:9], 30, stop=())
    next(older)
    # WHEN another one starts on the same KV regions
    newer = runtime.generate(TOKENS[3:15], 5, stop=())
    expected = [next(newer).token]
    # THEN the older one has no more tokens, and the newer one is not disturbed
    assert list(older) == []
    found = expected + [token.token for token in newer]
    assert found == [token.token for token in runtime.generate(TOKENS[3:15], 5, stop=())]


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([], 5, "the prompt has no tokens"),
        ([3] * 49, 5, "the prompt has 49 tokens, the program takes 48 at most.*--seq-length"),
        ([3, 320], 5, "token id 320 is outside of the model's vocabulary, 0 to 319"),
        ([-1], 5, "token id -1 is outside"),
        ([3], 0, "max_new_tokens is 0"),
    ],
)
def test_bad_requests_are_refused_at_once(
    runtime: Runtime, prompt: list[int], count: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        runtime.generate(prompt, count)


def test_long_prompt_without_history_is_refused(folders: Callable[[str], Path]) -> None:
    runtime = compiled_runtime(
        folders("llama"), seq_length=16, max_input_length=8, history=False, quantize="f32"
    )
    with pytest.raises(UserError, match=r"9 tokens, the program takes 8 at most.*--max-input-length"):
        runtime.generate(TOKENS[:9], 1)


def test_sampling_needs_the_sample_head(runtime: Runtime) -> None:
    with pytest.raises(UserError, match="compile with --sample"):
        runtime.generate(TOKENS[:3], 1, sampling=Sampling())


# -- sampling ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampler(folders: Callable[[str], Path]) -> Runtime:
    return case_runtime(folders("llama"), quantize="f32", sample=True)


def drawn(runtime: Runtime, sampling: Sampling | None, prompt: int = 9) -> list[int]:
    return [token.token for token in runtime.generate(TOKENS[:prompt], 12, sampling=sampling, stop=())]


def test_sample_program_decodes_greedily_when_asked(runtime: Runtime, sampler: Runtime) -> None:
    greedy = drawn(runtime, None)
    assert drawn(sampler, None) == greedy
    assert drawn(sampler, Sampling(temperature=0)) == greedy
    assert drawn(sampler, Sampling(top_k=1, seed=5)) == greedy
    assert drawn(sampler, Sampling(top_p=1e-6, seed=5)) == greedy


def test_seed_decides_what_is_drawn(sampler: Runtime) -> None:
    hot = {seed: drawn(sampler, Sampling(temperature=3.0, seed=seed)) for seed in (1, 2)}
    assert hot[1] == drawn(sampler, Sampling(temperature=3.0, seed=1))
    assert hot[1] != hot[2]


def test_repetition_penalty_covers_the_prompt_and_what_was_generated(sampler: Runtime) -> None:
    # GIVEN a penalty that no token's lead survives
    tokens = drawn(sampler, Sampling(penalty=1e6, top_k=1))
    assert len({*tokens, *TOKENS[:9]}) == len(tokens) + len(set(TOKENS[:9]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature -1 is out of range; accepted: 0 or more"),
        ({"top_k": -2}, "top_k -2"),
        ({"top_p": 0}, "top_p 0"),
        ({"penalty": 0}, "penalty 0"),
    ],
)
def test_sampling_values_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(**values)


def test_top_k_beyond_the_vocabulary_is_refused(sampler: Runtime) -> None:
    vocabulary = sampler.program.config.vocab_size
    with pytest.raises(
        UserError, match=f"top_k {vocabulary + 1} is out of range; accepted: 0 .all. to {vocabulary}"
    ):
        sampler.generate(TOKENS[:3], 1, sampling=Sampling(top_k=vocabulary + 1))
    sampler.generate(TOKENS[:3], 1, sampling=Sampling(top_k=vocabulary))


# -- other executors -----------------------------------------------------------------------------------------------


def test_another_executor_can_run_the_modules(folders: Callable[[str], Path], runtime: Runtime) -> None:
    # GIVEN an executor that only knows the protocol: it works on copies and writes the slot itself
    model = open_model(folders("llama"))
    program = compile_here(
        folders("llama"), seq_length=SEQ_LENGTH, max_input_length=INPUT_LENGTH, quantize="f32"
    )
    prepared = PreparedWeights(weights_of(model))
    ran: list[str] = []

    class Copying:
        def __init__(self, spec: ModuleSpec, snapshot: Snapshot, layer: int) -> None:
            self.spec, self.name = spec, spec.name_for(layer)
            self.inner = Interpreter(snapshot, prepared, layer, outputs=[t.name for t in spec.outputs])

        def run(
            self, inputs: Mapping[str, np.ndarray], regions: Regions | None = None
        ) -> dict[str, np.ndarray]:
            ran.append(self.name)
            history = {
                f"history_{name[0]}": region[:, : self.spec.cache].copy()
                for name, region in (regions or {}).items()
            }
            found = self.inner.run({**inputs, **history})
            for name, region in (regions or {}).items():
                region[:, self.spec.cache :][:, : self.spec.rows] = found[name]
            return found

    def execute(spec: ModuleSpec, snapshot: Snapshot, layer: int) -> ModuleExecutor:
        return Copying(spec, snapshot, layer)

    other = Runtime(program, weights_of(model), execute)
    # WHEN it generates
    tokens = list(other.generate(TOKENS[:20], 4, stop=(), logits=True))
    # THEN it gives the same tokens, without the logits that only the interpreter shows
    expected = [token.token for token in runtime.generate(TOKENS[:20], 4, stop=())]
    assert [token.token for token in tokens] == expected
    assert all(token.logits is None for token in tokens)
    assert ran[:6] == ["embedding", "block_0", "block_1", "embedding", "block_kv_0", "block_kv_1"]
    assert {"block_cache_1_1", "lm_head"} <= set(ran)


def test_model_that_memory_cannot_hold_is_refused(
    folders: Callable[[str], Path], runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a machine with a little less memory than the linears of two layers and lm_head take in float32
    linears = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128) + 320 * 64
    monkeypatch.setattr("engine.sim.runtime._physical_memory", lambda: 4 * linears)
    with pytest.raises(UserError, match=r"takes 0 GB of memory for its weights in float32"):
        Runtime(runtime.program, weights_of(open_model(folders("llama"))))


@pytest.mark.parametrize(
    ("tensor", "value", "where"),
    [
        (EMBEDDING, np.nan, "the embedding"),
        ("model.layers.1.mlp.down_proj.weight", np.inf, "layer 1"),
        (LM_HEAD, np.nan, "lm_head"),
    ],
)
def test_numbers_that_mean_nothing_are_no_text(
    tmp_path: Path, tensor: str, value: float, where: str, recwarn: pytest.WarningsRecorder
) -> None:
    # GIVEN a checkpoint with a damaged weight
    path = write_tiny(tmp_path / "damaged", "llama", dtype="f32")
    tensors = load_file(path / "model.safetensors")
    tensors[tensor][TOKENS[0] % len(tensors[tensor]), 3] = value
    save_file(tensors, path / "model.safetensors")
    # WHEN it generates THEN it says where the numbers went wrong
    runtime = case_runtime(path, quantize="f32")
    with pytest.raises(UserError, match=f"damaged: {where} computes NaN or infinity; a weight is damaged$"):
        list(runtime.generate(TOKENS[:3], 3))
    assert not recwarn.list


def test_weights_are_made_once(folders: Callable[[str], Path]) -> None:
    # GIVEN a program that has run all its modules
    model = open_model(folders("qwen2"))
    source = weights_of(model).source
    asked: list[str] = []

    class Counting:
        def tensor(self, name: str) -> np.ndarray:
            asked.append(name)
            return source.tensor(name)

        def computed(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
            return source.computed(name, shape)

    counting: TensorSource = Counting()
    program = compile_here(folders("qwen2"), seq_length=48, max_input_length=16, quantize="w4bf16")
    runtime = Runtime(program, type(weights_of(model))(counting))
    list(runtime.generate(TOKENS[:20], 20, stop=()))
    # THEN every linear was read once, not once for each of the modules that use it
    linears = [name for name in asked if "proj.weight" in name]
    assert len(linears) == 3 * 7
    assert len(set(linears)) == len(linears)


def test_a_token_without_logits_has_no_candidates() -> None:
    assert GeneratedToken(3, 0, "block_0", (), time.perf_counter(), 0).top() == []
