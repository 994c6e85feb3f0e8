"""How each model family's modules are built: `build_module` is the one entry.

A new family is one file with a `build_block` and one line in FAMILIES.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from engine import mlir
from engine.errors import UserError
from engine.options import CompileOptions
from engine.stages import Kind, ModuleSpec
from engine.top.checkpoint.config import ModelConfig
from engine.top.families import heads

FAMILIES = {
    "llama": "dense",
    "mistral": "dense",
    "qwen2": "dense",
    "qwen3": "dense",
}
"""Family name -> the module of this package that builds its blocks."""


class BlockBuilder(Protocol):
    """Builds the TopOp module of one Transformer layer for the stage that the spec names."""

    def __call__(self, spec: ModuleSpec, config: ModelConfig, options: CompileOptions) -> mlir.Module: ...


def build_module(spec: ModuleSpec, config: ModelConfig, options: CompileOptions) -> mlir.Module:
    """The TopOp module of `spec`, in the current MLIR context."""
    if spec.kind is not Kind.BLOCK:
        return heads.BUILDERS[spec.kind](spec, config)
    if config.family not in FAMILIES:
        raise UserError(f"family {config.family!r} has no block builder; known: {', '.join(FAMILIES)}")
    builder = import_module(f"{__name__}.{FAMILIES[config.family]}").build_block
    return cast(BlockBuilder, builder)(spec, config, options)
