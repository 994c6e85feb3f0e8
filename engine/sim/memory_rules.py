"""What a module's instructions must leave alone, by its records: for a Machine with checks, which knows bytes only.

In DDR a tensor is kept from when it is made until its last reader has run. In the local memory of a layer group a
buffer is kept in the time steps that `ginfo` and `flow` give it, and engines keep to banks of their own but for the ops
that the group's `bank_conflicts` names. `stream_rules` has the buffers of groups that stream weights. Ops outside of
groups use local memory as they like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.sim.stream_rules import stream_reserved
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.extents import extents, tensors_of
from engine.tpu.ginfo import DIMENSIONS, Ginfo
from engine.tpu.group_memory import IN_PLACE, SLICED, STREAMED, Touch, flow_steps, touches
from engine.tpu.isa import OPERANDS, Opcode, Space
from engine.tpu.memory import ArenaLayout, tensor_places
from engine.tpu.ops.group import SECS
from engine.tpu.overwrites import Reserved

Array = NDArray[Any]


@dataclass(frozen=True)
class MemoryRules:
    """Rules for one program.

    reserved: what must not be written over, and when. owners: numbers of the buffers that should have their banks to
    themselves, as `bank_conflicts` takes them. names: of the ops, by index.
    """

    reserved: tuple[Reserved, ...]
    owners: Array
    names: tuple[str, ...]

    def name(self, op: int) -> str:
        """What an op is called."""
        return self.names[op] if 0 <= op < len(self.names) else "an unknown op"


def memory_rules(
    ops: Sequence[OpRecord], layout: ArenaLayout, program: np.ndarray, chip: Chip
) -> MemoryRules:
    """The rules of a module. ops: its records after codegen. program: its INSTRUCTION records."""
    owners = np.zeros((len(program), 1 + OPERANDS), np.int64)
    reserved = list(_in_ddr(ops, layout, program))
    for index, op in enumerate(ops):
        if op.name == "tpu.Group":
            group = _Group.of(ops, index, program)
            reserved += group.reserved()
            owners[group.rows] = group.owners(chip.lanes)
            if op.attributes["group_type"] == STREAMED:
                reserved += stream_reserved(ops, index, program, chip)
    return MemoryRules(tuple(reserved), owners, tuple(f"{op.name} {op.location}" for op in ops))


def _in_ddr(ops: Sequence[OpRecord], layout: ArenaLayout, program: np.ndarray) -> Iterator[Reserved]:
    """Every tensor, kept from all ops but the one that makes it."""
    writers = _writers(ops)
    writes = np.flatnonzero(program["result"]["space"] == Space.DDR)
    op = program["op"][writes]
    for place in tensor_places(ops, layout):
        writer = writers[place.value]
        foreign = (op >= place.first) & (op <= place.last) & (op != writer)
        start = place.address - layout.base[place.arena]
        holds = ops[writer].location
        yield Reserved(place.arena, start, start + place.nbytes, writes[foreign], holds)


def _writers(ops: Sequence[OpRecord]) -> dict[str, int]:
    """For each value in DDR the op whose instructions write it: results of groups are written by the stores inside."""
    found = {value: index for index, op in enumerate(ops) for value in op.results}
    for op in ops:
        if op.name == "tpu.Yield" and op.parent is not None:
            stores = [found[value] for value in op.operands]
            found |= dict(zip(ops[op.parent].results, stores, strict=True))
    return found


# -- local memory of a group ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Op:
    """An op inside of a group. index: of its record. brings: what it puts into local memory."""

    index: int
    record: OpRecord
    ginfo: Ginfo
    brings: str


@dataclass(frozen=True)
class _Buffer:
    """A buffer of a group. address, nbytes: per lane. touched: by whom, the op that fills it first."""

    op: _Op
    scratch: bool
    address: int
    nbytes: int
    touched: tuple[Touch, ...]

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.address + self.nbytes

    @cached_property
    def first(self) -> int:
        """Time of the first touch on slice 0."""
        return min(touch.time for touch in self.touched)

    @cached_property
    def last(self) -> int:
        """Time of the last one."""
        return max(touch.time for touch in self.touched)

    @property
    def held(self) -> bool:
        """Filled once, for all slices."""
        return bool(self.op.record.attributes.get("held", False))

    def taken_over_by(self, other: _Buffer) -> bool:
        """Whether the other one may lie here though it is filled by an op that still reads this one."""
        return (
            not other.scratch
            and other.op.record.kind in IN_PLACE
            and not self.held
            and (self.address, self.nbytes) == (other.address, other.nbytes)
            and self.op.record.result_types[0].dtype == other.op.record.result_types[0].dtype
            and self.last == other.first
            and {touch.item for touch in self.touched if touch.time == self.last} == {other.op.ginfo.id}
        )

    def __str__(self) -> str:
        return f"scratch of {self.op.brings}" if self.scratch else self.op.brings


@dataclass(frozen=True)
class _Group:
    """A group. ops: by id, in the order of the region. steps: ids of each time step. rows: indices of its instructions;
    op, opcode, step: record, opcode and time of each of them; tensors: result and operands."""

    record: OpRecord
    ops: Mapping[int, _Op]
    steps: tuple[tuple[int, ...], ...]
    rows: Array
    op: Array
    opcode: Array
    step: Array
    tensors: Array

    @classmethod
    def of(cls, ops: Sequence[OpRecord], index: int, program: np.ndarray) -> _Group:
        """The group at a record."""
        made_at = {value: op.location for op in ops for value in op.results}
        inner = [
            _Op(
                at,
                op,
                Ginfo.of(op.attributes["ginfo"]),
                made_at[op.operands[0] if op.kind == "Load" else op.results[0]],
            )
            for at, op in enumerate(ops)
            if op.parent == index and "ginfo" in op.attributes
        ]
        rows = np.flatnonzero(np.isin(program["op"], [op.index for op in inner]))
        part = program[rows]
        return cls(
            ops[index],
            {op.ginfo.id: op for op in inner},
            flow_steps(ops[index].attributes["flow"]),
            rows,
            part["op"],
            part["opcode"],
            part["step"].astype(np.int64),
            tensors_of(part),
        )

    @cached_property
    def buffers(self) -> tuple[_Buffer, ...]:
        """Every buffer; none where ops run otherwise than once a slice."""
        if self.record.attributes["group_type"] not in SLICED:
            return ()
        found = []
        for number, touched in touches(self.ops.values(), self.steps).items():
            op, ginfo = self.ops[number], self.ops[number].ginfo
            found.append(_Buffer(op, False, ginfo.out_addr, ginfo.out_size, touched))
            if ginfo.buffer_size:
                found.append(_Buffer(op, True, ginfo.buffer_addr, ginfo.buffer_size, touched[:1]))
        return tuple(found)

    def reserved(self) -> Iterator[Reserved]:
        """Every buffer, kept from all ops but the one that fills it; from that one while the slice before is in use,
        and where its result and its scratch lie in one place."""
        rows = len(self.steps)
        for buffer in self.buffers:
            heirs = [other.op.index for other in self.buffers if buffer.taken_over_by(other)]
            mine = self.op == buffer.op.index
            foreign = self._is_live(buffer) & ~mine & ~np.isin(self.op, heirs) & ~self._spreads(buffer)
            yield Reserved(None, buffer.address, buffer.end, self.rows[foreign], str(buffer))
            if buffer.last - buffer.first >= rows and not buffer.held:
                again = mine & (self.step >= buffer.first + rows)
                holds = f"{buffer} of the slice before"
                yield Reserved(None, buffer.address, buffer.end, self.rows[again], holds)
            if buffer.scratch:
                ginfo = buffer.op.ginfo
                start = max(buffer.address, ginfo.out_addr)
                end = min(buffer.end, ginfo.out_addr + ginfo.out_size)
                if start < end:
                    yield Reserved(None, start, end, self.rows[mine], f"{buffer.op.brings} and its scratch")

    def _spreads(self, buffer: _Buffer) -> Array:
        """Which instructions copy a vector from the lane where it lies to all lanes, in place."""
        if max(buffer.op.ginfo.lengths[DIMENSIONS.index("c")]) > 1:
            return np.zeros(len(self.rows), bool)
        at_buffer = (self.tensors["address"][:, :2] == buffer.address).all(axis=1)
        return np.asarray((self.opcode == Opcode.LANE_BROADCAST) & at_buffer)

    def _is_live(self, buffer: _Buffer) -> Array:
        """Whether a buffer is in use, on whatever slice, when each instruction runs."""
        rows, last_slice = len(self.steps), prod(self.record.attributes[name] for name in SECS) - 1
        newest = np.clip((self.step - buffer.first) // rows, 0, last_slice)
        end = buffer.last + rows * (last_slice if buffer.held else newest)
        return np.asarray((self.step >= buffer.first) & (self.step <= end))

    def owners(self, lanes: int) -> Array:
        """For each result and operand, [instructions of the group, 1 + OPERANDS], a number of the buffer in which it
        lies; 0 where `bank_conflicts` says that it may share banks. Whatever lies in no buffer has its own number.

        `bank_conflicts` names what fills the buffers; where ops run otherwise than once a slice, what uses them.
        """
        noted = set(self.record.attributes.get("bank_conflicts", ()))
        found = 1 + len(self.buffers) + np.arange(self.tensors.size).reshape(self.tensors.shape)
        if self.record.attributes["group_type"] not in SLICED:
            found[np.isin(self.op, [op.index for number, op in self.ops.items() if number in noted])] = 0
            return found
        start, end = (at.reshape(found.shape) for at in extents(self.tensors.reshape(-1), lanes))
        for number, buffer in enumerate(self.buffers, 1):
            inside = (start >= buffer.address) & (end <= buffer.end)
            inside &= self._is_live(buffer)[:, None]
            found[inside] = 0 if buffer.op.ginfo.id in noted else number
        return found
