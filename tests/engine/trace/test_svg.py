"""The canvas, its charts and the files that pictures end in."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from engine.trace import output
from engine.trace.charts import Bar, Segment, bar_chart, line_chart, strip
from engine.trace.palette import COLORS, LIGHT, css_variables, themed
from engine.trace.svg import Canvas, fitted, nice_ticks, text_width

SVG = "{http://www.w3.org/2000/svg}"


@given(st.text(min_size=1, max_size=40), st.floats(1, 300), st.floats(8, 16))
def test_fitted_text_fits(value: str, width: float, size: float) -> None:
    shown = fitted(value, width, size)
    assert text_width(shown, size) <= width or shown == ""
    assert shown == value or len(shown) <= len(value)


@given(st.floats(1e-3, 1e12), st.integers(2, 12))
def test_ticks_are_even_round_and_inside(limit: float, count: int) -> None:
    ticks = nice_ticks(limit, count)
    assert ticks[0] == 0
    assert ticks[-1] <= limit * (1 + 1e-6)
    assert len(ticks) <= count + 2
    assert len({round((b - a) / limit, 6) for a, b in pairwise(ticks)}) <= 1
    assert limit - ticks[-1] < limit / count * 2.51


def test_texts_are_escaped() -> None:
    canvas = Canvas(10, 10)
    canvas.text(0, 5, 'a<b & "c"')
    canvas.rect(0, 0, 1, 1, "weights", title="x < y")
    root = ET.fromstring(canvas.svg())
    assert [text.text for text in root.iter(f"{SVG}text")] == ['a<b & "c"']
    assert [title.text for title in root.iter(f"{SVG}title")] == ["x < y"]


def test_bars_are_as_long_as_their_values() -> None:
    svg = bar_chart([Bar("a", 10, "10 B", "weights"), Bar("b", 5, "5 B", "kv"), Bar("c", 0, "0 B", "kv")])
    widths = [float(rect.get("width", "")) for rect in ET.fromstring(svg).iter(f"{SVG}rect")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.02)
    assert widths[2] == 0


def test_a_strip_is_filled_to_scale() -> None:
    svg = strip([Segment("a", 300, "weights"), Segment("b", 100, "kv")], width=400)
    widths = [float(rect.get("width", "")) for rect in ET.fromstring(svg).iter(f"{SVG}rect")]
    assert widths[::2] == [300, 100]


def test_a_line_starts_and_ends_at_its_points() -> None:
    svg = line_chart([(0, 10), (100, 5)], x_label="x", y_label="y")
    (line,) = ET.fromstring(svg).iter(f"{SVG}polyline")
    (x0, y0), (x1, y1) = (map(float, at.split(",")) for at in line.get("points", "").split())
    baseline = 270 - 40
    assert x0 < x1
    assert baseline - y0 == pytest.approx(2 * (baseline - y1), abs=0.05)


def test_a_page_can_colour_a_picture() -> None:
    canvas = Canvas(4, 4)
    canvas.rect(0, 0, 4, 4, "kv")
    svg = themed(canvas.svg())
    assert 'fill="var(--kv)"' in svg
    assert "#" not in svg.replace("url(#", "")
    for dark in (False, True):
        assert f"--kv:{COLORS['kv'][dark]};" in css_variables(dark)


def test_colours_that_are_not_the_palettes_stay() -> None:
    assert themed(f'fill="#123456" {LIGHT["ink"]}') == 'fill="#123456" var(--ink)'


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.svg"
    output.write_svg("<svg/>", target)
    assert target.read_text() == "<svg/>"
    assert target.stat().st_mode & 0o444

    def fail(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UserError, match="No space left"):
        output.write_svg("<svg>new</svg>", target)
    assert target.read_text() == "<svg/>"
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


def test_png_without_fonts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_installed_family", lambda: None)
    with pytest.raises(UserError, match=r"none of these fonts is installed.*write .svg instead"):
        output.to_png("<svg/>")
