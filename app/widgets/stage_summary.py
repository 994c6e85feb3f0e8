"""What a stage is, for the inspector: what it does, what its modules cost in all layers, and its weights."""

from __future__ import annotations

from collections.abc import Sequence

from app import units
from app.widgets.inspector import labelled, wrapped
from app.widgets.lines import Span
from app.workspace import STAGE_TITLES, Workspace
from engine.stages import Kind, ModuleSpec, Stage

_BAR, _SHORTEST = 12, 8
"""Cells of a bar, and those below which it is left out."""

_WITH_SHARE, _WITH_LAYER = 34, 42
"""Cells behind a module's name from which its share of the stage, and also the cycles of one layer, are written."""


def stage_title(work: Workspace, stage: Stage) -> str:
    """Title of a stage's panel."""
    count = sum(spec.stage is stage for spec in work.specs)
    return f"stage: {STAGE_TITLES[stage]} · {count} module{'s' if count != 1 else ''}"


def stage_lines(work: Workspace, stage: Stage, width: int) -> list[list[Span]]:
    """Everything about a stage, most wanted first."""
    modules = work.stage_modules(stage)
    lines = wrapped("does", _purpose(modules, stage), width)
    lines += _state_lines(work, stage)
    total = work.stage_cycles(stage)
    if total:
        seconds = total / work.compilation.options.chip.clock_hz
        note = f" = {units.duration(seconds)}" + (
            ", with the longest cache" if _caches(work, modules) else ""
        )
        lines.append(labelled("costs", [(units.cycles(total), "heading bold"), (note, "muted")]))
    lines += _module_lines(work, modules, total or 0, width)
    lines += _cache_lines(work, stage, modules)
    weights = sum(sum(work.weight_bytes(spec.name).values()) * max(1, len(spec.layers)) for spec in modules)
    if weights:
        lines.append(
            labelled("weights", [(units.size(weights), "weights bold"), ("  of all layers", "muted")])
        )
    return lines


def _purpose(modules: Sequence[ModuleSpec], stage: Stage) -> str:
    rows = max(spec.rows for spec in modules)
    cache = max(spec.cache for spec in modules)
    return {
        Stage.PREFILL: f"the first {rows:,} rows of a prompt in one run, without history",
        Stage.PREFILL_KV: f"{rows:,} more rows of a longer prompt a run, reading up to {cache:,} rows of history",
        Stage.DECODE: f"one token a run, reading up to {cache:,} rows of history",
        Stage.BOTH: "from the last hidden state to the next token",
    }[stage]


def _state_lines(work: Workspace, stage: Stage) -> list[list[Span]]:
    """How far the stage is compiled, until all of it is."""
    states = [work.state(spec.name) for spec in work.specs if spec.stage is stage]
    done, failed = states.count("done"), states.count("failed")
    if done == len(states):
        return []
    spans: list[Span] = [(f"{done} of {len(states)} compiled", "")]
    if failed:
        spans.append((f", {failed} failed", "bad bold"))
    return [labelled("state", spans)]


def _module_lines(work: Workspace, modules: Sequence[ModuleSpec], total: int, width: int) -> list[list[Span]]:
    """Cycles of each module: of one layer, of all, and its share of the stage."""
    wide = max(len(spec.name) for spec in modules)
    return [
        labelled(
            "" if number else "modules",
            [(f"{spec.name:<{wide}}", ""), *_cost_spans(work, spec, total, width - wide)],
        )
        for number, spec in enumerate(modules)
    ]


def _cost_spans(work: Workspace, spec: ModuleSpec, total: int, room: int) -> list[Span]:
    layers = max(1, len(spec.layers))
    times: Span = (f"{f'×{layers}' if layers > 1 else '':>5}", "muted")
    timing = work.timings.get(spec.name)
    if timing is None:
        return [times]
    every = timing.total_cycles * layers
    spans = [times]
    if room >= _WITH_LAYER:
        spans.append((f"{units.cycles(timing.total_cycles) if layers > 1 else '':>9}", "muted"))
    spans.append((f"{units.cycles(every):>9}", "heading"))
    if total and room >= _WITH_SHARE:
        spans.append((f"{units.share(every, total):>8} ", "muted"))
    return [*spans, *_bar(every, total, room - _WITH_LAYER)]


def _bar(part: int, whole: int, room: int) -> list[Span]:
    cells = min(_BAR, room)
    return [(units.bar(part, whole, cells), "key")] if cells >= _SHORTEST else []


def _caches(work: Workspace, modules: Sequence[ModuleSpec]) -> list[ModuleSpec]:
    """The variants of the stage's first block."""
    blocks = [spec for spec in modules if spec.kind is Kind.BLOCK]
    return work.variants(blocks[0]) if blocks else []


def _cache_lines(work: Workspace, stage: Stage, modules: Sequence[ModuleSpec]) -> list[list[Span]]:
    """What the stage costs with the shorter caches."""
    lines = []
    for number, spec in enumerate(_caches(work, modules)):
        cycles = work.stage_cycles(stage, spec.variant)
        cost = [(units.cycles(cycles), "heading")] if cycles else [("…", "faint")]
        about: Span = (f"{f'_{spec.variant}':<4}up to {spec.cache:>6,} rows  ", "muted")
        lines.append(labelled("" if number else "caches", [about, *cost]))
    return lines
