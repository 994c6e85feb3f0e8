"""DDR of the whole program on the memory screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_program import unfinished_workspace
from textual.pilot import Pilot

from app.explorer import Explorer
from app.screens.explore import ExploreScreen
from app.screens.memory import MemoryScreen
from app.widgets.inspector import Inspector
from app.widgets.lines import LineView, plain
from app.widgets.memory_view import MemoryMap, MemoryTable
from app.widgets.program_memory import ProgramTable
from app.workspace import Workspace

SIZES = [(80, 24), (120, 40), (200, 60)]


def shown(view: LineView) -> list[str]:
    return [plain(view.line(i)) for i in range(view.line_count())]


async def settle(pilot: Pilot[None]) -> None:
    for _ in range(3):
        await pilot.pause(0.02)


async def memory_screen(pilot: Pilot[None]) -> MemoryScreen:
    await settle(pilot)
    await pilot.press("2")
    await settle(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, MemoryScreen)
    return screen


@pytest.mark.parametrize("size", SIZES)
async def test_w_shows_the_arenas_of_every_layer(work: Workspace, size: tuple[int, int]) -> None:
    async with Explorer(work).run_test(size=size) as pilot:
        # GIVEN the memory of a module WHEN w is pressed
        screen = await memory_screen(pilot)
        await pilot.press("w")
        await settle(pilot)
        table = screen.query_one(ProgramTable)
        # THEN the table of the program has its place and the keys
        assert table.display
        assert table.has_focus
        assert table.size.height >= 8
        assert not screen.query_one("#views").display
        lines = shown(table)
        assert [line.split()[1] for line in lines if "▾" in line] == ["coeff", "io", "neuron"]
        # AND every layer its weights and io, with address, bytes and a bar
        layers = [line.split() for line in lines if line.split()[0] in ("0", "1", "2")]
        assert [words[0] for words in layers] == ["0", "1", "2"] * 2
        assert all(words[1].startswith("0x1_0") for words in layers)
        assert all("█" in words[-1] for words in layers)
        assert max(map(len, lines)) <= size[0]


async def test_the_cursor_tells_what_an_arena_holds(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(120, 40)) as pilot:
        screen = await memory_screen(pilot)
        await pilot.press("w", "a", "a", "down")
        await settle(pilot)
        # THEN one kind of arena is listed, and the second of them is layer 0's
        table = screen.query_one(ProgramTable)
        assert [line.split()[1] for line in shown(table) if "▾" in line] == ["io"]
        details = screen.query_one("#details", Inspector)
        assert details.border_title == "io of layer 0"
        text = "\n".join(shown(details))
        assert "KV 16.6 kB" in text
        assert "block_0 block_cache_0" in text
        assert "as block_0 needs" in text


@pytest.mark.parametrize("key", ["w", "escape"])
async def test_w_and_esc_go_back_to_the_module(work: Workspace, key: str) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        screen = await memory_screen(pilot)
        before = shown(screen.query_one("#details", Inspector))
        await pilot.press("w")
        await settle(pilot)
        assert shown(screen.query_one("#details", Inspector)) != before
        await pilot.press(key)
        await settle(pilot)
        assert pilot.app.screen is screen
        assert screen.query_one(MemoryTable).has_focus
        assert not screen.query_one(ProgramTable).display
        assert shown(screen.query_one("#details", Inspector)) == before
        # AND Esc once more leaves the screen
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(pilot.app.screen, ExploreScreen)


async def test_the_map_key_leaves_the_program(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        screen = await memory_screen(pilot)
        await pilot.press("w", "t")
        await settle(pilot)
        assert screen.query_one(MemoryMap).has_focus
        assert not screen.query_one(ProgramTable).display


async def test_while_modules_are_compiled_it_says_so(tmp_path: Path) -> None:
    async with Explorer(unfinished_workspace(tmp_path)).run_test(size=(80, 24)) as pilot:
        screen = await memory_screen(pilot)
        await pilot.press("w")
        await settle(pilot)
        table = screen.query_one(ProgramTable)
        assert table.line_count() == 0
        assert "when all modules are compiled: 2 of" in table.empty
