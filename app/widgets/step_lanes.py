"""DMA and TIU per time step: cycles, what holds the step up, and how full local memory is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from app import units
from app.actions import bindings
from app.widgets.lines import Line, Span
from app.widgets.lmem_axis import GUTTER, columns
from app.widgets.lmem_canvas import View, column_role, first_fit
from app.widgets.lmem_facts import GroupFacts, StepCost
from app.widgets.lmem_map import TITLE_MARGIN, StepView
from app.widgets.lmem_words import kib
from engine.group_cores import COMPUTE_STAGE, LOAD_STAGE, STORE_STAGE
from engine.passes.layer_group.plan import ItemKind

_ARROWS = {ItemKind.LOAD: "↓", ItemKind.STORE: "↑", ItemKind.COMPUTE: ""}


def short_cycles(count: int) -> str:
    """Cycles in few cells: `87.6k`."""
    return units.cycles(count).removesuffix("c").replace(" ", "")


def lane_lines(facts: GroupFacts, edges: Sequence[int], view: View) -> list[list[Span]]:
    """The lanes over the columns of the map."""
    lanes = _Lanes(facts, view)
    cells: dict[str, Callable[[int, int], list[Span]]] = {
        "DMA": lanes.transfer,
        "TIU": lanes.compute,
        "bound by": lanes.bound,
        "bytes live": lanes.used,
        "fragments": lanes.holes,
        "moves": lanes.moves,
        "shared": lanes.banks,
    }
    return [_lane(title, cell, edges, view) for title, cell in cells.items()]


def _lane(title: str, cell: Callable[[int, int], list[Span]], edges: Sequence[int], view: View) -> list[Span]:
    line: list[Span] = [(f" {title:<{GUTTER - 1}}", "muted")]
    for step, (left, right) in enumerate(pairwise(edges)):
        ground = column_role(view, step)
        spans = cell(step, right - left - 1)
        line += [(text, roles if "bg:" in roles else roles + ground) for text, roles in spans]
        line.append((" ", ground.strip()))
    return line


_CELL = 9
"""Cells of a pipeline step."""


def pipeline_lines(facts: GroupFacts, width: int) -> list[list[Span]]:
    """Which slice each stage of the pipeline works on, and what that takes, by pipeline step; as many as fit."""
    costs = facts.pipeline_costs()
    room = max(1, (width - GUTTER) // _CELL)
    shown = range(len(costs) if len(costs) <= room else max(1, room - 1))
    rest = [(f" … {len(costs)} in all", "faint")] if len(shown) < len(costs) else []
    numbers = "".join(f"{step + 1:>{_CELL - 1}} " for step in shown)
    lines: list[list[Span]] = [[(f" {'pipeline':<{GUTTER - 1}}", "muted"), (numbers, "muted"), *rest]]
    for name, (stage, role) in _STAGES.items():
        slices = [facts.slice_at(min(stage, facts.plan.stages - 1), step) for step in shown]
        cells = [
            (f"{f'slice {n}' if n is not None else '·':>{_CELL - 1}} ", role if n is not None else "faint")
            for n in slices
        ]
        lines.append([(f" {name:<{GUTTER - 1}}", "muted"), *cells])
    cycles = "".join(f"{units.cycles(costs[step]):>{_CELL - 1}} " for step in shown)
    return [*lines, [(f" {'cycles':<{GUTTER - 1}}", "muted"), (cycles, "")]]


_STAGES = {"load": (LOAD_STAGE, "dma"), "compute": (COMPUTE_STAGE, "compute"), "store": (STORE_STAGE, "dma")}
"""Stages of the pipeline with their colours."""


class _Lanes:
    """What stands in each lane for a step, in a width."""

    def __init__(self, facts: GroupFacts, view: View) -> None:
        self.facts, self.view = facts, view
        self.costs = [facts.cost(step, view.pipeline_step) for step in range(facts.steps)]
        self.memory = [facts.memory(step, view.pipeline_step) for step in range(facts.steps)]
        self.longest = max(cost.cycles for cost in self.costs)
        self.fullest = max(memory.live for memory in self.memory)

    def transfer(self, step: int, width: int) -> list[Span]:
        """Cycles of the DMA."""
        cost = self.costs[step]
        texts = _cycle_texts(cost.transfer)
        return _bar(cost.transfer, self.longest, width, texts, "dma", cost.bound == "DMA")

    def compute(self, step: int, width: int) -> list[Span]:
        """Cycles of the compute engine."""
        cost = self.costs[step]
        texts = _cycle_texts(cost.compute)
        return _bar(cost.compute, self.longest, width, texts, "compute", cost.bound == "TIU")

    def bound(self, step: int, width: int) -> list[Span]:
        """The slower engine, and how long the other waits."""
        return _padded(*_bound_text(self.costs[step], width), width)

    def used(self, step: int, width: int) -> list[Span]:
        """Live bytes."""
        live = self.memory[step].live
        most = 0 < live == self.fullest
        texts = [f"{kib(live)} KiB{', the most' if most else ''}", f"{kib(live)} KiB", f"{live / 1024:.0f}K"]
        return _bar(live, self.facts.chip.lmem_bytes, width, texts, "activations", most)

    def holes(self, step: int, width: int) -> list[Span]:
        """Fragmentation of the free bytes."""
        found = self.memory[step]
        share = f"{100 * found.fragmentation:.0f} %"
        texts = [f"{share}, {found.holes} free ranges", f"{share} in {found.holes}", share]
        return _padded(first_fit(texts, width), "changed" if found.fragmentation > 0.5 else "muted", width)

    def banks(self, step: int, width: int) -> list[Span]:
        """Banks that both engines touch."""
        clash = sorted(self.facts.clashes[step])
        if not clash:
            return _padded("–", "faint", width)
        names = ", ".join(map(str, clash))
        texts = [f"bank{'s' if len(clash) > 1 else ''} {names}", names, f"{len(clash)}!"]
        return _padded(first_fit(texts, width), "changed", width)

    def moves(self, step: int, width: int) -> list[Span]:
        """Values loaded and stored."""
        items = [self.facts.items[item] for item in self.facts.plan.steps[step].transfers]
        running = [item for item in items if self.facts.runs(item, self.view.pipeline_step)]
        return _padded(_cut(" ".join(f"{_ARROWS[i.kind]}{i.value}" for i in running), width), "dma", width)


def _cycle_texts(count: int) -> list[str]:
    return [units.cycles(count), short_cycles(count)] if count else [""]


def _bound_text(cost: StepCost, width: int) -> tuple[str, str]:
    if not cost.bound:
        return "–", "faint"
    other = "TIU" if cost.bound == "DMA" else "DMA"
    slack = short_cycles(cost.slack)
    texts = [f"{cost.bound}, {other} waits {units.cycles(cost.slack)}", f"{cost.bound} +{slack}", cost.bound]
    return first_fit(texts, width), "memory-bound" if cost.bound == "DMA" else "compute-bound"


def _bar(part: int, whole: int, width: int, texts: Sequence[str], role: str, strong: bool) -> list[Span]:
    """A bar with its number behind it, in it where it is long, or over both where neither has room."""
    if width < 1:
        return []
    filled = min(width, max(1 if part else 0, round(width * part / whole))) if whole else 0
    shade = "1" if strong else "0"
    weight = " bold" if strong else ""
    fill, beside = (
        f"ink:{role}.{shade} bg:{role}.{shade}{weight}",
        f"{'heading' if strong else 'muted'}{weight}",
    )
    # over the bar the number has room for its unit, so the short form is for the narrowest steps
    behind = first_fit(texts[:-1] or texts, width - filled - 1)
    if behind:
        return [(" " * filled, fill), (f" {behind}".ljust(width - filled), beside)]
    best = first_fit(texts, width)
    text = (f" {best}" if len(best) < width and best else best).ljust(width)
    return [(text[:filled], fill), (text[filled:], beside)]


def _padded(text: str, roles: str, width: int) -> list[Span]:
    return [(text.ljust(max(0, width)), roles)]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


class StepLanes(StepView, inherit_bindings=False):
    """The lanes under the map, with the same columns."""

    HELP = """
What each time step costs. **DMA** and **TIU** run at the same time, so a step takes as long as the slower one, which
**bound by** names with the cycles for which the other waits. **bytes live** is the local memory that holds something,
per lane; it may lie scattered up to the highest address, which the map's title names, and **fragments** says how much:
the share of free memory outside of the largest free range. **moves** names the values loaded (↓) and stored (↑);
**shared** the banks that both engines touch in the step.

Without a pipeline step (**<** and **>**) the numbers are those of a whole slice with everything that is loaded for it.
"""
    SCOPES = ("lmem-lanes", "lmem")
    BINDINGS = bindings("lmem-lanes")
    DEFAULT_CSS = """
    StepLanes { min-width: 30; }
    """

    class StepSelected(Message):
        """The user wants another step."""

        def __init__(self, lanes: StepLanes, step: int) -> None:
            super().__init__()
            self.lanes = lanes
            self.step = step

        @property
        def control(self) -> StepLanes:
            """The lanes."""
            return self.lanes

    def __init__(self, facts: GroupFacts | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id, title="time steps")
        self.facts = facts
        self.view = View()
        self.pan = 0
        self.map_width = 0
        self._lines: list[list[Span]] = []
        self._fitted = 0

    def on_mount(self) -> None:
        """First contents."""
        self.show(self.facts, self.view)

    def show(self, facts: GroupFacts | None, view: View, map_width: int = 0) -> None:
        """Show a group's steps as the map looks at them, in the columns of a map `map_width` cells wide."""
        self.facts, self.view, self.map_width = facts, view, map_width
        self._lines, self._fitted = [], self.inner_width
        self.border_title = "time steps"
        if facts is not None and facts.steps:
            self._lines = lane_lines(facts, self._edges(facts), view)
            self.border_title = lanes_title(facts, view.pipeline_step, self.inner_width - TITLE_MARGIN)
        self.virtual_size = Size(0, len(self._lines))
        self.refresh()

    def _edges(self, facts: GroupFacts) -> list[int]:
        return columns(facts.steps, self.map_width or self.inner_width)

    def on_resize(self) -> None:
        """Columns follow the width."""
        self.show(self.facts, self.view, self.map_width)

    def pan_to(self, cells: int) -> None:
        """Show the steps from a cell on."""
        self.pan = cells
        self.refresh()

    def line_count(self) -> int:
        """Number of lanes."""
        return len(self._lines)

    def line(self, index: int) -> Line:
        """One lane."""
        return self._lines[index]

    def render_line(self, y: int) -> Strip:
        """One visible lane; they are laid out for the next drawing where the width has changed unannounced."""
        if self._fitted != self.inner_width:
            self._fitted = self.inner_width
            self.call_later(self.on_resize)
        row = y + self.scroll_offset.y
        return self.painted(self._lines[row] if row < len(self._lines) else [], self.pan)

    def watch_cursor(self, old: int, new: int) -> None:
        """The cursor of lines is not used."""

    def action_go_step(self, amount: int) -> None:
        """Earlier or later steps."""
        if self.facts is not None and self.facts.steps:
            step = min(max(self.view.step + amount, 0), self.facts.steps - 1)
            self.post_message(self.StepSelected(self, step))

    def action_scroll_lines(self, amount: int) -> None:
        """Lanes below or above."""
        self.scroll_to(y=self.scroll_offset.y + amount, animate=False)

    def on_click(self, event: events.Click) -> None:
        """The step under the mouse."""
        event.prevent_default()  # a list's way to take a click would come next
        if self.facts is None:
            return
        edges = self._edges(self.facts)
        x = event.get_content_offset_capture(self).x + self.pan
        for step in range(self.facts.steps):
            if edges[step] <= x < edges[step + 1]:
                self.post_message(self.StepSelected(self, step))


def lanes_title(facts: GroupFacts, pipeline_step: int | None, width: int) -> str:
    """What the steps cost in all, in at most `width` cells."""
    total = sum(facts.cost(step, pipeline_step).cycles for step in range(facts.steps))
    if pipeline_step is not None and facts.item_cycles:
        whose = f"core {facts.share.core}" if facts.share is not None else "the group"
        cycles, share = units.cycles(total), units.share(total, facts.cycles)
        texts = [
            f"{cycles} in this pipeline step, {share} of {whose}",
            f"{cycles} in this pipeline step",
            cycles,
        ]
    else:
        texts = _loop_texts(facts)
    return f"time steps · {first_fit(texts, width - len('time steps · ')) or texts[-1]}"


def _loop_texts(facts: GroupFacts) -> list[str]:
    """Cycles of all slices and the engine that bounds them, the longest first."""
    engine, share = facts.bound_share()
    cycles, slices = units.cycles(facts.cycles), len(facts.work.numbers)
    counted = f"{slices} slices" if slices > 1 else "1 slice"
    times = f"{counted} in {facts.pipeline_steps} pipeline steps" if slices > 1 else counted
    if not engine:
        return [f"{cycles} for {times}", f"{cycles} for {counted}", cycles]
    percent = f"{100 * share:.0f} %"
    return [
        f"{cycles} for {times} · {percent} bound by {engine}",
        f"{cycles} for {times} · {percent} {engine}",
        f"{cycles} for {counted} · {percent} {engine}",
        f"{cycles} · {percent} {engine}",
        cycles,
    ]
