"""The line at the bottom: what it names when there is little room."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from app.explorer import Explorer
from app.screens.base import WorkScreen
from app.widgets.bars import KeyBar
from app.widgets.lines import plain
from app.widgets.module_tree import ModuleTree
from app.workspace import Workspace


def bar(pilot: Pilot[None]) -> str:
    """The text of the key bar."""
    screen = pilot.app.screen
    assert isinstance(screen, WorkScreen)
    return plain(screen.query_one(KeyBar).spans())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
async def test_help_and_quit_are_named_on_every_screen(work: Workspace, width: int) -> None:
    async with Explorer(work).run_test(size=(width, 30)) as pilot:
        await pilot.pause()
        for key in "12345":
            await pilot.press(key)
            await pilot.pause()
            line = bar(pilot)
            assert line.rstrip().endswith("? help  q quit"), key
            assert len(line) == width, key


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (80, "1 explore 2 mem 3 sim 4 KV 5 run"),
        (100, "1 explore  2 memory  3 simulate  4 KV  5 run"),
        (120, "1 explore  2 memory  3 simulate  4 KV  5 run"),
    ],
)
async def test_screens_have_names(work: Workspace, width: int, names: str) -> None:
    async with Explorer(work).run_test(size=(width, 30)) as pilot:
        await pilot.pause()
        assert names in bar(pilot)


async def test_keys_of_the_focused_panel_stand_first(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        pilot.app.screen.query_one(ModuleTree).focus()
        await pilot.pause()
        line = bar(pilot)
        assert line.index("space fold") < line.index("[ ] pass")


async def test_what_is_written_can_be_clicked(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for text, shown in (("3 sim", "simulate"), ("4 KV", "kv")):
            await pilot.click(KeyBar, offset=(bar(pilot).index(text) + 1, 0))
            await pilot.pause()
            assert shown == pilot.app.screen.NAME  # type: ignore[attr-defined]
        await pilot.click(KeyBar, offset=(bar(pilot).index("? help"), 0))
        await pilot.pause()
        assert pilot.app.screen.__class__.__name__ == "HelpScreen"
