"""The instructions of A16MatMul run globally, tile by tile (rules R18 to R21, R50)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from engine.snapshot import OpRecord
from engine.tpu.a16_tiles import A16Layout, A16Shape, A16Tiles, choose_tiles
from engine.tpu.chip import Chip
from engine.tpu.cores import Range
from engine.tpu.emit import Emitter, align_up, ceil_div
from engine.tpu.isa import (
    ACCUMULATE,
    NIBBLES,
    Constant,
    Local,
    Opcode,
    Rounding,
    Shape4,
    dtype_bytes,
)

INPUT, WEIGHT, SCALE, ZERO_POINT, BIAS = range(5)
"""Operand numbers of A16MatMul."""

_LOW_NIBBLE = Constant(15, "ui8")
_HIGH_TO_LOW = Constant(-4, "si8")


def a16_shape(op: OpRecord, columns: int | None = None) -> A16Shape:
    """The product that an A16MatMul computes, or that of a part of its columns."""
    x, weight, _, _, bias = op.operand_types
    return A16Shape(
        rows=prod(x.shape[:-1]),
        columns=weight.shape[0] if columns is None else columns,
        depth=x.shape[-1],
        bits=op.attributes["weight_bits"],
        group=op.attributes["q_group_size"],
        bias=not bias.is_none,
    )


def emit_a16_matmul(op: OpRecord, emit: Emitter, part: Range | None = None) -> None:
    """Emit the op's tiles as a double-buffered pipeline; of `part`, the columns that one core computes, or of all.

    A part takes its rows of the weight, its own blocks of scale and zero point, which are one row a lane, and stores
    its columns where they belong in y: the parts need not be joined, and no byte is moved twice for them but x, which
    every core loads. Raises ValueError when scale and zero point are not in the lanes' order or the part does not begin
    with a lane, UserError when no tiling fits.
    """
    for number, name in ((SCALE, "scale"), (ZERO_POINT, "zero point")):
        if len(op.operand_types[number].shape) != 3:
            found = list(op.operand_types[number].shape)
            raise ValueError(
                f"the {name} of {op.location} is {found}, not [lanes, blocks, groups]: run weight-reorder"
            )
    width = op.operand_types[WEIGHT].shape[0]
    first, columns = part or (0, width)
    if first % emit.chip.lanes:
        raise ValueError(
            f"{op.location}: a core's columns begin at {first}, no multiple of the {emit.chip.lanes} lanes"
        )
    shape = a16_shape(op, columns)
    tiles = choose_tiles(emit.chip, shape)
    dtype, steps = op.operand_types[INPUT].dtype, tuple(_steps(shape, tiles))
    kernel = _Kernel(emit, dtype, shape, tiles, steps, first, width)
    emit.pipeline(len(kernel.steps), kernel.load, kernel.compute, kernel.store)


@dataclass(frozen=True)
class _Step:
    """One tile: offsets and sizes along M, N and K, and which half of each double buffer it uses."""

    row: int
    rows: int
    column: int
    columns: int
    start: int
    depth: int
    x_half: int
    half: int
    y_half: int
    loads_x: bool
    last: bool
    """Last part of K."""


def _steps(shape: A16Shape, tiles: A16Tiles) -> Iterator[_Step]:
    """The tiles in order: rows outermost, parts of K innermost (R19)."""
    count, x_count, y_count = 0, 0, 0
    for row in range(0, shape.rows, tiles.rows):
        for column in range(0, shape.columns, tiles.columns):
            for start in range(0, shape.depth, tiles.depth):
                loads_x = column == 0 or tiles.depth < shape.depth
                x_count += loads_x
                yield _Step(
                    row,
                    min(tiles.rows, shape.rows - row),
                    column,
                    min(tiles.columns, shape.columns - column),
                    start,
                    min(tiles.depth, shape.depth - start),
                    x_half=(x_count - 1) % 2,
                    half=count % 2,
                    y_half=y_count % 2,
                    loads_x=loads_x,
                    last=start + tiles.depth >= shape.depth,
                )
                count += 1
            y_count += 1


@dataclass(frozen=True)
class _Groups:
    """`count` groups of `length` columns, from `column` of a part of K on; `group` numbers the first of them."""

    column: int
    group: int
    count: int
    length: int


def _groups(start: int, depth: int, group: int) -> list[_Groups]:
    """A part of K as runs of equal groups: a head cut by the part's start, whole groups, a shorter tail."""
    runs, column = [], 0
    while column < depth:
        at = start + column
        length = min(group - at % group, depth - column)
        count = (depth - column) // group if length == group else 1
        runs.append(_Groups(column, at // group - start // group, count, length))
        column += count * length
    return runs


@dataclass(frozen=True)
class _Kernel:
    emit: Emitter
    dtype: str
    shape: A16Shape
    tiles: A16Tiles
    steps: tuple[_Step, ...]
    first: int
    """Column of the whole product at which the kernel's columns begin."""
    width: int
    """Columns of the whole product."""

    # -- transfers -------------------------------------------------------------------------------------------

    def load(self, q: int) -> None:
        """R20: x, weight, bias, scale, zero point; nothing twice that is still there from an earlier tile."""
        emit, shape, layout, step = self.emit, self.shape, self.tiles.layout, self.steps[q]
        if step.loads_x:
            offset = step.row * shape.depth + step.start
            emit.load(
                self._x(step),
                emit.source(INPUT, (1, step.rows, 1, step.depth), _rows(shape.depth), offset),
            )
        row = shape.depth * shape.bits // 8
        start, count = step.start * shape.bits // 8, step.depth * shape.bits // 8
        offset = (self.first + step.column) * row + start
        weight = emit.source(WEIGHT, (1, step.columns, 1, count), _rows(row), offset)
        emit.load(emit.local(layout.weight[step.half], "ui8", weight.shape), weight)
        if shape.bias and step.last:
            local = emit.local(
                self._packed(step, layout.bias), self.dtype, (1, emit.chip.lanes, 1, step.columns)
            )
            bias = emit.source(BIAS, (1, 1, 1, step.columns), offset=self.first + step.column)
            emit.load(local, bias, Opcode.BROADCAST)
        if q == 0 or not layout.resident:
            self._load_parameters(step)

    def _load_parameters(self, step: _Step) -> None:
        """Scale and zero point by lane: of the tile, or of all columns when they stay."""
        emit, shape, layout = self.emit, self.shape, self.tiles.layout
        lanes = emit.chip.lanes
        blocks, first = ceil_div(step.columns, lanes), step.column // lanes
        if layout.resident:
            blocks, first = ceil_div(shape.columns, lanes), 0
        first += self.first // lanes
        group, count = self._loaded_groups(step)
        stride = (0, ceil_div(self.width, lanes) * shape.groups, shape.groups, 1)
        shape4 = (1, lanes, blocks, count)
        if count == shape.groups:
            shape4 = (1, lanes, 1, blocks * count)
        for operand, dtype, offset in (
            (SCALE, self.dtype, layout.scale),
            (ZERO_POINT, "ui8", layout.zero_point),
        ):
            source = emit.source(operand, shape4, stride, first * shape.groups + group)
            emit.load(emit.local(self._parameter_address(step, offset), dtype, shape4), source)

    def _loaded_groups(self, step: _Step) -> tuple[int, int]:
        """First group and number of groups that a tile's part of K touches."""
        first = step.start // self.shape.group
        return first, ceil_div(step.start + step.depth, self.shape.group) - first

    def store(self, q: int) -> None:
        """Rows of y, once its last part of K is in."""
        step = self.steps[q]
        if not step.last:
            return
        y = self._y(step)
        offset = step.row * self.width + self.first + step.column
        self.emit.store(self.emit.target(0, y.shape, _rows(self.width), offset), y)

    # -- local tensors ---------------------------------------------------------------------------------------

    def _x(self, step: _Step) -> Local:
        return self.emit.local(self.tiles.layout.x[step.x_half], self.dtype, (1, step.rows, 1, step.depth))

    def _y(self, step: _Step) -> Local:
        return self.emit.local(self.tiles.layout.y[step.y_half], self.dtype, (1, step.rows, 1, step.columns))

    def _packed(self, step: _Step, offset: int) -> int:
        return self.tiles.layout.weight[step.half] + offset

    def _parameter_address(self, step: _Step, offset: int) -> int:
        return offset if self.tiles.layout.resident else self._packed(step, offset)

    def _scratch(self, number: int, dtype: str, step: _Step) -> Local:
        """Scratch as a matrix [nt, kt], rows on lanes: [1, nt, kt, 1]."""
        return self.emit.local(self.tiles.layout.scratch[number], dtype, (1, step.columns, step.depth, 1))

    def _runs(self, tensor: Local, run: _Groups) -> Local:
        """The run's columns of [1, nt, kt, 1], as [1, nt, groups, group]."""
        shape = (1, tensor.shape[1], run.count, run.length)
        offset = run.column * dtype_bytes(tensor.dtype)
        return tensor.view(shape, (*tensor.stride[:2], run.length, 1), offset=offset)

    def _parameters(self, offset: int, dtype: str, step: _Step, run: _Groups) -> Local:
        """The run's scales or zero points as [1, nt, groups, group], each repeated over its group."""
        _, per_row = self._loaded_groups(step)
        block = step.column // self.emit.chip.lanes if self.tiles.layout.resident else 0
        address = self._parameter_address(step, offset) + (block * per_row + run.group) * dtype_bytes(dtype)
        stride = (ceil_div(step.columns, self.emit.chip.lanes) * per_row, per_row, 1, 0)
        return Local(address, dtype, (1, step.columns, run.count, run.length), stride)

    # -- compute ---------------------------------------------------------------------------------------------

    def compute(self, q: int) -> None:
        """R21: dequantise the weight tile, multiply, transpose the product to y, add the bias."""
        step = self.steps[q]
        self._dequantise(step)
        self._multiply(q, step)
        if not step.last:
            return
        y = self._y(step)
        product = self._product(step, self.dtype, self.tiles.layout.scratch[0])
        if self.tiles.depth < self.shape.depth:
            self.emit.tiu(Opcode.CAST, product, self._product(step, "f32", self.tiles.layout.partial))
        self._turn(y, product)
        if self.shape.bias:
            address = self._packed(step, self.tiles.layout.bias)
            bias = Local(address, self.dtype, y.shape, (0, 0, step.columns, 1))
            self.emit.tiu(Opcode.ADD, y, bias, y)

    def _dequantise(self, step: _Step) -> None:
        """scratch 1 = (weight - zero point) * scale."""
        emit, layout = self.emit, self.tiles.layout
        runs = _groups(step.start, step.depth, self.shape.group)
        levels, signed = self._levels(step), "si8" if self.shape.bits == 4 else "si16"
        centred = self._scratch(1, signed, step)
        packed = levels.shape[2] * levels.shape[3] < step.depth
        for run in runs:
            source = self._nibbles(levels, run) if packed else self._runs(levels, run)
            zero_point = self._parameters(layout.zero_point, "ui8", step, run)
            emit.tiu(
                Opcode.SUBS, self._runs(centred, run), source, zero_point, flags=NIBBLES if packed else 0
            )
        numbers, weight = self._scratch(0, self.dtype, step), self._scratch(1, self.dtype, step)
        emit.tiu(Opcode.CAST, numbers, centred)
        for run in runs:
            scale = self._parameters(layout.scale, self.dtype, step, run)
            emit.tiu(Opcode.MUL, self._runs(weight, run), scale, self._runs(numbers, run))

    def _levels(self, step: _Step) -> Local:
        """The stored levels, one a byte where the chip needs it: 4-bit pairs split into even and odd columns."""
        emit, shape = self.emit, self.shape
        width = step.depth * shape.bits // 8
        stored = emit.local(self.tiles.layout.weight[step.half], "ui8", (1, step.columns, width, 1))
        if shape.bits == 8 or (emit.chip.int4_operands and shape.group % 2 == 0):
            return stored
        levels = self._scratch(0, "ui8", step)
        every_second = (levels.stride[0], levels.stride[1], 2, 1)
        emit.tiu(Opcode.AND, levels.view(stored.shape, every_second), stored, _LOW_NIBBLE)
        emit.tiu(
            Opcode.ASHIFT,
            levels.view(stored.shape, every_second, offset=1),
            stored,
            _HIGH_TO_LOW,
            rounding=Rounding.TOWARD_ZERO,
        )
        return levels

    def _nibbles(self, stored: Local, run: _Groups) -> Local:
        """The run's columns of packed 4-bit levels: [1, nt, groups, bytes of a group]."""
        shape = (1, stored.shape[1], run.count, run.length // 2)
        return stored.view(shape, (*stored.stride[:2], run.length // 2, 1), offset=run.column // 2)

    def _product(self, step: _Step, dtype: str, address: int) -> Local:
        """The product [nt, mt] as it leaves the multiplier, rows on lanes."""
        return self.emit.local(address, dtype, (1, step.columns, 1, step.rows))

    def _multiply(self, q: int, step: _Step) -> None:
        """product = weight tile times x; parts of K add up in f32."""
        emit, layout = self.emit, self.tiles.layout
        product = self._product(step, self.dtype, layout.scratch[0])
        if self.tiles.depth < self.shape.depth:
            product = self._product(step, "f32", layout.partial)
        flags = ACCUMULATE if step.start else 0
        weight = self._scratch(1, self.dtype, step)
        weight = weight.view((1, step.columns, 1, step.depth), (*weight.stride[:2], step.depth, 1))
        if self.shape.rows > 1:
            emit.tiu(Opcode.MM2_NT, product, weight, self._x(step), flags=flags)
            return
        address = layout.transposed_x if layout.resident else layout.weight[step.x_half] + layout.transposed_x
        transposed = emit.local(address, self.dtype, (1, step.depth, 1, 1))
        if step.loads_x:
            self._turn(transposed, self._x(step))
        emit.tiu(Opcode.MM2_NN, product, weight, transposed, flags=flags)

    def _turn(self, result: Local, source: Local) -> None:
        """Move numbers between lanes and rows, the cheaper way (R21); a column on the lanes is only copied."""
        _, channels, _, width = source.shape
        if width == result.shape[3] == 1:
            self.emit.tiu(Opcode.COPY, result, source)
        else:
            transpose = Opcode.WC_TRANSPOSE if channels >= width else Opcode.CW_TRANSPOSE
            self.emit.tiu(transpose, result, source)


def _rows(width: int) -> Shape4:
    """Strides of [1, rows, 1, columns] in a dense matrix of `width` columns."""
    return (0, width, width, 1)


# -- products whose activations stay in local memory --------------------------------------------------------------


@dataclass(frozen=True)
class TileMemory:
    """Where a tile of columns, all of K, lies in local memory: byte addresses in a lane.

    scale, zero_point: of the tile's first row of lanes. bias: of the tile, in every lane. scratch: `sum(tile_scratch)`
    bytes; they keep the transposed x from one tile to the next.
    """

    weight: int
    scale: int
    zero_point: int
    bias: int
    scratch: int


def tile_scratch(chip: Chip, shape: A16Shape, rows: int, columns: int) -> tuple[int, int, int]:
    """Bytes per lane that a tile needs beside operands and result: the transposed x, and two buffers of dequantised
    weights of which the first also takes the product (R18)."""
    wide = ceil_div(columns, chip.lanes)
    weights = align_up(shape.depth * 2, chip.eu_bytes)
    product = align_up(rows * 2, chip.eu_bytes)
    transposed = ceil_div(shape.depth, chip.lanes) * chip.eu_bytes if shape.rows == 1 else 0
    return transposed, wide * max(weights, product), wide * weights


def emit_a16_tile(
    emit: Emitter, shape: A16Shape, x: Local, y: Local, memory: TileMemory, *, first: bool
) -> None:
    """Emit the compute part of one tile (R21).

    x: [1, rows, 1, K], rows on lanes, or [1, K, 1, 1], a single row on the lanes. y: the tile's columns, [1, rows, 1,
    columns] or [1, columns, 1, 1] likewise. first: the first tile of these rows, which transposes x for all of them.
    """
    rows, columns = (1, y.shape[1]) if y.shape[3] == 1 else (y.shape[1], y.shape[3])
    transposed, numbers, _ = tile_scratch(emit.chip, shape, rows, columns)
    begin = memory.scratch + transposed
    layout = A16Layout(
        x=(x.address, x.address),
        weight=(memory.weight, memory.weight),
        y=(y.address, y.address),
        scratch=(begin, begin + numbers),
        partial=0,
        resident=True,
        transposed_x=memory.scratch,
        scale=memory.scale,
        zero_point=memory.zero_point,
        bias=memory.bias - memory.weight,
    )
    step = _Step(0, rows, 0, columns, 0, shape.depth, 0, 0, 0, loads_x=first, last=True)
    tiles = A16Tiles(rows, columns, shape.depth, layout)
    _TileKernel(emit, x.dtype, shape, tiles, (step,), 0, columns, x, y).compute(0)


@dataclass(frozen=True)
class _TileKernel(_Kernel):
    source: Local
    result: Local

    def _x(self, step: _Step) -> Local:
        return self.source

    def _y(self, step: _Step) -> Local:
        return self.result
