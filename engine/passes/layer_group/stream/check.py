"""Whether a streamed group can work: from the IR alone, by following what every piece of local memory holds.

The runs are followed step by step. Every range of bytes of a lane has the name of what was written there last; a run
must find there what it reads, written in an earlier step or before it by its own engine, and what one engine reads or
writes in a step the other engine must not write.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.passes.layer_group.plan import ItemKind
from engine.passes.layer_group.stream.moves import Part, Role, local_bytes, touched_bytes
from engine.passes.layer_group.stream.pieces import PRODUCT, piece_bytes, scratch_bytes
from engine.passes.layer_group.stream.view import StreamView
from engine.passes.layer_group.view import GroupItem, GroupView
from engine.tpu.a16_kernel import a16_shape, tile_scratch
from engine.tpu.chip import Chip
from engine.tpu.emit import ceil_div
from engine.tpu.ginfo import DIMENSIONS
from engine.tpu.isa import Engine, dtype_bytes

Span = tuple[int, int]
"""First byte and the one behind the last."""


@dataclass(frozen=True)
class Access:
    """A run reads or writes bytes. name: what lies there."""

    spans: tuple[Span, ...]
    name: Hashable
    writes: bool
    item: GroupItem


def stream_problems(view: GroupView, chip: Chip) -> list[str]:
    """Every way in which a streamed group's use of local memory cannot work, as sentences; empty when all is well."""
    stream = StreamView(view, chip)
    wrong = [*_wrong_pieces(stream), *_wrong_places(stream)]
    if wrong:
        return wrong
    try:
        return [*_wrong_sizes(stream), *_followed(stream)]
    except ValueError as error:
        return [str(error)]


def stream_bank_conflicts(view: GroupView, chip: Chip) -> list[int]:
    """Ids of ops whose runs touch a bank that the other engine touches in the same time step."""
    stream = StreamView(view, chip)
    found: set[int] = set()
    for ids in view.steps:
        touched: dict[Engine, dict[int, set[int]]] = {engine: {} for engine in Engine}
        for item in (view.items[number] for number in ids):
            for access in _accesses(item, stream):
                for bank in _banks(access, chip):
                    touched[_engine(item)].setdefault(bank, set()).add(item.ginfo.id)
        for bank in touched[Engine.TIU].keys() & touched[Engine.GDMA].keys():
            found |= touched[Engine.TIU][bank] | touched[Engine.GDMA][bank]
    return sorted(found)


def _banks(access: Access, chip: Chip) -> Iterator[int]:
    for start, end in access.spans:
        yield from range(start // chip.bank_bytes, ceil_div(end, chip.bank_bytes))


def _engine(item: GroupItem) -> Engine:
    return Engine.TIU if item.kind is ItemKind.COMPUTE else Engine.GDMA


def _ops(stream: StreamView) -> list[GroupItem]:
    """The first run of every op."""
    return [item for item in stream.view.items.values() if item.run == 0]


def _where(item: GroupItem) -> str:
    return f"{item.record.name} {item.record.location}"


# -- what the attributes say -----------------------------------------------------------------------------------------


def _wrong_pieces(stream: StreamView) -> Iterator[str]:
    """Values that their pieces do not cover exactly once, and ops that do not run once for each piece."""
    runs: dict[int, int] = {}
    for item in stream.view.items.values():
        runs[item.ginfo.id] = runs.get(item.ginfo.id, 0) + 1
    slices = len(stream.row_starts)
    for item in _ops(stream):
        ginfo = item.ginfo
        for dim, size in zip("nchw", stream.whole_shape(item), strict=True):
            at = DIMENSIONS.index(dim)
            starts, lengths = ginfo.starts[at], ginfo.lengths[at]
            ends = [start + length for start, length in zip(starts, lengths, strict=True)]
            if starts[0] != 0 or ends[-1] != size or list(starts[1:]) != ends[:-1]:
                yield (
                    f"{_where(item)}: pieces of {dim} from {list(starts)} of {list(lengths)} do not cover {size}"
                )
        expected = ginfo.pieces * (1 if stream.roles[item.value] is Role.ROWS else slices)
        if runs[ginfo.id] != expected:
            yield (
                f"{_where(item)} runs {runs[ginfo.id]} times, it has {ginfo.pieces} pieces and the group {slices} "
                "slices of rows"
            )


def _wrong_places(stream: StreamView) -> Iterator[str]:
    """Addresses off the grid, and values that are not read where they were written."""
    chip = stream.chip
    for item in _ops(stream):
        ginfo = item.ginfo
        for address in (ginfo.out_addr, ginfo.buffer_addr, *ginfo.tile_addr):
            if address % chip.eu_bytes:
                yield f"{_where(item)} uses address {address}, off the grid of {chip.eu_bytes} bytes"
        if item.kind is ItemKind.STORE or not item.moves:
            source = stream.view.maker[item.record.operands[0]].ginfo
            if (ginfo.out_addr, ginfo.tile_addr) != (source.out_addr, source.tile_addr):
                yield f"{_where(item)} does not read {item.record.operands[0]} where it lies"


def _wrong_sizes(stream: StreamView) -> Iterator[str]:
    """Runs whose pieces or scratch are larger than their places, or that leave local memory."""
    told: set[str] = set()
    for item in stream.view.items.values():
        for message in _sizes_of(item, stream):
            if message not in told:
                told.add(message)
                yield message


def _sizes_of(item: GroupItem, stream: StreamView) -> Iterator[str]:
    chip, part, ginfo = stream.chip, stream.part(item), item.ginfo
    type_, role = item.record.result_types[0], stream.roles[item.value]
    if role is not Role.ROWS:
        needed = local_bytes(chip, type_, role, part)
    else:
        spread = stream.is_spread(item)
        columns = part.columns[1] if ginfo.tile_addr else stream.whole_shape(item)[1 if spread else 3]
        rows = part.rows[1] if ginfo.tile_addr else _rows_of_slice(stream, part)
        needed = piece_bytes(chip, type_.dtype, rows, columns, spread=spread)
    if ginfo.out_size < needed:
        yield f"{_where(item)} has {ginfo.out_size} bytes a lane, it needs {needed}"
    ends = [address + ginfo.out_size for address in (ginfo.tile_addr or (ginfo.out_addr,))]
    if item.kind is ItemKind.COMPUTE and item.moves:
        operands = stream.operands(item, part)
        scratch = scratch_bytes(item.record, chip, operands.pieces, stream.piece(item, part))
        if ginfo.buffer_size < scratch:
            yield f"{_where(item)} has {ginfo.buffer_size} bytes of scratch a lane, it needs {scratch}"
        ends.append(ginfo.buffer_addr + ginfo.buffer_size)
    if max(ends) > chip.lmem_bytes:
        yield f"{_where(item)} ends at {max(ends)}, behind the {chip.lmem_bytes} bytes of a lane"


def _rows_of_slice(stream: StreamView, part: Part) -> int:
    """Rows of the slice in which a part lies."""
    number = stream.row_slice(part)
    starts = [*stream.row_starts, _rows(stream)]
    return starts[number + 1] - starts[number]


def _rows(stream: StreamView) -> int:
    """Rows of the group's activations."""
    return max(
        sum(stream.whole_shape(item)[1:2])
        for item in _ops(stream)
        if stream.roles[item.value] is Role.ROWS and not stream.is_spread(item)
    )


# -- what happens ----------------------------------------------------------------------------------------------------


@dataclass
class _Memory:
    """What every byte of a lane holds. starts: of ranges that reach to the next start; names: what is there."""

    starts: list[int] = field(default_factory=lambda: [0])
    names: list[Hashable] = field(default_factory=lambda: [None])

    def write(self, span: Span, name: Hashable) -> None:
        """Put a name on a range."""
        start, end = span
        self._split(start)
        self._split(end)
        first, last = bisect_left(self.starts, start), bisect_left(self.starts, end)
        self.starts[first:last], self.names[first:last] = [start], [name]

    def other_than(self, span: Span, name: Hashable) -> Hashable:
        """The first other name in a range; the name itself if there is none."""
        start, end = span
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, end)
        return next((found for found in self.names[first:last] if found != name), name)

    def _split(self, at: int) -> None:
        place = bisect_left(self.starts, at)
        if place == len(self.starts) or self.starts[place] != at:
            self.starts.insert(place, at)
            self.names.insert(place, self.names[place - 1])


def _followed(stream: StreamView) -> Iterator[str]:
    """Runs that read something else than they should, or race with the other engine."""
    memory = _Memory()
    for step, ids in enumerate(stream.view.steps):
        accesses = [(number, _accesses(stream.view.items[number], stream)) for number in ids]
        yield from _races(step, [access for _, found in accesses for access in found])
        late: list[Access] = []
        for engine in Engine:
            mine = [found for n, found in accesses if _engine(stream.view.items[n]) is engine]
            for found in mine:
                yield from _wrong_reads(step, found, memory, stream)
                for access in found:
                    if access.writes and engine is Engine.TIU:
                        for span in access.spans:
                            memory.write(span, access.name)
                    elif access.writes:
                        late.append(access)
        for access in late:  # what is loaded is there in the next step only
            for span in access.spans:
                memory.write(span, access.name)


def _wrong_reads(step: int, accesses: Sequence[Access], memory: _Memory, stream: StreamView) -> Iterator[str]:
    for access in accesses:
        if access.writes:
            continue
        for span in access.spans:
            found = memory.other_than(span, access.name)
            if found != access.name:
                yield (
                    f"{_where(access.item)} run {access.item.run} in time step {step + 1} reads {_called(access.name)} "
                    f"at bytes {span[0]} to {span[1] - 1}, where {_called(found)} is"
                )
                break


def _called(name: Hashable) -> str:
    if not isinstance(name, tuple):
        return "nothing"
    return f"{name[0]} {', '.join(map(str, name[1:]))}"


def _races(step: int, accesses: Sequence[Access]) -> Iterator[str]:
    """Bytes that one engine writes while the other one reads or writes them."""
    by_engine = {engine: [a for a in accesses if _engine(a.item) is engine] for engine in Engine}
    for one in by_engine[Engine.TIU]:
        for other in by_engine[Engine.GDMA]:
            if (one.writes or other.writes) and _overlap(one, other):
                yield (
                    f"{_where(one.item)} run {one.item.run} and {_where(other.item)} run {other.item.run} meet in time "
                    f"step {step + 1}, at byte {max(one.spans[0][0], other.spans[0][0])}"
                )


def _overlap(one: Access, other: Access) -> bool:
    return any(a < d and c < b for a, b in one.spans for c, d in other.spans)


def _accesses(item: GroupItem, stream: StreamView) -> list[Access]:
    """What a run reads, then what it writes."""
    part = stream.part(item)
    if item.kind is ItemKind.LOAD:
        return [_touch(item, item, part, stream, writes=True)]
    if item.kind is ItemKind.STORE:
        return [_touch(item, stream.view.maker[item.record.operands[0]], part, stream, writes=False)]
    found = []
    for number, value in enumerate(item.record.operands):
        if value in stream.view.maker:
            maker = stream.view.maker[value]
            taken = stream.operand_part(item, number, part)
            found.append(_touch(item, maker, taken, stream, writes=False))
    if not item.moves:
        return found
    found += _scratch(item, part, stream)
    return [*found, _touch(item, item, part, stream, writes=True)]


def _scratch(item: GroupItem, part: Part, stream: StreamView) -> list[Access]:
    """Scratch is written anew by every run, but for the transposed x, which the first tile leaves for the others."""
    start, size = item.ginfo.buffer_addr, item.ginfo.buffer_size
    kept = 0
    if item.record.kind == PRODUCT:
        kept = tile_scratch(stream.chip, a16_shape(item.record), 1, stream.chip.lanes)[0]
    found = []
    if kept:
        name = ("transposed x", item.value, stream.row_slice(part))
        found.append(Access(((start, start + kept),), name, part.columns[0] == 0, item))
    if size > kept:
        found.append(Access(((start + kept, start + size),), ("scratch", item.value, item.run), True, item))
    return found


def _touch(item: GroupItem, maker: GroupItem, part: Part, stream: StreamView, *, writes: bool) -> Access:
    """A run touches a part of a value that `maker` makes. The name says which value, of which slice of rows, and for
    pieces with places of their own which one."""
    role = stream.roles[maker.value]
    alias = _root(maker, stream)
    if role is not Role.ROWS:
        address = stream.address(maker, part)
        nbytes = touched_bytes(stream.chip, maker.record.result_types[0], role, part)
        tile = part.columns[0] if maker.ginfo.tile_addr else None
        return Access(((address, address + nbytes),), (alias, tile), writes, item)
    piece = stream.piece(maker, part)
    tile = part.columns[0] if maker.ginfo.tile_addr else None
    size, rows = dtype_bytes(piece.dtype), 1 if piece.spread else ceil_div(part.rows[1], stream.chip.lanes)
    width = ceil_div(piece.columns, stream.chip.lanes) if piece.spread else piece.columns
    spans = tuple(
        (piece.address + row * piece.pitch * size, piece.address + (row * piece.pitch + width) * size)
        for row in range(rows)
    )
    return Access(spans, (alias, stream.row_slice(part), tile), writes, item)


def _root(item: GroupItem, stream: StreamView) -> str:
    """The value of which a value is a reshape."""
    while item.kind is ItemKind.COMPUTE and not item.moves:
        item = stream.view.maker[item.record.operands[0]]
    return item.value
