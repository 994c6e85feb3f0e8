"""The pass list."""

from __future__ import annotations

from app.widgets.table import Column, Row, TableView
from app.workspace import Workspace


class PassList(TableView):
    """The passes of the selected module."""

    HELP = """
The passes in the order in which they run. `±` changed the module, `=` did not, `·` has not run yet, `✗` failed.
Beside each: ops after it (`24→29` where the number changed; weights and inputs do not count), wall time, and what the
pass has to say.

**[** and **]** step through the passes from anywhere, **c** leaves out those that changed nothing, **d** shows what a
pass did, **m** marks a pass as the start of the diff.
"""

    def __init__(self, *, id: str | None = None) -> None:
        columns = (
            Column(""),
            Column("pass", stretch=True),
            Column("ops", right=True),
            Column("ms", right=True, rank=1),
            Column("notes", rank=2, stretch=True),
        )
        super().__init__(columns, id=id, title="passes", head=False)
        self.GAP = " "

    def sync(self, work: Workspace, changed_only: bool = False, marked: str | None = None) -> None:
        """Show the passes and how far they are."""
        self.show(_pass_rows(work, changed_only, marked))
        self.move_to_key(work.pass_name)
        self.border_title = "passes that changed something" if changed_only else "passes"


def _pass_rows(work: Workspace, changed_only: bool, marked: str | None) -> list[Row]:
    found = {snapshot.pass_name: snapshot for snapshot in work.snapshots().snapshots}
    failure = work.compilation.failures.get(work.module)
    failed_pass = failure.pass_name if failure else None
    running = work.current.get(work.module) if work.running else None
    rows = []
    before = None
    for name in work.pass_names():
        snapshot = found.get(name)
        if changed_only and snapshot is not None and not snapshot.changed and name != work.pass_name:
            continue
        flag = ("◆", "kv") if name == marked else None
        if snapshot is not None:
            ops = snapshot.op_count
            text = f"{before}→{ops}" if before not in (None, ops) else f"{ops}"
            mark = ("±", "changed") if snapshot.changed else ("=", "faint")
            role = "" if snapshot.changed else "muted"
            time = f"{snapshot.seconds * 1e3:.0f}" if snapshot.seconds >= 0.9995e-3 else "<1"
            notes = " · ".join(snapshot.notes)
            cells = (flag or mark, (name, role), (text, role), (f"{time} ms", "muted"), (notes, "muted"))
            before = ops
        elif name == failed_pass:
            cells = (("✗", "bad bold"), (name, "bad"), ("", ""), ("failed", "bad"), ("", ""))
        elif name == running:
            cells = (("▸", "key"), (name, "key"), ("…", "key"), ("", ""), ("", ""))
        else:
            cells = (("·", "faint"), (name, "faint"), ("", ""), ("", ""), ("", ""))
        rows.append(Row(cells, name))
    return rows
