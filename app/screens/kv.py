"""Screen 4: the KV cache, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

from textual import on
from textual.widget import Widget

from app import units
from app.screens.base import WorkScreen
from app.widgets.inspector import Inspector
from app.widgets.kv_view import KvPicture, kv_columns, kv_rows
from app.widgets.lines import LineView, Span
from app.widgets.table import TableView
from app.workspace import Workspace
from engine.errors import CompileError, UserError
from engine.stages import Kind, Stage
from engine.tables import KvTable, kv_slots, kv_table


class KvList(TableView):
    """One row a layer."""

    HELP = """
Every layer owns one K and one V region, shared by its prefill, prefill_kv and decode modules. A decode module of cache
length C reads rows 0 to C-1 and writes its new row at **slot C**, right behind them, without a copy inside the module;
the runtime then moves the row to the first free one. The slots are bytes from the region's start: C × row bytes.

The checks hold for all modules of the layer: the same bases everywhere, V behind K, new rows at their slots, no
overlap with the next layer.
"""
    EMPTY = "the KV cache is laid out when all modules are compiled"


class KvScreen(WorkScreen):
    """The picture, the table by layer, and every module's view of the layer under the cursor."""

    NAME = "kv"
    DEFAULT_CSS = """
    KvScreen {
        #body { layout: vertical; }
        KvList { height: 1fr; }
        Inspector { height: 10; }
        &.-low Inspector { height: 5; }
        &.-low KvPicture { height: 7; }
    }
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.table: KvTable | None = None

    def compose_body(self) -> Iterator[Widget]:
        yield KvPicture()
        yield KvList(id="layers", title="KV regions by layer")
        yield Inspector(id="details")

    def on_mount(self) -> None:
        """The table is what keys go to."""
        super().on_mount()
        self.query_one(KvList).focus()

    def sync(self) -> None:
        """The cache of the whole program."""
        self.table, reason = self._load()
        layers = self.query_one(KvList)
        modules = {
            spec.cache: spec.name
            for spec in reversed(self.work.specs)
            if spec.kind is Kind.BLOCK and spec.stage is Stage.DECODE
        }
        self.query_one(KvPicture).show(self.table, self.work.filled, modules)
        if reason:
            layers.empty = reason
        if self.table is None:
            layers.show([], [])
        else:
            layers.show(kv_rows(self.table), kv_columns(self.table))
            layers.move_to_key(self.work.layer)
        self.show_details()

    def _load(self) -> tuple[KvTable | None, str]:
        work = self.work
        if work.running:
            done = f"{work.done_count()} of {len(work.specs)}"
            return None, f"laid out when all modules are compiled: {done} so far"
        try:
            return kv_table(work.compilation), ""
        except (UserError, CompileError) as error:
            return None, str(error).splitlines()[0]

    @on(LineView.Moved, "#layers")
    def moved(self) -> None:
        """Another layer."""
        key = self.query_one(KvList).key
        if isinstance(key, int):
            self.work.select_layer(key)
        self.show_details()

    def show_details(self) -> None:
        """What each module of the layer reads and writes."""
        panel = self.query_one(Inspector)
        key = self.query_one(KvList).key
        if self.table is None or not isinstance(key, int):
            panel.show("layer", [])
            return
        lines: list[list[Span]] = []
        for spec in self.work.specs:
            if spec.kind is not Kind.BLOCK or key not in spec.layers:
                continue
            slots = next(s for s in kv_slots(self.work.compilation, spec) if s.layer == key)
            reads = f"reads rows 0–{slots.rows - 1}" if slots.rows else "reads none"
            last = slots.rows + spec.rows - 1
            writes = f"writes row {slots.rows}" if spec.rows == 1 else f"writes rows {slots.rows}–{last}"
            at = f"K {units.address(slots.k_append_address)}  V {units.address(slots.v_append_address)} "
            lines.append(
                [
                    (f"{slots.module:<20}", "heading"),
                    (f"{reads:<20}", "kv"),
                    (f"{writes:<22}", ""),
                    (at, "muted"),
                    ("✓", "good") if slots.is_at_slot else ("✗", "bad"),
                ]
            )
        panel.show(f"layer {key}: what each module reads and where it writes", lines)
