"""Tables of the engine as Rich renderables, for commands that print to people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from app import units
from app.console import Cell, left, right, table, wrapping
from engine.trace import words

if TYPE_CHECKING:
    from app.session import Session
    from engine.compiler import Compilation
    from engine.deploy import FileSummary
    from engine.diff import Diff, DiffLine, SideLine

Rows = Sequence[Mapping[str, Any]]


# -- modules and passes ------------------------------------------------------------------------------------------------


def layers_text(layers: Sequence[int]) -> str:
    """`×29` for several layers, `layer 29` for one, nothing outside of blocks."""
    if len(layers) > 1:
        return f"×{len(layers)}"
    return f"layer {layers[0]}" if layers else ""


def modules_tables(rows: Rows) -> Iterator[RenderableType]:
    """Sizes of the modules, then their inputs and outputs."""
    yield table(
        [
            *left("module", "layers", "stage"),
            *right("parameters", "weights"),
            *wrapping("of which", rank=1, least=30),
        ],
        [
            [
                row["name"],
                layers_text(row["layers"]),
                row["stage"],
                units.short_count(row["parameters"]),
                units.size(sum(row["weight_bytes"].values())),
                Text(_kinds(row["weight_bytes"]), style="dim"),
            ]
            for row in rows
        ],
    )
    yield Text("parameters and weights are those of one layer\n", style="dim")
    yield table(
        [*left("module"), *wrapping("inputs", "outputs", least=24)],
        [[row["name"], _tensors(row["inputs"]), _tensors(row["outputs"])] for row in rows],
    )


def _kinds(weight_bytes: Mapping[str, int]) -> str:
    largest = sorted(weight_bytes.items(), key=lambda item: -item[1])
    return " · ".join(f"{kind} {units.size(size)}" for kind, size in largest)


def _tensors(tensors: Rows) -> Text:
    text = Text()
    for number, tensor in enumerate(tensors):
        text.append("\n" if number else "")
        text.append(f"{tensor['name']} ").append(
            f"{units.shape(tuple(tensor['shape']))} {tensor['dtype']}", style="dim"
        )
    return text


def passes_view(rows: Rows) -> RenderableType:
    """The pass list."""
    return table(
        [*left("", "pass"), *right("ops", "time"), *wrapping("notes", least=20)],
        [
            [
                Text("±", style="yellow") if row["changed"] else Text("=", style="dim"),
                row["pass"],
                _ops_text(row),
                units.duration(row["ms"] / 1e3),
                Text(" · ".join(row["notes"])),
            ]
            for row in rows
        ],
    )


def _ops_text(row: Mapping[str, Any]) -> str:
    before, after = row["ops_before"], row["ops_after"]
    return f"{after}" if before in (0, after) else f"{before}→{after}"


# -- compile -----------------------------------------------------------------------------------------------------------


def compile_tables(session: Session, summary: FileSummary | None) -> Iterator[RenderableType]:
    """What was compiled, and what was written."""
    options, compilation = session.options, session.compilation
    line = (
        f"{session.title} · {options.chip_name} · {options.quantize} · S {options.seq_length} · "
        f"L {options.max_input_length}"
    )
    yield Text(line, style="bold")
    counts: dict[str, list[int]] = {}
    for spec in compilation.specs:
        entry = counts.setdefault(str(spec.stage), [0, 0, 0])
        program = compilation.modules[spec.name].snapshots[-1].report
        entry[0] += 1
        entry[1] += max(1, len(spec.layers))
        entry[2] += 0 if program is None else len(program)
    yield table(
        [*left("stage"), *right("modules", "in the program", "instructions")],
        [[stage, *map(units.count, numbers)] for stage, numbers in counts.items()],
    )
    yield Text(f"compiled in {units.duration(session.seconds)}")
    if summary is not None:
        yield Text(
            f"wrote {summary.path}: {units.size(summary.nbytes)} in {units.duration(summary.seconds)} "
            f"(weights {units.size(summary.weight_nbytes)}, {summary.weights:,} stored for "
            f"{summary.weight_uses:,} uses; programs {units.size(summary.program_nbytes)}; "
            f"snapshots {units.size(summary.snapshot_nbytes)})"
        )


# -- diff --------------------------------------------------------------------------------------------------------------

_MARKS = {"equal": " ", "removed": "−", "added": "+", "moved": "↕", "changed": "~", "gap": " "}
_STYLES = {
    "equal": "dim",
    "removed": "red",
    "added": "green",
    "moved": "yellow",
    "changed": "yellow",
    "gap": "dim italic",
}


def unified_view(lines: Sequence[DiffLine]) -> RenderableType:
    """One line an op, marked."""
    return Text("\n").join(
        Text(f"{_MARKS[line.kind]} {line.text}", style=_STYLES[line.kind]) for line in lines
    )


def side_by_side_view(lines: Sequence[SideLine]) -> RenderableType:
    """Two columns."""
    return table(
        [*wrapping("before"), *left(""), *wrapping("after")],
        [
            [
                Text(line.before or "", style="red" if line.kind == "changed" else _STYLES[line.kind]),
                Text(_MARKS[line.kind], style=_STYLES[line.kind]),
                Text(line.after or "", style="green" if line.kind == "changed" else _STYLES[line.kind]),
            ]
            for line in lines
        ],
    )


def diff_json(module: str, before: str, after: str, found: Diff, texts: Sequence[str]) -> dict[str, Any]:
    """A diff as plain data; equal hunks are counted, not listed."""
    lines = [text.splitlines() for text in texts]
    counts = found.counts()
    return {
        "module": module,
        "from": before,
        "to": after,
        "added": counts.added,
        "removed": counts.removed,
        "moved": counts.moved,
        "equal_hunks": sum(hunk.is_quiet for hunk in found.hunks),
        "hunks": [
            {
                "kind": hunk.kind,
                "key": hunk.key,
                "moved": hunk.moved,
                "before": [_op_json(op.name, lines[0], op.line) for op in hunk.before],
                "after": [_op_json(op.name, lines[1], op.line) for op in hunk.after],
            }
            for hunk in found.hunks
            if not hunk.is_quiet
        ],
    }


def _op_json(name: str, lines: Sequence[str], line: int) -> dict[str, Any]:
    return {"op": name, "line": line + 1, "text": lines[line].strip()}


# -- memory ------------------------------------------------------------------------------------------------------------

_ARENA_STYLES = {"coeff": "blue", "io": "magenta", "neuron": "cyan"}


def memory_views(compilation: Compilation, module: str, found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Arenas, DDR tensors and KV slots."""
    from engine.tables import arena_sizes

    spec, layer = compilation.find(module)
    where = f" · layer {layer}" if spec.layers else ""
    rows = found["ddr"]
    parts = []
    for arena, size in arena_sizes(compilation, module).items():
        used = sum(row["bytes"] for row in rows if row["arena"] == arena)
        reuse = f" (reused {used / size:.1f}×)" if arena == "neuron" and used > size else ""
        parts.append(f"{arena} {units.size(size)}{reuse}")
    yield Text.assemble((f"{module}{where} · DDR   ", "bold"), " · ".join(parts))
    last = max((row["last_use"] for row in rows), default=0)
    yield table(
        [
            *left("arena", rank=1),
            *left("address"),
            *right("bytes"),
            *left("live", rank=2),
            *left("", rank=3),
            *left("tensor"),
        ],
        [
            [
                Text(row["arena"], style=_ARENA_STYLES[row["arena"]]),
                units.address(row["address"]),
                units.size(row["bytes"]),
                _live(row, last),
                Text(
                    _lifetime(row, last),
                    style="dim" if _is_always(row, last) else _ARENA_STYLES[row["arena"]],
                ),
                Text(row["tensor"]),
            ]
            for row in rows
        ],
    )
    if found["kv_cache"]:
        yield Text(
            "\nKV cache: new rows are written at the append slot, right behind the history\n", style="bold"
        )
        yield _kv_view(found["kv_cache"])


def _is_always(row: Mapping[str, Any], last: int) -> bool:
    return bool(row["first_use"] == 0 and row["last_use"] >= last)


def _live(row: Mapping[str, Any], last: int) -> str:
    if _is_always(row, last):
        return "always"
    return f"op {row['first_use']}–{row['last_use']}"


_LIFETIME_CELLS = 20


def _lifetime(row: Mapping[str, Any], last: int) -> str:
    """The part of the program in which a tensor lives, as a bar."""
    scale = _LIFETIME_CELLS / max(1, last + 1)
    first_use, last_use = int(row["first_use"]), int(row["last_use"])
    start = int(first_use * scale)
    end = max(start + 1, round((last_use + 1) * scale))
    return " " * start + "━" * (min(end, _LIFETIME_CELLS) - start) + " " * (_LIFETIME_CELLS - end)


def _kv_view(rows: Rows) -> RenderableType:
    def slot(row: Mapping[str, Any], name: str) -> Cell:
        distance = row[f"{name}_append_address"] - row[f"{name}_address"]
        fits = distance == row["rows"] * row["row_bytes"]
        return Text(f"+{distance:,} {'✓' if fits else '✗'}", style="" if fits else "bold red")

    return table(
        [
            *right("layer"),
            *left("module", "K", "V"),
            *right("K slot"),
            *right("V slot", rank=1),
            *right("rows", rank=2),
            *right("bytes/row", rank=3),
        ],
        [
            [
                str(row["layer"]),
                row["module"],
                units.address(row["k_address"]),
                units.address(row["v_address"]),
                slot(row, "k"),
                slot(row, "v"),
                str(row["rows"]),
                str(row["row_bytes"]),
            ]
            for row in rows
        ],
    )


# -- check -------------------------------------------------------------------------------------------------------------

_CHECKS = {
    "compiled": "every module was compiled",
    "ir": "the IR parses and prints back unchanged",
    "addresses": "DDR tensors are aligned, in their arenas and do not overlap",
    "kv": "K and V of a layer lie where every module expects them",
    "groups": "buffers of layer groups do not overlap, fit, and slices cover their tensors",
    "program": "instructions stay inside memory, write over nothing in use, and are those of their group",
    "merge": "arenas of the whole program do not overlap",
}
"""What each kind of check makes sure of."""


def check_view(found: Mapping[str, Any]) -> RenderableType:
    """Every kind of check with the number of problems; from the `check` JSON."""
    rows: list[list[Cell]] = [
        [
            Text("✗", style="red") if count else Text("✓", style="green"),
            kind,
            Text(_CHECKS.get(kind, ""), style="" if count else "dim"),
            Text(units.count(count), style="bold red") if count else "",
        ]
        for kind, count in found["checks"].items()
    ]
    numbers = (
        (len(found["modules"]), "module"),
        (found["groups"], "layer group"),
        (found["instructions"], "instruction"),
    )
    seen = ", ".join(f"{number:,} {thing}{'' if number == 1 else 's'}" for number, thing in numbers)
    return Group(
        table([*left("", "check"), *wrapping("what holds"), *right("problems")], rows),
        Text(f"{seen} examined"),
    )


# -- simulate ----------------------------------------------------------------------------------------------------------

_BOUND_STYLES = {"memory": "cyan", "compute": "magenta"}
_TRAFFIC_STYLES = {
    "weights": "blue",
    "lm_head": "blue",
    "kv_cache": "yellow",
    "state": "yellow",
    "activations": "green",
}


def simulation_views(
    found: Mapping[str, Any], ops: int, *, prompted: bool, cores: int
) -> Iterator[RenderableType]:
    """Speeds first, then what a token moves, modules, and the ops that cost most; from the `simulate` JSON.

    prompted: the lengths are those of a prompt, so that both prefills add up to the time to the first token.
    cores: that the program runs on.
    """
    several = f" · {cores} cores" if cores > 1 else ""
    yield Text(f"{found['chip']}{several} · {found['quantize']} · S {found['seq_length']}", style="bold")
    yield from _speeds(found, prompted)
    if several:
        yield Text(units.CONTENTION, style="dim")
    yield from ("", _traffic(found["decode"]), "", _module_costs(found["modules"], cores))
    if ops:
        for view in _costliest_ops(found["modules"], ops):
            yield from ("", view)


def _speeds(found: Mapping[str, Any], prompted: bool) -> Iterator[Text]:
    prefill, more, decode = found["prefill"], found["prefill_kv"], found["decode"]
    yield Text(f"prefill     {prefill['tokens']:>8,} tokens in {units.duration(prefill['seconds'])}")
    if more["tokens"]:
        yield Text(
            f"prefill_kv  {more['tokens']:>8,} tokens in {units.duration(more['seconds'])}, the last segment on a "
            f"history of {more['history']:,}"
        )
    total = prefill["seconds"] + more["seconds"]
    if prompted:
        yield Text(f"first token          after {units.duration(total)}")
    use = decode["bandwidth_utilisation"]
    speed, moved = units.rate(decode["tokens_per_s"]), units.size(decode["ddr_bytes_per_token"])
    yield Text(
        f"decode      {speed:>8} tokens/s · {moved} a token · {units.share(use['traffic'], 1)} of DDR bandwidth"
    )
    if not decode["tokens"]:
        rows = units.count(decode["history"])
        yield Text(
            f"            of a token behind {rows} rows; none is decoded, the prefill gives the only one"
        )


def _traffic(decode: Mapping[str, Any]) -> RenderableType:
    total = decode["ddr_bytes_per_token"]
    return table(
        [*left("DDR traffic of a decoded token"), *right("bytes", "share"), *left("", rank=1)],
        [
            [
                units.TRAFFIC_NAMES.get(name, name),
                units.size(size),
                units.share(size, total),
                Text(units.bar(size, total, 24), style=_TRAFFIC_STYLES.get(name, "")),
            ]
            for name, size in decode["breakdown"].items()
            if size
        ],
    )


def _module_costs(modules: Rows, cores: int) -> RenderableType:
    return table(
        [
            *left("module"),
            *left("layers", rank=1),
            *left("stage", rank=4),
            *right("cycles"),
            *right("TIU busy", rank=3),
            *right("GDMA busy", rank=2),
            *right("read", "written"),
            *left("bound"),
        ],
        [
            [
                row["name"],
                layers_text(row["layers"]),
                row["stage"],
                units.cycles(row["cycles"]),
                units.share(row["tiu_busy_cycles"], cores * row["cycles"]),
                units.share(row["gdma_busy_cycles"], cores * row["cycles"]),
                units.size(row["ddr_read_bytes"]),
                units.size(row["ddr_write_bytes"]),
                _bound("memory" if row["gdma_busy_cycles"] >= row["tiu_busy_cycles"] else "compute"),
            ]
            for row in modules
        ],
    )


def _bound(bound: str) -> Text:
    return Text(bound, style=_BOUND_STYLES.get(bound, ""))


_VARIANT = re.compile(r"block_cache_\d+_\d+")


def _costliest_ops(modules: Rows, count: int) -> Iterator[RenderableType]:
    """The ops that take most of each stage, layers counted; decode at its longest cache, with the head."""
    stages: dict[str, dict[tuple[str, str], Counter[str]]] = {}
    bounds: dict[tuple[str, str, str], Counter[str]] = {}
    groups: dict[tuple[str, str, str], set[int]] = {}
    for row in modules:
        if _VARIANT.fullmatch(row["name"]):
            continue
        stage = "decode" if row["stage"] == "both" else row["stage"]
        times = max(1, len(row["layers"]))
        for op in row["ops"]:
            key = op["name"].partition(".")[2], words.short_name(op["location"])
            sums = stages.setdefault(stage, {}).setdefault(key, Counter())
            sums.update({name: times * op[name] for name in ("cycles", "ddr_read_bytes", "ddr_write_bytes")})
            sums["times"] += times
            bounds.setdefault((stage, *key), Counter())[op["bound"]] += times * op["cycles"]
            if op["group"] is not None:
                groups.setdefault((stage, *key), set()).add(op["group"])
    for stage, ops in stages.items():
        names = {key: ", ".join(map(str, sorted(groups.get((stage, *key), ())))) for key in ops}
        # of an op that several modules have, what bounds it for most of its time
        bound = {key: bounds[stage, *key].most_common(1)[0][0] for key in ops}
        yield _ops_view(stage, ops, bound, names, count)


def _ops_view(
    stage: str,
    ops: Mapping[tuple[str, str], Mapping[str, int]],
    bounds: Mapping[tuple[str, str], str],
    groups: Mapping[tuple[str, str], str],
    count: int,
) -> RenderableType:
    total = sum(sums["cycles"] for sums in ops.values())
    largest = sorted(ops.items(), key=lambda item: -item[1]["cycles"])[:count]
    return table(
        [
            *left("op", f"location in {stage}"),
            *right("group", rank=5),
            *right("×", rank=4),
            *right("cycles"),
            *right("share", rank=3),
            *right("read", rank=1),
            *right("written", rank=2),
            *left("bound"),
            *left("", rank=6),
        ],
        [
            [
                kind,
                location,
                groups[kind, location],
                str(sums["times"]),
                units.cycles(sums["cycles"]) if sums["cycles"] else "hidden",
                units.share(sums["cycles"], total),
                units.size(sums["ddr_read_bytes"]),
                units.size(sums["ddr_write_bytes"]),
                _bound(bounds[kind, location]),
                Text(
                    units.bar(sums["cycles"], largest[0][1]["cycles"], 16),
                    style=_BOUND_STYLES.get(bounds[kind, location], ""),
                ),
            ]
            for (kind, location), sums in largest
        ],
    )


# -- chips -------------------------------------------------------------------------------------------------------------

_CHIP_FIELDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "cores": ("cores", units.count),
    "lanes": ("lanes a core", units.count),
    "eu_bytes": ("bytes a lane and cycle", units.count),
    "lmem_bytes": ("local memory a lane", lambda value: f"{value // 1024} KiB"),
    "banks": ("banks", units.count),
    "clock_hz": ("clock", lambda value: f"{value / 1e9:g} GHz"),
    "ddr_bandwidth": ("DDR bandwidth of a core", lambda value: f"{value / 1e9:g} GB/s"),
    "ddr_base": ("DDR base", units.address),
    "alignment": ("alignment", lambda value: f"{value:,} B"),
    "macs_per_cycle": (
        "multiply-adds a cycle",
        lambda value: ", ".join(f"{k} {v:,}" for k, v in value.items()),
    ),
    "mask_size": ("causal mask rows", units.count),
    "fused_mlp": ("keeps top.MLP fused", lambda value: "yes" if value else "no"),
    "int4_operands": ("reads 4-bit operands", lambda value: "yes" if value else "no"),
}


def chips_views(rows: Rows) -> Iterator[RenderableType]:
    """One table a chip: figure, value, source."""
    from engine.tpu.chip_sources import SOURCES

    for row in rows:
        lines: list[list[Cell]] = [
            [label, show(row[name]), Text(row["sources"].get(name, ""), style="dim")]
            for name, (label, show) in _CHIP_FIELDS.items()
        ]
        heading = Text.assemble((row["name"], "bold"), f"  {row['description']}")
        yield Group(heading, table([*left("figure"), *right("value"), *wrapping("source")], lines), "")
    legend = "; ".join(f"{letter}: {about}" for letter, about in SOURCES.items())
    yield Text(f"{legend}.\nThe constants of the cost rules are in the JSON.", style="dim")
