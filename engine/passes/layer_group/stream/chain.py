"""What can be in a streamed group, and in which order its ops run: products tile by tile, and with each tile of a
product all ops that take every column, or every head, by itself.

A phase is a product with the ops that follow it tile by tile. Behind a phase come ops that need whole rows: norms, and
what follows a norm. Ops before the first product are phase -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm, prod

from engine.passes.layer_group.chains import IN_PLACE_KINDS, Program, why_global
from engine.passes.layer_group.stream.pieces import PRODUCT, head_size
from engine.snapshot import OpRecord, TensorType, is_computation
from engine.tpu.a16_kernel import BIAS, WEIGHT

BY_LANE = 3
"""Dimensions of scales and zero points: [lanes, blocks, groups]."""


class StreamError(Exception):
    """Ops that cannot be a streamed group; the message says why, as the end of a sentence."""


@dataclass(frozen=True, order=True)
class Rank:
    """When a value is there: with the tiles of a phase, or whole behind it."""

    phase: int
    whole: bool


BEFORE = Rank(-1, False)
"""What is loaded is there before all phases."""


@dataclass(frozen=True)
class StreamOp:
    """An op of a chain. operands: activations that it reads, in order. rank: of its result. unit: columns that tiles
    must not cut apart."""

    index: int
    record: OpRecord
    operands: tuple[str, ...]
    rank: Rank
    unit: int

    @property
    def kind(self) -> str:
        """The record's kind."""
        return self.record.kind

    @property
    def result(self) -> str:
        """The value that it makes."""
        return self.record.results[0]

    @property
    def is_product(self) -> bool:
        """Whether it streams weights."""
        return self.kind == PRODUCT

    @property
    def moves(self) -> bool:
        """False for a Reshape: its result is its operand's memory, read otherwise."""
        return self.kind != "Reshape"

    def takes_whole(self, operand: str) -> bool:
        """Whether a run reads all columns of an operand, not only those that it makes."""
        if self.kind == "Rope":
            return operand in self.operands[1:]
        return self.is_product or self.rank.whole


@dataclass(frozen=True)
class StreamValue:
    """An activation of a chain as rows of columns. rank: when it is there. loaded: it comes from DDR."""

    name: str
    type: TensorType
    rows: int
    columns: int
    rank: Rank
    loaded: bool

    @property
    def dtype(self) -> str:
        """Its element type."""
        return self.type.dtype


@dataclass(frozen=True)
class Stream:
    """Ops of a chain that are to be one streamed group.

    rows: tokens. products: one for each phase. values: activations by name. inputs: those loaded, in the order of the
    first use; outputs: those stored. roots: the value whose memory a value is; in_place: results that replace an
    operand. spread: values in the layout of that name.
    """

    ops: tuple[StreamOp, ...]
    rows: int
    products: tuple[StreamOp, ...]
    values: Mapping[str, StreamValue]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    roots: Mapping[str, str]
    in_place: Mapping[str, str]
    spread: frozenset[str]

    @cached_property
    def _by_rank(self) -> Mapping[Rank, list[StreamOp]]:
        found: dict[Rank, list[StreamOp]] = {}
        for op in self.ops:
            found.setdefault(op.rank, []).append(op)
        return found

    @cached_property
    def _users(self) -> Mapping[str, list[StreamOp]]:
        return {value: [op for op in self.ops if value in op.operands] for value in self.values}

    @cached_property
    def _whole(self) -> frozenset[str]:
        return frozenset(value for value in self.values if self._must_be_whole(value))

    def followers(self, phase: int) -> list[StreamOp]:
        """A phase's product and the ops that run with each of its tiles, in order."""
        return self._by_rank.get(Rank(phase, False), [])

    def behind(self, phase: int) -> list[StreamOp]:
        """Ops on whole rows behind a phase."""
        return self._by_rank.get(Rank(phase, True), [])

    def users(self, value: str) -> list[StreamOp]:
        """Ops that read a value."""
        return self._users[value]

    def unit(self, phase: int, lanes: int) -> int:
        """Columns of which the tiles of a phase are multiples."""
        return lcm(lanes, *(op.unit for op in self.followers(phase)))

    def is_whole(self, value: str) -> bool:
        """Whether all columns of a value must be in local memory at once: someone reads it later than it is made."""
        return value in self._whole

    def _must_be_whole(self, value: str) -> bool:
        rank = self.values[value].rank
        if rank.whole:
            return True
        if self.values[value].loaded:
            return not self._by_tile(value)
        readers = [op for op in self.users(value) if op.rank != rank or op.takes_whole(value)]
        aliases = [op.result for op in self.users(value) if not op.moves]
        return bool(readers) or any(self._must_be_whole(alias) for alias in aliases)

    def _by_tile(self, value: str) -> bool:
        """Whether a value of several rows can be loaded by the tiles of the one phase that reads it."""
        users = self.users(value)
        phases = {op.rank for op in users}
        alike = all(self.values[op.result].columns == self.values[value].columns for op in users)
        return (
            self.rows > 1
            and len(phases) == 1
            and not next(iter(phases)).whole
            and alike
            and not any(op.takes_whole(value) or not op.moves for op in users)
        )


def why_not_streamed(record: OpRecord, program: Program) -> str:
    """Why an op cannot be in a streamed group, as the end of a sentence; empty when it can."""
    if record.kind != PRODUCT:
        if record.kind == "MatMul":
            return "has weights that are not quantised"
        return why_global(record, program.weights)
    weights = [v for v, t in zip(record.operands, record.operand_types, strict=True) if not t.is_none][1:]
    if not set(weights) <= program.weights:
        return "takes an activation where a streamed product has weights"
    if any(len(type_.shape) != BY_LANE for type_ in record.operand_types[WEIGHT + 1 : BIAS]):
        return "has scales that are not in the order of the lanes"
    return ""


def stream_of(program: Program, indices: Sequence[int]) -> Stream:
    """The ops with these indices as one streamed group. Raises StreamError."""
    records = [program.ops[index] for index in indices]
    if not any(record.kind == PRODUCT for record in records):
        raise StreamError("no product among them has weights to stream")
    if records[0].kind == "Reshape":
        raise StreamError("a reshape at the beginning of a group moves nothing and stays outside")
    values: dict[str, StreamValue] = {}
    ops: list[StreamOp] = []
    rows = prod(records[0].result_types[0].shape[:2])
    for index, record in zip(indices, records, strict=True):
        operands = tuple(
            value
            for value, type_ in zip(record.operands, record.operand_types, strict=True)
            if not type_.is_none and value not in program.weights
        )
        for value, type_ in zip(record.operands, record.operand_types, strict=True):
            if value in operands and value not in values:
                values[value] = _value(value, type_, rows, BEFORE, loaded=True)
        op = _op(index, record, operands, values, sum(op.is_product for op in ops))
        values[op.result] = _value(op.result, record.result_types[0], rows, op.rank, loaded=False)
        ops.append(op)
    inputs = tuple(name for name, value in values.items() if value.loaded)
    outputs = tuple(op.result for op in ops if _leaves(op.result, indices, program))
    found = Stream(
        tuple(ops),
        rows,
        tuple(op for op in ops if op.is_product),
        values,
        inputs,
        outputs,
        {},
        {},
        frozenset(),
    )
    _check_tiles(found)
    return _with_places(replace(found, spread=_spread(found, program.chip.lanes)))


def _check_tiles(stream: Stream) -> None:
    """Ops that run with the tiles of a product must have its columns, and take tiles as they come."""
    for op in stream.ops:
        if op.rank.whole:
            continue
        columns = stream.values[stream.products[op.rank.phase].result].columns
        cut = [op.result, *(value for value in op.operands if not op.takes_whole(value))]
        if any(stream.values[value].columns != columns for value in cut):
            raise StreamError(
                f"{op.record.location} does not have the {columns} columns of the product before it"
            )
        if op.kind == "Active" and stream.is_whole(op.result):
            raise StreamError(f"{op.record.location} is needed whole where it is computed by tiles")


def _value(name: str, type_: TensorType, rows: int, rank: Rank, *, loaded: bool) -> StreamValue:
    if len(type_.shape) < 3 or prod(type_.shape[:2]) != rows:
        raise StreamError(f"{name} of shape {list(type_.shape)} is not {rows} rows")
    return StreamValue(name, type_, rows, prod(type_.shape[2:]), rank, loaded)


def _op(
    index: int, record: OpRecord, operands: tuple[str, ...], values: Mapping[str, StreamValue], products: int
) -> StreamOp:
    latest = max(values[value].rank for value in operands)
    unit = head_size(record)
    if record.kind == PRODUCT:
        rank = Rank(products, False)
    elif record.kind == "RMSNorm" and unit == values[operands[0]].columns:
        rank, unit = Rank(latest.phase, True), 1
    else:
        rank = Rank(latest.phase, latest.whole or latest == BEFORE)
        unit = 1 if rank.whole else unit
    return StreamOp(index, record, operands, rank, unit)


def _leaves(value: str, indices: Sequence[int], program: Program) -> bool:
    """Whether an op outside reads a value."""
    inside = set(indices)
    return any(value in record.operands for at, record in enumerate(program.ops) if at not in inside)


# -- where values lie -------------------------------------------------------------------------------------------------


def _with_places(stream: Stream) -> Stream:
    """Decide which values share memory."""
    roots = {value: value for value in stream.values}
    for op in stream.ops:
        if not op.moves:
            roots[op.result] = roots[op.operands[0]]
    in_place: dict[str, str] = {}
    plain = replace(stream, roots=roots, in_place={})
    for op in stream.ops:
        replaced = _replaced(op, plain) if plain.is_whole(op.result) else None
        if replaced is not None:
            in_place[op.result] = replaced
            roots = {value: roots[replaced] if root == op.result else root for value, root in roots.items()}
    return replace(plain, roots=roots, in_place=in_place)


def _replaced(op: StreamOp, stream: Stream) -> str | None:
    """The operand whose memory a whole result can take: it is whole, of the same type, and read for the last time."""
    if op.kind not in IN_PLACE_KINDS:
        return None
    order = execution_order(stream)
    for value in op.operands:
        sharing = [v for v, root in stream.roots.items() if root == stream.roots[value]]
        users = [order.index(user) for v in sharing for user in stream.users(v)]
        if (
            stream.is_whole(value)
            and stream.values[value].dtype == stream.values[op.result].dtype
            and max(users) == order.index(op)
            and not set(sharing) & set(stream.outputs)
        ):
            return value
    return None


def execution_order(stream: Stream) -> list[StreamOp]:
    """Ops in the order in which they run on a tile or on whole rows."""
    phases = range(-1, len(stream.products))
    return [op for phase in phases for op in (*stream.followers(phase), *stream.behind(phase))]


def _spread(stream: Stream, lanes: int) -> frozenset[str]:
    """Values of a single token that nobody needs as rows: made and read by products and element by element ops only."""
    if stream.rows > 1:
        return frozenset()
    kin: dict[str, set[str]] = {value: {value} for value in stream.values}
    as_rows = {*stream.inputs, *stream.outputs}
    for op in stream.ops:
        bound = (op.result,) if op.is_product else (*op.operands, op.result)
        if op.kind in ("RMSNorm", "Rope", "Reshape") or (
            op.is_product and not op.record.operand_types[BIAS].is_none
        ):
            as_rows |= set(bound)
        joined = set().union(*(kin[value] for value in bound))
        for value in joined:
            kin[value] = joined
    as_rows |= {name for name, value in stream.values.items() if value.columns % lanes}
    return frozenset(value for value in stream.values if not kin[value] & as_rows)


# -- candidates -------------------------------------------------------------------------------------------------------


def stretches(program: Program) -> list[tuple[int, ...]]:
    """Indices of ops that can be streamed and stand together, in program order.

    Ops between them that neither can nor read what they make (the lookups of positions) stay in front of the group.
    """
    found: list[tuple[int, ...]] = []
    members: list[int] = []
    made: set[str] = set()
    for index, record in enumerate(program.ops):
        if record.name != "func.return" and not is_computation(record):
            continue
        if record.name != "func.return" and not why_not_streamed(record, program):
            members.append(index)
        elif record.name == "func.return" or set(record.operands) & made:
            found += [tuple(members)] if members else []
            members, made = [], set()
            continue
        else:
            continue
        made |= set(record.results)
    return found
