"""What a group keeps in local memory, when, and whether that can be: from the IR alone, to check what was planned.

Time is counted in time steps of slice 0: an item of stage s in row r works on it at s * rows + r, and on slice i `rows`
times i later. A buffer lives from the first to the last touch, both included, because engines run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from engine.op import REGISTRY
from engine.passes.layer_group.chains import LocalOp, Tensor
from engine.passes.layer_group.layout import lane_bytes
from engine.passes.layer_group.plan import BufferKind, ItemKind
from engine.passes.layer_group.slicing import Cut, Sliced, backward
from engine.passes.layer_group.view import GroupItem, GroupView, whole_shape
from engine.tpu.chip import Chip
from engine.tpu.emit import Emitter
from engine.tpu.group_memory import IN_PLACE, Touch, touches
from engine.tpu.isa import Local, Shape4
from engine.tpu.ops.group import WEIGHT


@dataclass(frozen=True)
class LiveBuffer:
    """A piece of local memory. address, nbytes: per lane. value: SSA value that it holds, or whose op it is scratch of.
    item: id of the item that writes it first."""

    value: str
    location: str
    kind: BufferKind
    address: int
    nbytes: int
    held: bool
    item: int
    dtype: str
    touches: tuple[Touch, ...]

    @property
    def first(self) -> int:
        """Time of the first touch."""
        return min(touch.time for touch in self.touches)

    @property
    def last(self) -> int:
        """Time of the last touch."""
        return max(touch.time for touch in self.touches)

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.address + self.nbytes

    def banks(self, chip: Chip) -> range:
        """Banks that it lies in."""
        return range(self.address // chip.bank_bytes, -(-self.end // chip.bank_bytes))

    def __str__(self) -> str:
        what = "scratch of " if self.kind is BufferKind.SCRATCH else ""
        return f"{what}{self.location} (bytes {self.address} to {self.end - 1})"


def live_buffers(view: GroupView) -> tuple[LiveBuffer, ...]:
    """Every buffer of a group, in the order of the region. Reshapes add to the buffer that they read."""
    found = []
    for number, touched in touches(view.items.values(), view.steps).items():
        item = view.items[number]
        weight = item.record.attributes.get("lmem_type") == WEIGHT
        kind = BufferKind.WEIGHT if weight else BufferKind.ACTIVATION
        place = (item.ginfo.out_addr, item.ginfo.out_size)
        found.append(_buffer(item, kind, place, touched))
        if item.ginfo.buffer_size:
            scratch = (item.ginfo.buffer_addr, item.ginfo.buffer_size)
            found.append(_buffer(item, BufferKind.SCRATCH, scratch, touched[:1]))
    return tuple(found)


def _buffer(
    item: GroupItem, kind: BufferKind, place: tuple[int, int], touched: tuple[Touch, ...]
) -> LiveBuffer:
    record = item.record
    return LiveBuffer(
        item.value,
        record.location,
        kind,
        *place,
        item.held,
        item.ginfo.id,
        record.result_types[0].dtype,
        touched,
    )


# -- what can be wrong ---------------------------------------------------------------------------------------------


def problems(view: GroupView, chip: Chip) -> list[str]:
    """Every way in which a group's use of local memory cannot work, as sentences; empty when all is well."""
    buffers = live_buffers(view)
    found = [
        f"{buffer} ends behind the {chip.lmem_bytes} bytes of a lane"
        for buffer in buffers
        if buffer.end > chip.lmem_bytes
    ]
    found += _wrong_places(view, chip)
    found += _wrong_sizes(view, chip)
    found += _wrong_order(view)
    for buffer in buffers:
        if view.secs.slices > 1 and not buffer.held and buffer.last - buffer.first >= len(view.steps):
            found.append(f"{buffer} is still in use when the next slice writes it")
    for one, other in combinations(buffers, 2):
        if _overlap(one, other) and _meet(one, other, view) and not _in_place(one, other, view):
            found.append(f"{one} overlaps {other} while both are in use")
    return found


def _overlap(one: LiveBuffer, other: LiveBuffer) -> bool:
    return one.address < other.end and other.address < one.end


def _meet(one: LiveBuffer, other: LiveBuffer, view: GroupView) -> bool:
    """Whether two buffers are in use at the same time, on any two slices."""
    if one.held or other.held:
        return True
    rows, most = len(view.steps), view.secs.slices - 1
    lowest = -((other.last - one.first) // rows)
    highest = (one.last - other.first) // rows
    return max(lowest, -most) <= min(highest, most)


def _in_place(one: LiveBuffer, other: LiveBuffer, view: GroupView) -> bool:
    """The result of an element by element op where its operand lies that nothing reads afterwards, and that is not
    filled for the next slice before the result has gone."""
    first, second = sorted((one, other), key=lambda buffer: buffer.first)
    item = view.items[second.item]
    return (
        first.address == second.address
        and first.nbytes == second.nbytes
        and first.dtype == second.dtype
        and second.kind is not BufferKind.SCRATCH
        and item.record.kind in IN_PLACE
        and not first.held
        and first.last == second.first
        and {touch.item for touch in first.touches if touch.time == first.last} == {second.item}
        and (view.secs.slices == 1 or second.last - first.first < len(view.steps))
    )


def _wrong_places(view: GroupView, chip: Chip) -> Iterator[str]:
    """Addresses off the grid, values that are not read where they were written, loads held that differ by slice."""
    for item in view.items.values():
        ginfo, where = item.ginfo, f"{item.record.name} {item.record.location}"
        for address in (ginfo.out_addr, ginfo.buffer_addr):
            if address % chip.eu_bytes:
                yield f"{where} uses address {address}, off the grid of {chip.eu_bytes} bytes"
        if item.kind is ItemKind.STORE or not item.moves:
            source = view.maker[item.record.operands[0]]
            if ginfo.out_addr != source.ginfo.out_addr:
                yield (
                    f"{where} reads address {ginfo.out_addr}, {source.record.location} lies at {source.ginfo.out_addr}"
                )
        if item.held and any(len(starts) > 1 for starts in ginfo.starts):
            yield f"{where} is loaded once, but its slices differ"


def _wrong_sizes(view: GroupView, chip: Chip) -> Iterator[str]:
    """Items whose sizes are smaller than what their slices and kernels need."""
    for item in view.items.values():
        ginfo, where = item.ginfo, f"{item.record.name} {item.record.location}"
        shape = _largest(item)
        needed = lane_bytes(chip, item.record.result_types[0].dtype, shape, aligned=ginfo.eu_align)
        if ginfo.out_size < needed:
            yield f"{where} has {ginfo.out_size} bytes a lane, its largest slice needs {needed}"
        if item.kind is ItemKind.COMPUTE and item.moves:
            scratch = scratch_bytes(item, view, chip)
            if ginfo.buffer_size < scratch:
                yield f"{where} has {ginfo.buffer_size} bytes of scratch a lane, it needs {scratch}"


def scratch_bytes(item: GroupItem, view: GroupView, chip: Chip) -> int:
    """Bytes per lane that an op needs beside operands and result, for its largest slice."""
    emit = Emitter(chip, {})

    def local(of: GroupItem) -> Local:
        dtype = of.record.result_types[0].dtype
        return emit.local(of.ginfo.out_addr, dtype, _largest(of), aligned=of.ginfo.eu_align)

    sources = [local(view.maker[value]) for value in item.record.operands if value in view.maker]
    declaration = REGISTRY[item.record.name]
    return int(declaration.local_buffer(chip, sources, [local(item)]))  # type: ignore[attr-defined]


def _largest(item: GroupItem) -> Shape4:
    n, c, _, h, w = (max(lengths) for lengths in item.ginfo.lengths)
    return (n, c, h, w)


def _wrong_order(view: GroupView) -> Iterator[str]:
    """Items that read a value before, or while, it is made."""
    rows, row_of = len(view.steps), {n: row for row, ids in enumerate(view.steps) for n in ids}

    def time(item: GroupItem) -> int:
        return item.ginfo.stage * rows + row_of[item.ginfo.id]

    for item in view.items.values():
        for value in item.record.operands:
            maker = view.maker.get(value)
            if maker is None or not (item.moves and maker.moves):
                continue
            same_engine = (item.kind is ItemKind.COMPUTE) == (maker.kind is ItemKind.COMPUTE)
            late = time(maker) - time(item)
            ids = view.steps[row_of[item.ginfo.id]]
            behind = same_engine and late == 0 and ids.index(maker.ginfo.id) < ids.index(item.ginfo.id)
            if late > 0 or (late == 0 and not behind):
                yield (
                    f"{item.record.name} {item.record.location} runs at time step {time(item) % rows + 1}, before "
                    f"{maker.record.name} {maker.record.location}, which it reads"
                )


# -- slices --------------------------------------------------------------------------------------------------------


def slice_problems(view: GroupView, chip: Chip) -> list[str]:
    """Tensors that their slices do not cover exactly once, and operands cut otherwise than their op takes them."""
    tensors = {item.value: _tensor(item, view, chip) for item in view.items.values()}
    found = []
    for item in view.items.values():
        where, tensor = f"{item.record.name} {item.record.location}", tensors[item.value]
        for dim, cut, size in zip("nchw", _cuts(item).dims, tensor.shape, strict=True):
            ends = [start + length for start, length in zip(cut.starts, cut.lengths, strict=True)]
            if cut.starts[0] != 0 or ends[-1] != size or list(cut.starts[1:]) != ends[:-1]:
                found.append(
                    f"{where}: slices of {dim} from {list(cut.starts)} of {list(cut.lengths)} do not cover {size}"
                )
        if item.kind is ItemKind.LOAD:
            continue
        operands = tuple(value for value in item.record.operands if value in view.maker)
        op = LocalOp(item.index, item.record, operands, item.value)
        for value in operands:
            moved = item.kind is ItemKind.STORE
            takes = _cuts(item) if moved else backward(op, tensors[value], tensor, _cuts(item))
            if _cuts(view.maker[value]) != takes:
                found.append(f"{where} does not take the slices of {view.maker[value].record.location}")
    return found


def _tensor(item: GroupItem, view: GroupView, chip: Chip) -> Tensor:
    return Tensor(item.value, item.record.result_types[0], whole_shape(item, view, chip.lanes), item.role)


def _cuts(item: GroupItem) -> Sliced:
    cuts = [Cut(*cut) for cut in zip(item.ginfo.starts, item.ginfo.lengths, strict=True)]
    return Sliced(cuts[0], cuts[1], cuts[3], cuts[4])


# -- banks ---------------------------------------------------------------------------------------------------------


def bank_conflicts(view: GroupView, chip: Chip) -> list[int]:
    """Ids of items whose buffers share a bank with one that the other engine touches in the same time step."""
    found = set()
    for one, other in combinations(live_buffers(view), 2):
        banks, others = one.banks(chip), other.banks(chip)
        if banks.start < others.stop and others.start < banks.stop and _touched_together(one, other, view):
            found |= {one.item, other.item}
    return sorted(found)


def _touched_together(one: LiveBuffer, other: LiveBuffer, view: GroupView) -> bool:
    rows, most = len(view.steps), view.secs.slices - 1
    for a in one.touches:
        for b in other.touches:
            apart, row = divmod(a.time - b.time, rows)
            if a.engine != b.engine and row == 0 and abs(apart) <= most:
                return True
    return False
