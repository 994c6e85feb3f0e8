"""The instructions of MatMul: three global kernels, and the product inside a layer group.

- Rows on lanes (half types, several rows, right [K, N]): R26.
- Columns over lanes (one row of a half type, computed in f32: R28; any number of f32 rows: tiles of our own).
- A vector (the right operand is one row, transposed: logits [V, 1] of a table [V, K]): R27; f32 by multiply and sum.

The rules leave open what happens with a bias in R26 and when K is too large for a tile: the bias is added in f32
and K is cut with f32 sums, so that the result is rounded once, as MatMul's meaning says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from engine.errors import UserError
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.cores import Range
from engine.tpu.emit import Emitter, align_up, ceil_div
from engine.tpu.isa import ACCUMULATE, Constant, Local, Opcode, Shape4, dtype_bytes
from engine.tpu.placing import Pieces, largest_fitting

LEFT, RIGHT, BIAS = range(3)
"""Operand numbers of MatMul."""

_SLICE = 64
"""Rows of the right matrix that one f32 product takes (R28)."""
_PIECE = 128
"""Columns of a lane in an f32 product (R28)."""


@dataclass(frozen=True)
class Product:
    """The sizes of y[M, N] = x[M, K] right[K, N] (+ bias[N]) and its dtype.

    first, width: the N columns are columns first .. first+N-1 of `width` in memory; `columns_of` makes such a part.
    """

    rows: int
    columns: int
    depth: int
    dtype: str
    bias: bool
    first: int = 0
    width: int = 0

    def columns_of(self, part: Range) -> Product:
        """A part of the columns."""
        first, columns = part
        return replace(self, first=first, columns=columns)


def product_of(op: OpRecord) -> Product:
    """The product that a MatMul computes."""
    left, _, bias = op.operand_types
    columns = op.result_types[0].shape[-1]
    return Product(
        prod(left.shape[:-1]), columns, left.shape[-1], left.dtype, not bias.is_none, width=columns
    )


def _too_large(chip: Chip, product: Product) -> UserError:
    return UserError(
        f"MatMul with M = {product.rows}, N = {product.columns}, K = {product.depth} in {product.dtype} does not fit "
        f"the {chip.lmem_bytes} bytes a lane of {chip.name} in any tiling; choose a chip with more"
    )


def emit_matmul(op: OpRecord, emit: Emitter, part: Range | None = None) -> None:
    """Emit the op run globally, or a part of its columns, stored where they belong in y (no byte moves twice but x).

    Raises ValueError for a transposed right operand of several rows, or with a bias: nothing lowers to these;
    UserError when no tiling fits local memory.
    """
    product = product_of(op)
    if op.attributes["right_transpose"]:
        if product.columns != 1 or product.bias:
            raise ValueError(
                f"{op.location}: MatMul by a transposed matrix has a kernel for one row without bias (logits), not "
                f"for {product.columns} rows; store the weight as [K, N] and set right_transpose to false"
            )
        _emit_vector_product(emit, product)
        return
    if part is not None:
        product = product.columns_of(part)
    if product.dtype == "f32" or product.rows == 1:
        _emit_column_product(emit, product)
    else:
        _emit_row_product(emit, product)


@dataclass(frozen=True)
class _Step:
    """One tile: offsets and sizes along M, N and K, the half of each double buffer, and what it must load."""

    row: int
    rows: int
    column: int
    columns: int
    start: int
    depth: int
    x_half: int
    right_half: int
    y_half: int
    loads_x: bool
    loads_right: bool
    last: bool
    """Last part of K."""


def _steps(product: Product, rows: int, columns: int, depth: int) -> Iterator[_Step]:
    """Tiles of these sizes: columns outermost, parts of K innermost; a matrix is loaded when its tile changes."""
    x, right, y = (-1, -1), (-1, -1), 0
    x_half = right_half = 1
    for column in range(0, product.columns, columns):
        for row in range(0, product.rows, rows):
            for start in range(0, product.depth, depth):
                loads_x, loads_right = x != (row, start), right != (column, start)
                x, right = (row, start), (column, start)
                x_half, right_half = (x_half + loads_x) % 2, (right_half + loads_right) % 2
                yield _Step(
                    row,
                    min(rows, product.rows - row),
                    column,
                    min(columns, product.columns - column),
                    start,
                    min(depth, product.depth - start),
                    x_half,
                    right_half,
                    y % 2,
                    loads_x,
                    loads_right,
                    last=start + depth >= product.depth,
                )
            y += 1


def _pitch(width: int) -> Shape4:
    """Strides of [1, rows, 1, columns] in a dense matrix of `width` columns."""
    return (0, width, width, 1)


# -- rows on lanes (R26) ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowTiles:
    """Tile sizes and byte addresses in a lane. sums: f32 products, when K is cut or there is a bias."""

    rows: int
    columns: int
    depth: int
    x: tuple[int, int]
    right: tuple[int, int]
    y: tuple[int, int]
    bias: tuple[int, int]
    sums: int


def choose_row_tiles(chip: Chip, product: Product) -> RowTiles:
    """R26: one row of x a lane, all of K, as many columns as fit in seven of the eight banks of a half.

    The eighth bank takes y (with a bias, also the bias and the f32 product). If not even as many columns as lanes
    fit, K is cut. Raises UserError when that does not fit either.
    """
    half, bank = chip.lmem_bytes // 2, chip.bank_bytes
    x_bytes = align_up(2 * product.depth, chip.eu_bytes)
    column_bytes = 2 * ceil_div(product.depth, chip.lanes)
    columns = min((half - bank - x_bytes) // column_bytes, bank // (8 if product.bias else 2))
    columns = min(columns // chip.lanes * chip.lanes, align_up(product.columns, chip.lanes))
    if columns <= 0:
        return _cut_row_tiles(chip, product)
    y = half - bank
    return RowTiles(
        chip.lanes,
        columns,
        product.depth,
        x=(0, half),
        right=(x_bytes, half + x_bytes),
        y=(y, half + y),
        bias=(y + 2 * columns, half + y + 2 * columns),
        sums=y + 4 * columns,
    )


def _cut_row_tiles(chip: Chip, product: Product) -> RowTiles:
    """The tile sizes with the least DDR traffic when K is cut into parts of a multiple of the lanes."""
    best: tuple[int, int] | None = None
    tiles = None
    for row_blocks in range(1, ceil_div(product.rows, chip.lanes) + 1):
        for column_blocks in range(1, ceil_div(product.columns, chip.lanes) + 1):
            candidate = _fit_row_tiles(chip, product, row_blocks, column_blocks * chip.lanes)
            if candidate is None:
                break
            row_tiles = ceil_div(product.rows, candidate.rows)
            column_tiles = ceil_div(product.columns, candidate.columns)
            moved = product.depth * (row_tiles * product.columns + column_tiles * product.rows)
            rank = (moved, -candidate.depth)
            if best is None or rank < best:
                best, tiles = rank, candidate
    if tiles is None:
        raise _too_large(chip, product)
    return tiles


def _fit_row_tiles(chip: Chip, product: Product, row_blocks: int, columns: int) -> RowTiles | None:
    """Tiles of these rows and columns with the longest part of K that fits."""

    def lay_out(depth_blocks: int) -> tuple[Pieces, RowTiles]:
        depth = depth_blocks * chip.lanes
        pieces = Pieces(chip.eu_bytes)
        tiles = RowTiles(
            row_blocks * chip.lanes,
            columns,
            depth,
            x=pieces.take_pair(row_blocks * 2 * depth),
            right=pieces.take_pair(depth_blocks * 2 * columns),
            y=pieces.take_pair(row_blocks * 2 * columns),
            bias=pieces.take_pair(2 * columns),
            sums=pieces.take(row_blocks * 4 * columns),
        )
        return pieces, tiles

    limit = ceil_div(product.depth, chip.lanes)
    blocks = largest_fitting(limit, lambda count: lay_out(count)[0].used <= chip.lmem_bytes)
    return lay_out(blocks)[1] if blocks else None


def _emit_row_product(emit: Emitter, product: Product) -> None:
    tiles = choose_row_tiles(emit.chip, product)
    steps = tuple(_steps(product, tiles.rows, tiles.columns, tiles.depth))
    kernel = _RowProduct(emit, product, tiles, steps)
    emit.pipeline(len(steps), kernel.load, kernel.compute, kernel.store)


@dataclass(frozen=True)
class _RowProduct:
    emit: Emitter
    product: Product
    tiles: RowTiles
    steps: tuple[_Step, ...]

    def load(self, q: int) -> None:
        """Rows of x, then rows of the right matrix, then the bias, each when it changes."""
        emit, step, depth, width = self.emit, self.steps[q], self.product.depth, self.product.width
        column = self.product.first + step.column
        if step.loads_x:
            offset = step.row * depth + step.start
            emit.load(self._x(step), emit.source(LEFT, (1, step.rows, 1, step.depth), _pitch(depth), offset))
        if step.loads_right:
            right = self._right(step)
            emit.load(right, emit.source(RIGHT, right.shape, _pitch(width), step.start * width + column))
        if self.product.bias and step.last and step.loads_right:
            shape = (1, emit.chip.lanes, 1, step.columns)
            local = emit.local(self.tiles.bias[step.right_half], self.product.dtype, shape)
            bias = emit.source(BIAS, (1, 1, 1, step.columns), offset=column)
            emit.load(local, bias, Opcode.BROADCAST)

    def compute(self, q: int) -> None:
        """The product, straight to y when one instruction finishes it, else through f32 sums."""
        emit, step, y = self.emit, self.steps[q], self._y(self.steps[q])
        if self.tiles.depth >= self.product.depth and not self.product.bias:
            emit.tiu(Opcode.MM2_NN, y, self._x(step), self._right(step))
            return
        sums = emit.local(self.tiles.sums, "f32", y.shape)
        flags = ACCUMULATE if step.start else 0
        emit.tiu(Opcode.MM2_NN, sums, self._x(step), self._right(step), flags=flags)
        if not step.last:
            return
        if not self.product.bias:
            emit.tiu(Opcode.CAST, y, sums)
            return
        address = self.tiles.bias[step.right_half]
        bias = Local(address, self.product.dtype, y.shape, (0, 0, step.columns, 1))
        emit.tiu(Opcode.ADD, y, bias, sums)

    def store(self, q: int) -> None:
        """Rows of y, once their last part of K is in."""
        step, width = self.steps[q], self.product.width
        if step.last:
            y = self._y(step)
            offset = step.row * width + self.product.first + step.column
            self.emit.store(self.emit.target(0, y.shape, _pitch(width), offset), y)

    def _x(self, step: _Step) -> Local:
        shape = (1, step.rows, 1, step.depth)
        return self.emit.local(self.tiles.x[step.x_half], self.product.dtype, shape)

    def _right(self, step: _Step) -> Local:
        shape = (1, step.depth, 1, step.columns)
        return self.emit.local(self.tiles.right[step.right_half], self.product.dtype, shape)

    def _y(self, step: _Step) -> Local:
        shape = (1, step.rows, 1, step.columns)
        return self.emit.local(self.tiles.y[step.y_half], self.product.dtype, shape)


# -- columns over lanes (R28) ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnTiles:
    """Tile sizes and byte addresses in a lane.

    bias is an offset in the x buffers. wide_x, wide_right: the f32 copies of a half type, wide_bias an offset in
    the first; sums: the f32 product of a half type. f32 operands are used as they are and add up in y.
    """

    rows: int
    columns: int
    x: tuple[int, int]
    right: tuple[int, int]
    y: tuple[int, int]
    bias: int
    wide_x: int
    wide_bias: int
    wide_right: int
    sums: int


def choose_column_tiles(chip: Chip, product: Product) -> ColumnTiles:
    """R28: pieces of 128 columns over all lanes, K in slices of 64; in f32 as many rows as fit, evenly split.

    Raises UserError when one row does not fit.
    """
    rows = largest_fitting(product.rows, lambda count: _place_columns(chip, product, count) is not None)
    tiles = (
        _place_columns(chip, product, ceil_div(product.rows, ceil_div(product.rows, rows))) if rows else None
    )
    if tiles is None:
        raise _too_large(chip, product)
    return tiles


def _place_columns(chip: Chip, product: Product, rows: int) -> ColumnTiles | None:
    half = product.dtype != "f32"
    size = dtype_bytes(product.dtype)

    def piece_of_x(element: int) -> int:
        return rows * align_up(_x_piece(product) * element, chip.eu_bytes)

    banks = Pieces(chip.bank_bytes)
    tiles = ColumnTiles(
        rows,
        min(chip.lanes * _PIECE, product.columns),
        x=banks.take_pair(piece_of_x(size) + _PIECE * size),
        right=banks.take_pair(_SLICE * _PIECE * size),
        y=banks.take_pair(rows * _PIECE * size),
        bias=piece_of_x(size),
        wide_x=banks.take(half * (piece_of_x(4) + _PIECE * 4)),
        wide_bias=piece_of_x(4),
        wide_right=banks.take(half * _SLICE * _PIECE * 4),
        sums=banks.take(half * rows * _PIECE * 4),
    )
    return tiles if banks.used <= chip.lmem_bytes else None


def _x_piece(product: Product) -> int:
    """Columns of x in a lane: half a slice in a half type, in f32 a whole one (256 bytes, a full DDR burst)."""
    return _SLICE if product.dtype == "f32" else _SLICE // 2


def _emit_column_product(emit: Emitter, product: Product) -> None:
    tiles = choose_column_tiles(emit.chip, product)
    steps = tuple(_steps(product, tiles.rows, tiles.columns, _SLICE))
    kernel = _ColumnProduct(emit, product, tiles, steps)
    emit.pipeline(len(steps), kernel.load, kernel.compute, kernel.store)


@dataclass(frozen=True)
class _ColumnProduct:
    emit: Emitter
    product: Product
    tiles: ColumnTiles
    steps: tuple[_Step, ...]

    def load(self, q: int) -> None:
        """A slice of x, its rows of the right matrix, and the bias with the last slice."""
        step, dtype, width = self.steps[q], self.product.dtype, self.product.width
        column = self.product.first + step.column
        if step.loads_x:
            x = self._split(self.tiles.x[step.x_half], dtype, step.rows, step.depth, _x_piece(self.product))
            self._load(LEFT, x, step.depth, self.product.depth, step.row * self.product.depth + step.start)
        if step.loads_right:
            right = self._columns(self.tiles.right[step.right_half], dtype, step.depth, step)
            self._load(RIGHT, right, step.columns, width, step.start * width + column)
        if self.product.bias and step.last:
            bias = self._columns(self.tiles.x[step.x_half] + self.tiles.bias, dtype, 1, step)
            self._load(BIAS, bias, step.columns, width, column)

    def _load(self, operand: int, local: Local, columns: int, width: int, offset: int) -> None:
        source = self.emit.source(operand, (local.shape[0], 1, 1, columns), (width, 0, 0, 1), offset)
        self.emit.load(local, source, Opcode.MATRIX)

    def compute(self, q: int) -> None:
        """Sums += x slice times right slice, in f32; the last slice adds the bias and rounds."""
        emit, step, tiles, dtype = self.emit, self.steps[q], self.tiles, self.product.dtype
        half = dtype != "f32"
        x = self._split(tiles.x[step.x_half], dtype, step.rows, step.depth, _x_piece(self.product))
        operands = [
            self._widened(x, tiles.wide_x),
            self._widened(
                self._columns(tiles.right[step.right_half], dtype, step.depth, step), tiles.wide_right
            ),
        ]
        if self.product.bias and step.last:
            bias = self._columns(tiles.x[step.x_half] + tiles.bias, dtype, 1, step)
            operands.append(self._widened(bias, tiles.wide_x + tiles.wide_bias))
        y = self._columns(tiles.y[step.y_half], dtype, step.rows, step)
        sums = self._columns(tiles.sums, "f32", step.rows, step) if half else y
        emit.tiu(Opcode.MM, sums, *operands, flags=ACCUMULATE if step.start else 0)
        if half and step.last:
            emit.tiu(Opcode.CAST, y, sums)

    def _widened(self, tensor: Local, address: int) -> Local:
        """The tensor in f32: itself, or a copy at `address`."""
        if tensor.dtype == "f32":
            return tensor
        wide = self.emit.local(address, "f32", tensor.shape)
        self.emit.tiu(Opcode.CAST, wide, tensor)
        return wide

    def store(self, q: int) -> None:
        """y, once its last slice is in."""
        step, width = self.steps[q], self.product.width
        if not step.last:
            return
        y = self._columns(self.tiles.y[step.y_half], self.product.dtype, step.rows, step)
        shape = (step.rows, 1, 1, step.columns)
        offset = step.row * width + self.product.first + step.column
        self.emit.store(self.emit.target(0, shape, (width, 0, 0, 1), offset), y, Opcode.MATRIX)

    def _split(self, address: int, dtype: str, rows: int, columns: int, piece: int) -> Local:
        return self.emit.local(address, dtype, (rows, ceil_div(columns, piece), 1, piece))

    def _columns(self, address: int, dtype: str, rows: int, step: _Step) -> Local:
        return self._split(address, dtype, rows, step.columns, _PIECE)


# -- a vector (R27) --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VectorTiles:
    """Rows of the table in a tile, and byte addresses in a lane. sums: f32 only."""

    rows: int
    table: tuple[int, int]
    y: tuple[int, int]
    vector: int
    sums: int


def choose_vector_tiles(chip: Chip, product: Product) -> VectorTiles:
    """R27: each half holds rows of the table in seven banks, the first the vector too, and y in the eighth bank.

    f32, our own: two tiles of the table and the vector in every lane fill local memory. Raises UserError when
    one row a lane does not fit.
    """
    limit = ceil_div(product.rows, chip.lanes)
    row = align_up(dtype_bytes(product.dtype) * product.depth, chip.eu_bytes)
    if product.dtype == "f32":
        blocks = largest_fitting(
            limit, lambda count: _place_f32_vector(chip, row, count)[1] <= chip.lmem_bytes
        )
        tiles, _ = _place_f32_vector(chip, row, blocks)
    else:
        half, bank = chip.lmem_bytes // 2, chip.bank_bytes
        vector = chip.eu_bytes * ceil_div(product.depth, chip.lanes)
        blocks = min((half - bank - vector) // row, bank // chip.eu_bytes, limit)
        tiles = VectorTiles(blocks * chip.lanes, (0, half), (half - bank, 2 * half - bank), blocks * row, 0)
    if blocks <= 0:
        raise _too_large(chip, product)
    return tiles


def _place_f32_vector(chip: Chip, row: int, blocks: int) -> tuple[VectorTiles, int]:
    """The tiles and the bytes that they take."""
    pieces = Pieces(chip.eu_bytes)
    tiles = VectorTiles(
        blocks * chip.lanes,
        table=pieces.take_pair(blocks * row),
        y=pieces.take_pair(blocks * chip.eu_bytes),
        vector=pieces.take(row),
        sums=pieces.take(blocks * _PLACES * 4),
    )
    return tiles, pieces.used


_PLACES = 16
"""Partial sums of a row in f32 (the two-stage pooling of R29)."""


def _emit_vector_product(emit: Emitter, product: Product) -> None:
    kernel = _VectorProduct(emit, product, choose_vector_tiles(emit.chip, product))
    emit.pipeline(ceil_div(product.rows, kernel.tiles.rows), kernel.load, kernel.compute, kernel.store)


@dataclass(frozen=True)
class _VectorProduct:
    """Half types: the table's rows times the vector as a column.

    f32: rows times the vector, element by element, then summed in two stages.
    """

    emit: Emitter
    product: Product
    tiles: VectorTiles

    def load(self, q: int) -> None:
        """Rows of the table; with the first ones the vector, which stays."""
        emit, depth = self.emit, self.product.depth
        table = self._table(q)
        emit.load(table, emit.source(LEFT, table.shape, _pitch(depth), q * self.tiles.rows * depth))
        if q > 0:
            return
        if self.product.dtype == "f32":
            vector = emit.local(self.tiles.vector, "f32", (1, emit.chip.lanes, 1, depth))
            emit.load(vector, emit.source(RIGHT, (1, 1, 1, depth)), Opcode.BROADCAST)
        else:
            emit.load(self._vector_column(), emit.source(RIGHT, (1, depth, 1, 1), (depth, 1, 1, 1)))

    def compute(self, q: int) -> None:
        """y = table rows times vector."""
        emit, table, y = self.emit, self._table(q), self._y(q)
        if self.product.dtype != "f32":
            emit.tiu(Opcode.MM2_NN, y, table, self._vector_column())
            return
        depth, rows = self.product.depth, table.shape[1]
        vector = Local(self.tiles.vector, "f32", table.shape, (0, 0, depth, 1))
        emit.tiu(Opcode.MUL, table, vector, table)
        places = gcd(depth, _PLACES)
        windows = table.view((1, rows, depth // places, places), (*table.stride[:2], places, 1))
        sums = emit.local(self.tiles.sums, "f32", (1, rows, 1, places))
        one = Constant(1.0)
        emit.tiu(Opcode.POOL_AVG, sums, windows, one, kernel=(depth // places, 1))
        emit.tiu(Opcode.POOL_AVG, y, sums, one, kernel=(1, places))

    def store(self, q: int) -> None:
        """One number a row."""
        y = self._y(q)
        stride = (self.product.rows, 1, 1, 1)
        self.emit.store(self.emit.target(0, y.shape, stride, q * self.tiles.rows), y)

    def _rows_of(self, q: int) -> int:
        return min(self.tiles.rows, self.product.rows - q * self.tiles.rows)

    def _table(self, q: int) -> Local:
        shape = (1, self._rows_of(q), 1, self.product.depth)
        return self.emit.local(self.tiles.table[q % 2], self.product.dtype, shape)

    def _y(self, q: int) -> Local:
        return self.emit.local(self.tiles.y[q % 2], self.product.dtype, (1, self._rows_of(q), 1, 1))

    def _vector_column(self) -> Local:
        return self.emit.local(self.tiles.vector, self.product.dtype, (1, self.product.depth, 1, 1))


# -- in a layer group (R10) ------------------------------------------------------------------------------------


def emit_local_matmul(emit: Emitter, sources: Sequence[Local], result: Local) -> None:
    """One product of whole (sliced) operands in local memory.

    sources: x [1, rows, h, w] with h x w = K, the right matrix [1, K, h, w] with h x w = N, rows on lanes and h x w
    dense, and the bias if there is one: N values in lane 0, which are first copied to every lane, in place (the bytes
    of the other lanes must belong to it, too).
    result: [1, rows, h, w] with h x w = N. Half types; the bias is added to the rounded product, as the vendor
    does. Raises ValueError for f32, whose product needs column-split operands, and for n > 1.
    """
    require_local(sources[LEFT])
    x, right = (_matrix(tensor) for tensor in sources[: RIGHT + 1])
    y = _matrix(result)
    columns = y.shape[3]
    biased = len(sources) > BIAS
    if biased:
        dense = (columns, columns, columns, 1)
        bias = sources[BIAS].view((1, 1, 1, columns), dense)
        emit.tiu(Opcode.LANE_BROADCAST, bias.view((1, emit.chip.lanes, 1, columns)), bias)
    emit.tiu(Opcode.MM2_NN, y, x, right)
    if biased:
        emit.tiu(Opcode.ADD, y, sources[BIAS].view(y.shape, (0, 0, columns, 1)), y)


def require_local(x: Local) -> None:
    """Raise ValueError for operands that a product inside a group cannot take."""
    if x.dtype == "f32":
        raise ValueError("an f32 MatMul has no kernel inside a layer group; leave it global")
    if x.shape[0] != 1:
        raise ValueError(f"a MatMul inside a layer group takes n = 1, found a slice {list(x.shape)}")


def _matrix(tensor: Local) -> Local:
    """[1, R, h, w] with dense h x w as the matrix [1, R, 1, C]."""
    _, rows, h, w = tensor.shape
    return tensor.view((1, rows, 1, h * w), (*tensor.stride[:2], h * w, 1))
