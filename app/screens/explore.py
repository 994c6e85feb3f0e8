"""Screen 1: modules, passes, the IR after a pass or the diff of it, and what the cursor is on."""

from __future__ import annotations

from collections.abc import Iterator

from textual import on
from textual.containers import Vertical
from textual.events import DescendantFocus
from textual.widget import Widget

from app.actions import bindings
from app.screen_data import Subject
from app.screens.base import WorkScreen
from app.widgets.documents import (
    GIVEN,
    Comparison,
    Document,
    RawDocument,
    SideBySideDocument,
    SnapshotDocument,
    UnifiedDocument,
)
from app.widgets.inspector import Inspector, module_lines, module_title, op_lines, op_title, pass_lines
from app.widgets.ir_view import IrView
from app.widgets.lines import LineView
from app.widgets.lists import PassList
from app.widgets.module_tree import ModuleTree
from app.widgets.stage_summary import stage_lines, stage_title
from app.workspace import Workspace
from engine.snapshot import OpRecord, Snapshot

_CONTEXTS = (0, 1, 3, 6, 12, 25, 31)
"""Equal ops around a change that + and - step through; the last shows all."""


Place = tuple[str, int, str, OpRecord | None]
"""Module, layer, pass and op that were looked at."""


class ExploreScreen(WorkScreen):
    """Modules, passes, IR and the inspector."""

    NAME = "explore"
    BINDINGS = bindings("explore")
    DEFAULT_CSS = """
    ExploreScreen {
        #body { layout: horizontal; }
        #side { width: 31; min-width: 24; layout: vertical; }
        #main { width: 1fr; layout: vertical; }
        ModuleTree { height: 1fr; }
        PassList { height: 1fr; }
        IrView { height: 1fr; }
        Inspector { height: 9; }
        &.-low Inspector { height: 7; }
        &.-low ModuleTree { height: 9; }
        &.-normal #side { width: 37; }
        &.-tall ModuleTree { height: 1fr; }
        &.-tall PassList { height: 14; }
        &.-tall Inspector { height: 13; }
        &.-wide #side { width: 78; layout: horizontal; }
        &.-wide ModuleTree { width: 35; height: 1fr; }
        &.-wide PassList { width: 1fr; height: 1fr; }
        &.-wide.-high #side { width: 64; layout: vertical; }
        &.-wide.-high ModuleTree { width: 1fr; height: 1fr; }
        &.-wide.-high PassList { width: 1fr; height: 1fr; }
        &.-high Inspector { height: 18; }
    }
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.diff_on = False
        self.side = False
        self.exact = False
        self.given = True
        self.only_changed = False
        self.marked: str | None = None
        self._around = 2
        self._trail: list[Place] = []
        self._shown: tuple[object, ...] = ()
        self._comparisons: dict[tuple[int, int], Comparison] = {}
        self._about = "op"

    def compose_body(self) -> Iterator[Widget]:
        with Vertical(id="side"):
            yield ModuleTree(id="modules")
            yield PassList(id="passes")
        with Vertical(id="main"):
            yield IrView(id="ir")
            yield Inspector(id="inspector")

    def on_mount(self) -> None:
        """The IR is what people came for."""
        super().on_mount()
        self.ir.focus()

    @property
    def ir(self) -> IrView:
        """The IR view."""
        return self.query_one(IrView)

    # -- contents -----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Lists, IR and inspector as the workspace is now."""
        self.query_one(ModuleTree).sync(self.work, self.ticks)
        self.query_one(PassList).sync(self.work, self.only_changed, self.marked)
        self.show_ir()

    def subject(self) -> Subject:
        """The modules where the cursor is among them, else the passes of one."""
        return Subject(self.NAME, "modules" if self._about == "modules" else "")

    def progressed(self, changed: bool) -> None:
        """New passes, and the spinner."""
        super().progressed(changed)
        if self.ready and not changed:
            self.query_one(ModuleTree).sync(self.work, self.ticks)

    @property
    def ticks(self) -> int:
        """Steps of the spinner."""
        return int(self.work.elapsed * 8)

    def show_ir(self, keep: OpRecord | None = None) -> None:
        """The IR view for the selection, with the cursor on `keep`; nothing is done when it shows that already."""
        snapshot = self._read(self.work.snapshot())
        base = self._read(self._diff_base()) if self.diff_on else None
        missing = self._missing() if snapshot is None else ""
        view = (self.diff_on, self.side, self.exact, self.given, self._around)
        wanted = (id(snapshot), id(base), missing, *view)
        if wanted != self._shown or keep is not None:
            here = self.ir.op()
            document = self._document(snapshot, base)
            if document is not None:
                document.layer = self.work.layer
            self._shown = wanted
            self.ir.show(document, keep or (here[1] if here else None))
        self._title(snapshot, base)
        self.inspect()

    def _read(self, snapshot: Snapshot | None) -> Snapshot | None:
        """A snapshot as the selected layer has it."""
        return None if snapshot is None else self.work.reading(snapshot)

    def _diff_base(self) -> Snapshot | None:
        if self.marked and self.marked != self.work.pass_name:
            return self.work.snapshot(self.marked)
        return self.work.before()

    def _document(self, snapshot: Snapshot | None, base: Snapshot | None) -> Document | None:
        if snapshot is None:
            self.ir.empty = self._missing()
            return None
        if base is not None:
            pair = self._comparison(base, snapshot)
            context = _CONTEXTS[self._around]
            return (SideBySideDocument if self.side else UnifiedDocument)(pair, context, self._hidden)
        return RawDocument(snapshot) if self.exact else SnapshotDocument(snapshot, self._hidden)

    @property
    def _hidden(self) -> frozenset[str]:
        return frozenset() if self.given else GIVEN

    def _comparison(self, before: Snapshot, after: Snapshot) -> Comparison:
        key = (id(before), id(after))
        if key not in self._comparisons:
            if len(self._comparisons) > 40:
                self._comparisons.clear()
            self._comparisons[key] = Comparison(before, after)
        return self._comparisons[key]

    def _missing(self) -> str:
        if self.work.problem:
            return self.work.problem
        state = self.work.state(self.work.module)
        if state == "failed":
            return "the pass did not get this far: select the failed pass to see why"
        if self.work.running:
            return f"{self.work.pass_name} has not run yet"
        return f"{self.work.module} was not compiled this far"

    def _title(self, snapshot: Snapshot | None, base: Snapshot | None) -> None:
        view = self.ir
        name = self.work.layer_name
        view.border_subtitle = " "
        if snapshot is None:
            view.border_title = f"{name} · {self.work.pass_name}"
            return
        if base is None:
            first = " (the first, nothing to compare)" if self.diff_on else ""
            kind = "MLIR text" if self.exact else "IR" if self.given else "IR without weights"
            title = f"{kind}: {name} after {snapshot.pass_name}{first}"
        else:
            where = f"{name} · " if view.inner_width > 70 else ""
            title = f"diff: {where}{base.pass_name} → {snapshot.pass_name}"
        provisional = " · addresses provisional" if self.work.is_provisional(snapshot) else ""
        view.border_title = title + provisional
        view.border_subtitle = " · ".join([*self._counts(snapshot, base), *snapshot.notes])

    def _counts(self, snapshot: Snapshot, base: Snapshot | None) -> list[str]:
        if base is None:
            return []
        return [self._comparison(base, snapshot).difference.summary()]

    def inspect(self) -> None:
        """The inspector for the focused panel's cursor."""
        panel = self.query_one(Inspector)
        width = panel.inner_width
        stage = self.query_one(ModuleTree).stage
        if self._about == "modules" and stage is not None:
            panel.show(stage_title(self.work, stage), stage_lines(self.work, stage, width))
            return
        if self._about == "modules":
            panel.show(module_title(self.work), module_lines(self.work, width))
            return
        here = self.ir.op()
        if self._about == "passes" or here is None:
            name = self.work.pass_name
            panel.show(f"pass: {name}", pass_lines(self.work, name, width))
            return
        snapshot, op = here
        panel.show(op_title(op), op_lines(self.work, snapshot, op, width))

    # -- what the user does -------------------------------------------------------------------------------------

    @on(DescendantFocus)
    def focus_moved(self, event: DescendantFocus) -> None:
        """The inspector is about the focused panel."""
        about = {"modules": "modules", "passes": "passes", "ir": "op"}.get(event.widget.id or "")
        if about and about != self._about:
            self._about = about
            self.inspect()

    @on(LineView.Moved, "#modules")
    def module_moved(self, event: LineView.Moved) -> None:
        """Another module; on a stage the last one stays, and the inspector sums up the stage."""
        module = self.query_one(ModuleTree).module
        if module is not None and module != self.work.module:
            self.work.select_module(module)
            self.sync()
        else:
            self.inspect()

    @on(LineView.Moved, "#passes")
    def pass_moved(self, event: LineView.Moved) -> None:
        """Another pass."""
        key = self.query_one(PassList).key
        if isinstance(key, str) and key != self.work.pass_name:
            self.work.pass_name = key
            self.show_ir()

    @on(LineView.Chosen, "#modules")
    def module_chosen(self) -> None:
        """On to the passes."""
        self.query_one(PassList).focus()

    @on(LineView.Chosen, "#passes")
    def pass_chosen(self) -> None:
        """On to the IR."""
        self.ir.focus()

    @on(LineView.Chosen, "#ir")
    def op_chosen(self) -> None:
        """A gap of a diff opens; an op is read in the inspector."""
        if self.diff_on and self.ir.op() is None:
            self.action_context(1)
        else:
            self.query_one(Inspector).focus()

    @on(LineView.Moved, "#ir")
    def op_moved(self) -> None:
        """Another op."""
        self._about = "op"
        self.inspect()

    def action_step(self, step: int) -> None:
        """Next or previous pass in the list."""
        names = list(self.query_one(PassList).passes)
        if self.work.pass_name not in names:
            return
        at = names.index(self.work.pass_name) + step
        if 0 <= at < len(names):
            self.work.pass_name = names[at]
            self.query_one(PassList).move_to_key(names[at])
            self.show_ir()

    def action_diff(self) -> None:
        """Diff on or off."""
        self.diff_on = not self.diff_on
        self.show_ir()

    def action_side_by_side(self) -> None:
        """Side by side or unified; turns the diff on."""
        self.side = not self.side if self.diff_on else True
        self.diff_on = True
        self.show_ir()

    def action_context(self, step: int) -> None:
        """More or fewer equal ops around each change."""
        if not self.diff_on:
            self.notify("d shows the diff; + and - then change how much of its surroundings is shown")
            return
        self._around = min(max(self._around + step, 0), len(_CONTEXTS) - 1)
        self.show_ir()

    def action_raw(self) -> None:
        """Exact text or reading form."""
        self.exact = not self.exact
        self.diff_on = False
        self.show_ir()

    def action_weights(self) -> None:
        """With or without weights and inputs."""
        self.given = not self.given
        self.show_ir()

    def action_changed_only(self) -> None:
        """Only passes that changed something."""
        self.only_changed = not self.only_changed
        self.query_one(PassList).sync(self.work, self.only_changed, self.marked)

    def action_mark(self) -> None:
        """Diffs start at this pass, or again at the one before."""
        self.marked = None if self.marked == self.work.pass_name else self.work.pass_name
        text = f"diffs start at {self.marked}" if self.marked else "diffs start at the pass before"
        self.notify(text)
        self.query_one(PassList).sync(self.work, self.only_changed, self.marked)
        self.show_ir()

    def go_to(self, view: LineView, wanted: str) -> bool:
        """A module, by the name of any layer, from wherever modules and their IR are shown; else a line of the view."""
        before = self._place()
        if not self.work.go_to(wanted):
            return super().go_to(view, wanted)
        self._trail.append(before)
        self.sync()
        return True

    # -- following an op ----------------------------------------------------------------------------------------

    def action_origin(self) -> None:
        """Back through the passes: to the snapshot in which the op was last something else."""
        here = self.ir.op()
        if here is None:
            self.notify("put the cursor on an op first")
            return
        snapshot, op = here
        target = self._earlier(snapshot, op)
        if target is None:
            self.notify(self._root_text(op), title="this is where it starts")
            return
        self._jump(target, op)

    def _earlier(self, snapshot: Snapshot, op: OpRecord) -> Snapshot | None:
        """The latest snapshot before in which this op's origin is made of other ops; the first one at last."""
        found = self.work.snapshots().snapshots
        at = next((i for i, s in enumerate(found) if s.pass_name == snapshot.pass_name), 0)
        now = _signature(snapshot, op)
        for earlier in reversed(found[:at]):
            if _signature(earlier, op) != now:
                return earlier
        return found[0] if at else None

    def _root_text(self, op: OpRecord) -> str:
        way = self.work.provenance(op)
        if way is None or not way.tensors:
            return f"{op.name} was built for {self.work.layer_text(op.location)}"
        names = "\n".join(f"{self.work.layer_text(t.name)} {list(t.shape)}" for t in way.tensors)
        return f"{op.name} reads from the checkpoint:\n{names}"

    def action_became(self) -> None:
        """Forward: to the next snapshot in which the op's origin is made of other ops."""
        here = self.ir.op()
        if here is None:
            self.notify("put the cursor on an op first")
            return
        snapshot, op = here
        found = self.work.snapshots().snapshots
        at = next((i for i, s in enumerate(found) if s.pass_name == snapshot.pass_name), 0)
        now = _signature(snapshot, op)
        for later in found[at + 1 :]:
            if _signature(later, op) != now:
                self._jump(later, op)
                return
        self.notify("no later pass changed this op")

    def _jump(self, target: Snapshot, op: OpRecord) -> None:
        self._trail.append(self._place())
        self.work.pass_name = target.pass_name
        if self.diff_on:
            self.diff_on = False
        self.query_one(PassList).sync(self.work, self.only_changed, self.marked)
        self.show_ir(op)
        self.ir.focus()

    def _place(self) -> Place:
        """What is looked at, to come back to."""
        here = self.ir.op()
        return self.work.module, self.work.layer, self.work.pass_name, here[1] if here else None

    def action_back(self) -> None:
        """Back to where the last jump started."""
        if not self._trail:
            self.notify("no jump to go back from")
            return
        module, layer, pass_name, op = self._trail.pop()
        self.work.select_module(module)
        self.work.layer = layer
        self.work.pass_name = pass_name
        self.query_one(ModuleTree).sync(self.work)
        self.query_one(PassList).sync(self.work, self.only_changed, self.marked)
        self.show_ir(op)

    def show_op(self, module: str, pass_name: str, op: OpRecord) -> None:
        """Jump to an op from another screen."""
        self._trail.append(self._place())
        self.work.select_module(module)
        self.work.pass_name = pass_name
        self.diff_on = False
        self.query_one(ModuleTree).sync(self.work)
        self.query_one(PassList).sync(self.work, self.only_changed, self.marked)
        self.show_ir(op)
        self.ir.focus()

    def leave(self) -> None:
        """Esc with nothing to close: back from the last jump, or out of the diff."""
        if self._trail:
            self.action_back()
        elif self.diff_on:
            self.action_diff()


def _signature(snapshot: Snapshot, op: OpRecord) -> tuple[object, ...]:
    """What an op's origin is made of in a snapshot."""
    return tuple(
        (o.name, tuple(t.dtype for t in o.result_types), tuple(t.shape for t in o.result_types))
        for o in snapshot.ops
        if o.location == op.location
    )
