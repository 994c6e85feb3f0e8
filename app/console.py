"""What the commands print for people: tables with aligned columns and units, messages, progress.

Data goes to stdout, everything else to stderr, so that output can be piped. JSON is printed by `emit`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from app.session import Listener

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column of a table. Its cells stay whole, on one line, unless it `wraps`, as remarks do.

    rank: columns with larger ones are left out first where the terminal is too narrow; 0 always stays. least: cells
    below which a column that wraps is not worth showing.
    """

    heading: str
    justify: Literal["left", "right"] = "left"
    rank: int = 0
    wraps: bool = False
    least: int = 0


PIPED_WIDTH = 200
"""Columns of a table that does not go to a terminal: nothing is folded that a later tool wants on one line."""


class _Output(Console):
    """A console that leaves it to the command line what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    """Where data goes."""
    console = _Output(file=sys.stdout, highlight=False, soft_wrap=False)
    return console if console.is_terminal else _Output(file=sys.stdout, highlight=False, width=PIPED_WIDTH)


def messages() -> Console:
    """Where messages go."""
    return Console(file=sys.stderr, highlight=False)


def emit(value: Any) -> None:
    """Print JSON, which is UTF-8 in every locale."""
    import msgspec

    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], title: str = "") -> RenderableType:
    """Rows under headings, numbers to the right, without the columns for which a terminal has no space."""
    return _Fitting(columns, rows, title)


@dataclass(frozen=True)
class _Fitting:
    """A table that takes its form when the width is known."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(range(len(self.columns)))
        widths = [self._width(console, options, index) for index in kept]
        # what is piped is for tools: it has all columns
        while console.is_terminal and self._taken(widths, kept) > options.max_width:
            last = max(kept, key=lambda index: self.columns[index].rank)
            if not self.columns[last].rank:
                break
            kept.remove(last)
        yield self._table(kept)

    def _width(self, console: Console, options: ConsoleOptions, index: int) -> int:
        """Cells that a column takes at the least."""
        column = self.columns[index]
        unlimited = options.update(max_width=_UNLIMITED)
        cells = [column.heading, *(row[index] for row in self.rows)]
        sizes = [Measurement.get(console, unlimited, cell) for cell in cells]
        return max(column.least, *(size.minimum if column.wraps else size.maximum for size in sizes))

    @staticmethod
    def _taken(widths: Sequence[int], kept: Sequence[int]) -> int:
        return sum(widths[index] for index in kept) + _GAP * (len(kept) - 1)

    def _table(self, kept: Sequence[int]) -> Table:
        found = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            header_style="dim",
        )
        for column in (self.columns[index] for index in kept):
            found.add_column(
                column.heading,
                justify=column.justify,
                no_wrap=not column.wraps,
                overflow="fold" if column.wraps else "ellipsis",
                min_width=column.least or None,
            )
        for row in self.rows:
            found.add_row(*(row[index] for index in kept))
        return found


_GAP = 3
"""Cells between two columns."""

_UNLIMITED = 100_000
"""More cells than any table takes."""


def left(*headings: str, rank: int = 0) -> list[Column]:
    """Columns of names."""
    return [Column(heading, rank=rank) for heading in headings]


def right(*headings: str, rank: int = 0) -> list[Column]:
    """Columns of numbers."""
    return [Column(heading, "right", rank) for heading in headings]


def wrapping(*headings: str, rank: int = 0, least: int = 0) -> list[Column]:
    """Columns of remarks, which go on in the next line."""
    return [Column(heading, rank=rank, wraps=True, least=least) for heading in headings]


@contextmanager
def compile_progress(total: int) -> Iterator[Listener]:
    """A bar over the modules on a terminal's stderr, gone when done; a listener for `Session.compile`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from engine.worker import ModuleFailed, ModuleFinished, PassStarted

    progress = Progress(
        TextColumn("compiling"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", style="dim"),
        console=messages(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = progress.add_task("", total=total)

    def listen(event: object) -> None:
        if isinstance(event, PassStarted):
            progress.update(task, description=f"{event.module} · {event.pass_name}")
        elif isinstance(event, (ModuleFinished, ModuleFailed)):
            progress.advance(task)

    with progress:
        yield listen


@contextmanager
def byte_progress(label: str) -> Iterator[Any]:
    """A bar over bytes on a terminal's stderr; a function of (done, total)."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    progress = Progress(
        TextColumn(label),
        BarColumn(bar_width=24),
        DownloadColumn(),
        console=messages(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = progress.add_task("", total=None)
    with progress:
        yield lambda done, total: progress.update(task, completed=done, total=total)
