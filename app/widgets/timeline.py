"""The timeline of a module: the two engines of every core over its cycles, with a cursor on an instruction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.strip import Strip

from app import units
from app.actions import bindings
from app.theme import Palette
from app.widgets.lines import Line, LineView, Span, marked, plain
from app.widgets.map_palette import MapPalette
from app.widgets.table import fitted
from app.widgets.timeline_facts import FILLS, LEGEND, TABLE_HEAD, TimelineFacts, cycle_of
from app.widgets.timeline_track import NOBODY, Window, axis_line, level_rows
from engine.tpu.isa import Engine

CLOSEST = 16.0
"""Cycles in the closest view."""
_TALLEST = 4
"""Rows of a lane at most."""
_DETAILS = 5
_MARGIN = 0.1
"""Part of the window that stays between the cursor and its border when the view moves along."""


@dataclass(frozen=True)
class Plan:
    """Which rows the panel has. lane: rows of a lane. cores: how many are visible. table: rows of the list below."""

    groups: int
    lane: int
    gap: int
    cores: int
    rate: int
    details: int
    table: int


def plan_rows(height: int, cores: int, has_groups: bool) -> Plan:
    """Divide the height: ops, axis, overview and a rule are one row each; lanes, rate and list take the rest."""
    details = _DETAILS if height >= 14 else max(0, min(_DETAILS, height - 9))
    room = height - details - 3 - (1 if details else 0)
    gap = 1 if cores == 1 or room >= 3 * cores + 6 else 0
    shown = max(1, min(cores, (room + gap) // (2 + gap)))
    room -= shown * (2 + gap)
    rate = 1 if room > 0 else 0
    room -= rate
    lane = 1 + max(0, min(_TALLEST - 1 if cores == 1 else 0, room // 2))
    room -= 2 * (lane - 1)
    groups = 1 if has_groups and room > 0 else 0
    room -= groups
    if room > 0 and rate:
        rate, room = 2, room - 1
    table = room if room >= 5 else 0
    return Plan(groups, lane, gap, shown, rate, details, table)


class TimelineView(LineView, inherit_bindings=False):
    """The lanes, the cursor's instruction in words, and the instructions around it where there is room."""

    HELP = """
What the two engines do over the cycles of one run of a module: the `dma` engine (GDMA) loads `weights`, KV and
`activations` and stores results, the `compute` engine (TIU) works on local memory: matrix products, arithmetic on
vectors, and moves inside of local memory. Cells of many short instructions show by their density how busy the engine
is. The line **op** names the op that the module waits for (together these are all of its cycles), coloured by what
bounds it; **group** the layer groups; **B/c** the DDR bytes per cycle against the peak.

The arrow between the lanes points at the cursor's instruction; before it are the cycles in which its engine stood
still, and for what. Times are those of `export trace`: engines in order, cores apart.

**← →** move by instruction, **shift ← →** or **H L** by op, **↑ ↓** to the other lane. **+** and **-** zoom around the
cursor, **x** to the op, **=** shows all. **w** goes to the instruction that was waited for, **b** to the longest wait
that is left in the lane. **/** finds an op or a tensor, **:** goes to a cycle (`352k`). **[ ]** change the stage,
**{ }** the module; **t** or esc goes back to the table.
"""
    EMPTY = "no instructions"
    SCOPES = ("timeline",)
    BINDINGS = bindings("timeline")
    GO_TO_HINT = "a cycle, such as 352,100 or 352k; or an op"
    DEFAULT_CSS = """
    TimelineView { min-width: 30; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, title="timeline")
        self.facts: TimelineFacts | None = None
        self.start, self.end = 0.0, 1.0
        self._top = 0
        self._frame: tuple[tuple[object, ...], list[Strip]] | None = None

    # -- contents -----------------------------------------------------------------------------------------------

    def show(self, facts: TimelineFacts | None, cursor: int = 0, note: str = "") -> None:
        """Show a module as a whole with the cursor on an instruction. note: what to say while there is none."""
        self.facts = facts if facts is not None and len(facts.lanes) else None
        self.empty = note or self.EMPTY
        self.start, self.end, self._top = 0.0, 1.0, 0
        if self.facts is not None:
            self.end = float(max(1, self.facts.lanes.cycles))
        self.set_reactive(LineView.cursor, cursor)
        self.virtual_size = Size(0, 0)
        self.changed()

    def changed(self) -> None:
        """Draw anew."""
        self._frame = None
        self._titles()
        self.refresh()

    def repaint(self) -> None:
        """The titles have colours too, which a new theme has only with the next refresh."""
        self.changed()
        self.call_after_refresh(self.changed)

    def reload(self, cursor: int | None = None) -> None:
        """Everything is drawn from the facts."""
        self.changed()

    def on_resize(self) -> None:
        """The legend and the rows depend on the size."""
        self.changed()

    def line_count(self) -> int:
        """Instructions: what the cursor moves over."""
        return len(self.facts.lanes) if self.facts else 0

    def palette(self) -> MapPalette:
        """Styles over this panel's ground."""
        color = self.rich_style.bgcolor
        ground = color.get_truecolor() if color is not None and color.triplet is not None else None
        return MapPalette(Palette.of(self.app), ground)

    def _titles(self) -> None:
        facts = self.facts
        if facts is None:
            self.border_title, self.border_subtitle = "timeline", ""
            return
        lanes = facts.lanes
        whole = lanes.cycles * lanes.cores
        cores = range(lanes.cores)
        busy = [
            f"{engine.name} {units.share(sum(lanes.busy(core, engine) for core in cores), whole)}"
            for engine in (Engine.GDMA, Engine.TIU)
        ]
        parts = [
            f"timeline · {lanes.name}",
            f"{lanes.cycles:,} cycles",
            f"{len(lanes):,} instructions",
            f"{' '.join(busy)} busy",
        ]
        room = self.size.width - 4
        while len(parts) > 1 and len(" · ".join(parts)) > room:
            parts.pop()
        self.border_title = " · ".join(parts)
        self.border_subtitle = self._legend(room)

    def _legend(self, room: int) -> str:
        facts = self.facts
        assert facts is not None
        palette, used = self.palette(), set(facts.fill.tolist())
        entries = [(fill, name) for fill, name in LEGEND if fill in used]
        if sum(len(name) + 3 for _, name in entries) > room:
            entries = [(fill, name) for fill, name in entries if name not in ("tables", "layout")]
        marks = []
        for fill, name in entries:
            color = palette.style(f"fg:{FILLS[fill]}").color
            if color is not None:
                hue = color.triplet.hex if color.triplet is not None else f"ansi_{color.name}"
                marks.append(f"[{hue}]■[/] {name}")
        return " ".join(marks)

    # -- drawing ------------------------------------------------------------------------------------------------

    @property
    def names_width(self) -> int:
        """Cells of the lanes' names."""
        return 8 if self.facts is not None and self.facts.lanes.cores > 1 else 7

    @property
    def window(self) -> Window:
        """The visible cycles."""
        return Window(self.start, self.end, max(1, self.inner_width - self.names_width - 1))

    def plan(self) -> Plan:
        """The rows."""
        assert self.facts is not None
        height = max(1, self.scrollable_content_region.height)
        return plan_rows(height, self.facts.lanes.cores, bool(self.facts.group_records))

    def render_line(self, y: int) -> Strip:
        """One line of the frame."""
        palette, width, base = self.palette(), self.inner_width, self.rich_style
        height = self.scrollable_content_region.height
        drawn = (width, height, palette, self.has_focus, self.start, self.end, self.cursor, self.sought, base)
        if self._frame is None or self._frame[0] != drawn:
            self._frame = drawn, self._draw(palette, width, height)
        lines = self._frame[1]
        strip = lines[y] if y < len(lines) else Strip.blank(width, base)
        return strip.crop_extend(0, width, base).apply_style(base)

    def _draw(self, palette: MapPalette, width: int, height: int) -> list[Strip]:
        """All lines: they are made together."""
        if self.facts is None:
            lines: list[Line] = [[]] * (height // 3) + [[(self.empty.center(width), "muted")]]
        else:
            lines = list(self._lines(self.facts))
        return [
            Strip([Segment(text, palette.style(roles)) for text, roles in line if text]) for line in lines
        ]

    def _lines(self, facts: TimelineFacts) -> Iterator[Line]:
        plan, window = self.plan(), self.window
        queue = facts.queue(self.cursor)
        top = self._first_core(plan, queue // 2)
        if plan.groups:
            yield [*self._heading("group"), *facts.groups.draw(window, 1, NOBODY, self.sought)[0]]
        yield [*self._heading("op"), *facts.ops.draw(window, 1, self._span_of_cursor(), self.sought)[0]]
        for core in range(top, top + plan.cores):
            yield from self._lane(facts, 2 * core, plan.lane, queue)
            if plan.gap:
                yield self._pointer(facts, window) if core == queue // 2 else []
            yield from self._lane(facts, 2 * core + 1, plan.lane, queue)
        yield [*self._heading(""), *axis_line(window)]
        if plan.rate:
            rows = level_rows(facts.rate(window) / facts.peak, plan.rate, "dma")
            for number, row in enumerate(rows):
                yield [*self._heading("B/c" if number == plan.rate - 1 else ""), *row]
        yield [*self._heading("view"), *self._overview(facts, window)]
        if plan.details:
            yield [("─" * self.inner_width, "faint")]
            yield from self._details(facts, plan.details)
        if plan.table:
            yield from self._table(facts, plan.table)

    def _heading(self, text: str, role: str = "muted") -> list[Span]:
        return [(f" {text:<{self.names_width - 1}}", role)]

    def _first_core(self, plan: Plan, core: int) -> int:
        assert self.facts is not None
        top = min(max(self._top, core - plan.cores + 1), core)
        self._top = min(top, self.facts.lanes.cores - plan.cores)
        return self._top

    def _lane(self, facts: TimelineFacts, number: int, height: int, here: int) -> Iterator[Line]:
        cursor = int(facts.place[self.cursor]) if number == here else NOBODY
        rows = facts.tracks[number].draw(self.window, height, cursor, self.sought)
        if number == here:
            self._idle(facts, rows[(height - 1) // 2])
        _, engine = facts.queues[number]
        role = ("dma" if engine is Engine.GDMA else "compute") + (" bold" if number == here else "")
        for row, line in enumerate(rows):
            yield [*self._heading(facts.lane_name(number) if row == (height - 1) // 2 else "", role), *line]

    def _idle(self, facts: TimelineFacts, line: list[Span]) -> None:
        """Mark the cycles in which the engine stood still before the cursor."""
        lanes, window = facts.lanes, self.window
        idle, start = int(lanes.idle[self.cursor]), int(lanes.start[self.cursor])
        left, right = (round(window.column(cycle)) for cycle in (start - idle, start))
        left, right = max(0, left), min(window.width, right)
        cells = [(char, roles) for text, roles in line for char in text]
        first, left = left, right
        while left > first and cells[left - 1] == (" ", ""):
            left -= 1
        if not idle or left == right:
            return
        text = f" idle {units.cycles(idle)} "
        wide = right - left
        shown = text.center(wide, "╌") if len(text) <= wide else "╌" * wide
        cells[left:right] = [(char, "changed") for char in shown]
        line[:] = cells

    def _pointer(self, facts: TimelineFacts, window: Window) -> Line:
        """Between the lanes of a core: an arrow to the cursor's instruction, and what it is."""
        lanes = facts.lanes
        middle = (
            max(self.start, int(lanes.start[self.cursor])) + min(self.end, int(lanes.end[self.cursor]))
        ) / 2
        if not self.start <= middle <= self.end:
            return []
        column = min(max(0, int(window.column(middle))), window.width - 1)
        arrow = "▲" if lanes.engine[self.cursor] == Engine.GDMA else "▼"
        name = facts.tensor_label(self.cursor) or facts.op_label(int(lanes.op[self.cursor]))
        text = f"{facts.kind(self.cursor)} {name} · {units.cycles(int(lanes.length[self.cursor]))}"
        before, behind = column - 1, window.width - column - 2
        if len(text) <= behind or before < behind:
            shown = text if len(text) <= behind else text[: max(0, behind - 1)] + "…"
            return [(" " * (self.names_width + column), ""), (arrow, "key bold"), (f" {shown}", "muted")]
        shown = text if len(text) <= before else text[: max(0, before - 1)] + "…"
        pad = self.names_width + column - len(shown) - 1
        return [(" " * pad, ""), (f"{shown} ", "muted"), (arrow, "key bold")]

    def _span_of_cursor(self) -> int:
        """The span of ops that the cursor lies in, if it is of the same op."""
        facts = self.facts
        assert facts is not None
        lanes = facts.lanes
        at = facts.ops.at((int(lanes.start[self.cursor]) + int(lanes.end[self.cursor])) / 2)
        same = at != NOBODY and lanes.spans[at].index == int(lanes.op[self.cursor])
        return at if same else NOBODY

    def _overview(self, facts: TimelineFacts, window: Window) -> list[Span]:
        """Where the window is in the whole."""
        whole, width = max(1, facts.lanes.cycles), window.width
        zoomed = self.end - self.start < whole
        text = f" {units.cycles(self.start)} .. {units.cycles(self.end)}" if zoomed else " all"
        width -= len(text)
        left = min(int(width * self.start / whole), width - 1)
        right = max(left + 1, round(width * self.end / whole))
        return [
            ("─" * left, "faint"),
            ("━" * (right - left), "key"),
            ("─" * (width - right), "faint"),
            (text, "muted"),
        ]

    def _details(self, facts: TimelineFacts, count: int) -> Iterator[Line]:
        for line in facts.details(self.cursor)[:count]:
            spans = [(" ", ""), *line]
            yield fitted(list(marked(spans, self.sought)) if self.sought else spans, self.inner_width)

    def _table(self, facts: TimelineFacts, height: int) -> Iterator[Line]:
        """The instructions around the cursor by start, those of the cursor's core."""
        width = self.inner_width
        yield []
        yield fitted([(" ", ""), *TABLE_HEAD], width)
        rows = height - 2
        order = facts.core_order(int(facts.lanes.core[self.cursor]))
        at = int(order.searchsorted(facts.rank[self.cursor]))
        first = min(max(0, at - rows // 2), max(0, len(order) - rows))
        for rank in order[first : first + rows].tolist():
            index = int(facts.order[rank])
            line = [(" ", ""), *facts.table_line(index)]
            if index != self.cursor:
                yield fitted(line, width)
                continue
            mark = "cursor" if self.has_focus else "cursor-idle"
            # a reversed cursor keeps one pair of colours, or every role would flip on its own
            alone = bool(Palette.of(self.app).style(mark).reverse)
            yield [(text, mark if alone else f"{roles} {mark}") for text, roles in fitted(line, width)]

    # -- the window ---------------------------------------------------------------------------------------------

    def look_at(self, start: float, end: float) -> None:
        """Show a stretch of cycles, moved into the module and not closer than allowed."""
        if self.facts is None:
            return
        whole = float(max(1, self.facts.lanes.cycles))
        length = min(max(end - start, min(CLOSEST, whole)), whole)
        start = min(max(0.0, start), whole - length)
        self.start, self.end = start, start + length
        self.changed()

    def _follow(self) -> None:
        """Move the window so that the cursor's instruction is in it."""
        facts = self.facts
        if facts is None:
            return
        length = self.end - self.start
        first, last = float(facts.lanes.start[self.cursor]), float(facts.lanes.end[self.cursor])
        if first >= self.start and last <= self.end:
            self.changed()
        elif last - first >= length or first < self.start:
            self.look_at(first - _MARGIN * length, first + (1 - _MARGIN) * length)
        else:
            self.look_at(last - (1 - _MARGIN) * length, last + _MARGIN * length)

    def zoom(self, factor: float) -> None:
        """Closer (above 1) or further away, the cursor staying where it is."""
        facts = self.facts
        if facts is None:
            return
        first, last = float(facts.lanes.start[self.cursor]), float(facts.lanes.end[self.cursor])
        middle = (max(first, self.start) + min(last, self.end)) / 2
        if not self.start <= middle <= self.end:
            middle = (first + last) / 2
            self.start, self.end = middle - (self.end - self.start) / 2, middle + (self.end - self.start) / 2
        length = min(max((self.end - self.start) / factor, CLOSEST), float(max(1, facts.lanes.cycles)))
        part = (middle - self.start) / (self.end - self.start)
        self.look_at(middle - part * length, middle + (1 - part) * length)

    # -- cursor -------------------------------------------------------------------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        """The whole picture depends on the cursor."""

    def move_to(self, index: int, announce: bool = True) -> None:
        """Put the cursor on an instruction and show it."""
        if self.facts is None or not 0 <= index < len(self.facts.lanes):
            return
        before = self.cursor
        self.cursor = index
        self._follow()
        if announce and before != index:
            self.post_message(self.Moved(self, index))

    def action_go(self, amount: int) -> None:
        """Later or earlier instructions of the lane."""
        if self.facts is not None:
            self.move_to(self.facts.step(self.cursor, amount))

    def action_go_op(self, direction: int) -> None:
        """The next or previous op of the lane."""
        if self.facts is not None:
            self.move_to(self.facts.step_op(self.cursor, direction))

    def action_go_lane(self, amount: int) -> None:
        """What runs in another lane at the same time."""
        if self.facts is not None:
            self.move_to(self.facts.other_lane(self.cursor, amount))

    def action_first(self) -> None:
        """The lane's first instruction."""
        self.action_go(-self.line_count())

    def action_last(self) -> None:
        """The lane's last instruction."""
        self.action_go(self.line_count())

    def action_page(self, pages: float) -> None:
        """As far as the window is wide, later or earlier."""
        facts = self.facts
        if facts is None:
            return
        length = (self.end - self.start) * pages
        middle = (float(facts.lanes.start[self.cursor]) + float(facts.lanes.end[self.cursor])) / 2
        self.look_at(self.start + length, self.end + length)
        self.move_to(facts.at(middle + length, facts.queue(self.cursor)))

    def action_zoom(self, closer: int) -> None:
        """Twice as close or as far."""
        self.zoom(2.0 if closer > 0 else 0.5)

    def action_fit(self) -> None:
        """The whole module."""
        if self.facts is not None:
            self.look_at(0, self.facts.lanes.cycles)

    def action_fit_op(self) -> None:
        """The op of the cursor."""
        if self.facts is not None:
            first, last = self.facts.op_window(self.cursor)
            margin = (last - first) / 20
            self.look_at(first - margin, last + margin)

    def action_waited_for(self) -> None:
        """The instruction of the other engine that had to end first."""
        if self.facts is None:
            return
        needs = int(self.facts.lanes.needs[self.cursor])
        if needs == NOBODY:
            self.notify("this instruction waits for nothing of the other engine")
        else:
            self.move_to(needs)

    def action_longest_wait(self) -> None:
        """The longest of the waits that come later in the lane; from the last, the longest of all."""
        facts = self.facts
        if facts is None:
            return
        rows = facts.rows[facts.queue(self.cursor)]
        idle = facts.lanes.idle[rows]
        at = int(facts.place[self.cursor])
        later = idle[at + 1 :]
        if not idle.any():
            self.notify("this engine never waits")
        elif later.any():
            self.move_to(int(rows[at + 1 + int(later.argmax())]))
        else:
            self.move_to(int(rows[int(idle.argmax())]))

    def copy_text(self, index: int) -> str:
        """Everything about the instruction."""
        if self.facts is None:
            return ""
        return "\n".join(plain(line).rstrip() for line in self.facts.details(index))

    # -- mouse --------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """The instruction under the mouse; on the cursor's a click opens its op."""
        event.prevent_default()  # a list's way to take a click would come next
        facts = self.facts
        if facts is None:
            return
        spot = event.get_content_offset_capture(self)
        queue = self._queue_at(spot.y)
        cycle = self.window.cycle(spot.x - self.names_width + 0.5)
        found = facts.at(cycle, facts.queue(self.cursor) if queue is None else queue)
        if found == self.cursor and queue is not None:
            self.action_choose()
        elif found != NOBODY:
            self.move_to(found)

    def _queue_at(self, y: int) -> int | None:
        """The lane of a line; None for others."""
        plan = self.plan()
        at = plan.groups + 1
        for core in range(self._top, self._top + plan.cores):
            edges = (at, at + plan.lane, at + plan.lane + plan.gap, at + 2 * plan.lane + plan.gap)
            for number, (first, last) in enumerate(pairwise(edges)):
                if first <= y < last and number != 1:
                    return 2 * core + (number == 2)
            at = edges[-1]
        return None

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves along the cycles, with ctrl it zooms out."""
        event.prevent_default().stop()
        self._wheel(1, event.ctrl)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves back, with ctrl it zooms in."""
        event.prevent_default().stop()
        self._wheel(-1, event.ctrl)

    def _wheel(self, direction: int, zoom: bool) -> None:
        if zoom:
            self.zoom(2.0 ** (-direction))
        else:
            step = (self.end - self.start) / 8 * direction
            self.look_at(self.start + step, self.end + step)

    # -- search -------------------------------------------------------------------------------------------------

    def find(self, text: str, start: int, direction: int) -> int | None:
        """The first op or tensor from an instruction on in time, going around."""
        if self.facts is None:
            return None
        found = self.facts.next_match(text, min(start, self.line_count() - 1), direction, here=True)
        return None if found == NOBODY else found

    def action_search_next(self, direction: int) -> None:
        """The next op or tensor that matches."""
        if not self.sought or self.facts is None:
            self.action_search()
            return
        found = self.facts.next_match(self.sought, self.cursor, direction)
        if found == NOBODY:
            self.notify(f"no op or tensor has {self.sought!r} in its name", severity="warning")
        else:
            self.move_to(found)

    def locate(self, wanted: str) -> int | None:
        """What runs in a cycle in the cursor's lane, or an op or tensor by name."""
        facts = self.facts
        cycle = cycle_of(wanted)
        if facts is None or cycle is None:
            return self.find(wanted, self.cursor, 1)
        return facts.at(min(cycle, facts.lanes.cycles), facts.queue(self.cursor))
