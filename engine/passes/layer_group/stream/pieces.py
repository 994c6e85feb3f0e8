"""How a streamed group lays its tensors out in local memory, and the instructions of its ops on pieces of them.

An activation of M tokens is rows of columns (heads side by side are columns of one row) in one of two layouts:

    rows    token i in lane i % lanes, its columns one behind the other; what RMSNorm, Rope, DMA and most ops take
    spread  a single token: column i in lane i % lanes, densely; element by element all lanes work on the one token

A product takes a single token as a column on the lanes: rows are transposed for it, what is spread is copied. Its
result comes as a column and is transposed to rows, or copied to be spread; several tokens are transposed both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import engine.tpu.ops  # noqa: F401  (fills the registry)
from engine.op import REGISTRY
from engine.snapshot import OpRecord
from engine.tpu.a16_kernel import TileMemory, a16_shape, emit_a16_tile, tile_scratch
from engine.tpu.chip import Chip
from engine.tpu.emit import Emitter, align_up, ceil_div
from engine.tpu.isa import Local, Shape4, dtype_bytes

PRODUCT = "A16MatMul"


@dataclass(frozen=True)
class Piece:
    """Some rows and columns of an activation in local memory, or a vector in lane 0.

    address: byte of the first element. pitch: elements from one row of a lane to the next. spread: see above.
    """

    address: int
    dtype: str
    rows: int
    columns: int
    pitch: int
    spread: bool = False

    @classmethod
    def dense(
        cls, chip: Chip, address: int, dtype: str, rows: int, columns: int, *, spread: bool = False
    ) -> Piece:
        """A whole tensor, or a piece that has its place to itself."""
        return cls(address, dtype, rows, columns, row_pitch(chip, dtype, columns), spread)

    def part(self, chip: Chip, start: int, columns: int) -> Piece:
        """Consecutive columns; of what is spread, from a whole set of lanes on."""
        at = start // chip.lanes if self.spread else start
        return Piece(
            self.address + at * dtype_bytes(self.dtype),
            self.dtype,
            self.rows,
            columns,
            self.pitch,
            self.spread,
        )

    # -- as tensors of instructions --------------------------------------------------------------------------

    def matrix(self, chip: Chip) -> Local:
        """[1, rows, 1, columns], or [1, columns, 1, 1] of what is spread."""
        if self.spread:
            return Local(self.address, self.dtype, (1, self.columns, 1, 1), (self.pitch, 1, 1, 1))
        return self._local(chip, (1, self.rows, 1, self.columns), self.columns)

    def flat(self, chip: Chip) -> Local:
        """The same elements for an op that takes each by itself: spread ones as [1, lanes, 1, columns / lanes]."""
        if not self.spread:
            return self.matrix(chip)
        width = self.columns // chip.lanes
        return Local(self.address, self.dtype, (1, chip.lanes, 1, width), (width, width, width, 1))

    def heads(self, chip: Chip, size: int) -> Local:
        """[1, rows, heads, size]."""
        return self._local(chip, (1, self.rows, self.columns // size, size), size)

    def heads_outside(self, size: int) -> Local:
        """[heads, rows, 1, size]."""
        shape = (self.columns // size, self.rows, 1, size)
        return Local(self.address, self.dtype, shape, (size, self.pitch, size, 1))

    def _local(self, chip: Chip, shape: Shape4, h_stride: int) -> Local:
        blocks = ceil_div(self.rows, chip.lanes)
        return Local(self.address, self.dtype, shape, (blocks * self.pitch, self.pitch, h_stride, 1))


def row_pitch(chip: Chip, dtype: str, columns: int) -> int:
    """Elements of a row rounded up to the EU width."""
    return align_up(columns, chip.eu_bytes // dtype_bytes(dtype))


def piece_bytes(chip: Chip, dtype: str, rows: int, columns: int, *, spread: bool = False) -> int:
    """Bytes per lane of a dense piece."""
    if spread:
        return align_up(ceil_div(columns, chip.lanes) * dtype_bytes(dtype), chip.eu_bytes)
    return ceil_div(rows, chip.lanes) * row_pitch(chip, dtype, columns) * dtype_bytes(dtype)


# -- ops ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operands:
    """What a run of an op reads. pieces: activations, and gamma, in the op's order. weight, scale, zero_point, bias:
    addresses of a product's tile. first: the product's first tile of these rows."""

    pieces: tuple[Piece, ...]
    weight: int = 0
    scale: int = 0
    zero_point: int = 0
    bias: int = 0
    first: bool = True


def head_size(record: OpRecord) -> int:
    """Columns that an op takes together: of a head, of a whole row for a norm over it, 1 for all other ops."""
    if record.kind == "RMSNorm":
        return record.operand_types[1].elements
    return record.result_types[0].shape[-1] if record.kind == "Rope" else 1


def emit_run(record: OpRecord, emit: Emitter, operands: Operands, result: Piece, scratch: int) -> None:
    """The instructions of one run of an op: on all columns of `result`. scratch: `scratch_bytes` from there on."""
    if record.kind == PRODUCT:
        memory = TileMemory(operands.weight, operands.scale, operands.zero_point, operands.bias, scratch)
        x, y = operands.pieces[0].matrix(emit.chip), result.matrix(emit.chip)
        emit_a16_tile(emit, a16_shape(record), x, y, memory, first=operands.first)
    elif record.kind != "Reshape":
        sources, target = _views(record, emit.chip, operands.pieces, result)
        _local_class(record).local(record, emit, sources, [target], scratch)


def scratch_bytes(record: OpRecord, chip: Chip, pieces: Sequence[Piece], result: Piece) -> int:
    """Bytes per lane that a run needs beside operands and result."""
    if record.kind == PRODUCT:
        return sum(tile_scratch(chip, a16_shape(record), result.rows, result.columns))
    if record.kind == "Reshape":
        return 0
    sources, target = _views(record, chip, pieces, result)
    return align_up(int(_local_class(record).local_buffer(chip, sources, [target])), chip.eu_bytes)


def _views(record: OpRecord, chip: Chip, pieces: Sequence[Piece], result: Piece) -> tuple[list[Local], Local]:
    """Operands and result as the op's local kernel takes them."""
    size = head_size(record)
    if record.kind == "Rope":
        return [piece.heads(chip, size) for piece in pieces], result.heads(chip, size)
    if record.kind == "RMSNorm":
        # heads outermost: their statistics take a row of an EU each, but their sums half the cycles
        return [pieces[0].heads_outside(size), pieces[1].matrix(chip)], result.heads_outside(size)
    return [piece.flat(chip) for piece in pieces], result.flat(chip)


def _local_class(record: OpRecord) -> Any:
    """The class of an op with `local` and `local_buffer`."""
    return REGISTRY[record.name]
