"""The timeline of a module for people: engines, the longest waits, and every instruction on a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from app import units
from app.console import left, right, table
from engine.trace import words

LONGEST = 8
"""Waits that are listed."""


def timeline_views(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The module's length, how busy its engines are, and where they stand still longest; from the `--timeline` JSON."""
    cycles = found["cycles"]
    seconds = cycles / found["clock_hz"]
    yield Text(
        f"{found['module']} · {found['chip']} · {cycles:,} cycles = {units.duration(seconds)}", style="bold"
    )
    yield table(
        [*left("engine"), *right("core", "instructions", "busy", "share"), *left("", rank=1)],
        [
            [
                Text(row["engine"], style=_STYLES[row["engine"]]),
                str(row["core"]),
                units.count(row["instructions"]),
                units.cycles(row["busy_cycles"]),
                units.share(row["busy_cycles"], cycles),
                Text(units.bar(row["busy_cycles"], cycles, 24), style=_STYLES[row["engine"]]),
            ]
            for row in found["engines"]
        ],
    )
    waits = sorted(found["instructions"], key=lambda row: -row["idle_cycles"])[:LONGEST]
    if waits and waits[0]["idle_cycles"]:
        yield table(
            [*right("idle"), *right("until", rank=1), *left("engine", "instruction", "op", "waits for")],
            [
                [
                    units.cycles(row["idle_cycles"]),
                    units.count(row["start"]),
                    _engine(row),
                    _kind(row),
                    words.short_name(row["location"]),
                    _waits(row),
                ]
                for row in waits
                if row["idle_cycles"]
            ],
        )


_STYLES = {"GDMA": "cyan", "TIU": "magenta"}
_HEAD = (
    "start",
    "cycles",
    "engine",
    "id",
    "instruction",
    "bytes",
    "use",
    "idle",
    "waits for",
    "op",
    "location",
    "tensor",
)
_RIGHT = {"start", "cycles", "id", "bytes", "use", "idle"}


def instruction_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every instruction in issue order as a line of aligned columns, a heading first; each ends with a newline."""
    cells = [_HEAD, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        parts = (
            text.rjust(width) if name in _RIGHT else text.ljust(width)
            for name, text, width in zip(_HEAD, line, widths, strict=True)
        )
        yield "  ".join(parts).rstrip() + "\n"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    use = row["utilisation"]
    return (
        f"{row['start']:,}",
        f"{row['end'] - row['start']:,}",
        _engine(row),
        str(row["id"]),
        _kind(row),
        f"{row['bytes']:,}" if row["bytes"] else "",
        "" if use is None else f"{100 * use:.0f} %",
        f"{row['idle_cycles']:,}" if row["idle_cycles"] else "",
        _waits(row),
        row["op"],
        row["location"],
        row["tensor"] or "",
    )


def _engine(row: Mapping[str, Any]) -> str:
    return f"{row['engine']} {row['core']}"


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['kind']} {row['direction']}" if row["direction"] else str(row["kind"])


def _waits(row: Mapping[str, Any]) -> str:
    waits = row["waits_for"]
    return "" if waits is None else f"{waits['engine']} {waits['id']}"
