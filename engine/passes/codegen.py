"""codegen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import mlir
from engine.errors import CompileError
from engine.passes.base import Pass, PassContext, PassReport
from engine.passes.emission import emit_op
from engine.tpu.cores import core_problems
from engine.tpu.emit import Emitter
from engine.tpu.isa import Engine
from engine.tpu.memory import ArenaLayout


@dataclass(frozen=True)
class Codegen(Pass):
    """Emits each op's instructions for the two engines, TIU (compute) and GDMA (data movement), with the local-memory
    addresses, strides and waits that a machine needs to run them. A layer group emits its time steps slice by slice;
    between two of them everything waits. On several cores each emits its parts of an op, one core after the other; an
    op begins when all cores have ended the ones before. Ops that run on the host emit none."""

    name = "codegen"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        layout = ArenaLayout.of(mlir.module_attributes(module))
        options = context.options
        emitter = Emitter(options.chip, layout.spans(), options.cores)
        records = mlir.records(module)
        problems = core_problems(records, options.cores)
        if problems:
            raise CompileError("; ".join(problems))
        for index, record in enumerate(records):
            if record.parent is None:
                try:
                    emit_op(records, index, emitter)
                except ValueError as error:
                    raise CompileError(f"{record.name} at {record.location}: {error}") from error
        program = emitter.program()
        return PassReport((_note(program),), program)


def _note(program: np.ndarray) -> str:
    tiu = int((program["engine"] == Engine.TIU).sum())
    return f"{tiu} TIU + {len(program) - tiu} GDMA instructions"
