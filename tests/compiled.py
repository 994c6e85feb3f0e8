"""Compiled tiny models for tests that read snapshots: in this process, without workers, once per process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tiny import write_tiny

from engine.compiler import Compilation, open_model
from engine.passes import pipeline
from engine.passes.base import PassContext
from engine.stages import find, plan
from engine.worker import ModuleFinished, PassFinished


def compile_here(path: Path, only: Sequence[str] = (), **options: Any) -> Compilation:
    """Compile all modules of a checkpoint or config, or `only` some, in this process.

    Raises CompileError for the first failure.
    """
    model = open_model(path)
    resolved = model.resolve(**options)
    specs = plan(model.shape, resolved)
    compilation = Compilation(model.config, resolved, specs)
    for spec in [find(specs, name)[0] for name in only] or specs:
        for snapshot in pipeline.run(PassContext(spec, model.config, resolved)):
            compilation.add(PassFinished(spec.name, snapshot))
        compilation.add(ModuleFinished(spec.name))
    return compilation


@cache
def tiny_compilation(family: str = "qwen2", quantize: str = "w4bf16") -> Compilation:
    """A tiny checkpoint of three layers at S 64, L 16, decode chunks 32 and 16."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny(Path(folder) / family, family, layers=3)
        return compile_here(path, seq_length=64, quantize=quantize)
