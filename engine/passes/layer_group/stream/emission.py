"""The instructions of a streamed group, from the IR alone (R4): a barrier between time steps, runs on their pieces."""

from __future__ import annotations

from engine.passes.layer_group.plan import ItemKind
from engine.passes.layer_group.stream.moves import Role, load, store
from engine.passes.layer_group.stream.pieces import emit_run
from engine.passes.layer_group.stream.view import StreamView
from engine.passes.layer_group.view import GroupItem, GroupView
from engine.tpu.emit import Emitter


def emit_stream(view: GroupView, emit: Emitter) -> None:
    """Emit a group of the type STREAM; the `step` of the instructions is the time step.

    Raises ValueError for pieces that do not fit each other.
    """
    stream = StreamView(view, emit.chip)
    emit.begin(view.index, view.record)
    for step, ids in enumerate(view.steps):
        emit.sync()
        for item in (view.items[number] for number in ids):
            emit.within(item.index, item.record, step)
            _emit_item(item, stream, emit)
    emit.sync()


def _emit_item(item: GroupItem, stream: StreamView, emit: Emitter) -> None:
    part = stream.part(item)
    if item.kind is ItemKind.LOAD:
        role = stream.roles[item.value]
        place = stream.piece(item, part) if role is Role.ROWS else stream.address(item, part)
        load(emit, item.record.operand_types[0], role, part, place)
    elif item.kind is ItemKind.STORE:
        maker = stream.view.maker[item.record.operands[0]]
        store(emit, item.record.result_types[0], part, stream.piece(maker, part))
    elif item.moves:
        operands = stream.operands(item, part)
        emit_run(item.record, emit, operands, stream.piece(item, part), item.ginfo.buffer_addr)
