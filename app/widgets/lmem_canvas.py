"""Drawing of local memory: addresses downwards, time steps to the right, one rectangle a buffer.

A canvas is rows of spans (text and roles). Beside the roles of `app.theme` it uses colours of a fill, named
`ROLE.SHADE`: `bg:` and `fg:` the fill itself, `ink:` letters on it, `hatch:` strokes on it, `edge:` its border. Shades
are 0 and 1, which tell neighbours of one kind apart, and `s` for the selected buffer. `app.widgets.map_palette` knows
what they look like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.cells import cell_len

from app.widgets.lines import Span
from app.widgets.lmem_facts import ROLES, GroupFacts, Part, kib, parts_of
from engine.passes.layer_group.plan import BufferKind

GUTTER = 11
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
    return _even_rows(0, facts.end, chip.bank_bytes // halves)


def bank_axis(facts: GroupFacts, bank: int, height: int) -> list[AxisRow]:
    """One bank in halves of a power of two bytes, not less than the EU takes at once."""
    chip = facts.chip
    step = chip.eu_bytes
    while step * 2 * height < chip.bank_bytes:
        step *= 2
    start = bank * chip.bank_bytes
    return _even_rows(start, start + chip.bank_bytes, step)


def _even_rows(start: int, end: int, half: int) -> list[AxisRow]:
    return [
        AxisRow(at, min(at + half, end), min(at + 2 * half, end))
        for at in range(start, end, max(1, 2 * half))
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
    busy = [i for i, (_, _, used) in enumerate(segments) if used]
    for _ in range(height - len(segments) if busy else 0):
        widest = max(busy, key=lambda i: (segments[i][1] - segments[i][0]) / rows[i])
        rows[widest] += 1
    return [
        row
        for (start, end, used), count in zip(segments, rows, strict=True)
        for row in _segment_rows(start, end, count, used)
    ]


def _segments(facts: GroupFacts, ends: Sequence[int]) -> list[tuple[int, int, bool]]:
    """(start, end, in use) of the ranges between addresses."""
    buffers = facts.plan.buffers
    return [
        (start, end, any(b.address < end and start < b.address + b.nbytes for b in buffers))
        for start, end in zip(ends, ends[1:], strict=False)
        if start < end
    ]


def _merged(
    facts: GroupFacts, segments: Sequence[tuple[int, int, bool]], small: int, height: int
) -> list[tuple[int, int, bool]]:
    """Ranges in use of at most `small` bytes joined to a neighbour, smallest first, until `height` rows are enough.

    A range that is all there is of a buffer stays.
    """
    found = list(segments)
    while len(found) > height:
        best: tuple[int, int] | None = None
        for at, (start, end, used) in enumerate(found):
            near = [n for n in (at - 1, at + 1) if 0 <= n < len(found) and found[n][2]]
            sole = any(start <= b.address and b.address + b.nbytes <= end for b in facts.plan.buffers)
            if used and near and not sole and end - start <= small and (best is None or end - start < best[0]):
                best = (end - start, min(at, min(near, key=lambda n: found[n][1] - found[n][0])))
                best = (best[0], best[1] if best[1] in near or best[1] + 1 in near else at)
        if best is None:
            break
        at = best[1]
        found[at : at + 2] = [(found[at][0], found[at + 1][1], True)]
    return found


def _at_banks(segment: tuple[int, int, bool], bank: int) -> list[tuple[int, int, bool]]:
    start, end, used = segment
    if not used:
        return [segment]
    lines = [start, *range((start // bank + 1) * bank, end, bank), end]
    return [(a, b, used) for a, b in zip(lines, lines[1:], strict=False)]


def _segment_rows(start: int, end: int, count: int, used: bool) -> list[AxisRow]:
    edges = [start + (end - start) * i // (2 * count) for i in range(2 * count + 1)]
    return [AxisRow(*edges[2 * i : 2 * i + 3], folded=not used) for i in range(count)]


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


@dataclass(frozen=True)
class View:
    """What is looked at. selected: a buffer, or -1. pipeline_step: None for the whole loop."""

    selected: int = -1
    step: int = 0
    pipeline_step: int | None = None
    focused: bool = True


@dataclass(frozen=True)
class Canvas:
    """What was drawn. owners: the part (index in `GroupFacts.parts`, -1 for none) of every cell, for the mouse."""

    axis: tuple[AxisRow, ...]
    edges: tuple[int, ...]
    rows: tuple[tuple[Span, ...], ...]
    owners: tuple[tuple[int, ...], ...]

    def buffer_rows(self, facts: GroupFacts, buffer: int) -> tuple[int, int] | None:
        """First and last row of a buffer; None when this axis does not reach it."""
        found = [
            row
            for row, owners in enumerate(self.owners)
            if any(owner >= 0 and facts.parts[owner].buffer == buffer for owner in owners)
        ]
        return (found[0], found[-1]) if found else None


Cell = tuple[str, str]


def draw(facts: GroupFacts, rows: Sequence[AxisRow], width: int, view: View) -> Canvas:
    """Paint the map on the rows of an axis."""
    edges = columns(facts.steps, width)
    cells = [_free_row(facts, row, edges, view) for row in rows]
    owners = [[-1] * (2 * edges[-1]) for _ in rows]
    painter = _Painter(facts, rows, edges, view, cells, owners)
    for number in range(len(facts.parts)):
        painter.claim(number)
    painter.fill()
    for number in range(len(facts.parts)):
        painter.label(number)
    for line, row in zip(cells, rows, strict=True):
        if row.folded:
            _write_free(line, row, edges)
    before = -1
    for line, row in zip(cells, rows, strict=True):
        bank = row.start // facts.chip.bank_bytes
        line[:GUTTER] = _gutter(facts, row, bank if bank != before else None)
        before = bank
    return Canvas(
        tuple(rows),
        tuple(edges),
        tuple(tuple(joined(line)) for line in cells),
        tuple(
            tuple(max(line[: edges[-1]][x], line[edges[-1] + x]) for x in range(edges[-1])) for line in owners
        ),
    )


def joined(cells: Sequence[Cell]) -> list[Span]:
    """Cells with the same roles as one span."""
    spans: list[Span] = []
    for text, roles in cells:
        if spans and spans[-1][1] == roles:
            spans[-1] = (spans[-1][0] + text, roles)
        else:
            spans.append((text, roles))
    return spans


def column_role(view: View, step: int) -> str:
    """Ground of a step's column: the one with the cursor stands out."""
    return " column" if step == view.step else ""


def _free_row(facts: GroupFacts, row: AxisRow, edges: Sequence[int], view: View) -> list[Cell]:
    line: list[Cell] = [(" ", "")] * GUTTER
    behind = row.start >= facts.chip.lmem_bytes
    ruled = row.start % facts.chip.bank_bytes == 0
    for step, (left, right) in enumerate(zip(edges, edges[1:], strict=False)):
        ground = column_role(view, step)
        for x in range(left, right):
            dotted = "·" if (x - GUTTER) % 2 == 0 and not ruled else " "
            line.append(
                ("╳" if behind else "▔" if ruled else dotted, ("bad" if behind else "faint") + ground)
            )
    return line


def _gutter(facts: GroupFacts, row: AxisRow, bank: int | None) -> list[Cell]:
    behind = row.start >= facts.chip.lmem_bytes
    name = "over" if behind else "" if bank is None else str(bank)
    text = f"{name:>4} {kib(row.start):>5} "
    return [
        (text[:5], "bad bold" if behind else "muted"),
        *[("", "")] * 4,
        (text[5:], "faint"),
        *[("", "")] * 5,
    ]


def _write_free(line: list[Cell], row: AxisRow, edges: Sequence[int]) -> None:
    text = f" {kib(row.end - row.start)} KiB free "
    left = max(GUTTER, (GUTTER + edges[-1] - len(text)) // 2)
    for x, char in enumerate(text[: edges[-1] - left], left):
        ground = " column" if line[x][1].endswith(" column") else ""
        line[x] = (char, "muted" + ground)


class _Painter:
    """Fills half cells with parts, then turns them into characters."""

    def __init__(
        self,
        facts: GroupFacts,
        rows: Sequence[AxisRow],
        edges: Sequence[int],
        view: View,
        cells: list[list[Cell]],
        owners: list[list[int]],
    ) -> None:
        self.facts, self.rows, self.edges, self.view = facts, rows, edges, view
        self.cells, self.owners = cells, owners
        self.width = edges[-1]
        self.shades = shades(facts)

    def span(self, part: Part) -> tuple[int, int]:
        """Columns [left, right) of a part; one cell stays free at its end."""
        return self.edges[part.first], self.edges[part.last + 1] - (0 if part.goes_on else 1)

    def claim(self, number: int) -> None:
        """Take the half cells that a part covers for the most part; at least one, so that none is invisible."""
        part = self.facts.parts[number]
        buffer = self.facts.plan.buffers[part.buffer]
        start, end = buffer.address, buffer.address + buffer.nbytes
        covered: list[tuple[int, int]] = []
        most, widest = 0.0, None
        for y, row in enumerate(self.rows):
            for half, (low, high) in enumerate(((row.start, row.middle), (row.middle, row.end))):
                share = (min(end, high) - max(start, low)) / max(1, high - low)
                if share >= 0.5:
                    covered.append((y, half))
                if share > most:
                    most, widest = share, (y, half)
        left, right = self.span(part)
        for y, half in covered or ([widest] if widest else []):
            base = half * self.width
            self.owners[y][base + left : base + right] = [number] * (right - left)

    def fill(self) -> None:
        """Characters and colours of all taken cells."""
        for y, line in enumerate(self.cells):
            owners = self.owners[y]
            for x in range(GUTTER, self.width):
                upper, lower = owners[x], owners[self.width + x]
                if upper >= 0 or lower >= 0:
                    line[x] = self._cell(y, x, upper, lower, line[x])

    def _cell(self, y: int, x: int, upper: int, lower: int, free: Cell) -> Cell:
        ground = " column" if free[1].endswith(" column") else ""
        if upper == lower:
            return self._full(y, x, upper, free)
        if lower < 0:
            return ("▀", f"fg:{self.fill_of(upper)}{ground}")
        if upper < 0:
            return ("▄", f"fg:{self.fill_of(lower)}{ground}")
        return ("▀", f"fg:{self.fill_of(upper)} bg:{self.fill_of(lower)}")

    def _full(self, y: int, x: int, number: int, free: Cell) -> Cell:
        part = self.facts.parts[number]
        fill = self.fill_of(number)
        left, right = self.span(part)
        if self.idle(part):
            ground = " column" if free[1].endswith(" column") else ""
            return ("╎" if x in (left, right - 1) else "·", f"fg:{fill}{ground}")
        if x == left:
            return ("◂" if part.came_on else "▎", f"edge:{fill} bg:{fill}")
        if part.goes_on and x == right - 1:
            return ("▸", f"edge:{fill} bg:{fill}")
        if self.facts.plan.buffers[part.buffer].held:
            return ("╱", f"hatch:{fill} bg:{fill}")
        ruled = self.rows[y].start % self.facts.chip.bank_bytes == 0
        return ("▔" if ruled else " ", f"hatch:{fill} bg:{fill}")

    def idle(self, part: Part) -> bool:
        """Whether a part holds nothing in the pipeline step that is looked at."""
        at = self.view.pipeline_step
        return at is not None and self.facts.slice_of(part, at) is None

    def fill_of(self, number: int) -> str:
        """Colour name of a part."""
        buffer = self.facts.parts[number].buffer
        role = "bad" if buffer in self.facts.problems else ROLES[self.facts.plan.buffers[buffer].kind]
        return f"{role}.{'s' if buffer == self.view.selected else self.shades[buffer]}"

    def label(self, number: int) -> None:
        """Write a part's name and size where they fit."""
        part = self.facts.parts[number]
        left, right = self.span(part)
        rows = [y for y in range(len(self.rows)) if self._owns(y, number, left, right)]
        room = right - left - 2 - (1 if part.goes_on else 0)
        lines = label_lines(self.facts, part, room, len(rows), self.view.pipeline_step)
        if not rows or not lines:
            return
        top = rows[(len(rows) - len(lines)) // 2]
        fill, idle = self.fill_of(number), self.idle(part)
        for offset, text in enumerate(lines):
            weight = " bold" if offset == 0 and part.buffer == self.view.selected else ""
            roles = f"fg:{fill}" if idle else f"ink:{fill} bg:{fill}{weight}"
            self._write(
                top + offset, left + 1, f" {text} " if self._hatched(part) else f"{text} ", roles, room + 1
            )

    def _hatched(self, part: Part) -> bool:
        return self.facts.plan.buffers[part.buffer].held

    def _owns(self, y: int, number: int, left: int, right: int) -> bool:
        line = self.owners[y]
        both = (*line[left:right], *line[self.width + left : self.width + right])
        return all(owner == number for owner in both)

    def _write(self, y: int, x: int, text: str, roles: str, room: int) -> None:
        line = self.cells[y]
        for char in text[:room]:
            ground = " column" if line[x][1].endswith(" column") and "bg:" not in roles else ""
            line[x] = (char, roles + ground)
            x += 1


def label_lines(
    facts: GroupFacts, part: Part, width: int, height: int, pipeline_step: int | None = None
) -> list[str]:
    """Name, size and slice of a part in at most `height` lines of `width` cells; nothing where nothing fits."""
    if width < 2 or height < 1:
        return []
    buffer = facts.plan.buffers[part.buffer]
    names = facts.names(part.buffer)
    notes = [f"{kib(buffer.nbytes)} KiB"]
    if buffer.held:
        notes.append("held")
    number = None if pipeline_step is None else facts.slice_of(part, pipeline_step)
    if number is not None and facts.plan.secs.slices > 1 and not buffer.held:
        notes.append(f"slice {number + 1}")
    if part.buffer in facts.problems:
        notes.insert(0, facts.problems[part.buffer])
    if height > 1 and cell_len(f"{names[0]} {' '.join(notes)}") > width:
        fitting = [
            first_fit(names, width),
            first_fit([" · ".join(notes), notes[0], _short(buffer.nbytes)], width),
        ]
        return [text for text in fitting if text]
    together = [f"{name} {' '.join(notes)}" for name in names] + [f"{name} {notes[0]}" for name in names]
    best = first_fit([*together, *names], width)
    return [best or first_fit([_short(buffer.nbytes)], width)] if best or width >= 4 else []


def _short(nbytes: int) -> str:
    return f"{kib(nbytes)}K"


def first_fit(texts: Sequence[str], width: int) -> str:
    """The first text that fits; empty when none does."""
    return next((text for text in texts if cell_len(text) <= width), "")


def shades(facts: GroupFacts) -> list[int]:
    """A shade for every buffer, another one than that of a touching buffer of the same kind."""
    buffers = facts.plan.buffers
    order = sorted(range(len(buffers)), key=lambda i: (buffers[i].address, buffers[i].first_step))
    found: dict[int, int] = {}
    for index in order:
        near = {found[other] for other in found if _touch(facts, index, other)}
        found[index] = 0 if 0 not in near else 1
    return [found[index] for index in range(len(buffers))]


def _touch(facts: GroupFacts, first: int, second: int) -> bool:
    """Whether two buffers of a kind lie next to each other on the map, in address or in time."""
    a, b = facts.plan.buffers[first], facts.plan.buffers[second]
    if a.kind is not b.kind or a.address > b.address + b.nbytes or b.address > a.address + a.nbytes:
        return False
    return any(
        p.first <= q.last + 1 and q.first <= p.last + 1
        for p in parts_of(first, a, facts.steps)
        for q in parts_of(second, b, facts.steps)
    )


def legend(facts: GroupFacts) -> list[Span]:
    """What the colours mean, for those that occur."""
    kinds = {buffer.kind for buffer in facts.plan.buffers}
    spans: list[Span] = []
    for kind in BufferKind:
        if kind in kinds:
            spans += [("■", ROLES[kind]), (f" {kind.value}  ", "muted")]
    if any(buffer.held for buffer in facts.plan.buffers):
        spans += [("╱╱", "weights"), (" held  ", "muted")]
    if any(buffer.first_step > buffer.last_step for buffer in facts.plan.buffers):
        spans += [("▸ ◂", "heading"), (" next slice  ", "muted")]
    if facts.problems:
        spans += [("■", "bad"), (" misplaced", "bad")]
    return spans
