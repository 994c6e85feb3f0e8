"""A small canvas for pictures as SVG text: shapes and texts in the palette's roles, texts that fit, tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, log10

from engine.trace.palette import LIGHT

FONTS = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"

_NARROW, _WIDE = set("iljtfrI.,:;|!'()[]{} /·"), set("mwMW@%—")
ELLIPSIS = "…"


def text_width(value: str, size: float) -> float:
    """About how wide a text is drawn, in the units of `size`; never too narrow for common fonts."""
    ems = sum(0.36 if c in _NARROW else 0.92 if c in _WIDE else 0.7 if c.isupper() else 0.61 for c in value)
    return ems * size


def fitted(value: str, width: float, size: float) -> str:
    """The text, cut with an ellipsis to fit; empty where not even a few letters do."""
    if text_width(value, size) <= width:
        return value
    for length in range(len(value) - 1, 2, -1):
        cut = value[:length].rstrip(" ._·") + ELLIPSIS
        if text_width(cut, size) <= width:
            return cut
    return ""


@dataclass
class Canvas:
    """A picture being drawn; coordinates in pixels from the upper left corner."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        role: str,
        *,
        opacity: float = 1.0,
        stroke: str = "",
        dashed: bool = False,
        hatched: bool = False,
        radius: float = 2,
        title: str = "",
    ) -> None:
        """A filled box. stroke: role of its outline. hatched: with stripes in the outline's role. title: tooltip."""
        shape = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}" rx="{radius:g}"'
        outline = f' stroke="{LIGHT[stroke]}"' if stroke else ""
        outline += ' stroke-dasharray="4 3"' if dashed else ""
        box = f'<rect {shape} fill="{LIGHT[role]}" fill-opacity="{opacity:g}"{outline}/>'
        if hatched:
            box += f'<rect {shape} fill="url(#hatch)"/>'
        self.parts.append(f"<g><title>{escape(title)}</title>{box}</g>" if title else box)

    def text(
        self,
        x: float,
        y: float,
        value: str,
        *,
        role: str = "ink",
        size: float = 11,
        anchor: str = "start",
        bold: bool = False,
        width: float | None = None,
    ) -> None:
        """A line of text on baseline `y`. anchor: start, middle or end. width: room that it is cut to."""
        shown = value if width is None else fitted(value, width, size)
        if not shown:
            return
        weight = ' font-weight="600"' if bold else ""
        side = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" fill="{LIGHT[role]}" font-size="{size:g}"{side}{weight}>'
            f"{escape(shown)}</text>"
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        role: str = "faint",
        *,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """A straight line."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{LIGHT[role]}" '
            f'stroke-width="{width:g}"{dash}/>'
        )

    def polyline(self, points: Sequence[tuple[float, float]], role: str, *, width: float = 2) -> None:
        """A line through points."""
        at = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{at}" fill="none" stroke="{LIGHT[role]}" stroke-width="{width:g}" '
            'stroke-linejoin="round"/>'
        )

    def dot(self, x: float, y: float, role: str, *, radius: float = 3, title: str = "") -> None:
        """A filled circle with a tooltip."""
        mark = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:g}" fill="{LIGHT[role]}">{mark}</circle>'
        )

    def svg(self, *, ground: bool = True) -> str:
        """The picture as SVG text. ground: with a filled background, for files that stand alone."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        back = f'<rect width="100%" height="100%" fill="{LIGHT["ground"]}"/>' if ground else ""
        body = "".join(self.parts)
        stripes = _HATCH if "url(#hatch)" in body else ""
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONTS}">{stripes}{back}{body}</svg>'


_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<line x1="0" y1="0" x2="0" y2="6" stroke="{LIGHT["edge"]}" stroke-width="1.6" stroke-opacity="0.55"/>'
    "</pattern></defs>"
)


def nice_ticks(limit: float, count: int = 5) -> list[float]:
    """0 and round steps up to `limit`, about `count` of them."""
    if limit <= 0:
        return [0.0]
    rough = limit / count
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * index for index in range(floor(limit / step + 1e-9) + 1)]
