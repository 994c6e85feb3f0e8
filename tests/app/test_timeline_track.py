"""Bars over cycles: what a cell shows, labels, ticks, and that a long program is drawn at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from app.widgets.lines import plain
from app.widgets.timeline_track import (
    NOBODY,
    Track,
    Window,
    axis_line,
    level_rows,
    nice_step,
    tick_text,
)

FILLS = ("weights.1", "compute.1")


def track(*bars: tuple[int, int, int], names: Sequence[str] = ("bar",), run: Sequence[int] = ()) -> Track:
    """Bars of (start, end, fill); a run each unless said otherwise."""
    start, end, fill = (np.array([bar[i] for bar in bars], np.int64) for i in range(3))
    runs = np.array(run or range(len(bars)), np.int64)
    return Track(start, end, fill, FILLS, runs, lambda bar: names, lambda bar: ["the run"])


def cells(found: Track, window: Window, cursor: int = NOBODY) -> list[tuple[str, str]]:
    return [(char, roles) for text, roles in found.draw(window, 1, cursor)[0] for char in text]


class TestCells:
    def test_bars_own_the_cells_that_they_fill(self) -> None:
        # GIVEN bars over cells 0 to 2 and 5 to 9 of ten
        found = cells(track((0, 30, 0), (50, 100, 1), names=["none fits here"]), Window(0, 100, 10))
        fills = [roles.rpartition("bg:")[2] for _, roles in found]
        assert fills == ["weights.1"] * 3 + [""] * 2 + ["compute.1"] * 5

    def test_short_bars_show_how_much_of_a_cell_they_cover(self) -> None:
        # GIVEN a tenth, a half and nearly all of a cell, in pieces
        bars = [
            (0, 1, 0),
            *((10 + 2 * i, 11 + 2 * i, 0) for i in range(5)),
            *((20 + i, 21 + i, 0) for i in range(9)),
        ]
        found = cells(track(*bars), Window(0, 40, 4))
        assert [char for char, _ in found] == ["░", "▒", "█", " "]
        assert {roles for char, roles in found if char != " "} == {"fg:weights.1"}

    def test_the_fill_that_covers_most_colours_the_cell(self) -> None:
        found = cells(track((0, 3, 0), (3, 8, 1), (8, 9, 0)), Window(0, 100, 5))
        assert found[0][1] == "fg:compute.1"

    def test_ends_next_to_nothing_are_drawn_in_eighths(self) -> None:
        found = cells(track((0, 23, 0), names=["none fits here"]), Window(0, 100, 10))
        assert found[2] == ("▎", "fg:weights.1")
        found = cells(track((27, 50, 0), names=["none fits here"]), Window(0, 100, 10))
        assert found[2] == ("▕", "fg:weights.1")

    def test_coverage_is_exact_at_every_scale(self) -> None:
        random = np.random.default_rng(3)
        length, gap = random.integers(1, 50, 300), random.integers(0, 20, 300)
        end = np.cumsum(length + gap)
        found = Track(
            end - length, end, random.integers(0, 2, 300), FILLS, end, lambda _: [""], lambda _: [""]
        )
        for width in (7, 80, 1000):
            window = Window(100.0, 4000.0, width)
            busy = found.coverage(window).sum() * window.scale
            inside = np.clip(end, 100, 4000) - np.clip(end - length, 100, 4000)
            assert busy == pytest.approx(inside.sum())

    def test_the_cursor_stands_out_even_when_it_is_short(self) -> None:
        bars = track(*((i, i + 1, 0) for i in range(100)))
        found = cells(bars, Window(0, 100, 10), cursor=55)
        assert found[5] == ("█", "fg:weights.s")
        wide = cells(track((0, 50, 0), (50, 100, 1), names=["x"]), Window(0, 100, 10), cursor=1)
        assert all("bg:compute.s" in roles for _, roles in wide[5:])

    def test_what_is_outside_of_the_window_is_not_drawn(self) -> None:
        bars = track((0, 10, 0), (500, 510, 1))
        assert [char for char, _ in cells(bars, Window(100, 200, 5))] == [" "] * 5


class TestLabels:
    def test_the_longest_name_that_fits(self) -> None:
        bars = track((0, 100, 0), names=["self_attn.q_proj", "q_proj", "q"])
        for width, name in ((30, "self_attn.q_proj"), (10, "q_proj"), (5, "q")):
            assert plain(bars.draw(Window(0, 100, width))[0]).strip() == name

    def test_a_run_of_short_bars_has_one_label(self) -> None:
        bars = track(*((10 * i, 10 * i + 10, 0) for i in range(10)), run=[0] * 10)
        assert "the run" in plain(bars.draw(Window(0, 100, 12))[0])

    def test_labels_are_on_the_middle_row_and_matches_are_marked(self) -> None:
        rows = track((0, 100, 0), names=["q_proj"]).draw(Window(0, 100, 20), 3, NOBODY, "Q_PRO")
        assert ["q_proj" in plain(row) for row in rows] == [False, True, False]
        assert any("match" in roles for _, roles in rows[1])


class TestFinding:
    def test_the_bar_of_a_cycle_or_the_nearest(self) -> None:
        bars = track((0, 10, 0), (20, 30, 0), (100, 110, 0))
        assert [bars.at(cycle) for cycle in (0, 9, 12, 18, 25, 60, 80, 500)] == [0, 0, 0, 1, 1, 1, 2, 2]
        assert track().at(3) == NOBODY

    def test_nothing_to_draw(self) -> None:
        assert plain(track().draw(Window(0, 100, 4))[0]) == "    "


class TestAxis:
    def test_steps_are_1_2_or_5(self) -> None:
        assert [nice_step(least) for least in (0.2, 1, 3, 7, 12, 150, 99_000)] == [
            1,
            1,
            5,
            10,
            20,
            200,
            100_000,
        ]

    def test_ticks_say_exactly_where_they_are(self) -> None:
        assert tick_text(0, 100) == "0"
        assert tick_text(350_000, 50_000) == "350k"
        assert tick_text(1_050_000, 50_000) == "1.05M"
        assert tick_text(1_352_120, 20) == "1,352,120"
        assert tick_text(1_352_000, 1_000) == "1,352k"

    @pytest.mark.parametrize("window", [Window(0, 1_000_000, 70), Window(352_000, 352_200, 100)])
    def test_ticks_stand_over_their_cycles(self, window: Window) -> None:
        text = plain(axis_line(window))
        assert len(text) == window.width
        ticks = [i for i, char in enumerate(text) if char == "╵"]
        assert len(ticks) >= 4
        for tick in ticks:
            label = text[tick + 1 :].split(" ")[0]
            cycle = int(label.replace(",", "").replace("k", "000"))
            assert window.cycle(tick) <= cycle < window.cycle(tick + 1)

    def test_levels_as_columns(self) -> None:
        rows = level_rows(np.array([0.0, 0.001, 0.5, 1.0]), 2, "dma")
        assert [plain(row) for row in rows] == ["   █", " ▁██"]


def test_a_hundred_thousand_bars_are_drawn_by_column() -> None:
    # GIVEN far more bars than columns, each seven tenths of its time
    count = 100_000
    start = np.arange(count) * 10
    bars = Track(
        start, start + 7, np.arange(count) % 2, FILLS, start // 1000, lambda _: ["b"], lambda _: ["run"]
    )
    # THEN each column is drawn, whether it holds 500 bars or a part of one
    for window in (Window(0, 1e6, 200), Window(5e5, 5.001e5, 200)):
        rows = bars.draw(window, 4, 7)
        assert [len(plain(row)) for row in rows] == [200] * 4
