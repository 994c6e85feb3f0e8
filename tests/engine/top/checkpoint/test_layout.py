from __future__ import annotations

from pathlib import Path

import pytest
from tiny import FAMILIES, write_tiny

from engine.top.checkpoint.config import load_config
from engine.top.checkpoint.layout import expected_tensors
from engine.top.checkpoint.tensors import open_checkpoint


def shapes(tmp_path: Path, family: str, **config: object) -> dict[str, tuple[int, ...]]:
    return expected_tensors(load_config(write_tiny(tmp_path, family, **config)))  # type: ignore[arg-type]


def test_a_llama_of_one_layer(tmp_path: Path) -> None:
    layer = "model.layers.0."
    assert shapes(tmp_path, "llama", layers=1) == {
        "model.embed_tokens.weight": (320, 64),
        layer + "input_layernorm.weight": (64,),
        layer + "post_attention_layernorm.weight": (64,),
        layer + "self_attn.q_proj.weight": (64, 64),
        layer + "self_attn.k_proj.weight": (32, 64),
        layer + "self_attn.v_proj.weight": (32, 64),
        layer + "self_attn.o_proj.weight": (64, 64),
        layer + "mlp.gate_proj.weight": (128, 64),
        layer + "mlp.up_proj.weight": (128, 64),
        layer + "mlp.down_proj.weight": (64, 128),
        "model.norm.weight": (64,),
        "lm_head.weight": (320, 64),
    }


def test_a_tied_model_has_no_head_of_its_own(tmp_path: Path) -> None:
    assert "lm_head.weight" not in shapes(tmp_path, "llama", tie=True)


def test_heads_that_do_not_fill_the_hidden_size(tmp_path: Path) -> None:
    tensors = shapes(tmp_path, "qwen3")
    layer = "model.layers.1.self_attn."
    assert tensors[layer + "q_proj.weight"] == (128, 64)
    assert tensors[layer + "o_proj.weight"] == (64, 128)
    assert tensors[layer + "q_norm.weight"] == tensors[layer + "k_norm.weight"] == (32,)


@pytest.mark.parametrize(
    ("family", "config", "biased"),
    [
        ("llama", {}, ""),
        ("qwen2", {}, "qkv"),
        ("qwen3", {"attention_bias": True}, "qkvo"),
        ("llama", {"attention_bias": True}, "qkvo"),
    ],
)
def test_biases_of_the_attention(tmp_path: Path, family: str, config: dict[str, bool], biased: str) -> None:
    tensors = shapes(tmp_path, family, **config)
    with_bias = [one for one in "qkvo" if f"model.layers.0.self_attn.{one}_proj.bias" in tensors]
    assert "".join(with_bias) == biased


def test_biases_of_the_mlp(tmp_path: Path) -> None:
    tensors = shapes(tmp_path, "llama", mlp_bias=True)
    assert tensors["model.layers.0.mlp.gate_proj.bias"] == (128,)
    assert tensors["model.layers.0.mlp.down_proj.bias"] == (64,)


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_checkpoints_are_complete(tmp_path: Path, family: str) -> None:
    folder = write_tiny(tmp_path, family, shards=2)
    open_checkpoint(folder).check(expected_tensors(load_config(folder)))
