"""What the timeline says about instructions: names, colours, orders and searches over the lanes of a module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import isnan

import numpy as np

from app import units
from app.widgets.documents import short_location
from app.widgets.lines import Line, Span
from app.widgets.timeline_track import NOBODY, Names, Track, Window, accumulated
from engine.lanes import Lanes, OpSpan
from engine.tpu.isa import Direction, Engine, Opcode

FILLS = (
    "weights.1",
    "kv.1",
    "activations.1",
    "muted.1",
    "dma.1",
    "compute.1",
    "compute.0",
    "muted.0",
    "memory-bound.0",
    "compute-bound.0",
)
"""Fills of bars: what a load brings in, stores, kinds of compute, and ops by what they wait for."""
_WEIGHTS, _KV, _ACTIVATIONS, _TABLES, _STORE, _PRODUCT, _VECTOR, _LAYOUT, _MEMORY, _COMPUTE = range(
    len(FILLS)
)
_LOADS = {"weights": _WEIGHTS, "kv_cache": _KV, "activations": _ACTIVATIONS, "other": _TABLES}

LEGEND = (
    (_WEIGHTS, "weights"),
    (_KV, "KV"),
    (_ACTIVATIONS, "activations"),
    (_TABLES, "tables"),
    (_STORE, "store"),
    (_PRODUCT, "product"),
    (_VECTOR, "vector"),
    (_LAYOUT, "layout"),
)
_LAYOUTS = (
    Opcode.COPY,
    Opcode.LANE_BROADCAST,
    Opcode.STATIC_BROADCAST,
    Opcode.CW_TRANSPOSE,
    Opcode.WC_TRANSPOSE,
)
"""Kinds that move numbers inside of local memory and compute none."""

LABEL = 8
"""Cells of the labels in the details."""


class TimelineFacts:
    """Lanes of a module, prepared for drawing. An instruction is an index in the columns of `lanes`."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.queues = [(core, engine) for core in range(lanes.cores) for engine in (Engine.GDMA, Engine.TIU)]
        """Lanes from top to bottom."""
        self.rows = [lanes.rows(core, engine) for core, engine in self.queues]
        self.place = np.zeros(len(lanes), np.int64)
        """Of each instruction in its lane."""
        for rows in self.rows:
            self.place[rows] = np.arange(len(rows))
        self.order = np.lexsort((lanes.engine, lanes.start))
        """Instructions of all lanes by start."""
        self.rank = np.empty(len(lanes), np.int64)
        self.rank[self.order] = np.arange(len(lanes))
        self._core_orders: dict[int, np.ndarray] = {}
        self.fill = self._fills()
        self.tracks = [self._track(rows) for rows in self.rows]
        self.ops = self._op_track()
        self.groups = self._group_track()
        self.bytes_moved = [
            accumulated(lanes.start[rows], lanes.end[rows], lanes.nbytes[rows])
            for (_, engine), rows in zip(self.queues, self.rows, strict=True)
            if engine is Engine.GDMA
        ]

    def core_order(self, core: int) -> np.ndarray:
        """Ranks of a core's instructions, in order."""
        if core not in self._core_orders:
            self._core_orders[core] = np.sort(self.rank[self.lanes.core == core])
        return self._core_orders[core]

    # -- names ------------------------------------------------------------------------------------------------------

    def op_label(self, op: int) -> str:
        """What people call the op at a record: `self_attn.q_proj`."""
        return short_location(self.lanes.records[op].location)

    def tensor_label(self, index: int) -> str:
        """The tensor that an instruction moves, without what all of a block's names share; "" for none."""
        tensor = self.lanes.moved(index)
        return "" if tensor is None else short_location(tensor.name)

    def kind(self, index: int) -> str:
        """`MM2_NN`, `TENSOR load`."""
        way = self.lanes.direction(index).replace("ddr_to_ddr", "move")
        return f"{self.lanes.kind(index)} {way}".strip()

    def instruction(self, index: int) -> str:
        """An instruction in a few words: `GDMA 17 TENSOR load of self_attn.q_proj.weight`."""
        engine = Engine(int(self.lanes.engine[index])).name
        what = self.tensor_label(index) or self.op_label(int(self.lanes.op[index]))
        return f"{engine} {int(self.lanes.number[index])} {self.kind(index)} of {what}"

    def queue(self, index: int) -> int:
        """The lane of an instruction."""
        return self.queues.index((int(self.lanes.core[index]), Engine(int(self.lanes.engine[index]))))

    def lane_name(self, queue: int) -> str:
        """`GDMA`, with the core where there are several."""
        core, engine = self.queues[queue]
        return f"{engine.name} {core}" if self.lanes.cores > 1 else engine.name

    # -- tracks -----------------------------------------------------------------------------------------------------

    def _fills(self) -> np.ndarray:
        lanes = self.lanes
        loads = np.array([_LOADS[tensor.data] for tensor in lanes.tensors] + [_ACTIVATIONS])[lanes.tensor]
        opcode = lanes.program["opcode"]
        computes = np.where(np.isin(opcode, _LAYOUTS), _LAYOUT, _VECTOR)
        computes = np.where(lanes.is_product, _PRODUCT, computes)
        moves = np.where(lanes.program["direction"] == Direction.LOAD, loads, _STORE)
        return np.where(lanes.engine == Engine.GDMA, moves, computes)

    def _track(self, rows: np.ndarray) -> Track:
        lanes = self.lanes
        run = lanes.op[rows].astype(np.int64) * (len(lanes.tensors) + 1) + lanes.tensor[rows]

        def bar_names(bar: int) -> Sequence[str]:
            index = int(rows[bar])
            tensor = self.tensor_label(index)
            if not tensor:
                return [self.lanes.kind(index)]
            arrow = "↑" if self.fill[index] == _STORE else ""
            names = name_parts(tensor)
            return [arrow + name for name in names[1:] or names]

        def run_names(bar: int) -> Sequence[str]:
            index = int(rows[bar])
            return name_parts(self.tensor_label(index) or self.op_label(int(lanes.op[index])))

        return Track(
            lanes.start[rows], lanes.end[rows], self.fill[rows], FILLS, changes(run), bar_names, run_names
        )

    def _op_track(self) -> Track:
        spans = self.lanes.spans

        def names(bar: int) -> Sequence[str]:
            op = spans[bar].index
            kind = self.lanes.records[op].kind
            return [f"{kind} {self.op_label(op)}", *name_parts(self.op_label(op)), kind]

        ops = np.array([span.index for span in spans], np.int64)
        return self._span_track(spans, changes(ops), names)

    def _group_track(self) -> Track:
        """Layer groups; ops that are in none leave a gap."""
        records, numbers = self.lanes.records, {parent: n for n, parent in enumerate(self.group_records)}
        spans = [span for span in self.lanes.spans if records[span.index].parent is not None]
        parents = [int(records[span.index].parent or 0) for span in spans]

        def names(bar: int) -> Sequence[str]:
            number, kinds = numbers[parents[bar]], " + ".join(_group_kinds(self.lanes, parents[bar]))
            return [
                f"group {number}: {kinds}",
                f"{number}: {kinds}",
                kinds,
                f"group {number}",
                f"g{number}",
                str(number),
            ]

        return self._span_track(spans, changes(np.array(parents, np.int64)), names)

    @cached_property
    def group_records(self) -> list[int]:
        """Records of the layer groups."""
        parents = (record.parent for record in self.lanes.records)
        return list(dict.fromkeys(parent for parent in parents if parent is not None))

    def _span_track(self, spans: Sequence[OpSpan], run: np.ndarray, names: Names) -> Track:
        start = np.array([span.start for span in spans], np.int64)
        end = np.array([span.end for span in spans], np.int64)
        bounds = [self.lanes.bounds[span.index] for span in spans]
        fill = np.array([_MEMORY if bound == "memory" else _COMPUTE for bound in bounds], np.int64)
        return Track(start, end, fill, FILLS, run, names, names)

    def rate(self, window: Window) -> np.ndarray:
        """DDR bytes per cycle of all cores in each cell: float64 [width]."""
        edges = window.edges
        return np.asarray(
            sum(np.diff(np.interp(edges, *points)) for points in self.bytes_moved) / window.scale
        )

    @property
    def peak(self) -> float:
        """DDR bytes per cycle of all cores at the most."""
        return self.lanes.cores * self.lanes.chip.ddr_bandwidth / self.lanes.chip.clock_hz

    # -- moving -----------------------------------------------------------------------------------------------------

    def step(self, index: int, amount: int) -> int:
        """Another instruction of the same lane."""
        rows = self.rows[self.queue(index)]
        return int(rows[min(max(int(self.place[index]) + amount, 0), len(rows) - 1)])

    def step_op(self, index: int, direction: int) -> int:
        """The first instruction of the lane's next op, or of this one, or of the one before."""
        rows = self.rows[self.queue(index)]
        ops, at = self.lanes.op[rows], int(self.place[index])
        firsts = np.flatnonzero(np.diff(ops, prepend=ops[0] - 1))
        if direction > 0:
            later = firsts[firsts > at]
            return int(rows[later[0]]) if len(later) else int(rows[-1])
        earlier = firsts[firsts < at]
        return int(rows[earlier[-1]]) if len(earlier) else int(rows[0])

    def other_lane(self, index: int, amount: int) -> int:
        """What runs, at the time of an instruction, in the lane below or above; itself where there is none."""
        queue = self.queue(index)
        wanted = range(queue + 1, len(self.rows)) if amount > 0 else range(queue - 1, -1, -1)
        found = next((queue for queue in wanted if len(self.rows[queue])), None)
        if found is None:
            return index
        middle = (int(self.lanes.start[index]) + int(self.lanes.end[index])) / 2
        return int(self.rows[found][self.tracks[found].at(middle)])

    def at(self, cycle: float, queue: int) -> int:
        """The instruction that runs in a cycle, or the nearest one."""
        place = self.tracks[queue].at(cycle)
        return NOBODY if place == NOBODY else int(self.rows[queue][place])

    def first_of(self, op: int) -> int:
        """The first instruction of an op; of its group where it has none; else the first of all."""
        for mine in (self.lanes.op == op, np.isin(self.lanes.op, self._inside(op))):
            found = np.flatnonzero(mine)
            if len(found):
                return int(found[np.argmin(self.rank[found])])
        return int(self.order[0]) if len(self.order) else NOBODY

    def _inside(self, op: int) -> list[int]:
        return [index for index, record in enumerate(self.lanes.records) if record.parent == op]

    def op_window(self, index: int) -> tuple[int, int]:
        """First cycle of the op of an instruction, and the first behind it."""
        mine = self.lanes.op == self.lanes.op[index]
        return int(self.lanes.start[mine].min()), int(self.lanes.end[mine].max())

    # -- searching --------------------------------------------------------------------------------------------------

    @cached_property
    def _firsts(self) -> tuple[np.ndarray, list[str]]:
        """The first instruction of each pair of op and tensor in time order, and what a search finds in it."""
        lanes = self.lanes
        key = lanes.op.astype(np.int64) * (len(lanes.tensors) + 1) + lanes.tensor
        _, found = np.unique(key[self.order], return_index=True)
        firsts = self.order[np.sort(found)]
        texts = []
        for index in firsts.tolist():
            record = lanes.records[int(lanes.op[index])]
            texts.append(f"{record.name} {record.location} {self.tensor_label(index)}".lower())
        return firsts, texts

    def matches(self, text: str) -> np.ndarray:
        """Instructions with which an op or tensor begins that has the text in its name, by start."""
        firsts, texts = self._firsts
        wanted = text.lower()
        return firsts[[wanted in found for found in texts]] if len(firsts) else firsts

    def next_match(self, text: str, index: int, direction: int, here: bool = False) -> int:
        """The next match from an instruction on, going around; NOBODY for none. here: it may be the one itself."""
        found = self.matches(text)
        if not len(found):
            return NOBODY
        ranks, rank = self.rank[found], int(self.rank[index])
        if direction > 0:
            at = int(np.searchsorted(ranks, rank, side="left" if here else "right"))
            return int(found[at % len(found)])
        return int(found[int(np.searchsorted(ranks, rank, side="left")) - 1])

    # -- words ------------------------------------------------------------------------------------------------------

    def details(self, index: int) -> list[list[Span]]:
        """Everything about an instruction in five lines."""
        lanes = self.lanes
        record = lanes.records[int(lanes.op[index])]
        role = FILLS[int(self.fill[index])].partition(".")[0]
        start, end = int(lanes.start[index]), int(lanes.end[index])
        step = int(lanes.program["step"][index])
        head: list[Span] = [
            (f"{self.lane_name(self.queue(index)):<{LABEL}}", f"{role} bold"),
            (self.kind(index), "heading bold"),
            (f"   number {int(lanes.number[index]):,} of {len(self.rows[self.queue(index)]):,}", "muted"),
            (f"   step {step}" if step else "", "muted"),
        ]
        value = f" {record.results[0]}" if record.results else ""
        bound = lanes.bounds[int(lanes.op[index])]
        op: list[Span] = [
            (f"{'op':<{LABEL}}", "muted"),
            (f"{record.name}{value}", "heading"),
            (f"  {self.op_label(int(lanes.op[index]))}", ""),
            (f"   bound by {bound}", f"{bound}-bound"),
        ]
        time: list[Span] = [
            (f"{'cycles':<{LABEL}}", "muted"),
            (f"{start:,} .. {end:,}", "heading"),
            (f"   {end - start:,} cycle{'' if end - start == 1 else 's'}", "bold"),
            *self._speed(index),
        ]
        return [head, op, self._tensor_line(index), time, self._wait_line(index)]

    def _tensor_line(self, index: int) -> list[Span]:
        lanes, tensor = self.lanes, self.lanes.moved(index)
        result = lanes.program["result"][index]
        if tensor is None:
            shape = "×".join(str(int(n)) for n in result["shape"])
            return [(f"{'makes':<{LABEL}}", "muted"), (shape, ""), (" in local memory", "muted")]
        role = FILLS[int(self.fill[index])].partition(".")[0]
        return [
            (f"{'tensor':<{LABEL}}", "muted"),
            (self.tensor_label(index), role if role != "dma" else _DATA_ROLES[tensor.data]),
            (f"  {tensor.value}  ", "muted"),
            (f"{int(lanes.nbytes[index]):,} bytes", "bold"),
        ]

    def _speed(self, index: int) -> list[Span]:
        lanes = self.lanes
        rate, part = float(lanes.rate[index]), float(lanes.utilisation[index])
        share = "" if isnan(part) else f" = {100 * part:.0f} % of the peak"
        if lanes.engine[index] == Engine.GDMA:
            return [(f"   {rate:.1f} B/c", "dma bold"), (share, "muted")]
        what = "multiply-adds" if lanes.is_product[index] else "elements"
        return [(f"   {units.count(round(rate))} {what}/c", "compute bold"), (share, "muted")]

    def _wait_line(self, index: int) -> list[Span]:
        lanes = self.lanes
        label: Span = (f"{'waits':<{LABEL}}", "muted")
        needs, idle = int(lanes.needs[index]), int(lanes.idle[index])
        if needs == NOBODY:
            return [label, ("for nothing", "muted")]
        if idle:
            return [
                label,
                (f"{idle:,} cycles idle", "changed bold"),
                (" for ", "muted"),
                (self.instruction(needs), ""),
            ]
        early = int(lanes.start[index]) - int(lanes.end[needs])
        return [
            label,
            ("no", "good"),
            (f"; {self.instruction(needs)} ended {units.cycles(early)} before", "muted"),
        ]

    def table_line(self, index: int) -> list[Span | tuple[str, str]]:
        """An instruction as a row under `TABLE_HEAD`; the names are last."""
        lanes = self.lanes
        role = "dma" if lanes.engine[index] == Engine.GDMA else "compute"
        idle, part = int(lanes.idle[index]), float(lanes.utilisation[index])
        fill = FILLS[int(self.fill[index])].partition(".")[0]
        nbytes = int(lanes.nbytes[index])
        return [
            (f"{int(lanes.start[index]):>11,}", ""),
            (f"{int(lanes.length[index]):>9,} ", ""),
            (f"{Engine(int(lanes.engine[index])).name:<5}", role),
            (f"{self.kind(index):<17}", "heading"),
            (f"{units.size(nbytes) if nbytes else '':>8}", ""),
            (f"{'' if isnan(part) else f'{100 * part:.0f} %':>6}", "muted"),
            (f"{f'{idle:,}' if idle else '':>9}  ", "changed"),
            (f"{self.op_label(int(lanes.op[index]))}", ""),
            (f"  {self.tensor_label(index)}", fill),
        ]


TABLE_HEAD: Line = [
    (
        f"{'start':>11}{'cycles':>9} {'on':<5}{'instruction':<17}{'bytes':>8}{'use':>6}{'idle':>9}  op, tensor",
        "muted",
    )
]
_DATA_ROLES = {"weights": "weights", "kv_cache": "kv", "activations": "activations", "other": "muted"}


def changes(key: np.ndarray) -> np.ndarray:
    """Numbers that grow by one wherever a column changes."""
    return np.cumsum(np.diff(key, prepend=key[:1] - 1) != 0)


def name_parts(name: str) -> list[str]:
    """A dotted name and shorter forms of it: `self_attn.q_proj.weight`, `q_proj.weight`, `q_proj`."""
    parts = name.split(".")
    found = [".".join(parts[at:]) for at in range(len(parts))]
    short = [part for part in parts if part != "weight"]
    if len(short) < len(parts):
        found = found[: max(1, len(found) - 2)] + [".".join(short[at:]) for at in range(1, len(short))]
        found += short[-1:] if parts[-1] == "weight" else []
    return list(dict.fromkeys(found))


def _group_kinds(lanes: Lanes, parent: int) -> list[str]:
    """Kinds of the ops in a group that compute."""
    inside = (record for record in lanes.records if record.parent == parent)
    return [record.kind for record in inside if record.kind not in ("Load", "Store", "Yield")]


def cycle_of(text: str) -> int | None:
    """A cycle as people write it: `352100`, `352,100`, `352k`, `1.2 Mc`; None for other texts."""
    cleaned = text.lower().replace(",", "").replace(" ", "").removesuffix("c")
    factor = {"k": 1e3, "m": 1e6}.get(cleaned[-1:], 1)
    try:
        return int(float(cleaned.rstrip("km")) * factor)
    except (ValueError, OverflowError):
        return None
