"""The explorer: the Textual app that opens a model, compiles it in a thread and owns the screens."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App
from textual.screen import Screen

from app.actions import SCREENS, bindings
from app.screens.base import WorkScreen
from app.screens.explore import ExploreScreen
from app.screens.memory import MemoryScreen
from app.theme import DARK, THEMES
from app.workspace import Workspace


class Explorer(App[None]):
    """The app. `workspace`: what is open; None asks for a model first."""

    TITLE = "tpuscope"
    BINDINGS = bindings("app")
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        self.work = workspace

    def on_mount(self) -> None:
        """The first screen."""
        for screen in (ExploreScreen(self.work), MemoryScreen(self.work)):
            self.install_screen(screen, screen.NAME)
        self.push_screen("explore")

    def action_show_screen(self, name: str) -> None:
        """Another screen."""
        self.switch_screen(name)
