"""The memory screen counts ops as the command line does, and says when addresses are not final."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled import tiny_compilation
from sample_program import unfinished_workspace
from textual.pilot import Pilot

from app.explorer import Explorer
from app.screens.memory import MemoryScreen
from app.widgets.inspector import Inspector
from app.widgets.lines import LineView, plain
from app.widgets.memory_view import PROVISIONAL, MemoryMap, MemoryTable
from app.workspace import Workspace
from engine.tables import module_places
from engine.tpu.isa import Arena


def shown(view: LineView) -> list[str]:
    return [plain(view.line(i)) for i in range(view.line_count())]


async def memory_screen(pilot: Pilot[None]) -> MemoryScreen:
    await pilot.pause()
    await pilot.press("2")
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, MemoryScreen)
    return screen


async def test_ops_have_the_numbers_of_the_command_line(work: Workspace) -> None:
    # GIVEN the lifetimes that `memory` prints
    places = [p for p in module_places(work.compilation, work.module) if p.arena is Arena.NEURON]
    async with Explorer(work).run_test(size=(120, 40)) as pilot:
        screen = await memory_screen(pilot)
        table, details = screen.query_one(MemoryTable), screen.query_one(Inspector)
        # THEN table and details name the same ops
        lines = shown(table)[1:]
        for place, line in zip(places, lines, strict=False):
            assert f" {place.first}–{place.last} " in line
        assert any(f"op {places[0].first} to {places[0].last} " in line for line in shown(details))
        # AND so does the ruler over table and map
        start = min(place.first for place in places)
        assert f"op {start} " in plain(table.pinned()[0])
        await pilot.press("t")
        await pilot.pause()
        assert f"op {start} " in plain(screen.query_one(MemoryMap).pinned()[0])


async def test_addresses_are_called_provisional_before_the_merge(tmp_path: Path) -> None:
    # GIVEN a program of which one module failed: nothing is merged
    work = unfinished_workspace(tmp_path)
    done = next(s.name for s in work.specs if work.snapshots(s.name).snapshots[3:])
    work.select_module(done)
    async with Explorer(work).run_test(size=(120, 40)) as pilot:
        screen = await memory_screen(pilot)
        table = screen.query_one(MemoryTable)
        assert str(table.border_subtitle) == PROVISIONAL
        assert "provisional" in plain(table.pinned()[0])
        assert any("address" in line and PROVISIONAL in line for line in shown(screen.query_one(Inspector)))


async def test_merged_addresses_are_final(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(120, 40)) as pilot:
        screen = await memory_screen(pilot)
        assert not screen.query_one(MemoryTable).border_subtitle
        assert not any("provisional" in line for line in shown(screen.query_one(Inspector)))


async def test_lifetimes_have_room_at_80_columns(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        screen = await memory_screen(pilot)
        table = screen.query_one(MemoryTable)
        assert all(plain(table.line(i)).count("━") + plain(table.line(i)).count("┈") >= 12 for i in (1, 2))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_axis_counts_in_pages(work: Workspace, size: tuple[int, int]) -> None:
    async with Explorer(work).run_test(size=size) as pilot:
        screen = await memory_screen(pilot)
        await pilot.press("t")
        await pilot.pause()
        labels = [line[: MemoryMap.LEFT].strip() for line in shown(screen.query_one(MemoryMap))]
        numbers = [int(label.removesuffix(" KiB")) for label in labels if label]
        assert len(numbers) >= 2
        assert all(number % 4 == 0 for number in numbers)
        assert numbers == sorted(set(numbers))


async def test_esc_goes_from_local_memory_to_ddr_and_then_to_the_explorer() -> None:
    work = Workspace(tiny_compilation(), "tiny-qwen2")
    async with Explorer(work).run_test(size=(120, 40)) as pilot:
        screen = await memory_screen(pilot)
        await pilot.press("m")
        await pilot.pause()
        assert screen.has_class("-local")
        await pilot.press("escape")
        await pilot.pause()
        assert pilot.app.screen is screen
        assert not screen.has_class("-local")
        assert screen.query_one(MemoryTable).has_focus
        await pilot.press("escape")
        await pilot.pause()
        assert pilot.app.screen is not screen
