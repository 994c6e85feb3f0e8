"""SiLU from elementary instructions on the machine, and its cost against the reference compiler."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_bench import BM1684X, BM1688, commands, cost, normal, record, run, run_local, ulps

from engine.errors import VerifyError
from engine.tpu.chip import Chip
from engine.tpu.ops.active import Active

SILU = {"mode": "SILU"}


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(1, 1, 1536), (1, 5, 30), (1, 40, 1000)], ids=str)
def test_kernel_equals_meaning(shape: tuple[int, ...], dtype: str, on: Chip) -> None:
    op = record(Active, [(shape, dtype)], (shape, dtype), SILU)
    run(Active, op, [normal(*shape, scale=3)], on).check(units=1)


def test_far_from_zero_it_is_the_identity_or_nothing() -> None:
    x = np.array([[1e4, 200.0, 90.0, 0.0, -0.0, -90.0, -200.0, -1e4]], np.float32)
    outcome = run(Active, record(Active, [((1, 8), "f32")], ((1, 8), "f32"), SILU), [x])
    np.testing.assert_allclose(outcome.found, [[1e4, 200.0, 90.0, 0, 0, 0, 0, 0]], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (512, (714, 2048, 2048, 0, 19)),
        (1536, (771, 6144, 6144, 0, 19)),
        (4864, (1069, 19456, 19456, 0, 19)),
        (12288, (2661, 49152, 49152, 0, 19)),
    ],
    ids=str,
)
def test_span_bytes_and_commands_are_the_reference_compilers(
    elements: int, expected: tuple[int, ...]
) -> None:
    op = record(Active, [((1, elements), "f32")], ((1, elements), "f32"), SILU)
    assert cost(Active, op) == expected


def test_a_slice_costs_what_it_does_in_a_group_of_the_reference_compiler() -> None:
    shape = (1, 256, 512, 1)
    op = record(Active, [((1, 256, 512), "f32")], ((1, 256, 512), "f32"), SILU)
    found, (x,), emitted = run_local(Active, op, [(shape, "f32", normal(*shape))], (shape, "f32"))
    np.testing.assert_allclose(found, Active.compute(op, [x])[0], rtol=1e-6)
    assert sum(cycles for _, cycles in commands(emitted)) == 7425


@pytest.mark.parametrize(("source", "target"), [("bf16", "bf16"), ("f32", "bf16"), ("f16", "f32")])
def test_sixteen_bit_slices_are_computed_in_f32(source: str, target: str) -> None:
    shape = (1, 70, 40, 1)
    op = record(Active, [((1, 70, 40), source)], ((1, 70, 40), target), SILU)
    found, (x,), _ = run_local(Active, op, [(shape, source, normal(*shape))], (shape, target), BM1688)
    expected = Active.compute(op, [x])[0]
    if target == "f32":
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    else:
        assert ulps(found, expected, target).max() <= 1


def test_other_activations_are_refused() -> None:
    with pytest.raises(VerifyError, match="SILU"):
        Active.verify(record(Active, [((1, 8), "f32")], ((1, 8), "f32"), {"mode": "RELU"}))
