"""Programs that run: tiny checkpoints compiled in this process, ready to generate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from compiled import compile_here

from engine.compiler import Model, open_model
from engine.sim.interpreter import CheckpointWeights
from engine.sim.runtime import Program, Runtime
from engine.top.checkpoint.source import ModelTensors


def weights_of(model: Model) -> CheckpointWeights:
    """The weights of an opened checkpoint."""
    assert model.checkpoint is not None
    return CheckpointWeights(ModelTensors(model.checkpoint, model.config))


def compiled_runtime(path: Path, **options: Any) -> Runtime:
    """Compile a checkpoint and make it ready to run."""
    program: Program = compile_here(path, **options)
    return Runtime(program, weights_of(open_model(path)))


def forced_logits(runtime: Runtime, tokens: Sequence[int], prompt: int) -> tuple[np.ndarray, list[str]]:
    """Logits after a prompt of the first `prompt` tokens and after every further token, and the modules that ran."""
    hidden, segments = runtime.prefill(tokens[:prompt])
    rows, modules = [runtime.head(hidden)["logits"]], [segment.module for segment in segments]
    for token in tokens[prompt:]:
        hidden, spec = runtime.decode(token)
        rows.append(runtime.head(hidden)["logits"])
        modules.append(spec.name)
    return np.concatenate(rows), modules


def cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """The smallest cosine between corresponding rows."""
    a, b = (x.reshape(-1, x.shape[-1]).astype(np.float64) for x in (found, expected))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / norms).min())
