"""Writes transformers' numbers that tests compare with (float32 on the CPU; needs the parity extra).

    python tests/golden/make.py                      tests/data/golden_logits.npz, of tiny checkpoints
    python tests/golden/make.py --smollm2 FOLDER     tests/data/golden_smollm2.json, of tests/make_smollm2.py's folder

Where weights are quantised, only the directions of logits are compared, so that float16 is enough.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
DATA = TESTS / "data"
PROMPT = "The capital of France is"
NEW_TOKENS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--smollm2", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.smollm2:
        make_smollm2(given.smollm2)
    else:
        make_logits(DATA / "golden_logits.npz")


def make_logits(target: Path) -> None:
    """Logits of every case in `cases.py`."""
    from golden.cases import CASES, FIRST_ROW, TOKENS
    from golden.reference import load, logits

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            model = load(case.write(Path(folder) / name), case.scheme)
            rows = logits(model, TOKENS)[FIRST_ROW:]
            found[name] = rows.astype(np.float16 if case.scheme else np.float32)
    np.savez_compressed(target, **found)
    print(f"wrote {target}: {len(found)} cases, {target.stat().st_size / 1e3:.0f} kB")


def make_smollm2(folder: Path) -> None:
    """Greedy search from a prompt."""
    from golden.reference import greedy, load
    from tokenizers import Tokenizer

    prompt = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT).ids
    tokens = greedy(load(folder), prompt, NEW_TOKENS)
    target = DATA / "golden_smollm2.json"
    target.write_text(json.dumps({"prompt": PROMPT, "prompt_ids": prompt, "tokens": tokens}) + "\n")
    print(f"wrote {target}: {tokens}")


if __name__ == "__main__":
    main()
