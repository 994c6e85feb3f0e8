"""When the ops of a layer group touch each other's results in local memory, from their records.

Time is counted in time steps of slice 0: an op of stage s in row r works on it at s * rows + r, and on slice i `rows`
times i later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.snapshot import OpRecord
from engine.tpu.ginfo import Ginfo
from engine.tpu.isa import Engine

IN_PLACE = frozenset({"Add", "Mul"})
"""Kinds of ops whose result may lie where an operand lies that dies with it: each element is read before written."""


SLICED = (0, 2, 4)
"""Numbers of the group types whose ops run once a slice: NORMAL, SMALL_C and MM."""
STREAMED = 16
"""Number of the type of groups that stream weights, whose ops run once a piece; see `stream_memory`."""


class PlacedOp(Protocol):
    """An op of a group with its place and time."""

    @property
    def record(self) -> OpRecord:
        """The op."""

    @property
    def ginfo(self) -> Ginfo:
        """Where and when."""


@dataclass(frozen=True)
class Touch:
    """An engine reads or writes a buffer. item: id of the op."""

    time: int
    engine: Engine
    item: int


def flow_steps(flow: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ids of each time step, of a group's attribute `flow`."""
    steps: list[list[int]] = []
    for entry in flow:
        if entry < 0:
            steps.append([])
        else:
            steps[-1].append(entry)
    return tuple(map(tuple, steps))


def touches(ops: Iterable[PlacedOp], steps: Sequence[Sequence[int]]) -> dict[int, tuple[Touch, ...]]:
    """For each op that puts something into local memory, by its id: who touches that, the op itself first.

    ops: in the order of the region. steps: ids of each time step. What reads a Reshape reads the memory of its operand.
    """
    row_of = {number: row for row, ids in enumerate(steps) for number in ids}
    found: dict[int, list[Touch]] = {}
    maker: dict[str, int] = {}
    for op in ops:
        record, ginfo = op.record, op.ginfo
        moves_data = record.kind in ("Load", "Store")
        sources = [maker[value] for value in record.operands if value in maker]
        if record.kind == "Reshape":
            maker[record.results[0]] = sources[0]
            continue
        engine = Engine.GDMA if moves_data else Engine.TIU
        touch = Touch(ginfo.stage * len(steps) + row_of[ginfo.id], engine, ginfo.id)
        for source in sources:
            found[source].append(touch)
        if record.kind != "Store":
            maker[record.results[0]] = ginfo.id
            found[ginfo.id] = [touch]
    return {number: tuple(touched) for number, touched in found.items()}
