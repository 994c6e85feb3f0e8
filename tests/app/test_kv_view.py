"""The KV screen: what fills and reads the cache, and that a line fits a small terminal."""

from __future__ import annotations

import asyncio

import pytest
from textual.pilot import Pilot

from app.explorer import Explorer
from app.screens.kv import KvList, KvScreen
from app.widgets.inspector import Inspector
from app.widgets.kv_view import KvPicture, KvUse, next_step, picture
from app.widgets.lines import Line, plain
from app.workspace import Workspace
from engine.tables import KvLayer, KvTable

TABLE = KvTable(
    rows=640,
    history_rows=512,
    row_bytes=384,
    cache_lengths=(512, 256, 128),
    layers=tuple(KvLayer(layer, 0, 0, {}, ()) for layer in range(30)),
)
MODULES = {512: "block_cache_0", 256: "block_cache_0_1", 128: "block_cache_0_2"}


def use(filled: int, step_bytes: float = 0) -> KvUse:
    return KvUse(filled, "block_0", MODULES, step_bytes)


@pytest.mark.parametrize(
    ("filled", "text"),
    [
        (0, "block_0 (prefill: the cache is empty)"),
        (1, "block_cache_0_2 (≤ 128 rows → _1)"),
        (129, "block_cache_0_1 (≤ 256 rows → block_cache_0)"),
        (512, "block_cache_0 (≤ 512 rows → full)"),
        (513, "none: the cache is full"),
    ],
)
def test_what_runs_next(filled: int, text: str) -> None:
    assert plain(next_step(TABLE, use(filled))) == text


def words(width: int, step_bytes: float) -> list[str]:
    parts: list[Line] = [line for part in picture(TABLE, use(137, step_bytes), width) for line in part]
    return [plain(line).rstrip() for line in parts]


def test_what_a_token_and_a_step_move() -> None:
    # GIVEN what a step moves in all THEN its share is told, else what is known of the cache alone
    assert "one token moves 23.0 kB into the cache (60 rows × 384 B)" in words(78, 129.4e6)
    assert "one decode step reads 11.8 MB of it (9 % of all DDR traffic)" in words(78, 129.4e6)
    assert "one decode step reads up to 11.8 MB" in words(78, 0)


@pytest.mark.parametrize("width", [78, 118, 198])
def test_no_line_of_the_picture_is_cut(width: int) -> None:
    assert all(len(line) <= width and "…" not in line for line in words(width, 129.4e6))


async def kv_screen(pilot: Pilot[None]) -> KvScreen:
    await pilot.pause()
    await pilot.press("4")
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, KvScreen)
    return screen


async def test_every_line_is_readable_at_80_columns(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(80, 24)) as pilot:
        screen = await kv_screen(pilot)
        table, details = screen.query_one(KvList), screen.query_one(Inspector)
        # THEN no slot is left out, and no text ends in the middle
        assert screen.table is not None
        head = plain(table.pinned()[0])
        assert all(f"slot {length}" in head for length in screen.table.cache_lengths)
        assert not any("…" in plain(table.line(i)) for i in range(table.line_count()))
        assert details.line_count()
        assert details.line_width() <= details.inner_width


async def test_the_share_of_traffic_comes_from_the_simulation(work: Workspace) -> None:
    async with Explorer(work).run_test(size=(120, 40)) as pilot:
        screen = await kv_screen(pilot)
        for _ in range(100):
            shown = [plain(line) for line in screen.query_one(KvPicture).lines(118)]
            if any("of all DDR traffic" in line for line in shown):
                return
            await asyncio.sleep(0.02)
            await pilot.pause()
        raise AssertionError(shown)
