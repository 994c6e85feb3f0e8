"""Screen 4: the KV cache, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from textual import on
from textual.events import Resize
from textual.widget import Widget

from app.screens.base import WorkScreen
from app.widgets.inspector import Inspector
from app.widgets.kv_view import CHECKED, KvPicture, KvUse, kv_columns, kv_rows, module_line
from app.widgets.lines import LineView, Span
from app.widgets.table import TableView
from app.workspace import Workspace
from engine.errors import CompileError, UserError
from engine.stages import Kind, Stage
from engine.tables import KvTable, kv_slots, kv_table

if TYPE_CHECKING:
    from app.explorer import Explorer
    from engine.sim.throughput import Simulation


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
        self._step_bytes = 0.0
        self._priced: Workspace | None = None

    def compose_body(self) -> Iterator[Widget]:
        yield KvPicture()
        yield KvList(id="layers", title="KV regions by layer")
        yield Inspector(id="details")

    def on_mount(self) -> None:
        """The table is what keys go to."""
        super().on_mount()
        self.query_one(KvList).focus()

    @on(Resize)
    def fit_lines(self) -> None:
        """Lines fit the width."""
        if self.ready:
            self.call_after_refresh(self.show_details)

    def sync(self) -> None:
        """The cache of the whole program."""
        self.table, reason = self._load()
        layers = self.query_one(KvList)
        self._request_cost()
        self.show_picture()
        if reason:
            layers.empty = reason
        if self.table is None:
            layers.show([], [])
        else:
            layers.show(kv_rows(self.table), kv_columns(self.table))
            good = not any(layer.problems for layer in self.table.layers)
            layers.border_subtitle = f"✓ all layers: {CHECKED}" if good else "✗ see checks"
            layers.move_to_key(self.work.layer)
        self.show_details()

    def show_picture(self) -> None:
        """Totals, regions, and what runs next."""
        blocks = [spec for spec in self.work.specs if spec.kind is Kind.BLOCK]
        decode = {spec.cache: spec.name for spec in reversed(blocks) if spec.stage is Stage.DECODE}
        prefill = next((spec.name for spec in blocks if spec.stage is Stage.PREFILL), "")
        self.query_one(KvPicture).show(self.table, KvUse(self.work.filled, prefill, decode, self._step_bytes))

    def _request_cost(self) -> None:
        """Price a decode step behind a full cache in the engine's thread, once."""
        work = self.work
        if self.table is None or self._priced is work:
            return
        self._priced, self._step_bytes = work, 0.0

        def done(simulation: Simulation) -> None:
            if self._priced is self.work:
                self._step_bytes = simulation.decode.ddr_bytes_per_token
                self.show_picture()

        cast("Explorer", self.app).jobs.submit(work.simulator.simulate, done, lambda error: None)

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
            lines.append(module_line(slots, spec.rows, panel.inner_width))
        panel.show(f"layer {key}: what each module reads and where it writes", lines)
