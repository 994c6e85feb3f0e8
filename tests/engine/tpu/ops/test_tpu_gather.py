"""Gather on the machine, and its cost against the reference compiler."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_bench import BM1684X, BM1688, cost, record, run, whole

from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.ops.gather import Gather


def gather(table: tuple[int, ...], indices: tuple[int, ...], dtype: str) -> OpRecord:
    return record(Gather, [(table, dtype), (indices, "si32")], ((*indices, *table[1:]), dtype))


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    ("table", "indices"),
    [((50, 64), (1, 7)), ((300, 1, 64), (1, 300)), ((30, 8), (1, 17000)), ((9, 576), (1, 1))],
    ids=str,
)
def test_rows_are_exact(table: tuple[int, ...], indices: tuple[int, ...], dtype: str, on: Chip) -> None:
    picked = np.random.default_rng(0).integers(0, table[0], indices)
    run(Gather, gather(table, indices, dtype), [whole(*table), picked], on).check()


def test_negative_indices_count_from_the_end() -> None:
    table = whole(10, 4)
    outcome = run(Gather, gather((10, 4), (1, 3), "f32"), [table, np.array([[-1, 0, -10]])])
    np.testing.assert_array_equal(outcome.found[0], table[[9, 0, 0]])


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (1, 64, (9, 4, 0, 128, 4)),
        (1, 2560, (87, 4, 0, 5120, 4)),
        (256, 64, (1689, 1024, 0, 32768, 4)),
        (512, 2048, (35123, 2048, 0, 2097152, 4)),
        (2048, 128, (17615, 8192, 0, 524288, 4)),
    ],
    ids=str,
)
def test_span_bytes_and_commands_are_the_reference_compilers(
    count: int, width: int, expected: tuple[int, ...]
) -> None:
    assert cost(Gather, gather((1024, width), (1, count), "bf16")) == expected
