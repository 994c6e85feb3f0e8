"""What the fork server imports once, so that every worker starts with it: the bindings, both dialects, all passes."""

# ruff: noqa: E402
from __future__ import annotations

import os

# workers are one a core: the threads of NumPy's BLAS would only compete. Read when NumPy is imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import engine.passes.pipeline
import engine.top.ops
import engine.tpu.ops
import engine.worker  # noqa: F401
from engine.passes import PASSES, load

for _name in PASSES:
    load(_name)
