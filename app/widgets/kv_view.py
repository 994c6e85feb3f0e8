"""The KV cache as data for tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app import units
from app.widgets.bars import Picture
from app.widgets.lines import Line, Span
from app.widgets.table import Column, Row, fitted
from engine.tables import KvLayer, KvTable


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
        self.filled = 0
        self.modules: Mapping[int, str] = {}

    def show(self, table: KvTable | None, filled: int, modules: Mapping[int, str]) -> None:
        """Show a cache. modules: cache length -> name of the decode module that reads so many rows."""
        self.table, self.filled, self.modules = table, filled, modules
        self.refresh()

    def lines(self, width: int) -> Sequence[Line]:
        """The picture."""
        if self.table is None:
            return []
        return [[(" ", ""), *line] for line in picture(self.table, self.filled, self.modules, width - 2)]


def picture(table: KvTable, filled: int, modules: Mapping[int, str], width: int) -> list[Line]:
    """The cache in words, then K and V of one layer row by row from left to right."""
    layers = len(table.layers)
    total = units.size(table.history_bytes)
    room = max(10, width - KvPicture.LEFT - KvPicture.RIGHT)
    variant = table.variant(filled)
    following = modules.get(variant, "none fits") if variant is not None else "none: the cache is full"
    head: list[Span] = [
        ("KV cache ", "heading bold"),
        (
            f"{layers} layers × (K + V) × {table.history_rows} rows × {units.size(table.row_bytes)} = ",
            "muted",
        ),
        (total, "kv bold"),
    ]
    use: list[Span] = [
        ("filled ", "muted"),
        (f"{filled} of {table.history_rows} rows", "kv"),
        ("   next token runs ", "muted"),
        (following, "heading"),
    ]
    return [
        fitted(head, width),
        fitted(use, width),
        [],
        *_regions(table, filled, room),
        _marks(table, room),
        [
            (" " * KvPicture.LEFT, ""),
            (f"one token adds {units.size(table.token_bytes)} · ", "muted"),
            (f"a decode step reads up to {units.size(table.history_bytes)}", "muted"),
        ],
    ]


def _regions(table: KvTable, filled: int, room: int) -> list[Line]:
    used = filled * room // table.rows
    history = table.history_rows * room // table.rows
    return [
        [
            (f" {name} ", "heading"),
            ("▕", "faint"),
            ("█" * used, "kv"),
            ("░" * (history - used), "kv"),
            ("·" * (room - history), "faint"),
            ("▏ ", "faint"),
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
    slots = [Column(f"slot at {length}", right=True, rank=1) for length in table.cache_lengths]
    return [
        Column("layer", right=True),
        Column("K base", right=True),
        Column("V base", right=True),
        *slots,
        Column("checks", stretch=True),
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


def _checks(layer: KvLayer) -> Sequence[Span]:
    if layer.problems:
        return [("✗ ", "bad bold"), ("; ".join(layer.problems), "bad")]
    return [("✓ ", "good"), ("V behind K · at slots · no overlap", "muted")]
