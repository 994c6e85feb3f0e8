"""`z`: one panel fills the body, whatever height and width it has beside the others."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from app.explorer import Explorer
from app.screens.base import WorkScreen
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.inspector import Inspector
from app.widgets.lines import LineView
from app.widgets.lists import PassList
from app.workspace import Workspace

SIZES = [(80, 24), (200, 60)]
PANELS = [
    ("1", "#modules"),
    ("1", "#passes"),
    ("1", "#ir"),
    ("1", "#inspector"),
    ("2", "#table"),
    ("2", "#details"),
    ("3", "OpTable"),
    ("4", "#layers"),
    ("4", "#details"),
    ("5", "TextFlow"),
    ("5", "#steps"),
]


async def opened(pilot: Pilot[None], key: str) -> WorkScreen:
    """The screen of a number key, laid out."""
    await pilot.pause()
    await pilot.press(key)
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, WorkScreen)
    return screen


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "200x60"])
async def test_a_zoomed_panel_fills_the_body(work: Workspace, size: tuple[int, int]) -> None:
    async with Explorer(work).run_test(size=size) as pilot:
        for key, panel in PANELS:
            screen = await opened(pilot, key)
            view = screen.query(panel).first(LineView)
            view.focus()
            await pilot.pause()
            before = view.region
            # WHEN it is zoomed THEN it has all lines and columns between title bar and key bar
            await pilot.press("z")
            await pilot.pause()
            width, height = size
            assert view.region == (0, 1, width, height - 2), panel
            assert screen.query_one(TitleBar).region == (0, 0, width, 1)
            assert screen.query_one(KeyBar).region == (0, height - 1, width, 1)
            assert "z back" in "".join(text for text, _ in screen.query_one(KeyBar).spans())
            # AND esc puts it back where it was
            await pilot.press("escape")
            await pilot.pause()
            assert view.region == before, panel
            assert pilot.app.screen is screen


async def test_going_to_another_panel_ends_the_zoom(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot, "1")
        # GIVEN the zoomed list of passes WHEN enter goes on to the IR
        passes = screen.query_one(PassList)
        passes.focus()
        await pilot.press("z", "enter")
        await pilot.pause()
        # THEN all panels are there again
        assert screen.zoomed is None
        assert passes.display
        assert screen.query_one("#ir").has_focus


async def test_a_question_does_not_end_the_zoom(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, "1")
        inspector = screen.query_one(Inspector)
        inspector.focus()
        await pilot.press("z", "slash", *"eps", "enter")
        await pilot.pause()
        assert screen.zoomed is inspector
        assert inspector.has_focus
