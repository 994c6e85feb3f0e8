"""What loads and stores of a streamed group move: the part of a DDR tensor, and the local tensor for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

from engine.passes.layer_group.stream.pieces import Piece, piece_bytes
from engine.snapshot import TensorType
from engine.tpu.chip import Chip
from engine.tpu.cores import Range
from engine.tpu.emit import Emitter, align_up, ceil_div
from engine.tpu.isa import Global, Opcode, Shape4, dtype_bytes


class Role(Enum):
    """What a tensor is to its group.

    ROWS: an activation, tokens on the lanes. VECTOR: a norm's weight, in lane 0. WEIGHT: [N, K bytes], rows on the
    lanes. PARAMETER: scales or zero points [lanes, blocks, groups]. BIAS: [N], in every lane.
    """

    ROWS = "rows"
    VECTOR = "vector"
    WEIGHT = "weight"
    PARAMETER = "parameter"
    BIAS = "bias"


@dataclass(frozen=True)
class Part:
    """A part of a tensor. rows: tokens, of activations; columns: of activations and vectors, or those of the product
    that a weight, parameter or bias is for."""

    rows: Range
    columns: Range


def dense_shape(type_: TensorType, role: Role) -> Shape4:
    """The (n, c, h, w) as which a streamed group reads a DDR tensor."""
    shape = type_.shape
    match role:
        case Role.ROWS:
            return (1, prod(shape[:2]), 1, prod(shape[2:]))
        case Role.WEIGHT:
            return (1, shape[0], 1, shape[1])
        case Role.PARAMETER:
            return (1, *shape)  # type: ignore[return-value]
        case _:
            return (1, 1, 1, prod(shape))


def part_box(type_: TensorType, role: Role, part: Part, lanes: int) -> tuple[Shape4, Shape4]:
    """Start and length of a part in n, c, h, w of `dense_shape`."""
    _, c, _, w = dense_shape(type_, role)
    start, count = part.columns
    match role:
        case Role.ROWS:
            return (0, part.rows[0], 0, start), (1, part.rows[1], 1, count)
        case Role.WEIGHT:
            return (0, start, 0, 0), (1, count, 1, w)
        case Role.PARAMETER:
            return (0, 0, start // lanes, 0), (1, c, ceil_div(count, lanes), w)
        case _:
            return (0, 0, 0, start), (1, 1, 1, count)


def box_part(role: Role, starts: Shape4, lengths: Shape4, lanes: int) -> Part:
    """Inverse of `part_box`; a parameter's columns are rounded up to whole sets of lanes."""
    match role:
        case Role.ROWS:
            return Part((starts[1], lengths[1]), (starts[3], lengths[3]))
        case Role.WEIGHT:
            return Part((0, 1), (starts[1], lengths[1]))
        case Role.PARAMETER:
            return Part((0, 1), (starts[2] * lanes, lengths[2] * lanes))
        case _:
            return Part((0, 1), (starts[3], lengths[3]))


def local_bytes(chip: Chip, type_: TensorType, role: Role, part: Part) -> int:
    """Bytes per lane of a loaded part that has its place to itself."""
    _, (_, _, h, w) = part_box(type_, role, part, chip.lanes)
    size = dtype_bytes(type_.dtype)
    match role:
        case Role.ROWS:
            return piece_bytes(chip, type_.dtype, part.rows[1], part.columns[1])
        case Role.WEIGHT:
            return ceil_div(part.columns[1], chip.lanes) * align_up(w * size, chip.eu_bytes)
        case _:
            return align_up(h * w * size, chip.eu_bytes)


def touched_bytes(chip: Chip, type_: TensorType, role: Role, part: Part) -> int:
    """Bytes of a lane that a part fills, which begins anywhere in the place of a larger one."""
    _, (_, _, h, w) = part_box(type_, role, part, chip.lanes)
    return local_bytes(chip, type_, role, part) if role is Role.WEIGHT else h * w * dtype_bytes(type_.dtype)


def remote(emit: Emitter, type_: TensorType, role: Role, part: Part) -> Global:
    """The part in DDR."""
    whole = dense_shape(type_, role)
    (_, c, h, w), (_, nc, nh, nw) = part_box(type_, role, part, emit.chip.lanes)
    _, _, height, width = whole
    shape: Shape4 = (1, nc, nh, nw)
    if role is Role.PARAMETER:  # one piece a lane: blocks lie together
        shape = (1, nc, 1, nh * nw)
    stride = (0, height * width, width if role is not Role.PARAMETER else height * width, 1)
    return emit.ddr(type_, shape, stride, (c * height + h) * width + w)


def load(emit: Emitter, type_: TensorType, role: Role, part: Part, place: Piece | int) -> None:
    """Emit the load of a part. place: the piece of an activation, or the address of anything else."""
    source = remote(emit, type_, role, part)
    if isinstance(place, Piece):
        emit.load(place.matrix(emit.chip), source)
    elif role is Role.BIAS:
        local = emit.local(place, type_.dtype, (1, emit.chip.lanes, 1, source.shape[3]))
        emit.load(local, source, Opcode.BROADCAST)
    else:
        emit.load(emit.local(place, type_.dtype, source.shape), source)


def store(emit: Emitter, type_: TensorType, part: Part, piece: Piece) -> None:
    """Emit the store of a part of an activation."""
    emit.store(remote(emit, type_, Role.ROWS, part), piece.matrix(emit.chip))
