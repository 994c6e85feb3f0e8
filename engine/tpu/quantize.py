"""Group-wise W4 and W8 weight quantisation, bit for bit as the reference compiler stores it, and its inverse.

A linear's weight [N, K] (N output channels) is cut along K into G = ceil(K / group_size) groups per row; each
group has a scale and an integer zero point. With top = 15 for 4 bits and 255 for 8:

    asymmetric   scale = (max - min) / top        zero_point = clip(round(-min / scale), 0, top)
    symmetric    scale = 2 max|w| / top           zero_point = (top + 1) / 2
    q = clip(round(w / scale) + zero_point, 0, top)       w ~ (q - zero_point) scale

`round` takes halves away from zero; everything is float32. Three cases go beyond the formula:

- K is no multiple of group_size: the last group of each row is shorter (the reference refuses such a weight).
- Flat groups: max - min (2 max|w|) is at least 1e-5, so that an all-zero group has a scale to divide by. The
  reference has this floor for asymmetric only and divides by zero in an all-zero symmetric group.
- Asymmetric groups of one sign: the range is widened to contain 0. The reference does not, and so clips most
  of such a group; where a group has weights of both signs, or a zero, the two agree.

|w - (q - zero_point) scale| <= scale / 2 therefore holds for every weight, up to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

SMALLEST_RANGE = np.float32(1e-5)
"""Floor of a group's range (in weight units), so that no scale is 0."""

CHUNK_ELEMENTS = 32 * 1024
"""Weights worked on at a time, so that the float32 buffers stay in a 1 MB second-level cache."""

BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
"""trunc(x + copysign(BELOW_HALF, x)) rounds halves away from zero exactly; 0.5 would take 0.49999997 to 1."""

SIGN_BIT = np.uint32(0x80000000)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class QuantizedWeight:
    """What a linear's weight [N, K] becomes.

    packed: ui8 [N, K*bits/8]; for 4 bits the low nibble is the even k. scale: f32 [N, G].
    zero_point: ui8 [N, G].
    """

    packed: NDArray[np.uint8]
    scale: NDArray[np.float32]
    zero_point: NDArray[np.uint8]


def group_count(k: int, group_size: int) -> int:
    """Groups per row: ceil(k / group_size)."""
    return -(-k // group_size)


def quantize(weight: NDArray[Any], bits: int, group_size: int, symmetric: bool) -> QuantizedWeight:
    """Quantise a weight [N, K] of any float dtype along K to 4 or 8 bits; scales stay float32.

    Raises ValueError for other bits or ranks, for odd K with 4 bits (a byte holds two k of one row; the
    lowering keeps such a linear in the half type) and for weights with NaN or infinity.
    """
    if weight.ndim != 2 or not weight.size:
        raise ValueError(f"a weight to quantise is [N, K] and not empty, found shape {list(weight.shape)}")
    if bits not in (4, 8):
        raise ValueError(f"weights are quantised to 4 or 8 bits, not {bits}")
    if group_size < 1:
        raise ValueError(f"group size must be positive, found {group_size}")
    rows, k = weight.shape
    if bits == 4 and k % 2:
        raise ValueError(f"K = {k} is odd, but a byte packs two 4-bit k: keep this linear in the half type")
    groups = group_count(k, group_size)
    result = QuantizedWeight(
        packed=np.empty((rows, k * bits // 8), np.uint8),
        scale=np.empty((rows, groups), np.float32),
        zero_point=np.empty((rows, groups), np.uint8),
    )
    workspace = _Workspace(k, bits, group_size)
    with np.errstate(invalid="ignore", over="ignore"):  # found once and for all in the scales, below
        for chunk in _row_chunks(rows, k):
            _parameters(workspace, weight[chunk], symmetric, result.scale[chunk], result.zero_point[chunk])
            _levels(workspace, result.scale[chunk], result.zero_point[chunk], result.packed[chunk])
    finite = np.isfinite(result.scale).all(axis=1)
    if not finite.all():
        raise ValueError(f"row {int(np.argmin(finite))} contains NaN, infinity or a range beyond float32")
    return result


def dequantize(
    packed: NDArray[np.uint8],
    scale: NDArray[Any],
    zero_point: NDArray[np.uint8],
    bits: int,
    group_size: int,
    dtype: DTypeLike,
) -> NDArray[Any]:
    """The weight [N, K] in dtype (bf16, f16 or f32) that the chip multiplies with.

    packed [N, K*bits/8], scale and zero_point [N, G] as `quantize` makes them. As on the chip, q - zero_point
    is exact, the scale is first rounded to dtype and the product is rounded once.
    """
    rows, k = len(packed), packed.shape[1] * 8 // bits
    workspace = _Workspace(k, bits, group_size)
    rounded_scale = scale.astype(dtype, copy=False).astype(np.float32)
    weight = np.empty((rows, k), dtype)
    for chunk in _row_chunks(rows, k):
        levels = packed[chunk] if bits == 8 else _unpack_nibbles(packed[chunk])
        values = workspace.grouped(workspace.values[: len(levels)])
        zeros = workspace.spread(zero_point[chunk])
        np.subtract(workspace.grouped(levels), zeros, out=values, dtype=np.float32)
        # 9 bits times at most 11: exact in float32 for the half types, so that the assignment alone rounds.
        np.multiply(values, workspace.spread(rounded_scale[chunk]), out=values)
        weight[chunk] = values.reshape(len(levels), k)
    return weight


def lane_reorder(array: NDArray[Any], lanes: int) -> NDArray[Any]:
    """Scales or zero points [N, G] as the lanes read them: [lanes, ceil(N/lanes), G].

    result[lane, i, g] = array[i * lanes + lane, g]; zeros fill up when N is no multiple of lanes.
    """
    rows, groups = array.shape
    blocks = -(-rows // lanes)
    padded = np.zeros((blocks * lanes, groups), array.dtype)
    padded[:rows] = array
    return np.ascontiguousarray(padded.reshape(blocks, lanes, groups).transpose(1, 0, 2))


def lane_restore(array: NDArray[Any], n: int) -> NDArray[Any]:
    """The inverse of `lane_reorder`: [lanes, blocks, G] back to [n, G], without the fill."""
    return np.ascontiguousarray(array.transpose(1, 0, 2).reshape(-1, array.shape[2])[:n])


def _row_chunks(rows: int, k: int) -> Iterator[slice]:
    step = max(1, CHUNK_ELEMENTS // k)
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


class _Workspace:
    """Buffers for one chunk of rows, reused from chunk to chunk, and the split of K into groups."""

    def __init__(self, k: int, bits: int, group_size: int) -> None:
        rows = max(1, CHUNK_ELEMENTS // k)
        self.bits = bits
        self.top = 2**bits - 1
        self.values = np.empty((rows, k), np.float32)
        self.halves = np.empty((rows, k), np.float32)
        # Before they are clipped, levels lie within -top .. 2 top.
        self.levels = np.empty((rows, k), np.int8 if bits == 4 else np.int16)
        self.starts = np.arange(0, k, group_size)
        self.lengths = np.diff(self.starts, append=k)
        self.row_shape = (k,) if k % group_size else (k // group_size, group_size)

    def grouped(self, array: NDArray[Any]) -> NDArray[Any]:
        """View of [rows, K] that broadcasts with `spread`."""
        return array.reshape(len(array), *self.row_shape)

    def spread(self, parameter: NDArray[Any]) -> NDArray[Any]:
        """[rows, G] against every weight of its group; only a short last group needs copies."""
        regular = len(self.row_shape) == 2
        return parameter[:, :, None] if regular else np.repeat(parameter, self.lengths, axis=1)


def _parameters(
    workspace: _Workspace,
    weight: NDArray[Any],
    symmetric: bool,
    scale: NDArray[np.float32],
    zero_point: NDArray[np.uint8],
) -> None:
    """Widen a chunk into workspace.values; write the scale and zero point of its groups."""
    values = workspace.values[: len(weight)]
    _widen(weight, values)
    # reduceat takes a short last group in its stride, and is twice as fast as reducing a 3-D view.
    low = np.minimum.reduceat(values, workspace.starts, axis=1)
    high = np.maximum.reduceat(values, workspace.starts, axis=1)
    if symmetric:
        span = 2 * np.maximum(high, -low)
    else:
        np.minimum(low, 0, out=low)
        span = np.maximum(high, 0) - low
    np.divide(np.maximum(span, SMALLEST_RANGE), np.float32(workspace.top), out=scale)
    if symmetric:
        zero_point.fill((workspace.top + 1) // 2)
    else:
        zero_point[...] = np.clip(-low / scale + BELOW_HALF, 0, workspace.top)


def _levels(
    workspace: _Workspace,
    scale: NDArray[np.float32],
    zero_point: NDArray[np.uint8],
    packed: NDArray[np.uint8],
) -> None:
    """Write the packed levels of the chunk in workspace.values (which it uses up)."""
    count = len(packed)
    values, halves, levels = workspace.values[:count], workspace.halves[:count], workspace.levels[:count]
    ratio = workspace.grouped(values)
    np.divide(ratio, workspace.spread(scale), out=ratio)
    sign = halves.view(np.uint32)  # copysign through the bits: four times as fast as np.copysign
    np.bitwise_and(values.view(np.uint32), SIGN_BIT, out=sign)
    np.bitwise_or(sign, BELOW_HALF.view(np.uint32), out=sign)
    np.add(values, halves, out=values)
    np.copyto(levels, values, casting="unsafe")  # truncates
    grouped = workspace.grouped(levels)
    np.add(grouped, workspace.spread(zero_point.astype(levels.dtype)), out=grouped)
    np.clip(levels, 0, workspace.top, out=levels)
    if workspace.bits == 8:
        np.copyto(packed, levels, casting="unsafe")
        return
    pairs = levels.view(np.uint16)  # low byte: even k
    np.copyto(packed, pairs | pairs >> 4, casting="unsafe")


def _unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[rows, K/2] to [rows, K], the low nibble first."""
    pairs = packed.astype(np.uint16)
    pairs |= pairs << 4
    pairs &= 0x0F0F
    return pairs.view(np.uint8)


def _widen(weight: NDArray[Any], values: NDArray[np.float32]) -> None:
    """Write weight as float32; a bf16 number is the upper half of the same float32 number."""
    if weight.dtype != BFLOAT16:
        np.copyto(values, weight, casting="unsafe")
        return
    bits = values.view(np.uint32)
    np.copyto(bits, weight.view(np.uint16))
    np.left_shift(bits, 16, out=bits)
