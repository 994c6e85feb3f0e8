"""How the screens look, at 80x24 and 120x40. After a wanted change: `pytest tests/app --snapshot-update`, and look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sample_program import PASSES, unfinished_workspace
from textual.pilot import Pilot
from textual.widgets import Input

from app import workspace
from app.explorer import Explorer
from app.screens import open_model
from app.screens.open_model import Choice
from app.screens.simulate import SimulateScreen
from app.workspace import Workspace

SMALL, LARGE = (80, 24), (120, 40)
Compare = Callable[..., bool]
Before = Callable[[Pilot[None]], Awaitable[None]]
_SLOW = ("3", "t")
"""Keys behind which the engine's thread works: the next key waits for it."""

pytest.importorskip("pytest_textual_snapshot")


def keys(*names: str) -> Before:
    """Press keys once the screen is there and the engine's thread is done."""

    async def run(pilot: Pilot[None]) -> None:
        await _quiet(pilot)
        for name in names:
            await pilot.press(name)
            if name in _SLOW:
                await _quiet(pilot)
        await _quiet(pilot)

    return run


async def _quiet(pilot: Pilot[None]) -> None:
    app = pilot.app
    assert isinstance(app, Explorer)
    done = asyncio.Event()
    app.jobs.submit(lambda: None, lambda _: done.set(), lambda _: None)
    await done.wait()
    await pilot.pause()
    if isinstance(app.screen, SimulateScreen) and app.work is not None and app.work.compilation.complete:
        while app.screen.cost is None:
            await pilot.pause(0.02)
        await pilot.pause()


STEP = "right_square_bracket"


class TestExplore:
    def test_ir(self, snap_compare: Compare, work: Workspace) -> None:
        assert snap_compare(Explorer(work), terminal_size=SMALL, run_before=keys())

    def test_diff(self, snap_compare: Compare, work: Workspace) -> None:
        assert snap_compare(Explorer(work), terminal_size=LARGE, run_before=keys(STEP, STEP, "d"))

    def test_side_by_side(self, snap_compare: Compare, work: Workspace) -> None:
        assert snap_compare(Explorer(work), terminal_size=(160, 30), run_before=keys(STEP, STEP, "D"))

    def test_light_theme(self, snap_compare: Compare, work: Workspace) -> None:
        assert snap_compare(Explorer(work), terminal_size=SMALL, run_before=keys(STEP, STEP, "ctrl+t"))

    def test_compiling(self, snap_compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        work = unfinished_workspace(tmp_path)
        monkeypatch.setattr(Workspace, "elapsed", 0.8)
        monkeypatch.setattr(workspace, "PASS_NAMES", PASSES)
        assert snap_compare(Explorer(work), terminal_size=SMALL, run_before=keys())


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "120x40"])
class TestOtherScreens:
    def test_memory(self, snap_compare: Compare, work: Workspace, size: tuple[int, int]) -> None:
        assert snap_compare(Explorer(work), terminal_size=size, run_before=keys("2"))

    def test_simulate(self, snap_compare: Compare, work: Workspace, size: tuple[int, int]) -> None:
        assert snap_compare(Explorer(work), terminal_size=size, run_before=keys("3"))

    def test_timeline(self, snap_compare: Compare, work: Workspace, size: tuple[int, int]) -> None:
        run = keys("3", "down", "t", "plus", "plus", "b")
        assert snap_compare(Explorer(work), terminal_size=size, run_before=run)

    def test_kv(self, snap_compare: Compare, work: Workspace, size: tuple[int, int]) -> None:
        assert snap_compare(Explorer(work), terminal_size=size, run_before=keys("4"))


class TestMap:
    def test_neuron_arena(self, snap_compare: Compare, work: Workspace) -> None:
        assert snap_compare(Explorer(work), terminal_size=SMALL, run_before=keys("2", "t", "right"))


class TestOverlays:
    def test_help(self, snap_compare: Compare, work: Workspace) -> None:
        assert snap_compare(Explorer(work), terminal_size=SMALL, run_before=keys("question_mark"))

    def test_export(self, snap_compare: Compare, work: Workspace) -> None:
        assert snap_compare(Explorer(work), terminal_size=SMALL, run_before=keys("e"))

    def test_open(self, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        demos = [Choice("demo", "tpuscope-demo", "generates text", "demo")]
        monkeypatch.setattr(open_model, "demo_choices", lambda: demos)

        async def fill(pilot: Pilot[None]) -> None:
            await _quiet(pilot)
            for entry in pilot.app.screen.query(Input):
                entry.cursor_blink = False
            await pilot.press(*"nowhere", "enter")
            await _quiet(pilot)

        assert snap_compare(Explorer(), terminal_size=SMALL, run_before=fill)
