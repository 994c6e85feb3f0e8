"""What a simulation says about one stage: totals, traffic and ops, as data for bars and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app import units
from app.widgets.bars import Picture
from app.widgets.documents import op_label
from app.widgets.inspector import labelled
from app.widgets.lines import Line, Span
from app.widgets.table import Column, Row, width_of
from engine.compiler import Compilation
from engine.snapshot import OpRecord
from engine.stages import Kind, ModuleSpec, Stage

if TYPE_CHECKING:
    from engine.options import CompileOptions
    from engine.sim.throughput import DecodeCost, ModuleCost, Simulation
    from engine.sim.timing import OpTiming

STAGES = (Stage.PREFILL, Stage.PREFILL_KV, Stage.DECODE)

SORTS = ("cycles", "read", "write", "program")
"""Orders of the op table."""

CATEGORY_ROLES = {
    "weights": "weights",
    "lm_head": "weights",
    "kv_cache": "kv",
    "state": "kv",
    "activations": "activations",
    "other": "muted",
    "rest": "muted",
}
REST = "rest"
"""The kinds of traffic that have no room of their own."""
SHORTEST_BAR = 8

Part = tuple[int, Line]
"""A part of a line that is shown whole or not at all, and its rank: larger ones go first when space is short."""


@dataclass(frozen=True)
class StageOp:
    """One op of a stage, summed over the layers that run it. module, index: where it stands in one of them."""

    name: str
    label: str
    module: str
    record: OpRecord
    index: int
    times: int
    cycles: int
    read: int
    write: int
    bound: str
    under: str = ""
    """The op in whose time the first of them runs that adds nothing."""

    @property
    def hidden(self) -> bool:
        """Other ops run at the same time and take longer."""
        return not self.cycles and bool(self.under)


@dataclass(frozen=True)
class StageCost:
    """One run of a stage: all of its modules in all their layers. cores: that the program runs on."""

    stage: Stage
    cores: int
    modules: tuple[tuple[ModuleSpec, ModuleCost], ...]
    ops: tuple[StageOp, ...]

    @property
    def cycles(self) -> int:
        """Clock cycles."""
        return sum(cost.cycles * _times(spec) for spec, cost in self.modules)

    @property
    def read(self) -> int:
        """DDR bytes read."""
        return sum(cost.ddr_read_bytes * _times(spec) for spec, cost in self.modules)

    @property
    def write(self) -> int:
        """DDR bytes written."""
        return sum(cost.ddr_write_bytes * _times(spec) for spec, cost in self.modules)

    @property
    def busy(self) -> tuple[int, int]:
        """Cycles in which the TIU and the GDMA work, summed over cores."""
        return (
            sum(cost.tiu_busy_cycles * _times(spec) for spec, cost in self.modules),
            sum(cost.gdma_busy_cycles * _times(spec) for spec, cost in self.modules),
        )


def _times(spec: ModuleSpec) -> int:
    return max(1, len(spec.layers))


def stage_specs(specs: Sequence[ModuleSpec], stage: Stage, variant: int) -> list[ModuleSpec]:
    """The modules that one run of a stage goes through."""
    found = []
    for spec in specs:
        if spec.kind is Kind.EMBEDDING:
            fits = (spec.stage is Stage.DECODE) == (stage is Stage.DECODE)
        elif spec.kind is Kind.BLOCK:
            fits = spec.stage is stage and spec.variant == (variant if stage is Stage.DECODE else 0)
        else:
            fits = spec.kind is Kind.LM_HEAD
        if fits:
            found.append(spec)
    return found


def stage_cost(compilation: Compilation, simulation: Simulation, stage: Stage, variant: int = 0) -> StageCost:
    """Cost of a stage with its ops summed by kind and place over the layers."""
    modules = [(s, simulation.module(s.name)) for s in stage_specs(compilation.specs, stage, variant)]
    ops: dict[tuple[str, str], StageOp] = {}
    for spec, cost in modules:
        records = compilation.modules[spec.name].after("codegen").ops
        for op in cost.ops:
            record = records[op.index]
            label = spec.name if spec.kind is not Kind.BLOCK else op_label(record)
            found = ops.get((record.kind, label))
            ops[record.kind, label] = StageOp(
                record.kind,
                label,
                found.module if found else spec.name,
                found.record if found else record,
                found.index if found else op.index,
                _times(spec) + (found.times if found else 0),
                op.cycles * _times(spec) + (found.cycles if found else 0),
                op.ddr_read_bytes * _times(spec) + (found.read if found else 0),
                op.ddr_write_bytes * _times(spec) + (found.write if found else 0),
                op.bound,
                found.under if found and found.under else _op_name(records, op.under),
            )
    return StageCost(stage, compilation.options.cores, tuple(modules), tuple(ops.values()))


def _op_name(records: Sequence[OpRecord], index: int | None) -> str:
    return "" if index is None else f"{records[index].kind} {op_label(records[index])}"


def has_stage(specs: Sequence[ModuleSpec], stage: Stage) -> bool:
    """Whether the program has blocks of a stage."""
    return any(spec.stage is stage and spec.kind is Kind.BLOCK for spec in specs)


def variants(specs: Sequence[ModuleSpec]) -> list[ModuleSpec]:
    """The decode modules of layer 0, the longest cache first."""
    return [s for s in specs if s.stage is Stage.DECODE and s.kind is Kind.BLOCK and 0 in s.layers]


# -- table ---------------------------------------------------------------------------------------------------------


def op_columns(sort: str) -> list[Column]:
    """Columns of the op table; the one that it is sorted by is marked."""

    def title(name: str) -> str:
        return f"▾ {name}" if name == sort else name

    return [
        Column("op"),
        Column("where", cap=30, stretch=True, least=14),
        Column("×", right=True, rank=3),
        Column(title("cycles"), right=True),
        Column("share", right=True),
        Column(title("read"), right=True),
        Column(title("write"), right=True, rank=2),
        Column("bound", rank=1),
        Column("", rank=4, stretch=True),
    ]


def wanted_ops(cost: StageCost, wanted: str) -> tuple[StageOp, ...]:
    """The ops that have a text in their name or location; all for none."""
    text = wanted.lower()
    return tuple(op for op in cost.ops if text in f"{op.name} {op.label} {op.record.location}".lower())


def table_title(cost: StageCost, shown: Sequence[StageOp], wanted: str, sort: str) -> str:
    """What the op table lists: `43 ops by cycles`, `12 of 43 ops with 'mlp' by cycles · 61.2 % of the cycles`."""
    order = sort if sort != "program" else "program order"
    if not wanted:
        return f"{len(cost.ops)} ops by {order}"
    cycles = sum(op.cycles for op in shown)
    text = wanted.replace("[", r"\[")
    return (
        f"{len(shown)} of {len(cost.ops)} ops with '{text}' by {order} · {units.cycles(cycles)}, "
        f"{units.share(cycles, cost.cycles)} of the stage"
    )


def op_rows(cost: StageCost, sort: str, shown: Sequence[StageOp]) -> list[Row]:
    """Rows of the op table in the wanted order."""
    keys = {
        "cycles": lambda op: -op.cycles,
        "read": lambda op: -op.read,
        "write": lambda op: -op.write,
    }
    ops = sorted(shown, key=keys[sort]) if sort in keys else list(shown)
    top = max((op.cycles for op in ops), default=1)
    total = cost.cycles
    rows = []
    for op in ops:
        role = f"{op.bound}-bound"

        def drawn(width: int, op: StageOp = op, role: str = role) -> Line:
            return [(units.bar(op.cycles, top, width - 1), role)]

        rows.append(
            Row(
                (
                    (op.name, "heading"),
                    op.label,
                    (f"{op.times}", "muted"),
                    ("hidden", "muted") if op.hidden else units.count(op.cycles),
                    ("-", "faint") if op.hidden else (units.share(op.cycles, total), "muted"),
                    units.size(op.read) if op.read else ("-", "faint"),
                    units.size(op.write) if op.write else ("-", "faint"),
                    (op.bound, role),
                    drawn,
                ),
                (op.module, op.index),
            )
        )
    return rows


# -- the op under the cursor ---------------------------------------------------------------------------------------


def op_details(
    op: StageOp, cost: StageCost, row: OpTiming | None, options: CompileOptions, width: int
) -> list[list[Span]]:
    """Cost of an op, once and in all layers, in lines of at most `width` cells where they have parts to leave out.

    row: its engine time in one layer, where that is known.
    """
    lines: list[list[Span]] = [
        fitting(parts, width) for parts in (_cost_parts(op, cost), _moves_parts(op, options))
    ]
    lines.insert(1, labelled("bound", [(f"by {op.bound}", f"{op.bound}-bound")]))
    if row is not None:
        busy: list[Part] = [
            (0, labelled("engines", [(f"TIU {units.cycles(row.tiu_busy_cycles)}", "compute")])),
            (0, [(f"  GDMA {units.cycles(row.gdma_busy_cycles)}", "dma")]),
            (1, [("  busy", "muted")]),
            (2, [(f" on {cost.cores} cores" if cost.cores > 1 else "", "muted")]),
        ]
        lines.append(fitting(busy, width))
    if op.record.result_types:
        made = op.record.result_types[0]
        lines.append(labelled("makes", [(f"{units.shape(made.shape)} {made.dtype}", "activations")]))
    lines.append(labelled("first", [(f"{op.module}, op {op.index}", "muted")]))
    return lines


def _cost_parts(op: StageOp, cost: StageCost) -> list[Part]:
    if op.hidden:
        return [
            (0, labelled("cost", [("hidden", "bold")])),
            (1, [(": in the time of", "muted")]),
            (0, [(f" {op.under}", "")]),
        ]
    return [
        (0, labelled("cost", [(units.cycles(op.cycles / op.times), "bold")])),
        (0, [(f" × {op.times} = ", "muted"), (units.cycles(op.cycles), "bold")]),
        (1, [(f"  {units.share(op.cycles, cost.cycles)}", "muted")]),
        (2, [(" of the stage", "muted")]),
    ]


def _moves_parts(op: StageOp, options: CompileOptions) -> list[Part]:
    moved = op.read + op.write
    parts: list[Part] = [(0, labelled("moves", [(units.size(moved / op.times) if moved else "nothing", "")]))]
    if not moved or not op.cycles:
        return parts
    rate, peak = moved / op.cycles, options.ddr_bandwidth / options.chip.clock_hz
    if rate > peak:
        return [*parts, (1, [("  mostly while other ops take longer", "muted")])]
    return [
        *parts,
        (1, [(f"  {rate:.1f} bytes/c", "muted")]),
        (2, [(f", peak {peak:.1f}", "muted")]),
    ]


# -- head ----------------------------------------------------------------------------------------------------------


class StageHead(Picture):
    """Stage tabs, totals, engines and traffic."""

    DEFAULT_CSS = """
    StageHead { height: 5; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Show lines."""
        self._lines = lines
        self.refresh()

    def lines(self, width: int) -> Sequence[Line]:
        """The lines."""
        return self._lines


def fitting(parts: Sequence[Part], width: int) -> list[Span]:
    """The parts of a line that fit in a width, in their order; the last of the largest rank is left out first."""
    kept = list(enumerate(parts))
    while len(kept) > 1 and sum(width_of(line) for _, (_, line) in kept) > width:
        kept.remove(max(kept, key=lambda item: (item[1][0], item[0])))
    return [span for _, (_, line) in kept for span in line]


def tabs_line(
    available: Sequence[Stage],
    stage: Stage,
    choices: Sequence[ModuleSpec],
    variant: int,
    decode: DecodeCost,
    width: int,
) -> Line:
    """The stages, the chosen one marked; of decode the variant in the table, and how many tokens ran in it."""
    tabs: list[Span] = []
    for name in available:
        here = name is stage
        tabs += [(" ", ""), (f" {name} ", "key bold cursor-idle" if here else "muted")]
    parts: list[Part] = [(0, tabs)]
    if stage is Stage.DECODE and choices:
        chosen = choices[variant]
        parts.append((1, [(f"   {chosen.name}: cache of {chosen.cache} rows", "")]))
        parts.append((2, [(_ran_in(choices, chosen, decode), "muted")]))
        if len(choices) > 1:
            parts.append((3, [("   v next variant", "faint")]))
    return fitting(parts, width)


def _ran_in(choices: Sequence[ModuleSpec], chosen: ModuleSpec, decode: DecodeCost) -> str:
    """How many of the simulated tokens ran in a variant; nothing where that is all that there is."""
    ran = decode.steps.get(chosen.variant, 0)
    if ran == sum(decode.steps.values()):
        return f", all {ran} tokens" if ran > 1 else ""
    if ran:
        return f", {ran} of {sum(decode.steps.values())} tokens"
    used = ", ".join(spec.name for spec in choices if decode.steps.get(spec.variant))
    return f", not used: {used} ran"


def most_used(decode: DecodeCost) -> int:
    """The variant that most of the simulated tokens ran in."""
    return max(decode.steps, key=lambda variant: decode.steps[variant])


def run_line(cost: StageCost, simulation: Simulation, options: CompileOptions, width: int) -> Line:
    """What one run of the stage's modules takes; for decode also what a token needs besides."""
    seconds = cost.cycles / options.chip.clock_hz
    moved = cost.read + cost.write
    parts: list[Part] = [
        (0, [("  one run ", "muted"), (units.cycles(cost.cycles), "bold")]),
        (
            0,
            [
                (f" = {units.duration(seconds)}", "bold"),
                (f" at {options.chip.clock_hz / 1e9:g} GHz", "muted"),
            ],
        ),
        (0, [("   moves ", "muted"), (units.size(moved, 4), "bold")]),
    ]
    if cost.stage is not Stage.DECODE:
        rate = moved / seconds if seconds else 0
        parts.append((1, [(f" = {_of_peak(rate, options)}", "muted")]))
    elif simulation.decode.moved_rows_bytes:
        decode = simulation.decode
        parts.append((1, [(f" + new rows {units.size(decode.moved_rows_bytes)}", "")]))
        parts.append((2, [(f", {units.cycles(decode.moved_rows_cycles)}", "muted")]))
    return fitting(parts, width)


def _of_peak(rate: float, options: CompileOptions) -> str:
    """`55.3 % of 64 GB/s`."""
    return f"{units.share(rate, options.ddr_bandwidth)} of {options.ddr_bandwidth / 1e9:.3g} GB/s"


def speed_line(
    stage: Stage,
    simulation: Simulation,
    lengths: tuple[int, int] | None,
    options: CompileOptions,
    width: int,
) -> Line:
    """The answer of the stage: tokens/s and what a token takes, or the time of the prompt's part."""
    if stage is Stage.DECODE:
        return _decode_line(simulation, lengths, options, width)
    part = simulation.prefill if stage is Stage.PREFILL else simulation.prefill_kv
    first: Part = (
        1,
        [("   first token after ", "muted"), (units.duration(simulation.time_to_first_token), "bold")],
    )
    if not part.tokens:
        return fitting([(0, [(f"  {stage} does not run: the prompt is one segment", "muted")]), first], width)
    return fitting(
        [
            (0, [(f"  {stage} ", "muted"), (units.duration(part.seconds), "good bold")]),
            (0, [(f" for {part.tokens:,} tokens", "muted")]),
            (2, [(f" behind {part.history:,} rows" if part.history else "", "muted")]),
            first,
        ],
        width,
    )


def _decode_line(
    simulation: Simulation, lengths: tuple[int, int] | None, options: CompileOptions, width: int
) -> Line:
    decode = simulation.decode
    if lengths is None:
        what, where = f" behind {simulation.seq_length - 1:,} rows", ""
    elif not decode.tokens:
        what, where = f" for the token behind {decode.history:,} rows", ""
    else:
        what, where = f" for {decode.tokens:,} tokens", f" behind a prompt of {lengths[0]:,}"
    seconds = 1 / decode.tokens_per_s
    moved = decode.ddr_bytes_per_token
    return fitting(
        [
            (0, [(f"  {units.rate(decode.tokens_per_s)} tokens/s", "good bold")]),
            (2, [(what, "muted")]),
            (4, [(where, "muted")]),
            (0, [("   a token ", "muted"), (units.duration(seconds), "bold")]),
            (1, [(", ", "muted"), (units.size(moved, 4), "bold")]),
            (3, [(f" = {_of_peak(moved / seconds, options)}", "muted")]),
        ],
        width,
    )


def engines_line(cost: StageCost, width: int) -> Line:
    """How busy the two engines are, of all cores."""
    spans: list[Span] = [(f"  {cost.cores} cores", "bold")] if cost.cores > 1 else []
    available = cost.cores * cost.cycles
    room = max(6, (width - 50 - width_of(spans)) // 2)
    for name, busy, role in zip(("  TIU ", "   GDMA "), cost.busy, ("compute", "dma"), strict=True):
        filled = units.bar(busy, available, room)
        spans += [
            (name, "muted"),
            (filled, role),
            ("·" * (room - len(filled)), "faint"),
            (f" {units.share(busy, available)} busy", role),
        ]
    return spans


def traffic_line(breakdown: Mapping[str, float], width: int) -> Line:
    """Bytes of one decoded token by kind, as one bar and in words; what has no room is summed up."""
    parts = [(name, count) for name, count in breakdown.items() if count > 0]
    total = sum(count for _, count in parts)
    label: Line = [("  traffic ", "muted")]
    words = _traffic_words(parts)
    while len(parts) > 2 and width_of(label) + SHORTEST_BAR + width_of(words) > width - 2:
        smallest = sorted((part for part in parts if part[0] != REST), key=lambda part: part[1])[0]
        rest = smallest[1] + sum(count for name, count in parts if name == REST)
        parts = [*(part for part in parts if part[0] not in (smallest[0], REST)), (REST, rest)]
        words = _traffic_words(parts)
    room = max(SHORTEST_BAR, width - 2 - width_of(words) - width_of(label))
    return [*label, *_pieces(parts, total, room), *words]


def _traffic_words(parts: Sequence[tuple[str, float]]) -> list[Span]:
    words: list[Span] = []
    for name, count in parts:
        words.append((f" {units.TRAFFIC_NAMES.get(name, name)} ", CATEGORY_ROLES[name]))
        words.append((units.size(count), ""))
    return words


def _pieces(parts: Sequence[tuple[str, float]], total: float, room: int) -> Iterator[Span]:
    done, position = 0.0, 0
    for number, (name, count) in enumerate(parts):
        done += count
        end = round(done * room / total)
        yield "█▓"[number % 2] * (end - position), CATEGORY_ROLES[name]
        position = end
