"""Tables of aligned columns on a virtual list; columns that do not fit are left out, the least important first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from app.printable import printable
from app.widgets.lines import Line, LineView, Span, plain

Cell = str | Span | Line | Callable[[int], Line]
"""Text, a span, spans, or a function of the cell's width (for bars, in the last stretching column)."""


@dataclass(frozen=True)
class Column:
    """A column. right: numbers align right. rank: larger ones go first when space is short (0 always stays).

    stretch: takes the space that is left and is cut to it. cap: cells at most (0: no limit). least: cells below which a
    stretching column is not worth showing (0: as wide as its contents, up to a limit).
    """

    title: Cell
    right: bool = False
    rank: int = 0
    stretch: bool = False
    cap: int = 0
    least: int = 0


@dataclass(frozen=True)
class Row:
    """Cells in the order of the columns; `key` says what the row is about.

    head: a group title without a cursor; a function among its cells fills the rest of the line.
    """

    cells: tuple[Cell, ...]
    key: object = None
    head: bool = False


def spans(cell: Cell) -> list[Span]:
    """A cell as spans that can be drawn; one that draws itself has none before its width is known."""
    if callable(cell):
        return []
    if isinstance(cell, str):
        return [(printable(cell), "")]
    if isinstance(cell, tuple) and len(cell) == 2 and isinstance(cell[0], str):
        return [(printable(cell[0]), str(cell[1]))]
    return [(printable(str(text)), str(role)) for text, role in cell]


def width_of(line: Line) -> int:
    """Cells of a line on the screen."""
    return sum(cell_len(printable(text)) for text, _ in line)


def fitted(line: Line, width: int, right: bool = False) -> list[Span]:
    """The line cut or padded to a width; a cut ends with …"""
    line = [(printable(text), roles) for text, roles in line]
    length = width_of(line)
    if length <= width:
        gap = (" " * (width - length), "")
        return [gap, *line] if right else [*line, gap]
    result: list[Span] = []
    left = width - 1
    for text, roles in line:
        while text and cell_len(text) > left:
            text = text[: max(0, left)] if cell_len(text[: max(0, left)]) <= left else text[:-1]
            if not left:
                break
        result.append((text, roles))
        left -= cell_len(text)
        if left <= 0:
            break
    return [*result, ("…", "faint")] if width > 0 else []


class TableView(LineView):
    """A table with a head, a cursor and rows that know what they are about."""

    GAP = "  "

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        id: str | None = None,
        classes: str | None = None,
        title: str = "",
        head: bool = True,
    ) -> None:
        super().__init__(id=id, classes=classes, title=title)
        self.columns = tuple(columns)
        self.rows: list[Row] = []
        self.head = head
        self._widths: list[int] = []
        self._fit: tuple[int, ...] = ()
        self._fit_for = -1

    def show(self, rows: Sequence[Row], columns: Sequence[Column] | None = None, keep: bool = True) -> None:
        """Show rows; the cursor stays on the row with the same key, or goes to the first."""
        key = self.key if keep else None
        self.rows = list(rows)
        if columns is not None:
            self.columns = tuple(columns)
        self._widths = self._natural()
        self._fit_for = -1
        wanted = next((i for i, row in enumerate(self.rows) if key is not None and row.key == key), 0)
        self.reload(wanted)

    @property
    def key(self) -> object:
        """What the cursor's row is about."""
        return self.rows[self.cursor].key if self.cursor < len(self.rows) else None

    def move_to_key(self, key: object, announce: bool = False) -> bool:
        """Put the cursor on the row about `key`; False when there is none."""
        for index, row in enumerate(self.rows):
            if row.key == key and not row.head:
                self.move_to(index, announce)
                return True
        return False

    def _natural(self) -> list[int]:
        widths = [width_of(spans(column.title)) if self.head else 0 for column in self.columns]
        for row in self.rows:
            if row.head:
                continue
            for index, cell in enumerate(row.cells[: len(widths)]):
                widths[index] = max(widths[index], width_of(spans(cell)))
        return [
            max(column.least, min(width, column.cap) if column.cap else width)
            for width, column in zip(widths, self.columns, strict=True)
        ]

    def on_resize(self) -> None:
        """Fit the columns anew."""
        self._fit_for = -1
        self.repaint()

    def _least(self, index: int, natural: int) -> int:
        """Cells below which a column is not worth showing."""
        column = self.columns[index]
        if not column.stretch:
            return natural
        if column.least:
            return column.least
        return max(10, min(natural, 18)) if column.rank else min(natural, 18)

    def _fitted_widths(self) -> tuple[int, ...]:
        """Width of every column in the panel; -1 for those left out."""
        available = self.inner_width - 1
        if self._fit_for == available:
            return self._fit
        # a scroll bar that comes or goes changes the width without a resize
        self._fit_for = available
        widths = list(self._widths)
        kept = set(range(len(widths)))

        def total() -> int:
            return sum(self._least(i, widths[i]) for i in kept) + len(self.GAP) * max(0, len(kept) - 1)

        while total() > available and any(self.columns[i].rank for i in kept):
            kept.remove(max(kept, key=lambda i: (self.columns[i].rank, i)))
        gaps = len(self.GAP) * max(0, len(kept) - 1)
        left = available - gaps - sum(widths[i] for i in kept if not self.columns[i].stretch)
        stretchy = sorted(i for i in kept if self.columns[i].stretch)
        for position, i in enumerate(stretchy):
            last = position == len(stretchy) - 1
            widths[i] = max(6, left) if last else min(widths[i], max(6, left - 8))
            left -= widths[i]
        self._fit = tuple(width if i in kept else -1 for i, width in enumerate(widths))
        return self._fit

    def _layout(self, cells: Sequence[Cell], role: str = "") -> list[Span]:
        line: list[Span] = []
        for cell, column, width in zip(cells, self.columns, self._fitted_widths(), strict=False):
            if width < 0:
                continue
            if line:
                line.append((self.GAP, ""))
            content = list(cell(width)) if callable(cell) else spans(cell)
            if role:
                content = [(text, role) for text, _ in content]
            line += fitted(content, width, column.right)
        return [(" ", ""), *line]

    def line_count(self) -> int:
        return len(self.rows)

    def pinned(self) -> Sequence[Line]:
        return [self._layout([c.title for c in self.columns], "muted")] if self.head and self.rows else ()

    def selectable(self, index: int) -> bool:
        return not self.rows[index].head

    def line(self, index: int) -> Line:
        row = self.rows[index]
        if row.head:
            line = [(" ", ""), *(span for cell in row.cells for span in spans(cell))]
            room = self.inner_width - width_of(line)
            for cell in row.cells:
                line += list(cell(room)) if callable(cell) else []
            return fitted(line, self.inner_width)
        return self._layout(row.cells)

    def search_text(self, index: int) -> str:
        return " ".join(plain(spans(cell)) for cell in self.rows[index].cells)

    def copy_text(self, index: int) -> str:
        return "  ".join(plain(spans(cell)).strip() for cell in self.rows[index].cells)
