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
from engine.tpu.cores import CoreSplit, CoreUse, core_problems
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


def emit_op(records: Sequence[OpRecord], index: int, emitter: Emitter) -> None:
    """The instructions of one op outside of groups, or of a whole group."""
    record = records[index]
    if record.name == GROUP:
        emit_group(read_group(records, index), emitter)
        return
    declaration = REGISTRY.get(record.name)
    if declaration is None or not issubclass(declaration, TpuOp) or declaration.host:
        return
    use = CoreUse.of(record) or CoreUse((0,))
    emitter.begin(index, record, beside=use.parallel is not None and not _is_first(records, index))
    for place, core in enumerate(use.cores):
        emitter.on_core(core)
        if use.split is None:
            declaration.kernel(record, emitter)
        else:
            declaration.kernel_parts(record, emitter, CoreSplit(use.split.dim, use.parts_of(place)))


def _is_first(records: Sequence[OpRecord], index: int) -> bool:
    """Whether an op is the first of those that run at the same time."""
    number = records[index].attributes["group_parallel"]
    return all(record.attributes.get("group_parallel") != number for record in records[:index])


def _note(program: np.ndarray) -> str:
    tiu = int((program["engine"] == Engine.TIU).sum())
    return f"{tiu} TIU + {len(program) - tiu} GDMA instructions"
