"""The instructions of a group, from the IR alone (R4): a barrier between time steps, every item on its slice."""

from __future__ import annotations

from functools import cache
from typing import Any

from engine.op import REGISTRY
from engine.passes.layer_group.plan import GroupType, ItemKind
from engine.passes.layer_group.slicing import number_of
from engine.passes.layer_group.stream.emission import emit_stream
from engine.passes.layer_group.view import GroupItem, GroupView, whole_shape
from engine.snapshot import TensorType
from engine.tpu.cores import CoreUse
from engine.tpu.emit import Emitter
from engine.tpu.isa import Global, Local, Shape4, contiguous


def emit_group(view: GroupView, emit: Emitter) -> None:
    """Emit a group: time steps for each pipeline step, the `step` of the instructions counts them all. On several cores
    each runs a pipeline of its own slices.

    Raises ValueError for slices that no kernel takes.
    """
    if view.type is GroupType.STREAM:
        emit_stream(view, emit)
        return
    emit.begin(view.index, view.record)
    use, whole = CoreUse.of(view.record) or CoreUse((0,)), (0, view.secs.slices)
    for place, core in enumerate(use.cores):
        emit.on_core(core)
        for first, count in (whole,) if use.split is None else use.parts_of(place):
            _emit_slices(view, emit, first, count)


def _emit_slices(view: GroupView, emit: Emitter, first: int, count: int) -> None:
    emission = _Emission(view, emit)
    for pipeline_step in range(count + view.stages - 1):
        for row, ids in enumerate(view.steps):
            emit.sync()
            for item in (view.items[number] for number in ids):
                number = item.slice_at(pipeline_step, count)
                if number is not None:
                    emit.within(item.index, item.record, pipeline_step * len(view.steps) + row)
                    emission.emit_item(item, first + number)
    emit.sync()


class _Emission:
    """Emits items of one group; remembers their views."""

    def __init__(self, view: GroupView, emit: Emitter) -> None:
        self.view, self.emit = view, emit
        self._numbers = cache(lambda index: number_of(view.secs, index).as_tuple())
        self._locals: dict[Any, Local] = {}

    def emit_item(self, item: GroupItem, index: int) -> None:
        """One item on slice number `index` of the group."""
        if item.kind is ItemKind.LOAD:
            self.emit.load(self._local(item, index), self._global(item, item.record.operand_types[0], index))
        elif item.kind is ItemKind.STORE:
            target = self._global(item, item.record.result_types[0], index)
            self.emit.store(target, self._local(self.view.maker[item.record.operands[0]], index))
        elif item.moves:
            self._compute(item, index)

    def _compute(self, item: GroupItem, index: int) -> None:
        declaration: Any = REGISTRY[item.record.name]
        makers = self.view.maker
        sources = [self._local(makers[value], index) for value in item.record.operands if value in makers]
        result = self._local(item, index)
        declaration.local(item.record, self.emit, sources, [result], item.ginfo.buffer_addr)

    def _local(self, item: GroupItem, index: int) -> Local:
        """The slice of an item's result in local memory."""
        shape = _shape4(item.ginfo.slice(self._numbers(index))[1])
        key = (item.index, shape)
        if key not in self._locals:
            dtype = item.record.result_types[0].dtype
            self._locals[key] = self.emit.local(
                item.ginfo.out_addr, dtype, shape, aligned=item.ginfo.eu_align
            )
        return self._locals[key]

    def _global(self, item: GroupItem, type_: TensorType, index: int) -> Global:
        """The same slice of the tensor in DDR."""
        starts, lengths = item.ginfo.slice(self._numbers(index))
        strides = contiguous(whole_shape(item, self.view, self.emit.chip.lanes))
        offset = sum(at * stride for at, stride in zip(_shape4(starts, 0), strides, strict=True))
        return self.emit.ddr(type_, _shape4(lengths), strides, offset)


def _shape4(values: tuple[int, ...], d: int = 1) -> Shape4:
    """n, c, h, w of n, c, d, h, w. Raises ValueError for anything but one d."""
    n, c, depth, h, w = values
    if depth != d:
        raise ValueError(f"a slice {list(values)} in n, c, d, h, w has more than one d")
    return (n, c, h, w)
