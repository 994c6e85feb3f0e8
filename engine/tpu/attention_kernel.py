"""The attention kernel: an online softmax over key blocks (rules R22 to R24; block sizes in `attention_blocks`).

For each group of heads and each query tile: load the queries; then for each key block compute while the next block
loads; at the end divide by the row sums and store. Keys, values and mask are double buffered by block number.

History of data-dependent length. Every instruction of a history key block, its load included, carries the block's
first row, so a block at or beyond the length vanishes as a whole. What is left is a correct program whichever blocks
vanish: a block reads only what its own load brought, plus the running maximum, sum and output. The load of block
i + 1 is issued in the step of block i, into the other half of the buffers, and waits for all compute up to block
i - 1. The first block of new rows always runs, and so does its load: when the block before it has vanished, "all
compute up to block i - 1" ends with the last block that did run (queues are in order), so its half is free whatever
its number. In the block that the length cuts, a HISTORY_TAIL fill hides the columns beyond it; the value rows there
are multiplied by 0, so they must be finite.

f32 uses MM on column-split operands, which the TIU's transposes make from rows on lanes; all else is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from engine.snapshot import OpRecord
from engine.top.ops.attention import MASKED
from engine.tpu.attention_blocks import (
    COEFFICIENTS,
    AttentionLayout,
    AttentionShape,
    KeyBlock,
    attention_blocks,
    key_blocks,
)
from engine.tpu.cores import Range
from engine.tpu.emit import Emitter, align_up, constant
from engine.tpu.isa import HISTORY_TAIL, UNSTRIDED, Local, Opcode, Rounding, Shape4, dtype_bytes

QUERIES, KEYS, VALUES, MASK = range(4)

LOWEST = constant(-15e9)
"""Start of the running maximum, and the score of columns that only fill up a window of the poolings."""
HIDDEN = constant(float(MASKED))
ZERO, ONE = constant(0.0), constant(1.0)
EXPONENT_FLOOR = constant(-100.0)
"""From here down e ** x is 0 in f32; the limit keeps the polynomial's argument small where scores are hidden."""
LOG2_E, LN_2 = constant(1.4426950408889634), constant(0.6931471805599453)
LARGEST_POWER, SMALLEST_POWER = constant(127, "si16"), constant(-127, "si16")
BIAS, MANTISSA_BITS = constant(127, "si32"), constant(23, "ui8")
EXPONENTIAL_TABLE = constant(0)


def attention_shape(op: OpRecord, kv_heads: int | None = None) -> AttentionShape:
    """The block search's view of a tpu.FAttention, of all or some of its KV heads with their query heads."""
    queries, _, _, mask, history = op.operand_types
    a = op.attributes
    kv_heads = a["kv_head"] if kv_heads is None else kv_heads
    return AttentionShape(
        queries=a["mq"],
        keys=a["mk"],
        dim=a["dim"],
        heads=a["q_head"] // a["kv_head"] * kv_heads,
        kv_heads=kv_heads,
        mask_size=a["mask_size"],
        element_bytes=dtype_bytes(queries.dtype),
        mask_bytes=dtype_bytes(queries.dtype if mask.is_none else mask.dtype),
        split_history=not history.is_none,
    )


class _Power(NamedTuple):
    """Four buffers of one shape with integer views. x: the exponents, lost; the powers of e end in `result`."""

    x: Local
    result: Local
    a: Local
    a_int16: Local
    a_int32: Local
    b: Local
    b_int16: Local

    @classmethod
    def at(cls, emit: Emitter, shape: Shape4, *, x: int, result: int, a: int, b: int) -> _Power:
        """Buffers at four addresses."""
        places = [(x, "f32"), (result, "f32"), (a, "f32"), (a, "si16"), (a, "si32"), (b, "f32"), (b, "si16")]
        return cls(*(emit.local(address, dtype, shape) for address, dtype in places))


class _Tile:
    """Local tensors that live through a query tile: shape [count, channels, 1, dim], queries on lanes."""

    def __init__(self, emit: Emitter, layout: AttentionLayout, shape: Shape4, dtype: str) -> None:
        count, channels, _, dim = shape
        slots, column = layout.slots, (count, channels, 1, 1)
        self.count, self.channels, self.dim = count, channels, dim
        self.maximum = emit.local(layout.maximum, "f32", column)
        self.new_maximum = emit.local(layout.new_maximum, "f32", column)
        self.total = emit.local(layout.total, "f32", column)
        self.scaled_total = emit.local(layout.scaled_total, "f32", column)
        self.power = _Power.at(emit, column, x=slots[2], result=layout.correction, a=slots[1], b=slots[0])
        self.correction = self.power.result
        self.wide_correction = _widen(self.correction, dim)
        self.wide_total = _widen(self.total, dim)
        self.output = emit.local(layout.output, "f32", shape)
        self.partial = emit.local(slots[2], "f32", shape)
        self.partials = _matrices(self.partial)
        self.rounded = self.output if dtype == "f32" else emit.local(slots[0], dtype, shape)
        self.query = emit.local(layout.queries, dtype, shape)
        self.queries = _matrices(self.query)
        self.split_queries = _matrices(emit.local(layout.split_queries, "f32", (count, dim, 1, channels)))
        self.split_output = emit.local(layout.split_output, "f32", (1, dim, 1, channels))


class _Block:
    """Local tensors of a key block's work in one half (0 ping, 1 pong) of the double buffers."""

    def __init__(
        self, emit: Emitter, layout: AttentionLayout, tile: _Tile, keys: Shape4, half: int, dtype: str
    ) -> None:
        slots, length = layout.slots, keys[1]
        shape = (tile.count, tile.channels, 1, length)
        self.key = emit.local(layout.keys[half], dtype, keys)
        self.value = emit.local(layout.values[half], dtype, keys)
        self.keys, self.values = _matrices(self.key), _matrices(self.value)
        self.power = _Power.at(emit, shape, x=slots[2], result=slots[0], a=slots[1], b=slots[3])
        self.scores, self.weights = self.power.b, self.power.result
        self.score_matrices = _matrices(self.scores)
        self.rounded = self.weights if dtype == "f32" else emit.local(slots[1], dtype, shape)
        self.rounded_matrices = _matrices(self.rounded)
        self.wide_maximum = _widen(tile.new_maximum, length)
        self.added_mask = emit.local(slots[2], "f32", (1, *shape[1:]))

        # A row's maximum and sum go through windows of one step of a lane; a short last window needs neutral columns.
        window = emit.chip.eu(4)
        self.fill = align_up(length, window) - length
        self.score_fill = self.scores.view((*shape[:3], self.fill), offset=4 * length)
        self.weight_fill = self.weights.view((*shape[:3], self.fill), offset=4 * length)
        self.score_windows = _windows(self.scores, window)
        self.weight_windows = _windows(self.weights, window)
        self.pooled = emit.local(slots[2], "f32", (*shape[:3], window))
        self.peak = emit.local(slots[0], "f32", (*shape[:3], 1))
        self.sum = emit.local(slots[3], "f32", (*shape[:3], 1))

        self.split_scores = emit.local(layout.split_scores, "f32", (1, length, 1, tile.channels))
        self.split_values = emit.local(layout.split_values, "f32", (1, tile.dim, 1, length))


class AttentionKernel:
    """Emits one tpu.FAttention, run globally on one core.

    kv_heads: the most KV heads that one core works on, by which the blocks are chosen (R51); None for all.
    """

    def __init__(self, op: OpRecord, emit: Emitter, kv_heads: int | None = None) -> None:
        self.emit, self.shape = emit, attention_shape(op, kv_heads)
        self.query_row, self.key_row = (
            op.attributes[heads] * self.shape.dim for heads in ("q_head", "kv_head")
        )
        self.blocks = attention_blocks(emit.chip, self.shape)
        self.layout = AttentionLayout(emit.chip, self.shape, self.blocks)
        self.dtype = op.operand_types[QUERIES].dtype
        mask = op.operand_types[MASK]
        self.mask_dtype = None if mask.is_none else mask.dtype
        self.mask_columns = self.shape.mask_size or self.shape.keys
        self.mask_elements = mask.elements
        self.scale = constant(op.attributes["scale"])
        self.flags = UNSTRIDED if self.shape.mask_size else 0  # as the reference's causal kernel (R24)
        self.table = emit.local(self.layout.table, "f32", (1, emit.chip.lanes, 1, COEFFICIENTS))
        self.tile_at = cache(self._new_tile)
        self.block_at = cache(self._new_block)

    @property
    def tiles(self) -> list[Range]:
        """All query tiles."""
        rows, queries = self.blocks.rows, self.shape.queries
        return [(first, min(rows, queries - first)) for first in range(0, queries, rows)]

    def run(self, heads: Range | None = None, tiles: Sequence[Range] | None = None) -> None:
        """Emit everything, or only some KV heads or query tiles: head groups outside, query tiles inside."""
        blocks = self.blocks
        start, count = heads or (0, self.shape.kv_heads)
        self.emit.tiu(Opcode.STATIC_BROADCAST, self.table, EXPONENTIAL_TABLE)
        for kv_head in range(start, start + count, blocks.kv_heads):
            kv_heads = min(blocks.kv_heads, start + count - kv_head)
            for first, rows in self.tiles if tiles is None else tiles:
                self._query_tile(kv_head, kv_heads, first, rows)
        self.emit.sync()

    def _query_tile(self, kv_head: int, kv_heads: int, first: int, rows: int) -> None:
        emit, heads = self.emit, kv_heads * self.shape.ratio
        count, channels = (1, heads) if self.blocks.packed else (heads, rows)
        tile = self.tile_at(count, channels)
        steps = [
            (part, self.block_at(count, channels, kv_heads, part.length, number % 2), number % 2)
            for number, part in enumerate(key_blocks(self.shape, self.blocks, first, rows))
        ]
        memory = self._rows_in_memory(count, channels, kv_head * self.shape.ratio, first)
        emit.sync()
        emit.load(tile.query, emit.source(QUERIES, *memory), flags=self.flags)
        emit.sync()
        self._start(tile)
        emit.sync()
        self._load(kv_head, rows, *steps[0])
        for number, step in enumerate(steps):
            emit.sync()
            emit.step += 1
            if number + 1 < len(steps):
                self._load(kv_head, rows, *steps[number + 1])
            self._compute(tile, rows, *step)
        self._finish(tile)
        emit.sync()
        emit.store(emit.target(0, *memory), tile.rounded, flags=self.flags)

    def _rows_in_memory(self, count: int, channels: int, head: int, first: int) -> tuple[Shape4, Shape4, int]:
        """Shape, strides and offset (elements) of a tile's queries and output, which lie [query, head, dim] in DDR."""
        dim, row = self.shape.dim, self.query_row
        stride = (row, dim, dim, 1) if self.blocks.packed else (dim, row, dim, 1)
        return (count, channels, 1, dim), stride, first * row + head * dim

    # -- key blocks ------------------------------------------------------------------------------------------------

    def _load(self, kv_head: int, rows: int, part: KeyBlock, block: _Block, half: int) -> None:
        emit, dim, row = self.emit, self.shape.dim, self.key_row
        emit.history = part.history
        memory = (block.key.shape, (dim, row, dim, 1), part.start * row + kv_head * dim)
        emit.load(block.key, emit.source(KEYS, *memory), flags=self.flags)
        emit.load(block.value, emit.source(VALUES, *memory), flags=self.flags)
        if self.mask_dtype is not None and part.mask is not None:
            first, column = part.mask
            mask = self._mask(rows, part.length, half)
            stride = (self.mask_elements, self.mask_columns, self.mask_columns, 1)
            emit.load(mask, emit.source(MASK, mask.shape, stride, first * self.mask_columns + column))
        emit.history = 0

    def _compute(self, tile: _Tile, rows: int, part: KeyBlock, block: _Block, half: int) -> None:
        """Fold a key block into the running maximum, sum and output."""
        self.emit.history = part.history
        self._score(tile, block)
        if self.mask_dtype is not None and part.mask is not None:
            self._add_mask(block, self._mask(rows, part.length, half))
        self._update_maximum(tile, block)
        self._update_sum(tile, block)
        self._update_output(tile, block)
        self.emit.history = 0

    def _start(self, tile: _Tile) -> None:
        emit = self.emit
        emit.tiu(Opcode.COPY, tile.maximum, LOWEST)
        emit.tiu(Opcode.COPY, tile.total, ZERO)
        emit.tiu(Opcode.COPY, tile.output, ZERO)
        if self.dtype == "f32":
            for split, query in zip(tile.split_queries, tile.queries, strict=True):
                self._transpose(split, query)

    def _score(self, tile: _Tile, block: _Block) -> None:
        """scores = queries keys^T * scale, each query head with its KV head."""
        emit = self.emit
        for number, scores in enumerate(block.score_matrices):
            keys = block.keys[self._kv_of(number)]
            if self.dtype == "f32":
                left = _by_column(tile.split_queries[number])
                emit.tiu(Opcode.MM, _by_column(block.split_scores), left, _by_column(keys))
                self._transpose(scores, block.split_scores)
            else:
                emit.tiu(Opcode.MM2_NT, scores, tile.queries[number], keys)
        emit.tiu(Opcode.MUL, block.scores, block.scores, self.scale)
        if emit.history:
            emit.tiu(Opcode.COPY, block.scores, HIDDEN, flags=HISTORY_TAIL)

    def _add_mask(self, block: _Block, mask: Local) -> None:
        emit, scores, added = self.emit, block.scores, block.added_mask
        if mask.dtype != "f32":
            cast = emit.local(added.address, "f32", mask.shape)
            emit.tiu(Opcode.CAST, cast, mask)
            mask = cast
        if self.blocks.packed:
            emit.tiu(Opcode.LANE_BROADCAST, added, mask)
            mask = added
        every_head = mask.view(scores.shape, (0, *mask.stride[1:]))
        emit.tiu(Opcode.ADD, scores, every_head, scores)

    def _update_maximum(self, tile: _Tile, block: _Block) -> None:
        """New maximum of each row; what came before shrinks by the correction e ** (old - new)."""
        emit = self.emit
        if block.fill:
            emit.tiu(Opcode.COPY, block.score_fill, LOWEST)
        emit.tiu(Opcode.POOL_MAX, block.pooled, block.score_windows, kernel=(block.score_windows.shape[2], 1))
        emit.tiu(Opcode.POOL_MAX, block.peak, block.pooled, kernel=(1, block.pooled.shape[3]))
        emit.tiu(Opcode.MAX, tile.new_maximum, tile.maximum, block.peak)
        emit.tiu(Opcode.SUB, tile.power.x, tile.maximum, tile.new_maximum)
        emit.tiu(Opcode.COPY, tile.maximum, tile.new_maximum)
        self._exponential(tile.power)
        emit.tiu(Opcode.MUL, tile.output, tile.wide_correction, tile.output)
        emit.tiu(Opcode.MUL, tile.scaled_total, tile.total, tile.correction)

    def _update_sum(self, tile: _Tile, block: _Block) -> None:
        """weights = e ** (scores - maximum), and their sum."""
        emit = self.emit
        emit.tiu(Opcode.SUB, block.power.x, block.scores, block.wide_maximum)
        self._exponential(block.power)
        if block.fill:
            emit.tiu(Opcode.COPY, block.weight_fill, ZERO)
        emit.tiu(
            Opcode.POOL_AVG,
            block.pooled,
            block.weight_windows,
            ONE,
            kernel=(block.weight_windows.shape[2], 1),
        )
        emit.tiu(Opcode.POOL_AVG, block.sum, block.pooled, ONE, kernel=(1, block.pooled.shape[3]))
        emit.tiu(Opcode.ADD, tile.total, tile.scaled_total, block.sum)

    def _update_output(self, tile: _Tile, block: _Block) -> None:
        """output += weights values."""
        emit = self.emit
        if self.dtype != "f32":
            emit.tiu(Opcode.CAST, block.rounded, block.weights)
        for number, (weights, partial) in enumerate(zip(block.rounded_matrices, tile.partials, strict=True)):
            values = block.values[self._kv_of(number)]
            if self.dtype == "f32":
                self._transpose(block.split_scores, weights)
                self._transpose(block.split_values, values)
                left, right = _by_column(block.split_scores), _by_column(block.split_values)
                emit.tiu(Opcode.MM, _by_column(tile.split_output), left, right)
                self._transpose(partial, tile.split_output)
            else:
                emit.tiu(Opcode.MM2_NN, partial, weights, values)
        emit.tiu(Opcode.ADD, tile.output, tile.output, tile.partial)

    def _finish(self, tile: _Tile) -> None:
        emit = self.emit
        emit.tiu(Opcode.DIV, tile.total, ONE, tile.total)
        emit.tiu(Opcode.MUL, tile.output, tile.wide_total, tile.output)
        if self.dtype != "f32":
            emit.tiu(Opcode.CAST, tile.rounded, tile.output)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _exponential(self, p: _Power) -> None:
        """result = e ** x as 2 ** k * e ** r: k = floor(x log2 e) becomes the exponent field, e ** r a polynomial."""
        emit = self.emit
        emit.tiu(Opcode.MAX, p.result, p.x, EXPONENT_FLOOR)
        emit.tiu(Opcode.COPY, p.a, p.result)
        emit.tiu(Opcode.MUL, p.b, p.a, LOG2_E)
        emit.tiu(Opcode.CAST, p.a, p.b, rounding=Rounding.DOWN)
        emit.tiu(Opcode.MUL, p.b, p.a, LN_2)
        emit.tiu(Opcode.SUB, p.x, p.result, p.b)
        emit.tiu(Opcode.CAST, p.b_int16, p.a, rounding=Rounding.HALF_AWAY)
        emit.tiu(Opcode.MIN, p.a_int16, p.b_int16, LARGEST_POWER)
        emit.tiu(Opcode.MAX, p.b_int16, p.a_int16, SMALLEST_POWER)
        emit.tiu(Opcode.ADDS, p.a_int32, p.b_int16, BIAS, MANTISSA_BITS, rounding=Rounding.HALF_AWAY)
        emit.tiu(Opcode.TAYLOR, p.b, p.x, self.table, kernel=(1, COEFFICIENTS))
        emit.tiu(Opcode.MUL, p.result, p.b, p.a)

    def _transpose(self, result: Local, source: Local) -> None:
        """result [1, w, 1, c] = source [1, c, 1, w]; the longer side decides the form, as in R21."""
        _, c, _, w = source.shape
        self.emit.tiu(Opcode.WC_TRANSPOSE if c >= w else Opcode.CW_TRANSPOSE, result, source)

    def _kv_of(self, matrix: int) -> int:
        return 0 if self.blocks.packed else matrix // self.shape.ratio

    def _mask(self, rows: int, length: int, half: int) -> Local:
        assert self.mask_dtype is not None
        return self.emit.local(self.layout.mask[half], self.mask_dtype, (1, rows, 1, length))

    def _new_tile(self, count: int, channels: int) -> _Tile:
        return _Tile(self.emit, self.layout, (count, channels, 1, self.shape.dim), self.dtype)

    def _new_block(self, count: int, channels: int, kv_heads: int, length: int, half: int) -> _Block:
        keys = (kv_heads, length, 1, self.shape.dim)
        return _Block(self.emit, self.layout, self.tile_at(count, channels), keys, half, self.dtype)


def _matrices(tensor: Local) -> list[Local]:
    """[n, c, 1, w] as n matrices [1, c, 1, w]."""
    n, c, h, w = tensor.shape
    step = tensor.stride[0] * dtype_bytes(tensor.dtype)
    return [tensor.view((1, c, h, w), offset=i * step) for i in range(n)]


def _widen(column: Local, width: int) -> Local:
    """[n, c, 1, 1] read as [n, c, 1, width] with equal columns."""
    n, c, _, _ = column.shape
    return column.view((n, c, 1, width), (column.stride[0], column.stride[1], 1, 0))


def _windows(tensor: Local, window: int) -> Local:
    """[n, c, 1, w], each row padded to whole windows, as [n, c, windows, window]."""
    n, c, _, w = tensor.shape
    return tensor.view((n, c, align_up(w, window) // window, window), (*tensor.stride[:2], window, 1))


def _by_column(tensor: Local) -> Local:
    """[1, c, 1, w] as the column-split matrix [w, c, 1, 1] that lies in the same bytes."""
    _, c, _, w = tensor.shape
    return tensor.view((w, c, 1, 1), (1, tensor.stride[1], 1, 1))
