"""Quantised weights: the vendor's bits, exact rounding, error bounds, lane order."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from engine.tpu.quantize import (
    CHUNK_ELEMENTS,
    QuantizedWeight,
    dequantize,
    group_count,
    lane_reorder,
    lane_restore,
    quantize,
)

VENDOR = Path(__file__).parents[2] / "data" / "vendor_w4.npz"
MODES = {"w4_asym": (4, False), "w4_sym": (4, True), "w8_asym": (8, False)}
HALVES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}

Array = NDArray[Any]


def levels(quantized: QuantizedWeight, bits: int) -> Array:
    """The integers [N, K], unpacked one by one."""
    packed = quantized.packed.astype(int)
    if bits == 8:
        return packed
    return np.stack([packed % 16, packed // 16], axis=-1).reshape(len(packed), -1)


def half_away(x: np.float32) -> int:
    """x rounded to the nearest integer, halves away from zero, in exact arithmetic."""
    magnitude = math.floor(abs(Fraction(float(x))) + Fraction(1, 2))
    return -magnitude if x < 0 else magnitude


def by_definition(row: Array, bits: int, group_size: int, symmetric: bool) -> tuple[list[int], list[float]]:
    """Levels and scales of one row, weight by weight as the module's docstring defines them."""
    top = 2**bits - 1
    found: list[int] = []
    scales: list[float] = []
    for start in range(0, len(row), group_size):
        group = row[start : start + group_size].astype(np.float32)
        low, high = np.minimum(group.min(), np.float32(0)), np.maximum(group.max(), np.float32(0))
        span = np.float32(2) * np.abs(group).max() if symmetric else high - low
        scale = np.maximum(span, np.float32(1e-5)) / np.float32(top)
        zero = (top + 1) // 2 if symmetric else min(top, half_away(-low / scale))
        found += [min(top, max(0, half_away(w / scale) + zero)) for w in group]
        scales.append(float(scale))
    return found, scales


weights = arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 40).map(lambda half: 2 * half)),
    elements=st.floats(-4, 4, width=32) | st.integers(-30, 30).map(lambda n: n / 8) | st.just(0.0),
)


@pytest.mark.parametrize("linear", ["k_proj", "down_proj"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_weights_are_bit_exact_with_the_vendors(linear: str, mode: str, dtype: Any) -> None:
    # GIVEN a checkpoint tensor and what the reference compiler stored for it
    with np.load(VENDOR) as vendor:
        stored = vendor[f"{linear}/stored_bf16"].view(ml_dtypes.bfloat16)
        expected = {
            part: vendor[f"{linear}/{mode}/{part}"] for part in ("packed", "scale_bf16", "zero_point")
        }
    # WHEN it is quantised
    bits, symmetric = MODES[mode]
    result = quantize(stored.astype(dtype), bits, 64, symmetric)
    # THEN every byte agrees
    np.testing.assert_array_equal(result.packed, expected["packed"])
    np.testing.assert_array_equal(result.zero_point, expected["zero_point"])
    scale = result.scale.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(scale, expected["scale_bf16"])


def test_halves_round_away_from_zero_and_near_halves_do_not() -> None:
    # GIVEN a group with scale 1 and zero point 7
    below_half = float(np.nextafter(np.float32(0.5), np.float32(0)))
    below_five_halves = float(np.nextafter(np.float32(2.5), np.float32(0)))
    row = [-7, 8, 0.5, -0.5, below_half, -below_half, 1.5, -1.5, 2.5, -2.5, below_five_halves, 7.5]
    # WHEN it is quantised
    result = quantize(np.array([row], np.float32), 4, len(row), symmetric=False)
    # THEN exact halves go outwards, the float below a half inwards, and the largest level is clipped
    assert result.scale[0, 0] == 1
    assert (levels(result, 4)[0] - 7).tolist() == [-7, 8, 1, -1, 0, 0, 2, -2, 3, -3, 2, 8]


@settings(deadline=None)
@given(weight=weights, bits=st.sampled_from([4, 8]), group_size=st.integers(1, 20), symmetric=st.booleans())
def test_levels_and_scales_follow_the_definition(
    weight: Array, bits: int, group_size: int, symmetric: bool
) -> None:
    result = quantize(weight, bits, group_size, symmetric)
    for found, scale, row in zip(levels(result, bits), result.scale, weight, strict=True):
        assert (found.tolist(), scale.tolist()) == by_definition(row, bits, group_size, symmetric)


@settings(deadline=None)
@given(
    weight=weights,
    bits=st.sampled_from([4, 8]),
    group_size=st.integers(1, 20),
    symmetric=st.booleans(),
    dtype=st.sampled_from(["bf16", "f16"]),
)
def test_dequantised_weights_lie_within_half_a_scale(
    weight: Array, bits: int, group_size: int, symmetric: bool, dtype: str
) -> None:
    # GIVEN any weight, with groups of one sign, flat groups and a short last group among them
    result = quantize(weight, bits, group_size, symmetric)
    # WHEN it is dequantised in a half type
    half = HALVES[dtype]
    back = dequantize(result.packed, result.scale, result.zero_point, bits, group_size, half)
    # THEN the error is half a scale plus the rounding of scale and product
    scale = np.repeat(result.scale, group_size, axis=1)[:, : weight.shape[1]]
    step = float(ml_dtypes.finfo(half).eps)
    bound = scale / 2 * (1 + 1e-5) + np.abs(weight) * step + scale * step + 2**-24 * 256
    assert back.dtype == half
    assert (np.abs(back.astype(np.float64) - weight) <= bound).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [16, 24])
def test_dequantisation_rounds_scale_and_product_once_each(dtype: str, bits: int, group_size: int) -> None:
    # GIVEN every level against many scales, in whole groups and with a short last group
    rng = np.random.default_rng(1)
    rows, k = 50, 64
    groups = group_count(k, group_size)
    packed = rng.integers(0, 256, (rows, k * bits // 8), np.uint8)
    scale = np.exp(rng.normal(-4, 2, (rows, groups))).astype(np.float32)
    zero = rng.integers(0, 2**bits, (rows, groups)).astype(np.uint8)
    # WHEN dequantised
    found = dequantize(packed, scale, zero, bits, group_size, HALVES[dtype])
    # THEN it is the product of two half numbers, exact in float64, rounded to half
    half = HALVES[dtype]
    spread_zero = np.repeat(zero, group_size, axis=1)[:, :k].astype(int)
    spread_scale = np.repeat(scale.astype(half), group_size, axis=1)[:, :k].astype(np.float64)
    difference = levels(QuantizedWeight(packed, scale, zero), bits) - spread_zero
    expected = (difference * spread_scale).astype(np.float32).astype(half)
    np.testing.assert_array_equal(found, expected)


def test_float32_dequantisation_keeps_the_float32_scale() -> None:
    quantized = quantize(np.array([[-0.7, 0.8]], np.float32), 8, 2, symmetric=False)
    parts = (quantized.packed, quantized.scale, quantized.zero_point)
    exact = (quantized.packed.astype(np.float32) - quantized.zero_point) * quantized.scale
    np.testing.assert_array_equal(dequantize(*parts, 8, 2, np.float32), exact)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_zero_and_constant_groups_are_finite(bits: int, symmetric: bool) -> None:
    # GIVEN groups that are all zero, constant positive, constant negative and tiny
    row = np.repeat(np.array([0, 3, -3, 1e-7], np.float32), 4)[None]
    # WHEN quantised and back
    result = quantize(row, bits, 4, symmetric)
    back = dequantize(result.packed, result.scale, result.zero_point, bits, 4, np.float32)
    # THEN no scale is zero, zeros stay zero and constants come back
    assert (result.scale > 0).all()
    assert (back[0, :4] == 0).all()
    np.testing.assert_allclose(back[0, 4:12], row[0, 4:12], rtol=0.07)


def test_large_weights_do_not_depend_on_the_row_chunks() -> None:
    # GIVEN a weight of several chunks, the last one partial, stored as bf16, and a strided view of it
    rng = np.random.default_rng(0)
    rows = 2 * CHUNK_ELEMENTS // 640 + 3
    weight = rng.normal(0, 0.05, (rows, 640)).astype(ml_dtypes.bfloat16)
    # WHEN quantised at once, row by row, and from a transposed copy
    whole = quantize(weight, 4, 64, symmetric=False)
    single = [quantize(row[None], 4, 64, symmetric=False) for row in weight]
    strided = quantize(np.ascontiguousarray(weight.T).T, 4, 64, symmetric=False)
    # THEN the numbers are the same
    for part in ("packed", "scale", "zero_point"):
        expected = getattr(whole, part)
        np.testing.assert_array_equal(np.concatenate([getattr(one, part) for one in single]), expected)
        np.testing.assert_array_equal(getattr(strided, part), expected)


def test_every_float_dtype_gives_the_numbers_of_its_values() -> None:
    halves = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float16)
    expected = quantize(halves.astype(np.float32), 4, 16, symmetric=False).packed
    for dtype in (np.float16, np.float64):
        np.testing.assert_array_equal(quantize(halves.astype(dtype), 4, 16, False).packed, expected)


@pytest.mark.parametrize(
    ("weight", "bits", "reason"),
    [
        (np.ones((2, 5), np.float32), 4, "K = 5 is odd"),
        (np.ones((2, 4), np.float32), 2, "4 or 8 bits"),
        (np.ones(4, np.float32), 4, "shape"),
        (np.array([[1, 1, 1, 1], [1, np.nan, 0, 0]], np.float32), 4, "row 1 contains NaN"),
        (np.array([[1, np.inf, 0, 0]], np.float32), 8, "row 0 contains NaN"),
        (np.array([[3e38, -3e38]], np.float32), 8, "row 0"),
    ],
)
def test_what_cannot_be_quantised_is_refused(weight: Array, bits: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        quantize(weight, bits, 64, symmetric=False)


def test_odd_k_is_fine_with_eight_bits() -> None:
    assert quantize(np.ones((2, 5), np.float32), 8, 64, symmetric=False).packed.shape == (2, 5)


def test_lane_reorder_deals_rows_to_lanes_in_turn() -> None:
    # GIVEN five channels for three lanes
    array = np.array([[n, 10 + n] for n in range(5)], np.uint8)
    # THEN lane l holds channels l and l + 3, and zeros where there is none
    expected = [[[0, 10], [3, 13]], [[1, 11], [4, 14]], [[2, 12], [0, 0]]]
    assert lane_reorder(array, 3).tolist() == expected


@settings(deadline=None)
@given(n=st.integers(1, 70), groups=st.integers(1, 4), lanes=st.integers(1, 64))
def test_lane_restore_undoes_lane_reorder(n: int, groups: int, lanes: int) -> None:
    array = np.arange(1, n * groups + 1, dtype=np.float32).reshape(n, groups)
    reordered = lane_reorder(array, lanes)
    assert reordered.shape == (lanes, -(-n // lanes), groups)
    assert np.count_nonzero(reordered) == array.size
    np.testing.assert_array_equal(lane_restore(reordered, n), array)
