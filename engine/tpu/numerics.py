"""Rounding as the chip does it, on float32 arrays whose values are exactly representable in a narrower type."""

from __future__ import annotations

import numpy as np

_LOW_HALF = np.uint32(0x7FFF)
_ONE = np.uint32(1)
_SIXTEEN = np.uint32(16)
_HIGH = np.uint32(0xFFFF0000)


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` (float32) rounded half to even to f32, f16 or bf16, returned as float32. NaN and infinity survive."""
    if dtype == "f32":
        return np.asarray(values, dtype=np.float32)
    if dtype == "bf16":
        return round_bf16(values)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype=np.float32).astype(np.float16).astype(np.float32)
    raise ValueError(f"{dtype} is not a float dtype")


def round_bf16(values: np.ndarray) -> np.ndarray:
    """float32 rounded half to even to bfloat16, as float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = np.right_shift(bits, _SIXTEEN)
    odd &= _ONE
    odd += _LOW_HALF
    odd += bits
    odd &= _HIGH
    rounded = odd.view(np.float32)
    if not np.isfinite(rounded).all():
        # adding to the mantissa of a NaN or overflowing past the largest number must not change class
        special = ~np.isfinite(values)
        rounded = np.where(special, values, rounded).astype(np.float32)
    return rounded
