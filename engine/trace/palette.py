"""Colours of the pictures by what they mean, for light and dark grounds.

Pictures are drawn in the light colours. A page that knows both grounds replaces each by its CSS variable (`themed`) and
declares the variables once (`css_variables`), so that every picture follows the reader's colour scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

COLORS: Mapping[str, tuple[str, str]] = {
    # text and ground
    "ink": ("#1b222c", "#dfe6f1"),
    "muted": ("#5d6878", "#93a0b6"),
    "faint": ("#c3cad5", "#3a475c"),
    "ground": ("#ffffff", "#131a24"),
    "panel": ("#f4f6fa", "#1a2331"),
    "edge": ("#7c889a", "#73819a"),
    # kinds of data
    "weights": ("#2f6fd0", "#7aa7f7"),
    "kv": ("#c07a10", "#e8b15c"),
    "activations": ("#3f9430", "#8fcf7a"),
    "scratch": ("#8a93a3", "#77849a"),
    "heads": ("#5a4fc7", "#9d94f5"),
    # engines, and what an op is bound by
    "dma": ("#0a8aa3", "#4fc1d8"),
    "compute": ("#8b3fc4", "#c792ea"),
    "good": ("#1c7a32", "#7fd88f"),
    "bad": ("#c9303d", "#f27a85"),
    # fills of graph nodes
    "fill-matmul": ("#dce8fc", "#1d3354"),
    "fill-attention": ("#efe0fb", "#3a2452"),
    "fill-norm": ("#d9f2ef", "#15403c"),
    "fill-elementwise": ("#e6ecf2", "#29364a"),
    "fill-rope": ("#fbf3cd", "#42401a"),
    "fill-kv": ("#fde3c6", "#4d3312"),
    "fill-lookup": ("#e9e6fb", "#2d2950"),
    "fill-transfer": ("#d5f0f6", "#12404c"),
    "fill-layout": ("#f7f8fb", "#1e2836"),
    "fill-sampling": ("#fbdde3", "#4d1f2c"),
    "fill-input": ("#def3d8", "#1f3f1a"),
    "fill-cluster": ("#f1f4f9", "#182130"),
}
"""role -> (on a light ground, on a dark ground); light colours are unique."""

LIGHT = {role: light for role, (light, _) in COLORS.items()}
"""The colours in which pictures are drawn."""

_ROLE_OF = {light: role for role, light in LIGHT.items()}
assert len(_ROLE_OF) == len(COLORS)
_HEX = re.compile(r"#[0-9a-fA-F]{6}\b")


def themed(svg: str) -> str:
    """The picture with CSS variables in place of the palette's colours."""

    def variable(found: re.Match[str]) -> str:
        role = _ROLE_OF.get(found[0].lower())
        return f"var(--{role})" if role else found[0]

    return _HEX.sub(variable, svg)


def css_variables(dark: bool) -> str:
    """Declarations of the variables that `themed` uses."""
    return "".join(f"--{role}:{colors[dark]};" for role, colors in COLORS.items())
