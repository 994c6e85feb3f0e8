"""Concat and Reshape: what is moved, and what is not."""

from __future__ import annotations

import pytest
from kernel_bench import BM1684X, commands, program, record, run, whole

from engine.tpu.ops.layout import Concat, Reshape


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    ("axis", "left", "right"),
    [(1, (1, 5, 2, 16), (1, 3, 2, 16)), (2, (2, 3, 5), (2, 3, 7)), (0, (4, 8), (1, 8))],
    ids=str,
)
def test_concat_is_exact(axis: int, left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    joined = (*left[:axis], left[axis] + right[axis], *left[axis + 1 :])
    op = record(Concat, [(left, dtype), (right, dtype)], (joined, dtype), {"axis": axis})
    run(Concat, op, [whole(*left), whole(*right)]).check()


def test_a_copy_costs_the_rule_for_ddr_to_ddr() -> None:
    # R38: 1024 rows of 256 B and of 512 B at 26.077 B a cycle
    shapes = [(1, 1024, 128), (1, 1024, 256)]
    op = record(Concat, [(s, "bf16") for s in shapes], ((1, 1024, 384), "bf16"), {"axis": 2})
    assert commands(program(Concat, op)) == [("TENSOR", 10052), ("TENSOR", 20105)]


def test_only_merge_and_reshape_move_nothing() -> None:
    parts = [((1, 5, 64), "bf16"), ((1, 1, 64), "bf16")]
    merged = record(Concat, parts, ((1, 6, 64), "bf16"), {"axis": 1, "only_merge": True})
    assert len(program(Concat, merged)) == 0
    reshaped = record(Reshape, [((1, 6, 64), "bf16")], ((1, 6, 4, 16), "bf16"))
    assert len(program(Reshape, reshaped, BM1684X)) == 0
