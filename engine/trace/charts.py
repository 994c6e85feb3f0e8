"""Small charts: horizontal bars, stacked shares, a line over a number axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.trace.svg import Canvas, nice_ticks, text_width
from engine.trace.words import size

BAR_STEP = 20


@dataclass(frozen=True)
class Bar:
    """One bar: its name, length, the length in words and its colour's role."""

    label: str
    value: float
    shown: str
    role: str


def bars_height(count: int) -> float:
    """Height that `draw_bars` takes, with the room above it for a heading."""
    return 34 + BAR_STEP * count


def draw_bars(canvas: Canvas, bars: Sequence[Bar], x: float, y: float, width: float) -> None:
    """Bars one below the other: label, bar, length in words."""
    if not bars:
        canvas.text(x, y + 14, "none", role="muted", size=11)
        return
    label = min(width * 0.45, max(text_width(bar.label, 11) for bar in bars) + 10)
    tail = max(text_width(bar.shown, 11) for bar in bars) + 8
    room, largest = width - label - tail, max(bar.value for bar in bars) or 1
    for index, bar in enumerate(bars):
        top = y + index * BAR_STEP
        length = max(1.0, room * bar.value / largest) if bar.value else 0.0
        canvas.text(x, top + 13, bar.label, size=11, width=label - 6)
        canvas.rect(x + label, top + 3, length, 13, bar.role, opacity=0.75, title=f"{bar.label}: {bar.shown}")
        canvas.text(x + label + length + 6, top + 13, bar.shown, role="muted", size=11)


def bar_chart(bars: Sequence[Bar], width: float = 1000) -> str:
    """Bars as SVG text without ground."""
    canvas = Canvas(width, BAR_STEP * max(1, len(bars)) + 4)
    draw_bars(canvas, bars, 0, 0, width)
    return canvas.svg(ground=False)


def line_chart(
    points: Sequence[tuple[float, float]],
    *,
    x_label: str,
    y_label: str,
    role: str = "compute",
    y_text: Callable[[float], str] = "{:g}".format,
    width: float = 1000,
    height: float = 270,
) -> str:
    """A line through points with both axes from 0, as SVG text without ground."""
    left, top, right, bottom = 56.0, 26.0, width - 16, height - 40
    x_limit = max((x for x, _ in points), default=1) or 1
    y_limit = 1.08 * (max((y for _, y in points), default=1) or 1)
    canvas = Canvas(width, height)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x / x_limit, bottom - (bottom - top) * y / y_limit

    for tick in nice_ticks(y_limit, 5):
        _, at = place(0, tick)
        canvas.line(left, at, right, at)
        canvas.text(left - 8, at + 4, y_text(tick), role="muted", size=10.5, anchor="end")
    for tick in nice_ticks(x_limit, 8):
        at, _ = place(tick, 0)
        canvas.line(at, bottom, at, bottom + 4, "edge")
        canvas.text(at, bottom + 18, f"{tick:,.0f}", role="muted", size=10.5, anchor="middle")
    canvas.text(left, 12, y_label, role="muted", size=11, bold=True)
    canvas.text(right, height - 4, x_label, role="muted", size=11, anchor="end", bold=True)
    canvas.polyline([place(x, y) for x, y in points], role)
    for x, y in points:
        canvas.dot(*place(x, y), role, radius=2.2, title=f"{x:,.0f} {x_label}: {y_text(y)} {y_label}")
    return canvas.svg(ground=False)


@dataclass(frozen=True)
class Segment:
    """A part of a strip: name, bytes, colour's role."""

    label: str
    nbytes: int
    role: str


def strip(segments: Sequence[Segment], width: float = 1000) -> str:
    """Parts of a whole side by side to scale with a legend below, as SVG text without ground."""
    canvas = Canvas(width, 62)
    total = sum(segment.nbytes for segment in segments) or 1
    x, key = 0.0, 0.0
    for segment in segments:
        wide = width * segment.nbytes / total
        words_ = f"{segment.label} {size(segment.nbytes)}"
        canvas.rect(x, 0, wide, 28, segment.role, opacity=0.75, radius=0, title=words_)
        canvas.rect(key, 43, 12, 12, segment.role, opacity=0.75)
        canvas.text(key + 18, 53, words_, role="muted", size=12)
        x, key = x + wide, key + 18 + text_width(words_, 12) + 24
    return canvas.svg(ground=False)
