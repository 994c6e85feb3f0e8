"""One group with one choice of slices: time steps, buffers and addresses, or why it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.passes.layer_group.allocation import Failure, Request, allocate
from engine.passes.layer_group.chains import GroupOps
from engine.passes.layer_group.cost import Prices, Profile
from engine.passes.layer_group.layout import Role
from engine.passes.layer_group.plan import (
    BufferKind,
    GroupPlan,
    Item,
    ItemKind,
    LmemBuffer,
    Secs,
    TimeStep,
)
from engine.passes.layer_group.slicing import Sliced, infer
from engine.passes.layer_group.time_steps import (
    COMPUTE_STAGE,
    STAGES,
    ScheduleError,
    Table,
    assign,
    balance,
    best_move,
    lives,
)
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up
from engine.tpu.isa import Shape4


@dataclass(frozen=True)
class Draft:
    """A group whose slices and time steps are chosen. shapes: of the largest slice of every tensor."""

    group: GroupOps
    secs: Secs
    slices: Mapping[str, Sliced]
    shapes: Mapping[str, Shape4]
    profile: Profile
    table: Table
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Placed:
    """A draft with the address of every request, and its cycles for all slices."""

    draft: Draft
    addresses: tuple[int, ...]
    cycles: int

    @property
    def used_bytes(self) -> int:
        """Bytes per lane up to the highest address."""
        return max(a + r.nbytes for a, r in zip(self.addresses, self.draft.requests, strict=True))


def draft(group: GroupOps, secs: Secs, prices: Prices) -> Draft:
    """Slices, time steps and buffers of a group. Raises SliceError or ScheduleError."""
    slices = infer(group, secs, prices.chip)
    held = frozenset(v for v in group.inputs if secs.slices > 1 and slices[v].is_whole)
    shapes = {value: sliced.largest for value, sliced in slices.items()}
    profile = Profile.of(group, secs, slices, prices)
    nearest = assign(group, held)
    costs = profile.largest
    table = balance(nearest, costs.computing, costs.moving(nearest.transfers))
    return Draft(group, secs, slices, shapes, profile, table, _requests(table, shapes, prices))


def place(found: Draft, prices: Prices, *, spread: bool = True) -> Placed | Failure:
    """Addresses for a draft; `spread` as in `allocate`."""
    addresses = allocate(found.requests, found.table.rows, prices.chip, spread=spread)
    if isinstance(addresses, Failure):
        return addresses
    return Placed(found, addresses, found.profile.cycles(found.table))


def with_table(found: Draft, table: Table, prices: Prices) -> Draft:
    """The same with other time steps. Raises ScheduleError when a lifetime gets too long."""
    return replace(found, table=table, requests=_requests(table, found.shapes, prices))


def improve(placed: Placed, prices: Prices) -> Placed:
    """The same slices with cheaper time steps: transfers moved, then neighbouring rows merged, where that fits."""
    while True:
        cheaper = _improved(placed, _moves(placed.draft), prices) or _improved(
            placed, _merges(placed.draft), prices
        )
        if cheaper is None:
            return placed
        placed = cheaper


def _improved(placed: Placed, tables: Iterator[Table], prices: Prices) -> Placed | None:
    """The first of these tables that costs less and fits."""
    old = placed.draft
    for table in tables:
        if old.profile.cycles(table) >= placed.cycles:
            continue
        try:
            changed = with_table(old, table, prices)
        except ScheduleError:
            continue
        found = place(changed, prices)
        if isinstance(found, Placed):
            return found
    return None


def _moves(found: Draft) -> Iterator[Table]:
    table, costs = found.table, found.profile.largest
    for row in range(table.rows):
        move = best_move(table, costs.computing, costs.moving(table.transfers), row)
        if move is not None:
            yield table.moved(*move)


def _merges(found: Draft) -> Iterator[Table]:
    for row in range(found.table.rows - 1):
        merged = found.table.merged(row)
        if merged is not None:
            yield merged


def _requests(table: Table, shapes: Mapping[str, Shape4], prices: Prices) -> tuple[Request, ...]:
    """The buffers of a group, in the order in which they come into being."""
    group, chip = table.group, prices.chip
    living = lives(table)
    held = {t.value for t in table.transfers if t.held}
    found = []
    for value in _by_birth(group):
        tensor, life = group.tensors[value], living[value]
        kind = BufferKind.ACTIVATION if tensor.role is Role.ROWS else BufferKind.WEIGHT
        nbytes = align_up(tensor.lane_bytes(chip, shapes[value]), chip.eu_bytes)
        mask = life.mask(table.rows)
        found.append(
            Request(value, kind, nbytes, mask, life.computed, life.moved, life.ops, life.first, value in held)
        )
    for position, op in enumerate(group.ops):
        nbytes = align_up(prices.scratch(op, group.tensors, shapes), chip.eu_bytes)
        if nbytes:
            row = table.row_of[position]
            bit, user = 1 << row, frozenset({position})
            found.append(Request(op.result, BufferKind.SCRATCH, nbytes, bit, bit, 0, user, row))
    return tuple(found)


def _by_birth(group: GroupOps) -> list[str]:
    """Memories of a group (see `GroupOps.roots`): what the first op reads, its result, what the second reads, ..."""
    found: dict[str, None] = {}
    for op in group.ops:
        if op.moves:
            for value in (*op.operands, op.result):
                found.setdefault(group.roots[value])
    return list(found)


def plan_of(placed: Placed, prices: Prices) -> GroupPlan:
    """The group as the pass reports it. Ids count the items in program order."""
    found, table = placed.draft, placed.draft.table
    items = _items(placed, prices.chip)
    costs = found.profile.largest
    moving = costs.moving(table.transfers)
    number = {(item.kind, item.value): item.id for item in items}
    steps = []
    for row, ops in enumerate(table.computes):
        moves = [n for n, transfer in enumerate(table.transfers) if transfer.row == row]
        steps.append(
            TimeStep(
                tuple(number[ItemKind.COMPUTE, found.group.ops[op].result] for op in ops),
                tuple(sorted(number[table.transfers[n].kind, table.transfers[n].value] for n in moves)),
                sum(costs.computing[op] for op in ops),
                sum(moving[n] for n in moves),
            )
        )
    buffers = _buffers(placed, number)
    return GroupPlan(
        found.group.records,
        found.group.type,
        found.secs,
        STAGES,
        items,
        tuple(steps),
        buffers,
        placed.cycles,
        placed.used_bytes,
    )


def named(plan: GroupPlan, names: Mapping[str, str], records: Sequence[int]) -> GroupPlan:
    """The same plan for other values and other records, given by those of the plan."""
    return replace(
        plan,
        records=tuple(records[record] for record in plan.records),
        items=tuple(
            replace(item, record=records[item.record], value=names[item.value]) for item in plan.items
        ),
        buffers=tuple(replace(buffer, value=names[buffer.value]) for buffer in plan.buffers),
    )


def _items(placed: Placed, chip: Chip) -> tuple[Item, ...]:
    found, group = placed.draft, placed.draft.group
    address = {
        (r.kind is BufferKind.SCRATCH, r.name): (a, r.nbytes)
        for r, a in zip(found.requests, placed.addresses, strict=True)
    }
    items: list[Item] = []

    def add(kind: ItemKind, record: int, value: str, stage: int, held: bool) -> None:
        tensor = group.tensors[value]
        scratch = address.get((True, value), (0, 0)) if kind is ItemKind.COMPUTE else (0, 0)
        items.append(
            Item(
                len(items),
                kind,
                record,
                value,
                stage,
                held,
                address[False, group.roots[value]][0],
                tensor.lane_bytes(chip, found.shapes[value]),
                *scratch,
                tensor.aligned,
                found.slices[value].plan(),
            )
        )

    for order in _order(found.table):
        add(*order)
    return tuple(items)


def _order(table: Table) -> list[tuple[ItemKind, int, str, int, bool]]:
    """(kind, record, value, stage, held) of every item: loads before the op that reads them, stores behind the op."""
    group = table.group
    maker = {op.result: op.index for op in group.ops}
    ordered: list[tuple[ItemKind, int, str, int, bool]] = []
    loads = {t.value: t for t in table.transfers if t.is_load}
    stores = {t.value: t for t in table.transfers if not t.is_load}
    for op in group.ops:
        for value in op.operands:
            transfer = loads.pop(value, None)
            if transfer is not None:
                ordered.append((ItemKind.LOAD, op.index, value, transfer.stage, transfer.held))
        ordered.append((ItemKind.COMPUTE, op.index, op.result, COMPUTE_STAGE, False))
        transfer = stores.pop(op.result, None)
        if transfer is not None:
            ordered.append((ItemKind.STORE, maker[op.result], op.result, transfer.stage, False))
    return ordered


def _buffers(placed: Placed, number: Mapping[tuple[ItemKind, str], int]) -> tuple[LmemBuffer, ...]:
    found = placed.draft
    rows = found.table.rows
    buffers = []
    for request, address in zip(found.requests, placed.addresses, strict=True):
        loaded = (ItemKind.LOAD, request.name) in number and request.kind is not BufferKind.SCRATCH
        item = number[ItemKind.LOAD if loaded else ItemKind.COMPUTE, request.name]
        length = request.rows.bit_count()
        last = (request.first + length - 1) % rows
        buffers.append(
            LmemBuffer(
                request.name,
                request.kind,
                address,
                request.nbytes,
                request.first,
                last,
                request.held,
                item,
            )
        )
    return tuple(buffers)
