"""One line at the bottom in which the user answers a question: a search, a place to go to, a prompt."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from app.widgets.field import Field


class AskBar(Horizontal):
    """A label and an input, shown while there is a question."""

    DEFAULT_CSS = """
    AskBar {
        height: 1; display: none; background: $panel;
        &.-open { display: block; }
        & Label { width: auto; padding: 0 1; color: $primary; text-style: bold; }
        & Input { width: 1fr; }
        & .hint { color: $text-muted; }
    }
    """

    class Changed(Message):
        """The text changed; `done` when Enter was pressed."""

        def __init__(self, kind: str, text: str, done: bool) -> None:
            super().__init__()
            self.kind = kind
            self.text = text
            self.done = done

    class Dropped(Message):
        """Esc was pressed."""

        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind

    def __init__(self) -> None:
        super().__init__()
        self.kind = ""

    def compose(self) -> ComposeResult:
        yield Label("", id="ask-label", markup=False)
        yield Field(id="ask-input", select_on_focus=False)
        yield Label("", id="ask-hint", classes="hint", markup=False)

    @property
    def is_open(self) -> bool:
        """A question is being asked."""
        return self.has_class("-open")

    def ask(self, kind: str, hint: str = "", text: str = "") -> None:
        """Open with a question."""
        self.kind = kind
        self.query_one("#ask-label", Label).update(kind)
        self.query_one("#ask-hint", Label).update(hint)
        entry = self.query_one(Input)
        with entry.prevent(Input.Changed):
            entry.value = text
        entry.cursor_position = len(text)
        self.add_class("-open")
        entry.focus()

    def close(self) -> None:
        """Put it away."""
        self.remove_class("-open")

    def on_input_changed(self, event: Input.Changed) -> None:
        """The text so far."""
        event.stop()
        if self.is_open:
            self.post_message(self.Changed(self.kind, event.value, False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The answer."""
        event.stop()
        self.post_message(self.Changed(self.kind, event.value, True))

    def on_key(self, event: events.Key) -> None:
        """Esc drops the question."""
        if event.key == "escape":
            event.stop()
            self.post_message(self.Dropped(self.kind))
