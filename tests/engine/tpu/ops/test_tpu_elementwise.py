"""Add and Mul on the machine, and their cost against the reference compiler."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_bench import (
    BM1684X,
    BM1688,
    commands,
    cost,
    normal,
    program,
    record,
    run,
    run_local,
    whole,
)

from engine.errors import VerifyError
from engine.op import TpuOp
from engine.tpu.chip import Chip
from engine.tpu.ops.elementwise import Add, Mul

SHAPES = [(1, 1, 576), (1, 1, 100), (1, 3, 7000), (1, 80, 896)]


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_equals_meaning(shape: tuple[int, ...], dtype: str, on: Chip) -> None:
    for cls in (Add, Mul):
        op = record(cls, [(shape, dtype)] * 2, (shape, dtype))
        run(cls, op, [normal(*shape), normal(*shape)[::-1] + 1], on).check()


def test_whole_numbers_add_exactly() -> None:
    shape = (1, 40, 576)
    left, right = whole(*shape), whole(*shape[::-1]).reshape(shape)
    outcome = run(Add, record(Add, [(shape, "bf16")] * 2, (shape, "bf16")), [left, right])
    np.testing.assert_array_equal(outcome.found, left + right)


@pytest.mark.parametrize(
    ("cls", "elements", "dtype", "expected"),
    [
        (Add, 256, "f16", (938, 1024, 512, 0, 4)),
        (Add, 65536, "bf16", (7494, 262144, 131072, 0, 8)),
        (Mul, 4864, "bf16", (942, 19456, 9728, 0, 4)),
        (Mul, 12288, "bf16", (1416, 49152, 24576, 0, 4)),
        (Mul, 24576, "bf16", (2808, 98304, 49152, 0, 8)),
        (Mul, 786432, "bf16", (89982, 3145728, 1572864, 0, 8)),
        (Mul, 4980736, "bf16", (569885, 19922944, 9961472, 0, 20)),
        (Mul, 18350080, "bf16", (2099574, 73400320, 36700160, 0, 72)),
    ],
    ids=str,
)
def test_span_bytes_and_commands_are_the_reference_compilers(
    cls: type[TpuOp], elements: int, dtype: str, expected: tuple[int, ...]
) -> None:
    op = record(cls, [((1, elements), dtype)] * 2, ((1, elements), dtype))
    assert cost(cls, op) == expected


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
def test_a_slice_in_local_memory(on: Chip) -> None:
    shape = (1, 70, 24, 1)
    op = record(Mul, [((1, 70, 24), "bf16")] * 2, ((1, 70, 24), "bf16"))
    sources = [(shape, "bf16", normal(*shape)), (shape, "bf16", normal(*shape[::-1]))]
    found, (left, right), _ = run_local(Mul, op, sources, (shape, "bf16"), on)
    np.testing.assert_array_equal(found, Mul.compute(op, [left, right])[0])


def test_a_slice_costs_what_it_does_in_a_group_of_the_reference_compiler() -> None:
    shape = (1, 256, 2560, 1)
    op = record(Add, [((1, 256, 2560), "bf16")] * 2, ((1, 256, 2560), "bf16"))
    source = (shape, "bf16", np.ones(shape))
    _, _, emitted = run_local(Add, op, [source, source], (shape, "bf16"))
    assert commands(emitted) == [("ADD", 640)]


def test_f32_tiles_are_half_as_high_so_that_buffers_do_not_meet() -> None:
    shape = (70, 64 * 256)
    op = record(Mul, [(shape, "f32")] * 2, (shape, "f32"))
    run(Mul, op, [normal(*shape), normal(*shape)[::-1]]).check()
    emitted = program(Mul, op)
    assert emitted["result"]["shape"][emitted["engine"] == 0, 0].tolist() == [24, 24, 22]


def test_operands_of_different_shapes_are_refused() -> None:
    op = record(Add, [((1, 8), "f32"), ((1, 9), "f32")], ((1, 8), "f32"))
    with pytest.raises(VerifyError, match="operand 1"):
        Add.verify(op)
