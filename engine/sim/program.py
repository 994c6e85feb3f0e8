"""What the simulator needs of a compiled program: a finished compilation has it, and so has a deployable file's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from engine.merge import MergePlan
from engine.options import CompileOptions
from engine.snapshot import ModuleSnapshots
from engine.stages import ModuleSpec
from engine.top.checkpoint.config import ModelConfig


class Program(Protocol):
    """A compilation of which the modules asked for are there."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def options(self) -> CompileOptions: ...
    @property
    def specs(self) -> tuple[ModuleSpec, ...]: ...
    @property
    def modules(self) -> Mapping[str, ModuleSnapshots]: ...
    @property
    def merged(self) -> MergePlan: ...
