"""Screen 2: where a module's tensors lie, when they live and what reuses what: in DDR, and in the local memory of its
layer groups; and the DDR of the whole program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from textual import on
from textual.containers import Vertical
from textual.widget import Widget

from app.actions import bindings
from app.screen_data import Subject
from app.screens.base import WorkScreen
from app.widgets.group_panel import LocalMemoryPane
from app.widgets.inspector import Inspector
from app.widgets.lines import LineView
from app.widgets.memory_view import (
    ArenaBars,
    MemoryMap,
    MemoryTable,
    ModuleMemory,
    memory_of,
    place_lines,
    place_name,
)
from app.widgets.program_memory import ProgramTable, program_lines, program_title
from app.workspace import Workspace
from engine.errors import CompileError
from engine.group_cores import core_shares
from engine.passes.layer_group.plan import LayerGroupReport
from engine.tpu.isa import Arena
from engine.tpu.memory import TensorPlace

ADDRESSED = "address-assign"
GROUPED, BEFORE_GROUPS, SHARED = "layer-group", "op-reorder", "core-parallel"


class MemoryScreen(WorkScreen):
    """Arena bars, the table or the map, and details of the tensor under the cursor."""

    NAME = "memory"
    BINDINGS = bindings("memory")
    DEFAULT_CSS = """
    MemoryScreen {
        #body { layout: vertical; }
        #views { height: 1fr; }
        MemoryTable { height: 1fr; }
        MemoryMap { height: 1fr; }
        Inspector { height: 9; }
        &.-low Inspector { height: 6; }
        &.-map MemoryTable { display: none; }
        &.-map MemoryMap { display: block; }
        LocalMemoryPane { display: none; }
        &.-local LocalMemoryPane { display: block; }
        &.-local ArenaBars, &.-local #views, &.-local #details { display: none; }
        ProgramTable { height: 1fr; display: none; }
        &.-program ProgramTable { display: block; }
        &.-program.-low Inspector { height: 7; }
        &.-program ArenaBars, &.-program #views { display: none; }
    }
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.only: Arena | None = None
        self.memory: ModuleMemory | None = None
        self._awaits_groups = False
        """Local memory was asked for before the module had come to its groups."""

    def compose_body(self) -> Iterator[Widget]:
        yield ArenaBars()
        with Vertical(id="views"):
            yield MemoryTable(id="table")
            yield MemoryMap(id="map")
        yield ProgramTable(id="program")
        yield Inspector(id="details")
        yield LocalMemoryPane(id="local")

    def on_mount(self) -> None:
        """The table is what keys go to."""
        super().on_mount()
        self.query_one(MemoryTable).focus()

    def sync(self) -> None:
        """The selected module's memory."""
        self.memory = self._load()
        table = self.query_one(MemoryTable)
        table.show_memory(self.memory, self.only)
        self.query_one(MemoryMap).show_memory(self.memory, table.key)
        spec = self.work.selected_spec
        name = self.work.layer_name
        if spec is not None and len(spec.layers) > 1:
            name += f" · layer {self.work.layer} of {len(spec.layers)} that share this module"
        table.border_title = f"DDR: {name}"
        self.query_one(MemoryMap).border_title = f"neuron arena: {self.work.layer_name} · address ↓ time →"
        if self.has_class("-program"):
            self._show_program()
        self.show_details()
        if self.has_class("-local"):
            self._show_groups()
        elif self._awaits_groups and not self._groups_to_come():
            self.action_local_memory()

    def _load(self) -> ModuleMemory | None:
        from engine.tables import layer_view, module_places

        snapshot = self.work.snapshot(ADDRESSED)
        if snapshot is None:
            return None
        view = layer_view(self.work.compilation, self.work.layer_name)
        places = module_places(self.work.compilation, self.work.module)
        return memory_of(snapshot, places, dict(view.shifts), self.work.compilation.complete)

    @property
    def place(self) -> TensorPlace | None:
        """The tensor under the cursor."""
        if self.memory is None:
            return None
        if self.has_class("-map"):
            return self.query_one(MemoryMap).place
        key = self.query_one(MemoryTable).key
        return next((place for place in self.memory.places if place.value == key), None)

    def show_details(self) -> None:
        """Bars and details for the tensor, or the arena of the program, under the cursor."""
        if self.has_class("-program"):
            self._show_arena()
            return
        place = self.place
        self.query_one(ArenaBars).show(self.memory, place)
        panel = self.query_one(Inspector)
        if place is None or self.memory is None:
            panel.show("tensor", [])
            return
        name = self.work.layer_text(place.name)
        panel.show(f"{place.value} {place_name(place)}", place_lines(self.memory, place, name))

    @on(LineView.Moved, "#table")
    @on(LineView.Moved, "#program")
    @on(MemoryMap.Picked)
    def moved(self) -> None:
        """Another tensor or arena."""
        self.show_details()

    def action_local_memory(self) -> None:
        """DDR, or local memory of the layer groups; of a module that is being compiled as soon as they are there."""
        self._awaits_groups = not self.has_class("-local") and self._groups_to_come()
        if self._awaits_groups:
            self.notify(
                f"{self.work.layer_name} is being compiled: its local memory is shown when it has layer groups"
            )
            return
        if not self.has_class("-local") and not self._show_groups():
            self.notify("this module has no layer groups: every op runs from DDR and back")
            return
        self.remove_class("-program")
        self.toggle_class("-local")
        if self.has_class("-local"):
            self.query_one(LocalMemoryPane).map.focus()
        else:
            self._focus_module()

    def _groups_to_come(self) -> bool:
        """Whether the module is still to be compiled, or is on the way to its groups."""
        arrived = self.work.snapshot(GROUPED) is not None
        return (
            self.work.running and not arrived and self.work.state(self.work.module) in ("pending", "running")
        )

    def _focus_module(self) -> None:
        """Keys go to the map or the table of the module."""
        (self.query_one(MemoryMap) if self.has_class("-map") else self.query_one(MemoryTable)).focus()

    def action_program(self) -> None:
        """DDR of the whole program, or back to the module."""
        self._awaits_groups = False
        self.remove_class("-local")
        self.toggle_class("-program")
        if self.has_class("-program"):
            self._show_program()
            self.query_one(ProgramTable).focus()
        else:
            self._focus_module()
        self.show_details()

    def leave(self) -> None:
        """Esc goes from the whole program or local memory back to the module's DDR, then to the explorer."""
        if self.has_class("-program"):
            self.action_program()
        elif self.has_class("-local"):
            self.action_local_memory()
        else:
            self._awaits_groups = False
            super().leave()

    def _show_program(self) -> None:
        found, reason = self._load_program()
        self.query_one(ProgramTable).show_program(found, reason, self.only)

    def _load_program(self) -> tuple[Mapping[str, Any] | None, str]:
        """The DDR of the whole program, or why there is none yet."""
        from engine.program_memory import program_memory

        if self.work.running:
            done = f"{self.work.done_count()} of {len(self.work.specs)}"
            return None, f"laid out when all modules are compiled: {done} so far"
        try:
            return program_memory(self.work.compilation), ""
        except CompileError as error:
            return None, str(error).splitlines()[0]

    def _show_arena(self) -> None:
        table, panel = self.query_one(ProgramTable), self.query_one("#details", Inspector)
        lines = program_lines(table.found, table.arena) if table.found else []
        panel.show(program_title(table.arena), lines)

    def _show_groups(self) -> bool:
        """Give the pane the selected module's groups; False when there are none."""
        grouped, before = self.work.snapshot(GROUPED), self.work.snapshot(BEFORE_GROUPS)
        if grouped is None or before is None or not isinstance(grouped.report, LayerGroupReport):
            return False
        pane = self.query_one(LocalMemoryPane)
        options, shared = self.work.compilation.options, self.work.snapshot(SHARED)
        shares = (
            core_shares(grouped.report, shared.ops, options.cores) if options.cores > 1 and shared else ()
        )
        if pane.report is not grouped.report or pane.shares != shares:
            pane.show_report(grouped.report, before.ops, options.chip, self.work.layer_name, shares)
        return bool(grouped.report.groups)

    @on(LocalMemoryPane.OpAsked)
    def op_in_ir(self, message: LocalMemoryPane.OpAsked) -> None:
        """Show a buffer's op in the IR, before it was grouped."""
        self.show_op_in_ir(self.work.module, BEFORE_GROUPS, message.op)

    def subject(self) -> Subject:
        """DDR of the module or of the program, or a layer group."""
        pane = self.query_one(LocalMemoryPane)
        if self.has_class("-local"):
            return Subject(self.NAME, "local", pane.number, pane.core)
        return Subject(self.NAME, "program" if self.has_class("-program") else "")

    def action_time_axis(self) -> None:
        """Map or table."""
        self._awaits_groups = False
        self.remove_class("-local", "-program")
        self.toggle_class("-map")
        on_map = self.has_class("-map")
        if on_map:
            self.query_one(MemoryMap).show_memory(self.memory, self.query_one(MemoryTable).key)
        elif (place := self.query_one(MemoryMap).place) is not None:
            self.query_one(MemoryTable).move_to_key(place.value)
        self._focus_module()
        self.show_details()

    def action_arena(self) -> None:
        """All arenas, then one after the other."""
        order = [None, Arena.NEURON, Arena.IO, Arena.COEFF]
        self.only = order[(order.index(self.only) + 1) % len(order)]
        self.query_one(MemoryTable).show_memory(self.memory, self.only)
        if self.has_class("-program"):
            self._show_program()
        self.show_details()
