"""Screen 3: what the program costs on its chip, stage by stage and op by op, and how fast it decodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from textual import on
from textual.containers import Horizontal
from textual.events import Resize
from textual.widget import Widget

from app import units
from app.actions import bindings
from app.screens.base import WorkScreen
from app.widgets.ask import AskBar
from app.widgets.inspector import Inspector
from app.widgets.lines import LineView
from app.widgets.simulation_view import (
    SORTS,
    STAGES,
    StageCost,
    StageHead,
    StageOp,
    engines_line,
    has_stage,
    most_used,
    op_columns,
    op_details,
    op_rows,
    run_line,
    speed_line,
    stage_cost,
    table_title,
    tabs_line,
    traffic_line,
    variants,
    wanted_ops,
)
from app.widgets.speed_plot import Curve, SpeedPlot
from app.widgets.table import TableView
from app.widgets.timeline import TimelineView
from app.workspace import Workspace
from engine.errors import CompileError, UserError
from engine.stages import Stage

if TYPE_CHECKING:
    from app.explorer import Explorer
    from app.widgets.timeline_facts import TimelineFacts
    from engine.sim.throughput import Simulation

CURVE_POINTS = 64
ASK_LENGTHS = "prompt length, tokens to generate"
ASK_FILTER = "filter"
NO_OP = -1
"""In the place of an op record: no op in particular."""

ModuleRun = tuple[str, int | None]
"""Module, and the rows of history that it reads (None: all)."""


class OpTable(TableView):
    """Ops by cost."""

    HELP = """
Every op of the stage, summed over the layers that run it: **cycles** are what the op adds to the stage's time, **read**
and **write** its DDR bytes, **bound by** the engine that is busier while it runs: `memory` (GDMA) or `compute` (TIU).

**[** and **]** choose the stage, **v** the decode variant, **s** the order, **f** the ops that have a text in their
name or location (nothing shows all again), **p** the lengths of prompt and generation. **t** shows the op's module as a
timeline of the two engines; **o** or enter the op in the explorer.
"""
    EMPTY = "simulated when all modules are compiled"


class SimulateScreen(WorkScreen):
    """Stage totals, the op table, the op under the cursor and the speed curve; or the timeline of its module."""

    NAME = "simulate"
    BINDINGS = bindings("simulate")
    DEFAULT_CSS = """
    SimulateScreen {
        #body { layout: vertical; }
        OpTable { height: 1fr; }
        #below { height: 12; }
        #below Inspector { width: 1fr; height: 100%; }
        &.-low #below { height: 6; }
        &.-low SpeedPlot { display: none; }
        &.-curve SpeedPlot { display: block; }
        &.-low.-curve #below { height: 11; }
        &.-low.-curve Inspector { display: none; }
        &.-narrow.-tall #below { height: 14; }
        TimelineView { display: none; height: 1fr; }
        &.-timeline TimelineView { display: block; }
        &.-timeline #below { display: none; }
        &.-timeline OpTable, &.-timeline StageHead { display: none; }
        &.-timeline.-high OpTable, &.-timeline.-high StageHead { display: block; }
        &.-timeline.-high TimelineView { height: 2fr; }
    }
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.stage = Stage.DECODE
        self.variant = 0
        self.sort = "cycles"
        self.lengths: tuple[int, int] | None = None
        self.cost: StageCost | None = None
        self.wanted = ""
        """Text that the listed ops have in their name or location."""
        self._facts: dict[ModuleRun, TimelineFacts] = {}
        self._wanted_before = ""
        self._timed: tuple[ModuleRun, int] | None = None
        """Module and op record that the timeline was asked for."""
        self._asked_for: object = None
        self._problem = ""

    def compose_body(self) -> Iterator[Widget]:
        yield StageHead()
        yield OpTable(id="ops", title="ops")
        with Horizontal(id="below"):
            yield Inspector(id="details")
            yield SpeedPlot()
        yield TimelineView(id="timeline")

    def on_mount(self) -> None:
        """The table is what keys go to."""
        super().on_mount()
        self.query_one(OpTable).focus()

    def attach(self, workspace: Workspace) -> None:
        """Another program: forget its stage and lengths."""
        self.stage, self.variant, self.lengths, self._asked_for = Stage.DECODE, 0, None, None
        self.wanted, self._timed = "", None
        self._facts.clear()
        self.remove_class("-timeline")
        super().attach(workspace)

    # -- contents -----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """The simulation, or why there is none yet."""
        if self.work.simulation is None:
            self._request(None)
        self._show()

    def _request(self, lengths: tuple[int, int] | None) -> None:
        """Simulate in the engine's thread; when it is done the screen shows it."""
        work = self.work
        if work.running or not work.compilation.complete or self._asked_for == (id(work), lengths):
            return
        self._asked_for = (id(work), lengths)

        def compute() -> tuple[Simulation, Curve]:
            prompt, generate = lengths or (None, None)
            simulation = work.simulator.simulate(prompt, generate)
            return simulation, work.curve or _curve(work)

        def done(result: tuple[Simulation, Curve]) -> None:
            work.simulation, work.curve = result
            self.lengths, self._problem = lengths, ""
            self.variant = most_used(result[0].decode)
            if work is self.work and self.ready:
                self._show()

        def failed(error: Exception) -> None:
            if not isinstance(error, (UserError, CompileError)):
                error = RuntimeError(f"{type(error).__name__}: {error}")
            self._problem = str(error)
            self.notify(str(error), severity="error", title="cannot simulate", timeout=8)
            self._show()

        cast("Explorer", self.app).jobs.submit(compute, done, failed)

    def _show(self) -> None:
        work, table = self.work, self.query_one(OpTable)
        simulation = work.simulation
        if simulation is None:
            self.cost = None
            table.empty = self._missing()
            table.show([], [])
            self.query_one(StageHead).show([])
            self.query_one(Inspector).show("op", [])
            return
        choices = variants(work.specs)
        self.variant = min(self.variant, max(0, len(choices) - 1))
        self.cost = stage_cost(work.compilation, simulation, self.stage, self.variant)
        shown = wanted_ops(self.cost, self.wanted)
        table.empty = f"no op has {self.wanted!r} in its name or location: f changes the text"
        table.show(op_rows(self.cost, self.sort, shown), op_columns(self.sort))
        table.border_title = table_title(self.cost, shown, self.wanted, self.sort)
        table.border_subtitle = units.CONTENTION if self.cost.cores > 1 else ""
        self._show_head(simulation)
        self.query_one(SpeedPlot).show(work.curve)
        self.show_details()

    def _show_head(self, simulation: Simulation) -> None:
        assert self.cost is not None
        width, options = self.size.width, self.work.compilation.options
        choices = variants(self.work.specs)
        stages = [stage for stage in STAGES if has_stage(self.work.specs, stage)]
        self.query_one(StageHead).show(
            [
                tabs_line(stages, self.stage, choices, self.variant, simulation.decode, width),
                speed_line(self.stage, simulation, self.lengths, options, width),
                run_line(self.cost, simulation, options, width),
                engines_line(self.cost, width),
                traffic_line(simulation.decode.breakdown, width) if self.stage is Stage.DECODE else [],
            ]
        )

    def _missing(self) -> str:
        work = self.work
        if self._problem:
            return self._problem
        if work.running:
            return f"simulated when all modules are compiled: {work.done_count()} of {len(work.specs)} so far"
        if work.compilation.failures:
            return f"{next(iter(work.compilation.failures))} failed: the program is not whole"
        if not work.compilation.complete:
            return "the compilation was cancelled: the program is not whole"
        return "simulating…"

    def on_resize(self, event: Resize) -> None:
        """Bars are as long as there is room."""
        super().on_resize(event)
        if self.cost is not None and self.work.simulation is not None:
            self._show_head(self.work.simulation)
            self.call_after_refresh(self.show_details)

    # -- the op under the cursor --------------------------------------------------------------------------------

    @property
    def op(self) -> StageOp | None:
        """The op under the cursor."""
        key = self.query_one(OpTable).key
        ops = self.cost.ops if self.cost else ()
        return next((op for op in ops if (op.module, op.index) == key), None)

    @on(LineView.Moved, "#ops")
    def show_details(self) -> None:
        """Cost of the op, once and in all layers."""
        op, panel = self.op, self.query_one(Inspector)
        if op is None or self.cost is None:
            panel.show("op", [])
            return
        timing = self.work.timings.get(op.module)
        row = next((r for r in timing.ops if r.op == op.index), None) if timing else None
        options = self.work.compilation.options
        lines = op_details(op, self.cost, row, options, panel.inner_width - 1)
        panel.show(f"{op.record.name} · {op.label}", lines)
        if self.has_class("-timeline"):
            self._time(op.module, op.index)

    # -- what the user does -------------------------------------------------------------------------------------

    def action_stage(self, step: int) -> None:
        """Next or previous stage."""
        stages = [stage for stage in STAGES if has_stage(self.work.specs, stage)]
        at = stages.index(self.stage) if self.stage in stages else 0
        self.stage = stages[(at + step) % len(stages)]
        self._show()

    def action_variant(self) -> None:
        """Next decode variant."""
        count = len(variants(self.work.specs))
        if self.stage is not Stage.DECODE or count < 2:
            self.notify("only decode has variants" if count > 1 else "this program has no decode variants")
            return
        self.variant = (self.variant + 1) % count
        self._show()

    def action_sort(self) -> None:
        """Next order."""
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        if self.work.simulation is not None:
            self._show()

    def action_curve(self) -> None:
        """The curve in the place of the op's details, where there is no room for both."""
        self.toggle_class("-curve")

    @on(LineView.Chosen, "#ops")
    @on(LineView.Chosen, "#timeline")
    def action_in_ir(self) -> None:
        """The op in the explorer."""
        timeline = self.query_one(TimelineView)
        if timeline.has_focus and timeline.facts is not None:
            lanes = timeline.facts.lanes
            self.show_op_in_ir(lanes.spec_name, "codegen", lanes.records[int(lanes.op[timeline.cursor])])
            return
        op = self.op
        if op is None:
            return
        self.show_op_in_ir(op.module, "codegen", op.record)

    # -- timeline -----------------------------------------------------------------------------------------------

    def action_timeline(self) -> None:
        """The timeline of the op's module in the place of the table, or below it; or the table again."""
        if self.has_class("-timeline"):
            self._close_timeline()
            return
        op = self.op
        if op is None:
            self.notify(self._missing() if self.cost is None else "put the cursor on an op first")
            return
        self.add_class("-timeline")
        self._time(op.module, op.index)
        self.query_one(TimelineView).focus()

    def _close_timeline(self) -> None:
        self.unzoom()
        self.remove_class("-timeline")
        self._timed = None
        self.query_one(OpTable).focus()

    def leave(self) -> None:
        """Esc: out of the timeline first."""
        if self.has_class("-timeline"):
            self._close_timeline()
        else:
            super().leave()

    def _time(self, module: str, op: int) -> None:
        """Show a module, the cursor on an op; computed in the engine's thread when it is first wanted."""
        assert self.cost is not None
        history = next(cost.history for spec, cost in self.cost.modules if spec.name == module)
        key = module, history
        if self._timed == (key, op):
            return
        self._timed = key, op
        if key in self._facts:
            self._show_lanes()
            return
        view, work = self.query_one(TimelineView), self.work
        view.show(None, note=f"computing the timeline of {module}…")

        def compute() -> TimelineFacts:
            from app.widgets.timeline_facts import TimelineFacts
            from engine.lanes import module_lanes

            return TimelineFacts(module_lanes(work.compilation, module, history))

        def done(facts: TimelineFacts) -> None:
            if work is self.work:
                self._facts[key] = facts
                self._show_lanes()

        def failed(error: Exception) -> None:
            if self._timed is not None and self._timed[0] == key:
                view.show(None, note=str(error))

        cast("Explorer", self.app).jobs.submit(compute, done, failed)

    def _show_lanes(self) -> None:
        """The module that is wanted, if it is there."""
        key, op = self._timed or (None, NO_OP)
        if key not in self._facts:
            return
        view, facts = self.query_one(TimelineView), self._facts[key]
        if view.facts is facts:
            view.move_to(facts.first_of(op))
        else:
            view.show(facts, max(0, facts.first_of(op)))

    def action_module(self, step: int) -> None:
        """In the timeline the stage's next or previous module."""
        if not self.has_class("-timeline") or self.cost is None or self._timed is None:
            super().action_module(step)
            return
        names = [spec.name for spec, _ in self.cost.modules]
        here = self._timed[0][0]
        at = names.index(here) + step if here in names else 0
        if 0 <= at < len(names):
            self._time(names[at], NO_OP)
        else:
            self.notify(f"{here} is the stage's {'last' if step > 0 else 'first'} module")

    # -- questions ----------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Ask which ops to list."""
        if self.cost is None:
            self.notify(self._missing())
            return
        self.query_one(AskBar).ask(
            ASK_FILTER, "text in the op's name or location; empty for all", self.wanted
        )
        self._wanted_before = self.wanted

    def action_lengths(self) -> None:
        """Ask for the lengths."""
        if self.work.simulation is None:
            self.notify(self._missing())
            return
        text = f"{self.lengths[0]} {self.lengths[1]}" if self.lengths else ""
        self.query_one(AskBar).ask(ASK_LENGTHS, "such as 300 100; empty for the compiled lengths", text)

    @on(AskBar.Changed)
    def given(self, event: AskBar.Changed) -> None:
        """List the ops while the filter is typed; simulate for the lengths when they are there."""
        if event.kind == ASK_FILTER:
            self.wanted = event.text.strip()
            self._show()
        if event.kind not in (ASK_FILTER, ASK_LENGTHS) or not event.done:
            return
        if event.kind == ASK_LENGTHS and not self._simulate_for(event.text):
            return
        self._close_question()

    @on(AskBar.Dropped)
    def dropped(self, event: AskBar.Dropped) -> None:
        """Nothing changes."""
        if event.kind == ASK_FILTER:
            self.wanted = self._wanted_before
            self._show()
        if event.kind in (ASK_FILTER, ASK_LENGTHS):
            self._close_question()

    def _close_question(self) -> None:
        self.query_one(AskBar).close()
        table = self.query_one(OpTable)
        (table if table.display else self.query_one(TimelineView)).focus()

    def _simulate_for(self, text: str) -> bool:
        """Ask for a simulation; False, with the reason on the screen, for a text that is no lengths."""
        try:
            self._request(lengths_of(text))
        except UserError as error:
            self.notify(str(error), severity="warning")
            return False
        return True


def lengths_of(text: str) -> tuple[int, int] | None:
    """Lengths of prompt and generation as people type them: `300 100`, `300, 100`; None for an empty text.

    Raises UserError for anything else.
    """
    if not text.strip():
        return None
    found = re.fullmatch(r"\s*([0-9]+)(?:\s*,\s*|\s+)([0-9]+)\s*", text)
    if found is None:
        raise UserError(
            f"{text.strip()!r} is not understood; accepted: two whole numbers, tokens of the prompt and tokens to "
            "generate, such as 300 100; nothing for the compiled lengths"
        )
    return int(found[1]), int(found[2])


def _curve(work: Workspace) -> Curve:
    """Tokens/s for lengths from empty to full."""
    length = work.compilation.options.seq_length
    steps = min(CURVE_POINTS, length)
    rows = sorted({round(i * (length - 1) / max(1, steps - 1)) for i in range(steps)})
    return tuple((n, work.simulator.tokens_per_second(n)) for n in rows)
