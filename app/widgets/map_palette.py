"""Styles of the local-memory map: fills made from the theme's roles, mixed with the ground that they lie on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rich.color import Color, ColorType, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style

from app.theme import Palette

_MIX = {"0": 0.34, "1": 0.48, "s": 1.0}
"""How much of a role's colour a fill has, by shade."""


@dataclass(frozen=True)
class MapPalette:
    """The palette with the colours of fills (`app.widgets.lmem_canvas`) over a ground."""

    base: Palette
    ground: ColorTriplet | None = None

    def style(self, roles: str) -> Style:
        """The style of space-separated roles and fill colours."""
        return _style(self, roles)


@cache
def _style(palette: MapPalette, roles: str) -> Style:
    style = Style()
    for role in roles.split():
        use, colon, fill = role.partition(":")
        if colon:
            style += _fill_style(palette, use, *fill.split("."))
        elif role == "column":
            style += palette.base.style("bar")
        else:
            style += palette.base.style(role)
    return style


def _fill_style(palette: MapPalette, use: str, role: str, shade: str) -> Style:
    color = palette.base.style(role).color
    if color is None:
        return Style()
    if color.type is not ColorType.TRUECOLOR or palette.ground is None:
        return _named(color, use, shade)
    full, ground = color.get_truecolor(), palette.ground
    fill = blend_rgb(ground, full, _MIX[shade])
    picked = {
        "bg": fill,
        "fg": fill,
        "ink": ground if shade == "s" else _ink(ground),
        "edge": blend_rgb(full, ground, 0.5) if shade == "s" else full,
        "hatch": blend_rgb(fill, ground if shade == "s" else full, 0.4),
    }[use]
    found = Color.from_triplet(picked)
    return Style(bgcolor=found) if use == "bg" else Style(color=found)


def _ink(ground: ColorTriplet) -> ColorTriplet:
    """Letters that stand out from fills over a dark or a light ground."""
    return ColorTriplet(238, 243, 250) if sum(ground) < 3 * 128 else ColorTriplet(16, 21, 29)


def _named(color: Color, use: str, shade: str) -> Style:
    """Fills on terminals that have names for colours: no mixing, the second shade is the bright one."""
    name = color.name
    if shade == "s":
        name = "bright_white"
    elif shade == "1" and not name.startswith("bright_"):
        name = f"bright_{name}"
    if use == "bg":
        return Style(bgcolor=name)
    return Style(color=name if use == "fg" else "black")
