"""The whole program as graphs: from checkpoint to file, the generation loop, and the KV regions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import graphviz

from engine.compiler import Compilation
from engine.stages import Kind, ModuleSpec, Stage
from engine.tables import KvLayer, KvTable, kv_table
from engine.trace import words
from engine.trace.dot import cluster, label, new_graph, table, text
from engine.trace.palette import LIGHT

STAGE_TITLES = {
    Stage.PREFILL: "prefill",
    Stage.PREFILL_KV: "prefill_kv",
    Stage.DECODE: "decode",
    Stage.BOTH: "heads",
}

# -- from checkpoint to file -------------------------------------------------------------------------------------------


def pipeline_graph(compilation: Compilation) -> graphviz.Digraph:
    """Checkpoint, the modules of each stage, the passes over them, merge and the file."""
    options = compilation.options
    graph = new_graph(
        "pipeline",
        f"{compilation.config.name}: from checkpoint to deployable file",
        f"{options.chip_name} · {options.quantize} · {options.seq_length} rows of history",
        rankdir="LR",
    )
    graph.attr(ranksep="0.9")
    graph.node(
        "checkpoint", _checkpoint_label(compilation), fillcolor=LIGHT["fill-matmul"], color=LIGHT["weights"]
    )
    graph.node("passes", _passes_label(compilation), fillcolor=LIGHT["ground"])
    for stage, title in STAGE_TITLES.items():
        specs = [spec for spec in compilation.specs if spec.stage is stage]
        if not specs:
            continue
        with cluster(graph, str(stage), title) as frame:
            for spec in specs:
                frame.node(spec.name, _module_label(compilation, spec), fillcolor=LIGHT[_module_fill(spec)])
                graph.edge("checkpoint", spec.name, tailport="e", headport="w")
                graph.edge(spec.name, "passes", tailport="e", headport="w")
    graph.node("merge", _merge_label(compilation), fillcolor=LIGHT["fill-lookup"], color=LIGHT["heads"])
    graph.node("file", _file_label(compilation), fillcolor=LIGHT["fill-input"], color=LIGHT["activations"])
    graph.edge("passes", "merge", label=f" {words.plural(len(compilation.specs), 'module')} ")
    graph.edge("merge", "file")
    return graph


def _checkpoint_label(compilation: Compilation) -> str:
    config = compilation.config
    heads = f"{config.heads} heads, {config.kv_heads} for K and V, {config.head_dim} wide"
    lines = (
        f"{config.model_type} · {config.dtype}",
        words.plural(config.layers, "layer"),
        f"hidden {config.hidden_size} · MLP {config.intermediate_size}",
        heads,
        f"vocabulary {config.vocab_size:,}",
    )
    return label(
        [text("checkpoint", bold=True, size=13), *(text(line, role="muted", size=10) for line in lines)]
    )


def _module_label(compilation: Compilation, spec: ModuleSpec) -> str:
    module = compilation.modules.get(spec.name)
    lines = [text(words.times(spec), bold=True, size=11)]
    facts = [words.layers(spec.layers)] if spec.layers else []
    if spec.cache:
        facts.append(f"cache {spec.cache}")
    if module is not None and module.snapshots:
        before, after = module.snapshots[0].op_count, module.snapshots[-1].op_count
        facts.append(f"{before} to {after} ops" if before != after else words.plural(after, "op"))
    if facts:
        lines.append(text(" · ".join(facts), role="muted", size=9.5))
    return label(lines)


def _module_fill(spec: ModuleSpec) -> str:
    return {Kind.BLOCK: "fill-matmul", Kind.EMBEDDING: "fill-lookup"}.get(spec.kind, "fill-sampling")


def _passes_label(compilation: Compilation) -> str:
    """Every pass with how many modules it changed and the time it took over all of them."""
    small = {"size": 10}
    rows = []
    for name, changed, modules, spent in pass_totals(compilation):
        state = f"{changed} of {modules}" if changed else "none"
        rows.append(
            [
                text(name, bold=bool(changed), **small),  # type: ignore[arg-type]
                text(state, role="good" if changed else "muted", **small),  # type: ignore[arg-type]
                text(f"{spent * 1e3:.0f} ms", role="muted", **small),  # type: ignore[arg-type]
            ]
        )
    header = [
        text(word, role="muted", bold=True, size=10) for word in ("passes, in order", "changed", "time")
    ]
    return table(rows, header=header, aligns="lrr")


def pass_totals(compilation: Compilation) -> list[tuple[str, int, int, float]]:
    """(pass, modules that it changed, modules that it ran over, seconds in all) in pass order."""
    found: dict[str, tuple[int, int, float]] = {}
    for module in compilation.modules.values():
        for snapshot in module.snapshots:
            changed, ran, spent = found.get(snapshot.pass_name, (0, 0, 0.0))
            found[snapshot.pass_name] = (changed + snapshot.changed, ran + 1, spent + snapshot.seconds)
    return [(name, *values) for name, values in found.items()]


def _merge_label(compilation: Compilation) -> str:
    lines = ["each layer its own weights,", "inputs, outputs and KV;", "one arena for activations"]
    if compilation.complete:
        plan = compilation.merged
        lines += [
            f"DDR {words.size(plan.end - plan.start)}",
            f"activations {words.size(plan.neuron_size)}",
        ]
    return label([text("merge", bold=True, size=13), *(text(line, role="muted", size=10) for line in lines)])


def _file_label(compilation: Compilation) -> str:
    programs = [module.snapshots[-1].report for module in compilation.modules.values() if module.snapshots]
    instructions = sum(len(program) for program in programs if program is not None)
    lines = ["weights, each stored once", "modules with addresses", "snapshots of every pass"]
    if instructions:
        lines.insert(1, words.plural(instructions, "instruction"))
    return label(
        [text("deployable file", bold=True, size=13), *(text(line, role="muted", size=10) for line in lines)]
    )


# -- the generation loop -----------------------------------------------------------------------------------------------


def runtime_graph(compilation: Compilation) -> graphviz.Digraph:
    """What runs for a prompt: prefill by segments, the head, then decode with the best-fitting variant."""
    options = compilation.options
    graph = new_graph(
        "runtime",
        f"{compilation.config.name}: generation loop",
        f"prompts by {words.plural(options.max_input_length, 'row')} · {options.seq_length} rows of history",
    )
    graph.node("prompt", _box("prompt", "token ids"), **_style("fill-input", "activations"))
    _prefill(graph, compilation)
    _heads(graph, compilation)
    _decode(graph, compilation)
    return graph


def _box(title: str, *facts: str) -> str:
    lines = [text(title, bold=True, size=12), *(text(fact, role="muted", size=10) for fact in facts)]
    return label(lines, align="center")


def _style(fill: str, color: str = "edge") -> dict[str, str]:
    return {"fillcolor": LIGHT[fill], "color": LIGHT[color]}


def _question(graph: graphviz.Digraph, name: str, words_: str) -> None:
    graph.node(
        name,
        label([text(words_, size=10)], align="center"),
        shape="diamond",
        style="filled",
        margin="0.02,0.02",
        **_style("ground"),
    )


def _of(compilation: Compilation, kind: Kind, stage: Stage) -> list[ModuleSpec]:
    return [spec for spec in compilation.specs if spec.kind is kind and spec.stage is stage]


def _blocks(graph: graphviz.Digraph, name: str, chain: Sequence[ModuleSpec], cache: str) -> None:
    """All layers of a stage as one node. cache: what they do with the KV cache."""
    lines = [text(chain[0].name.replace("_0", "_i", 1), bold=True)]
    for spec in chain:
        layers = f"{words.times(spec)} with the final norm" if spec.last else words.times(spec)
        lines.append(text(layers, role="muted", size=10))
    lines.append(text(cache, role="kv", size=10))
    graph.node(name, label(lines, align="center"), **_style("fill-matmul", "weights"))


def _prefill(graph: graphviz.Digraph, compilation: Compilation) -> None:
    rows = words.plural(compilation.options.max_input_length, "token")
    (embedding,) = _of(compilation, Kind.EMBEDDING, Stage.PREFILL)
    further = _of(compilation, Kind.BLOCK, Stage.PREFILL_KV)
    with cluster(graph, "prefill", "prefill") as frame:
        frame.node("embedding", _box(embedding.name, f"the first {rows}"), **_style("fill-lookup"))
        _blocks(frame, "block", _of(compilation, Kind.BLOCK, Stage.PREFILL), "K, V: writes its rows")
        frame.edge("embedding", "block")
    graph.edge("prompt", "embedding")
    if not further:
        graph.edge("block", "lm_head", label=" last row ")
        return
    _question(graph, "more", "more\nprompt?")
    with cluster(graph, "prefill_kv", "prefill_kv") as frame:
        frame.node("embedding_kv", _box(embedding.name, f"the next {rows}"), **_style("fill-lookup"))
        _blocks(frame, "block_kv", further, "K, V: reads the history, appends its rows")
        frame.edge("embedding_kv", "block_kv")
    graph.edge("block", "more")
    graph.edge("more", "embedding_kv", label=" yes ")
    # drawn backwards: the layout then goes down along it
    graph.edge("more", "block_kv", dir="back")
    graph.edge("more", "lm_head", label=" no: the last row ", weight="4")


def _heads(graph: graphviz.Digraph, compilation: Compilation) -> None:
    sampled = compilation.options.sample
    graph.node(
        "lm_head", _box("lm_head", "logits" if sampled else "the likeliest token"), **_style("fill-sampling")
    )
    last = "lm_head"
    if sampled:
        graph.node(
            "pick",
            _box("greedy_head or sample_head", "penalty, temperature, top k, top p"),
            **_style("fill-sampling"),
        )
        graph.edge("lm_head", "pick")
        last = "pick"
    graph.node("token", _box("token", "appended to the text"), **_style("fill-input", "activations"))
    graph.edge(last, "token")
    _question(graph, "end", "end of sequence,\nor history full?")
    graph.edge("token", "end")
    graph.node("done", _box("done"), **_style("fill-input", "activations"))
    graph.edge("end", "done", label=" yes ")


def _decode(graph: graphviz.Digraph, compilation: Compilation) -> None:
    (embedding,) = _of(compilation, Kind.EMBEDDING, Stage.DECODE)
    blocks = _of(compilation, Kind.BLOCK, Stage.DECODE)
    caches = sorted({spec.cache for spec in blocks})
    with cluster(graph, "decode", "decode") as frame:
        frame.node("embedding_cache", _box(embedding.name, "the new token"), **_style("fill-lookup"))
        source = "embedding_cache"
        if len(caches) > 1:
            _question(frame, "filled", "rows in\nthe cache?")
            frame.edge("embedding_cache", "filled")
            source = "filled"
        frame.node("state", _box("last hidden state"), **_style("fill-layout"))
        for cache in caches:
            name = f"decode_{cache}"
            chain = [spec for spec in blocks if spec.cache == cache]
            _blocks(frame, name, chain, f"K, V: reads {words.plural(cache, 'row')}, appends 1")
            frame.edge(source, name, label=f" up to {cache} " if len(caches) > 1 else "")
            frame.edge(name, "state")
    graph.edge("state", "lm_head", constraint="false", tailport="e", headport="e")
    graph.edge("end", "embedding_cache", label=" no ")


# -- KV regions --------------------------------------------------------------------------------------------------------

SHOWN_LAYERS = 40
"""Layers listed one by one; of more, the first and the last ones."""


def kv_graph(compilation: Compilation) -> graphviz.Digraph:
    """One layer's K and V regions with the rows that each module reads and where it appends, and every layer's
    addresses. Raises CompileError unless everything was compiled."""
    found = kv_table(compilation)
    graph = new_graph(
        "kv",
        f"{compilation.config.name}: KV cache",
        f"{words.plural(len(found.layers), 'layer')} × (K + V) × {found.history_rows} rows × {found.row_bytes} B "
        f"= {words.size(found.history_bytes)}",
        rankdir="LR",
    )
    graph.attr(ranksep="1.0")
    graph.node("layers", _layer_table(found), fillcolor=LIGHT["ground"])
    starts = _segment_starts(compilation, found)
    graph.node("region", _region_label(found, starts), shape="plain", style="")
    graph.edge("layers", "region", label=" each K and V ", style="dashed", arrowhead="none")
    for spec in compilation.specs:
        if spec.kind is Kind.BLOCK and 0 in spec.layers:
            _region_user(graph, spec)
    return graph


def _layer_table(found: KvTable) -> str:
    """Addresses of every layer, and whether its regions keep the contract."""
    header = [text(word, role="muted", bold=True, size=10) for word in ("layer", "K", "V", "checks")]
    rows = []
    for layer in _some(found.layers):
        if layer is None:
            rows.append([text("...", role="muted", size=10)] * 4)
            continue
        check = (
            text("fails", role="bad", bold=True, size=10)
            if layer.problems
            else text("ok", role="good", size=10)
        )
        cells = (str(layer.layer), words.address(layer.k_address), words.address(layer.v_address))
        rows.append([*(text(cell, size=10) for cell in cells), check])
    return table(rows, header=header, aligns="rllc")


def _some(layers: Sequence[KvLayer]) -> list[KvLayer | None]:
    """All layers, or the first and the last ones with None between them."""
    if len(layers) <= SHOWN_LAYERS:
        return list(layers)
    half = SHOWN_LAYERS // 2
    return [*layers[:half], None, *layers[-half:]]


def _segment_starts(compilation: Compilation, found: KvTable) -> list[int]:
    """Rows at which some module stops reading and appends, from 0 to the region's end."""
    slots = {spec.cache for spec in compilation.specs if spec.kind is Kind.BLOCK}
    return sorted({0, *slots, found.rows})


def _region_label(found: KvTable, starts: Sequence[int]) -> str:
    """The rows of one region, cut where modules append."""
    cells = [
        f'<TR><TD BGCOLOR="{LIGHT["fill-kv"]}">{text("one region", bold=True)}<BR/>'
        f"{text(f'{found.rows} rows of {found.row_bytes} B', role='muted', size=10)}</TD></TR>"
    ]
    for start, end in pairwise(starts):
        inside = start < found.history_rows
        what = "" if inside else "appended only"
        lines = [
            text(f"rows {start} to {end - 1}", size=11),
            text(f"from byte {start * found.row_bytes:,}", role="muted", size=9.5),
        ]
        lines += [text(what, role="kv", size=9.5)] if what else []
        height = round(34 + 90 * (end - start) / starts[-1])
        cells.append(
            f'<TR><TD PORT="row{start}" HEIGHT="{height}" WIDTH="150">{"<BR/>".join(lines)}</TD></TR>'
        )
    return (
        f'<<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0" CELLPADDING="5" COLOR="{LIGHT["kv"]}" '
        f'BGCOLOR="{LIGHT["ground"]}">{"".join(cells)}</TABLE>>'
    )


def _region_user(graph: graphviz.Digraph, spec: ModuleSpec) -> None:
    """A block with what it reads and an arrow to where it appends."""
    reads = f"reads rows 0 to {spec.cache - 1}" if spec.cache else "reads none"
    name = spec.name.replace("_0", "_i", 1)
    lines = [
        text(name, bold=True),
        text(STAGE_TITLES[spec.stage], role="muted", size=10),
        text(reads, role="kv", size=10),
        text(f"writes {words.plural(spec.rows, 'row')} at {spec.cache}", role="kv", size=10),
    ]
    graph.node(spec.name, label(lines), **_style("fill-matmul", "weights"))
    graph.edge(f"region:row{spec.cache}:e", f"{spec.name}:w", dir="back", color=LIGHT["kv"])
