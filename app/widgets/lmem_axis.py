"""Which addresses the rows of the local-memory map show, and which cells its time steps take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from app.widgets.lmem_facts import GroupFacts

GUTTER = 12
"""Cells of bank number and address at the left."""

MIN_STEP = 6
"""Cells of a time step; more steps than fit scroll sideways."""


class Zoom(Enum):
    """What the rows show: all of local memory to scale, the banks in use with free space folded, or one bank."""

    WHOLE = "all banks to scale"
    USED = "banks in use"
    BANK = "one bank"


@dataclass(frozen=True)
class AxisRow:
    """Addresses of one row of the canvas: [start, middle) in its upper and [middle, end) in its lower half.

    folded: a free range that takes one row whatever its size.
    """

    start: int
    middle: int
    end: int
    folded: bool = False


def whole_axis(facts: GroupFacts, height: int) -> list[AxisRow]:
    """All banks, each in as many half rows; what lies behind the end of local memory follows."""
    chip = facts.chip
    halves = max(1, 2 * height // chip.banks)
    banks = -(-facts.end // chip.bank_bytes)
    edges = [
        (bank * halves + half) * chip.bank_bytes // halves for bank in range(banks) for half in range(halves)
    ]
    return _paired([*edges, banks * chip.bank_bytes])


def bank_axis(facts: GroupFacts, bank: int, height: int) -> list[AxisRow]:
    """One bank in halves of a power of two bytes, not less than the EU takes at once."""
    chip = facts.chip
    step = chip.eu_bytes
    while step * 2 * height < chip.bank_bytes:
        step *= 2
    start = bank * chip.bank_bytes
    return _paired(list(range(start, start + chip.bank_bytes + 1, step)))


def _paired(edges: Sequence[int], folded: bool = False) -> list[AxisRow]:
    """Rows of two halves each; the last half row may stand alone."""
    last = len(edges) - 1
    return [
        AxisRow(edges[at], edges[min(at + 1, last)], edges[min(at + 2, last)], folded)
        for at in range(0, last, 2)
    ]


def used_axis(facts: GroupFacts, height: int) -> list[AxisRow]:
    """Every range between ends of buffers in at least one row, free ranges in exactly one.

    Rows that are left go where a row stands for most bytes. Banks begin with a row of their own where that fits, and
    ends that lie close together share one: always within 1/64 bank, within 1/6 where the rows would not fit otherwise.
    """
    buffers, bank = facts.plan.buffers, facts.chip.bank_bytes
    ends = {0, facts.end, facts.chip.lmem_bytes}
    ends |= {b.address for b in buffers} | {b.address + b.nbytes for b in buffers}
    segments = _segments(facts, sorted(end for end in ends if 0 <= end <= facts.end))
    segments = _merged(facts, _merged(facts, segments, bank // 64, 0), bank // 6, height)
    cut = [piece for segment in segments for piece in _at_banks(segment, bank)]
    if len(cut) <= height:
        segments = cut
    rows = [1] * len(segments)
    busy = [at for at, segment in enumerate(segments) if segment.used]
    for _ in range(height - len(segments) if busy else 0):
        rows[max(busy, key=lambda at: segments[at].nbytes / rows[at])] += 1
    pairs = zip(segments, rows, strict=True)
    return [row for segment, count in pairs for row in _segment_rows(segment, count)]


@dataclass(frozen=True)
class Segment:
    """Addresses [start, end) between ends of buffers, used by at least one or by none."""

    start: int
    end: int
    used: bool

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self.end - self.start


def _segments(facts: GroupFacts, ends: Sequence[int]) -> list[Segment]:
    """The ranges between addresses."""
    buffers = facts.plan.buffers
    return [
        Segment(start, end, any(b.address < end and start < b.address + b.nbytes for b in buffers))
        for start, end in pairwise(ends)
        if start < end
    ]


def _merged(facts: GroupFacts, segments: Sequence[Segment], small: int, height: int) -> list[Segment]:
    """Ranges in use of at most `small` bytes joined to a neighbour, smallest first, until `height` rows are enough.

    A range that is all there is of a buffer stays.
    """
    found = list(segments)

    def neighbours(at: int) -> list[int]:
        return [n for n in (at - 1, at + 1) if 0 <= n < len(found) and found[n].used]

    def sole(segment: Segment) -> bool:
        return any(
            segment.start <= b.address and b.address + b.nbytes <= segment.end for b in facts.plan.buffers
        )

    while len(found) > height:
        slivers = [
            at
            for at, segment in enumerate(found)
            if segment.used and segment.nbytes <= small and neighbours(at) and not sole(segment)
        ]
        if not slivers:
            break
        at = min(slivers, key=lambda n: found[n].nbytes)
        first = min(at, min(neighbours(at), key=lambda n: found[n].nbytes))
        found[first : first + 2] = [Segment(found[first].start, found[first + 1].end, True)]
    return found


def _at_banks(segment: Segment, bank: int) -> list[Segment]:
    """A range in use cut where banks start."""
    if not segment.used:
        return [segment]
    starts = range((segment.start // bank + 1) * bank, segment.end, bank)
    return [Segment(a, b, True) for a, b in pairwise([segment.start, *starts, segment.end])]


def _segment_rows(segment: Segment, count: int) -> list[AxisRow]:
    edges = [segment.start + segment.nbytes * half // (2 * count) for half in range(2 * count + 1)]
    return _paired(edges, folded=not segment.used)


def axis(facts: GroupFacts, zoom: Zoom, height: int, bank: int) -> list[AxisRow]:
    """The rows of a zoom for a canvas of that height."""
    if zoom is Zoom.WHOLE:
        return whole_axis(facts, height)
    if zoom is Zoom.BANK:
        return bank_axis(facts, bank, height)
    return used_axis(facts, height)


def columns(steps: int, width: int) -> list[int]:
    """Left edges of the time steps and the right edge of the last, for a canvas `width` cells wide."""
    room = max(width - GUTTER, MIN_STEP * steps)
    return [GUTTER + room * step // steps for step in range(steps + 1)]


def bank_rule(facts: GroupFacts, row: AxisRow) -> str:
    """The line where a bank starts: at the top or in the middle of a row; empty where none does."""
    bank = facts.chip.bank_bytes
    if row.start % bank == 0:
        return "▔"
    return "─" if row.middle % bank == 0 and row.start < row.middle < row.end else ""


def bank_of(facts: GroupFacts, row: AxisRow) -> int:
    """The bank that a row is in, or that starts in it."""
    return (row.middle if bank_rule(facts, row) == "─" else row.start) // facts.chip.bank_bytes
