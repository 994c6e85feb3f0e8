"""Cast on the machine, and its cost against the reference compiler."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_bench import BM1684X, BM1688, commands, cost, normal, record, run, run_local

from engine.tpu.chip import Chip
from engine.tpu.ops.cast import Cast

PAIRS = [("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f32"), ("f32", "f32"), ("bf16", "f16")]


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("shape", [(1, 7), (1, 1, 1536), (1, 49152), (1, 100_000)], ids=str)
def test_kernel_equals_meaning(shape: tuple[int, ...], source: str, target: str, on: Chip) -> None:
    op = record(Cast, [(shape, source)], (shape, target))
    run(Cast, op, [normal(*shape, scale=3)], on).check()


@pytest.mark.parametrize(
    ("elements", "source", "target", "expected"),
    [
        (512, "f16", "f32", (655, 1024, 2048, 0, 3)),
        (1536, "f32", "bf16", (656, 6144, 3072, 0, 3)),
        (4864, "bf16", "f32", (729, 9728, 19456, 0, 3)),
        (4864, "f32", "bf16", (712, 19456, 9728, 0, 3)),
        (12288, "bf16", "f32", (1552, 24576, 49152, 0, 3)),
        (49152, "bf16", "f32", (6160, 98304, 196608, 0, 6)),
        (248320, "bf16", "f32", (31134, 496640, 993280, 0, 9)),
    ],
    ids=str,
)
def test_span_bytes_and_commands_are_the_reference_compilers(
    elements: int, source: str, target: str, expected: tuple[int, ...]
) -> None:
    op = record(Cast, [((1, elements), source)], ((1, elements), target))
    assert cost(Cast, op) == expected


def test_a_slice_in_local_memory() -> None:
    shape = (1, 128, 4864, 1)
    op = record(Cast, [((1, 128, 4864), "f32")], ((1, 128, 4864), "bf16"))
    found, (x,), emitted = run_local(Cast, op, [(shape, "f32", normal(*shape))], (shape, "bf16"))
    np.testing.assert_array_equal(found, Cast.compute(op, [x])[0])
    assert commands(emitted) == [("CAST", 608)]


def test_equal_types_are_copied_not_rounded_to_whole_numbers() -> None:
    shape = (1, 3, 40, 1)
    op = record(Cast, [((1, 3, 40), "f32")], ((1, 3, 40), "f32"))
    found, (x,), _ = run_local(Cast, op, [(shape, "f32", normal(*shape))], (shape, "f32"))
    np.testing.assert_array_equal(found, x)
