"""How tensors of a group are read as [n, c, d, h, w], and what they take in local memory."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod

from engine.passes.layer_group.plan import GroupType
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up, ceil_div
from engine.tpu.isa import Shape4, dtype_bytes


class Role(Enum):
    """What an op does with an operand: rows are sliced with the result, the others are taken whole.

    ROWS: an activation. VECTOR: a weight that every row meets, in lane 0 (gamma, bias). MATRIX: a [K, N] weight, its
    rows on lanes.
    """

    ROWS = "rows"
    VECTOR = "vector"
    MATRIX = "matrix"


SMALL_CHANNEL_KINDS = frozenset({"RMSNorm", "Add", "Mul", "Active", "Cast"})
"""Kinds of ops whose channels may be lanes of any kind: nothing in them knows tokens from heads."""


def group_types(records: Sequence[OpRecord]) -> tuple[GroupType, ...]:
    """How a group of these ops may read its tensors (layer-group account, section 2), the usual way first.

    Heads [1, L, heads, d] may be spread over the lanes if no op tells tokens from heads; everything else of an LLM has
    its tokens on the lanes. Neither is always cheaper: heads on the lanes use all lanes in decode, but make every head
    a DDR row, which is slow when it is shorter than a burst.
    """
    ranks = {len(record.result_types[0].shape) for record in records}
    if ranks == {4} and all(record.kind in SMALL_CHANNEL_KINDS for record in records):
        return (GroupType.SMALL_C, GroupType.MM)
    return (GroupType.MM,)


def read_as(shape: Sequence[int], type_: GroupType, lanes: int) -> Shape4:
    """The (n, c, h, w) as which a group of this type reads an activation; d is 1 everywhere.

    NORMAL, MM: the first dims are n, c, h, the product of the others w. SMALL_C: three dims [a, b, c] are one n of a*b
    channels; of four dims all but the last make channels, a full set of lanes each if that comes out even.
    """
    padded = (*shape, 1, 1, 1)
    if type_ is not GroupType.SMALL_C:
        return (padded[0], padded[1], padded[2], prod(shape[3:]))
    if len(shape) <= 3:
        return (1, padded[0] * padded[1], padded[2], 1)
    rows = prod(shape[:3])
    if rows % lanes == 0:
        return (rows // lanes, lanes, shape[3], 1)
    return (shape[0] * shape[1], shape[2], shape[3], 1)


def read_weight(shape: Sequence[int], role: Role) -> Shape4:
    """The (n, c, h, w) of a weight: a vector is one channel, a matrix has its rows as channels."""
    if role is Role.VECTOR:
        return (1, 1, prod(shape), 1)
    return (1, shape[0], prod(shape[1:]), 1)


def lane_bytes(chip: Chip, dtype: str, shape: Shape4, *, aligned: bool = True) -> int:
    """Bytes per lane of a local tensor as `Emitter.local` lays it out."""
    n, c, h, w = shape
    plane = h * w * dtype_bytes(dtype)
    if aligned:
        plane = align_up(plane, chip.eu_bytes)
    return n * ceil_div(c, chip.lanes) * plane
