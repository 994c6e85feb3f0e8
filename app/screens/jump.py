"""Jump mode: every panel carries a letter; the letter goes there."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.events import Key
from textual.geometry import Offset
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

LETTERS = "asdfgqwertzxcvb"


class JumpScreen(ModalScreen[Widget | None]):
    """Letters over the panels."""

    DEFAULT_CSS = """
    JumpScreen {
        background: $background 40%;
        & Static { width: 5; height: 1; background: $accent; color: $background; text-style: bold; text-align: center; }
    }
    """

    def __init__(self, panels: list[Widget]) -> None:
        super().__init__()
        self.panels = dict(zip(LETTERS, panels, strict=False))

    def compose(self) -> ComposeResult:
        for letter, panel in self.panels.items():
            label = Static(letter)
            label.styles.position = "absolute"
            label.styles.offset = Offset(panel.region.x + 2, panel.region.y + min(1, panel.region.height - 1))
            yield label

    def on_key(self, event: Key) -> None:
        """The panel of the letter, or none."""
        event.stop()
        self.dismiss(self.panels.get(event.character or ""))
