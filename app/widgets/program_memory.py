"""DDR of the whole program as a table: the arenas of all layers by address."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from app import units
from app.render_program_memory import kinds_text, summary
from app.widgets.lines import Line, Span
from app.widgets.memory_view import ARENA_ABOUT
from app.widgets.table import Column, Row, TableView
from engine.tpu.isa import Arena

_ROLES = {"weights": "weights", "kv_cache": "kv", "io": "activations", "neuron": "activations"}
"""Kind of bytes -> colour."""


class ProgramTable(TableView):
    """One row an arena, with a bar of what it holds to the scale of the largest."""

    SCOPES = ("list",)
    HELP = """
DDR of the whole program. Every layer has one **coeff** and one **io** arena, shared by its prefill, prefill_kv and
decode modules; modules outside of blocks have their own, one for all that have the same weights. The **neuron** arena
is shared by all modules, which run one after another: it is as large as the one that needs most.

Bars are to the scale of the largest arena: weights, KV cache, inputs and outputs, activations; **·** is what no tensor
uses. **a** shows one arena or all. **w** or **esc** goes back to the module.
"""
    COLUMNS = (
        Column("layer", right=True),
        Column("address", right=True),
        Column("bytes", right=True),
        Column("unused", right=True, rank=1),
        Column("", stretch=True),
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(self.COLUMNS, id=id, title="DDR: whole program")
        self.found: Mapping[str, Any] | None = None

    def show_program(self, found: Mapping[str, Any] | None, reason: str, only: Arena | None) -> None:
        """Show what `engine.program_memory` found, of all arenas or of one; `reason` where there is nothing yet."""
        self.found = found
        self.empty = reason or self.EMPTY
        arenas = found["arenas"] if found else []
        wanted = [a for a in arenas if only is None or a["arena"] == only.name.lower()]
        largest = max((arena["bytes"] for arena in wanted), default=0)
        rows: list[Row] = []
        for name, group in groupby(wanted, key=lambda arena: str(arena["arena"])):
            members = list(group)
            rows.append(_head(name, members))
            rows += [_row(arena, largest) for arena in members]
        self.show(rows)
        self.border_title = "DDR: whole program"
        if found:
            self.border_title += f" · {units.size(found['bytes'])} from {units.address(found['start'])}"

    @property
    def arena(self) -> Mapping[str, Any] | None:
        """The arena under the cursor."""
        arenas = self.found["arenas"] if self.found else []
        return next((arena for arena in arenas if arena["address"] == self.key), None)


def _head(name: str, members: list[Mapping[str, Any]]) -> Row:
    arenas = f"{len(members)} arenas" if len(members) > 1 else "one arena"
    text = f"  {units.size(sum(arena['bytes'] for arena in members))} in {arenas} · {ARENA_ABOUT[Arena[name.upper()]]}"
    return Row(((f"▾ {name}", "heading bold"), (text, "muted")), head=True)


def _row(arena: Mapping[str, Any], largest: int) -> Row:
    layer = "-" if arena["layer"] is None else str(arena["layer"])
    unused = units.size(arena["bytes"] - arena["used_bytes"])
    return Row(
        (
            layer,
            (units.address(arena["address"]), "muted"),
            units.size(arena["bytes"]),
            (unused, "muted"),
            lambda width: _bar(arena, largest, width),
        ),
        arena["address"],
    )


def _bar(arena: Mapping[str, Any], largest: int, width: int) -> Line:
    """The arena's kinds one behind the other, then what is unused."""
    cells = max(1, arena["bytes"] * width // largest)
    bar: list[Span] = []
    drawn = covered = 0
    for kind, nbytes in arena["kinds"].items():
        covered += nbytes
        end = -(-covered * cells // arena["bytes"])
        bar.append(("█" * (end - drawn), _ROLES[kind]))
        drawn = end
    return [*bar, ("·" * (cells - drawn), "faint")]


def program_lines(found: Mapping[str, Any], arena: Mapping[str, Any] | None) -> list[Line]:
    """The arena under the cursor and the sums of the program, for the panel of details."""
    labelled: list[tuple[str, str]] = []
    if arena is not None:
        labelled += [("holds", kinds_text(arena["kinds"])), ("modules", " ".join(arena["modules"]))]
    labelled += summary(found)
    return [[(f"{label:<8} ", "muted"), (text, "")] for label, text in labelled]


def program_title(arena: Mapping[str, Any] | None) -> str:
    """What the details are about: `io of layer 3`."""
    if arena is None:
        return "whole program"
    return str(arena["arena"]) if arena["layer"] is None else f"{arena['arena']} of layer {arena['layer']}"
