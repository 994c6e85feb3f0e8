"""DDR memory of a module: arenas, the allocator that reuses addresses by liveness, and the checker of the contract.

Arenas lie one behind the other from the chip's DDR base: coeff (weights), io (inputs, outputs, KV regions), neuron
(everything else, reused). Every tensor starts on the chip's alignment (4 KiB), but for the rows appended to a KV
region,
which follow the history: `history + C * row bytes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from engine.errors import CompileError
from engine.options import CompileOptions
from engine.snapshot import OpRecord, TensorType
from engine.stages import Kind, ModuleSpec, kv_rows
from engine.tpu.cores import spans_of
from engine.tpu.emit import align_up
from engine.tpu.isa import Arena


@dataclass(frozen=True)
class Buffer:
    """A piece of memory that lives from `first` to `last` (positions in the program, both inclusive)."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Placement:
    """A buffer with its byte offset in an arena."""

    buffer: Buffer
    offset: int

    @property
    def end(self) -> int:
        """First byte behind the buffer."""
        return self.offset + self.buffer.nbytes


def allocate(buffers: Iterable[Buffer], alignment: int) -> dict[str, Placement]:
    """Place buffers so that no two that live at the same time overlap.

    First fit in several orders (largest first, longest-lived area first, by first use), of which the one that needs the
    least memory is kept. Raises CompileError when a name comes twice.
    """
    listed = list(buffers)
    for name, count in Counter(buffer.name for buffer in listed).items():
        if count > 1:
            raise CompileError(f"buffer {name} is listed twice")
    tried = [_first_fit(sorted(listed, key=order), alignment) for order in _ORDERS]
    return min(tried, key=lambda placed: arena_size(placed.values(), alignment))


_ORDERS: tuple[Callable[[Buffer], tuple[int, int, str]], ...] = (
    lambda b: (b.first, -b.nbytes, b.name),
    lambda b: (-b.nbytes, b.first, b.name),
    lambda b: (-b.nbytes * (b.last - b.first + 1), b.first, b.name),
)


def _first_fit(buffers: Iterable[Buffer], alignment: int) -> dict[str, Placement]:
    placed: dict[str, Placement] = {}
    for buffer in buffers:
        alive = sorted(
            (p for p in placed.values() if p.buffer.first <= buffer.last and buffer.first <= p.buffer.last),
            key=lambda p: p.offset,
        )
        offset = 0
        for other in alive:
            if offset + buffer.nbytes <= other.offset:
                break
            offset = max(offset, align_up(other.end, alignment))
        placed[buffer.name] = Placement(buffer, offset)
    return placed


def arena_size(placements: Iterable[Placement], alignment: int) -> int:
    """Bytes of the arena that holds the placements."""
    return align_up(max((p.end for p in placements), default=0), alignment)


def check_no_overlap(placements: Sequence[Placement]) -> None:
    """Raise CompileError naming two buffers that overlap while both live."""
    ordered = sorted(placements, key=lambda p: p.offset)
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if other.offset >= one.end:
                break
            a, b = one.buffer, other.buffer
            if a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes:
                raise CompileError(
                    f"{a.name} (bytes {one.offset} to {one.end - 1}, live {a.first} to {a.last}) overlaps "
                    f"{b.name} (bytes {other.offset} to {other.end - 1}, live {b.first} to {b.last})"
                )


# -- KV regions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KvRegion:
    """One layer's K and V regions, as offsets into the layer's io arena (bytes), the same in every module."""

    k_offset: int
    v_offset: int
    row_bytes: int
    rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of both regions."""
        return self.v_offset + (self.v_offset - self.k_offset)


def kv_region(spec: ModuleSpec, options: CompileOptions) -> KvRegion | None:
    """The KV regions of a block's io arena: K first, V behind it, each S + max(1, L) rows; None outside of blocks."""
    if spec.kind is not Kind.BLOCK:
        return None
    new = next((t.type for t in spec.outputs if t.name == "k_cache"), None)
    if new is None:
        return None
    row_bytes = new.nbytes // new.shape[1]
    rows = kv_rows(options)
    size = align_up(rows * row_bytes, options.chip.alignment)
    return KvRegion(0, size, row_bytes, rows)


# -- layout of a compiled module -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArenaLayout:
    """Base address and size (bytes) of each arena of a module."""

    base: Mapping[Arena, int]
    size: Mapping[Arena, int]

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> ArenaLayout:
        """From the module attributes that address-assign sets."""
        return cls(
            {arena: int(attributes[f"{arena.name.lower()}_addr"]) for arena in Arena},
            {arena: int(attributes[f"{arena.name.lower()}_size"]) for arena in Arena},
        )

    def find(self, address: int) -> tuple[Arena, int]:
        """(arena, offset) of an address. Raises CompileError for one outside of all arenas."""
        for arena in Arena:
            if self.base[arena] <= address < self.base[arena] + self.size[arena]:
                return arena, address - self.base[arena]
        raise CompileError(f"address {address} lies in no arena of the module")

    def spans(self) -> dict[Arena, tuple[int, int]]:
        """arena -> (base, size), as the emitter wants it."""
        return {arena: (self.base[arena], self.size[arena]) for arena in Arena}


@dataclass(frozen=True)
class TensorPlace:
    """One tensor in DDR, named after the op that makes it (see `value_names`): `first` and `last` are positions of ops
    in the module's records."""

    arena: Arena
    name: str
    address: int
    nbytes: int
    first: int
    last: int
    value: str


def value_names(ops: Sequence[OpRecord]) -> dict[str, str]:
    """For each value the location of the op that makes it; for a result of a group that of the op inside of it whose
    value is yielded."""
    names = {value: op.location for op in ops for value in op.results}
    for op in ops:
        if op.name == "tpu.Yield" and op.parent is not None:
            made = [names[value] for value in op.operands]
            names |= dict(zip(ops[op.parent].results, made, strict=True))
    return names


def tensor_places(ops: Sequence[OpRecord], layout: ArenaLayout) -> tuple[TensorPlace, ...]:
    """Every tensor with an address, in program order; tensors that share an address and size are listed once, with the
    joint lifetime. Weights and inputs live through the whole module; what a layer group reads or stores lives while any
    op of the group runs, and what ops on several cores read or make while any of those that run together does."""
    names, spans = value_names(ops), _spans(ops)
    last_use = {name: last for op, (_, last) in zip(ops, spans, strict=True) for name in op.operands}
    end = len(ops) - 1
    found: dict[tuple[int, int, str], TensorPlace] = {}
    for index, op in enumerate(ops):
        if op.parent is not None:
            continue
        for value, type_ in zip(op.results, op.result_types, strict=True):
            if type_.address is None:
                continue
            arena, _ = layout.find(type_.address)
            whole = op.name in ("top.Weight", "top.Input")
            begin, done = spans[index]
            first, last = (0, end) if whole else (begin, max(done, last_use.get(value, index)))
            if arena is Arena.IO and last == end:
                first = 0
            alias = op.kind in ("Reshape",) or (op.kind == "Concat" and op.attributes.get("only_merge"))
            if alias:
                source = _aliased(found, type_.address)
                if source is not None:
                    found[source] = _extend(found[source], first, last)
                    continue
            key = (type_.address, index, value)
            found[key] = TensorPlace(arena, names[value], type_.address, type_.nbytes, first, last, value)
    return tuple(found.values())


def _spans(ops: Sequence[OpRecord]) -> list[tuple[int, int]]:
    """For each op the first and last of those that run while it does: of its group, or of the ops beside it on other
    cores; otherwise itself."""
    spans = spans_of([op.attributes.get("group_parallel") for op in ops])
    for index, op in enumerate(ops):
        if op.parent is not None:
            spans[op.parent] = (spans[op.parent][0], index)
    ends = [last for _, last in spans]
    return [
        span if op.parent is None else (index, ends[op.parent])
        for index, (span, op) in enumerate(zip(spans, ops, strict=True))
    ]


def _aliased(found: Mapping[tuple[int, int, str], TensorPlace], address: int) -> tuple[int, int, str] | None:
    keys = [key for key in found if key[0] == address]
    return max(keys, key=lambda key: key[1]) if keys else None


def _extend(place: TensorPlace, first: int, last: int) -> TensorPlace:
    return replace(place, first=min(place.first, first), last=max(place.last, last))


def check_addresses(
    ops: Sequence[OpRecord], attributes: Mapping[str, Any], spec: ModuleSpec, options: CompileOptions
) -> list[str]:
    """Every way in which a module's addresses break the contract, as sentences; empty when all is well.

    Checked: tensors lie inside their arena and start on the alignment (appended KV rows excepted); no two live tensors
    overlap; arenas do not overlap; K and V regions lie where every module of the layer expects them, new rows at slot
    C; a group's stores write its results.
    """
    problems: list[str] = []
    layout = ArenaLayout.of(attributes)
    spans = sorted((layout.base[a], layout.base[a] + layout.size[a], a.name.lower()) for a in Arena)
    for (_, end, one), (start, _, other) in pairwise(spans):
        if end > start:
            problems.append(f"arena {one} ends at {end}, behind the start {start} of {other}")
    places = tensor_places(ops, layout)
    region = kv_region(spec, options)
    slots = _kv_slots(layout, region, spec)
    for place in places:
        if place.address not in slots and place.address % options.chip.alignment:
            problems.append(
                f"{place.name} starts at {place.address}, off the {options.chip.alignment}-byte grid"
            )
        if place.address + place.nbytes > layout.base[place.arena] + layout.size[place.arena]:
            problems.append(f"{place.name} ends outside of the {place.arena.name.lower()} arena")
    try:
        check_no_overlap(
            [Placement(Buffer(f"{p.name} {p.value}", p.nbytes, p.first, p.last), p.address) for p in places]
        )
    except CompileError as error:
        problems.append(str(error))
    if region is not None:
        problems += _check_kv(ops, layout, region, spec)
    return problems + _check_groups(ops)


def _check_groups(ops: Sequence[OpRecord]) -> list[str]:
    """Groups whose values have addresses where they should not, or others than the group's results."""
    problems = []
    for op in ops:
        if op.parent is None:
            continue
        group = ops[op.parent]
        if op.name == "tpu.Yield":
            for stored, result, name in zip(op.operand_types, group.result_types, group.results, strict=True):
                if stored.address != result.address:
                    problems.append(f"{name} is stored at {stored.address} but read at {result.address}")
        elif op.name != "tpu.Store" and any(type_.address is not None for type_ in op.result_types):
            problems.append(
                f"{op.location} stays in local memory but has the address {op.result_types[0].address}"
            )
    return problems


def _kv_slots(layout: ArenaLayout, region: KvRegion | None, spec: ModuleSpec) -> dict[int, str]:
    if region is None:
        return {}
    base = layout.base[Arena.IO]
    append = spec.cache * region.row_bytes
    return {base + region.k_offset + append: "k_cache", base + region.v_offset + append: "v_cache"}


def _check_kv(ops: Sequence[OpRecord], layout: ArenaLayout, region: KvRegion, spec: ModuleSpec) -> list[str]:
    problems = []
    base = layout.base[Arena.IO]
    returned = ops[-1].operand_types
    slots = {name: address for address, name in _kv_slots(layout, region, spec).items()}
    for tensor, type_ in zip(spec.outputs, returned, strict=True):
        if tensor.name in slots and type_.address != slots[tensor.name]:
            problems.append(
                f"{tensor.name} is written at {type_.address}, its slot {spec.cache} is at {slots[tensor.name]}"
            )
    inputs = {op.origins[0]: op.result_types[0] for op in ops if op.name == "top.Input"}
    for name, offset in (("history_k", region.k_offset), ("history_v", region.v_offset)):
        if name in inputs and inputs[name].address != base + offset:
            problems.append(f"{name} is read at {inputs[name].address}, its region starts at {base + offset}")
    rows = max(type_.shape[1] for t, type_ in zip(spec.outputs, returned, strict=True) if t.name == "k_cache")
    if spec.cache + rows > region.rows:
        problems.append(f"appending {rows} rows at slot {spec.cache} leaves the region of {region.rows} rows")
    return problems


def with_address(type_: TensorType, address: int) -> TensorType:
    """The same tensor at an address."""
    return TensorType(type_.shape, type_.dtype, address)
