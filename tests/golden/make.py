"""Writes tests/data/golden_logits.npz: transformers' logits of tiny checkpoints (float32 on the CPU, needs torch).

Where weights are quantised, only directions of the logits are compared, so that float16 is enough.

PYTHONPATH=.:tests python tests/golden/make.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from golden.cases import CASES, FIRST_ROW, TOKENS
from golden.reference import load, logits

TARGET = Path(__file__).resolve().parent.parent / "data" / "golden_logits.npz"


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            model = load(case.write(Path(folder) / name), case.scheme)
            rows = logits(model, TOKENS)[FIRST_ROW:]
            found[name] = rows.astype(np.float16 if case.scheme else np.float32)
    np.savez_compressed(TARGET, **found)
    print(f"wrote {TARGET}: {len(found)} cases, {TARGET.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
