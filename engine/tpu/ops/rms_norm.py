"""tpu.RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.errors import UserError
from engine.op import TpuOp
from engine.snapshot import OpRecord
from engine.top.ops import rms_norm as top
from engine.tpu.chip import Chip
from engine.tpu.cores import CoreSplit, outermost_split
from engine.tpu.emit import Emitter, ceil_div, constant
from engine.tpu.isa import Local, Opcode, Shape4, dtype_bytes
from engine.tpu.numerics import round_to
from engine.tpu.tiling import aligned_bytes, largest_fitting, local_bytes

_INFINITY_BITS = constant(0x7F800000, "ui32")
_ZERO_BITS = constant(0, "si32")
_UNGUARDED = frozenset({"bm1688"})
"""Chips on which the vendor leaves out the guard against an infinite reciprocal (R48)."""


class RMSNorm(TpuOp, top.RMSNorm):
    """output = round(input / sqrt(mean(input^2) + eps)) * gamma over the last axis, statistics in f32.

    input [..., C]; gamma C elements. The normalised value is rounded before it is multiplied by gamma, as the
    chip does.
    """

    cut_operands = (0,)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        x, gamma = inputs
        assert x is not None
        assert gamma is not None
        dtype = op.result_types[0].dtype
        normalised = round_to(x * top.inverse_rms(x, op.attributes["eps"]), dtype)
        return (round_to(normalised * gamma.reshape(-1), dtype),)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Tiles of lanes * nl rows, a row on one lane; gamma is loaded for every tile (R29, R53)."""
        type_ = op.result_types[0]
        columns = type_.shape[-1]
        rows = type_.elements // columns
        plan = _Plan.choose(emit.chip, rows, columns, type_.dtype, op.location)
        count = ceil_div(rows, plan.rows)
        buffers = [_Buffers(plan, emit, half) for half in range(plan.halves)]

        def buffer(q: int) -> _Buffers:
            return buffers[q % plan.halves]

        def shape(q: int) -> Shape4:
            return (1, min(plan.rows, rows - q * plan.rows), columns, 1)

        def load(q: int) -> None:
            stride = (rows * columns, columns, 1, 1)
            emit.load(
                buffer(q).tensor("x", shape(q)), emit.source(0, shape(q), stride, q * plan.rows * columns)
            )
            emit.load(buffer(q).tensor("gamma", (1, 1, columns, 1)), emit.source(1, (1, 1, columns, 1)))

        def store(q: int) -> None:
            stride = (rows * columns, columns, 1, 1)
            emit.store(
                emit.target(0, shape(q), stride, q * plan.rows * columns), buffer(q).tensor("y", shape(q))
            )

        def compute(q: int) -> None:
            _normalize_rows(op, emit, buffer(q), shape(q))

        if plan.halves == 2:
            emit.pipeline(count, load, compute, store)
            return
        for q in range(count):
            for part in (load, compute, store):
                part(q)
                emit.sync()

    @classmethod
    def core_split(cls, op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
        """Rows; a single one stays on one core (R52)."""
        return outermost_split(op.result_types[0].shape[:-1], cores)

    @classmethod
    def local_buffer(cls, chip: Chip, sources: Sequence[Local], results: Sequence[Local]) -> int:
        """Bytes of scratch: the mean of every row (one EU each) and two f32 tensors as large as the operand."""
        x, gamma = sources
        return local_bytes(chip, "f32", _row_shape(x, gamma)) + 2 * local_bytes(chip, "f32", x.shape)

    @classmethod
    def local(
        cls, op: OpRecord, emit: Emitter, sources: Sequence[Local], results: Sequence[Local], buffer: int
    ) -> None:
        """Normalise over h*w when gamma has as many elements, else over w; x [n, c, h, w], gamma in lane 0.

        The f32 copy is made twice: its place holds sums in between, as the vendor does in groups. The result
        must not overlap the operands.
        """
        x, gamma = sources
        y = results[0]
        rows = _row_shape(x, gamma)
        square = buffer + local_bytes(emit.chip, "f32", rows)
        work = square + local_bytes(emit.chip, "f32", x.shape)
        copy, half = emit.local(work, "f32", x.shape, lane=x.lane), x.dtype != "f32"
        squares = emit.local(square, "f32", x.shape, lane=x.lane)
        if half:
            emit.tiu(Opcode.CAST, copy, x)
        values = copy if half else x
        emit.tiu(Opcode.MUL, squares, values, values)
        mean, sums, scale = (emit.local(at, "f32", rows, lane=x.lane) for at in (buffer, work, square))
        _average(emit, squares, sums, mean)
        _inverse_root(op, emit, mean, sums, scale)
        if half:
            emit.tiu(Opcode.CAST, copy, x)
        emit.tiu(Opcode.MUL, copy if half else y, _over_rows(scale, x.shape), copy if half else x)
        if half:
            emit.tiu(Opcode.CAST, y, copy)
        weights = _gamma_plane(gamma, x, rows)
        spread = emit.local(work, gamma.dtype, (1, emit.chip.lanes, *weights.shape[2:]))
        emit.tiu(Opcode.LANE_BROADCAST, spread, weights)
        _, _, h, w = x.shape
        h_stride = spread.stride[2] if spread.shape[2] == h else 0
        emit.tiu(Opcode.MUL, y, y, spread.view((*x.shape[:2], h, w), (0, 0, h_stride, 1)))


@dataclass(frozen=True)
class _Plan:
    """Rows of a tile and where its buffers are; `halves` is 2 when transfers overlap with compute."""

    rows: int
    halves: int
    offsets: dict[str, tuple[int, int]]
    dtype: str

    @classmethod
    def choose(cls, chip: Chip, rows: int, columns: int, dtype: str, location: str) -> _Plan:
        """The vendor's tile (R29: f32 rows of one and a half banks a lane), or what fits.

        Raises UserError, naming the op's location, when one row a lane does not fit.
        """
        vendor = max(1, chip.bank_bytes * 3 // 2 // (4 * columns))
        per_lane = min(vendor, ceil_div(rows, chip.lanes))
        for halves in (2, 1):
            for count in range(per_lane, 0, -1):
                if cls._needed(chip, count, columns, dtype, halves) <= chip.lmem_bytes:
                    sizes = cls._sizes(chip, count, columns, dtype)
                    return cls._place(chip.lanes * count, halves, sizes, dtype)
        largest = largest_fitting(chip, lambda size: cls._needed(chip, 1, size, dtype, 1), range(1, columns))
        raise UserError(
            f"RMSNorm at {location} over {columns} {dtype} elements does not fit local memory: even with one row a "
            f"lane it needs {cls._needed(chip, 1, columns, dtype, 1)} bytes a lane, {chip.name} has "
            f"{chip.lmem_bytes}; at most {largest} elements fit; choose a chip with more local memory or a model "
            "with a smaller hidden size"
        )

    @classmethod
    def _needed(cls, chip: Chip, count: int, columns: int, dtype: str, halves: int) -> int:
        """Bytes per lane of all buffers for `count` rows a lane."""
        sizes = cls._sizes(chip, count, columns, dtype).values()
        return sum(size * (halves if doubled else 1) for size, doubled in sizes)

    @staticmethod
    def _sizes(chip: Chip, count: int, columns: int, dtype: str) -> dict[str, tuple[int, bool]]:
        """Bytes of each buffer and whether it is doubled."""
        half, full = aligned_bytes(chip, dtype, columns), aligned_bytes(chip, "f32", columns)
        return {
            "x": (count * half, True),
            "gamma": (half, True),
            "y": (count * half, True),
            "work": (count * full, False),
            "copy": (0 if dtype == "f32" else count * full, False),
        }

    @classmethod
    def _place(cls, rows: int, halves: int, sizes: dict[str, tuple[int, bool]], dtype: str) -> _Plan:
        offsets, at = {}, 0
        for name, (size, doubled) in sizes.items():
            step = size if doubled and halves == 2 else 0
            offsets[name] = (at, at + step)
            at += size + step
        return cls(rows, halves, offsets, dtype)


@dataclass(frozen=True)
class _Buffers:
    """One half of a plan's local memory."""

    plan: _Plan
    emit: Emitter
    half: int

    def tensor(self, name: str, shape: Shape4, dtype: str | None = None) -> Local:
        return self.emit.local(self.plan.offsets[name][self.half], dtype or self.plan.dtype, shape)


def _normalize_rows(op: OpRecord, emit: Emitter, buffers: _Buffers, shape: Shape4) -> None:
    """One global tile: x [1, rows, C, 1] to y. Row statistics lie in y until it is written."""
    x, y, work = buffers.tensor("x", shape), buffers.tensor("y", shape), buffers.tensor("work", shape, "f32")
    half = x.dtype != "f32"
    values = buffers.tensor("copy", shape, "f32") if half else x
    rows = (1, shape[1], 1, 1)
    statistics, sums = buffers.tensor("y", rows, "f32"), buffers.tensor("work", rows, "f32")
    if half:
        emit.tiu(Opcode.CAST, values, x)
    emit.tiu(Opcode.MUL, work, values, values)
    emit.tiu(Opcode.POOL_AVG, statistics, work, constant(1.0 / shape[2]), kernel=(shape[2], 1))
    _inverse_root(op, emit, statistics, sums, statistics)
    emit.tiu(Opcode.MUL, work, _over_rows(statistics, shape), values)
    if half:
        emit.tiu(Opcode.CAST, y, work)
    gamma = buffers.tensor("gamma", (1, 1, shape[2], 1))
    spread = gamma.view((1, emit.chip.lanes, shape[2], 1))
    emit.tiu(Opcode.LANE_BROADCAST, spread, gamma)
    emit.tiu(Opcode.MUL, y, spread.view(shape, (0, 0, 1, 0)), y if half else work)


def _inverse_root(op: OpRecord, emit: Emitter, mean: Local, sums: Local, scale: Local) -> None:
    """scale = 1 / sqrt(mean + eps), 0 where that is infinite; `sums` is scratch."""
    emit.tiu(Opcode.ADD, sums, mean, constant(op.attributes["eps"]))
    emit.tiu(Opcode.RSQRT, scale, sums)
    if emit.chip.name in _UNGUARDED:
        return
    bits = scale.view(scale.shape, dtype="si32")
    emit.tiu(Opcode.SELECT_EQ, bits, scale.view(scale.shape, dtype="ui32"), _INFINITY_BITS, _ZERO_BITS, bits)


def _average(emit: Emitter, values: Local, partial: Local, mean: Local) -> None:
    """mean [n, c, h or 1, 1] of values [n, c, h, w]; a whole plane in two steps if it is a multiple of the EU."""
    n, c, h, w = values.shape
    if mean.shape[2] == h and h > 1:
        emit.tiu(Opcode.POOL_AVG, mean, values, constant(1.0 / w), kernel=(1, w))
        return
    eu, plane = emit.chip.eu(dtype_bytes("f32")), h * w
    if plane % eu:
        emit.tiu(Opcode.POOL_AVG, mean, values, constant(1.0 / plane), kernel=(h, w))
        return
    columns = values.view((n, c, plane // eu, eu), (*values.stride[:2], eu, 1))
    sums = emit.local(partial.address, "f32", (n, c, 1, eu), lane=partial.lane)
    emit.tiu(Opcode.POOL_AVG, sums, columns, constant(1.0), kernel=(plane // eu, 1))
    emit.tiu(Opcode.POOL_AVG, mean, sums, constant(1.0 / plane), kernel=(1, eu))


def _row_shape(x: Local, gamma: Local) -> Shape4:
    """Shape of the statistics: one a channel if gamma covers its plane, else one a row of w."""
    n, c, h, w = x.shape
    whole = gamma.shape[2] * gamma.shape[3] == h * w
    return (n, c, 1 if whole else h, 1)


def _over_rows(scale: Local, shape: Shape4) -> Local:
    """Statistics [n, c, h or 1, 1] repeated over `shape`."""
    h_stride = scale.stride[2] if scale.shape[2] > 1 else 0
    return scale.view(shape, (*scale.stride[:2], h_stride, 0))


def _gamma_plane(gamma: Local, x: Local, rows: Shape4) -> Local:
    """gamma as [1, 1, h, w] of a plane of x, or [1, 1, 1, w] of a row."""
    _, _, h, w = x.shape
    h = h if rows[2] == 1 else 1
    return gamma.view((1, 1, h, w), (h * w, h * w, w, 1))
