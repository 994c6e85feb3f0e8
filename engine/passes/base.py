"""What a pass is: a frozen dataclass with options as fields, a docstring that the explorer shows, and `run`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from engine.options import CompileOptions
from engine.stages import ModuleSpec
from engine.top.checkpoint.config import ModelConfig

if TYPE_CHECKING:
    # who only describes work to a worker process does without the bindings
    from engine import mlir


@dataclass(frozen=True)
class PassContext:
    """What a pass may read beside the module: which module it is and how it is compiled."""

    spec: ModuleSpec
    config: ModelConfig
    options: CompileOptions


@dataclass(frozen=True)
class PassReport:
    """What a pass returns for its snapshot: one-line notes for the pass list and typed data."""

    notes: tuple[str, ...] = ()
    data: Any = None


@dataclass(frozen=True)
class Pass(ABC):
    """Base of all passes. `run` changes the module in place; everything that changes the program goes into the IR."""

    name: ClassVar[str]

    def applies(self, context: PassContext) -> bool:
        """False when these options leave the pass nothing to do: it is then not run."""
        return True

    @abstractmethod
    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        """Transform the module. Raises CompileError when the module cannot be compiled."""

    @classmethod
    def description(cls) -> str:
        """The class's docstring in one paragraph."""
        return " ".join((cls.__doc__ or "").split())
