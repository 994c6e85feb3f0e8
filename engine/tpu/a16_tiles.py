"""How A16MatMul is cut into tiles and where the tiles lie in local memory (rules R18, R19 and R50).

y[M, N] = x[M, K] W[N, K]^T. A tile is mt rows of x, nt rows of W (columns of y) and kt of K, which is cut
only when nothing smaller fits. Rows of x and of W lie on lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from engine.errors import UserError
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up, ceil_div
from engine.tpu.placing import Pieces, largest_fitting


@dataclass(frozen=True)
class A16Shape:
    """The product: M, N, K, bits of a weight (4 or 8), weights per scale along K, whether there is a bias."""

    rows: int
    columns: int
    depth: int
    bits: int
    group: int
    bias: bool

    @property
    def groups(self) -> int:
        """Scales of one row of W."""
        return ceil_div(self.depth, self.group)


@dataclass(frozen=True)
class A16Layout:
    """Byte addresses in a lane; pairs are the two halves of a double buffer.

    transposed_x, scale, zero_point and bias are offsets in the weight buffer. With `resident`, transposed_x,
    scale and zero_point are addresses, and scale and zero_point are those of all N. scratch: two buffers of
    dequantised weights, the first of which also takes the product. partial: f32 sums when K is cut.
    """

    x: tuple[int, int]
    weight: tuple[int, int]
    y: tuple[int, int]
    scratch: tuple[int, int]
    partial: int
    resident: bool
    transposed_x: int
    scale: int
    zero_point: int
    bias: int


@dataclass(frozen=True)
class A16Tiles:
    """Tile sizes (mt, nt, kt) and their layout."""

    rows: int
    columns: int
    depth: int
    layout: A16Layout


def choose_tiles(chip: Chip, shape: A16Shape) -> A16Tiles:
    """R19: all of M and K with the most columns that fit, evenly split; else fewer rows; else K in parts.

    Raises UserError if one row of lanes does not fit even so.
    """
    lanes, m, n, k = chip.lanes, shape.rows, shape.columns, shape.depth
    blocks = largest_fitting(
        ceil_div(n, lanes), lambda count: lay_out(chip, shape, m, count * lanes, k) is not None
    )
    if blocks:
        tiles = ceil_div(n, blocks * lanes)
        return _tiles(chip, shape, m, lanes * ceil_div(ceil_div(n, tiles), lanes), k)
    blocks = largest_fitting(
        ceil_div(m, lanes), lambda count: lay_out(chip, shape, count * lanes, lanes, k) is not None
    )
    if blocks and m > 1:
        return _tiles(chip, shape, ceil_div(m, ceil_div(m, blocks * lanes)), lanes, k)
    return _cut_depth(chip, shape)


def _tiles(chip: Chip, shape: A16Shape, rows: int, columns: int, depth: int) -> A16Tiles:
    layout = lay_out(chip, shape, rows, columns, depth)
    assert layout is not None
    return A16Tiles(rows, columns, depth, layout)


def _cut_depth(chip: Chip, shape: A16Shape) -> A16Tiles:
    """K in parts. One row: the fewest parts, one row of lanes a tile (R19). Else: the least DDR traffic."""
    lanes = chip.lanes
    if shape.rows == 1:
        for depth in _depths(chip, shape):
            if lay_out(chip, shape, 1, lanes, depth):
                return _tiles(chip, shape, 1, lanes, depth)
        raise _too_large(chip, shape)
    best: tuple[int, int, int, int] | None = None
    for depth in _depths(chip, shape):
        for row_blocks in range(1, ceil_div(shape.rows, lanes) + 1):
            for blocks in range(1, ceil_div(shape.columns, lanes) + 1):
                if not lay_out(chip, shape, row_blocks * lanes, blocks * lanes, depth):
                    break
                weights = (
                    ceil_div(shape.rows, row_blocks * lanes) * shape.columns * shape.depth * shape.bits // 8
                )
                inputs = ceil_div(shape.columns, blocks * lanes) * shape.rows * shape.depth * 2
                candidate = (weights + inputs, -depth, row_blocks * lanes, blocks * lanes)
                best = candidate if best is None else min(best, candidate)
    if best is None:
        raise _too_large(chip, shape)
    return _tiles(chip, shape, min(best[2], shape.rows), best[3], -best[1])


def _depths(chip: Chip, shape: A16Shape) -> Iterator[int]:
    """Lengths of a part of K, longest first: multiples of the lanes, and of the group if it is short."""
    step = lcm(chip.lanes, shape.group)
    if 2 * step > shape.depth:
        step = chip.lanes
    last = shape.depth
    for parts in range(2, ceil_div(shape.depth, step) + 1):
        depth = align_up(ceil_div(shape.depth, parts), step)
        if depth < last:
            last = depth
            yield depth


def _too_large(chip: Chip, shape: A16Shape) -> UserError:
    return UserError(
        f"A16MatMul with M = {shape.rows}, N = {shape.columns}, K = {shape.depth}, groups of {shape.group} "
        f"does not fit the {chip.lmem_bytes} bytes a lane of {chip.name} in any tiling; choose a chip with more"
    )


def lay_out(chip: Chip, shape: A16Shape, rows: int, columns: int, depth: int) -> A16Layout | None:
    """R18 (R50 where the chip reads 4-bit operands): the layout of such tiles, or None where they do not fit.

    Order: x, weight, y, their second halves, then what is not double buffered; every buffer starts on a bank.
    """
    single, cut = shape.rows == 1, depth < shape.depth
    wide = ceil_div(columns, chip.lanes)
    resident = single and not cut and not chip.int4_operands
    x_blocks = 1 if single else ceil_div(rows, chip.lanes)

    def padded(elements: int, bits: int = 16) -> int:
        return align_up(elements * bits // 8, chip.eu_bytes)

    transposed = ceil_div(depth, chip.lanes) * chip.eu_bytes if single else 0
    parameters = (ceil_div(shape.columns, chip.lanes) if resident else wide) * _groups_of_part(shape, depth)
    weight = Pieces()
    weight.take(wide * padded(depth, shape.bits))
    aux = Pieces() if resident else weight
    offsets = (aux.take(transposed), aux.take(padded(parameters)), aux.take(padded(parameters, 8)))
    bias = weight.take(padded(columns) if shape.bias else 0)
    product = chip.eu_bytes if single else padded(rows)
    partial = chip.eu_bytes if single else padded(rows, 32)

    banks = Pieces(chip.bank_bytes)
    sizes = (x_blocks * padded(depth), weight.used, x_blocks * padded(columns))
    x0, weight0, y0, x1, weight1, y1 = (banks.take(size) for size in sizes * 2)
    aux_address = banks.take(aux.used) if resident else 0
    scratch = banks.take(wide * max(padded(depth), product)), banks.take(wide * padded(depth))
    partial_address = banks.take(wide * partial if cut else 0)
    if banks.used > chip.lmem_bytes:
        return None
    transposed_x, scale, zero_point = (aux_address + offset for offset in offsets)
    return A16Layout(
        (x0, x1),
        (weight0, weight1),
        (y0, y1),
        scratch,
        partial_address,
        resident,
        transposed_x,
        scale,
        zero_point,
        bias,
    )


def _groups_of_part(shape: A16Shape, depth: int) -> int:
    """Groups that a part of K touches at most."""
    if depth == shape.depth or depth % shape.group == 0:
        return ceil_div(depth, shape.group)
    return min(shape.groups, ceil_div(depth, shape.group) + 1)
