"""What a simulation says about one stage: totals, traffic and ops, as data for bars and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app import units
from app.widgets.bars import Picture
from app.widgets.documents import op_label
from app.widgets.lines import Line, Span
from app.widgets.table import Column, Row, width_of
from engine.compiler import Compilation
from engine.snapshot import OpRecord
from engine.stages import Kind, ModuleSpec, Stage

if TYPE_CHECKING:
    from engine.sim.throughput import ModuleCost, Simulation

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
}
CATEGORY_NAMES = {"kv_cache": "KV", "other": "tables"}


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


@dataclass(frozen=True)
class StageCost:
    """One run of a stage: all of its modules in all their layers."""

    stage: Stage
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
        """Cycles in which the TIU and the GDMA work."""
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
            )
    return StageCost(stage, tuple(modules), tuple(ops.values()))


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
        Column("where", cap=30),
        Column("×", right=True, rank=1),
        Column(title("cycles"), right=True),
        Column("share", right=True),
        Column(title("read"), right=True),
        Column(title("write"), right=True, rank=2),
        Column("bound", rank=1),
        Column("", rank=3, stretch=True),
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
                    units.count(op.cycles),
                    (units.share(op.cycles, total), "muted"),
                    units.size(op.read) if op.read else ("-", "faint"),
                    units.size(op.write) if op.write else ("-", "faint"),
                    (op.bound, role),
                    drawn,
                ),
                (op.module, op.index),
            )
        )
    return rows


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


def tabs_line(available: Sequence[Stage], stage: Stage, variant: ModuleSpec | None, several: bool) -> Line:
    """The stages, the chosen one marked."""
    spans: list[Span] = []
    for name in available:
        here = name is stage
        spans += [(" ", ""), (f" {name} ", "key bold cursor-idle" if here else "muted")]
    if stage is Stage.DECODE and variant is not None:
        spans.append((f"   {variant.name}: cache of {variant.cache} rows", ""))
        if several:
            spans.append(("  v next variant", "faint"))
    return spans


def total_line(cost: StageCost, simulation: Simulation, compilation: Compilation) -> Line:
    """What one run of the stage takes."""
    chip = compilation.options.chip
    seconds = cost.cycles / chip.clock_hz
    moved = cost.read + cost.write
    spans: list[Span] = [
        ("  one run ", "muted"),
        (units.cycles(cost.cycles), "bold"),
        (f" = {units.duration(seconds)}", "bold"),
        (f" at {chip.clock_hz / 1e9:g} GHz", "muted"),
        ("   moves ", "muted"),
        (units.size(moved, 4), "bold"),
        (f" = {units.share(moved / seconds if seconds else 0, chip.ddr_bandwidth)}", ""),
        (f" of {chip.ddr_bandwidth / 1e9:.1f} GB/s", "muted"),
    ]
    return spans


def speed_line(stage: Stage, simulation: Simulation, lengths: tuple[int, int] | None) -> Line:
    """Speeds for the lengths that were simulated."""
    decode = simulation.decode
    if stage is Stage.DECODE:
        if lengths is None:
            what = f"behind {simulation.seq_length - 1} rows"
        else:
            what = f"{decode.tokens} tokens behind a prompt of {lengths[0]}"
        return [
            ("  decode ", "muted"),
            (f"{decode.tokens_per_s:.1f} tokens/s", "good bold"),
            (f" {what}", "muted"),
            ("   per token ", "muted"),
            (units.size(decode.ddr_bytes_per_token, 4), "bold"),
            ("   bandwidth ", "muted"),
            (f"{100 * decode.utilisation_traffic:.0f} %", ""),
        ]
    part = simulation.prefill if stage is Stage.PREFILL else simulation.prefill_kv
    return [
        (f"  {stage} ", "muted"),
        (units.duration(part.seconds), "good bold"),
        (f" for {part.tokens} tokens", "muted"),
        (f" behind {part.history} rows" if part.history else "", "muted"),
        ("   first token after ", "muted"),
        (units.duration(simulation.time_to_first_token), "bold"),
    ]


def engines_line(cost: StageCost, width: int) -> Line:
    """How busy the two engines are."""
    tiu, gdma = cost.busy
    room = max(6, (width - 50) // 2)
    spans: list[Span] = []
    for name, busy, role in (("  TIU ", tiu, "compute"), ("   GDMA ", gdma, "dma")):
        filled = units.bar(busy, cost.cycles, room)
        spans += [
            (name, "muted"),
            (filled, role),
            ("·" * (room - len(filled)), "faint"),
            (f" {units.share(busy, cost.cycles)} busy", role),
        ]
    return spans


def traffic_line(breakdown: Mapping[str, float], width: int) -> Line:
    """Bytes of one decoded token by kind, as one bar and in words."""
    parts = [(name, count) for name, count in breakdown.items() if count > 0]
    total = sum(count for _, count in parts)
    words: list[Span] = []
    for name, count in parts:
        words.append((f" {CATEGORY_NAMES.get(name, name)} ", CATEGORY_ROLES[name]))
        words.append((units.size(count), ""))
    room = max(8, width - width_of(words) - 12)
    bar = list(_pieces(parts, total, room))
    return [("  traffic ", "muted"), *bar, *words]


def _pieces(parts: Sequence[tuple[str, float]], total: float, room: int) -> Iterator[Span]:
    done, position = 0.0, 0
    for number, (name, count) in enumerate(parts):
        done += count
        end = round(done * room / total)
        yield "█▓"[number % 2] * (end - position), CATEGORY_ROLES[name]
        position = end
