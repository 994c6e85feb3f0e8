"""The instructions of a module's ops, from its records alone: what codegen emits, and what a check emits again."""

from __future__ import annotations

from collections.abc import Sequence

import engine.tpu.ops  # noqa: F401
from engine.op import REGISTRY, TpuOp
from engine.passes.layer_group.emission import emit_group
from engine.passes.layer_group.view import GROUP, read_group
from engine.snapshot import OpRecord
from engine.tpu.cores import CoreSplit, CoreUse
from engine.tpu.emit import Emitter


def emit_op(records: Sequence[OpRecord], index: int, emitter: Emitter) -> None:
    """The instructions of one op outside of groups, or of a whole group. Ops that run on the host emit none.

    Raises ValueError for what no kernel takes, CompileError for a group that cannot be read.
    """
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
