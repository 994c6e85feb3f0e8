"""The command palette: every action of the registry, wherever it works."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.visual import VisualType

from app.actions import ACTIONS, SCREENS, Action
from app.screens.base import WorkScreen
from app.theme import THEMES

if TYPE_CHECKING:
    from app.explorer import Explorer


class Actions(Provider):
    """Actions of this screen first, then those of the others, then themes."""

    def _commands(self) -> list[tuple[str, str, Callable[[], object]]]:
        here = self.screen.NAME if isinstance(self.screen, WorkScreen) else ""
        ordered = sorted(ACTIONS, key=lambda action: _rank(action, here))
        app = cast("Explorer", self.app)
        found: list[tuple[str, str, Callable[[], object]]] = []
        for action in ordered:
            if action.name == "command_palette":
                continue
            place = f"{action.scope}: " if action.scope in SCREENS and action.scope != here else ""
            title = f"{place}{action.about}"
            found.append((title, action.all_keys, partial(app.run_registered, action)))
        themes = ((t.name, f"Theme: {t.name.removeprefix('tpuscope-')}") for t in THEMES)
        return [*found, *((title, "", partial(setattr, app, "theme", name)) for name, title in themes)]

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for title, keys, run in self._commands():
            yield DiscoveryHit(_shown(Content(title), keys), run, text=title)

    async def search(self, query: str) -> Hits:
        """Those that match."""
        matcher = self.matcher(query)
        for title, keys, run in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, _shown(matcher.highlight(title), keys), run, text=title)


def _shown(title: VisualType, keys: str) -> Content:
    """Keys and title on one line."""
    text = title if isinstance(title, Content) else Content(str(title))
    return Content.assemble((f"{keys:<14}", "$primary"), text)


def _rank(action: Action, here: str) -> int:
    if action.scope == here:
        return 0
    return {"app": 1, "module": 2, "list": 3}.get(action.scope, 4)
