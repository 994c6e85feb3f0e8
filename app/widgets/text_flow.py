"""Running text made of pieces with roles, wrapped to the panel."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from app.printable import printable
from app.widgets.lines import Line, LineView, Span


class TextFlow(LineView):
    """A prompt and what a model makes of it."""

    SCOPES = ("list",)
    HELP = """
The prompt (muted) and the text that the compiled program generates, token by token. The marked token is the one that
the cursor of the step list is on.
"""
    EMPTY = "i writes a prompt; the compiled program continues it"

    def __init__(self, *, id: str | None = None, title: str = "") -> None:
        super().__init__(id=id, title=title)
        self.show_cursor = False
        self._pieces: list[Span] = []
        self._lines: list[list[Span]] = []

    def show(self, pieces: Sequence[Span]) -> None:
        """Show text; new text is scrolled to."""
        self._pieces = list(pieces)
        self._lines = wrap(self._pieces, self.inner_width - 2) if self._pieces else []
        self.reload(max(0, len(self._lines) - 1))

    def on_resize(self) -> None:
        """Wrap anew."""
        self.show(self._pieces)

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, index: int) -> Line:
        return [(" ", ""), *self._lines[index]]

    def copy_text(self, index: int) -> str:
        """All of it."""
        return "".join(text for text, _ in self._pieces)

    def move_by(self, amount: int) -> None:
        """There is no cursor: the text itself moves."""
        self.scroll_to(y=self.scroll_offset.y + amount, animate=False, immediate=True)


def wrap(pieces: Sequence[Span], width: int) -> list[list[Span]]:
    """Lines of at most `width` cells, broken at spaces where there are any; roles are kept.

    What has no cell of its own is shown (`app.printable`), and a tab is the arrow ⇥.
    """
    letters: list[Span] = []
    before = ""
    for text, roles in pieces:
        shown = printable(text.replace("\t", "⇥"), keep="\n", before=before)
        letters += [(letter, roles) for letter in shown]
        before = text or before
    lines: list[list[Span]] = []
    line: list[Span] = []
    used = 0
    for letter, roles in letters:
        if letter == "\n":
            lines.append(line)
            line, used = [], 0
            continue
        size = cell_len(letter)
        if used + size > max(8, width):
            cut = next((i for i in range(len(line) - 1, 0, -1) if line[i][0] == " "), -1)
            rest = line[cut + 1 :] if cut > 0 else []
            lines.append(line[: cut + 1] if cut > 0 else line)
            line = rest
            used = sum(cell_len(text) for text, _ in line)
        line.append((letter, roles))
        used += size
    lines.append(line)
    return [_joined(line) for line in lines]


def _joined(line: Sequence[Span]) -> list[Span]:
    joined: list[Span] = []
    for text, roles in line:
        if joined and joined[-1][1] == roles:
            joined[-1] = (joined[-1][0] + text, roles)
        else:
            joined.append((text, roles))
    return joined
