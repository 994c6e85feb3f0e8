"""Rounding as the chip does it, on float32 arrays whose values are exactly representable in a narrower type."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` (float32) rounded half to even to f32, f16 or bf16, returned as float32. NaN and infinity survive."""
    if dtype == "bf16":
        return round_bf16(values)
    if dtype == "f32":
        return np.asarray(values, dtype=np.float32)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype=np.float32).astype(np.float16).astype(np.float32)
    raise ValueError(f"{dtype} is not a float dtype")


def round_bf16(values: np.ndarray) -> np.ndarray:
    """float32 rounded half to even to bfloat16, as float32."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def to_float32(stored: np.ndarray) -> np.ndarray:
    """A stored tensor as the interpreter carries it: bf16 and f16 as float32 (f32 is not copied), integers as is."""
    if stored.dtype == np.float32 or stored.dtype.kind in "iub":
        return stored
    return stored.astype(np.float32)
