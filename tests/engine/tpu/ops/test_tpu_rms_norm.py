"""RMSNorm on the machine, globally and in a group, and its cost against the reference compiler."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from kernel_bench import BM1684X, BM1688, commands, cost, normal, program, record, run, run_local, ulps

from engine.errors import UserError
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.isa import Opcode
from engine.tpu.ops.rms_norm import RMSNorm

EPS = {"eps": 1e-6}


def norm(shape: tuple[int, ...], dtype: str) -> OpRecord:
    return record(RMSNorm, [(shape, dtype), (shape[-1:], dtype)], (shape, dtype), EPS)


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 576), (1, 300, 320), (1, 30, 9, 64), (1, 130, 100), (1, 3, 5120), (1, 2, 8192)], ids=str
)
def test_kernel_equals_meaning(shape: tuple[int, ...], dtype: str, on: Chip) -> None:
    # the rounded normalised value may be one unit off, which gamma carries on
    run(RMSNorm, norm(shape, dtype), [normal(*shape, scale=2), normal(shape[-1])], on).check(units=2)


def test_bf16_is_nearly_always_equal() -> None:
    shape = (1, 200, 576)
    outcome = run(RMSNorm, norm(shape, "bf16"), [normal(*shape), normal(576)])
    assert (ulps(outcome.found, outcome.expected, "bf16") > 0).mean() < 1e-3


def test_a_row_of_zeros_without_epsilon_gives_zeros() -> None:
    op = replace(norm((1, 3, 64), "bf16"), attributes={"eps": 0.0})
    x = normal(1, 3, 64)
    x[0, 1] = 0
    with np.errstate(all="ignore"):  # the NumPy meaning has no guard
        found = run(RMSNorm, op, [x, normal(64)]).found
    assert (found[0, 1] == 0).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (1, 256, (508, 1024, 512, 0, 13)),
        (1, 2560, (4180, 10240, 5120, 0, 13)),
        (32, 128, (929, 8448, 8192, 0, 13)),
        (512, 896, (42570, 921088, 917504, 0, 26)),
        (512, 2048, (90909, 2109440, 2097152, 0, 39)),
        (2048, 2560, (453008, 10567680, 10485760, 0, 208)),
        (65536, 128, (720396, 16782848, 16777216, 0, 286)),
    ],
    ids=str,
)
def test_span_bytes_and_commands_are_the_reference_compilers(
    rows: int, columns: int, expected: tuple[int, ...]
) -> None:
    assert cost(RMSNorm, norm((1, rows, columns), "bf16")) == expected


def test_bm1688_span_without_the_infinity_guard() -> None:
    assert cost(RMSNorm, norm((1, 1, 2048), "bf16"), BM1688)[0] == 6360
    assert Opcode.SELECT_EQ not in program(RMSNorm, norm((1, 1, 2048), "bf16"), BM1688)["opcode"]


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("shape", "gamma"),
    [
        ((1, 70, 320, 1), (1, 1, 320, 1)),
        ((1, 70, 100, 1), (1, 1, 100, 1)),
        ((1, 70, 3, 64), (1, 1, 1, 64)),
        ((1, 70, 3, 64), (1, 1, 64, 1)),
        ((2, 64, 1, 128), (1, 1, 1, 128)),
    ],
    ids=str,
)
def test_a_slice_in_local_memory(
    shape: tuple[int, int, int, int], gamma: tuple[int, int, int, int], dtype: str, on: Chip
) -> None:
    last = max(gamma)
    flat = (shape[0] * shape[1] * shape[2] * shape[3] // last, last)
    op = norm(flat, dtype)
    sources = [(shape, dtype, normal(*shape)), (gamma, dtype, normal(last))]
    found, (x, weights), _ = run_local(RMSNorm, op, sources, (shape, dtype), on)
    expected = RMSNorm.compute(op, [x.reshape(flat), weights])[0].reshape(shape)
    if dtype == "f32":
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    else:
        assert ulps(found, expected, dtype).max() <= 2


@pytest.mark.parametrize(
    ("shape", "gamma", "cycles"),
    [
        ((1, 256, 256, 1), 256, [64, 64, 64, 64, 4, 120, 8, 64, 128, 64, 8, 128]),
        ((1, 256, 4, 64), 64, [64, 64, 1024, 4, 120, 8, 64, 128, 64, 2, 128]),
        ((64, 64, 1, 128), 128, [512, 512, 512, 1024, 64, 1920, 128, 512, 1024, 512, 4, 1024]),
        ((1, 1, 576, 1), 576, [36, 36, 36, 16, 1, 30, 2, 36, 72, 36, 18, 72]),
    ],
    ids=str,
)
def test_a_slice_costs_what_it_does_in_a_group_of_the_reference_compiler(
    shape: tuple[int, int, int, int], gamma: int, cycles: list[int]
) -> None:
    op = norm((1, gamma), "bf16")
    sources = [(shape, "bf16", np.ones(shape)), ((1, 1, 1, gamma), "bf16", np.ones(gamma))]
    _, _, emitted = run_local(RMSNorm, op, sources, (shape, "bf16"))
    assert [found for _, found in commands(emitted)] == cycles


def test_a_row_that_does_not_fit_a_lane_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"RMSNorm at .* over 50000 f32 elements .* bm1688 has 131072"
    ) as raised:
        program(RMSNorm, norm((1, 1, 50000), "f32"), BM1688)
    # THEN the largest size that it names fits, and the next one does not
    most = re.search(r"at most (\d+) elements", str(raised.value))
    assert most is not None
    program(RMSNorm, norm((1, 1, int(most[1])), "f32"), BM1688)
    with pytest.raises(UserError, match="does not fit"):
        program(RMSNorm, norm((1, 1, int(most[1]) + 1), "f32"), BM1688)
