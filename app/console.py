"""What the commands print for people: tables with aligned columns and units, messages, progress.

Data goes to stdout, everything else to stderr, so that output can be piped. JSON is printed by `emit`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from app.session import Listener

Cell = str | Text
Column = tuple[str, Literal["left", "right"]]

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


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], title: str = "") -> Table:
    """Rows under headings, numbers to the right."""
    found = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        title=title or None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    for heading, justify in columns:
        found.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        found.add_row(*row)
    return found


def left(*headings: str) -> list[Column]:
    """Columns of text."""
    return [(heading, "left") for heading in headings]


def right(*headings: str) -> list[Column]:
    """Columns of numbers."""
    return [(heading, "right") for heading in headings]


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
