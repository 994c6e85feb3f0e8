"""codegen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine import mlir
from engine.errors import CompileError
from engine.op import REGISTRY, TpuOp
from engine.passes.base import Pass, PassContext, PassReport
from engine.passes.layer_group.emission import emit_group
from engine.passes.layer_group.view import GROUP, read_group
from engine.snapshot import OpRecord
from engine.tpu.emit import Emitter
from engine.tpu.isa import Engine
from engine.tpu.memory import ArenaLayout


@dataclass(frozen=True)
class Codegen(Pass):
    """Emits each op's instructions for the two engines, TIU (compute) and GDMA (data movement), with the local-memory
    addresses, strides and waits that a machine needs to run them. A layer group emits its time steps slice by slice;
    between two of them everything waits. Ops that run on the host emit none."""

    name = "codegen"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        layout = ArenaLayout.of(mlir.module_attributes(module))
        emitter = Emitter(context.options.chip, layout.spans())
        records = mlir.records(module)
        for index, record in enumerate(records):
            if record.parent is None:
                try:
                    _emit(records, index, emitter)
                except ValueError as error:
                    raise CompileError(f"{record.name} at {record.location}: {error}") from error
        program = emitter.program()
        return PassReport((_note(program),), program)


def _emit(records: Sequence[OpRecord], index: int, emitter: Emitter) -> None:
    """The instructions of one op outside of groups, or of a whole group."""
    record = records[index]
    if record.name == GROUP:
        emit_group(read_group(records, index), emitter)
        return
    declaration = REGISTRY.get(record.name)
    if declaration is not None and issubclass(declaration, TpuOp) and not declaration.host:
        emitter.begin(index, record)
        declaration.kernel(record, emitter)


def _note(program: np.ndarray) -> str:
    tiu = int((program["engine"] == Engine.TIU).sum())
    return f"{tiu} TIU + {len(program) - tiu} GDMA instructions"
