"""Bars over a stretch of cycles as rows of spans: bars of at least half a cell as fills, smaller ones by density.

A drawing costs what its width costs and a few passes over columns of numbers, so that a program of 100,000
instructions is drawn as fast as one of a hundred. Fills are named `ROLE.SHADE` (`app.widgets.map_palette`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.widgets.lines import Span

Cell = tuple[str, str]
"""One character and its roles."""

NOBODY = -1
_TAILS = " ▏▎▍▌▋▊▉█"
"""Left parts of a cell, in eighths."""
_HEADS = " ▕▐█"
_DENSITY = "·░▒▓█"
_LABEL = 3
"""Cells that a label takes at least."""
_OWN = 0.5
"""Cells that a bar is long at least to have cells of its own."""

Names = Callable[[int], Sequence[str]]
"""The names of a bar or a run, the longest first."""


@dataclass(frozen=True)
class Window:
    """The cycles from `start` to `end` over `width` cells."""

    start: float
    end: float
    width: int

    @property
    def scale(self) -> float:
        """Cycles of one cell."""
        return (self.end - self.start) / max(1, self.width)

    def column(self, cycle: float) -> float:
        """Where a cycle is, in cells."""
        return (cycle - self.start) / self.scale

    def cycle(self, column: float) -> float:
        """The cycle at a place in cells."""
        return self.start + column * self.scale

    @property
    def edges(self) -> np.ndarray:
        """Cycles at the borders of the cells: float64 [width + 1]."""
        return self.start + np.arange(self.width + 1) * self.scale


class Track:
    """Bars of one lane, one behind the other.

    start, end: cycles, in order and without overlap. fill: of each bar, an index in `fills`. run: of each bar, a number
    that changes where a label ends to fit. bar_names, run_names: labels of a bar, and of the run that a bar begins.
    """

    def __init__(
        self,
        start: np.ndarray,
        end: np.ndarray,
        fill: np.ndarray,
        fills: Sequence[str],
        run: np.ndarray,
        bar_names: Names,
        run_names: Names,
    ) -> None:
        self.start, self.end, self.fill, self.fills = start, end, fill, tuple(fills)
        self.bar_names, self.run_names = bar_names, run_names
        begins = np.diff(run, prepend=run[0] - 1) != 0 if len(run) else np.zeros(0, bool)
        self.run_first = np.flatnonzero(begins)
        self.run_last = np.append(self.run_first[1:], len(run)) - 1 if len(run) else self.run_first

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def _busy(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each fill the points between which its busy cycles, summed from the start, grow evenly."""
        found = []
        for number in range(len(self.fills)):
            mine = self.fill == number
            found.append(accumulated(self.start[mine], self.end[mine], (self.end - self.start)[mine]))
        return found

    def coverage(self, window: Window) -> np.ndarray:
        """The part of each cell that each fill covers: float64 [fills, width]."""
        edges = window.edges
        return np.array([np.diff(np.interp(edges, *points)) for points in self._busy]) / window.scale

    def visible(self, window: Window) -> tuple[int, int]:
        """The bars in the window: first, and one behind the last."""
        first = int(np.searchsorted(self.end, window.start, side="right"))
        return first, max(first, int(np.searchsorted(self.start, window.end, side="left")))

    def at(self, cycle: float) -> int:
        """The bar that runs in a cycle, or else the nearest; NOBODY without bars."""
        if not len(self):
            return NOBODY
        after = min(int(np.searchsorted(self.end, cycle, side="right")), len(self) - 1)
        before = max(0, after - 1)
        away = [max(self.start[i] - cycle, cycle - self.end[i], 0.0) for i in (before, after)]
        return before if away[0] < away[1] else after

    def draw(
        self, window: Window, height: int = 1, cursor: int = NOBODY, sought: str = ""
    ) -> list[list[Span]]:
        """The rows. cursor: a bar to stand out. sought: a text to mark in labels."""
        return _Drawing(self, window, cursor, sought).rows(height)


def accumulated(start: np.ndarray, end: np.ndarray, amount: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points of a sum that grows by `amount` from each `start` to its `end`, for `np.interp`."""
    if not len(start):
        return np.zeros(1), np.zeros(1)
    points = np.column_stack([start, end]).reshape(-1).astype(np.float64)
    total = np.cumsum(amount, dtype=np.float64)
    sums = np.column_stack([np.concatenate([[0.0], total[:-1]]), total]).reshape(-1)
    return points, sums


class _Drawing:
    """One drawing of a track."""

    def __init__(self, track: Track, window: Window, cursor: int, sought: str) -> None:
        self.track, self.window, self.cursor, self.sought = track, window, cursor, sought.lower()
        self.first, self.last = track.visible(window)
        self.columns = [
            np.clip((edge[self.first : self.last] - window.start) / window.scale, 0, window.width)
            for edge in (track.start, track.end)
        ]
        self.cells = [np.rint(column).astype(np.int64) for column in self.columns]
        self.owner = np.full(window.width, NOBODY, np.int64)
        enough = self.columns[1] - self.columns[0] >= _OWN
        self.wide = np.flatnonzero(enough & (self.cells[1] > self.cells[0]))
        for bar in self.wide.tolist():
            self.owner[self.cells[0][bar] : self.cells[1][bar]] = self.first + bar
        self.plain = [self._cell(column) for column in range(window.width)] if len(track) else []
        self._density()
        self._ends()

    def rows(self, height: int) -> list[list[Span]]:
        """The rows, labels on the middle one."""
        width = self.window.width
        plain = list(self.plain) or [(" ", "")] * width
        labelled = list(plain)
        self._labels(labelled)
        for cells in (plain, labelled):
            self._mark_cursor(cells)
        middle = (height - 1) // 2
        return [joined(labelled if row == middle else plain) for row in range(height)]

    # -- fills ------------------------------------------------------------------------------------------------------

    def _fill(self, bar: int) -> str:
        fill = self.track.fills[int(self.track.fill[bar])]
        return f"{fill.partition('.')[0]}.s" if bar == self.cursor else fill

    def _cell(self, column: int) -> Cell:
        bar = int(self.owner[column])
        if bar == NOBODY:
            return " ", ""
        fill = self._fill(bar)
        begins = column == self.cells[0][bar - self.first] and self.track.start[bar] >= self.window.start
        wide = self.cells[1][bar - self.first] - self.cells[0][bar - self.first] > 1
        return ("▏" if begins and wide and column else " "), f"edge:{fill} bg:{fill}"

    def _density(self) -> None:
        """Cells of no bar's own: the fill that covers most, the denser the more is covered."""
        free = np.flatnonzero(self.owner == NOBODY)
        if not len(free) or not len(self.track):
            return
        covered = self.track.coverage(self.window)[:, free]
        total, most = covered.sum(axis=0), covered.argmax(axis=0)
        for column, part, fill in zip(free.tolist(), total.tolist(), most.tolist(), strict=True):
            if part > 1e-9:
                shade = _DENSITY[min(len(_DENSITY) - 1, int(0.98 + 4 * part))]
                self.plain[column] = shade, f"fg:{self.track.fills[fill]}"

    def _ends(self) -> None:
        """Ends of bars in cells that only they reach into: as long as they are."""
        for bar in self.wide.tolist():
            for side in (0, 1):
                place = float(self.columns[side][bar])
                column = int(place)
                if column < self.window.width and self.owner[column] == NOBODY and self._alone(column):
                    part = place - column
                    mark = _TAILS[round(8 * part)] if side else _HEADS[round(3 * (1 - part))]
                    self.plain[column] = mark, f"fg:{self._fill(self.first + bar)}"

    def _alone(self, column: int) -> bool:
        """Whether one bar only reaches into a cell."""
        start, end = self.columns
        before = np.searchsorted(start, column + 1, side="left")
        gone = np.searchsorted(end, column, side="right")
        return int(before - gone) == 1

    def _mark_cursor(self, cells: list[Cell]) -> None:
        """A cursor's bar that has no cell of its own."""
        bar = self.cursor - self.first
        if not 0 <= bar < self.last - self.first or self.cursor in self.owner:
            return
        column = min(int((self.columns[0][bar] + self.columns[1][bar]) / 2), self.window.width - 1)
        cells[column] = "█", f"fg:{self._fill(self.cursor)}"

    # -- labels -----------------------------------------------------------------------------------------------------

    def _labels(self, cells: list[Cell]) -> None:
        named = [bar for bar in self.wide.tolist() if self._label_bar(cells, bar)]
        runs = np.flatnonzero((self.track.run_last >= self.first) & (self.track.run_first < self.last))
        if not len(runs):
            return
        first = np.maximum(self.track.run_first[runs] - self.first, 0)
        last = np.minimum(self.track.run_last[runs], self.last - 1) - self.first
        left = np.rint(self.columns[0][first]).astype(np.int64)
        right = np.rint(self.columns[1][last]).astype(np.int64)
        has_name = np.zeros(self.last - self.first + 1, np.int64)
        has_name[1:][named] = 1
        counted = np.cumsum(has_name)
        wanted = np.flatnonzero((right - left > _LABEL) & (counted[last + 1] == counted[first]))
        for run in wanted.tolist():
            under = cells[int(left[run]) : int(right[run])]
            if 2 * sum(mark == " " and not roles for mark, roles in under) > len(under):
                continue
            names = self.track.run_names(int(self.track.run_first[runs[run]]))
            self._write(cells, int(left[run]), int(right[run]), names)

    def _label_bar(self, cells: list[Cell], bar: int) -> bool:
        left, right = int(self.cells[0][bar]), int(self.cells[1][bar])
        if right - left < _LABEL:
            return False
        return self._write(cells, left, right, self.track.bar_names(self.first + bar))

    def _write(self, cells: list[Cell], left: int, right: int, names: Sequence[str]) -> bool:
        """The first name that leaves a cell at its left, over what is there; False where none fits."""
        text = next((name for name in names if len(name) < right - left), "")
        found = self.sought and self.sought in names[0].lower()
        for column, char in enumerate(text, left + 1):
            mark, roles = cells[column]
            bar = int(self.owner[column])
            if bar != NOBODY:
                fill = self._fill(bar)
                roles = f"ink:{fill} bg:{fill}" + (" bold" if bar == self.cursor else "")
            elif mark in "▓█" and roles.startswith("fg:"):
                roles = f"ink:{roles[3:]} bg:{roles[3:]}"
            else:
                roles = "heading"
            cells[column] = char, f"{roles} match" if found else roles
        return bool(text)


def joined(cells: Sequence[Cell]) -> list[Span]:
    """Cells with the same roles as one span."""
    spans: list[Span] = []
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end][1] != cells[start][1]:
            spans.append(("".join(char for char, _ in cells[start:end]), cells[start][1]))
            start = end
    return spans


# -- the axis ------------------------------------------------------------------------------------------------------


def nice_step(least: float) -> int:
    """The smallest of 1, 2, 5 times a power of ten that is not below a number."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power >= least:
                return step * power
        power *= 10


def tick_text(cycle: int, step: int) -> str:
    """A tick's label, exact: `0`, `350k`, `1.05M`, `352,120`."""
    if cycle and step % 10_000 == 0 and cycle >= 1_000_000:
        return f"{cycle / 1e6:g}M"
    if cycle and step % 1_000 == 0:
        return f"{cycle // 1000:,}k"
    return f"{cycle:,}"


def axis_line(window: Window) -> list[Span]:
    """Ticks with their cycles."""
    text = [" "] * window.width
    longest = len(tick_text(int(window.end), nice_step(window.scale * 8)))
    step = nice_step(window.scale * (longest + 3))
    cycle = -(-int(window.start) // step) * step
    while cycle < window.end:
        column = int(window.column(cycle))
        label = f"╵{tick_text(cycle, step)}"
        if column >= 0 and column + len(label) <= window.width:
            text[column : column + len(label)] = label
        cycle += step
    return [("".join(text), "muted")]


def level_rows(levels: np.ndarray, height: int, roles: str) -> list[list[Span]]:
    """A curve of values from 0 to 1, one a cell, as columns over `height` rows."""
    eighths = np.rint(np.clip(levels, 0, 1) * 8 * height).astype(np.int64)
    eighths[(levels > 0) & (eighths == 0)] = 1
    rows = []
    for row in range(height):
        part = np.clip(eighths - 8 * (height - 1 - row), 0, 8)
        rows.append([("".join(" ▁▂▃▄▅▆▇█"[n] for n in part.tolist()), roles)])
    return rows
