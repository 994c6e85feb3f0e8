"""Toasts: the same text stands there once, and what is no longer true goes."""

from __future__ import annotations

from textual.pilot import Pilot

from app.explorer import Explorer
from app.screens.explore import ExploreScreen
from app.workspace import Workspace


def texts(pilot: Pilot[None]) -> list[str]:
    """What the toasts say."""
    return [toast.message for toast in pilot.app._notifications]


async def test_the_same_warning_stands_once(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        # WHEN a search without a match is repeated
        await pilot.press("slash", *"a[x", "enter", "n", "n")
        await pilot.pause()
        assert texts(pilot) == ["no match for 'a[x'"]
        # AND another warning replaces it
        await pilot.press("slash", *"yy", "enter")
        await pilot.pause()
        assert texts(pilot) == ["no match for 'a[xyy'"]


async def test_moving_on_takes_warnings_away(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("slash", *"a16", "enter")
        await pilot.pause()
        assert texts(pilot)
        await pilot.press("down")
        await pilot.pause()
        assert not texts(pilot)


async def test_a_success_takes_errors_away(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        screen = pilot.app.screen
        assert isinstance(screen, ExploreScreen)
        for text in ("disk full", "no such folder"):
            screen.notify(text, severity="error")
            await pilot.pause()
        # GIVEN two errors, which stay beside each other and under a warning
        screen.notify("look out", severity="warning")
        await pilot.pause()
        assert texts(pilot) == ["disk full", "no such folder", "look out"]
        # WHEN something works
        screen.notify("written")
        await pilot.pause()
        assert texts(pilot) == ["written"]
