"""tpu.Rope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.errors import UserError
from engine.op import TpuOp
from engine.snapshot import OpRecord
from engine.top.ops import rope as top
from engine.tpu.chip import Chip
from engine.tpu.cores import CoreSplit, narrowed, outermost_split
from engine.tpu.emit import Emitter, ceil_div, constant
from engine.tpu.isa import Local, Opcode, Shape4, dtype_bytes
from engine.tpu.numerics import round_to
from engine.tpu.tiling import largest_fitting, local_bytes


class Rope(TpuOp, top.Rope):
    """output = input * cos + rotate(input) * sin, every product and the sum rounded.

    input [1, L, heads, d]; sin, cos [1, L, 1, d] -> [1, L, heads, d].
    """

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        x, sin, cos = inputs
        assert x is not None
        dtype = op.result_types[0].dtype
        straight = round_to(x * cos, dtype)
        return (round_to(straight + round_to(top.rotate(x, op.attributes["rope_mode"]) * sin, dtype), dtype),)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Tiles of tokens (a token on one lane) and heads, double buffered (R3); commands as in groups (R34)."""
        batch, length, heads, size = op.result_types[0].shape
        dtype, tokens = op.result_types[0].dtype, batch * length
        tiles = _tiles(emit.chip, tokens, heads, size, dtype, op.location)
        sizes = _tile_sizes(emit.chip, tiles[0].shape, dtype)

        def tensors(q: int) -> tuple[list[Local], Local]:
            """x, sin, cos and the result of tile q: the first half of local memory for even q."""
            at, found = (q % 2) * sum(sizes[:4]), []
            shape = tiles[q].shape
            table = (1, shape[1], 1, size)
            for bytes_, tensor_shape in zip(sizes, (shape, table, table, shape), strict=False):
                found.append(emit.local(at, dtype, tensor_shape))
                at += bytes_
            return found[:3], found[3]

        def load(q: int) -> None:
            sources, tile = tensors(q)[0], tiles[q]
            stride = (tokens * heads * size, heads * size, size, 1)
            emit.load(sources[0], emit.source(0, tile.shape, stride, tile.offset(heads)))
            for index in (1, 2):
                emit.load(sources[index], emit.source(index, sources[index].shape, None, tile.token * size))

        def store(q: int) -> None:
            tile = tiles[q]
            stride = (tokens * heads * size, heads * size, size, 1)
            emit.store(emit.target(0, tile.shape, stride, tile.offset(heads)), tensors(q)[1])

        def compute(q: int) -> None:
            sources, result = tensors(q)
            cls.local(op, emit, sources, [result], 2 * sum(sizes[:4]))

        emit.pipeline(len(tiles), load, compute, store)

    @classmethod
    def core_split(cls, op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
        """Tokens, or the heads of a single one."""
        return outermost_split(op.result_types[0].shape[:-1], cores)

    @classmethod
    def kernel_parts(cls, op: OpRecord, emit: Emitter, split: CoreSplit) -> None:
        if split.dim not in (1, 2):
            raise ValueError(
                f"{op.location}: Rope is cut along tokens (1) or heads (2), not along {split.dim}"
            )
        for part in split.parts:
            emit.record = narrowed(op, split.dim, part, (0, 1, 2) if split.dim == 1 else (0,))
            emit.sync()
            cls.kernel(emit.record, emit)

    @classmethod
    def local_buffer(cls, chip: Chip, sources: Sequence[Local], results: Sequence[Local]) -> int:
        """Bytes of scratch: two tensors of the result's type and shape."""
        return 2 * local_bytes(chip, results[0].dtype, results[0].shape)

    @classmethod
    def local(
        cls, op: OpRecord, emit: Emitter, sources: Sequence[Local], results: Sequence[Local], buffer: int
    ) -> None:
        """x [n, tokens, heads, d], sin and cos [n, tokens, 1, d]; the result must not overlap x (R34).

        The rotated operand is built in the result's place.
        """
        x, sin, cos = sources
        result = results[0]
        turned = emit.local(buffer, x.dtype, x.shape, lane=x.lane)
        straight = turned.view(x.shape, offset=local_bytes(emit.chip, x.dtype, x.shape))
        step, second = (1, x.shape[3] // 2) if op.attributes["rope_mode"] == "contiguous_halves" else (2, 1)
        emit.tiu(Opcode.MUL, _half(result, second, step), _half(x, 0, step), constant(1.0, x.dtype))
        emit.tiu(Opcode.MUL, _half(result, 0, step), _half(x, second, step), constant(-1.0, x.dtype))
        emit.tiu(Opcode.MUL, turned, _over_heads(sin, x.shape), result)
        emit.tiu(Opcode.MUL, straight, _over_heads(cos, x.shape), x)
        emit.tiu(Opcode.ADD, result, turned, straight)


@dataclass(frozen=True)
class _Tile:
    """`shape` [1, tokens, heads, d] from the given token and head on."""

    token: int
    head: int
    shape: Shape4

    def offset(self, heads: int) -> int:
        """Elements before it in a tensor with that many heads."""
        return (self.token * heads + self.head) * self.shape[3]


def _tiles(chip: Chip, tokens: int, heads: int, size: int, dtype: str, location: str) -> list[_Tile]:
    """All heads with as many tokens as fit, spread evenly; a part of the heads if one token a lane is too much.

    Raises UserError, naming the op's location, when a single head does not fit.
    """
    lanes = chip.lanes

    def needed(per_lane: int, part: int, width: int = size) -> int:
        sizes = _tile_sizes(chip, (1, lanes * per_lane, part, width), dtype)
        return 2 * sum(sizes[:4]) + sizes[4]

    def fits(per_lane: int, part: int) -> bool:
        return needed(per_lane, part) <= chip.lmem_bytes

    part = next((part for part in range(heads, 0, -1) if fits(1, part)), None)
    if part is None:
        raise UserError(
            f"Rope at {location} on heads of {size} {dtype} elements does not fit local memory: even with one head a "
            f"lane it needs {needed(1, 1)} bytes a lane, {chip.name} has {chip.lmem_bytes}; heads of at most "
            f"{largest_fitting(chip, lambda width: needed(1, 1, width), range(2, size, 2))} elements fit; choose a "
            "chip with more local memory"
        )
    blocks = ceil_div(tokens, lanes)
    per_lane = next(count for count in range(blocks, 0, -1) if fits(count, part))
    step = lanes * ceil_div(blocks, ceil_div(blocks, per_lane))
    return [
        _Tile(token, head, (1, min(step, tokens - token), min(part, heads - head), size))
        for token in range(0, tokens, step)
        for head in range(0, heads, part)
    ]


def _tile_sizes(chip: Chip, shape: Shape4, dtype: str) -> tuple[int, int, int, int, int]:
    """Bytes per lane of x, sin, cos, the result and the scratch of a tile."""
    full = local_bytes(chip, dtype, shape)
    table = local_bytes(chip, dtype, (1, shape[1], 1, shape[3]))
    return (full, table, table, full, 2 * full)


def _half(tensor: Local, first: int, step: int) -> Local:
    """Every `step`-th of the elements of w from `first` on, half of them."""
    n, c, h, w = tensor.shape
    stride = (*tensor.stride[:3], step * tensor.stride[3])
    return tensor.view((n, c, h, w // 2), stride, offset=first * dtype_bytes(tensor.dtype))


def _over_heads(table: Local, shape: Shape4) -> Local:
    return table.view(shape, (*table.stride[:2], 0, 1))
