"""Shapes as groups read them, and their size in local memory."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.passes.layer_group.layout import Role, lane_bytes, read_as, read_weight
from engine.passes.layer_group.plan import GroupType
from engine.tpu.chip import chip
from engine.tpu.emit import Emitter

SIDE = st.integers(1, 70)


@pytest.mark.parametrize(
    ("shape", "type_", "expected"),
    [
        ((1, 512, 576), GroupType.MM, (1, 512, 576, 1)),
        ((1, 512, 9, 64), GroupType.MM, (1, 512, 9, 64)),
        ((2, 3, 4, 5, 6), GroupType.NORMAL, (2, 3, 4, 30)),
        ((1, 512, 9, 64), GroupType.SMALL_C, (72, 64, 64, 1)),
        ((1, 1, 9, 64), GroupType.SMALL_C, (1, 9, 64, 1)),
        ((2, 3, 4), GroupType.SMALL_C, (1, 6, 4, 1)),
    ],
)
def test_shapes_are_read_by_group_type(
    shape: tuple[int, ...], type_: GroupType, expected: tuple[int, ...]
) -> None:
    assert read_as(shape, type_, 64) == expected


@given(st.lists(SIDE, min_size=3, max_size=4), st.sampled_from(list(GroupType)))
def test_no_element_gets_lost(shape: list[int], type_: GroupType) -> None:
    assert prod(read_as(shape, type_, 64)) == prod(shape)


def test_weights_are_read_by_role() -> None:
    assert read_weight((1, 1, 576), Role.VECTOR) == (1, 1, 576, 1)
    assert read_weight((576, 192), Role.MATRIX) == (1, 576, 192, 1)


@given(
    st.tuples(SIDE, SIDE, SIDE, SIDE),
    st.sampled_from(["f32", "bf16", "ui8"]),
    st.booleans(),
    st.sampled_from(["bm1684x", "bm1688"]),
)
def test_bytes_are_those_of_the_emitter(
    shape: tuple[int, int, int, int], dtype: str, aligned: bool, name: str
) -> None:
    limits = chip(name)
    expected = Emitter(limits, {}).local_bytes(dtype, shape, aligned=aligned)
    assert lane_bytes(limits, dtype, shape, aligned=aligned) == expected
