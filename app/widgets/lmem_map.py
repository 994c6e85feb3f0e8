"""The map of local memory: a canvas of addresses and time steps with a cursor on a buffer and a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from app.actions import bindings
from app.theme import Palette
from app.widgets.lines import Line, LineView, Span
from app.widgets.lmem_axis import GUTTER, Zoom, axis, columns
from app.widgets.lmem_canvas import Canvas, View, draw, first_fit, legend
from app.widgets.lmem_facts import GroupFacts
from app.widgets.lmem_words import kib, kinds_in, secs_text
from app.widgets.map_palette import MapPalette

_ZOOMS = tuple(Zoom)


class StepView(LineView, inherit_bindings=False):
    """Lines over time steps whose left part stays when the steps scroll sideways."""

    SCOPES: ClassVar[tuple[str, ...]] = ("lmem",)

    def palette(self) -> MapPalette:
        """Styles over this panel's ground."""
        color = self.rich_style.bgcolor
        ground = color.get_truecolor() if color is not None and color.triplet is not None else None
        return MapPalette(Palette.of(self.app), ground)

    def painted(self, line: Line, pan: int) -> Strip:
        """A line on the screen: the gutter, then the steps from cell `pan` on."""
        palette, width, base = self.palette(), self.inner_width, self.rich_style
        strip = Strip([Segment(text, palette.style(roles)) for text, roles in line if text])
        if pan:
            strip = Strip.join([strip.crop(0, GUTTER), strip.crop(GUTTER + pan, pan + width)])
        return strip.crop_extend(0, width, base).apply_style(base)


class LmemMap(StepView, inherit_bindings=False):
    """The map of one group. `show` gives it a group, arrows move its cursor."""

    HELP = """
Local memory of one lane while a layer group runs: addresses downwards, time steps to the right. Each rectangle is a
buffer: `weights`, activations and scratch in their colours, strokes where a weight is held for all slices, red where a
buffer lies where it cannot. A lifetime that goes around the end of the loop has two parts, `▸` and `◂`. A line above a
row is the start of a bank; dots are free.

**← →** step through time, **↑ ↓** through the buffers of a step. **+** and **-** choose the scale: all of local memory
to scale, the banks in use with free space folded (every buffer has a line of its own), or one bank (**PgUp PgDn** for
the next). **<** and **>** walk through the pipeline: in each pipeline step the loop loads one slice, computes the one
before and stores the one before that; what holds no data then is only outlined. In a program for several cores each
core runs some of the slices, in a pipeline and a local memory of its own: **C** shows the next core. Groups, cores and
slices count from 0, as in the IR; steps from 1.

The **highest address** in the title is where the uppermost buffer ends. The bytes that are live in a step may lie
scattered below it: the lanes count them.

**g** next group, **x** why this group, **o** the buffer's op in the IR, **/** finds a buffer, **:** goes to one (`%12`)
or to a step (`3`).
"""
    EMPTY = "no layer group: every op of this module runs from DDR"
    SCOPES = ("lmem-map", "lmem")
    BINDINGS = bindings("lmem-map")
    DEFAULT_CSS = """
    LmemMap { min-width: 30; }
    """

    class BufferSelected(Message):
        """The cursor stands on another buffer or step; buffer -1: on free memory."""

        def __init__(self, map_: LmemMap, buffer: int, step: int) -> None:
            super().__init__()
            self.map = map_
            self.buffer = buffer
            self.step = step

        @property
        def control(self) -> LmemMap:
            """The map."""
            return self.map

    class BufferChosen(BufferSelected):
        """Enter or a second click on a buffer."""

    class Panned(Message):
        """The steps scrolled sideways."""

        def __init__(self, cells: int) -> None:
            super().__init__()
            self.cells = cells

    def __init__(self, facts: GroupFacts | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id, title="local memory")
        self.facts = facts
        self.selected = -1
        self.step = 0
        self.pipeline_step: int | None = None
        self.zoom = Zoom.USED
        self.bank = 0
        self._canvas: Canvas | None = None
        self._drawn: tuple[object, ...] = ()
        self._fitted = Size(0, 0)

    # -- contents -----------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """What is looked at."""
        return View(self.selected, self.step, self.pipeline_step)

    def on_mount(self) -> None:
        """First contents."""
        self.show(self.facts)

    def show(self, facts: GroupFacts | None) -> None:
        """Show a group, with the cursor on the first buffer that it fills; on another core's share of the same group
        the cursor stays."""
        same = facts is not None and self.facts is not None and facts.plan is self.facts.plan
        self.facts = facts
        if facts is not None and self.pipeline_step is not None:
            self.pipeline_step = min(self.pipeline_step, facts.pipeline_steps - 1)
        if not same or self.selected < 0:
            self.step, self.pipeline_step, self.selected, self.bank = 0, None, -1, 0
            if facts is not None and facts.live_at(0):
                self.selected = facts.live_at(0)[0]
        self.rebuild()
        self._announce()

    def rebuild(self) -> None:
        """Fit the canvas to the panel."""
        self._fitted = self.scrollable_content_region.size
        self._titles()
        canvas = self.canvas()
        rows = len(canvas.axis) if canvas else 0
        width = canvas.edges[-1] if canvas else 0
        self.virtual_size = Size(width if width > self.inner_width else 0, rows + len(self.pinned()))
        self._reveal(self.selected)
        self.refresh()

    def on_resize(self) -> None:
        """The rows depend on the height, and the lanes below on the width."""
        self.rebuild()
        self._announce()

    @property
    def rows_visible(self) -> int:
        """Rows of the canvas that fit."""
        return max(1, self.scrollable_content_region.height - len(self.pinned()))

    def canvas(self) -> Canvas | None:
        """The canvas for the state and size as they are."""
        facts = self.facts
        if facts is None or not facts.steps:
            return None
        width, height = self.inner_width, self.rows_visible
        drawn = (id(facts), width, height, self.view, self.zoom, self.bank)
        if self._canvas is None or drawn != self._drawn:
            rows = axis(facts, self.zoom, height, self.bank)
            self._canvas = draw(facts, rows, width, self.view)
            self._drawn = drawn
        return self._canvas

    def _titles(self) -> None:
        facts = self.facts
        if facts is None:
            self.border_title, self.border_subtitle = "local memory", ""
            return
        room = self.inner_width - TITLE_MARGIN
        self.border_title = _escaped(map_title(facts, self.pipeline_step, room))
        palette, marks = self.palette(), legend(facts)
        scale = f"bank {self.bank}" if self.zoom is Zoom.BANK else self.zoom.value
        shown = "".join(_marked(text, palette, roles) for text, roles in marks)
        fits = sum(len(text) for text, _ in marks) + len(scale) <= room
        self.border_subtitle = f"{shown}{scale if fits else ''}".rstrip()

    # -- drawing ------------------------------------------------------------------------------------------------

    def line_count(self) -> int:
        """Rows of the canvas."""
        return len(self._canvas.axis) if self._canvas else 0

    def pinned(self) -> Sequence[Line]:
        """Numbers of the time steps and what each computes."""
        if self.facts is None or not self.facts.steps:
            return ()
        two = self.scrollable_content_region.height >= 16
        return header_lines(self.facts, columns(self.facts.steps, self.inner_width), self.step, two)

    def render_line(self, y: int) -> Strip:
        """One visible line; the panel is fitted for the next drawing where its size has changed unannounced."""
        if self._fitted != self.scrollable_content_region.size:
            self._fitted = self.scrollable_content_region.size
            self.call_later(self.on_resize)
        canvas = self.canvas()
        if canvas is None:
            text = self._nothing().center(self.inner_width) if y == self.size.height // 3 else ""
            return self.painted([(text, "muted")], 0)
        pinned = self.pinned()
        if y < len(pinned):
            return self.painted(pinned[y], self.scroll_offset.x)
        row = y - len(pinned) + self.scroll_offset.y
        line = canvas.rows[row] if row < len(canvas.rows) else ()
        return self.painted(line, self.scroll_offset.x)

    def _nothing(self) -> str:
        """Why there is nothing to draw."""
        share = self.facts.share if self.facts is not None else None
        if share is None:
            return self.EMPTY
        where = "its slices run on other cores" if share.slices > 1 else "its one slice runs on another core"
        return f"core {share.core} runs nothing of this group: {where}"

    def watch_scroll_x(self, old: float, new: float) -> None:
        """The lanes below go along."""
        super().watch_scroll_x(old, new)
        if round(old) != round(new):
            self.post_message(self.Panned(round(new)))

    # -- cursor -------------------------------------------------------------------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        """The cursor of lines is not used."""

    def select(self, buffer: int, step: int, announce: bool = True) -> None:
        """Put the cursor on a buffer in a step."""
        if self.facts is None or (buffer, step) == (self.selected, self.step):
            return
        self.selected, self.step = buffer, step
        if buffer >= 0 and self.zoom is Zoom.BANK and self.bank not in self.facts.banks(buffer):
            self.bank = max(0, self.facts.banks(buffer).start)
        self.rebuild()
        if announce:
            self._announce()

    def _announce(self) -> None:
        self.post_message(self.BufferSelected(self, self.selected, self.step))

    def move_to(self, index: int, announce: bool = True) -> None:
        """Put the cursor on a buffer, in its first step if it is not live in this one."""
        if self.facts is None or not 0 <= index < len(self.facts.plan.buffers):
            return
        live = self.facts.live(index, self.step)
        self.select(index, self.step if live else self.facts.plan.buffers[index].first_step, announce)

    def go_to_step(self, step: int) -> None:
        """Another step; the cursor stays on its buffer, or takes the one that lies nearest."""
        if self.facts is None or not self.facts.steps:
            return
        step = min(max(step, 0), self.facts.steps - 1)
        buffer = self.selected
        if buffer < 0 or not self.facts.live(buffer, step):
            buffer = self._nearest(step, self.facts.plan.buffers[buffer].address if buffer >= 0 else 0)
        self.select(buffer, step)

    def _nearest(self, step: int, address: int) -> int:
        assert self.facts is not None
        buffers = self.facts.plan.buffers
        live = self.facts.live_at(step)
        return min(live, key=lambda i: abs(buffers[i].address - address), default=-1)

    def action_go_step(self, amount: int) -> None:
        """Earlier or later steps."""
        self.go_to_step(self.step + amount)

    def action_go_buffer(self, amount: int) -> None:
        """Buffers of the step, by address."""
        if self.facts is None:
            return
        live = self.facts.live_at(self.step)
        if self.selected in live:
            position = live.index(self.selected) + amount
            if 0 <= position < len(live):
                self.select(live[position], self.step)
        elif live:
            self.select(live[0], self.step)

    def action_page(self, pages: int) -> None:
        """The next bank, or further down."""
        if self.zoom is Zoom.BANK and self.facts is not None:
            self.bank = min(max(self.bank + pages, 0), self.facts.chip.banks - 1)
            self.rebuild()
        else:
            self.scroll_to(y=self.scroll_offset.y + pages * self.rows_visible, animate=False)

    def zoom_by(self, amount: int) -> None:
        """Closer or further away."""
        at = _ZOOMS.index(self.zoom) + amount
        if self.facts is None or not 0 <= at < len(_ZOOMS):
            return
        self.zoom = _ZOOMS[at]
        if self.zoom is Zoom.BANK and self.selected >= 0:
            self.bank = max(0, self.facts.banks(self.selected).start)
        self.rebuild()

    def slice_by(self, amount: int) -> None:
        """Another step of the pipeline; before the first is the loop as a whole."""
        if self.facts is None:
            return
        at = -1 if self.pipeline_step is None else self.pipeline_step
        at = min(max(at + amount, -1), self.facts.pipeline_steps - 1)
        self.pipeline_step = None if at < 0 else at
        self.rebuild()
        self._announce()

    def _reveal(self, index: int) -> None:
        canvas = self.canvas()
        if canvas is None or self.facts is None:
            return
        left, right = canvas.edges[self.step] - GUTTER, canvas.edges[self.step + 1] - GUTTER
        room = self.inner_width - GUTTER
        if left < self.scroll_offset.x or right > self.scroll_offset.x + room:
            self.scroll_to(x=max(0, min(left, right - room)), animate=False)
        found = canvas.buffer_rows(index)
        if found is None:
            return
        top, height = self.scroll_offset.y, self.rows_visible
        first, last = found
        if last >= top + height:
            self.scroll_to(y=min(first, last - height + 1), animate=False)
        elif first < top:
            self.scroll_to(y=first, animate=False)

    def action_choose(self) -> None:
        """The op of the buffer."""
        if self.selected >= 0:
            self.post_message(self.BufferChosen(self, self.selected, self.step))

    def on_click(self, event: events.Click) -> None:
        """The buffer and the step under the mouse; on the cursor's buffer a click opens it."""
        event.prevent_default()  # a list's way to take a click would come next
        canvas = self.canvas()
        if canvas is None or self.facts is None:
            return
        spot = event.get_content_offset_capture(self)
        x, y = spot.x + self.scroll_offset.x, spot.y - len(self.pinned()) + self.scroll_offset.y
        step = next((s for s in range(self.facts.steps) if canvas.edges[s] <= x < canvas.edges[s + 1]), None)
        if step is None:
            return
        buffer = canvas.owners[y][x] if 0 <= y < len(canvas.owners) else -1
        if buffer < 0:
            self.go_to_step(step)
        elif (buffer, step) == (self.selected, self.step):
            self.action_choose()
        else:
            self.select(buffer, step)

    # -- search -------------------------------------------------------------------------------------------------

    def find(self, text: str, start: int, direction: int) -> int | None:
        """The first buffer from `start` on whose value, name or op has the text, going around."""
        if self.facts is None:
            return None
        count = len(self.facts.plan.buffers)
        wanted = text.lower()
        for offset in range(count):
            index = (max(start, 0) + direction * offset) % count
            if wanted in self.facts.names(index)[0].lower():
                return index
        return None

    def seek(self, text: str, start: int | None = None) -> int | None:
        """Search from a buffer on and move to the first match."""
        self.sought = text
        found = self.find(text, self.selected if start is None else start, 1) if text else None
        if found is not None:
            self.move_to(found)
        return found

    def action_search_next(self, direction: int) -> None:
        """Next or previous match."""
        if not self.sought:
            self.action_search()
            return
        found = self.find(self.sought, self.selected + direction, direction)
        if found is None:
            self.notify(f"no match for {self.sought!r}", severity="warning")
        else:
            self.move_to(found)

    def locate(self, wanted: str) -> int | None:
        """A buffer by its value; a step by its number moves the cursor there."""
        if wanted.isdigit():
            self.go_to_step(int(wanted) - 1)
            return self.selected
        return self.find(wanted, 0, 1)

    def copy_text(self, index: int) -> str:
        """The buffer in one line."""
        if self.facts is None or self.selected < 0:
            return ""
        buffer = self.facts.plan.buffers[self.selected]
        return (
            f"{self.facts.names(self.selected)[0]}: {buffer.kind.value}, address {buffer.address}, "
            f"{buffer.nbytes} bytes per lane, steps {buffer.first_step + 1} to {buffer.last_step + 1}"
        )


TITLE_MARGIN = 4
"""Cells of a line that the title on the border cannot have."""


def map_title(facts: GroupFacts, pipeline_step: int | None, width: int) -> str:
    """Module, group, core, slices, highest address and ops in at most `width` cells.

    The ops are cut first; core and address stay as long as anything does.
    """
    group = f"group {facts.number}"
    numbered = f"{group} ({facts.number + 1} of {facts.count})"
    about = _about(facts, pipeline_step)
    forms = [
        form for found in about for form in ([facts.module, numbered, *found], [facts.module, group, *found])
    ]
    forms += [[group, *found] for found in about]
    texts = [" · ".join(text for text in form if text) for form in forms]
    title = first_fit(texts, width) or texts[-1]
    ops = kinds_in(facts.op_kinds, width - len(title) - 3)
    return f"{title} · {ops}" if ops else title


def _about(facts: GroupFacts, pipeline_step: int | None) -> list[list[str]]:
    """What a title says between group and ops, the longest first."""
    share = facts.share
    core = [f"core {share.core} of {share.cores}"] if share is not None else []
    whole = [share.text] if share is not None else []
    if facts.work.idle:
        return [whole]
    if pipeline_step is not None:
        step = facts.pipeline_text(pipeline_step)
        return [[*core, step], [*core, step.partition(",")[0]]]
    used, secs = kib(facts.plan.peak_bytes), secs_text(facts.plan.secs.as_tuple())
    long, short = f"highest address {used} of {kib(facts.chip.lmem_bytes)} KiB", f"highest {used} KiB"
    return [[*whole, secs, long], [*whole, secs, short], [*whole, short], [*core, short]]


def header_lines(facts: GroupFacts, edges: Sequence[int], step: int, two: bool) -> list[list[Span]]:
    """Names of the time steps: one line, or the numbers over what each computes."""
    head: list[Span] = [("bank   KiB".rjust(GUTTER - 1) + " ", "muted")]
    numbers, names = list(head), [(" " * GUTTER, "")]
    for number, (left, right) in enumerate(pairwise(edges)):
        width = right - left
        here = number == step
        ground = " column" if here else ""
        texts = facts.step_names(number)
        if two:
            title = first_fit([f"step {number + 1}", f"{number + 1}"], width - 1)
            numbers.append((f"{title:<{width}}", ("key bold" if here else "muted") + ground))
            name = first_fit(texts, width - 1) or texts[-1][: width - 2] + "…"
            names.append((f"{name:<{width}}", ("heading" if here else "muted") + ground))
        else:
            joined = [f"{number + 1} {text}" for text in texts]
            name = first_fit(joined, width - 1) or (joined[-1][: width - 2] + "…")
            numbers.append((f"{name:<{width}}", ("key bold" if here else "muted") + ground))
    return [numbers, names] if two else [numbers]


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def _marked(text: str, palette: MapPalette, roles: str) -> str:
    """Text in the markup of border titles."""
    style: Any = palette.style(roles)
    if style.color is None:
        return _escaped(text)
    triplet = style.color.triplet
    color = triplet.hex if triplet is not None else f"ansi_{style.color.name}"
    return f"[{color}]{_escaped(text)}[/]"
