"""The numbers behind weight references: transforms, sharing, layers, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import UserError
from engine.snapshot import OpRecord, TensorType
from engine.tpu import weights
from engine.tpu.quantize import lane_reorder, quantize
from engine.tpu.weights import (
    Transform,
    WeightReference,
    materialize,
    materialize_many,
    parse_transform,
)

BF16 = np.dtype(ml_dtypes.bfloat16)
W4 = "quantize(w4,g64,asymmetric)"

Array = NDArray[Any]


class Stored:
    """A source of arrays by name that notes what was asked for."""

    def __init__(self, **tensors: Array) -> None:
        self.tensors = {name.replace("__", "."): value for name, value in tensors.items()}
        self.asked: list[str] = []

    def tensor(self, name: str) -> Array:
        self.asked.append(name)
        return self.tensors[name]

    def computed(self, name: str, shape: tuple[int, ...]) -> Array:
        self.asked.append(name)
        return np.full(shape, 0.1, np.float32)


def random(*shape: int, dtype: Any = BF16) -> Array:
    return np.random.default_rng(0).normal(0, 0.05, shape).astype(dtype)


def reference(tensor: str, shape: tuple[int, ...], dtype: str, *transforms: str) -> WeightReference:
    return WeightReference((tensor,), transforms, TensorType(shape, dtype))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("transpose", Transform("transpose")),
        ("reshape(1,2,3)", Transform("reshape", ("1", "2", "3"))),
        ("cast(bf16)", Transform("cast", ("bf16",))),
        ("add(1)", Transform("add", ("1",))),
        ("add(-0.5)", Transform("add", ("-0.5",))),
        ("lane-reorder(64)", Transform("lane-reorder", ("64",))),
        (f"{W4}.zero_point", Transform("quantize", ("w4", "g64", "asymmetric"), "zero_point")),
        ("quantize(w8,g32,symmetric).weight", Transform("quantize", ("w8", "g32", "symmetric"), "weight")),
    ],
)
def test_transforms_parse_and_print_back(text: str, expected: Transform) -> None:
    assert parse_transform(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "flip", "flip(1)", "Transpose", "transpose extra", "quantise(w4)"])
def test_unknown_transforms_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown weight transform .*transpose.*lane-reorder"):
        parse_transform(text)


@pytest.mark.parametrize(
    "text",
    [
        "transpose(1)",
        "transpose.weight",
        "reshape",
        "reshape(1,)",
        "reshape(-1)",
        "cast(f64)",
        "add(one)",
        "lane-reorder(0)",
        W4,
        f"{W4}.bias",
        "quantize(w3,g64,asymmetric).weight",
        "quantize(w4,64,asymmetric).weight",
        "quantize(w4,g64).weight",
    ],
)
def test_malformed_transforms_are_refused_with_their_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"malformed weight transform .* it is written"):
        parse_transform(text)


def test_a_plain_reference_gives_the_stored_numbers_as_float32() -> None:
    # GIVEN a Top weight: f32, no transforms, stored as bf16
    stored = random(4, 6)
    # WHEN made
    found = materialize(reference("norm.weight", (4, 6), "f32"), 0, Stored(norm__weight=stored))
    # THEN it is the stored number, widened
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, stored.astype(np.float32))


def test_a_stored_dtype_that_fits_is_not_copied() -> None:
    stored = random(4, 6)
    found = materialize(reference("w", (4, 6), "bf16", "cast(bf16)"), 0, Stored(w=stored))
    assert np.shares_memory(found, stored)


def test_the_layer_is_put_into_the_name() -> None:
    source = Stored(model__layers__7__w=random(2, 2))
    materialize(reference("model.layers.{i}.w", (2, 2), "bf16"), 7, source)
    assert source.asked == ["model.layers.7.w"]


def test_transforms_apply_in_order() -> None:
    # GIVEN a linear's transposed weight in f16
    stored = random(4, 6)
    found = materialize(reference("w", (6, 4), "f16", "transpose", "cast(f16)"), 0, Stored(w=stored))
    # THEN it is contiguous and transposed
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, stored.T.astype(np.float16))
    # AND a reshape after the transpose reads the transposed order
    found = materialize(reference("w", (1, 24), "f32", "transpose", "reshape(1,24)"), 0, Stored(w=stored))
    np.testing.assert_array_equal(found, stored.T.astype(np.float32).reshape(1, 24))


def test_casts_round_to_nearest_even() -> None:
    # GIVEN numbers halfway between two bf16 numbers: 1 + 2^-8 and 1 + 3 * 2^-8
    stored = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    found = materialize(reference("w", (2,), "bf16", "cast(bf16)"), 0, Stored(w=stored))
    assert found.astype(float).tolist() == [1.0, 1 + 4 * 2**-8]


def test_one_is_added_in_float32_to_a_norm_centred_on_zero() -> None:
    # GIVEN a gain whose sum with 1 is no bf16 number
    stored = np.array([2**-10], BF16)
    exact = materialize(reference("w", (1,), "f32", "add(1)"), 0, Stored(w=stored))
    rounded = materialize(reference("w", (1,), "bf16", "add(1)", "cast(bf16)"), 0, Stored(w=stored))
    assert exact.tolist() == [1 + 2**-10]
    assert rounded.astype(float).tolist() == [1.0]


def test_the_parts_of_a_quantised_weight_are_those_of_the_stored_one() -> None:
    # GIVEN the three operands of an A16MatMul, scale and zero point in lane order
    stored = random(70, 128)
    parts = [
        reference("w", (70, 64), "ui8", "transpose", f"{W4}.weight"),
        reference("w", (64, 2, 2), "bf16", "transpose", f"{W4}.scale", "cast(bf16)", "lane-reorder(64)"),
        reference("w", (64, 2, 2), "ui8", "transpose", f"{W4}.zero_point", "lane-reorder(64)"),
    ]
    # WHEN made together
    source = Stored(w=stored)
    packed, scale, zero_point = materialize_many(parts, 0, source)
    # THEN they are the quantised stored weight, read once
    expected = quantize(stored, 4, 64, symmetric=False)
    np.testing.assert_array_equal(packed, expected.packed)
    np.testing.assert_array_equal(scale, lane_reorder(expected.scale.astype(BF16), 64))
    np.testing.assert_array_equal(zero_point, lane_reorder(expected.zero_point, 64))
    assert source.asked == ["w"]
    # AND the same when made one by one
    for part, together in zip(parts, (packed, scale, zero_point), strict=True):
        np.testing.assert_array_equal(materialize(part, 0, source), together)


def test_many_weights_are_quantised_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two tensors in two modes, their parts interleaved
    calls: list[tuple[int, bool]] = []

    def counted(weight: Array, bits: int, group_size: int, symmetric: bool) -> Any:
        calls.append((bits, symmetric))
        return quantize(weight, bits, group_size, symmetric)

    monkeypatch.setattr(weights, "quantize", counted)
    symmetric = "quantize(w8,g64,symmetric)"
    references = [
        reference(name, shape, dtype, "transpose", f"{mode}.{part}")
        for part in ("scale", "zero_point")
        for name in ("a", "b")
        for mode in (W4, symmetric)
        for shape, dtype in [((3, 2), "f32" if part == "scale" else "ui8")]
    ]
    # WHEN all are made
    found = list(materialize_many(references, 0, Stored(a=random(3, 128), b=random(3, 128))))
    # THEN each pair of tensor and mode was quantised once
    assert len(found) == 8
    assert sorted(calls) == [(4, False), (4, False), (8, True), (8, True)]


def test_several_tensors_are_stacked_by_rows() -> None:
    stored = random(6, 4)
    fused = WeightReference(("q", "k"), ("transpose",), TensorType((4, 6), "bf16"))
    found = materialize(fused, 0, Stored(q=stored[:4], k=stored[4:]))
    np.testing.assert_array_equal(found, stored.T)


def test_computed_names_get_the_shape_of_the_type() -> None:
    source = Stored()
    found = materialize(reference("@rope.cos", (5, 1, 4), "bf16", "cast(bf16)"), 0, source)
    assert source.asked == ["@rope.cos"]
    assert (found.shape, found.dtype) == ((5, 1, 4), BF16)


def test_a_reference_is_read_from_its_record() -> None:
    type_ = TensorType((2, 2), "bf16", address=4096)
    attributes = {"tensors": ["model.layers.{i}.w"], "transforms": ["cast(bf16)"], "path": "top.MatMul.right"}
    record = OpRecord("top.Weight", (), (), ("%1",), (type_,), attributes, ("model.layers.{i}.w",))
    assert WeightReference.from_record(record) == WeightReference(
        ("model.layers.{i}.w",), ("cast(bf16)",), type_
    )


def test_keys_tell_different_numbers_apart_and_nothing_else() -> None:
    first = reference("model.layers.{i}.w", (2, 2), "bf16", "cast(bf16)")
    moved = WeightReference(first.tensors, first.transforms, TensorType((2, 2), "bf16", address=8192))
    others = [
        reference("model.layers.{i}.v", (2, 2), "bf16", "cast(bf16)"),
        reference("model.layers.{i}.w", (2, 2), "bf16", "transpose", "cast(bf16)"),
        reference("model.layers.{i}.w", (4, 1), "bf16", "cast(bf16)"),
        reference("model.layers.{i}.w", (2, 2), "f16", "cast(bf16)"),
    ]
    # THEN the address does not matter, the layer and everything else does
    assert first.key(3) == moved.key(3)
    keys = [first.key(3), first.key(4), *(other.key(3) for other in others)]
    assert len(set(keys)) == len(keys)
    # AND a tensor of no layer has one key for all layers
    shared = reference("model.embed_tokens.weight", (2, 2), "bf16")
    assert shared.key(0) == shared.key(1)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (reference("layers.{i}.w", (6, 5), "f32", "transpose"), r"layers\.2\.w: shape is \[6, 4\].*\[6, 5\]"),
        (reference("layers.{i}.w", (5,), "f32", "reshape(5)"), r"layers\.2\.w: cannot reshape"),
        (reference("layers.{i}.w", (4, 6), "ui8"), r"layers\.2\.w: dtype is bfloat16.* needs ui8"),
        (reference("layers.{i}.w", (4, 6), "f16"), r"layers\.2\.w: has NaN or values beyond"),
        (reference("layers.{i}.odd", (3, 2), "ui8", "transpose", f"{W4}.weight"), r"odd: K = 5 is odd"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(weight: WeightReference, message: str) -> None:
    source = Stored(layers__2__w=random(4, 6) + BF16.type(1e6), layers__2__odd=random(3, 5))
    with pytest.raises(UserError, match=message):
        materialize(weight, 2, source)


def test_a_weight_is_not_quantised_twice() -> None:
    twice = reference("w", (2, 2), "ui8", "transpose", f"{W4}.weight", f"{W4}.weight")
    with pytest.raises(ValueError, match="quantise twice"):
        materialize(twice, 0, Stored(w=random(2, 4)))
