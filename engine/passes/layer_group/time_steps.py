"""When things happen in a group: rows of computations and transfers that run at the same time.

Every op has a row. What it reads is loaded a row earlier, what leaves the group is stored a row later. The loop over
slices is pipelined: loads for the first row belong to stage 0 and run in the last row of the slice before; stores of
the last row's results belong to stage 2 and run in the first row of the slice after (rule R4). Rows are counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from engine.passes.layer_group.chains import GroupOps
from engine.passes.layer_group.plan import ItemKind

STAGES = 3
"""Stages of the pipeline over slices: load, compute, store."""
LOAD_STAGE, COMPUTE_STAGE, STORE_STAGE = range(STAGES)


class ScheduleError(Exception):
    """The group has no time steps; the message says why."""


@dataclass(frozen=True)
class Transfer:
    """A load or store of a value. row: when it runs; earliest, latest: rows it may be moved to.

    held: loaded once for all slices.
    """

    kind: ItemKind
    value: str
    stage: int
    held: bool
    row: int
    earliest: int
    latest: int

    @property
    def is_load(self) -> bool:
        """DDR to local memory."""
        return self.kind is ItemKind.LOAD


@dataclass(frozen=True)
class Table:
    """The time steps. computes: positions of the ops (in the group) of each row. transfers: in order of their ids."""

    group: GroupOps
    computes: tuple[tuple[int, ...], ...]
    transfers: tuple[Transfer, ...]

    @property
    def rows(self) -> int:
        """Number of time steps."""
        return len(self.computes)

    @cached_property
    def row_of(self) -> dict[int, int]:
        """Row of each op, by its position in the group."""
        return {op: row for row, ops in enumerate(self.computes) for op in ops}

    @cached_property
    def uses(self) -> Uses:
        """Rows in which memory is written and read."""
        return Uses.of(self.group, self.row_of)

    def moved(self, number: int, row: int) -> Table:
        """The same with one transfer in another row."""
        changed = list(self.transfers)
        changed[number] = replace(changed[number], row=row)
        return replace(self, transfers=tuple(changed))

    def merged(self, row: int) -> Table | None:
        """The same with a row and the next one as one; None when something would be moved and used in one row."""
        computes = (
            *self.computes[:row],
            self.computes[row] + self.computes[row + 1],
            *self.computes[row + 2 :],
        )
        if len(computes) < STAGES - 1:
            return None
        table = Table(self.group, computes, ())
        transfers = []
        for transfer in self.transfers:
            at = transfer.row - (transfer.row > row)
            earliest, latest = _span(transfer, table.group, table.uses, table.rows)
            if not earliest <= at <= latest:
                return None
            transfers.append(replace(transfer, row=at, earliest=earliest, latest=latest))
        return replace(table, transfers=tuple(transfers))


@dataclass(frozen=True)
class Uses:
    """Rows in which each memory (see `GroupOps.roots`) is first written by an op, and first and last read."""

    born: Mapping[str, int]
    first: Mapping[str, int]
    last: Mapping[str, int]

    @classmethod
    def of(cls, group: GroupOps, row_of: Mapping[int, int]) -> Uses:
        """From the rows of the ops."""
        born: dict[str, int] = {}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for position, op in enumerate(group.ops):
            if not op.moves:
                continue
            row = row_of[position]
            for value in op.operands:
                root = group.roots[value]
                first.setdefault(root, row)
                last[root] = row
            root = group.roots[op.result]
            if root == op.result:
                born[root] = row
            else:
                last[root] = row
        return cls(born, first, last)


def assign(group: GroupOps, held: frozenset[str]) -> Table:
    """The nearest time steps: loads one row before the first use, stores one row after the value is made.

    held: values that are loaded once for all slices. Raises ScheduleError for less than two ops that compute, and for
    a result that is only a reshape of an input.
    """
    computes = _compute_rows(group)
    last_row = len(computes) - 1
    if last_row < 1:
        raise ScheduleError("fewer than two ops compute")
    table = Table(group, computes, ())
    loads = [_load(value, table.uses, last_row, held) for value in group.inputs]
    stores = [_store(value, group, table.uses, last_row) for value in group.outputs]
    if any(load.row > last_row for load in loads):
        table = replace(table, computes=(*computes, ()))
    transfers = []
    for transfer in (*loads, *stores):
        earliest, latest = _span(transfer, group, table.uses, table.rows)
        transfers.append(replace(transfer, earliest=earliest, latest=latest))
    return replace(table, transfers=tuple(transfers))


def _compute_rows(group: GroupOps) -> tuple[tuple[int, ...], ...]:
    """A row for each op that computes; reshapes stand with the op before them."""
    rows: list[list[int]] = []
    for position, op in enumerate(group.ops):
        if op.moves or not rows:
            rows.append([])
        rows[-1].append(position)
    return tuple(map(tuple, rows))


def _load(value: str, uses: Uses, last_row: int, held: frozenset[str]) -> Transfer:
    if value not in uses.first:
        raise ScheduleError("a value is only reshaped")
    first, last = uses.first[value], uses.last[value]
    if first > 0:
        return Transfer(ItemKind.LOAD, value, COMPUTE_STAGE, value in held, first - 1, 0, 0)
    row = last_row if last < last_row else last_row + 1
    return Transfer(ItemKind.LOAD, value, LOAD_STAGE, value in held, row, 0, 0)


def _store(value: str, group: GroupOps, uses: Uses, last_row: int) -> Transfer:
    born = uses.born.get(group.roots[value])
    if born is None:
        raise ScheduleError("a result is only a reshape of an input")
    if born < last_row:
        return Transfer(ItemKind.STORE, value, COMPUTE_STAGE, False, born + 1, 0, 0)
    return Transfer(ItemKind.STORE, value, STORE_STAGE, False, 0, 0, 0)


def _span(transfer: Transfer, group: GroupOps, uses: Uses, rows: int) -> tuple[int, int]:
    """First and last row in which a transfer may run: not in one in which an op uses the memory."""
    root = group.roots[transfer.value]
    if transfer.is_load:
        if transfer.stage == LOAD_STAGE:
            return uses.last[root] + 1, rows - 1
        return 0, uses.first[root] - 1
    if transfer.stage == STORE_STAGE:
        return 0, uses.born[root] - 1
    return uses.born[root] + 1, rows - 1


# -- slack ---------------------------------------------------------------------------------------------------------


def balance(table: Table, computing: Sequence[int], moving: Sequence[int]) -> Table:
    """Move loads to earlier and stores to later rows that compute longer than they transfer.

    computing: cycles of each op. moving: cycles of each transfer. Rows are visited once, in order, and each that
    transfers longer than it computes gives away one transfer.
    """
    for row in range(table.rows):
        move = best_move(table, computing, moving, row)
        if move is not None:
            table = table.moved(*move)
    return table


def best_move(
    table: Table, computing: Sequence[int], moving: Sequence[int], source: int
) -> tuple[int, int] | None:
    """The move of a transfer out of row `source` that saves most: (its number, new row); None if none saves anything.

    Only rows that compute longer than they transfer take one; of equal moves the smallest transfer over the shortest
    distance wins.
    """
    slack = [sum(computing[op] for op in ops) for ops in table.computes]
    for transfer, cost in zip(table.transfers, moving, strict=True):
        slack[transfer.row] -= cost
    best, found = (0, 0), None
    for number, transfer in enumerate(table.transfers):
        if transfer.row != source or slack[source] >= 0:
            continue
        for target in _targets(transfer):
            if slack[target] <= 0:
                continue
            cost = moving[number]
            profit = min(slack[target] - cost, 0) + min(slack[source] + cost, 0) - slack[source]
            rank = (profit, -cost * abs(target - source))
            if profit > 0 and (found is None or rank > best):
                best, found = rank, (number, target)
    return found


def _targets(transfer: Transfer) -> range:
    """Rows to which a load may go earlier, or a store later."""
    if transfer.is_load:
        return range(transfer.row - 1, transfer.earliest - 1, -1)
    return range(transfer.row + 1, transfer.latest + 1)


# -- lifetimes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """When a value's memory is in use: `rows` consecutive rows from `first` on, around the end of the loop.

    computed, moved: bit masks of the rows in which the compute engine and the DMA touch it. ops: positions of the ops
    that read or write it.
    """

    first: int
    rows: int
    computed: int
    moved: int
    ops: frozenset[int]

    def mask(self, total: int) -> int:
        """Bit mask of the rows in which it is live, of `total`."""
        around = ((1 << self.rows) - 1) << self.first
        return (around | around >> total) & ((1 << total) - 1)


def lives(table: Table) -> dict[str, Life]:
    """When each memory of the group (see `GroupOps.roots`) is in use; scratch is not included.

    Raises ScheduleError when a value would still be in use when the next slice's is made.
    """
    group, total = table.group, table.rows
    touching: dict[str, set[int]] = {}
    for position, op in enumerate(group.ops):
        if op.moves:
            for value in (*op.operands, op.result):
                touching.setdefault(group.roots[value], set()).add(position)
    moves: dict[str, list[Transfer]] = {}
    for transfer in table.transfers:
        moves.setdefault(group.roots[transfer.value], []).append(transfer)
    found = {}
    for root, ops in touching.items():
        rows = {table.row_of[op] for op in ops}
        transfers = moves.get(root, ())
        times = [COMPUTE_STAGE * total + row for row in rows]
        times += [transfer.stage * total + transfer.row for transfer in transfers]
        first, length = min(times) % total, max(times) - min(times) + 1
        if any(transfer.held for transfer in transfers):
            first, length = 0, total
        if length > total:
            raise ScheduleError("a value is needed until after the next slice's is made")
        moved = {transfer.row for transfer in transfers}
        found[root] = Life(first, length, _mask(rows), _mask(moved), frozenset(ops))
    return found


def _mask(rows: set[int]) -> int:
    return sum(1 << row for row in rows)
