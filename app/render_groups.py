"""Local memory for people: a module's layer groups, their maps by time step, and why they are as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app import units
from app.console import left, right, table, wrapping
from engine.trace import words

if TYPE_CHECKING:
    from app.widgets.lines import Line
    from app.widgets.lmem_facts import GroupFacts
    from engine.compiler import Compilation
    from engine.group_tables import ModuleGroups

Rows = Sequence[Mapping[str, Any]]

MAP_ROWS = 20
"""Lines of a group's map; more where it has more ranges to tell apart."""

MAP_WIDTH = 120
"""Columns of a map where there are more."""


# -- groups ------------------------------------------------------------------------------------------------------------


def local_memory_views(
    compilation: Compilation, module: str, group: int | None, width: int, core: int = 0
) -> Iterator[RenderableType]:
    """The groups of a module, and the map and time steps of each, or of one, as a core runs them. width: columns that a
    map may take."""
    from app.widgets.lmem_facts import facts_of
    from engine.tables import module_groups

    local, options = module_groups(compilation, module), compilation.options
    facts = facts_of(local.report, local.ops, local.chip, module, local.shares, core) if local else []
    heading = f"local memory   {options.chip.lmem_bytes // 1024} KiB a lane in {options.chip.banks} banks"
    which = f" · core {core} of {options.cores}" if options.cores > 1 else ""
    yield Text(f"{module} · {heading}{which}", style="bold")
    if local is None or not facts:
        yield Text("no layer group: every op of this module runs from DDR\n", style="dim")
        return
    yield _groups_table(facts)
    yield Text("values are named as in the IR after op-reorder", style="dim")
    for found in facts if group is None else [facts[group]]:
        yield ""
        yield from map_views(found, width)
        if found.share is not None:
            yield Text(_cores_text(local, found), style="dim")
    yield ""


def _cores_text(local: ModuleGroups, facts: GroupFacts) -> str:
    """What every core runs of a group."""
    from engine.group_cores import core_cycles

    plan = local.report.groups[facts.number]
    return "\n".join(
        f" core {share.core}: {share.slices_text}, {units.cycles(core_cycles(plan, share, facts.item_cycles))}"
        for share in local.shares[facts.number]
        if not share.idle
    )


def _groups_table(facts: Sequence[GroupFacts]) -> RenderableType:
    from app.widgets.lmem_words import kib_column, secs_text

    shared = any(found.share is not None for found in facts)

    def bound(found: GroupFacts) -> Text:
        engine, share = found.bound_share()
        if not engine:
            return Text("idle", style="dim")
        return Text(f"{engine} {100 * share:.0f} %", style="cyan" if engine == "DMA" else "magenta")

    return table(
        [
            *right("group"),
            *wrapping("ops", least=16),
            *right("secs"),
            *left(*(["of this core"] if shared else [])),
            *right("cycles", "highest"),
            *left("bound"),
            *right("records", rank=1),
        ],
        [
            [
                str(found.number),
                kinds_text(record.name for record in found.records),
                secs_text(found.plan.secs.as_tuple()),
                *([found.work.slices_text] if shared else []),
                units.cycles(found.cycles),
                kib_column(found.plan.peak_bytes),
                bound(found),
                f"{found.plan.records[0]}..{found.plan.records[-1]}",
            ]
            for found in facts
        ],
    )


def map_views(facts: GroupFacts, width: int) -> Iterator[RenderableType]:
    """One group: addresses against time steps, then what both engines do in each step."""
    from app.widgets.lmem_axis import Zoom, axis
    from app.widgets.lmem_canvas import View, draw, legend
    from app.widgets.lmem_map import header_lines
    from app.widgets.lmem_words import kib, secs_text
    from app.widgets.step_lanes import lane_lines, pipeline_lines

    plan = facts.plan
    core = f"{facts.share.text} · " if facts.share is not None else ""
    slices = f"{core}{secs_text(plan.secs.as_tuple())} in {facts.pipeline_steps} pipeline steps"
    title = (f"group {facts.number} · {kinds_text(record.name for record in facts.records)}", "bold")
    if facts.work.idle:
        yield Text.assemble(title, f"   {core}other cores run it")
        return
    highest = f"highest address {kib(plan.peak_bytes)} of {kib(facts.chip.lmem_bytes)} KiB"
    yield Text.assemble(title, f"   {slices} · {units.cycles(facts.cycles)} · {highest}")
    view = View(step=-1)
    canvas = draw(facts, axis(facts, Zoom.USED, MAP_ROWS, 0), width, view)
    lines: list[Line] = [*header_lines(facts, canvas.edges, -1, True), *canvas.rows]
    lines += lane_lines(facts, canvas.edges, view)
    lines.append(legend(facts))
    if facts.work.slices > 1:
        lines += [(), *pipeline_lines(facts, width)]
    yield _painted(lines)


def _painted(lines: Sequence[Line]) -> Text:
    """Lines of spans in the terminal's own colours."""
    from app.theme import Palette
    from app.widgets.map_palette import MapPalette

    palette = MapPalette(Palette("tpuscope-ansi"))
    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for part, roles in line:
            text.append(part, palette.style(roles))
    return text


def kinds_text(ops: Iterable[str]) -> str:
    """`RMSNorm + 3 MatMul`: names of ops as kinds, repeats counted, reshapes left out as they move nothing."""
    kinds = (op.partition(".")[2] for op in ops)
    runs = [(kind, len(list(same))) for kind, same in groupby(kind for kind in kinds if kind != "Reshape")]
    return " + ".join(kind if count == 1 else f"{count} {kind}" for kind, count in runs)


# -- explain -----------------------------------------------------------------------------------------------------------


def explain_views(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Groups with their reasons, then the ops outside of groups; from the `explain` JSON."""
    yield Text(
        f"{found['module']} · {found['chip']} · {found['lmem_bytes']:,} bytes of local memory a lane",
        style="bold",
    )
    if found["cores"] > 1:
        yield Text(
            f"groups are chosen by what one core takes; that {found['cores']} cores share the slices is not priced",
            style="yellow",
        )
    if not found["searched"]:
        yield Text("compiled with --no-layer-group: every op runs from DDR")
    elif not found["groups"]:
        yield Text("no layer group: no two ops that follow each other fit local memory or gain by it")
    for group in found["groups"]:
        yield ""
        yield _explanation(group, found["cores"])
    if found["global"]:
        yield ""
        yield _global_ops(found["global"])


def _explanation(group: Mapping[str, Any], cores: int) -> RenderableType:
    from app.widgets.lmem_words import gain_text, kib, readable_bytes, secs_text, verdict_text

    highest = f"highest address {kib(group['peak_bytes'])} KiB ({group['peak_bytes']:,} bytes) a lane"
    heading = Text.assemble(
        (f"group {group['group']} · {kinds_text(group['ops'])}", "bold"),
        f"   {secs_text(group['secs'])} · {units.cycles(group['cycles'])} · {highest}",
    )
    records = f"{group['records'][0]}..{group['records'][-1]}: {', '.join(dict.fromkeys(group['locations']))}"
    rows = [("records", Text(records, style="dim"))]
    if group["alone_cycles"] is not None:
        ops = sum(not op.endswith(".Reshape") for op in group["ops"])
        verdict = verdict_text(ops, group["cycles"], group["alone_cycles"], cores)
        rows.insert(0, ("verdict", Text(verdict, style="green")))
        rows.append(("gains", Text(gain_text(group["cycles"], group["alone_cycles"]))))
    rows += [(side, Text(readable_bytes(group[key], True) or "no reason was kept")) for side, key in _SIDES]
    for title, lines in (
        ("slices tried", [_attempt(row) for row in group["attempts"]]),
        ("cuts compared", [_alternative(row) for row in group["alternatives"]]),
    ):
        rows += [("" if number else title, line) for number, line in enumerate(lines)]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(f"  {label}", text)
    return Group(heading, grid)


_SIDES = (("before it", "begins"), ("after it", "ends"))
"""Where a group has a reason to end, and the JSON's name for it."""


_WHY_NOT = {
    "memory": "more is live in one time step than there is",
    "fragmentation": "it would fit in sum, but not in one piece",
    "bank rule": "bank rule: what computation and DMA touch in one time step, or one op reads and writes, would share "
    "a bank",
}
"""Why a slicing failed, by the reason that the search gives."""


def _attempt(row: Mapping[str, Any]) -> Text:
    """A slicing: bytes needed and there, and what came of it."""
    from app.widgets.lmem_words import kib, readable_bytes, secs_text

    fits = row["cycles"] is not None
    mark, style = ("✓", "green") if row["taken"] and fits else ("·", "dim") if fits else ("✗", "red")
    text = Text.assemble((mark, style), f" {secs_text(row['secs']):<8}")
    if row["needed_bytes"]:
        needs = readable_bytes(f"{row['needed_bytes']} of {row['available_bytes']} bytes", True)
        text.append(f" needs {needs} a lane")
    over = row["needed_bytes"] - row["available_bytes"]
    if over > 0:
        text.append(f", {kib(over)} KiB too many", style)
    if fits:
        text.append(f", takes {row['cycles']:,} cycles", style)
    if row["reason"]:
        text.append(f": {_WHY_NOT.get(row['reason'], readable_bytes(row['reason'], True))}", style)
    return text


def _alternative(row: Mapping[str, Any]) -> Text:
    """A cut that the search compared, with the cycles of both ways."""
    joined, split = row["joined_cycles"], row["split_cycles"]
    from app.widgets.lmem_words import readable_bytes

    text = Text(f"· {readable_bytes(row['description'], True)}: ")
    if joined is None:
        return text.append(f"cannot be one group; split {split:,} cycles")
    verdict = "the same" if joined == split else f"{'split' if split < joined else 'joined'} is cheaper by "
    text.append(f"joined {joined:,}, split {split:,} cycles: ")
    return text.append(verdict if joined == split else f"{verdict}{abs(joined - split):,}", "green")


def _global_ops(rows: Rows) -> RenderableType:
    return table(
        [
            *right("record", rank=2),
            *left("op outside of groups"),
            *left("location", rank=1),
            *right("cycles", rank=3),
            *wrapping("why", least=20),
        ],
        [
            [
                str(row["record"]),
                row["op"].partition(".")[2],
                words.short_name(row["location"]),
                "" if row["cycles"] is None else units.cycles(row["cycles"]),
                Text(
                    row["reason"] or "can be local; no group with its neighbours fits and is cheaper",
                    style="dim",
                ),
            ]
            for row in rows
        ],
    )
