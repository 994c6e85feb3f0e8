"""DDR of the whole program for people: arenas by address, totals, holes and the high-water mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from app import units
from app.console import left, right, table, wrapping

_STYLES = {"coeff": "blue", "io": "magenta", "neuron": "cyan"}
_KIND_NAMES = {
    "weights": "weights",
    "kv_cache": "KV",
    "io": "in/out",
    "neuron": "activations",
}
_BAR_CELLS = 20


def program_memory_views(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A heading, one row an arena, what the bytes are for."""
    where = f"{units.address(found['start'])} to {units.address(found['end'])}"
    yield Text.assemble(("whole program · DDR   ", "bold"), f"{units.size(found['bytes'])}, {where}")
    largest = max(arena["bytes"] for arena in found["arenas"])
    yield table(
        [
            *left("arena", "layer", "address"),
            *right("bytes", "unused"),
            *left("", rank=3),
            *wrapping("holds", rank=1, least=20),
            *wrapping("modules", rank=2, least=30),
        ],
        [
            [
                Text(arena["arena"], style=_STYLES[arena["arena"]]),
                "" if arena["layer"] is None else str(arena["layer"]),
                units.address(arena["address"]),
                units.size(arena["bytes"]),
                units.size(arena["bytes"] - arena["used_bytes"]),
                Text(units.bar(arena["bytes"], largest, _BAR_CELLS), style=_STYLES[arena["arena"]]),
                kinds_text(arena["kinds"]),
                " ".join(arena["modules"]),
            ]
            for arena in found["arenas"]
        ],
    )
    yield Text("\n".join(["", *(f"{label:<8} {text}" for label, text in summary(found))]))


def kinds_text(kinds: Mapping[str, int]) -> str:
    """Bytes by kind: `KV 4.2 MB · in/out 8.1 kB`."""
    return " · ".join(f"{_KIND_NAMES[kind]} {units.size(nbytes)}" for kind, nbytes in kinds.items() if nbytes)


def summary(found: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """What the program needs, what it leaves unused and which module needs most: labels with texts."""
    mark = found["high_water"]
    most = f"{units.size(mark['bytes'])} as {mark['module']} needs, {units.size(mark['live_bytes'])} live at most"
    return ("program", kinds_text(found["totals"])), ("holes", _holes_text(found["holes"])), ("neuron", most)


def _holes_text(holes: Sequence[Mapping[str, int]]) -> str:
    if not holes:
        return "none"
    largest = max(holes, key=lambda hole: hole["bytes"])
    return (
        f"{units.size(sum(hole['bytes'] for hole in holes))} in {len(holes)}, "
        f"the largest {units.size(largest['bytes'])} at {units.address(largest['address'])}"
    )
