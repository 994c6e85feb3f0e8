"""Colours with a meaning, the same everywhere, in dark, light and ANSI themes.

A role is what a colour says: `weights`, `kv` and `activations` are kinds of data, `dma` and `compute` the two engines,
`memory_bound` and `compute_bound` what an op waits for. Widgets name roles and never colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rich.style import Style
from textual.theme import Theme

if TYPE_CHECKING:
    from textual.app import App

ROLES = (
    "weights",
    "kv",
    "activations",
    "dma",
    "compute",
    "memory-bound",
    "compute-bound",
    "added",
    "removed",
    "changed",
    "good",
    "bad",
    "faint",
    "rule",
    "muted",
    "key",
    "heading",
)
"""Foreground roles; every theme colours each. All but `rule`, the dots and lines that only guide the eye, are for text
and stand out from every ground by a contrast of at least 4.5 to 1."""

DARK: Mapping[str, str] = {
    "weights": "#7aa7f7",
    "kv": "#e8b15c",
    "activations": "#8fcf7a",
    "dma": "#4fc1d8",
    "compute": "#c792ea",
    "memory-bound": "#4fc1d8",
    "compute-bound": "#c792ea",
    "added": "#7fd88f",
    "removed": "#f27a85",
    "changed": "#f0c674",
    "good": "#7fd88f",
    "bad": "#f27a85",
    "faint": "#8f9baf",
    "rule": "#4c5668",
    "muted": "#9ca7b9",
    "key": "#62c3ff",
    "heading": "#e6edf7",
    "cursor": "#1a3254",
    "cursor-idle": "#1c2736",
    "match": "#e6edf7 on #7a5b12",
    "added-wash": "#16301f",
    "removed-wash": "#3a1d24",
    "bar": "#1b2432",
}

LIGHT: Mapping[str, str] = {
    "weights": "#1f5fc4",
    "kv": "#935800",
    "activations": "#2c741f",
    "dma": "#006e84",
    "compute": "#8036b5",
    "memory-bound": "#006e84",
    "compute-bound": "#8036b5",
    "added": "#1b7530",
    "removed": "#bc2e3b",
    "changed": "#8b5c00",
    "good": "#1b7530",
    "bad": "#bc2e3b",
    "faint": "#5b6676",
    "rule": "#b3bac6",
    "muted": "#525c6a",
    "key": "#0062b8",
    "heading": "#10151d",
    "cursor": "#d6e6fb",
    "cursor-idle": "#e8edf4",
    "match": "#10151d on #ffe08a",
    "added-wash": "#dff3e2",
    "removed-wash": "#fbe3e4",
    "bar": "#dfe5ed",
}

ANSI: Mapping[str, str] = {
    "weights": "ansi_blue",
    "kv": "ansi_yellow",
    "activations": "ansi_green",
    "dma": "ansi_cyan",
    "compute": "ansi_magenta",
    "memory-bound": "ansi_cyan",
    "compute-bound": "ansi_magenta",
    "added": "ansi_green",
    "removed": "ansi_red",
    "changed": "ansi_yellow",
    "good": "ansi_green",
    "bad": "ansi_red",
    "faint": "ansi_bright_black",
    "rule": "ansi_bright_black",
    "muted": "ansi_bright_black",
    "key": "ansi_cyan",
    "heading": "ansi_default",
    "cursor": "reverse",
    "cursor-idle": "underline",
    "match": "reverse",
    "added-wash": "",
    "removed-wash": "",
    "bar": "",
}

MARKS = ("cursor", "cursor-idle", "match", "added-wash", "removed-wash", "bar")
"""Roles that colour the ground; `match` has letters of its own, as no ground that is seen at once suits all roles."""

THEMES = (
    Theme(
        "tpuscope-dark",
        primary="#4a9eff",
        secondary="#4fc1d8",
        accent="#e8b15c",
        warning="#f0c674",
        error="#f27a85",
        success="#7fd88f",
        foreground="#cfd8e6",
        background="#0f141c",
        surface="#131a24",
        panel="#1b2432",
        variables={"border": "#33435c", "border-blurred": "#2a3548", "footer-background": "#1b2432"},
    ),
    Theme(
        "tpuscope-light",
        primary="#0062b8",
        secondary="#00738a",
        accent="#a36200",
        warning="#946200",
        error="#c02f3c",
        success="#1c7a32",
        foreground="#1b222c",
        background="#f6f8fb",
        surface="#ffffff",
        panel="#e8edf3",
        dark=False,
        variables={"border": "#9fb0c6", "border-blurred": "#c9d2de", "footer-background": "#e8edf3"},
    ),
    Theme(
        "tpuscope-ansi",
        ansi=True,
        primary="ansi_blue",
        secondary="ansi_cyan",
        accent="ansi_yellow",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={
            "border": "ansi_bright_black",
            "border-blurred": "ansi_bright_black",
            "ansi-background": "ansi_black",
            "ansi-foreground": "ansi_white",
            "block-cursor-foreground": "ansi_black",
            "block-cursor-background": "ansi_white",
            "input-cursor-background": "ansi_white",
            "input-cursor-foreground": "ansi_black",
            "input-selection-background": "ansi_bright_blue",
            "input-selection-foreground": "ansi_black",
        },
    ),
)
"""The first is the default."""

_TABLES = {"tpuscope-light": LIGHT, "tpuscope-ansi": ANSI}


@dataclass(frozen=True)
class Palette:
    """Rich styles of roles under one theme."""

    theme: str

    @classmethod
    def of(cls, app: App[object]) -> Palette:
        """The palette of the app's current theme; other Textual themes get the dark or the light colours."""
        theme = app.current_theme
        if theme.name in _TABLES:
            return cls(theme.name)
        if theme.ansi:
            return cls("tpuscope-ansi")
        return cls("tpuscope-dark" if theme.dark else "tpuscope-light")

    def style(self, roles: str) -> Style:
        """The style of space-separated roles and of `bold`, `italic`, `dim`, `underline`; "" is plain text."""
        return _style(self.theme, roles)


@cache
def _style(theme: str, roles: str) -> Style:
    table = _TABLES.get(theme, DARK)
    style = Style()
    for role in roles.split():
        style += _one(role, table.get(role, role))
    return style


def _one(role: str, value: str) -> Style:
    if not value:
        return Style()
    if value in ("bold", "italic", "dim", "underline", "reverse", "strike"):
        return Style.parse(value)
    if " on " in value:
        return Style.parse(value)
    color = value.removeprefix("ansi_")
    return Style(bgcolor=color) if role in MARKS else Style(color=color)
