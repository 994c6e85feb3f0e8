"""Drawing of local memory: addresses downwards, time steps to the right, one rectangle a buffer.

A canvas is rows of spans (text and roles). Beside the roles of `app.theme` it uses colours of a fill, named
`ROLE.SHADE`: `bg:` and `fg:` the fill itself, `ink:` letters on it, `hatch:` strokes on it, `edge:` its border. Shades
are 0 and 1, which tell neighbours of one kind apart, and `s` for the selected buffer; `column` is the ground of the
cursor's time step. `app.widgets.map_palette` knows what they look like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len

from app.widgets.lines import Span
from app.widgets.lmem_axis import GUTTER, AxisRow, bank_of, bank_rule, columns
from app.widgets.lmem_facts import ROLES, GroupFacts, Part, parts_of
from app.widgets.lmem_words import kib
from engine.passes.layer_group.plan import BufferKind

Cell = tuple[str, str]
"""One character and its roles."""

NOBODY = -1


@dataclass(frozen=True)
class View:
    """What is looked at. selected: a buffer, or -1. pipeline_step: None for the whole loop."""

    selected: int = -1
    step: int = 0
    pipeline_step: int | None = None


@dataclass(frozen=True)
class Canvas:
    """What was drawn. owners: the buffer of every cell, -1 for none, for the mouse."""

    axis: tuple[AxisRow, ...]
    edges: tuple[int, ...]
    rows: tuple[tuple[Span, ...], ...]
    owners: tuple[tuple[int, ...], ...]

    def buffer_rows(self, buffer: int) -> tuple[int, int] | None:
        """First and last row of a buffer; None when this axis does not reach it."""
        found = [row for row, owners in enumerate(self.owners) if buffer in owners]
        return (found[0], found[-1]) if found and buffer >= 0 else None


def draw(facts: GroupFacts, rows: Sequence[AxisRow], width: int, view: View) -> Canvas:
    """Paint the map on the rows of an axis."""
    painter = _Painter(facts, rows, columns(facts.steps, width), view)
    painter.paint()
    return Canvas(
        tuple(rows),
        tuple(painter.edges),
        tuple(tuple(joined(line)) for line in painter.cells),
        tuple(tuple(map(painter.buffer_at, *halves)) for halves in painter.owners),
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


class _Painter:
    """Gives half cells to parts, then turns them into characters.

    cells: what is drawn, one character each. owners: for each row its upper and its lower half cells, with the number
    of the part (in `GroupFacts.parts`) that has them. grounds: ground of every column.
    """

    def __init__(self, facts: GroupFacts, rows: Sequence[AxisRow], edges: list[int], view: View) -> None:
        self.facts, self.rows, self.edges, self.view = facts, rows, edges, view
        self.shades = shades(facts)
        self.grounds = [""] * edges[-1]
        for step, (left, right) in enumerate(pairwise(edges)):
            self.grounds[left:right] = [column_role(view, step)] * (right - left)
        self.cells = [self._free_cells(row) for row in rows]
        self.owners = [([NOBODY] * edges[-1], [NOBODY] * edges[-1]) for _ in rows]

    def paint(self) -> None:
        """Free space, parts, labels, gutter."""
        numbers = range(len(self.facts.parts))
        for number in numbers:
            self._claim(number)
        for y in range(len(self.rows)):
            self._fill(y)
        for number in numbers:
            self._label(number)
        before = None
        for line, row in zip(self.cells, self.rows, strict=True):
            bank = bank_of(self.facts, row)
            line[:GUTTER] = self._gutter(row, bank if bank != before else None)
            before = bank

    def buffer_at(self, upper: int, lower: int) -> int:
        """The buffer in a cell whose halves two parts have."""
        part = max(upper, lower)
        return NOBODY if part == NOBODY else self.facts.parts[part].buffer

    # -- free space ---------------------------------------------------------------------------------------------

    def _free_cells(self, row: AxisRow) -> list[Cell]:
        behind = row.start >= self.facts.chip.lmem_bytes
        mark = "╳" if behind else bank_rule(self.facts, row) or "·"
        role = "bad" if behind else "rule"
        marks = [(" " if x % 2 else mark, role + ground) for x, ground in enumerate(self.grounds[GUTTER:])]
        line: list[Cell] = [(" ", "")] * GUTTER + marks
        if row.folded:
            text = f" {kib(row.end - row.start)} KiB free "
            left = max(GUTTER, (GUTTER + self.edges[-1] - len(text)) // 2)
            for x, char in enumerate(text[: self.edges[-1] - left], left):
                line[x] = (char, "muted" + self.grounds[x])
        return line

    def _gutter(self, row: AxisRow, bank: int | None) -> list[Cell]:
        behind = row.start >= self.facts.chip.lmem_bytes
        name = "over" if behind else "" if bank is None else str(bank)
        left = [(char, "bad bold" if behind else "heading") for char in f"{name:>4} "]
        return left + [(char, "muted") for char in f"{kib(row.start):>6} "]

    # -- rectangles ---------------------------------------------------------------------------------------------

    def _span(self, part: Part) -> tuple[int, int]:
        """Columns [left, right) of a part; one cell stays free at its end."""
        return self.edges[part.first], self.edges[part.last + 1] - (0 if part.goes_on else 1)

    def _claim(self, number: int) -> None:
        """Take the half cells that a part covers for the most part; at least one, so that none is invisible."""
        part = self.facts.parts[number]
        buffer = self.facts.plan.buffers[part.buffer]
        start, end = buffer.address, buffer.address + buffer.nbytes
        shares = {
            (y, half): (min(end, high) - max(start, low)) / max(1, high - low)
            for y, row in enumerate(self.rows)
            for half, (low, high) in enumerate(((row.start, row.middle), (row.middle, row.end)))
        }
        best = max(shares, key=lambda spot: shares[spot], default=None)
        taken = [spot for spot, share in shares.items() if share >= 0.5]
        if not taken and best is not None and shares[best] > 0:
            taken = [best]
        left, right = self._span(part)
        for y, half in taken:
            self.owners[y][half][left:right] = [number] * (right - left)

    def _fill(self, y: int) -> None:
        """Characters and colours of a row's taken cells."""
        line = self.cells[y]
        for x, (upper, lower) in enumerate(zip(*self.owners[y], strict=True)):
            if upper == lower != NOBODY:
                line[x] = self._whole(y, x, upper)
            elif upper != lower:
                line[x] = self._halves(x, self._busy(upper), self._busy(lower))

    def _busy(self, number: int) -> int:
        """The part, or nobody where it holds nothing."""
        return NOBODY if number == NOBODY or self._idle(self.facts.parts[number]) else number

    def _halves(self, x: int, upper: int, lower: int) -> Cell:
        if upper == lower:
            return ("·", f"muted{self.grounds[x]}")
        if lower == NOBODY:
            return ("▀", f"fg:{self._fill_name(upper)}{self.grounds[x]}")
        if upper == NOBODY:
            return ("▄", f"fg:{self._fill_name(lower)}{self.grounds[x]}")
        return ("▀", f"fg:{self._fill_name(upper)} bg:{self._fill_name(lower)}")

    def _whole(self, y: int, x: int, number: int) -> Cell:
        part, fill = self.facts.parts[number], self._fill_name(number)
        left, right = self._span(part)
        if self._idle(part):
            return ("╎" if x in (left, right - 1) else "·", f"fg:{fill}{self.grounds[x]}")
        if x == left:
            return ("◂" if part.came_on else "▎", f"edge:{fill} bg:{fill}")
        if part.goes_on and x == right - 1:
            return ("▸", f"edge:{fill} bg:{fill}")
        if self._held(part):
            return ("╱", f"hatch:{fill} bg:{fill}")
        return (bank_rule(self.facts, self.rows[y]) or " ", f"hatch:{fill} bg:{fill}")

    def _held(self, part: Part) -> bool:
        return self.facts.plan.buffers[part.buffer].held

    def _idle(self, part: Part) -> bool:
        """Whether a part holds nothing in the pipeline step that is looked at."""
        at = self.view.pipeline_step
        return at is not None and self.facts.slice_of(part, at) is None

    def _fill_name(self, number: int) -> str:
        """Colour name of a part."""
        buffer = self.facts.parts[number].buffer
        role = "bad" if buffer in self.facts.problems else ROLES[self.facts.plan.buffers[buffer].kind]
        return f"{role}.{'s' if buffer == self.view.selected else self.shades[buffer]}"

    # -- labels -------------------------------------------------------------------------------------------------

    def _label(self, number: int) -> None:
        """Write a part's name and size in the middle of its whole rows, where they fit."""
        part = self.facts.parts[number]
        left, right = self._span(part)
        rows = [y for y in range(len(self.rows)) if self._owns(y, number, left, right)]
        room = right - left - 2 - part.goes_on - self._held(part)
        lines = label_lines(self.facts, part, room, len(rows), self.view.pipeline_step)
        if not lines:
            return
        top = rows[(len(rows) - len(lines)) // 2]
        fill = self._fill_name(number)
        bold = " bold" if part.buffer == self.view.selected else ""
        for offset, text in enumerate(lines):
            roles = f"fg:{fill}" if self._idle(part) else f"ink:{fill} bg:{fill}{'' if offset else bold}"
            self._write(top + offset, left + 1, f" {text} " if self._held(part) else f"{text} ", roles)

    def _owns(self, y: int, number: int, left: int, right: int) -> bool:
        upper, lower = self.owners[y]
        return all(owner == number for owner in (*upper[left:right], *lower[left:right]))

    def _write(self, y: int, x: int, text: str, roles: str) -> None:
        for at, char in enumerate(text, x):
            ground = "" if "bg:" in roles else self.grounds[at]
            self.cells[y][at] = (char, roles + ground)


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
        notes.append(f"slice {number}")
    problem = facts.problems.get(part.buffer, "")
    if problem:
        notes[:0] = [problem if cell_len(problem) + 2 < width else "misplaced"]
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
        spans += [("■", "bad"), (" misplaced  ", "bad")]
    return spans
