"""DDR of one module: arenas as bars, tensors with their lifetimes as a table, and the reused arena as a map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from textual.message import Message

from app import units
from app.widgets.bars import Picture
from app.widgets.documents import KV_INPUTS, short_location
from app.widgets.lines import Line, LineView, Span
from app.widgets.table import Column, Row, TableView
from engine.snapshot import OpRecord, Snapshot, is_computation
from engine.tpu.isa import Arena
from engine.tpu.memory import ArenaLayout, TensorPlace

ARENA_ABOUT = {
    Arena.COEFF: "weights",
    Arena.IO: "inputs, outputs, KV",
    Arena.NEURON: "activations, reused",
}


@dataclass(frozen=True)
class ModuleMemory:
    """The DDR of a module: its tensors, arenas and ops.

    shifts: arena -> what to add to the module's own addresses for the layer that is shown (bytes). merged: they are the
    addresses of the whole program; before the merge bases are the module's own and will change.
    """

    ops: tuple[OpRecord, ...]
    places: tuple[TensorPlace, ...]
    layout: ArenaLayout
    roles: dict[str, str]
    shifts: dict[Arena, int]
    merged: bool = True

    @cached_property
    def span(self) -> tuple[int, int]:
        """First and last op that computes (positions in the records)."""
        found = [i for i, op in enumerate(self.ops) if is_computation(op)]
        return (found[0], found[-1]) if found else (0, 0)

    def of(self, arena: Arena) -> list[TensorPlace]:
        """Tensors of an arena by address."""
        return [place for place in self.places if place.arena is arena]

    def role(self, place: TensorPlace) -> str:
        """What kind of data a tensor is."""
        if place.arena is Arena.COEFF:
            return "weights"
        return self.roles.get(place.value, "activations")

    def address(self, place: TensorPlace) -> int:
        """The tensor's address in the layer that is shown."""
        return place.address + self.shifts.get(place.arena, 0)

    def offset(self, place: TensorPlace) -> int:
        """Bytes from the arena's start."""
        return place.address - self.layout.base[place.arena]

    def high_water(self) -> int:
        """Most bytes of the neuron arena that are live at once."""
        places = self.of(Arena.NEURON)
        starts = {place.first for place in places}
        return max(
            (sum(p.nbytes for p in places if p.first <= t <= p.last) for t in starts),
            default=0,
        )

    def reuse(self) -> float:
        """Bytes of all activations over the size of their arena."""
        size = self.layout.size[Arena.NEURON]
        return sum(p.nbytes for p in self.of(Arena.NEURON)) / size if size else 0.0

    def reuse_text(self) -> str:
        """How often the arena is reused, where small tensors on a coarse grid do not hide it."""
        return f"reused {self.reuse():.1f}×" if self.reuse() >= 1.05 else "activations"

    def label(self, index: int) -> str:
        """What people call the op at a position."""
        if not 0 <= index < len(self.ops):
            return "?"
        op = self.ops[index]
        if op.name == "func.return":
            return "end"
        return f"{op.kind} {short_location(op.origins[-1])}" if op.origins else op.kind

    def columns(self, place: TensorPlace) -> tuple[int, int]:
        """(first, end) of a tensor's life in columns of one op each, from the first op that computes."""
        start, last = self.span
        first = min(max(place.first, start), last)
        return first - start, min(max(place.last, start), last) - start + 1


def memory_of(
    snapshot: Snapshot, places: Sequence[TensorPlace], shifts: dict[Arena, int], merged: bool = True
) -> ModuleMemory:
    """The DDR of an addressed snapshot."""
    from app.widgets.documents import value_roles

    layout = ArenaLayout.of(snapshot.attributes)
    return ModuleMemory(snapshot.ops, tuple(places), layout, value_roles(snapshot), shifts, merged)


def place_name(place: TensorPlace) -> str:
    """A tensor's name without what all share."""
    return short_location(place.name)


# -- arenas --------------------------------------------------------------------------------------------------------


class ArenaBars(Picture):
    """One bar an arena: its tensors by address, in the colours of their kinds."""

    DEFAULT_CSS = """
    ArenaBars { height: 3; }
    """
    NAMES = 8
    NUMBERS = 30

    def __init__(self) -> None:
        super().__init__()
        self.memory: ModuleMemory | None = None
        self.selected: TensorPlace | None = None

    def show(self, memory: ModuleMemory | None, selected: TensorPlace | None) -> None:
        """Show a module's arenas with one tensor marked."""
        self.memory, self.selected = memory, selected
        self.refresh()

    def lines(self, width: int) -> Sequence[Line]:
        """One line an arena."""
        return [self._arena(self.memory, arena, width) for arena in Arena] if self.memory else []

    def _arena(self, memory: ModuleMemory, arena: Arena, width: int) -> list[Span]:
        size = memory.layout.size[arena]
        about = ARENA_ABOUT[arena]
        if arena is Arena.NEURON and size:
            about = memory.reuse_text()
        room = width - self.NAMES - self.NUMBERS - 3
        head: list[Span] = [(f"  {arena.name.lower():<{self.NAMES - 2}}", "heading")]
        tail: list[Span] = [(f" {units.size(size):>8} ", ""), (about, "muted")]
        return [*head, ("▕", "rule"), *self._bar(memory, arena, max(4, room)), ("▏", "rule"), *tail]

    def _bar(self, memory: ModuleMemory, arena: Arena, width: int) -> list[Span]:
        size = memory.layout.size[arena]
        cells = [("·", "rule")] * width
        for number, place in enumerate(memory.of(arena)):
            start = memory.offset(place) * width // max(1, size)
            end = max(start + 1, -(-(memory.offset(place) + place.nbytes) * width // max(1, size)))
            role = memory.role(place)
            chosen = self.selected is not None and place.value == self.selected.value
            look = ("█", "heading") if chosen else ("█" if number % 2 else "▓", role)
            for cell in range(start, min(end, width)):
                if cells[cell][1] != "heading":
                    cells[cell] = look
        return cells


# -- table ---------------------------------------------------------------------------------------------------------


PROVISIONAL = "before merge: bases are provisional"
"""Said beside addresses that the merge of all modules will change."""


class MemoryTable(TableView):
    """Tensors with addresses; activations with their lifetimes, the others with their share."""

    SCOPES = ("list",)
    HELP = """
Every tensor of the module in DDR, by arena and address. **coeff** holds the weights, **io** the inputs, outputs and KV
regions, **neuron** the activations, which reuse each other's space: the bar is the tensor's life from the op that
writes it to the last that reads it, op by op from left to right; ops have the numbers that `tpuscope memory` prints.
For the other arenas the bar is the share of it. Before the merge of all modules, bases are provisional.

**t** shows the neuron arena as a map: address downwards, time to the right. **a** shows one arena or all. **,** and
**.** choose the layer whose addresses are shown.
"""
    EMPTY = "no addresses yet: address-assign has not run"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__((), id=id, title="DDR")
        self.memory: ModuleMemory | None = None

    def show_memory(self, memory: ModuleMemory | None, only: Arena | None) -> None:
        """Show a module's tensors, of all arenas or of one."""
        self.memory = memory
        rows: list[Row] = []
        for arena in (Arena.NEURON, Arena.IO, Arena.COEFF):
            if memory is None or (only is not None and arena is not only):
                continue
            places = memory.of(arena)
            rows.append(Row(_arena_head(memory, arena), head=True))
            rows += [_place_row(memory, place) for place in places]
        first, last = memory.span if memory else (0, 0)
        address = "address" if memory is None or memory.merged else "provisional"
        columns = (
            Column("tensor", cap=38, stretch=False),
            Column("bytes", right=True),
            Column("offset", right=True),
            Column(address, right=True, rank=2),
            Column("live", rank=1, right=True),
            Column(lambda width: _ruler(first, last, width), stretch=True, least=12),
        )
        self.show(rows, columns)
        self.border_subtitle = PROVISIONAL if memory is not None and not memory.merged else ""


def _arena_head(memory: ModuleMemory, arena: Arena) -> tuple[Span, ...]:
    size = memory.layout.size[arena]
    text = f"  {units.size(size)} at {units.address(memory.layout.base[arena] + memory.shifts.get(arena, 0))}"
    if arena is Arena.NEURON:
        text += f" · {units.size(memory.high_water())} live at most · {memory.reuse_text()}"
    return (f"▾ {arena.name.lower()}", "heading bold"), (text, "muted")


def _place_row(memory: ModuleMemory, place: TensorPlace) -> Row:
    role = memory.role(place)
    life, ops = memory.columns(place), memory.span[1] - memory.span[0] + 1
    size = memory.layout.size[place.arena]

    def drawn(width: int) -> Line:
        if place.arena is Arena.NEURON:
            return _life(life, ops, width, role)
        return [
            (units.bar(place.nbytes, size, max(4, width - 8)), role),
            (f" {units.share(place.nbytes, size)}", "muted"),
        ]

    live = f"{place.first}–{place.last}" if place.arena is Arena.NEURON else ""
    return Row(
        (
            (place_name(place), role),
            units.size(place.nbytes),
            (f"+{memory.offset(place):#x}", "muted"),
            (units.address(memory.address(place)), "muted"),
            (live, "muted"),
            drawn,
        ),
        place.value,
    )


def _life(life: tuple[int, int], ops: int, width: int, role: str) -> list[Span]:
    start = life[0] * width // max(1, ops)
    end = max(start + 1, life[1] * width // max(1, ops))
    return [("┈" * start, "rule"), ("━" * (end - start), role), ("┈" * (width - end), "rule")]


def _ruler(first: int, last: int, width: int) -> Line:
    """Op numbers over the lifetimes."""
    ops, text = last - first + 1, f"op {first}"
    for number in range(first + 5 - first % 5, last + 1, 5):
        at = (number - first) * width // max(1, ops)
        if at >= len(text) + 1 and at + len(str(number)) <= width:
            text = text.ljust(at) + str(number)
    return [(text.ljust(width), "muted")]


# -- map -----------------------------------------------------------------------------------------------------------


class MemoryMap(LineView):
    """The neuron arena: address downwards, time to the right, one box a tensor."""

    SCOPES = ("list",)
    HELP = """
The neuron arena as a map. Downwards: address. To the right: time, op by op. Every box is a tensor: as high as its
bytes, as wide as its life. What lies in one row shares memory at different times. Arrows move from tensor to tensor, in
time (**←** **→**) and by address (**↑** **↓**); **t** goes back to the table.
"""
    EMPTY = "no addresses yet: address-assign has not run"
    DEFAULT_CSS = """
    MemoryMap { display: none; }
    """
    LEFT = 10

    class Picked(Message):
        """Another tensor is marked."""

        def __init__(self, place: TensorPlace) -> None:
            super().__init__()
            self.place = place

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, title="neuron arena")
        self.memory: ModuleMemory | None = None
        self.picked = ""
        self.show_cursor = False

    def show_memory(self, memory: ModuleMemory | None, picked: object) -> None:
        """Show a module's neuron arena with a tensor marked."""
        self.memory = memory
        places = memory.of(Arena.NEURON) if memory else []
        values = [place.value for place in places]
        self.picked = str(picked) if picked in values else (values[0] if values else "")
        self.reload(0)

    @property
    def place(self) -> TensorPlace | None:
        """The marked tensor."""
        places = self.memory.of(Arena.NEURON) if self.memory else []
        return next((place for place in places if place.value == self.picked), None)

    def line_count(self) -> int:
        return max(4, self.page_height) if self.memory and self.memory.of(Arena.NEURON) else 0

    def pinned(self) -> Sequence[Line]:
        if not self.memory or not self.line_count():
            return ()
        return [[(" " * self.LEFT, ""), *_ruler(*self.memory.span, self._columns)]]

    @property
    def page_height(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    @property
    def _columns(self) -> int:
        return max(8, self.inner_width - self.LEFT - 1)

    def on_resize(self) -> None:
        """The map fills the panel."""
        self.reload(0)

    def line(self, index: int) -> Line:
        memory = self.memory
        assert memory is not None
        rows, width = self.line_count(), self._columns
        size = max(1, memory.layout.size[Arena.NEURON])
        low = index * size / rows
        cells: list[Span] = [("·", "rule")] * width
        ops = memory.span[1] - memory.span[0] + 1
        for number, place in enumerate(memory.of(Arena.NEURON)):
            start, end = memory.offset(place), memory.offset(place) + place.nbytes
            top = int(start * rows / size)
            bottom = max(top + 1, -int(-end * rows // size))
            if not top <= index < bottom or (end <= low and index != top):
                continue
            first, end_op = memory.columns(place)
            left = first * width // ops
            right = max(left + 1, end_op * width // ops)
            chosen = place.value == self.picked
            look = ("█", "heading") if chosen else ("█▓▒░"[number % 4], memory.role(place))
            cells[left:right] = [look] * (right - left)
            if index == (top + bottom - 1) // 2:
                _write(cells, left, right, place_name(place).rpartition(".")[2], chosen)
        return [(f"{_tick(index, rows, size):>{self.LEFT - 1}} ", "muted"), *_merged(cells)]

    def _move(self, key: str, step: int) -> None:
        places = self.memory.of(Arena.NEURON) if self.memory else []
        if not places:
            return
        ordered = sorted(
            places, key=lambda p: (p.first, p.address) if key == "time" else (p.address, p.first)
        )
        values = [place.value for place in ordered]
        at = values.index(self.picked) if self.picked in values else 0
        at = min(max(at + step, 0), len(values) - 1)
        self.picked = values[at]
        self.repaint()
        self.post_message(self.Picked(ordered[at]))

    def move_by(self, amount: int) -> None:
        """By address."""
        self._move("address", amount)

    def action_scroll_sideways(self, cells: int) -> None:
        """In time."""
        self._move("time", 1 if cells > 0 else -1)

    def action_first(self) -> None:
        """The lowest address."""
        self._move("address", -1_000_000)

    def action_last(self) -> None:
        """The highest address."""
        self._move("address", 1_000_000)

    def copy_text(self, index: int) -> str:
        place = self.place
        return f"{place.name} {place.address} {place.nbytes}" if place else ""


PAGE = 4096
"""Tensors lie at multiples of so many bytes."""


def _tick(row: int, rows: int, size: int) -> str:
    """The multiple of 4 KiB that a row of a map begins with or holds; empty where the step between labels has none."""
    step = PAGE
    while size > step * rows // 2:
        step *= 2
    multiple = -(-row * size // rows // step) * step
    inside = multiple * rows < (row + 1) * size
    return f"{multiple // 1024} KiB" if inside and multiple < size else ""


def _write(cells: list[Span], left: int, right: int, text: str, chosen: bool) -> None:
    """A name inside of a box, where it fits."""
    room = right - left - 2
    if len(text) > room:
        return
    start = left + 1 + (room - len(text)) // 2
    for offset, letter in enumerate(f" {text} "):
        if left <= start - 1 + offset < right:
            cells[start - 1 + offset] = (letter, "heading bold" if not chosen else "heading bold underline")


def _merged(cells: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for text, roles in cells:
        if merged and merged[-1][1] == roles:
            merged[-1] = (merged[-1][0] + text, roles)
        else:
            merged.append((text, roles))
    return merged


# -- details -------------------------------------------------------------------------------------------------------


def place_lines(memory: ModuleMemory, place: TensorPlace, layer_text: str) -> list[list[Span]]:
    """Everything about one tensor."""
    role = memory.role(place)
    address = memory.address(place)
    lines: list[list[Span]] = [
        [
            ("kind     ", "muted"),
            (role, role),
            ("  in the ", "muted"),
            (place.arena.name.lower(), ""),
            (" arena", "muted"),
        ],
        [
            ("address  ", "muted"),
            (units.address(address), ""),
            (f" = {address:,} = {place.arena.name.lower()}+{memory.offset(place):#x}", "muted"),
            ("" if memory.merged else f"  {PROVISIONAL}", "changed"),
        ],
        [
            ("bytes    ", "muted"),
            (units.count(place.nbytes), ""),
            (f"  {units.share(place.nbytes, memory.layout.size[place.arena])} of the arena", "muted"),
        ],
    ]
    writer = next((i for i, op in enumerate(memory.ops) if place.value in op.results), None)
    if writer is not None and is_computation(memory.ops[writer]):
        lines.append([("written  ", "muted"), (f"by {memory.label(writer)}", "")])
    readers = [i for i, op in enumerate(memory.ops) if place.value in op.operands]
    if readers:
        text = ", ".join(dict.fromkeys(memory.label(i) for i in readers))
        lines.append(
            [("read     ", "muted"), (f"by {text}" if text != "end" else "as the module's result", "")]
        )
    if place.arena is Arena.NEURON:
        ends = dict.fromkeys((memory.label(place.first), memory.label(place.last)))
        lines.append(
            [
                ("live     ", "muted"),
                (f"op {place.first} to {place.last}", ""),
                (f"  {' to '.join(ends)}", "muted"),
            ]
        )
        shared = [
            place_name(other)
            for other in memory.of(Arena.NEURON)
            if other.value != place.value
            and other.address < place.address + place.nbytes
            and place.address < other.address + other.nbytes
        ]
        if shared:
            lines.append([("shares   ", "muted"), (f"its space with {', '.join(shared)}", "muted")])
    if place.arena is Arena.COEFF:
        lines.append([("holds    ", "muted"), (layer_text, "weights")])
    elif place.name in KV_INPUTS:
        lines.append(
            [("region   ", "muted"), ("rows of history; new rows are appended right behind them", "kv")]
        )
    return lines
