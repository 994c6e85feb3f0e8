"""What the local-memory screens say about a group: names, lifetimes, slices, free space and cycles, as plain data.

Everything is worked out from a `GroupPlan` and the op records that it numbers; nothing here draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from app.widgets.documents import op_label
from app.widgets.lmem_words import DIMS, joined_kinds
from engine.group_cores import (
    COMPUTE_STAGE,
    LOAD_STAGE,
    STORE_STAGE,
    CoreShare,
    ItemCycles,
    core_cycles,
    on_core,
    pipeline_cycles,
    price_items,
    step_cycles,
    value_roots,
    whole_share,
)
from engine.passes.layer_group.plan import (
    BufferKind,
    GroupPlan,
    GroupType,
    Item,
    ItemKind,
    LayerGroupReport,
    LmemBuffer,
    Secs,
    Slices,
)
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip

ROLES: Mapping[BufferKind, str] = {
    BufferKind.WEIGHT: "weights",
    BufferKind.ACTIVATION: "activations",
    BufferKind.SCRATCH: "muted",
}
"""Colour of each kind of buffer (`app.theme`)."""

_VAGUE = frozenset({"heads", "act", "mul", "bias", "keys", "values", "scales", "zeros"})
"""Last parts of a name that say little without the part before."""


@dataclass(frozen=True)
class Part:
    """One rectangle of a buffer: steps `first` to `last`, counted from 0.

    A lifetime that goes around the end of the loop has two. goes_on: it continues at the first step, where the next
    pass of the loop begins. came_on: it is that continuation.
    """

    buffer: int
    first: int
    last: int
    goes_on: bool = False
    came_on: bool = False


def parts_of(index: int, buffer: LmemBuffer, steps: int) -> tuple[Part, ...]:
    """The rectangles of buffer number `index` in a loop of `steps`."""
    if buffer.first_step <= buffer.last_step:
        return (Part(index, buffer.first_step, buffer.last_step),)
    return (
        Part(index, buffer.first_step, steps - 1, goes_on=True),
        Part(index, 0, buffer.last_step, came_on=True),
    )


@dataclass(frozen=True)
class StepMemory:
    """Local memory in one time step, bytes per lane. top: end of the highest live buffer. holes: free ranges."""

    live: int
    top: int
    free: int
    largest_free: int
    holes: int

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that lies outside of the largest free range."""
        return 1 - self.largest_free / self.free if self.free else 0.0


@dataclass(frozen=True)
class StepCost:
    """Cycles of one time step on both engines."""

    compute: int
    transfer: int

    @property
    def cycles(self) -> int:
        """What the step takes: the slower engine."""
        return max(self.compute, self.transfer)

    @property
    def bound(self) -> str:
        """`TIU`, `DMA`, or nothing when neither works."""
        return "" if not self.cycles else "TIU" if self.compute >= self.transfer else "DMA"

    @property
    def slack(self) -> int:
        """Cycles for which the other engine waits."""
        return abs(self.compute - self.transfer)


@dataclass(frozen=True)
class GroupFacts:
    """One group, ready to be drawn as one core runs it.

    ops: the records that the plan numbers. number: of the group, from 0, of `count`. module: what the module is called.
    pricer: finds costs by item and slice when they are first needed (`price_items`), for a pipeline step or for a core
    that runs some of the slices; without it these show the costs of the whole loop. share: what the core runs; None in
    a program for one core.
    """

    plan: GroupPlan
    ops: Sequence[OpRecord]
    chip: Chip
    number: int = 0
    count: int = 1
    module: str = ""
    pricer: Callable[[], ItemCycles] | None = None
    share: CoreShare | None = None

    @cached_property
    def work(self) -> CoreShare:
        """The slices that are run, and the pipeline over them."""
        return self.share or whole_share(self.plan)

    @cached_property
    def item_cycles(self) -> ItemCycles:
        """Cycles of every item for every slice; empty when nobody can tell."""
        return self.pricer() if self.pricer is not None else {}

    # -- the group ----------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[OpRecord]:
        """The group's op records."""
        return [self.ops[index] for index in self.plan.records]

    @property
    def steps(self) -> int:
        """Number of time steps."""
        return len(self.plan.steps)

    @property
    def pipeline_steps(self) -> int:
        """How often the time steps run: once a slice, plus filling and draining."""
        return self.work.pipeline_steps

    @cached_property
    def cycles(self) -> int:
        """What the core takes for all its slices."""
        costs: ItemCycles = {} if self.work.whole or self.work.idle else self.item_cycles
        return core_cycles(self.plan, self.work, costs)

    @property
    def end(self) -> int:
        """Highest address to draw: of local memory, or of what lies behind its end."""
        return max([self.chip.lmem_bytes, *(b.address + b.nbytes for b in self.plan.buffers)])

    @cached_property
    def op_kinds(self) -> tuple[str, ...]:
        """Kinds of the ops that compute."""
        return tuple(record.kind for record in self.records if record.kind != "Reshape")

    @cached_property
    def kinds(self) -> str:
        """`MatMul + Add + RMSNorm`: the ops that compute, repeats counted."""
        return joined_kinds(self.op_kinds)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every rectangle, larger ones first, so that small ones are painted over them."""
        found = [p for i, b in enumerate(self.plan.buffers) for p in parts_of(i, b, self.steps)]
        return tuple(sorted(found, key=lambda p: -self.plan.buffers[p.buffer].nbytes))

    def live(self, index: int, step: int) -> bool:
        """Whether a buffer is live in a step."""
        return any(p.first <= step <= p.last for p in parts_of(index, self.plan.buffers[index], self.steps))

    def live_at(self, step: int) -> list[int]:
        """Buffers that are live in a step, by address."""
        live = [i for i in range(len(self.plan.buffers)) if self.live(i, step)]
        return sorted(live, key=lambda i: (self.plan.buffers[i].address, -self.plan.buffers[i].nbytes))

    # -- items --------------------------------------------------------------------------------------------------

    @cached_property
    def step_of(self) -> dict[int, int]:
        """Time step of every item."""
        return {
            item: number
            for number, step in enumerate(self.plan.steps)
            for item in (*step.computes, *step.transfers)
        }

    @cached_property
    def items(self) -> dict[int, Item]:
        """Items by id."""
        return {item.id: item for item in self.plan.items}

    @cached_property
    def roots(self) -> dict[str, str]:
        """The value in whose memory another value lies: reshapes, and results that replace an operand."""
        return value_roots(self.plan, self.ops)

    def root(self, value: str) -> str:
        """The value whose memory a value is."""
        return self.roots.get(value, value)

    @cached_property
    def makers(self) -> dict[str, OpRecord]:
        """The record that makes each value of the module."""
        return {value: record for record in self.ops for value in record.results}

    def moves(self, index: int) -> list[Item]:
        """Loads and stores of a buffer's value."""
        buffer = self.plan.buffers[index]
        if buffer.kind is BufferKind.SCRATCH:
            return []
        transfers = [item for item in self.plan.items if item.kind is not ItemKind.COMPUTE]
        return [item for item in transfers if self.root(item.value) == buffer.value]

    def writer(self, index: int) -> Item | None:
        """The load or the computation that fills a buffer."""
        return self.items.get(self.plan.buffers[index].item)

    def readers(self, index: int) -> list[Item]:
        """Computations that read a buffer."""
        buffer = self.plan.buffers[index]
        computes = [item for item in self.plan.items if item.kind is ItemKind.COMPUTE]
        if buffer.kind is BufferKind.SCRATCH:
            return [item for item in computes if item.id == buffer.item]
        return [
            item
            for item in computes
            if self.ops[item.record].kind != "Reshape"
            and buffer.value in {self.root(value) for value in self.ops[item.record].operands}
        ]

    # -- names --------------------------------------------------------------------------------------------------

    def leaf(self, index: int) -> str:
        """What people call a buffer's value, without the path: `q_proj`, `attention`, `mlp.act`."""
        return self._leaf_of(self.plan.buffers[index].value)

    def _leaf_of(self, value: str) -> str:
        maker = self.makers.get(value)
        if maker is None:
            return ""
        *path, last = op_label(maker).removeprefix("@").removesuffix(".weight").split(".")
        return f"{path[-1]}.{last}" if path and last in _VAGUE else last

    def kind_of(self, index: int) -> str:
        """The op that makes a buffer's value; nothing for weights and inputs."""
        maker = self.makers.get(self.plan.buffers[index].value)
        return "" if maker is None or maker.dialect == "top" else maker.kind

    def names(self, index: int) -> list[str]:
        """Names of a buffer, the longest first."""
        buffer, leaf, kind = self.plan.buffers[index], self.leaf(index), self.kind_of(index)
        if buffer.kind is BufferKind.SCRATCH:
            return [
                f"scratch of {buffer.value} {kind} {leaf}",
                f"scratch of {buffer.value} {kind}",
                f"scratch {kind}",
                "scratch",
                "tmp",
            ]
        if buffer.kind is BufferKind.WEIGHT and self._is_norm_weight(index):
            return [f"{buffer.value} gamma of {leaf}", f"{buffer.value} gamma", buffer.value]
        found = [f"{buffer.value} {leaf} · {kind}"] if kind else []
        short = [f"{buffer.value} {leaf.removesuffix('_proj')}"] if leaf.endswith("_proj") else []
        return [*found, f"{buffer.value} {leaf}".strip(), *short, buffer.value]

    def _is_norm_weight(self, index: int) -> bool:
        return any(self.ops[item.record].kind == "RMSNorm" for item in self.readers(index))

    def step_names(self, step: int) -> list[str]:
        """What a step computes, the longest first; `load` or `store` where it only moves data."""
        computed = [
            self.ops[self.items[item].record]
            for item in self.plan.steps[step].computes
            if self.ops[self.items[item].record].kind != "Reshape"
        ]
        if not computed:
            kinds = {self.items[item].kind.value for item in self.plan.steps[step].transfers}
            return [" + ".join(sorted(kinds)), "move"] if kinds else [""]
        first = computed[0]
        if len(computed) == 1:
            return [f"{first.kind} {self._leaf_of(first.results[0])}", first.kind]
        return [
            " + ".join(record.kind for record in computed),
            f"{first.kind} +{len(computed) - 1}",
            first.kind,
        ]

    # -- what is wrong ------------------------------------------------------------------------------------------

    @cached_property
    def problems(self) -> dict[int, str]:
        """Buffers that cannot be where they are, with the reason."""
        found: dict[int, str] = {}
        for index, buffer in enumerate(self.plan.buffers):
            end = buffer.address + buffer.nbytes
            if buffer.address < 0:
                found[index] = "has no address"
            elif end > self.chip.lmem_bytes:
                over = end - self.chip.lmem_bytes
                found[index] = f"ends {over:,} B behind the end of local memory ({self.chip.lmem_bytes:,} B)"
            elif buffer.address % self.chip.eu_bytes:
                found[index] = f"does not start at a multiple of {self.chip.eu_bytes} B"
        for first, second, step in self._overlaps():
            a, b = self.plan.buffers[first], self.plan.buffers[second]
            found.setdefault(first, f"overlaps {b.value} at {b.address:,} in step {step + 1}")
            found.setdefault(second, f"overlaps {a.value} at {a.address:,} in step {step + 1}")
        return found

    def _overlaps(self) -> Iterator[tuple[int, int, int]]:
        for step in range(self.steps):
            live = self.live_at(step)
            for position, first in enumerate(live):
                a = self.plan.buffers[first]
                for second in live[position + 1 :]:
                    b = self.plan.buffers[second]
                    if b.address < a.address + a.nbytes:
                        yield first, second, step

    # -- banks --------------------------------------------------------------------------------------------------

    def banks(self, index: int) -> range:
        """Banks in which a buffer lies."""
        buffer, size = self.plan.buffers[index], self.chip.bank_bytes
        return range(buffer.address // size, (buffer.address + max(buffer.nbytes, 1) - 1) // size + 1)

    def touched(self, index: int) -> tuple[set[int], set[int]]:
        """Steps in which the compute engine, and in which the DMA touches a buffer."""
        if self.plan.type is GroupType.STREAM:
            return self._touched_by_runs(index)
        writer = self.writer(index)
        computes = [*self.readers(index), *([writer] if writer and writer.kind is ItemKind.COMPUTE else [])]
        return (
            {self.step_of[item.id] for item in computes if item.id in self.step_of},
            {self.step_of[item.id] for item in self.moves(index) if item.id in self.step_of},
        )

    def _touched_by_runs(self, index: int) -> tuple[set[int], set[int]]:
        """The same where every item is one run on one piece, which lies in one of a value's buffers."""
        buffer = self.plan.buffers[index]
        computed: set[int] = set()
        moved: set[int] = set()
        for item in self.plan.items:
            step = self.step_of[item.id]
            if not buffer.first_step <= step <= buffer.last_step:
                continue
            if item.kind is not ItemKind.COMPUTE:
                moved |= {step} if self._is_in(item, buffer) else set()
            elif buffer.kind is BufferKind.SCRATCH:
                computed |= {step} if item.buffer_bytes and _holds(buffer, item.buffer_address) else set()
            elif self._is_in(item, buffer) or self._reads(item, buffer):
                computed.add(step)
        return computed, moved

    def _is_in(self, item: Item, buffer: LmemBuffer) -> bool:
        """Whether the piece that a run moves or makes lies in a buffer."""
        kept = buffer.kind is not BufferKind.SCRATCH and self.root(item.value) == buffer.value
        return kept and _holds(buffer, item.out_address)

    def _reads(self, item: Item, buffer: LmemBuffer) -> bool:
        """Whether a run reads a buffer: the piece of its value that was written last is there."""
        if buffer.value not in {self.root(value) for value in self.ops[item.record].operands}:
            return False
        step = self.step_of[item.id]
        written = [
            (self.step_of[other.id], other.out_address)
            for other in self.plan.items
            if self.root(other.value) == buffer.value
            and (self.step_of[other.id] < step or other.kind is ItemKind.COMPUTE)
            and self.step_of[other.id] <= step
            and other.kind is not ItemKind.STORE
        ]
        return bool(written) and _holds(buffer, max(written)[1])

    @cached_property
    def clashes(self) -> tuple[frozenset[int], ...]:
        """Per step, the banks that the compute engine and the DMA touch at the same time."""
        computed: list[set[int]] = [set() for _ in range(self.steps)]
        moved: list[set[int]] = [set() for _ in range(self.steps)]
        for index in range(len(self.plan.buffers)):
            by_compute, by_dma = self.touched(index)
            for step in by_compute:
                computed[step] |= set(self.banks(index))
            for step in by_dma:
                moved[step] |= set(self.banks(index))
        return tuple(frozenset(a & b) for a, b in zip(computed, moved, strict=True))

    # -- the pipeline -------------------------------------------------------------------------------------------

    def slice_at(self, stage: int, pipeline_step: int) -> int | None:
        """The slice of the group on which a stage works in a pipeline step."""
        return self.work.slice_at(stage, pipeline_step)

    def slice_of(self, part: Part, pipeline_step: int) -> int | None:
        """The slice whose data a rectangle holds in a pipeline step; None when it is not in use.

        A held value belongs to all slices; the one that is computed stands for it.
        """
        buffer, writer = self.plan.buffers[part.buffer], self.writer(part.buffer)
        stage = writer.stage if writer else COMPUTE_STAGE
        if buffer.held:
            (first, count), at = self.work.part_at(pipeline_step)
            first_use = stage + part.came_on
            if not first_use <= at <= count:
                return None
            return first + min(max(at - COMPUTE_STAGE, 0), count - 1)
        return self.slice_at(stage + part.came_on, pipeline_step)

    def active(self, index: int, step: int, pipeline_step: int | None) -> bool:
        """Whether a buffer holds data in a step: of any slice, or in one pipeline step."""
        for part in parts_of(index, self.plan.buffers[index], self.steps):
            if part.first <= step <= part.last:
                return pipeline_step is None or self.slice_of(part, pipeline_step) is not None
        return False

    def memory(self, step: int, pipeline_step: int | None = None) -> StepMemory:
        """Live and free bytes of a step."""
        ranges = sorted(
            (self.plan.buffers[i].address, self.plan.buffers[i].address + self.plan.buffers[i].nbytes)
            for i in range(len(self.plan.buffers))
            if self.active(i, step, pipeline_step)
        )
        gaps, live, at = [], 0, 0
        for start, end in ranges:
            if start > at:
                gaps.append(start - at)
            live += max(0, end - max(at, start))
            at = max(at, end)
        if at < self.chip.lmem_bytes:
            gaps.append(self.chip.lmem_bytes - at)
        return StepMemory(live, at, sum(gaps), max(gaps, default=0), len(gaps))

    def cost(self, step: int, pipeline_step: int | None = None) -> StepCost:
        """Cycles of a step: of the largest slice with all its loads, or in one pipeline step."""
        priced = pipeline_step is not None or not self.work.whole
        costs: ItemCycles = self.item_cycles if priced else {}
        return StepCost(*step_cycles(self.plan, self.work, costs, step, pipeline_step))

    def pipeline_costs(self) -> list[int]:
        """Cycles of every pipeline step."""
        return pipeline_cycles(self.plan, self.work, self.item_cycles)

    def runs(self, item: Item, pipeline_step: int | None) -> bool:
        """Whether an item does something in a pipeline step."""
        return pipeline_step is None or self.work.runs(item, pipeline_step)

    def pipeline_text(self, pipeline_step: int | None) -> str:
        """What a pipeline step does, for a title."""
        if pipeline_step is None:
            return "all slices" if self.plan.secs.slices > 1 else "the one slice"
        words = {LOAD_STAGE: "loads", COMPUTE_STAGE: "computes", STORE_STAGE: "stores"}
        doing = [
            f"{word} {number}"
            for word, number in ((w, self.slice_at(s, pipeline_step)) for s, w in words.items())
            if number is not None
        ]
        return f"pipeline step {pipeline_step + 1}/{self.pipeline_steps}, slices: {', '.join(doing)}"

    def bound_share(self) -> tuple[str, float]:
        """The engine that holds up most of the loop's cycles, and its share of them."""
        costs = [self.cost(step) for step in range(self.steps)]
        total = sum(cost.cycles for cost in costs)
        by_dma = sum(cost.cycles for cost in costs if cost.bound == "DMA")
        if not total:
            return "", 0.0
        return ("DMA", by_dma / total) if 2 * by_dma >= total else ("TIU", 1 - by_dma / total)


def facts_of(
    report: LayerGroupReport,
    ops: Sequence[OpRecord],
    chip: Chip,
    module: str,
    shares: Sequence[Sequence[CoreShare]] = (),
    core: int = 0,
) -> list[GroupFacts]:
    """The groups of a module as a core runs them. shares: `core_shares`; none for a program for one core."""
    found = []
    for number, plan in enumerate(report.groups):
        share = shares[number][core] if shares else None
        shown = on_core(plan, share) if share else plan
        pricer = partial(price_items, plan, ops, chip)
        found.append(GroupFacts(shown, ops, chip, number, len(report.groups), module, pricer, share))
    return found


def _holds(buffer: LmemBuffer, address: int) -> bool:
    return buffer.address <= address < buffer.address + max(1, buffer.nbytes)


def slice_text(slices: Slices, secs: Secs, number: int | None) -> str:
    """Which part of a value a slice is: `c 64..127 of 128, h 0..575`; without a number, how long slices are."""
    numbers = _numbers(secs, number or 0)
    found = []
    for dim, starts, lengths, at in zip(DIMS, slices.starts, slices.lengths, numbers, strict=True):
        whole = sum(lengths)
        if len(starts) == 1:
            if whole > 1:
                found.append(f"{dim} 0..{whole - 1}")
        elif number is None:
            found.append(f"{dim} {max(lengths):,} of {whole:,}")
        else:
            start, length = starts[at], lengths[at]
            found.append(f"{dim} {start}..{start + length - 1} of {whole}")
    return ", ".join(found)


def _numbers(secs: Secs, index: int) -> tuple[int, ...]:
    from engine.passes.layer_group.slicing import number_of

    return number_of(secs, index).as_tuple()
