"""Which logits are kept as golden files: tiny checkpoints, one token sequence, the rows that tests look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tiny import FAMILIES, VOCABULARY, write_tiny

SEQ_LENGTH = 48
INPUT_LENGTH = 16
SHORT_PROMPT = 11
"""Rows of a prompt that one prefill takes."""
LONG_PROMPT = 37
"""Rows of a prompt that takes one prefill and two prefill_kv, of 16, 16 and 5 rows."""
DECODED = 8
FIRST_ROW = SHORT_PROMPT - 1
ROWS = LONG_PROMPT + DECODED - FIRST_ROW
"""Logits are kept for tokens FIRST_ROW to LONG_PROMPT + DECODED - 1."""

TOKENS = np.random.default_rng(7).integers(3, VOCABULARY, LONG_PROMPT + DECODED).tolist()

ROPE_KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
}


@dataclass(frozen=True)
class Case:
    """A checkpoint and how its linears are quantised before transformers runs it in float32 ("": not at all).

    scheme: as in weight transforms, `w4,g64,asymmetric`; the dequantised weights are bf16.
    """

    name: str
    family: str
    scheme: str = ""
    checkpoint: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the checkpoint; weights are stored in bf16."""
        return write_tiny(folder, self.family, **self.checkpoint)


CASES = {
    case.name: case
    for case in (
        *(Case(family, family) for family in FAMILIES),
        *(Case(f"{family}-w4", family, "w4,g64,asymmetric") for family in FAMILIES),
        Case("llama-w4-symmetric", "llama", "w4,g32,symmetric"),
        Case("llama-w8", "llama", "w8,g64,asymmetric"),
        *(
            Case(f"llama-{kind}", "llama", checkpoint={"rope": rope, "max_positions": 256})
            for kind, rope in ROPE_KINDS.items()
        ),
    )
}
