"""Rope on the machine, globally and in a group, and its cost against the reference compiler."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernel_bench import BM1684X, BM1688, commands, normal, program, record, run, run_local

from engine.errors import UserError
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.isa import Direction, moved_bytes
from engine.tpu.ops.rope import Rope

MODES = ["contiguous_halves", "interleaved_pairs"]


def rope(shape: tuple[int, int, int, int], dtype: str, mode: str = MODES[0]) -> OpRecord:
    table = ((shape[0], shape[1], 1, shape[3]), dtype)
    return record(Rope, [(shape, dtype), table, table], (shape, dtype), {"rope_mode": mode})


def operands(shape: tuple[int, int, int, int]) -> list[np.ndarray]:
    tokens, size = shape[0] * shape[1], shape[3]
    angle = normal(tokens, size)
    return [normal(*shape), np.sin(angle), np.cos(angle)]


@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(1, 1, 9, 64), (1, 70, 3, 64), (1, 200, 9, 32), (1, 3, 128, 128)], ids=str)
def test_kernel_equals_meaning(shape: tuple[int, int, int, int], dtype: str, mode: str, on: Chip) -> None:
    run(Rope, rope(shape, dtype, mode), operands(shape), on).check()


@pytest.mark.parametrize("shape", [(1, 512, 9, 64), (1, 2048, 32, 128)], ids=str)
def test_every_byte_is_moved_once(shape: tuple[int, int, int, int]) -> None:
    op = rope(shape, "bf16")
    emitted = program(Rope, op)
    moved = moved_bytes(emitted)
    loaded = moved[(emitted["engine"] == 1) & (emitted["direction"] == Direction.LOAD)].sum()
    assert loaded == sum(type_.nbytes for type_ in op.operand_types)
    assert moved.sum() - loaded == op.result_types[0].nbytes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda on: on.name)
def test_a_slice_in_local_memory(on: Chip, mode: str) -> None:
    shape = (1, 70, 3, 32)
    op = rope(shape, "bf16", mode)
    tables = [((1, 70, 1, 32), "bf16", values) for values in operands(shape)[1:]]
    found, inputs, _ = run_local(Rope, op, [(shape, "bf16", normal(*shape)), *tables], (shape, "bf16"), on)
    np.testing.assert_array_equal(found, Rope.compute(op, inputs)[0])


@pytest.mark.parametrize(
    ("shape", "cycles"),
    [
        ((1, 256, 4, 64), [16, 16, 32, 32, 32]),
        ((1, 1024, 12, 128), [384, 384, 768, 768, 768]),
        ((1, 1024, 14, 64), [224, 224, 448, 448, 448]),
    ],
    ids=str,
)
def test_a_slice_costs_what_it_does_in_a_group_of_the_reference_compiler(
    shape: tuple[int, int, int, int], cycles: list[int]
) -> None:
    table = (1, shape[1], 1, shape[3])
    sources = [(shape, "bf16", np.ones(shape))] + [(table, "bf16", np.ones(table))] * 2
    _, _, emitted = run_local(Rope, rope(shape, "bf16"), sources, (shape, "bf16"))
    assert [found for _, found in commands(emitted)] == cycles


def test_a_head_that_does_not_fit_a_lane_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"Rope at .* on heads of 8192 f32 elements .* bm1688 has 131072"
    ) as raised:
        program(Rope, rope((1, 1, 1, 8192), "f32"), BM1688)
    # THEN the largest size that it names fits, and the next one does not
    most = re.search(r"heads of at most (\d+) elements", str(raised.value))
    assert most is not None
    program(Rope, rope((1, 1, 1, int(most[1])), "f32"), BM1688)
    with pytest.raises(UserError, match="does not fit"):
        program(Rope, rope((1, 1, 1, int(most[1]) + 2), "f32"), BM1688)
