"""How element-by-element kernels cut a flat tensor into tiles, and the loop over them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from engine.snapshot import TensorType
from engine.tpu.chip import Chip
from engine.tpu.emit import Emitter, align_up, ceil_div
from engine.tpu.isa import Global, Local, Opcode, Shape4, dtype_bytes


def largest_fitting(chip: Chip, needed: Callable[[int], int], sizes: range) -> int:
    """The largest of some sizes, ascending, for which `needed` bytes a lane fit local memory; 0 if none does.

    needed: grows with the size.
    """
    count = bisect_right(sizes, chip.lmem_bytes, key=needed)
    return sizes[count - 1] if count else 0


@dataclass(frozen=True)
class FlatTile:
    """`rows` rows of `columns` consecutive elements from `start` on; a lane holds `width` elements of a row."""

    start: int
    rows: int
    columns: int
    width: int

    @property
    def local_shape(self) -> Shape4:
        """[rows, lanes used, 1, width]."""
        return (self.rows, ceil_div(self.columns, self.width), 1, self.width)


def flat_tiles(chip: Chip, elements: int, width: int, max_rows: int) -> list[FlatTile]:
    """Cut `elements` into tiles of rows of lanes * width elements (rules R30, R31).

    Less than a row is one tile spread over all lanes. Several rows make at least two tiles, so that transfers
    overlap with compute; what is left after the last full row is a tile of its own.
    """
    row = chip.lanes * width
    if elements <= row:
        return [FlatTile(0, 1, elements, ceil_div(elements, chip.lanes))]
    rows, rest = divmod(elements, row)
    step = ceil_div(rows, max(2, ceil_div(rows, max_rows)))
    tiles = [FlatTile(at * row, min(step, rows - at), row, width) for at in range(0, rows, step)]
    return [*tiles, FlatTile(rows * row, 1, rest, width)] if rest else tiles


@dataclass(frozen=True)
class FlatBuffer:
    """A double-buffered local buffer of a flat tensor: byte address of each half."""

    ping: int
    pong: int

    def local(self, emit: Emitter, dtype: str, tile: FlatTile, index: int) -> Local:
        """The buffer as the tensor of tile number `index`."""
        return emit.local(self.pong if index % 2 else self.ping, dtype, tile.local_shape)


def run_flat(
    emit: Emitter,
    tiles: list[FlatTile],
    inputs: list[FlatBuffer],
    output: FlatBuffer,
    compute: Callable[[list[Local], Local], None],
) -> None:
    """Load, compute and store every tile of the current op, double buffered (R3); matrix transfers (R6)."""
    record = emit.record
    assert record is not None
    sources = record.operand_types[: len(inputs)]
    target = record.result_types[0]

    def locals_of(q: int) -> list[Local]:
        return [
            buffer.local(emit, type_.dtype, tiles[q], q)
            for buffer, type_ in zip(inputs, sources, strict=True)
        ]

    def load(q: int) -> None:
        for type_, local in zip(sources, locals_of(q), strict=True):
            emit.load(local, _rows(emit, type_, tiles[q]), Opcode.MATRIX)

    def store(q: int) -> None:
        local = output.local(emit, target.dtype, tiles[q], q)
        emit.store(_rows(emit, target, tiles[q]), local, Opcode.MATRIX)

    emit.pipeline(
        len(tiles),
        load,
        lambda q: compute(locals_of(q), output.local(emit, target.dtype, tiles[q], q)),
        store,
    )


def _rows(emit: Emitter, type_: TensorType, tile: FlatTile) -> Global:
    shape = (tile.rows, 1, 1, tile.columns)
    return emit.ddr(type_, shape, (tile.columns, tile.columns, tile.columns, 1), tile.start)


def local_bytes(chip: Chip, dtype: str, shape: Shape4) -> int:
    """Bytes per lane of a local tensor in the chip's aligned layout."""
    return Emitter(chip, {}).local_bytes(dtype, shape)


def aligned_bytes(chip: Chip, dtype: str, elements: int) -> int:
    """Bytes of `elements` in one lane, rounded up to the EU width."""
    return align_up(elements * dtype_bytes(dtype), chip.eu_bytes)
