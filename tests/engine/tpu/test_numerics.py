"""Rounding to the chip's types: half to even, whatever the number."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from engine.tpu.numerics import round_bf16, round_to, to_float32

F32 = np.float32


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


def test_bf16_rounds_half_to_even() -> None:
    # GIVEN numbers halfway between two bf16 numbers, and just beside the middle
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0xBF808000], np.uint32).view(F32)
    # THEN ties go to the even mantissa and everything else to the nearer number
    expected = np.array([0x3F800000, 0x3F820000, 0x3F810000, 0x3F810000, 0xBF800000], np.uint32)
    np.testing.assert_array_equal(bits(round_bf16(halfway)), expected)


def test_bf16_equals_integer_arithmetic_on_the_bits() -> None:
    raw = np.random.default_rng(1).integers(0, 1 << 32, 100_000, np.uint64).astype(np.uint32)
    values = raw.view(F32)
    values = values[np.isfinite(values)]
    raw = bits(values)
    expected = (raw + 0x7FFF + ((raw >> 16) & 1)) & np.uint32(0xFFFF0000)
    np.testing.assert_array_equal(bits(round_bf16(values)), expected)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_special_values_survive(dtype: str) -> None:
    found = round_to(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], F32), dtype)
    assert np.isnan(found[0])
    np.testing.assert_array_equal(found[1:], [np.inf, -np.inf, 0, 0])
    assert np.signbit(found[4])


def test_f16_overflows_to_infinity_without_a_warning() -> None:
    found = round_to(np.array([65519, 65520, -1e9], F32), "f16")
    np.testing.assert_array_equal(found, [65504, np.inf, -np.inf])


def test_results_are_new_float32_arrays_that_the_type_holds() -> None:
    values = np.random.default_rng(2).standard_normal((3, 5)).astype(F32)
    for dtype, stored in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        found = round_to(values, dtype)
        assert (found.dtype, found.shape) == (F32, (3, 5))
        np.testing.assert_array_equal(found.astype(stored).astype(F32), found)
        assert not np.shares_memory(found, values)


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="si8 is not a float dtype"):
        round_to(np.zeros(1, F32), "si8")


def test_stored_tensors_widen_and_integers_stay() -> None:
    half = np.array([1.5, -2], ml_dtypes.bfloat16)
    assert to_float32(half).dtype == F32
    np.testing.assert_array_equal(to_float32(half), [1.5, -2])
    packed, plain = np.array([7, 255], np.uint8), np.ones(2, F32)
    assert to_float32(packed) is packed
    assert to_float32(plain) is plain
