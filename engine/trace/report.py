"""`export report`: everything about one compilation in a single HTML file that loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from engine.compiler import Compilation
from engine.group_cores import CoreShare
from engine.merge import layout_of
from engine.sim.throughput import Simulator
from engine.stages import Kind, ModuleSpec, Stage
from engine.tables import KvTable, kv_table, memory_table, modules_table, passes_table
from engine.tpu.isa import Arena
from engine.trace import html, words
from engine.trace.charts import Bar, Segment, bar_chart, line_chart, strip
from engine.trace.graph import graph_svg
from engine.trace.html import Cell
from engine.trace.memory_map import ddr_map, lmem_map, shares_of
from engine.trace.output import suffix_of, write_file
from engine.trace.palette import css_variables
from engine.trace.program_graphs import STAGE_TITLES, pass_totals

TOP_OPS = 30
"""Ops listed for each stage, by cycles."""

TRAFFIC = {
    "weights": ("weights", "weights"),
    "lm_head": ("lm_head", "heads"),
    "kv_cache": ("KV cache", "kv"),
    "state": ("recurrent state", "kv"),
    "activations": ("activations", "activations"),
    "other": ("tables", "scratch"),
}
"""Kinds of DDR traffic: words and colour's role."""

Points = Sequence[tuple[int, float]]


def write_report(
    compilation: Compilation,
    path: Path | str,
    *,
    simulation: Mapping[str, Any] | None = None,
    speeds: Points | None = None,
) -> None:
    """Write the report of a complete compilation to an .html file.

    simulation: what `simulate --json` prints. speeds: (rows of history, decode tokens/s). Both are computed at the
    compiled lengths where not given. Raises UserError for another suffix, CompileError unless everything was compiled.
    """
    suffix_of(path, (".html", ".htm"))
    write_file(path, report_html(compilation, simulation=simulation, speeds=speeds).encode())


def report_html(
    compilation: Compilation, *, simulation: Mapping[str, Any] | None = None, speeds: Points | None = None
) -> str:
    """The page's text; see `write_report`."""
    compilation.require_complete()
    if simulation is None or speeds is None:
        simulator = Simulator(compilation)
        simulation = simulation or simulator.simulate().to_json()
        speeds = speeds or _speeds(compilation, simulator)
    sections = (
        ("speed", "Speed", _speed_section(simulation, speeds)),
        ("modules", "Modules", _modules_section(compilation)),
        ("passes", "Passes", _passes_section(compilation)),
        ("memory", "Memory", _memory_section(compilation)),
        ("kv", "KV cache", _kv_section(compilation)),
        ("ops", "Ops", _ops_section(compilation, simulation)),
        ("diagrams", "Diagrams", _diagrams_section(compilation)),
    )
    options = compilation.options
    shown = [(key, title, text) for key, title, text in sections if text]
    facts = (
        options.chip_name,
        options.quantize,
        f"{options.seq_length} rows of history",
        f"prefill by {options.max_input_length}",
        words.plural(options.cores, "core"),
    )
    return Template(files("engine.trace").joinpath("report.html").read_text()).substitute(
        title=escape(compilation.config.name),
        subtitle=escape(" · ".join(facts)),
        light=css_variables(dark=False),
        dark=css_variables(dark=True),
        navigation="".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in shown),
        body=_tiles(compilation, simulation)
        + "".join(f'<h2 id="{key}">{escape(title)}</h2>{text}' for key, title, text in shown),
        footer="Made by tpuscope. Cycles and bytes are counted from the compiled instruction streams; "
        "times are at the chip's ideal clock.",
    )


def _speeds(compilation: Compilation, simulator: Simulator) -> Points:
    """Speeds at the lengths where the decode variant changes, and in between."""
    length = compilation.options.seq_length
    caches = (*compilation.options.decode_chunks, length)
    rows = {round(length * step / 32) for step in range(32)}
    rows |= {edge for cache in caches for edge in (cache, cache + 1)} | {0, length - 1}
    return [(at, simulator.tokens_per_second(at)) for at in sorted(rows) if 0 <= at < length]


# -- overview ----------------------------------------------------------------------------------------------------------


def _tiles(compilation: Compilation, simulation: Mapping[str, Any]) -> str:
    decode, plan = simulation["decode"], compilation.merged
    programs = [module.snapshots[-1].report for module in compilation.modules.values()]
    prefill = simulation["prefill"]
    return html.tiles(
        (
            (f"{decode['tokens_per_s']:,.0f}", "decoded tokens/s at the ideal clock"),
            (words.size(decode["ddr_bytes_per_token"]), "DDR traffic a token"),
            (words.seconds(prefill["seconds"]), f"prefill of {words.plural(prefill['tokens'], 'token')}"),
            (words.count(_parameters(compilation)), "parameters"),
            (words.size(plan.end - plan.start), "DDR in use"),
            (
                f"{sum(len(program) for program in programs if program is not None):,}",
                f"instructions in {words.plural(len(compilation.specs), 'module')}",
            ),
        )
    )


def _parameters(compilation: Compilation) -> int:
    """Numbers of the model: each layer's once, embedding and head once when they are the same tensor."""
    config = compilation.config
    rows = {row["name"]: row["parameters"] for row in modules_table(compilation)}
    blocks = (s for s in compilation.specs if s.kind is Kind.BLOCK and s.stage is Stage.PREFILL)
    total = sum(rows[spec.name] * len(spec.layers) for spec in blocks)
    table = config.vocab_size * config.hidden_size
    return int(total + (table if config.tie_word_embeddings else 2 * table))


def _speed_section(simulation: Mapping[str, Any], speeds: Points) -> str:
    decode = simulation["decode"]
    moved = [(*TRAFFIC[name], value) for name, value in decode["breakdown"].items() if value]
    bars = [Bar(name, value, words.size(value), role) for name, role, value in moved]
    used = decode["bandwidth_utilisation"]["traffic"]
    parts = [
        f"<p>One decoded token moves {words.size(decode['ddr_bytes_per_token'])} through DDR, which uses "
        f"{100 * used:.0f} % of the peak bandwidth.</p>",
        html.figure(bar_chart(bars), "DDR bytes of one decoded token, by what they are."),
    ]
    if len(speeds) > 1:
        chart = line_chart(speeds, x_label="rows of history", y_label="tokens/s")
        parts.append(
            html.figure(chart, "Decode speed against the rows in the KV cache; steps are decode variants.")
        )
    further = simulation["prefill_kv"]
    if further["tokens"]:
        parts.append(
            f"<p>A further {words.plural(further['tokens'], 'token')} of prompt behind "
            f"{words.plural(further['history'], 'row')} of history take {words.seconds(further['seconds'])}.</p>"
        )
    return "".join(parts)


# -- modules and passes ------------------------------------------------------------------------------------------------


def _modules_section(compilation: Compilation) -> str:
    rows = []
    for row in modules_table(compilation):
        snapshots = compilation.modules[row["name"]].snapshots
        nbytes = sum(row["weight_bytes"].values())
        rows.append(
            [
                html.code_cell(row["name"]),
                html.words_cell(row["stage"]),
                html.number_cell(len(row["layers"]), str(len(row["layers"]) or "")),
                Cell(_shapes(row["inputs"])),
                Cell(_shapes(row["outputs"])),
                html.number_cell(row["parameters"], words.count(row["parameters"])),
                html.number_cell(nbytes, words.size(nbytes)),
                html.number_cell(snapshots[-1].op_count, str(snapshots[-1].op_count)),
                html.number_cell(len(snapshots[-1].report), f"{len(snapshots[-1].report):,}"),
            ]
        )
    head = ("module", "stage", "layers", "inputs", "outputs", "parameters", "weights", "ops", "instructions")
    note = "<p class=note>Equal layers are compiled once; parameters and weights are those of one layer.</p>"
    return note + html.table(head, rows)


def _shapes(tensors: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f'<span class="whole">{escape(t["name"])} {"×".join(map(str, t["shape"]))} {t["dtype"]}</span>'
        for t in tensors
    )


def _passes_section(compilation: Compilation) -> str:
    totals = [
        [
            html.code_cell(name),
            html.number_cell(changed, f"{changed} of {modules}"),
            html.number_cell(seconds, f"{seconds * 1e3:,.1f} ms"),
        ]
        for name, changed, modules, seconds in pass_totals(compilation)
    ]
    by_module = []
    for spec in compilation.specs:
        rows = passes_table(compilation, spec.name)
        spent = sum(row["ms"] for row in rows)
        note = f"{rows[0]['ops_after']} to {rows[-1]['ops_after']} ops · {spent:.1f} ms"
        by_module.append(html.folded(words.times(spec), note, _module_passes(rows)))
    head = ("pass", "modules changed", "time over all modules")
    return html.table(head, totals, sortable=False, narrow=True) + html.folded(
        "every module", "ops before and after each pass, notes", "".join(by_module)
    )


def _module_passes(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("pass", "changed", "ops before", "ops after", "time", "notes")
    return html.table(
        head,
        (
            [
                html.code_cell(row["pass"]),
                Cell('<span class="good">yes</span>')
                if row["changed"]
                else Cell('<span class="muted">no</span>'),
                html.number_cell(row["ops_before"], str(row["ops_before"])),
                html.number_cell(row["ops_after"], str(row["ops_after"])),
                html.number_cell(row["ms"], f"{row['ms']:.1f} ms"),
                html.words_cell("; ".join(row["notes"])),
            ]
            for row in rows
        ),
        sortable=False,
    )


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory_section(compilation: Compilation) -> str:
    plan = compilation.merged
    weights, states, kv = _program_bytes(compilation)
    segments = (
        Segment("weights", weights, "weights"),
        Segment("KV cache", kv, "kv"),
        Segment("inputs and outputs", states, "scratch"),
        Segment("activations", plan.neuron_size, "activations"),
    )
    caption = (
        f"The whole program in DDR: {words.size(plan.end - plan.start)} from {words.address(plan.start)}."
    )
    parts = [html.figure(strip(segments), caption)]
    for spec in _shown_blocks(compilation):
        memory = memory_table(compilation, spec.name)
        note = f"{words.plural(len(memory['ddr']), 'tensor')} · {words.layers(spec.layers)}"
        pictures = html.inline(ddr_map(memory, title=f"{spec.name} in DDR"))
        pictures += _group_maps(compilation, spec, memory)
        parts.append(html.folded(words.times(spec), note, pictures, opened=spec.stage is Stage.DECODE))
    return "".join(parts)


def _group_maps(compilation: Compilation, spec: ModuleSpec, memory: Mapping[str, Any]) -> str:
    """Local memory of each of a module's layer groups: of several cores, as the first that runs it has it."""
    chip = compilation.options.chip
    of_core = cache(lambda core: memory_table(compilation, spec.name, core))
    parts = []
    for group in memory["groups"]:
        number, shares = group["group"], shares_of(group)
        found, note = memory, ""
        if len(shares) > 1:
            drawn = next(share for share in shares if not share.idle)
            found, note = of_core(drawn.core), _cores_note(drawn, shares)
        title = f"{spec.name}, layer group {number}"
        svg = lmem_map(found, number, title=title, bank_bytes=chip.bank_bytes, banks=chip.banks)
        shown = " + ".join(str(op).partition(".")[2] for op in group["ops"])
        picture = html.figure(svg, note) if note else html.inline(svg)
        parts.append(html.folded(f"local memory of layer group {number}", shown, picture))
    return "".join(parts)


def _cores_note(drawn: CoreShare, shares: Sequence[CoreShare]) -> str:
    """Whose local memory a picture shows, and what the other cores do."""
    others = [share for share in shares if share.core != drawn.core and not share.idle]
    if not others:
        return f"Core {drawn.core} is drawn; the other cores run nothing of this group."
    rest = ", ".join(f"core {share.core} {share.slices_text}" for share in others)
    return f"Core {drawn.core} is drawn, which runs {drawn.slices_text}; in the same places run {rest}."


def _program_bytes(compilation: Compilation) -> tuple[int, int, int]:
    """Bytes of all weights, of inputs and outputs beside the KV cache, and of the KV cache."""
    sizes: dict[tuple[Arena, int], int] = {}
    for (name, _), bases in compilation.merged.bases.items():
        layout = layout_of(compilation.modules[name].snapshots[-1])
        for arena in (Arena.COEFF, Arena.IO):
            key = arena, bases.of(arena)
            sizes[key] = max(sizes.get(key, 0), layout.size[arena])
    weights, states = (
        sum(size for key, size in sizes.items() if key[0] is arena) for arena in (Arena.COEFF, Arena.IO)
    )
    region = compilation.merged.kv
    kv = region.nbytes * compilation.config.layers if region else 0
    return weights, states - kv, kv


def _shown_blocks(compilation: Compilation) -> list[ModuleSpec]:
    """The first block of each stage, at the longest cache."""
    return [s for s in compilation.specs if s.kind is Kind.BLOCK and 0 in s.layers and not s.variant]


def _kv_section(compilation: Compilation) -> str:
    found = kv_table(compilation)
    intro = (
        f"<p>{words.plural(len(found.layers), 'layer')} × (K + V) × {words.plural(found.history_rows, 'row')} × "
        f"{found.row_bytes:,} bytes = {words.size(found.history_bytes)}. One token adds "
        f"{words.size(found.token_bytes)}. New rows go right behind the rows that a module reads.</p>"
    )
    svg = graph_svg(compilation, "kv")
    return (
        intro + html.folded("layout and append rows", "", html.inline(svg), opened=True) + _kv_layers(found)
    )


def _kv_layers(found: KvTable) -> str:
    appends = sorted(found.layers[0].append)
    rows = [
        [
            html.number_cell(layer.layer, str(layer.layer)),
            html.number_cell(layer.k_address, words.address(layer.k_address)),
            html.number_cell(layer.v_address, words.address(layer.v_address)),
            *(html.number_cell(layer.append[rows], f"+{layer.append[rows]:,}") for rows in appends),
            Cell(f'<span class="bad">{escape("; ".join(layer.problems))}</span>')
            if layer.problems
            else Cell('<span class="good">ok</span>'),
        ]
        for layer in found.layers
    ]
    head = ("layer", "K", "V", *(f"slot {rows}" for rows in appends), "checks")
    return html.folded("every layer", "addresses, and bytes to the append slots", html.table(head, rows))


# -- ops ---------------------------------------------------------------------------------------------------------------


def _ops_section(compilation: Compilation, simulation: Mapping[str, Any]) -> str:
    variants = {spec.name for spec in compilation.specs if spec.variant}
    modules = [module for module in simulation["modules"] if module["name"] not in variants]
    parts = []
    for stage in (Stage.PREFILL, Stage.PREFILL_KV, Stage.DECODE):
        mine = [module for module in modules if module["stage"] == stage]
        if mine:
            heads = [module for module in modules if module["stage"] == Stage.BOTH]
            parts.append(f"<h3>{escape(STAGE_TITLES[stage])}</h3>{_ops_table([*mine, *heads])}")
    return "".join(parts)


def _ops_table(modules: Iterable[Mapping[str, Any]]) -> str:
    """Ops of all layers together, the costliest first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for module in modules:
        layers = max(1, len(module["layers"]))
        for op in module["ops"]:
            row = found.setdefault(
                (op["name"], words.short_name(op["location"])),
                {"layers": 0, "cycles": 0, "read": 0, "write": 0, "bound": op["bound"]},
            )
            row["layers"] += layers
            row["cycles"] += layers * op["cycles"]
            row["read"] += layers * op["ddr_read_bytes"]
            row["write"] += layers * op["ddr_write_bytes"]
    total = sum(row["cycles"] for row in found.values())
    largest = max((row["cycles"] for row in found.values()), default=0)
    order = sorted(found.items(), key=lambda item: -item[1]["cycles"])
    left = len(order) - TOP_OPS
    more = f'<p class="note">{words.plural(left, "op")} with fewer cycles not listed.</p>' if left > 0 else ""
    facts = f"<p class=note>{words.cycles(total)} in all layers together.</p>"
    head = ("op", "location", "×", "cycles", "share", "read", "write", "bound by")
    rows = (
        [
            html.code_cell(name.partition(".")[2]),
            html.code_cell(location),
            html.number_cell(row["layers"], str(row["layers"])),
            html.number_cell(row["cycles"], f"{row['cycles']:,}"),
            html.share_cell(row["cycles"], total, largest, "dma" if row["bound"] == "memory" else "compute"),
            html.number_cell(row["read"], words.size(row["read"])),
            html.number_cell(row["write"], words.size(row["write"])),
            Cell(f'<span class="{row["bound"]}">{row["bound"]}</span>'),
        ]
        for (name, location), row in order[:TOP_OPS]
    )
    return facts + html.table(head, rows) + more


# -- diagrams ----------------------------------------------------------------------------------------------------------


def _diagrams_section(compilation: Compilation) -> str:
    pictures = [
        ("generation loop", "runtime", ""),
        ("from checkpoint to file", "pipeline", ""),
        *((f"{spec.name} after its last pass", "module", spec.name) for spec in _shown_blocks(compilation)),
    ]
    return "".join(
        html.folded(
            title, "", html.inline(graph_svg(compilation, what, module=module)), opened=what == "runtime"
        )
        for title, what, module in pictures
    )
