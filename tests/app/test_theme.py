"""Text of every role can be read on every ground, in the dark and in the light theme."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from rich.color import Color
from rich.color_triplet import ColorTriplet
from textual.theme import Theme

from app.theme import DARK, LIGHT, MARKS, ROLES, THEMES, Palette
from app.widgets.map_palette import MapPalette

READABLE = 4.5
"""Contrast that WCAG 2 asks of text."""

TABLES = [(DARK, THEMES[0]), (LIGHT, THEMES[1])]


def luminance(color: ColorTriplet) -> float:
    parts = [part / 255 for part in color]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: ColorTriplet, second: ColorTriplet) -> float:
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def triplet(text: str) -> ColorTriplet:
    return Color.parse(text).get_truecolor()


def grounds(table: Mapping[str, str], theme: Theme) -> dict[str, ColorTriplet]:
    found = {name: table[name] for name in MARKS if name != "match"}
    found |= {
        name: str(getattr(theme, name)) for name in ("background", "surface", "panel") if getattr(theme, name)
    }
    return {name: triplet(color) for name, color in found.items()}


def test_contrast_is_that_of_wcag() -> None:
    assert contrast(triplet("#000000"), triplet("#ffffff")) == pytest.approx(21)
    assert contrast(triplet("#777777"), triplet("#ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("table", "theme"), TABLES, ids=["dark", "light"])
@pytest.mark.parametrize("role", [role for role in ROLES if role != "rule"])
def test_text_of_a_role_is_readable_on_every_ground(
    table: Mapping[str, str], theme: Theme, role: str
) -> None:
    found = {name: contrast(triplet(table[role]), ground) for name, ground in grounds(table, theme).items()}
    assert not {name: round(value, 2) for name, value in found.items() if value < READABLE}


@pytest.mark.parametrize(("table", "theme"), TABLES, ids=["dark", "light"])
def test_plain_text_and_matches_are_readable(table: Mapping[str, str], theme: Theme) -> None:
    plain = triplet(str(theme.foreground))
    assert min(contrast(plain, ground) for ground in grounds(table, theme).values()) >= READABLE
    # a match keeps its own letters whatever role it is found in
    for role in ROLES:
        style = Palette(theme.name).style(f"{role} match")
        assert style.color is not None
        assert style.bgcolor is not None
        assert contrast(style.color.get_truecolor(), style.bgcolor.get_truecolor()) >= READABLE


@pytest.mark.parametrize("theme", THEMES[:2], ids=["dark", "light"])
@pytest.mark.parametrize("shade", ["0", "1", "s"])
def test_letters_on_the_fills_of_the_map_are_readable(theme: Theme, shade: str) -> None:
    palette = MapPalette(Palette(theme.name), triplet(str(theme.background)))
    for role in ("weights", "activations", "muted", "bad", "dma", "compute"):
        style = palette.style(f"ink:{role}.{shade} bg:{role}.{shade}")
        assert style.color is not None
        assert style.bgcolor is not None
        assert contrast(style.color.get_truecolor(), style.bgcolor.get_truecolor()) >= READABLE
