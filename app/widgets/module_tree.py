"""The module tree: stages, their modules, and the decode blocks with shorter caches under the block that they stand in
for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual import events

from app import units
from app.actions import bindings
from app.widgets.lines import Span
from app.widgets.table import Column, Row, TableView
from app.workspace import STAGE_TITLES, State, Workspace
from engine.stages import ModuleSpec, Stage

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
OPEN, FOLDED = "▾", "▸"
_STATE_MARKS: dict[State, tuple[str, str]] = {
    "pending": ("·", "faint"),
    "running": (SPINNER[0], "key"),
    "done": ("✓", "good"),
    "failed": ("✗", "bad bold"),
}

Key = Stage | str
"""What a row is about: a stage, or a module by name."""


@dataclass(frozen=True)
class Node:
    """A row of the tree, shown or not. parents: what it stands under, the outermost first. leaf: has no rows below."""

    key: Key
    parents: tuple[Key, ...]
    leaf: bool


def nodes(work: Workspace) -> Iterator[Node]:
    """Every row of the tree."""
    for stage in STAGE_TITLES:
        modules = work.stage_modules(stage)
        if modules:
            yield Node(stage, (), leaf=False)
        for spec in modules:
            variants = work.variants(spec)
            yield Node(spec.name, (stage,), leaf=not variants)
            yield from (Node(variant.name, (stage, spec.name), leaf=True) for variant in variants)


class ModuleTree(TableView):
    """Every distinct module, by stage."""

    HELP = """
Every distinct module, grouped by the stage that runs it. Equal layers are compiled once: **block_0 ×29** serves 29
layers, and the last layer, which ends with the final norm, is a module of its own. Under a block of decode are those
that read a shorter cache: `_1` stands in for it while the cache holds at most so many rows. The number at the right is
what one run costs in clock cycles (of all layers, beside a stage's name).

`✓` compiled, `·` waiting, `✗` failed (select it to see why). **space** or **enter** on a stage, **←** and **→** and a
click fold `▾` and unfold `▸` what is below; on a stage the details are about all of it. **{** and **}** step through
the modules from anywhere, **,** and **.** choose the layer whose names and addresses are shown.
"""
    GO_TO_HINT = "a module by the name of any layer, such as block_7"
    SCOPES = ("tree", "list")
    BINDINGS = bindings("tree")

    def __init__(self, *, id: str | None = None) -> None:
        columns = (
            Column(""),
            Column("module", stretch=True),
            Column("cycles", right=True, rank=1),
        )
        super().__init__(columns, id=id, title="modules", head=False)
        self.GAP = " "
        self._work: Workspace | None = None
        self._module = ""
        self._tick = 0
        self._tree: dict[Key, Node] = {}
        self._toggled: frozenset[Key] = frozenset()
        self._before_search: frozenset[Key] = frozenset()

    # -- contents -----------------------------------------------------------------------------------------------

    def sync(self, work: Workspace, tick: int = 0) -> None:
        """Show the modules and their states. The cursor goes to the selected module when another one was selected, and
        else stays, as on a stage."""
        self._work, self._tick = work, tick
        self._tree = {node.key: node for node in nodes(work)}
        selected = work.module != self._module
        self._module = work.module
        if selected:
            self._unfold_to(work.module)
        self._rebuild()
        if selected or self.stage is None:
            self.move_to_key(work.module)

    def _rebuild(self) -> None:
        work = self._work
        if work is None:
            return
        shown = [node for node in self._tree.values() if all(map(self.is_open, node.parents))]
        wide = max((len(_label(work, node)) + len(_times(work, node)) for node in shown), default=0)
        self.show([self._row(work, node, wide) for node in shown])

    @property
    def stage(self) -> Stage | None:
        """The stage that the cursor is on."""
        return self.key if isinstance(self.key, Stage) else None

    @property
    def module(self) -> str | None:
        """The module that the cursor is on."""
        return self.key if isinstance(self.key, str) and self.stage is None else None

    def is_open(self, key: Key) -> bool:
        """Whether what is below a row is shown: at first below stages, and not below blocks."""
        return isinstance(key, Stage) != (key in self._toggled)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _row(self, work: Workspace, node: Node, wide: int) -> Row:
        if isinstance(node.key, Stage):
            return self._stage_row(work, node.key)
        spec = work.spec(node.key)
        state = work.state(spec.name)
        role = {"pending": "muted", "failed": "bad"}.get(state, "")
        label, times = _label(work, node), _times(work, node)
        name: list[Span] = [(f"{label:<{wide - len(times)}}", role), (times, "muted")]
        if not node.leaf and not self.is_open(node.key):
            name += self._news([variant.name for variant in work.variants(spec)])
        timing = work.timings.get(spec.name)
        cells = (self._mark(node, state), name, units.cycles(timing.total_cycles) if timing else "")
        return Row(cells, spec.name)

    def _stage_row(self, work: Workspace, stage: Stage) -> Row:
        known = work.stage_cycles(stage)
        total = units.cycles(known) if known else ""
        below = [key for key, node in self._tree.items() if stage in node.parents]
        is_open = self.is_open(stage)
        title: list[Span] = [(f"{OPEN if is_open else FOLDED} {STAGE_TITLES[stage]}", "heading bold")]
        if not is_open:
            title += [(f" ({len(below)})", "muted"), *self._news(below)]
        return Row((title, lambda room: [(f"{total:>{max(0, room)}}", "muted")]), stage, head=True)

    def _mark(self, node: Node, state: State) -> Span:
        """How far a module is; for one with others below also whether they are shown."""
        mark, role = _STATE_MARKS[state]
        if state == "running":
            return self._spinner, role
        if node.leaf or state == "failed":
            return mark, role
        return OPEN if self.is_open(node.key) else FOLDED, role

    @property
    def _spinner(self) -> str:
        return SPINNER[self._tick % len(SPINNER)]

    def _news(self, modules: list[Key] | list[str]) -> list[Span]:
        """What must not stay unseen of modules that are not shown: that one failed, or that one is compiled now."""
        assert self._work is not None
        states = {self._work.state(str(module)) for module in modules}
        if "failed" in states:
            return [(" ✗", "bad bold")]
        return [(f" {self._spinner}", "key")] if "running" in states else []

    def selectable(self, index: int) -> bool:
        """Stages are rows like all others."""
        return True

    def move_to_key(self, key: object, announce: bool = False) -> bool:
        """Put the cursor on a row; False when it is not shown."""
        found = next((index for index, row in enumerate(self.rows) if row.key == key), None)
        if found is not None:
            self.move_to(found, announce)
        return found is not None

    def copy_text(self, index: int) -> str:
        """Name and cycles."""
        row = self.rows[index]
        return f"{row.key}  {super().copy_text(index)}"

    # -- folding ------------------------------------------------------------------------------------------------

    def set_open(self, key: Key, is_open: bool) -> None:
        """Show what is below a row, or fold it; the cursor leaves what is folded."""
        node = self._tree.get(key)
        if node is None or node.leaf or self.is_open(key) == is_open:
            return
        self._toggled ^= {key}
        if key in self._parents(self.key):
            self.move_to_key(key, announce=True)
        self._rebuild()
        below = [index for index, row in enumerate(self.rows) if key in self._parents(row.key)]
        if below:
            self._reveal(below[-1])
            self._reveal(self.cursor)

    def _parents(self, key: object) -> tuple[Key, ...]:
        node = self._tree.get(key) if isinstance(key, str) else None
        return node.parents if node else ()

    def toggle(self, key: Key) -> None:
        """Fold or unfold."""
        self.set_open(key, not self.is_open(key))

    def _unfold_to(self, key: Key) -> None:
        """Show a row."""
        self._toggled ^= {parent for parent in self._parents(key) if not self.is_open(parent)}

    def action_fold_or_unfold(self) -> None:
        """Fold or unfold what is below the cursor."""
        if isinstance(self.key, str):
            self.toggle(self.key)

    def action_choose(self) -> None:
        """A stage folds or unfolds; a module is opened."""
        if self.stage is not None:
            self.toggle(self.stage)
        else:
            super().action_choose()

    def action_unfold(self) -> None:
        """Unfold, or go to the first row below."""
        node = self._tree.get(self.key) if isinstance(self.key, str) else None
        if node is None or node.leaf:
            return
        if self.is_open(node.key):
            self.move_by(1)
        else:
            self.set_open(node.key, True)

    def action_fold(self) -> None:
        """Fold, or go to the row above that holds this one."""
        node = self._tree.get(self.key) if isinstance(self.key, str) else None
        if node is None:
            return
        if not node.leaf and self.is_open(node.key):
            self.set_open(node.key, False)
        elif node.parents:
            self.move_to_key(node.parents[-1], announce=True)

    def on_click(self, event: events.Click) -> None:
        """A click on a stage, or on the mark of a block with others below, folds or unfolds."""
        spot = event.get_content_offset_capture(self)
        index = spot.y + self.scroll_offset.y
        key = self.rows[index].key if 0 <= index < len(self.rows) else None
        node = self._tree.get(key) if isinstance(key, str) else None
        if node is None or node.leaf or not (isinstance(node.key, Stage) or spot.x <= 2):
            return
        event.prevent_default()
        self.move_to(index)
        self.toggle(node.key)

    # -- search -------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Ask for a text to search."""
        self._before_search = self._toggled
        super().action_search()

    def seek(self, text: str, start: int | None = None) -> int | None:
        """Search from a row on; what the search so far has unfolded is folded again."""
        if self._toggled != self._before_search:
            self._toggled = self._before_search
            self._rebuild()
        return super().seek(text, start)

    def find(self, text: str, start: int, direction: int) -> int | None:
        """The first row with the text from `start` on, going around; a row that is not shown is unfolded."""
        work = self._work
        if work is None or not self.rows:
            return None
        every = list(self._tree.values())
        last = self.rows[(start - direction) % len(self.rows)].key
        before = next(i for i, node in enumerate(every) if node.key == last)
        for offset in range(1, len(every) + 1):
            node = every[(before + direction * offset) % len(every)]
            title = (
                STAGE_TITLES[node.key] if isinstance(node.key, Stage) else f"{node.key} {_label(work, node)}"
            )
            if text.lower() in title.lower():
                self._unfold_to(node.key)
                self._rebuild()
                return next(i for i, row in enumerate(self.rows) if row.key == node.key)
        return None


def _label(work: Workspace, node: Node) -> str:
    """What a module's row calls it; below a block only what is different."""
    if len(node.parents) < 2:
        return str(node.key)
    spec = work.spec(str(node.key))
    return f"  _{spec.variant} ≤ {spec.cache} rows"


def _times(work: Workspace, node: Node) -> str:
    """How many layers a module serves; below a block it is as many."""
    if isinstance(node.key, Stage) or len(node.parents) != 1:
        return ""
    spec: ModuleSpec = work.spec(node.key)
    return f" ×{len(spec.layers)}" if len(spec.layers) > 1 else ""
