"""A model's tensors: stored ones from the folder, tables from the config."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import UserError
from engine.snapshot import TensorType
from engine.top.checkpoint.config import load_config
from engine.top.checkpoint.rope import rope_tables
from engine.top.checkpoint.source import ModelTensors
from engine.top.checkpoint.tensors import open_checkpoint
from engine.tpu.weights import WeightReference, materialize

NAME = "model.layers.1.mlp.up_proj.weight"
STORED = np.random.default_rng(0).normal(0, 0.05, (6, 8)).astype(ml_dtypes.bfloat16)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture
def source(tmp_path: Path) -> ModelTensors:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({NAME: STORED}, str(tmp_path / "model.safetensors"))
    return ModelTensors(open_checkpoint(tmp_path), load_config(tmp_path))


def test_a_reference_reads_the_folder(source: ModelTensors) -> None:
    reference = WeightReference(
        (NAME.replace("1", "{i}"),), ("transpose", "cast(bf16)"), TensorType((8, 6), "bf16")
    )
    np.testing.assert_array_equal(materialize(reference, 1, source), STORED.T)
    with pytest.raises(UserError, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        materialize(reference, 0, source)


def test_a_copy_in_another_process_reads_the_same(source: ModelTensors) -> None:
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).tensor(NAME), STORED)


def test_rope_tables_are_those_of_the_config(source: ModelTensors) -> None:
    cos, sin = rope_tables(source.config.rope, 5)
    for name, table in (("@rope.cos", cos), ("@rope.sin", sin)):
        found = source.computed(name, (5, 1, 4))
        assert found.shape == (5, 1, 4)
        np.testing.assert_array_equal(found[:, 0], table)
    assert not np.array_equal(cos, sin)


def test_the_causal_mask_hides_later_keys(source: ModelTensors) -> None:
    mask = source.computed("@causal_mask", (3, 3))
    assert mask.dtype == np.float32
    assert mask.tolist() == [[0, -1e9, -1e9], [0, 0, -1e9], [0, 0, 0]]


def test_unknown_names_and_shapes_are_refused(source: ModelTensors) -> None:
    with pytest.raises(UserError, match=r"@rope\.tan.*@rope\.cos, @rope\.sin, @causal_mask"):
        source.computed("@rope.tan", (2, 2))
    with pytest.raises(UserError, match="@causal_mask: a causal mask is square"):
        materialize(WeightReference(("@causal_mask",), (), TensorType((2, 3), "f32")), 0, source)
    with pytest.raises(UserError, match=r"@rope\.cos: cannot reshape"):
        materialize(WeightReference(("@rope.cos",), (), TensorType((2, 1, 6), "f32")), 0, source)
