"""Our ops' numbers against TPU-MLIR 1.30.2's: its interpreters of both levels and its model of the chip.

tests/data/vendor_numeric.npz holds its inputs and outputs by `what/case/module/tensor` (`:bf16` marks bit patterns).
The checkpoints behind them, one random layer each, are made anew from their seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from compiled import compile_here
from running import weights_of
from safetensors.numpy import save_file
from tiny import write_json

from engine.compiler import Compilation, open_model
from engine.sim.interpreter import CheckpointWeights, Interpreter, PreparedWeights
from engine.top.checkpoint.config import load_config
from engine.top.checkpoint.layout import EMBEDDING, expected_tensors

SEED = 21
LENGTH = 64
THETA = {"llama": 10000.0, "qwen3": 1000000.0}
ORDER = (
    "embed_tokens",
    "input_layernorm",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "q_norm",
    "k_norm",
    "post_attention_layernorm",
    "gate_proj",
    "up_proj",
    "down_proj",
    "model.norm",
    "lm_head",
)
"""In which the tensors were drawn."""
CASES = ("llama_w4bf16", "qwen3_bf16", "qwen3_w4bf16", "qwen3_w8bf16")
BLOCKS = ("block_0", "block_cache_0")
TOP_COSINE = 0.99999
CHIP_COSINE = 0.9998

Programs = Callable[[str], tuple[Compilation, CheckpointWeights]]


def write_checkpoint(folder: Path, family: str) -> Path:
    """A one-layer checkpoint in bf16, its tensors drawn one after the other in the order of the model."""
    config = {
        "model_type": family,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 512,
        "vocab_size": 256,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-06,
        "rope_theta": THETA[family],
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 1,
    }
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    random = np.random.default_rng(SEED)
    shapes = expected_tensors(load_config(folder))
    tensors = {}
    for name in sorted(shapes, key=lambda name: next(i for i, part in enumerate(ORDER) if part in name)):
        values = random.standard_normal(shapes[name])
        if "norm" in name:
            values = 1 + 0.1 * values
        elif name != EMBEDDING:
            values = values / np.sqrt(shapes[name][-1])
        tensors[name] = values.astype(np.float32).astype(ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """A case compiled as the vendor did: static, without prefill_kv, prefill with its mask as an input."""
    root = tmp_path_factory.mktemp("vendor")

    @cache
    def make(case: str) -> tuple[Compilation, CheckpointWeights]:
        family, quantize = case.split("_")
        path = root / case
        write_checkpoint(path, family)
        program = compile_here(path, seq_length=LENGTH, history=False, prefill_mask="full", quantize=quantize)
        return program, weights_of(open_model(path))

    return make


@pytest.fixture(scope="module")
def vendor(data: Path) -> Mapping[str, np.ndarray]:
    """Every array by `what/case/module/tensor`, floats as float32."""
    found = {}
    with np.load(data / "vendor_numeric.npz") as stored:
        for name, value in stored.items():
            bf16 = name.endswith(":bf16")
            array = value.view(ml_dtypes.bfloat16).astype(np.float32) if bf16 else value
            found[name.removesuffix(":bf16")] = array
    return found


def part(vendor: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The tensors under a prefix, by their own names."""
    return {name.removeprefix(prefix): array for name, array in vendor.items() if name.startswith(prefix)}


def run(
    programs: Programs, case: str, module: str, pass_name: str, vendor: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    program, weights = programs(case)
    names = [tensor.name for tensor in program.find(module)[0].outputs]
    snapshot = program.modules[module].after(pass_name)
    interpreter = Interpreter(snapshot, PreparedWeights(weights), outputs=names)
    return interpreter.run(part(vendor, f"inputs/{module}/"))


def cosine(found: np.ndarray, expected: np.ndarray) -> float:
    a, b = (x.reshape(-1).astype(np.float64) for x in (found, expected))
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("module", BLOCKS)
@pytest.mark.parametrize("case", ["llama_w4bf16", "qwen3_bf16"])
def test_top_blocks_mean_what_the_vendors_mean(
    case: str, module: str, programs: Programs, vendor: Mapping[str, np.ndarray]
) -> None:
    found = run(programs, case, module, "top-canonicalize", vendor)
    expected = part(vendor, f"top/{case.split('_')[0]}/{module}/")
    assert set(expected) == {"output_states", "k_cache", "v_cache"}
    for name, value in expected.items():
        assert cosine(found[name], value) >= TOP_COSINE, name


@pytest.mark.parametrize("what", ["tpu", "cmodel"])
@pytest.mark.parametrize("module", BLOCKS)
@pytest.mark.parametrize("case", CASES)
def test_lowered_blocks_compute_what_the_vendors_compute(
    case: str, module: str, what: str, programs: Programs, vendor: Mapping[str, np.ndarray]
) -> None:
    found = run(programs, case, module, "codegen", vendor)
    expected = part(vendor, f"{what}/{case}/{module}/")
    assert set(expected) == {"output_states", "k_cache", "v_cache"}
    for name, value in expected.items():
        assert cosine(found[name], value) >= CHIP_COSINE, name


def test_a_different_quantisation_would_be_seen(programs: Programs, vendor: Mapping[str, np.ndarray]) -> None:
    found = run(programs, "qwen3_w4bf16", "block_0", "codegen", vendor)
    other = part(vendor, "cmodel/qwen3_bf16/block_0/")
    assert max(cosine(found[name], value) for name, value in other.items()) < 0.998


@pytest.mark.parametrize("pass_name", ["top-canonicalize", "codegen"])
@pytest.mark.parametrize("case", CASES)
def test_lm_head_chooses_the_vendors_token(
    case: str, pass_name: str, programs: Programs, vendor: Mapping[str, np.ndarray]
) -> None:
    found = run(programs, case, "lm_head", pass_name, vendor)["token_id"]
    tokens = [part(vendor, f"top/{case.split('_')[0]}/lm_head/")]
    tokens += [part(vendor, f"{what}/{case}/lm_head/") for what in ("tpu", "cmodel")]
    assert [int(t["token_id"].reshape(-1)[0]) for t in tokens] == [int(found.reshape(-1)[0])] * 3
