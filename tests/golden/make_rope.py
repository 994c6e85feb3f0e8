"""Writes tests/data/rope_*.npz: cos/sin rows and inverse frequencies as transformers and torch compute them.

python tests/golden/make_rope.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

DATA = Path(__file__).resolve().parent.parent / "data"
ROWS = [*range(12), 63, 64, 255, 511, 1000, 2047, 4095, 8191, 32767]
CASES: dict[str, dict[str, Any]] = {
    "default": {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
    "linear": {
        "head_dim": 16,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama3": {
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "yarn": {
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
    },
    "yarn_mscale": {
        "head_dim": 32,
        "max_position_embeddings": 163840,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 1.2,
            "mscale_all_dim": 0.8,
            "truncate": False,
        },
    },
    "yarn_attention_factor": {
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.5,
        },
    },
}


def main() -> None:
    for name, case in CASES.items():
        # The config keeps and completes the dict that it is given.
        config = LlamaConfig(**json.loads(json.dumps(case)))
        rotary = LlamaRotaryEmbedding(config)
        cos, sin = rotary(torch.zeros(1, dtype=torch.float32), torch.tensor([ROWS]))
        np.savez_compressed(
            DATA / f"rope_{name}.npz",
            config=json.dumps(case),
            rows=ROWS,
            frequencies=rotary.inv_freq.numpy(),
            cos=cos[0].numpy(),
            sin=sin[0].numpy(),
        )


if __name__ == "__main__":
    main()
