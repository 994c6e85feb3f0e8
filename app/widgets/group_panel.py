"""Layer groups of a module: their list, the buffer under the map's cursor, and the pane that holds all of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from textual import events, on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.geometry import Size
from textual.message import Message

from app import units
from app.actions import bindings
from app.widgets.lines import Line, LineView, Span
from app.widgets.lmem_canvas import View
from app.widgets.lmem_facts import (
    ROLES,
    GroupFacts,
    facts_of,
    parts_of,
    slice_text,
)
from app.widgets.lmem_map import LmemMap
from app.widgets.lmem_words import kib, kib_column, secs_text
from app.widgets.step_lanes import StepLanes
from app.widgets.table import Column, Row, TableView, fitted
from app.widgets.why import LABEL, Gain, WhyPanel, WrappedPanel, labelled, wrapped
from engine.group_cores import CoreShare
from engine.passes.layer_group.plan import (
    BufferKind,
    Explanation,
    GroupPlan,
    Item,
    ItemKind,
    LayerGroupReport,
)
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip

# -- the groups ----------------------------------------------------------------------------------------------------


class GroupList(TableView):
    """The groups of a module."""

    HELP = """
The layer groups of the module in program order: the ops that run in local memory without going back to DDR, into how
many slices they are cut (`csecs 2`: channels in two), cycles of the whole group, the highest address used per lane, and
the engine that holds up most of its time steps. **g** and **G** choose the next and the previous group here, too;
**home** and **end** the first and the last.
"""
    EMPTY = "no layer group"
    SCOPES = ("lmem", "list")
    BINDINGS = bindings("lmem")

    def __init__(self, *, id: str | None = None) -> None:
        columns = (
            Column("#", right=True),
            Column("ops", stretch=True, least=10),
            Column("slices", rank=2),
            Column("cycles", right=True),
            Column("highest", right=True, rank=1),
            Column("bound", rank=3),
        )
        super().__init__(columns, id=id, title="layer groups")
        self.GAP = " "

    def sync(self, groups: Sequence[GroupFacts], report: LayerGroupReport) -> None:
        """Show the groups; the border says what runs outside of them."""
        self.show([_group_row(facts) for facts in groups])
        inside = sum(facts.cycles for facts in groups)
        core = f" · core {groups[0].share.core}" if groups and groups[0].share else ""
        single = len(report.global_cycles)
        self.border_title = f"layer groups{core} · {units.cycles(inside)}" if groups else "layer groups"
        self.border_subtitle = f"{single} more could be local, run globally" if single else ""


def _group_row(facts: GroupFacts) -> Row:
    engine, share = facts.bound_share()
    role = "memory-bound" if engine == "DMA" else "compute-bound"
    return Row(
        (
            str(facts.number),
            (facts.kinds, "bad" if facts.problems else ""),
            (secs_text(facts.plan.secs.as_tuple()), "muted"),
            units.cycles(facts.cycles) if not facts.work.idle else ("idle", "faint"),
            kib_column(facts.plan.peak_bytes) if not facts.work.idle else "",
            (f"{engine} {100 * share:.0f} %" if engine else "", role),
        ),
        facts.number,
    )


# -- the buffer ----------------------------------------------------------------------------------------------------


def buffer_title(facts: GroupFacts, index: int) -> str:
    """What the buffer is."""
    buffer = facts.plan.buffers[index]
    if buffer.kind is BufferKind.SCRATCH:
        return facts.names(index)[1]
    return f"{buffer.kind.value} {buffer.value} · {facts.leaf(index)}"


def buffer_lines(facts: GroupFacts, view: View, width: int) -> list[list[Span]]:
    """Everything about the buffer under the cursor, most wanted first."""
    index = view.selected
    if index < 0:
        return _free_lines(facts, view)
    buffer, role = facts.plan.buffers[index], ROLES[facts.plan.buffers[index].kind]
    lines: list[list[Span]] = []
    if index in facts.problems:
        lines += wrapped("problem", facts.problems[index], width, "bad bold")
    lines += _origin_lines(facts, index, width)
    lines += [
        labelled(
            "address", [(f"{buffer.address:,}", "heading"), (f" · bank {_bank_text(facts, index)}", "muted")]
        ),
        labelled(
            "bytes", [(f"{buffer.nbytes:,}", "heading"), (f" per lane = {kib(buffer.nbytes)} KiB", "muted")]
        ),
        labelled("live", _life_spans(facts, index)),
    ]
    lines += _slice_lines(facts, view, width)
    lines += _use_lines(facts, index, width)
    if buffer.held:
        lines += wrapped("held", "loaded once for all slices", width, role)
    return [*lines, *_sharing_lines(facts, index, view.step, width)]


def _free_lines(facts: GroupFacts, view: View) -> list[list[Span]]:
    memory = facts.memory(view.step, view.pipeline_step)
    return [labelled("free", [(f"{kib(memory.free)} KiB in {memory.holes} ranges", "heading")])]


def _origin_lines(facts: GroupFacts, index: int, width: int) -> list[list[Span]]:
    buffer = facts.plan.buffers[index]
    maker = facts.makers.get(buffer.value)
    if maker is None:
        return []
    role = ROLES[buffer.kind]
    if maker.name == "top.Weight":
        names = [str(name) for name in maker.attributes.get("tensors") or maker.origins]
        return [
            line
            for number, name in enumerate(names)
            for line in _name_lines("" if number else "tensor", name, width, role)
        ]
    lines = [labelled("op", [(f"{maker.name} {buffer.value}", role)])]
    return lines + [line for origin in maker.origins[-1:] for line in _name_lines("from", origin, width, "")]


def _name_lines(label: str, name: str, width: int, role: str) -> list[list[Span]]:
    """A dotted name, cut behind a dot where it is too long for a line."""
    room = width - LABEL - 2
    lines: list[str] = [""]
    for part in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1]) + len(part) > room:
            lines.append("")
        lines[-1] += part
    return [labelled("" if number else label, [(line, role)]) for number, line in enumerate(lines)]


def _bank_text(facts: GroupFacts, index: int) -> str:
    banks, buffer = facts.banks(index), facts.plan.buffers[index]
    offset = buffer.address % facts.chip.bank_bytes
    at = f"{banks.start} + {offset:,}" if offset else str(banks.start)
    return at if len(banks) == 1 else f"{at} to {banks[-1]}"


def _life_spans(facts: GroupFacts, index: int) -> list[Span]:
    buffer = facts.plan.buffers[index]
    first, last = buffer.first_step + 1, buffer.last_step + 1
    span: list[Span] = [(f"step {first}" if first == last else f"step {first} → {last}", "heading")]
    if first > last:
        return [*span, (" of the next pass", "muted")]
    return [*span, (f" of {facts.steps}", "muted")]


def _slice_lines(facts: GroupFacts, view: View, width: int) -> list[list[Span]]:
    writer = facts.writer(view.selected)
    if writer is None:
        return []
    number = None
    if view.pipeline_step is not None:
        buffer = facts.plan.buffers[view.selected]
        here = [p for p in parts_of(view.selected, buffer, facts.steps) if p.first <= view.step <= p.last]
        held = [facts.slice_of(part, view.pipeline_step) for part in here]
        number = next((n for n in held if n is not None), None)
        if number is None:
            return [labelled("slice", [("holds nothing in this pipeline step", "faint")])]
    count = facts.plan.secs.slices
    whole = all(len(starts) == 1 for starts in writer.slices.starts)
    which = f"{number} of {count}: " if number is not None and count > 1 and not whole else ""
    note = ", all slices" if whole and count > 1 else ""
    text = slice_text(writer.slices, facts.plan.secs, number)
    return wrapped("slice", which + text + note, width, "heading") if text else []


def _use_lines(facts: GroupFacts, index: int, width: int) -> list[list[Span]]:
    writer = facts.writer(index)
    lines: list[list[Span]] = []
    if writer is not None and facts.plan.buffers[index].kind is BufferKind.SCRATCH:
        return wrapped("used by", _item_text(facts, writer), width)
    if writer is not None:
        lines += wrapped(
            "written", _item_text(facts, writer), width, "dma" if _is_move(writer) else "compute"
        )
    for number, item in enumerate(facts.readers(index)):
        lines += wrapped("" if number else "read", _item_text(facts, item), width, "compute")
    for item in facts.moves(index):
        if item.kind is ItemKind.STORE:
            lines += wrapped("stored", _item_text(facts, item), width, "dma")
    return lines


def _is_move(item: Item) -> bool:
    return item.kind is not ItemKind.COMPUTE


def _item_text(facts: GroupFacts, item: Item) -> str:
    step = f"step {facts.step_of[item.id] + 1}" if item.id in facts.step_of else "no step"
    if item.kind is ItemKind.COMPUTE:
        record = facts.ops[item.record]
        return f"{record.kind} {item.value}, {step}"
    maker = facts.makers.get(item.value)
    type_ = maker.result_types[0] if maker and maker.result_types else None
    address = f" {units.address(type_.address)}" if type_ is not None and type_.address is not None else ""
    if item.kind is ItemKind.LOAD:
        return f"load from DDR{address}, {step}{', once' if item.held else ''}"
    return f"store to DDR{address}, {step}"


def _sharing_lines(facts: GroupFacts, index: int, step: int, width: int) -> list[list[Span]]:
    """Buffers in the same banks that the other engine touches in this step."""
    by_compute, by_dma = facts.touched(index)
    found = []
    for other in facts.live_at(step):
        if other == index or not set(facts.banks(other)) & set(facts.banks(index)):
            continue
        other_compute, other_dma = facts.touched(other)
        if (step in by_compute and step in other_dma) or (step in by_dma and step in other_compute):
            found.append(facts.plan.buffers[other].value)
    return (
        wrapped("shares", f"a bank with {', '.join(found)} of the other engine", width, "changed")
        if found
        else []
    )


_TWO_COLUMNS = 72
"""Width from which the panel, which then lies flat under the map, has two columns."""


def side_by_side(lines: Sequence[Line], width: int) -> list[list[Span]]:
    """Lines in two columns, the first `width` cells wide, read downwards."""
    half = (len(lines) + 1) // 2
    while half < len(lines) and not lines[half][0][0].strip():
        half += 1
    left, right = lines[:half], [*lines[half:], *[()] * half]
    return [[*fitted(a, width - 1), (" ", ""), *b] for a, b in zip(left, right, strict=False)]


class BufferPanel(WrappedPanel):
    """The buffer under the map's cursor."""

    HELP = """
The buffer under the cursor of the map: the checkpoint tensor or the op that it comes from, where it lies (address in
each lane, bank + offset), how long it is live, which part of the value it holds, who writes and who reads it in which
time step. **held** weights are loaded once for all slices. **shares** warns of a bank that the DMA and the compute
engine touch in the same step.
"""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "buffer"

    def look_at(self, facts: GroupFacts | None, view: View) -> None:
        """Show another buffer."""
        if facts is None:
            self.tell("buffer", lambda width: [])
            return
        title = buffer_title(facts, view.selected) if view.selected >= 0 else "free memory"
        self.tell(title, lambda width: _in_columns(facts, view, width))


def _in_columns(facts: GroupFacts, view: View, width: int) -> list[list[Span]]:
    """What is known about a buffer, in two columns where there is room."""
    if width < _TWO_COLUMNS:
        return buffer_lines(facts, view, width)
    return side_by_side(buffer_lines(facts, view, width // 2 - 1), width // 2)


# -- all of it -----------------------------------------------------------------------------------------------------


class LocalMemoryPane(Container):
    """Groups, map, lanes, buffer and explanation of one module. `show_report` gives it another module.

    ops: the records that the report numbers (after `op-reorder`). shares: what each core runs of every group
    (`core_shares`); none for a program for one core. core: the one that is shown.
    """

    BINDINGS = [*bindings("lmem"), ("escape", "back_to_map", "Back")]
    DEFAULT_CSS = """
    LocalMemoryPane {
        layout: horizontal; height: 1fr; width: 1fr;
        #lmem-main { width: 1fr; layout: vertical; }
        #lmem-side { width: 42; layout: vertical; }
        #lmem-map { height: 1fr; }
        #lmem-lanes { height: 9; }
        #lmem-groups { height: auto; max-height: 10; min-height: 4; }
        #lmem-buffer { height: 1fr; min-height: 8; }
        #lmem-why { height: 1fr; min-height: 6; }
        &.-wide #lmem-side { width: 58; }
        &.-narrow { layout: vertical; }
        &.-narrow #lmem-main { width: 1fr; height: 1fr; }
        &.-narrow #lmem-side { width: 1fr; height: 12; }
        &.-low #lmem-lanes { height: 3; border: none; padding: 0 1; }
        &.-low.-narrow #lmem-side { height: 7; }
        &.-low.-narrow.-reading #lmem-side { height: 12; }
        &.-narrow #lmem-side > * { height: 1fr; min-height: 0; max-height: 100%; display: none; }
        &.-narrow #lmem-side > .-shown { display: block; }
    }
    """

    class GroupSelected(Message):
        """Another group is on the map."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    class OpAsked(Message):
        """The user wants to see an op in the IR. record: its index in `ops`."""

        def __init__(self, record: int, op: OpRecord) -> None:
            super().__init__()
            self.record = record
            self.op = op

    def __init__(
        self,
        report: LayerGroupReport | None = None,
        ops: Sequence[OpRecord] = (),
        chip: Chip | None = None,
        *,
        module: str = "",
        shares: Sequence[Sequence[CoreShare]] = (),
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.report, self.ops, self.chip, self.module, self.shares = report, ops, chip, module, shares
        self.core = 0
        self.groups: list[GroupFacts] = []
        self.number = 0
        self._alone: dict[int, int | None] = {}

    def compose(self) -> ComposeResult:
        with Vertical(id="lmem-main"):
            yield LmemMap(id="lmem-map")
            yield StepLanes(id="lmem-lanes")
        with Vertical(id="lmem-side"):
            yield GroupList(id="lmem-groups")
            yield BufferPanel(id="lmem-buffer")
            yield WhyPanel(id="lmem-why")

    # -- contents -----------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """First contents."""
        self._put_forward("lmem-buffer")
        if self.report is not None and self.chip is not None:
            self.show_report(self.report, self.ops, self.chip, self.module, self.shares)

    def on_resize(self, event: events.Resize) -> None:
        """Side panels beside the map or under it."""
        self._fit(event.size)

    def _fit(self, size: Size) -> None:
        if size:
            self.set_class(size.width < 100, "-narrow")
            self.set_class(size.width >= 150, "-wide")
            self.set_class(size.height < 27, "-low")

    def show_report(
        self,
        report: LayerGroupReport,
        ops: Sequence[OpRecord],
        chip: Chip,
        module: str = "",
        shares: Sequence[Sequence[CoreShare]] = (),
    ) -> None:
        """Show a module's groups, with the first on the map."""
        self.report, self.ops, self.chip, self.module, self.shares = report, ops, chip, module, shares
        self._alone = {}
        self.core = min(self.core, self.cores - 1)
        self._show_core(0)

    @property
    def cores(self) -> int:
        """How many cores run the groups."""
        return len(self.shares[0]) if self.shares else 1

    def _show_core(self, number: int) -> None:
        """Show what the core runs, with group `number` on the map."""
        assert self.report is not None
        assert self.chip is not None
        self.groups = facts_of(self.report, self.ops, self.chip, self.module, self.shares, self.core)
        self.query_one(GroupList).sync(self.groups, self.report)
        self.show_group(number)

    @property
    def facts(self) -> GroupFacts | None:
        """The group on the map."""
        return self.groups[self.number] if self.number < len(self.groups) else None

    @property
    def map(self) -> LmemMap:
        """The map."""
        return self.query_one(LmemMap)

    def show_group(self, number: int) -> None:
        """Put a group on the map."""
        self.number = number
        facts = self.facts
        self.map.show(facts)
        self.query_one(GroupList).move_to_key(number)
        plan = self.report.groups[number] if facts is not None and self.report is not None else None
        gain = self._gain(plan) if plan is not None else None
        self.query_one(WhyPanel).explain(self._explanation(), plan, f"why group {number}?", gain)
        self._follow()
        if facts is not None:
            self.post_message(self.GroupSelected(number))

    def _explanation(self) -> Explanation | None:
        found = self.report.explanations if self.report is not None else ()
        return next((explanation for explanation in found if explanation.group == self.number), None)

    def _gain(self, plan: GroupPlan) -> Gain | None:
        """What the group on the map saves; None when one of its ops cannot run alone."""
        from engine.group_tables import alone_cycles

        assert self.chip is not None
        if self.number not in self._alone:
            self._alone[self.number] = alone_cycles(plan, self.ops, self.chip)
        alone, facts = self._alone[self.number], self.groups[self.number]
        return None if alone is None else Gain(len(facts.op_kinds), plan.cycles, alone, self.cores)

    def _follow(self) -> None:
        """Lanes and side panel show what the map's cursor is on."""
        self._fit(self.size)
        view = self.map.view
        self.query_one(StepLanes).show(self.facts, view, self.map.inner_width)
        self.query_one(BufferPanel).look_at(self.facts, view)

    # -- what the user does -------------------------------------------------------------------------------------

    @on(LmemMap.BufferSelected)
    def buffer_selected(self) -> None:
        """Another buffer or step."""
        self._follow()

    @on(LmemMap.BufferChosen)
    def buffer_chosen(self) -> None:
        """Enter on a buffer."""
        self.action_op_in_ir()

    @on(LmemMap.Panned)
    def panned(self, event: LmemMap.Panned) -> None:
        """The columns stay one under the other."""
        self.query_one(StepLanes).pan_to(event.cells)

    @on(StepLanes.StepSelected)
    def step_selected(self, event: StepLanes.StepSelected) -> None:
        """Another step, from the lanes."""
        self.map.go_to_step(event.step)

    @on(LineView.Moved, "#lmem-groups")
    def group_moved(self) -> None:
        """Another group, from the list."""
        key = self.query_one(GroupList).key
        if isinstance(key, int) and key != self.number:
            self.show_group(key)

    @on(LineView.Chosen, "#lmem-groups")
    def group_chosen(self) -> None:
        """On to the map."""
        self._put_forward("lmem-buffer")
        self.map.focus()

    def action_next_group(self, step: int) -> None:
        """Next or previous group, around the ends."""
        if self.groups:
            self.show_group((self.number + step) % len(self.groups))

    def action_core(self, step: int) -> None:
        """Next or previous core, around the ends."""
        if self.cores == 1:
            self.notify("this program runs on one core; --cores sets how many")
            return
        self.core = (self.core + step) % self.cores
        self._show_core(self.number)

    def action_slice(self, step: int) -> None:
        """Next or previous step of the pipeline."""
        self.map.slice_by(step)

    def action_zoom(self, step: int) -> None:
        """Closer or further away."""
        self.map.zoom_by(step)

    def action_why(self) -> None:
        """The explanation; again: back to the map."""
        self._toggle(self.query_one(WhyPanel))

    def action_group_list(self) -> None:
        """The list of groups; again: back to the map."""
        self._toggle(self.query_one(GroupList))

    def action_back_to_map(self) -> None:
        """From another panel to the map; on the map, and where a zoom or a search comes first, the screen knows."""
        focused = self.screen.focused
        searched = isinstance(focused, LineView) and bool(focused.sought)
        if focused is self.map or searched or getattr(self.screen, "zoomed", None) is not None:
            raise SkipAction
        self._put_forward("lmem-buffer")
        self.map.focus()

    def _toggle(self, panel: LineView) -> None:
        if panel.has_focus:
            self._put_forward("lmem-buffer")
            self.map.focus()
        else:
            self._put_forward(panel.id or "")
            panel.focus()

    def _put_forward(self, name: str) -> None:
        """The side panel that is visible where there is room for one."""
        for panel in self.query("#lmem-side > *"):
            panel.set_class(panel.id == name, "-shown")
        self.set_class(name != "lmem-buffer", "-reading")

    def action_op_in_ir(self) -> None:
        """The op that makes the buffer's value, in the IR."""
        facts, index = self.facts, self.map.selected
        if facts is None or index < 0:
            return
        value = facts.plan.buffers[index].value
        for record, op in enumerate(facts.ops):
            if value in op.results:
                self.post_message(self.OpAsked(record, op))
