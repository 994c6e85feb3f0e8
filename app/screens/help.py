"""Help for the focused panel: what it shows, and its keys; made from the panel's own text and the action registry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from textual import on
from textual.app import ComposeResult
from textual.screen import ModalScreen

from app.actions import Action, of_scopes
from app.theme import ROLES
from app.widgets.lines import Line, LineView, Span
from app.widgets.text_flow import wrap

SCOPE_TITLES = {
    "app": "everywhere",
    "module": "module and layer",
    "tree": "in the module tree",
    "list": "in every list and text",
    "explore": "on the explore screen",
    "memory": "on the memory screen",
    "simulate": "on the simulate screen",
    "timeline": "in the timeline",
    "kv": "on the KV screen",
    "run": "on the run screen",
}


def key_lines(scopes: Sequence[str]) -> Iterator[Line]:
    """The keys of the scopes, scope by scope; not those that mean something else in the focused panel."""
    groups = [
        (scope, [action for action in of_scopes([scope]) if not _hidden(action, scopes)]) for scope in scopes
    ]
    wide = max((len(action.all_keys) for _, actions in groups for action in actions), default=0)
    for scope, actions in groups:
        if actions:
            yield []
            yield [(SCOPE_TITLES.get(scope, scope), "heading bold")]
            yield from (_key_line(action, wide) for action in actions)


def _hidden(action: Action, scopes: Sequence[str]) -> bool:
    """Whether the module tree has other uses for all keys of an action of every list."""
    if action.scope != "list" or "tree" not in scopes:
        return False
    return set(action.keys) <= {key for own in of_scopes(["tree"]) for key in own.keys}


def _key_line(action: Action, wide: int) -> Line:
    return [(f"  {action.all_keys:<{wide}}  ", "key"), (action.about, "")]


def text_lines(text: str, width: int) -> Iterator[Line]:
    """A text with **bold** and `marked` words as wrapped lines; empty lines part paragraphs."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield from wrap(_marked(" ".join(paragraph.split())), width)
        yield []


def _marked(text: str) -> list[Span]:
    spans: list[Span] = []
    for part in re.split(r"(\*\*.+?\*\*|`.+?`)", text):
        if part.startswith("**"):
            spans.append((part[2:-2], "key bold"))
        elif part.startswith("`"):
            word = part[1:-1]
            spans.append((word, word.lower() if word.lower() in ROLES else "kv"))
        elif part:
            spans.append((part, ""))
    return spans


class HelpText(LineView):
    """The help's lines."""

    def __init__(self, title: str, text: str, scopes: Sequence[str]) -> None:
        super().__init__(id="help", title=f"help: {title}")
        self.border_subtitle = "↑ ↓ scroll · esc closes"
        self.show_cursor = False
        self._text, self._scopes = text, tuple(scopes)
        self._lines: list[Line] = []

    def on_resize(self) -> None:
        """Wrap anew."""
        self._lines = [*text_lines(self._text, self.inner_width - 4), *key_lines(self._scopes)]
        while self._lines and not self._lines[0]:
            self._lines.pop(0)
        self.reload(0)

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, index: int) -> Line:
        return [("  ", ""), *self._lines[index]]

    def move_by(self, amount: int) -> None:
        """There is no cursor: the text itself moves."""
        self.scroll_to(y=self.scroll_offset.y + amount, animate=False, immediate=True)

    def action_maximise(self) -> None:
        """It is as large as it gets."""


class HelpScreen(ModalScreen[None]):
    """A text over the screen; Esc, ? or q closes it."""

    BINDINGS = [("escape,question_mark,q", "close", "Close")]
    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        & HelpText { width: 90%; max-width: 96; height: 92%; background: $surface; }
    }
    """

    def __init__(self, title: str, text: str, scopes: Sequence[str]) -> None:
        super().__init__()
        self._content = (title, text, scopes)

    def compose(self) -> ComposeResult:
        yield HelpText(*self._content)

    @on(LineView.Asked)
    def not_here(self) -> None:
        """A help text is short enough to read."""

    def action_close(self) -> None:
        """Back to the panel."""
        self.dismiss()
