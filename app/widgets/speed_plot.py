"""Decode speed against the rows of context, as a plot in the theme's own colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rich.text import Text
from textual_plotext import PlotextPlot

from app import units
from app.theme import Palette

Curve = tuple[tuple[int, float], ...]
"""(rows of history, tokens/s)."""

PLAIN = "clear"
"""Plotext's theme that colours nothing: what the plot does not colour looks like the panel that it is in."""
FRAME = 2
"""Rows of the x axis and its labels."""
_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""What ticks may be apart, times a power of ten."""
_FLAT = 0.02
"""Part of the highest value below which differences are not worth a scale of their own."""


class SpeedPlot(PlotextPlot):  # type: ignore[misc]
    """Decode tokens/s against the rows of history."""

    DEFAULT_CSS = """
    SpeedPlot { width: 1fr; min-width: 20; border: round $border-blurred; border-title-color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__(id="plot")
        self.theme = PLAIN
        self.border_title = "decode tokens/s against rows of context"
        self.curve: Curve = ()

    def show(self, curve: Curve) -> None:
        """Draw a curve."""
        self.curve = curve
        self.refresh()

    def render(self) -> Text:
        """The curve in the panel's size and the theme's colours."""
        self._draw(self.size.height - FRAME)
        return cast(Text, super().render())

    def _draw(self, rows: int) -> None:
        plot = self.plt
        plot.clear_data()
        plot.clear_figure()
        if not self.curve or rows < 2:
            return
        xs, ys = zip(*self.curve, strict=True)
        plot.plot(xs, ys, marker="braille", color=self.line_color)
        plot.ticks_color(self._color("muted"))
        scale = y_scale(min(ys), max(ys), rows)
        plot.ylim(scale.bottom, scale.top)
        plot.yticks(scale.ticks, [units.rate(tick) for tick in scale.ticks])
        length = int(xs[-1]) + 1
        ticks = x_ticks(length)
        plot.xlim(0, length)
        plot.xticks(ticks, [row_label(tick) for tick in ticks])
        plot.xaxes(True, False)
        plot.yaxes(True, False)
        plot.grid(False, False)

    @property
    def line_color(self) -> Any:
        """Colour of the curve."""
        return self._color("dma")

    def _color(self, role: str) -> Any:
        """A role's colour as Plotext takes it."""
        color = Palette.of(cast(Any, self.app)).style(role).color
        if color is None or color.is_default:
            return "default"
        return color.number if color.triplet is None else tuple(color.triplet)


@dataclass(frozen=True)
class Scale:
    """An axis: its ends, and the ticks in equal distances of whole rows."""

    bottom: float
    top: float
    ticks: Sequence[float]


def y_scale(lowest: float, highest: float, rows: int) -> Scale:
    """The axis of `rows` rows with readable ticks that the values fill best.

    From 0, or from a tick below the lowest value where the values are close together but not alike.
    """
    near = highest / 2 < lowest < (1 - _FLAT) * highest
    spread = (highest - lowest if near else highest) or 1.0
    scales = []
    for gap in (2, 3) if rows > 3 else (1,):
        for step in _steps(spread * gap / (2 * rows)):
            bottom = math.floor(lowest / step) * step if near else 0.0
            top = bottom + (rows - 1) * step / gap
            if top >= highest:
                count = (rows - 1) // gap + 1
                scales.append(Scale(bottom, top, [bottom + step * i for i in range(count)]))
                break
    return min(scales, key=lambda scale: scale.top - scale.bottom)


def _steps(least: float) -> Iterator[float]:
    """Readable distances from about `least` on."""
    power = math.floor(math.log10(least))
    while True:
        yield from (step * 10.0**power for step in _STEPS)
        power += 1


def x_ticks(length: int) -> list[int]:
    """0, the quarters, and the end of a history of `length` rows."""
    return sorted({length * i // 4 for i in range(5)})


def row_label(rows: int) -> str:
    """A number of rows in short: `512`, `1.5k` (of 1024)."""
    return str(rows) if rows < 1024 else f"{rows / 1024:.3g}k"
