"""transformers' own logits, in float32 on the CPU (needs torch)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.tpu.quantize import dequantize, quantize


def load(folder: Path, scheme: str = "") -> PreTrainedModel:
    """The checkpoint as a float32 model, the blocks' linears quantised and dequantised to bf16 by `scheme`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if scheme:
        _quantise_linears(model, scheme)
    return model.eval()


def logits(model: PreTrainedModel, tokens: Sequence[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of one forward pass over the whole sequence."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0].numpy()


def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """Tokens that greedy search adds to a prompt."""
    ids = torch.tensor([list(prompt)])
    with torch.no_grad():
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
        )
    return found[0, len(prompt) :].tolist()


def _quantise_linears(model: PreTrainedModel, scheme: str) -> None:
    bits, group, symmetry = scheme.split(",")
    for module in model.model.layers.modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        made = quantize(
            module.weight.detach().numpy(), int(bits[1:]), int(group[1:]), symmetry == "symmetric"
        )
        scale = made.scale.astype(ml_dtypes.bfloat16)
        weight = dequantize(
            made.packed, scale, made.zero_point, int(bits[1:]), int(group[1:]), np.dtype(ml_dtypes.bfloat16)
        )
        module.weight.data = torch.from_numpy(weight.astype(np.float32))
