"""Memory maps as pictures: a module's DDR arenas with lifetimes, and the local memory of a layer group.

Both are drawn from the plain data of `memory --json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.group_cores import CoreShare
from engine.trace import words
from engine.trace.charts import Bar, bars_height, draw_bars
from engine.trace.output import write_svg
from engine.trace.svg import Canvas, nice_ticks, text_width

WIDTH = 1080
MARGIN = 24
KIND_ROLES = {"weight": "weights", "activation": "activations", "scratch": "scratch"}
"""Kinds of local buffers and their colours."""

Row = Mapping[str, Any]


def write_memory_map(
    memory: Mapping[str, Any],
    path: Path | str,
    *,
    title: str,
    group: int | None = None,
    bank_bytes: int = 0,
    banks: int = 0,
) -> None:
    """Draw a memory table into a .svg or .png file: the DDR arenas, or for a `group` its local memory.

    bank_bytes, banks: the chip's local memory in one lane. Raises UserError for another suffix or an unknown group.
    """
    svg = (
        ddr_map(memory, title=title)
        if group is None
        else lmem_map(memory, group, title=title, bank_bytes=bank_bytes, banks=banks)
    )
    write_svg(svg, path)


# -- DDR ---------------------------------------------------------------------------------------------------------------


def ddr_map(memory: Mapping[str, Any], *, title: str) -> str:
    """Activations by lifetime and address, inputs, outputs and weights by size, as SVG text."""
    arenas = {
        arena: [row for row in memory["ddr"] if row["arena"] == arena] for arena in ("neuron", "io", "coeff")
    }
    io, coeff = _summed(arenas["io"]), _summed(arenas["coeff"])
    lifetimes = 300 if arenas["neuron"] else 0
    columns = max(bars_height(len(io)), bars_height(len(coeff)))
    canvas = Canvas(WIDTH, 80 + lifetimes + columns)
    canvas.text(MARGIN, 34, title, size=17, bold=True)
    canvas.text(MARGIN, 54, _ddr_summary(arenas), role="muted", size=12)
    if arenas["neuron"]:
        _draw_lifetimes(canvas, arenas["neuron"], MARGIN, 72, WIDTH - 2 * MARGIN, lifetimes - 20)
    top, half = 72 + lifetimes, (WIDTH - 3 * MARGIN) / 2
    for x, name, rows in (
        (MARGIN, "inputs, outputs and KV (io)", io),
        (2 * MARGIN + half, "weights (coeff)", coeff),
    ):
        canvas.text(x, top + 12, name, size=12, bold=True)
        draw_bars(canvas, rows, x, top + 22, half)
    return canvas.svg()


def _ddr_summary(arenas: Mapping[str, Sequence[Row]]) -> str:
    parts = []
    for name, rows in arenas.items():
        if rows:
            held, extent = sum(row["bytes"] for row in rows), _extent(rows)
            reuse = (
                f", used {held / extent:.1f} times over"
                if name == "neuron" and extent and held > extent
                else ""
            )
            parts.append(f"{name} {words.size(extent)}{reuse}")
    return " · ".join(parts)


def _extent(rows: Sequence[Row]) -> int:
    return int(max(row["address"] + row["bytes"] for row in rows) - min(row["address"] for row in rows))


def _summed(rows: Sequence[Row]) -> list[Bar]:
    """One bar for each tensor name, in address order; a quantised weight's parts together."""
    found: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["address"]):
        name = row["tensor"].removesuffix(".scale").removesuffix(".zero_point").removesuffix(".weight")
        found[name] = found.get(name, 0) + row["bytes"]
    return [
        Bar(
            words.short_name(name.removeprefix("@")),
            nbytes,
            words.size(nbytes),
            _tensor_role(name, rows[0]["arena"]),
        )
        for name, nbytes in found.items()
    ]


def _tensor_role(name: str, arena: str) -> str:
    if arena == "coeff":
        return "scratch" if name.startswith("@") else "weights"
    return "kv" if name.startswith(("history_k", "history_v", "k_cache", "v_cache")) else "activations"


def _draw_lifetimes(
    canvas: Canvas, rows: Sequence[Row], x: float, y: float, width: float, height: float
) -> None:
    """Boxes over time (position of the op) and address, with axes."""
    canvas.text(x, y + 10, "activations (neuron): when each tensor lives and where", size=12, bold=True)
    left, top, bottom = x + 64, y + 22, y + height - 22
    base = min(row["address"] for row in rows)
    extent = max(1, _extent(rows))
    first = min(row["first_use"] for row in rows)
    steps = max(row["last_use"] for row in rows) - first + 1
    across, down = (x + width - left) / steps, (bottom - top) / extent
    for tick in nice_ticks(extent, 4):
        at = top + tick * down
        canvas.line(left, at, x + width, at)
        canvas.text(left - 8, at + 4, words.size(tick), role="muted", size=10, anchor="end")
    for tick in nice_ticks(steps - 1, 10):
        if tick == int(tick):
            canvas.text(
                left + (tick + 0.5) * across,
                bottom + 16,
                f"op {first + int(tick)}",
                role="muted",
                size=10,
                anchor="middle",
            )
    for row in rows:
        at, wide = (
            left + (row["first_use"] - first) * across,
            (row["last_use"] - row["first_use"] + 1) * across,
        )
        up, tall = top + (row["address"] - base) * down, max(2.0, row["bytes"] * down)
        name = words.short_name(row["tensor"])
        tip = (
            f"{row['tensor']}\n{words.size(row['bytes'])} at {words.address(row['address'])}\n"
            f"op {row['first_use']} to {row['last_use']}"
        )
        canvas.rect(
            at + 0.5, up, wide - 1, tall, "activations", opacity=0.28, stroke="activations", title=tip
        )
        if tall >= 8:
            letters = min(10.0, tall - 1)
            canvas.text(at + 6, up + min(tall / 2 + 0.36 * letters, 15), name, size=letters, width=wide - 10)
        if tall >= 30:
            canvas.text(at + 6, up + 28, words.size(row["bytes"]), role="muted", size=9.5, width=wide - 10)


# -- local memory ------------------------------------------------------------------------------------------------------


def lmem_map(memory: Mapping[str, Any], group: int, *, title: str, bank_bytes: int, banks: int) -> str:
    """One layer group's local memory: addresses downwards by bank, time steps to the right, as SVG text.

    Steps count from 0 in the rows and from 1 in the picture. Rows may also carry `held` (loaded once for all slices,
    hatched) and `failed` (outlined in red). A buffer whose first step is behind its last lives around the end of the
    loop. Below are the cycles of both engines, and the pipeline over the slices: of the core that the table is about
    (`memory_table`), or of the one that runs all. Raises UserError for an unknown group, and for one of which the core
    runs nothing.
    """
    rows = [row for row in memory["lmem"] if row["group"] == group]
    about = next((row for row in memory.get("groups", ()) if row["group"] == group), None)
    if not rows:
        _refuse_idle(about)
        known = sorted({row["group"] for row in memory["lmem"]})
        raise UserError(
            f"there is no layer group {group}; "
            + (f"this module has: {', '.join(map(str, known))}" if known else "this module has none")
        )
    first = min(min(row["first_step"], row["last_step"]) for row in rows)
    last = max(max(row["first_step"], row["last_step"]) for row in rows)
    capacity = bank_bytes * banks
    extent = max(capacity, max(row["address"] + row["bytes"] for row in rows))
    left, top, row_height = MARGIN + 92, 92, 27
    height = row_height * banks * extent / capacity
    steps, core = about.get("steps", ()) if about else (), _shown_core(about)
    below = (LANES_HEIGHT if steps else 0) + (PIPELINE_HEIGHT if core else 0)
    canvas = Canvas(WIDTH, top + height + below + 64)
    _lmem_heading(canvas, about, rows, title, capacity)
    across, down = (WIDTH - MARGIN - left) / (last - first + 1), height / extent
    _draw_banks(canvas, left, top, down, bank_bytes, banks)
    for step in range(first, last + 1):
        at = left + (step - first) * across
        canvas.line(at, top, at, top + height)
        canvas.text(
            at + across / 2,
            top - 8,
            f"step {step + 1}",
            role="muted",
            size=10.5,
            anchor="middle",
            width=across,
        )
    for row in rows:
        for begin, end in _spans(row, first, last):
            x, wide = left + (begin - first) * across, (end - begin + 1) * across
            below = _has_room_below(rows, row, begin, LABEL_ROOM / down)
            _draw_buffer(canvas, row, x, top + row["address"] * down, wide, row["bytes"] * down, below)
    if extent > capacity:
        canvas.line(left, top + capacity * down, WIDTH - MARGIN, top + capacity * down, "bad", width=2)
    _draw_legend(canvas, left, top + height + 34)
    if steps:
        _draw_lanes(canvas, steps[first : last + 1], left, top + height + 50, across)
    if core:
        _draw_pipeline(canvas, core, left, top + height + 50 + (LANES_HEIGHT if steps else 0))
    return canvas.svg()


def shares_of(about: Row | None) -> list[CoreShare]:
    """What each core runs of a group."""
    if about is None:
        return []
    slices, cores = prod(about["secs"]), about.get("cores", ())
    return [
        CoreShare(
            row["core"],
            len(cores),
            slices,
            about["stages"],
            tuple((at, count) for at, count in row["slices"]),
        )
        for row in cores
    ]


def _refuse_idle(about: Row | None) -> None:
    """Raise UserError for a group of which the core that the table is about runs nothing."""
    if about is None or about.get("core") is None:
        return
    busy = [str(share.core) for share in shares_of(about) if not share.idle]
    raise UserError(
        f"core {about['core']} runs nothing of layer group {about['group']}: "
        + (f"core {busy[0]} runs all of it" if len(busy) == 1 else f"cores {', '.join(busy)} run it")
    )


def _shown_core(about: Row | None) -> Row | None:
    """The core whose pipeline is drawn; None where there is none to choose, or it has a single slice."""
    if about is None:
        return None
    cores: Sequence[Row] = about.get("cores", ())
    at = about.get("core")
    core = cores[at] if at is not None else cores[0] if len(cores) == 1 else None
    return core if core is not None and prod(about["secs"]) > 1 else None


LANES_HEIGHT, PIPELINE_HEIGHT = 56, 118
"""Room (pixels) for the lanes of both engines, and for the pipeline."""

LANES = {"compute_cycles": ("TIU", "compute"), "transfer_cycles": ("DMA", "dma")}
"""Fields of a time step, with their engines and colours."""


def _draw_lanes(canvas: Canvas, steps: Sequence[Row], left: float, top: float, across: float) -> None:
    """Cycles of both engines in each time step; those of the slower engine are bold."""
    longest = max(1, *(step[field] for step in steps for field in LANES))
    for number, (field, (name, role)) in enumerate(LANES.items()):
        y = top + 24 * number
        canvas.text(left - 10, y + 13, name, role="muted", size=10.5, anchor="end")
        for at, step in enumerate(steps):
            if not step[field]:
                continue
            x, cycles = left + at * across, words.cycles(step[field])
            canvas.rect(
                x + 1.5,
                y,
                (across - 3) * step[field] / longest,
                18,
                role,
                opacity=0.28,
                stroke=role,
                title=f"{name} in step {at + 1}\n{step[field]:,} cycles",
            )
            slower = step[field] == max(step[other] for other in LANES)
            canvas.text(x + 8, y + 13, cycles, size=10.5, bold=slower, width=across - 14)


PIPELINE = {"load": "dma", "compute": "compute", "store": "dma"}
"""Stages of the pipeline and their colours."""


def _draw_pipeline(canvas: Canvas, core: Row, left: float, top: float) -> None:
    """Which slice each stage works on, and what that takes, by pipeline step."""
    steps = core["pipeline"]
    across = min(120.0, (WIDTH - MARGIN - left) / len(steps))
    canvas.text(left - 10, top + 12, "pipeline", size=10.5, anchor="end", bold=True)
    for row, (stage, role) in enumerate(PIPELINE.items()):
        y = top + 20 + 22 * row
        canvas.text(left - 10, y + 13, stage, role="muted", size=10.5, anchor="end")
        for at, step in enumerate(steps):
            if step[stage] is None:
                continue
            tip = f"pipeline step {at + 1}: {stage} slice {step[stage]}"
            x = left + at * across
            canvas.rect(x + 1.5, y, across - 3, 18, role, opacity=0.28, stroke=role, title=tip)
            text = f"slice {step[stage]}" if across >= 52 else str(step[stage])
            canvas.text(x + across / 2, y + 13, text, size=10, anchor="middle", width=across - 4)
    y = top + 20 + 22 * len(PIPELINE)
    canvas.text(left - 10, y + 13, "cycles", role="muted", size=10.5, anchor="end")
    for at, step in enumerate(steps):
        x = left + (at + 0.5) * across
        canvas.text(x, top + 12, str(at + 1), role="muted", size=10, anchor="middle", width=across - 2)
        canvas.text(x, y + 13, words.cycles(step["cycles"]), size=10, anchor="middle", width=across - 2)


def _lmem_heading(canvas: Canvas, about: Row | None, rows: Sequence[Row], title: str, capacity: int) -> None:
    peak = max(row["address"] + row["bytes"] for row in rows)
    facts = [f"{len(rows)} buffers", f"highest address {_kib(peak)} of {_kib(capacity)} KiB a lane"]
    if about is not None:
        shares, core = shares_of(about), about.get("core")
        if len(shares) > 1:
            facts[:0] = [shares[core].text] if core is not None else [_cores_text(shares)]
        cycles = about["cycles"] if core is None else about["cores"][core]["cycles"]
        secs = [
            f"{name}secs {count}" for name, count in zip("ncdhw", about["secs"], strict=True) if count > 1
        ]
        facts += [*secs, words.cycles(cycles)]
    canvas.text(MARGIN, 34, title, size=17, bold=True)
    canvas.text(MARGIN, 54, " · ".join(facts), role="muted", size=12)


def _kib(nbytes: int) -> str:
    return f"{nbytes / 1024:.1f}".removesuffix(".0")


def _cores_text(shares: Sequence[CoreShare]) -> str:
    """`2 cores: slices 0..1 of 4, slices 2..3 of 4`."""
    busy = [share.slices_text for share in shares if not share.idle]
    return f"{len(shares)} cores: {', '.join(busy)}"


def _draw_banks(canvas: Canvas, left: float, top: float, down: float, bank_bytes: int, banks: int) -> None:
    canvas.text(MARGIN + 20, top - 8, "bank", role="muted", size=10.5, anchor="middle")
    canvas.text(left - 10, top - 8, "KiB", role="muted", size=10.5, anchor="end")
    for bank in range(banks + 1):
        at = top + bank * bank_bytes * down
        canvas.line(MARGIN, at, WIDTH - MARGIN, at)
        if bank < banks:
            canvas.text(MARGIN + 20, at + 17, str(bank), role="muted", size=10.5, anchor="middle")
            kib = f"{bank * bank_bytes / 1024:g}"
            canvas.text(left - 10, at + 17, kib, role="muted", size=10.5, anchor="end")


LABEL_ROOM = 15
"""Height (pixels) of a label below a box that is too low for one."""


def _spans(row: Row, first: int, last: int) -> list[tuple[int, int]]:
    """The steps in which a buffer lives: one span, or two when it lives around the end of the loop."""
    if row["first_step"] <= row["last_step"]:
        return [(row["first_step"], row["last_step"])]
    return [(row["first_step"], last), (first, row["last_step"])]


def _has_room_below(rows: Sequence[Row], row: Row, step: int, nbytes: float) -> bool:
    """No other buffer lies in the bytes below a buffer while a step runs."""
    start = row["address"] + row["bytes"]
    for other in rows:
        first, last = other["first_step"], other["last_step"]
        lives = first <= step <= last if first <= last else step >= first or step <= last
        inside = other["address"] < start + nbytes and start < other["address"] + other["bytes"]
        if other is not row and lives and inside:
            return False
    return True


def _draw_buffer(
    canvas: Canvas, row: Row, x: float, y: float, width: float, height: float, room_below: bool
) -> None:
    role = KIND_ROLES.get(row["kind"], "scratch")
    name = words.short_name(str(row["buffer"]))
    kib = f"{row['bytes'] / 1024:.3g} KiB"
    tip = (
        f"{row['buffer']} ({row['kind']})\n{row['bytes']:,} bytes a lane at {row['address']:,}\n"
        f"step {row['first_step'] + 1} to {row['last_step'] + 1}"
    )
    canvas.rect(
        x + 1.5,
        y + 0.75,
        width - 3,
        max(3.0, height - 1.5),
        role,
        opacity=0.28,
        stroke="bad" if row.get("failed") else role,
        hatched=bool(row.get("held")),
        title=tip,
    )
    if height >= 13:
        canvas.text(x + 8, y + min(height / 2 + 4, 17), f"{name} · {kib}", size=10.5, width=width - 14)
    elif room_below:
        canvas.text(x + 8, y + height + 12, f"{name} · {kib}", role=role, size=10, width=width - 14)


def _draw_legend(canvas: Canvas, x: float, y: float) -> None:
    entries = [(kind, role, "", False) for kind, role in KIND_ROLES.items()]
    entries += [("held for all slices", "ground", "edge", True), ("does not fit", "ground", "bad", False)]
    for name, role, stroke, hatched in entries:
        canvas.rect(
            x, y - 10, 16, 12, role, opacity=0.28 if not stroke else 1, stroke=stroke or role, hatched=hatched
        )
        canvas.text(x + 22, y, name, role="muted", size=11)
        x += 22 + text_width(name, 11) + 22
