"""codegen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import mlir
from engine.errors import CompileError
from engine.op import REGISTRY, TpuOp
from engine.passes.base import Pass, PassContext, PassReport
from engine.tpu.emit import Emitter
from engine.tpu.isa import Engine
from engine.tpu.memory import ArenaLayout


@dataclass(frozen=True)
class Codegen(Pass):
    """Emits each op's instructions for the two engines, TIU (compute) and GDMA (data movement), with the local-memory
    addresses, strides and waits that a machine needs to run them. Ops that run on the host emit none."""

    name = "codegen"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        layout = ArenaLayout.of(mlir.module_attributes(module))
        emitter = Emitter(context.options.chip, layout.spans())
        for index, record in enumerate(mlir.records(module)):
            declaration = REGISTRY.get(record.name)
            if declaration is None or not issubclass(declaration, TpuOp) or declaration.host:
                continue
            emitter.begin(index, record)
            try:
                declaration.kernel(record, emitter)
            except ValueError as error:
                raise CompileError(f"{record.name} at {record.location}: {error}") from error
        program = emitter.program()
        return PassReport((_note(program),), program)


def _note(program: np.ndarray) -> str:
    tiu = int((program["engine"] == Engine.TIU).sum())
    return f"{tiu} TIU + {len(program) - tiu} GDMA instructions"
