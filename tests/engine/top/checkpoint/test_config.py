from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
from tiny import BOS, EOS, FAMILIES, write_json, write_tiny

from engine.errors import UserError
from engine.top.checkpoint.config import ModelConfig, load_config
from engine.top.checkpoint.layout import expected_tensors
from engine.top.checkpoint.rope import RopeConfig

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3 = PLAIN | {"model_type": "qwen3", "head_dim": 32, "use_sliding_window": False}


def load(folder: Path, config: dict[str, Any]) -> ModelConfig:
    return load_config(write_json(folder / "config.json", config))


def refusal(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(UserError) as refused:
        load(folder, config)
    assert str(folder / "config.json") in str(refused.value)
    return str(refused.value)


def test_reads_every_value(tmp_path: Path) -> None:
    # GIVEN a folder with a complete config
    write_json(
        tmp_path / "config.json", PLAIN | {"eos_token_id": [7, 8], "bos_token_id": 1, "pad_token_id": 0}
    )
    # WHEN the folder is loaded
    config = load_config(tmp_path)
    # THEN every value has arrived
    assert config == ModelConfig(
        name=tmp_path.name,
        source=tmp_path / "config.json",
        model_type="llama",
        family="llama",
        hidden_size=64,
        intermediate_size=128,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab_size=320,
        max_positions=512,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        rope=RopeConfig("default", 10000.0, 16),
        tie_word_embeddings=False,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        dtype="bf16",
        bos_token_id=1,
        eos_token_ids=(7, 8),
        pad_token_id=0,
    )
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_newer_and_older_spelling_read_the_same(tmp_path: Path, family: str) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    newer = load_config(write_tiny(tmp_path / "new", family, rope=rope))
    older = load_config(write_tiny(tmp_path / "old", family, rope=rope, older_spelling=True))
    assert dataclasses.replace(older, name=newer.name, source=newer.source) == newer
    assert newer.rope.kind == "yarn"
    assert (newer.bos_token_id, newer.eos_token_ids) == (BOS, (EOS,))


def test_families_differ_where_they_should(tmp_path: Path) -> None:
    plain = {family: load_config(write_tiny(tmp_path / family, family)) for family in FAMILIES}
    assert [name for name, config in plain.items() if config.qkv_bias] == ["qwen2"]
    assert [name for name, config in plain.items() if config.qk_norm] == ["qwen3"]
    assert not any(config.output_bias for config in plain.values())
    assert plain["qwen3"].head_dim == 32 != plain["qwen3"].hidden_size // plain["qwen3"].heads


@pytest.mark.parametrize("base", [PLAIN, QWEN3])
def test_attention_bias_means_all_four_projections(tmp_path: Path, base: dict[str, Any]) -> None:
    config = load(tmp_path, base | {"attention_bias": True})
    assert (config.qkv_bias, config.output_bias) == (True, True)


def test_mlp_bias_of_llama(tmp_path: Path) -> None:
    assert load(tmp_path, PLAIN | {"mlp_bias": True}).mlp_bias


def test_null_means_absent(tmp_path: Path) -> None:
    nulls = {"num_key_value_heads": None, "head_dim": None, "rope_scaling": None, "quantization_config": None}
    config = load(tmp_path, PLAIN | nulls | {"sliding_window": None, "pad_token_id": None})
    assert (config.kv_heads, config.head_dim, config.pad_token_id) == (4, 16, None)


def test_swish_is_silu(tmp_path: Path) -> None:
    assert load(tmp_path, PLAIN | {"hidden_act": "swish"}).hidden_act == "silu"


def test_end_of_sequence_of_generation_config_wins(tmp_path: Path) -> None:
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [3, 5]})
    assert load(tmp_path, PLAIN | {"eos_token_id": 2}).eos_token_ids == (3, 5)


def test_a_config_of_its_own_name_is_a_model_of_that_name(tmp_path: Path) -> None:
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 3})
    config = load_config(write_json(tmp_path / "Some-1.5B.json", PLAIN))
    assert (config.name, config.eos_token_ids) == ("Some-1.5B", (2,))


def test_a_hub_cache_folder_is_named_by_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "models--Org--Some-1.5B" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    assert load(folder, PLAIN).name == "Some-1.5B"


@pytest.mark.parametrize(("dtype", "ours"), [("float16", "f16"), ("torch.float32", "f32"), (None, "f32")])
def test_dtype_of_the_config(tmp_path: Path, dtype: str | None, ours: str) -> None:
    assert load(tmp_path, PLAIN | {"torch_dtype": dtype}).dtype == ours


def test_dtype_that_the_config_leaves_out_is_that_of_the_weights(tmp_path: Path) -> None:
    write_tiny(tmp_path, "llama", dtype="f16")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["dtype"]
    assert load(tmp_path, config).dtype == "f16"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("odd-llama3.2-1b-rope-llama3", 1_235_814_400),
        ("odd-qwen3-0.6b-head-dim", 596_049_920),
        ("Llama2-7B", 6_738_415_616),
        ("Mistral-7B-v0.2", 7_241_732_096),
        ("Qwen1.5-0.5B", 463_987_712),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen3-8B", 8_190_735_360),
    ],
)
def test_parameter_counts_of_known_models(data: Path, name: str, parameters: int) -> None:
    config = load_config(data / "configs" / f"{name}.json")
    assert sum(prod(shape) for shape in expected_tensors(config).values()) == parameters


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ChatGLM3-6B", ["model_type", "glm", "llama, mistral, qwen2, qwen3"]),
        ("Phi-4", ["model_type", "phi3"]),
        ("Gemma-3-1B", ["model_type", "gemma3_text"]),
        ("InternVL3-2B", ["model_type", "internvl", "text_config"]),
        ("Qwen3.5-0.8B", ["model_type", "qwen3_5", "text_config"]),
        ("odd-gemma3-4b-wrapper-defaults", ["gemma3", "text_config"]),
        ("odd-locateanything-autoround", ["locateanything", "text_config"]),
        ("odd-mistral-7b-gptq-desc-act", ["quantization_config", "gptq"]),
        ("odd-phi4-mini-partial-longrope", ["phi3"]),
        ("odd-qwen1.5-moe-a2.7b-shared-expert", ["qwen2_moe"]),
        ("odd-qwen2-vl-2b-awq-flat", ["qwen2_vl"]),
    ],
)
def test_models_that_are_not_supported_are_refused_by_name(data: Path, name: str, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        load_config(data / "configs" / f"{name}.json")
    assert all(word in str(refused.value) for word in [f"{name}.json", *words])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": None}, ["model_type", "a string is required"]),
        ({"hidden_size": None}, ["'hidden_size' is null", "an integer from 1 to", "required"]),
        ({"rms_norm_eps": None}, ["'rms_norm_eps' is null", "required"]),
        ({"hidden_size": "64"}, ["hidden_size", '"64"', "integer"]),
        ({"hidden_size": True}, ["hidden_size", "true"]),
        ({"hidden_size": 64.0}, ["hidden_size", "64.0"]),
        ({"hidden_size": 10**30}, ["hidden_size"]),
        ({"hidden_size": 66}, ["hidden_size", "num_attention_heads"]),
        ({"head_dim": 15}, ["head_dim", "even"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"vocab_size": -1}, ["vocab_size", "-1"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads", "num_attention_heads"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps"]),
        ({"rms_norm_eps": 10**400}, ["rms_norm_eps"]),
        ({"tie_word_embeddings": 1}, ["tie_word_embeddings", "true or false"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ({"torch_dtype": "float8_e4m3fn"}, ["torch_dtype", "float8_e4m3fn", "bfloat16, float16, float32"]),
        ({"eos_token_id": "2"}, ["eos_token_id"]),
        ({"eos_token_id": [2, False]}, ["eos_token_id"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config", "awq"]),
        ({"quantization_config": {}}, ["quantization_config"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types", "sliding"]),
        ({"layer_types": ["full_attention"]}, ["num_hidden_layers", "layer_types"]),
        ({"layer_types": "full_attention"}, ["layer_types", "list"]),
        ({"sliding_window": 4096}, ["sliding_window", "4096"]),
        ({"final_logit_softcapping": 30.0}, ["final_logit_softcapping"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_scaling", "dynamic"]),
        ({"model_type": "mistral"} | {"sliding_window": 4096}, ["sliding_window", "null"]),
        ({"model_type": "mistral", "sliding_window": 64, "use_sliding_window": False}, ["sliding_window"]),
        ({"model_type": "mistral", "sliding_window": None, "attention_bias": True}, ["attention_bias"]),
        ({"model_type": "qwen2", "use_sliding_window": True}, ["use_sliding_window"]),
        ({"model_type": "qwen2", "use_sliding_window": False, "mlp_bias": True}, ["mlp_bias"]),
        (QWEN3 | {"use_sliding_window": True, "sliding_window": 64}, ["use_sliding_window"]),
        (QWEN3 | {"head_dim": None}, ["head_dim", "null"]),
    ],
)
def test_bad_values_are_refused_by_key(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    message = refusal(tmp_path, PLAIN | change)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "llama", "model_type": "qwen2"}', ["'model_type'", "twice"]),
        ('{"model_type": ', ["not valid JSON", "line 1"]),
        ("[]", ["a list", "object"]),
        ('{"rms_norm_eps": NaN}', ["NaN"]),
        ("[" * 100_000, ["not valid JSON"]),
        ("{}", ["model_type", "missing"]),
    ],
)
def test_text_that_is_no_config_is_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as refused:
        load_config(tmp_path)
    assert all(word in str(refused.value) for word in [str(tmp_path / "config.json"), *words])


def test_paths_without_a_config_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    for path, words in [
        (tmp_path / "absent", "no such file"),
        (tmp_path / "model.gguf", "not a config"),
        (tmp_path, "not a text file"),
    ]:
        with pytest.raises(UserError, match=words):
            load_config(path)


def in_new_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )


def test_a_complete_config_does_not_import_transformers(data: Path) -> None:
    code = (
        "import sys; from engine.top.checkpoint.config import load_config; load_config(sys.argv[1]);"
        "print('transformers' in sys.modules, 'torch' in sys.modules)"
    )
    assert in_new_process(code, str(data / "configs" / "Qwen3-8B.json")).stdout == "False False\n"


def test_absent_keys_take_transformers_defaults_in_silence(tmp_path: Path) -> None:
    # GIVEN configs that leave out most keys
    write_json(tmp_path / "llama.json", {"model_type": "llama", "hidden_size": 2048})
    write_json(tmp_path / "mistral.json", {"model_type": "mistral", "sliding_window": None})
    write_json(tmp_path / "qwen3.json", {"model_type": "qwen3", "hidden_size": 1024})
    write_json(tmp_path / "windowed.json", {"model_type": "mistral"})
    # WHEN they are loaded
    code = """
import sys
from engine.top.checkpoint.config import load_config
for name in ("llama", "mistral", "qwen3"):
    c = load_config(f"{sys.argv[1]}/{name}.json")
    print(c.intermediate_size, c.layers, c.kv_heads, c.head_dim, c.max_positions, c.rope.theta, c.dtype)
try:
    load_config(f"{sys.argv[1]}/windowed.json")
except Exception as error:
    print(error)
"""
    done = in_new_process(code, str(tmp_path))
    # THEN each class's own defaults stand in, and nothing else is printed
    llama, mistral, qwen3, windowed = done.stdout.splitlines()
    assert llama == "11008 32 32 64 2048 10000.0 f32"
    assert mistral == "14336 32 8 128 131072 10000.0 f32"
    assert qwen3 == "22016 32 32 128 32768 10000.0 f32"
    assert "'sliding_window' is 4096" in windowed
    assert done.stderr == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_default_end_of_sequence_is_that_of_transformers(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_tiny(tmp_path, family)
    config = json.loads((folder / "config.json").read_text())
    del config["eos_token_id"]
    default = transformers.AutoConfig.for_model(family).eos_token_id
    assert load(tmp_path, config).eos_token_ids == (() if default is None else (default,))
