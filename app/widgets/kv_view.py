"""The KV cache as data for tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app import units
from app.widgets.bars import Picture
from app.widgets.lines import Line, Span
from app.widgets.table import Cell, Column, Row, fitted, width_of
from engine.tables import KvLayer, KvSlots, KvTable


@dataclass(frozen=True)
class KvUse:
    """What fills and reads the cache.

    filled: rows that hold tokens. prefill: the module that fills an empty cache. modules: cache length -> the decode
    module that reads so many rows. step_bytes: all DDR bytes of one decode step behind a full cache; 0 while unknown.
    """

    filled: int = 0
    prefill: str = ""
    modules: Mapping[int, str] = field(default_factory=dict)
    step_bytes: float = 0


class KvPicture(Picture):
    """Totals, how full the cache is, and one layer's regions with the append slots of all variants."""

    DEFAULT_CSS = """
    KvPicture { height: 8; }
    """
    LEFT = 4
    RIGHT = 24

    def __init__(self) -> None:
        super().__init__()
        self.table: KvTable | None = None
        self.use = KvUse()

    def show(self, table: KvTable | None, use: KvUse) -> None:
        """Show a cache and what fills and reads it."""
        self.table, self.use = table, use
        self.refresh()

    def lines(self, width: int) -> Sequence[Line]:
        """The picture; a blank line parts words and regions where there is room."""
        if self.table is None:
            return []
        words, regions, step = picture(self.table, self.use, width - 2)
        blank: list[Line] = [[]] if self.size.height > len(words) + len(regions) + len(step) else []
        return [[(" ", ""), *line] for line in (*words, *blank, *regions, *step)]


def picture(table: KvTable, use: KvUse, width: int) -> tuple[list[Line], list[Line], list[Line]]:
    """The cache in words; K and V of one layer row by row from left to right; what a token and a step move."""
    total = units.size(table.history_bytes)
    layers = f"{len(table.layers)} layer{'s' * (len(table.layers) > 1)}"
    room = max(10, width - KvPicture.LEFT - KvPicture.RIGHT)
    head: list[Span] = [
        ("KV cache ", "heading bold"),
        (
            f"{layers} × (K + V) × {table.history_rows} rows × {units.size(table.row_bytes)} = ",
            "muted",
        ),
        (total, "kv bold"),
    ]
    fill: list[Span] = [
        ("filled ", "muted"),
        (f"{use.filled} of {table.history_rows} rows", "kv"),
        ("   next ", "muted"),
        *next_step(table, use),
    ]
    step = [_token(table), _reads(table, use)]
    if width_of(step[0]) + width_of(step[1]) + 3 <= width:
        step = [[*step[0], ("   ", ""), *step[1]], []]
    return (
        [fitted(head, width), fitted(fill, width)],
        [*_regions(table, use.filled, room), _marks(table, room)],
        list(step),
    )


def next_step(table: KvTable, use: KvUse) -> list[Span]:
    """The module that runs next, up to how many rows it does, and which one then."""
    if not use.filled:
        return [(use.prefill or "prefill", "heading"), (" (prefill: the cache is empty)", "muted")]
    length = table.variant(use.filled)
    if length is None:
        return [("none: the cache is full", "changed")]
    longer = min((other for other in table.cache_lengths if other > length), default=None)
    base = use.modules.get(table.cache_lengths[0], "")
    following = "full" if longer is None else use.modules.get(longer, "")
    after = following if following == base else following.removeprefix(base)
    return [
        (use.modules.get(length, "a module that is not compiled"), "heading"),
        (f" (≤ {length} rows → {after})", "muted"),
    ]


def _token(table: KvTable) -> list[Span]:
    rows = 2 * len(table.layers)
    return [
        ("one token moves ", "muted"),
        (units.size(table.token_bytes), "kv"),
        (f" into the cache ({rows} rows × {units.size(table.row_bytes)})", "muted"),
    ]


def _reads(table: KvTable, use: KvUse) -> list[Span]:
    if not use.step_bytes:
        return [("one decode step reads up to ", "muted"), (units.size(table.history_bytes), "kv")]
    return [
        ("one decode step reads ", "muted"),
        (units.size(table.history_bytes), "kv"),
        (f" of it ({100 * table.history_bytes / use.step_bytes:.0f} % of all DDR traffic)", "muted"),
    ]


def _regions(table: KvTable, filled: int, room: int) -> list[Line]:
    used = filled * room // table.rows
    history = table.history_rows * room // table.rows
    return [
        [
            (f" {name} ", "heading"),
            ("▕", "rule"),
            ("█" * used, "kv"),
            ("░" * (history - used), "kv"),
            ("·" * (room - history), "rule"),
            ("▏ ", "rule"),
            (f"{table.rows} rows = {units.size(table.rows * table.row_bytes)}", "muted"),
        ]
        for name in ("K", "V")
    ]


def _marks(table: KvTable, room: int) -> list[Span]:
    """Where each variant appends."""
    text = ""
    for length in sorted(table.cache_lengths):
        at = length * room // table.rows
        mark = f"↑{length}"
        if at >= len(text):
            text = text.ljust(at) + mark
    return [(" " * KvPicture.LEFT, ""), (text, "key"), ("  append slots", "muted")]


def kv_columns(table: KvTable) -> list[Column]:
    """Columns of the table by layer."""
    slots = [Column(f"slot {length}", right=True, rank=1) for length in table.cache_lengths]
    return [
        Column("layer", right=True),
        Column("K base", right=True),
        Column("V base", right=True),
        *slots,
        Column("checks", stretch=True, least=6),
    ]


def kv_rows(table: KvTable) -> list[Row]:
    """One row a layer."""
    return [
        Row(
            (
                str(layer.layer),
                (units.address(layer.k_address), "kv"),
                (units.address(layer.v_address), "kv"),
                *(
                    (f"+{layer.append[length]:,}" if length in layer.append else "-", "")
                    for length in table.cache_lengths
                ),
                _checks(layer),
            ),
            layer.layer,
        )
        for layer in table.layers
    ]


CHECKED = "V behind K · at slots · no overlap"
"""What a layer without problems was checked for."""


def _checks(layer: KvLayer) -> Cell:
    if layer.problems:
        return [("✗ ", "bad bold"), ("; ".join(layer.problems), "bad")]

    def fine(width: int) -> Line:
        return [("✓ ", "good"), (CHECKED if width >= len(CHECKED) + 2 else "", "muted")]

    return fine


def module_line(slots: KvSlots, rows: int, width: int) -> list[Span]:
    """What one module reads of a layer and where it writes; addresses where there is room, else the slot."""
    reads = f"reads {_rows(0, slots.rows)}"
    writes = f"writes {_rows(slots.rows, rows)}"
    fine = ("✓", "good") if slots.is_at_slot else ("✗ not at its slot", "bad")
    at = f"at +{slots.k_append_address - slots.k_address:,}"
    if width >= WIDE:
        at = f"K {units.address(slots.k_append_address)}  V {units.address(slots.v_append_address)}"
    return [
        (f"{slots.module:<18} ", "heading"),
        (f"{reads:<18} ", "kv" if slots.rows else "muted"),
        (f"{writes:<20} ", ""),
        (f"{at} ", "muted"),
        fine,
    ]


WIDE = 100
"""Cells from which a line about a module has room for addresses."""


def _rows(first: int, count: int) -> str:
    if count == 0:
        return "no rows"
    return f"row {first}" if count == 1 else f"rows {first}–{first + count - 1}"
