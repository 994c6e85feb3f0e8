"""Element arithmetic of the machine: dtypes, conversions with a rounding mode, saturation and shifts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from engine.tpu.isa import DTYPES, Rounding

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "si32": np.dtype(np.int32),
    "ui32": np.dtype(np.uint32),
    "si16": np.dtype(np.int16),
    "ui16": np.dtype(np.uint16),
    "si8": np.dtype(np.int8),
    "ui8": np.dtype(np.uint8),
    "none": np.dtype(np.uint8),
}
"""The NumPy dtype of each dtype name of the IR."""

DTYPE_BY_CODE = tuple(NUMPY_DTYPES[name] for name in DTYPES)
"""The NumPy dtype of the dtype code in an operand."""

FLOATS = frozenset((NUMPY_DTYPES["f32"], NUMPY_DTYPES["f16"], NUMPY_DTYPES["bf16"]))
_BF16, _F16, _F32 = NUMPY_DTYPES["bf16"], NUMPY_DTYPES["f16"], NUMPY_DTYPES["f32"]
_BITS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
}


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for f32, f16 and bf16."""
    return dtype in FLOATS


def bits_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The unsigned integer dtype as wide as `dtype`."""
    return _BITS[dtype.itemsize]


def wide(values: Array) -> Array:
    """The values in the dtype in which the machine computes: float32, or an integer type that cannot overflow."""
    if values.dtype == _F32:
        return values
    if is_float(values.dtype):
        return values.astype(np.float32)
    return values.astype(np.int32 if values.dtype.itemsize == 1 else np.int64)


def whole_number(value: int) -> np.generic:
    """A constant in the narrowest of those types that can also hold its product with any byte."""
    return np.int32(value) if abs(value) < 1 << 23 else np.int64(value)


def round_to_integer(values: Array, rounding: int) -> Array:
    """Float values rounded to whole numbers, same dtype."""
    if rounding == Rounding.HALF_EVEN:
        return np.asarray(np.rint(values))
    if rounding == Rounding.HALF_AWAY:
        whole = np.trunc(values)
        return np.asarray(np.where(np.abs(values - whole) >= 0.5, whole + np.sign(values), whole))
    if rounding == Rounding.TOWARD_ZERO:
        return np.asarray(np.trunc(values))
    return np.asarray(np.floor(values) if rounding == Rounding.DOWN else np.ceil(values))


def saturate(values: Array, dtype: np.dtype[Any]) -> Array:
    """Whole numbers (any dtype) clamped to the range of the integer `dtype`; NaN becomes 0."""
    limits = np.iinfo(dtype)
    if values.dtype.kind in "iu":
        return np.clip(values, limits.min, limits.max).astype(dtype)
    exact = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.clip(exact, limits.min, limits.max).astype(dtype)


def convert(values: Array, dtype: np.dtype[Any], rounding: int = Rounding.HALF_EVEN) -> Array:
    """`values` in `dtype`, rounded once; a conversion to an integer saturates. f32 to f32 does not round."""
    if values.dtype == dtype:
        return values
    if not is_float(dtype):
        if values.dtype.kind in "iu":
            return saturate(values, dtype)
        return saturate(round_to_integer(wide(values), rounding), dtype)
    if values.dtype.kind in "iu":
        values = values.astype(np.float32)
    if rounding == Rounding.HALF_EVEN or dtype == _F32:
        return values.astype(dtype)
    return _to_bf16(values, rounding) if dtype == _BF16 else _to_f16(values, rounding)


def _to_bf16(values: Array, rounding: int) -> Array:
    bits = wide(values).view(np.uint32)
    negative = bits >> 31 != 0
    if rounding == Rounding.HALF_AWAY:
        step: Any = np.uint32(0x8000)
    elif rounding == Rounding.TOWARD_ZERO:
        step = np.uint32(0)
    else:
        step = np.where(negative == (rounding == Rounding.DOWN), np.uint32(0xFFFF), np.uint32(0))
    rounded = ((bits + step) >> 16).astype(np.uint16).view(_BF16)
    return np.where(np.isfinite(values), rounded, values.astype(_BF16))


def _to_f16(values: Array, rounding: int) -> Array:
    """Start from the nearest f16 and step to its neighbour where the mode asks for the other side."""
    nearest = values.astype(_F16)
    exact, near = values.astype(np.float64), nearest.astype(np.float64)
    if rounding == Rounding.HALF_AWAY:
        target = np.where(exact < 0, -np.inf, np.inf)
        other = np.nextafter(nearest, target.astype(_F16))
        tie = np.abs(exact - near) == np.abs(other.astype(np.float64) - exact)
        return np.where(tie & np.isfinite(exact) & (np.abs(near) < np.abs(exact)), other, nearest)
    if rounding == Rounding.TOWARD_ZERO:
        wrong, target = np.abs(near) > np.abs(exact), np.zeros_like(exact)
    elif rounding == Rounding.DOWN:
        wrong, target = near > exact, np.full_like(exact, -np.inf)
    else:
        wrong, target = near < exact, np.full_like(exact, np.inf)
    return np.where(wrong & np.isfinite(exact), np.nextafter(nearest, target.astype(_F16)), nearest)


def shift(values: Array, amount: Array, rounding: int) -> Array:
    """Whole `values` shifted left by positive and right by negative amounts; a right shift rounds."""
    left = np.left_shift(values, np.maximum(amount, 0))
    if np.all(amount >= 0):
        return left
    down = np.maximum(-amount, 0)
    floor = np.right_shift(left, down)
    if rounding == Rounding.DOWN or (rounding == Rounding.TOWARD_ZERO and values.min(initial=0) >= 0):
        return floor
    rest = left - np.left_shift(floor, down)
    doubled, unit = 2 * rest, np.left_shift(1, down)
    if rounding == Rounding.HALF_EVEN:
        up = (doubled > unit) | ((doubled == unit) & (floor & 1 == 1))
    elif rounding == Rounding.HALF_AWAY:
        up = (doubled > unit) | ((doubled == unit) & (values >= 0))
    elif rounding == Rounding.TOWARD_ZERO:
        up = (rest > 0) & (values < 0)
    else:
        up = rest > 0
    return np.asarray(floor + (up & (amount < 0)))
