"""What a group that streams weights keeps in local memory, and which runs of its ops use it, from its records.

An op of such a group runs once for each of its pieces, and what is not an activation once more for each slice of rows.
A piece with a place of its own is there from the run that makes it to the last run that reads it; a whole value is
there once in each slice of rows. Pieces with places of their own are read in the order in which they come.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.snapshot import OpRecord
from engine.tpu.a16_kernel import a16_shape, tile_scratch
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up, ceil_div
from engine.tpu.ginfo import DIMENSIONS, Ginfo
from engine.tpu.group_memory import IN_PLACE, flow_steps
from engine.tpu.isa import dtype_bytes
from engine.tpu.ops.group import WEIGHT

_PRODUCT = "A16MatMul"
_CHANNELS, _COLUMNS = DIMENSIONS.index("c"), DIMENSIONS.index("w")


class Run(NamedTuple):
    """Run `number` of the op at record `op`. order: its place in the group's `flow`."""

    op: int
    number: int
    step: int
    order: int


class Runs(NamedTuple):
    """Consecutive runs of the op at record `op`: numbers from `first` to `last`, both included."""

    op: int
    first: int
    last: int


@dataclass(frozen=True)
class StreamedOp:
    """An op of a streamed group. index: of its record. brings: what it puts into local memory. slices: its runs, for
    each slice of rows."""

    index: int
    record: OpRecord
    ginfo: Ginfo
    brings: str
    slices: tuple[tuple[Run, ...], ...]

    @property
    def makes(self) -> bool:
        """False for what puts nothing into local memory: a store, or a Reshape, which renames what is there."""
        return self.record.kind not in ("Store", "Reshape")

    @property
    def place(self) -> tuple[int, int] | None:
        """Address and bytes per lane of a whole value; None where every piece has a place of its own."""
        return None if self.ginfo.tile_addr else (self.ginfo.out_addr, self.ginfo.out_size)

    def address(self, run: Run) -> int:
        """Where the whole value begins, or the piece of a run."""
        tiles = self.ginfo.tile_addr
        return tiles[run.number % len(tiles)] if tiles else self.ginfo.out_addr

    @property
    def runs(self) -> Iterator[Run]:
        """All of them."""
        return (run for runs in self.slices for run in runs)

    @property
    def across(self) -> int:
        """The dimension of `ginfo` along which its columns are cut: of a single token they lie over the lanes."""
        return _COLUMNS if self.ginfo.eu_align else _CHANNELS

    @property
    def is_vector(self) -> bool:
        """Whether it brings a single row, in one lane."""
        return max(self.ginfo.lengths[_CHANNELS]) == 1

    def runs_of(self, number: int) -> tuple[Run, ...]:
        """Its runs for a slice of rows."""
        return self.slices[number] if number < len(self.slices) else ()


@dataclass(frozen=True)
class Kept:
    """Bytes of every lane while they hold one thing.

    address, nbytes: per lane. holds: what it is. users: the runs that write or read it. writers: those that may write
    it. heirs: those that may write over it as they read it for the last time. is_vector: see StreamedOp.
    """

    address: int
    nbytes: int
    holds: str
    users: tuple[Run, ...]
    writers: Runs
    heirs: Runs | None = None
    is_vector: bool = False

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.address + self.nbytes


@dataclass(frozen=True)
class Guarded:
    """Bytes of every lane that one run must not write, though it writes beside them."""

    run: Run
    address: int
    end: int
    holds: str


@dataclass(frozen=True)
class StreamMemory:
    """The local memory of one streamed group."""

    ops: tuple[StreamedOp, ...]
    chip: Chip

    @classmethod
    def of(cls, ops: Sequence[OpRecord], index: int, chip: Chip) -> StreamMemory:
        """The group at a record."""
        return cls(tuple(_read(ops, index)), chip)

    def kept(self) -> Iterator[Kept]:
        """Everything that is in local memory at some time, in the order of the region."""
        makers = _makers(self.ops)
        readers: dict[int, list[StreamedOp]] = {op.index: [] for op in self.ops}
        for op in self.ops:
            if op.record.kind != "Reshape":
                for maker in {makers[value].index for value in op.record.operands if value in makers}:
                    readers[maker].append(op)
        for op in self.ops:
            if op.makes:
                yield from self._results(op, readers[op.index])
                yield from self._scratch(op)

    def _results(self, op: StreamedOp, readers: Sequence[StreamedOp]) -> Iterator[Kept]:
        """What an op brings: every piece with a place of its own, or the whole in each slice of rows."""
        for number, runs in enumerate(op.slices):
            name = op.brings + _in_slice(op, number)
            if op.place and runs:
                users = (*runs, *(run for reader in readers for run in reader.runs_of(number)))
                heirs = _heirs(op, readers, number, users)
                yield Kept(*op.place, name, users, _runs(runs), heirs, op.is_vector)
            for at, run in enumerate(() if op.place else runs):
                users = (run, *(used[at] for reader in readers if at < len(used := reader.runs_of(number))))
                holds = f"tile {at + 1} of {name}" if len(runs) > 1 else name
                place = (op.address(run), self._piece_bytes(op, run))
                yield Kept(*place, holds, users, _runs((run,)), is_vector=op.is_vector)

    def _piece_bytes(self, op: StreamedOp, run: Run) -> int:
        """Bytes per lane of the piece of a run, which may be smaller than others of its op."""
        _, channels, _, height, width = op.ginfo.piece(run.number)[1]
        blocks = ceil_div(channels, self.chip.lanes)
        plane = height * width * dtype_bytes(op.record.result_types[0].dtype)
        eu = self.chip.eu_bytes
        return blocks * align_up(plane, eu) if op.ginfo.eu_align else align_up(blocks * plane, eu)

    def _scratch(self, op: StreamedOp) -> Iterator[Kept]:
        """Scratch of each run, and the transposed x, which the first run of a slice leaves for the others."""
        start, size = op.ginfo.buffer_addr, op.ginfo.buffer_size
        if not size:
            return
        left = 0
        if op.record.kind == _PRODUCT:
            left = tile_scratch(self.chip, a16_shape(op.record), 1, self.chip.lanes)[0]
        for number, runs in enumerate(op.slices):
            if left and runs:
                holds = f"the transposed x of {op.brings}{_in_slice(op, number)}"
                yield Kept(start, left, holds, runs, _runs(runs[:1]))
            for run in runs if size > left else ():
                holds = f"scratch of {op.brings}"
                yield Kept(start + left, size - left, holds, (run,), _runs((run,)))

    def guarded(self) -> Iterator[Guarded]:
        """What a run that writes a part of a whole value must leave alone of it.

        Those are the columns that runs before it made, and those behind it that still hold the operand in whose place
        the value comes. Results in whose place an op also has its scratch are listed too.
        """
        makers = _makers(self.ops)
        for op in self.ops:
            if op.makes and op.place:
                replaced = [
                    maker.brings
                    for value in op.record.operands
                    if (maker := makers.get(value)) is not None and _takes_place(op, maker)
                ]
                for runs in op.slices:
                    for run in runs if len(runs) > 1 else ():
                        yield from self._beside(op, run, runs[0], replaced)
            yield from self._own_scratch(op)

    def _beside(self, op: StreamedOp, run: Run, first: Run, replaced: Sequence[str]) -> Iterator[Guarded]:
        """Whole rows above those of a run, and columns before and behind its own in every row of a lane.

        first: the first run of the slice of rows.
        """
        starts, lengths = op.ginfo.piece(run.number)
        columns, begin = sum(op.ginfo.lengths[op.across]), starts[op.across]
        behind = begin + lengths[op.across]
        before, after, width = (self._offset(op, column) for column in (begin, behind, columns))
        pitch, rows, above = align_up(width, self.chip.eu_bytes), 1, 0
        if op.ginfo.eu_align:
            rows = ceil_div(lengths[_CHANNELS], self.chip.lanes)
            above = starts[_CHANNELS] - op.ginfo.piece(first.number)[0][_CHANNELS]
        place = op.ginfo.out_addr + ceil_div(above, self.chip.lanes) * pitch
        if above:
            yield Guarded(run, op.ginfo.out_addr, place, f"{above} rows above in {op.brings}")
        for row in range(place, place + rows * pitch, pitch):
            if begin:
                yield Guarded(run, row, row + before, f"columns 0 to {begin - 1} of {op.brings}")
            for brings in replaced if behind < columns else ():
                holds = f"columns {behind} to {columns - 1} of {brings}"
                yield Guarded(run, row + after, row + width, holds)

    def _own_scratch(self, op: StreamedOp) -> Iterator[Guarded]:
        """Bytes where an op has its result as well as its scratch."""
        scratch = op.ginfo.buffer_addr
        for run in op.runs if op.ginfo.buffer_size else ():
            start, size = op.place or (op.address(run), self._piece_bytes(op, run))
            start, end = max(start, scratch), min(start + size, scratch + op.ginfo.buffer_size)
            if start < end:
                yield Guarded(run, start, end, f"{op.brings} and its scratch")

    def _offset(self, op: StreamedOp, column: int) -> int:
        """Byte of a column from the beginning of the row on; of what lies over the lanes, of the first lane."""
        at = column if op.ginfo.eu_align else ceil_div(column, self.chip.lanes)
        return at * dtype_bytes(op.record.result_types[0].dtype)


# -- records -------------------------------------------------------------------------------------------------------


def _read(ops: Sequence[OpRecord], index: int) -> Iterator[StreamedOp]:
    group = ops[index]
    made_at = {value: op.location for op in ops for value in op.results}
    row_starts = group.attributes.get("row_idx", [0])
    steps = enumerate(flow_steps(group.attributes["flow"]))
    flow = [(number, step) for step, ids in steps for number in ids]
    listed = sorted((number, step, order) for order, (number, step) in enumerate(flow))
    numbers = [number for number, _, _ in listed]
    found = {
        at: Ginfo.of(op.attributes["ginfo"])
        for at, op in enumerate(ops)
        if op.parent == index and "ginfo" in op.attributes
    }
    firsts = sorted(ginfo.id for ginfo in found.values())
    for at, ginfo in found.items():
        begin = bisect_left(numbers, ginfo.id)
        behind = bisect_right(firsts, ginfo.id)
        end = bisect_left(numbers, firsts[behind]) if behind < len(firsts) else len(numbers)
        runs = [Run(at, number - ginfo.id, step, order) for number, step, order in listed[begin:end]]
        op = ops[at]
        brings = made_at[op.operands[0] if op.kind == "Load" else op.results[0]]
        yield StreamedOp(at, op, ginfo, brings, _by_slice(op, ginfo, runs, row_starts))


def _by_slice(
    op: OpRecord, ginfo: Ginfo, runs: Sequence[Run], row_starts: Sequence[int]
) -> tuple[tuple[Run, ...], ...]:
    """Runs of each slice of rows: an activation's by their first row, others come again for each slice."""
    if len(row_starts) == 1:
        return (tuple(runs),)
    found: list[list[Run]] = [[] for _ in row_starts]
    for run in runs:
        if op.attributes.get("lmem_type") == WEIGHT:
            number = run.number // ginfo.pieces
        else:
            number = bisect_right(row_starts, ginfo.piece(run.number)[0][_CHANNELS]) - 1
        found[min(number, len(found) - 1)].append(run)
    return tuple(map(tuple, found))


def _makers(ops: Sequence[StreamedOp]) -> Mapping[str, StreamedOp]:
    """The op whose memory a value is."""
    found: dict[str, StreamedOp] = {}
    for op in ops:
        if op.record.kind != "Reshape":
            found[op.record.results[0]] = op
        elif op.record.operands[0] in found:
            found[op.record.results[0]] = found[op.record.operands[0]]
    return found


# -- places --------------------------------------------------------------------------------------------------------


def _in_slice(op: StreamedOp, number: int) -> str:
    return f" in slice {number + 1} of the rows" if len(op.slices) > 1 else ""


def _runs(runs: Sequence[Run]) -> Runs:
    """They belong to one op and follow each other."""
    return Runs(runs[0].op, runs[0].number, runs[-1].number)


def _heirs(op: StreamedOp, readers: Sequence[StreamedOp], number: int, users: Sequence[Run]) -> Runs | None:
    """The runs that read a value last and leave their result in its place, if it dies with them."""
    last = max(users, key=lambda run: (run.step, run.order))
    heir = next((reader for reader in readers if reader.index == last.op), None)
    if heir is None or not _takes_place(heir, op):
        return None
    stores = {reader.index for reader in readers if reader.record.kind == "Store"}
    if any(run.op in stores and run.step == last.step for run in users):
        return None
    return _runs(heir.runs_of(number))


def _takes_place(op: StreamedOp, operand: StreamedOp) -> bool:
    """Whether the result of an op lies where its operand lies."""
    return (
        op.record.kind in IN_PLACE
        and op.place is not None
        and op.place == operand.place
        and op.record.result_types[0].dtype == operand.record.result_types[0].dtype
    )
