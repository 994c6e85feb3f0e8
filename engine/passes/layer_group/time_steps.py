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
COMPUTE_STAGE = 1


class ScheduleError(Exception):
    """The group has no time steps; the message says why."""


@dataclass(frozen=True)
class Transfer:
    """A load or store of a value. row: when it runs; earliest, latest: rows it may be moved to."""

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

    def moved(self, transfer: Transfer, row: int) -> Table:
        """The same with one transfer in another row."""
        changed = tuple(replace(t, row=row) if t is transfer else t for t in self.transfers)
        return replace(self, transfers=changed)

    def in_row(self, row: int) -> list[Transfer]:
        """Transfers of a row, in order of their ids."""
        return [transfer for transfer in self.transfers if transfer.row == row]


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
        bits = (1 << min(self.rows, total)) - 1
        around = bits << self.first
        return (around | around >> total) & ((1 << total) - 1)


@dataclass(frozen=True)
class _Uses:
    """Rows in which each memory (see `GroupOps.roots`) is written and read by ops."""

    born: Mapping[str, int]
    first: Mapping[str, int]
    last: Mapping[str, int]


def assign(group: GroupOps, held: frozenset[str]) -> Table:
    """The nearest time steps: loads one row before the first use, stores one row after the value is made.

    held: values that are loaded once for all slices. Raises ScheduleError for less than two ops that compute, and for
    a result that is only a reshape of an input.
    """
    computes = _compute_rows(group)
    last_row = len(computes) - 1
    if last_row < 1:
        raise ScheduleError("fewer than two ops compute")
    uses = _uses(group, {op: row for row, ops in enumerate(computes) for op in ops})
    loads = [_load(value, group, uses, last_row, held) for value in group.inputs]
    stores = [_store(value, group, uses, last_row) for value in group.outputs]
    extra = any(load.row > last_row for load in loads)
    if extra:
        computes += ((),)
        loads = [replace(t, latest=last_row + 1) if t.stage == 0 else t for t in loads]
        stores = [replace(t, latest=last_row + 1) if t.stage == COMPUTE_STAGE else t for t in stores]
    return Table(group, computes, (*loads, *stores))


def _compute_rows(group: GroupOps) -> tuple[tuple[int, ...], ...]:
    """A row for each op that computes; reshapes stand with the op before them."""
    rows: list[list[int]] = []
    for position, op in enumerate(group.ops):
        if op.moves or not rows:
            rows.append([])
        rows[-1].append(position)
    return tuple(map(tuple, rows))


def _uses(group: GroupOps, row_of: Mapping[int, int]) -> _Uses:
    born: dict[str, int] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, op in enumerate(group.ops):
        if not op.moves:
            continue
        row = row_of[position]
        born[op.result] = row
        for value in op.operands:
            root = group.roots[value]
            first.setdefault(root, row)
            last[root] = row
    return _Uses(born, first, last)


def _load(value: str, group: GroupOps, uses: _Uses, last_row: int, held: frozenset[str]) -> Transfer:
    if value not in uses.first:
        raise ScheduleError(f"{value} is only reshaped")
    first, last = uses.first[value], uses.last[value]
    if first > 0:
        return Transfer(ItemKind.LOAD, value, COMPUTE_STAGE, value in held, first - 1, 0, first - 1)
    row = last_row if last < last_row else last_row + 1
    return Transfer(ItemKind.LOAD, value, 0, value in held, row, last + 1, last_row)


def _store(value: str, group: GroupOps, uses: _Uses, last_row: int) -> Transfer:
    born = uses.born.get(group.roots[value])
    if born is None:
        raise ScheduleError(f"{value} leaves the group but is only a reshape of an input")
    if born < last_row:
        return Transfer(ItemKind.STORE, value, COMPUTE_STAGE, False, born + 1, born + 1, last_row)
    return Transfer(ItemKind.STORE, value, COMPUTE_STAGE + 1, False, 0, 0, last_row - 1)


def balance(table: Table, computing: Sequence[int], moving: Sequence[int]) -> Table:
    """Move loads to earlier and stores to later rows that compute longer than they transfer.

    computing: cycles of each op. moving: cycles of each transfer. Rows are visited once, in order, and each that
    transfers longer than it computes gives away one transfer.
    """
    slack = slacks(table, computing, moving)
    rows = [transfer.row for transfer in table.transfers]
    for row in range(table.rows):
        move = best_move(table.transfers, rows, moving, slack, row)
        if move is not None:
            number, target = move
            slack[row] += moving[number]
            slack[target] -= moving[number]
            rows[number] = target
    moved = tuple(replace(t, row=row) for t, row in zip(table.transfers, rows, strict=True))
    return replace(table, transfers=moved)


def slacks(table: Table, computing: Sequence[int], moving: Sequence[int]) -> list[int]:
    """Cycles by which each row computes longer than it transfers."""
    slack = [sum(computing[op] for op in ops) for ops in table.computes]
    for transfer, cost in zip(table.transfers, moving, strict=True):
        slack[transfer.row] -= cost
    return slack


def best_move(
    transfers: Sequence[Transfer],
    rows: Sequence[int],
    costs: Sequence[int],
    slack: Sequence[int],
    source: int,
) -> tuple[int, int] | None:
    """The move of a transfer out of row `source` that saves most: (its number, new row), None if none saves anything.

    rows: where each transfer is now. Only rows with slack take one; of equal moves the smallest transfer over the
    shortest distance wins.
    """
    best, found = (0, 0), None
    if slack[source] >= 0:
        return None
    for number, transfer in enumerate(transfers):
        if rows[number] != source:
            continue
        cost = costs[number]
        targets = (
            range(source - 1, transfer.earliest - 1, -1)
            if transfer.is_load
            else range(source + 1, transfer.latest + 1)
        )
        for target in targets:
            if slack[target] <= 0:
                continue
            profit = min(slack[target] - cost, 0) + min(slack[source] + cost, 0) - slack[source]
            rank = (profit, -cost * abs(target - source))
            if profit > 0 and (found is None or rank > best):
                best, found = rank, (number, target)
    return found


def lives(table: Table) -> dict[str, Life]:
    """When each memory of the group is in use: inputs and results by value, scratch not included."""
    group, total = table.group, table.rows
    loads = {t.value: t for t in table.transfers if t.is_load}
    stores: dict[str, list[Transfer]] = {}
    for transfer in table.transfers:
        if not transfer.is_load:
            stores.setdefault(group.roots[transfer.value], []).append(transfer)
    touching: dict[str, set[int]] = {}
    for position, op in enumerate(group.ops):
        if op.moves:
            for value in (*op.operands, op.result):
                touching.setdefault(group.roots[value], set()).add(position)
    found = {}
    for root, ops in touching.items():
        times = [COMPUTE_STAGE * total + table.row_of[op] for op in ops]
        moves = [*([loads[root]] if root in loads else []), *stores.get(root, [])]
        times += [t.stage * total + t.row for t in moves]
        held = root in loads and loads[root].held
        first, rows = (0, total) if held else (min(times) % total, max(times) - min(times) + 1)
        computed = sum(1 << row for row in {table.row_of[op] for op in ops})
        moved = sum(1 << row for row in {t.row for t in moves})
        found[root] = Life(first, rows, computed, moved, frozenset(ops))
    return found
