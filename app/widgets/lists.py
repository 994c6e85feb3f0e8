"""The pass list."""

from __future__ import annotations

from dataclasses import dataclass

from app import units
from app.widgets.lines import Line, Span
from app.widgets.table import Column, Row, TableView, fitted
from app.workspace import Workspace
from engine.snapshot import Snapshot

TIME = 5
"""Cells of a pass's time."""


@dataclass(frozen=True)
class PassRow:
    """A pass in the list: mark, name, what came of it in a word, time, and remarks."""

    mark: Span
    name: Span
    result: Span = ("", "")
    time: Span = ("", "")
    notes: str = ""

    @property
    def width(self) -> int:
        """Cells of name and result."""
        return len(self.name[0]) + 1 + len(self.result[0])

    @property
    def text(self) -> str:
        """Everything as text, without gaps."""
        parts = (self.mark[0], self.name[0], self.result[0], self.time[0], self.notes)
        return "  ".join(part for part in parts if part)


class PassList(TableView):
    """The passes of the selected module."""

    HELP = """
The passes in the order in which they run. `±` changed the module, `=` did not, `+` left the IR alone and emitted
instructions, `·` has not run yet, `✗` failed. Beside each: ops after it (`24→29` where the number changed; weights and
inputs do not count), of **layer-group** its groups, of **address-assign** the size of the activations' arena, of
**codegen** TIU + GDMA instructions; wall time; beside or below it, where there is room, what else it has to say.

**[** and **]** step through the passes from anywhere, **c** leaves out those that changed nothing, **d** shows what a
pass did, **m** marks a pass as the start of the diff.
"""
    GAP = " "

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__((), id=id, title="passes", head=False)
        self.passes: dict[str, PassRow] = {}
        self._below = False

    def sync(self, work: Workspace, changed_only: bool = False, marked: str | None = None) -> None:
        """Show the passes and how far they are."""
        self.passes = _passes(work, changed_only, marked)
        self._lay_out()
        self.move_to_key(work.pass_name)
        self.border_title = "passes that changed something" if changed_only else "passes"

    def on_resize(self) -> None:
        """Notes move beside or below their passes."""
        super().on_resize()
        self._lay_out()

    def _lay_out(self) -> None:
        """Notes in a column of their own where the longest fits, else in lines of their own, else not at all."""
        own = 2 + max((row.width for row in self.passes.values()), default=0) + 1 + TIME
        notes = [row.notes for row in self.passes.values() if row.notes]
        beside = bool(notes) and own + 2 + max(8, *map(len, notes)) <= self.inner_width - 1
        below = not beside and len(self.passes) + len(notes) <= self.page_height
        timed = own <= self.inner_width - 1
        columns = [
            Column(""),
            Column("pass", stretch=True, least=own - 2 if timed else 0),
            Column("notes", stretch=True),
        ]
        rows = []
        for key, row in self.passes.items():
            cells = (row.mark, lambda width, row=row: _one_line(row, width, timed))
            rows.append(Row((*cells, (f" {row.notes}", "muted")) if beside else cells, key))
            if below and row.notes:
                rows.append(Row(((f"  {row.notes}", "muted"),), head=True))
        self.show(rows, columns if beside else columns[:2])

    def search_text(self, index: int) -> str:
        row = self.passes.get(str(self.rows[index].key))
        return row.text if row else super().search_text(index)

    def copy_text(self, index: int) -> str:
        return self.search_text(index)


def _one_line(row: PassRow, width: int, timed: bool) -> Line:
    """The name at the left, what came of it and the time at the right."""
    right: list[Span] = [row.result]
    if timed:
        right += [(f" {row.time[0]:>{TIME}}", row.time[1])]
    return [*fitted([row.name], width - sum(len(text) for text, _ in right)), *right]


def _passes(work: Workspace, changed_only: bool, marked: str | None) -> dict[str, PassRow]:
    found = {snapshot.pass_name: snapshot for snapshot in work.snapshots().snapshots}
    failure = work.compilation.failures.get(work.module)
    failed_pass = failure.pass_name if failure else None
    running = work.current.get(work.module) if work.running else None
    rows = {}
    before: int | None = None
    for name in work.pass_names():
        snapshot = found.get(name)
        if snapshot is not None:
            quiet = not snapshot.changed and not _instructions(snapshot)
            if not (changed_only and quiet and name != work.pass_name):
                rows[name] = _done(snapshot, before, name == marked)
            before = snapshot.op_count
        elif name == failed_pass:
            rows[name] = PassRow(("✗", "bad bold"), (name, "bad"), ("failed", "bad"))
        elif name == running:
            rows[name] = PassRow(("▸", "key"), (name, "key"), ("…", "key"))
        else:
            rows[name] = PassRow(("·", "faint"), (name, "faint"))
    return rows


def _done(snapshot: Snapshot, before: int | None, marked: bool) -> PassRow:
    instructions = _instructions(snapshot)
    mark = ("±", "changed") if snapshot.changed else ("+", "changed") if instructions else ("=", "faint")
    role = "" if snapshot.changed or instructions else "muted"
    ops = snapshot.op_count
    count = f"{before}→{ops}" if before not in (None, ops) else f"{ops}"
    return PassRow(
        ("◆", "kv") if marked else mark,
        (snapshot.pass_name, role),
        (_result(snapshot) or count, role),
        (_time(snapshot.seconds), "muted"),
        " · ".join(snapshot.notes),
    )


def _result(snapshot: Snapshot) -> str:
    """What came of a pass that is not about the number of ops; empty for the others."""
    if snapshot.pass_name == "layer-group" and snapshot.report is not None:
        groups = len(snapshot.report.groups)
        return f"{groups} group{'s' * (groups != 1)}"
    if snapshot.pass_name == "address-assign" and snapshot.changed:
        return units.size(snapshot.attributes.get("neuron_size", 0))
    return _instructions(snapshot)


def _instructions(snapshot: Snapshot) -> str:
    """TIU + GDMA instructions that a pass emitted; empty for one that emits none."""
    if snapshot.pass_name != "codegen" or snapshot.report is None or not len(snapshot.report):
        return ""
    tiu = int((snapshot.report["engine"] == 0).sum())
    return f"{tiu}+{len(snapshot.report) - tiu} instr"


def _time(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.1f}s" if seconds < 99.95 else f"{seconds:.0f}s"
    return f"{seconds * 1e3:.0f}ms" if seconds >= 0.9995e-3 else "<1ms"
