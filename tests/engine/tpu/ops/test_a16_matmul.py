"""A16MatMul on the machine, and its tiles, cycles and traffic against the reference compiler."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from kernel_bench import BM1684X, BM1688, Outcome, cost, program, record, run, ulps

from engine.errors import UserError
from engine.snapshot import OpRecord, TensorType
from engine.tpu.a16_kernel import a16_shape
from engine.tpu.a16_tiles import A16Shape, choose_tiles, lay_out
from engine.tpu.chip import Chip, chip
from engine.tpu.isa import Opcode
from engine.tpu.ops.a16_matmul import A16MatMul
from engine.tpu.quantize import lane_reorder, quantize

CHIPS = [BM1684X, BM1688]
SHAPES = [
    A16Shape(1, 32, 64, 4, 64, False),  # fewer outputs than lanes of BM1684X
    A16Shape(1, 96, 96, 4, 64, True),  # a shorter last group, N no multiple of the lanes
    A16Shape(5, 96, 100, 4, 64, True),
    A16Shape(1, 200, 160, 8, 64, True),
    A16Shape(70, 130, 72, 8, 32, False),  # more rows than lanes, K no multiple of a vector
    A16Shape(200, 96, 256, 4, 128, True),  # more rows than outputs: the product is transposed the other way
    A16Shape(1, 3000, 576, 4, 64, True),  # several tiles of N
    A16Shape(300, 64, 8960, 4, 64, True),  # several tiles of M
    A16Shape(1, 96, 29568, 4, 64, True),  # K in parts
    A16Shape(100, 160, 29568, 4, 128, True),  # K in parts, several rows
    A16Shape(1, 70, 29000, 4, 20000, False),  # parts of K that cut a group
    A16Shape(3, 64, 20000, 8, 96, False),
    A16Shape(7, 40, 10, 4, 3, False),  # groups of an odd size
]


def operation(shape: A16Shape, on: Chip, dtype: str = "bf16") -> OpRecord:
    blocks = ceil(shape.columns / on.lanes)
    parameters = (on.lanes, blocks, shape.groups)
    return record(
        A16MatMul,
        [
            ((1, shape.rows, shape.depth), dtype),
            ((shape.columns, shape.depth * shape.bits // 8), "ui8"),
            (parameters, dtype),
            (parameters, "ui8"),
            ((1, 1, shape.columns), dtype) if shape.bias else ((), "none"),
        ],
        ((1, shape.rows, shape.columns), dtype),
        {"q_group_size": shape.group, "weight_bits": shape.bits, "w_transpose": True},
    )


def quantised(shape: A16Shape, on: Chip, symmetric: bool = False) -> list[np.ndarray | None]:
    """Normal activations and a quantised normal weight."""
    rng = np.random.default_rng(shape.depth)
    weight = quantize(
        rng.standard_normal((shape.columns, shape.depth)).astype(np.float32),
        shape.bits,
        shape.group,
        symmetric,
    )
    return [
        rng.standard_normal((1, shape.rows, shape.depth)),
        weight.packed,
        lane_reorder(weight.scale, on.lanes),
        lane_reorder(weight.zero_point, on.lanes),
        rng.standard_normal((1, 1, shape.columns)) if shape.bias else None,
    ]


def whole_numbers(shape: A16Shape, on: Chip) -> list[np.ndarray | None]:
    """Every level and zero point, scales that are powers of two, sparse activations: no sum needs rounding."""
    rng = np.random.default_rng(shape.depth)
    top = 2**shape.bits
    levels = rng.integers(0, top, (shape.columns, shape.depth)).astype(np.uint8)
    zero_point = rng.integers(0, top, (shape.columns, shape.groups)).astype(np.uint8)
    scale = (2.0 ** rng.integers(-1, 2, zero_point.shape)).astype(np.float32)
    x = rng.integers(-1, 2, (1, shape.rows, shape.depth))
    x *= rng.random(x.shape) < 8 / shape.depth
    return [
        x,
        levels if shape.bits == 8 else levels[:, ::2] | levels[:, 1::2] << 4,
        lane_reorder(scale, on.lanes),
        lane_reorder(zero_point, on.lanes),
        rng.integers(-3, 4, (1, 1, shape.columns)) if shape.bias else None,
    ]


def check_close(outcome: Outcome) -> None:
    """Sums in another order round to a neighbour at most; the direction is equal to 1e-5."""
    assert not outcome.violations, outcome.violations[:3]
    found, expected = outcome.found.reshape(-1), outcome.expected.reshape(-1)
    cosine = found @ expected / np.sqrt((found @ found) * (expected @ expected))
    assert cosine >= 0.99999
    assert (ulps(found, expected, outcome.dtype) > 1).mean() < 1e-2


@pytest.mark.parametrize("on", CHIPS, ids=lambda on: on.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_machine_equals_meaning(shape: A16Shape, on: Chip) -> None:
    check_close(run(A16MatMul, operation(shape, on), quantised(shape, on), on))


@pytest.mark.parametrize("on", CHIPS, ids=lambda on: on.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_machine_is_exact_on_whole_numbers(shape: A16Shape, on: Chip) -> None:
    run(A16MatMul, operation(shape, on), whole_numbers(shape, on), on).check()


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("bits", [4, 8])
def test_f16_and_symmetric_weights(rows: int, bits: int) -> None:
    shape = A16Shape(rows, 128, 192, bits, 64, True)
    check_close(
        run(A16MatMul, operation(shape, BM1684X, "f16"), quantised(shape, BM1684X, symmetric=True), BM1684X)
    )


TRACES = list(csv.DictReader((Path(__file__).parents[3] / "data" / "a16_matmul_spans.csv").open()))
"""Every distinct A16MatMul in the reference compiler's traces (532 ops)."""


def traced_shape(row: dict[str, str]) -> A16Shape:
    m, n, k, bits, group = (int(row[name]) for name in ("rows", "columns", "depth", "bits", "group"))
    return A16Shape(m, n, k, bits, group, row["bias"] == "1")


def test_tiles_are_the_reference_compilers() -> None:
    assert sum(int(row["traced_ops"]) for row in TRACES) == 532
    for row in TRACES:
        shape = traced_shape(row)
        tiles = choose_tiles(chip(row["chip"]), shape)
        found = (min(tiles.rows, shape.rows), min(tiles.columns, shape.columns), tiles.depth)
        assert found == (int(row["tile_rows"]), int(row["tile_columns"]), shape.depth), row


def test_span_and_traffic_are_the_reference_compilers() -> None:
    for row in TRACES:
        on = chip(row["chip"])
        found = cost(A16MatMul, operation(traced_shape(row), on, row["dtype"]), on)
        expected = (int(row["span"]), int(row["load_bytes"]), int(row["store_bytes"]), 0)
        assert found[:4] == expected, row


def test_four_bit_weights_are_unpacked_only_where_the_chip_must() -> None:
    shape = A16Shape(1, 96, 128, 4, 64, False)
    assert Opcode.ASHIFT in program(A16MatMul, operation(shape, BM1684X))["opcode"]
    assert Opcode.ASHIFT not in program(A16MatMul, operation(shape, BM1688), BM1688)["opcode"]


@pytest.mark.parametrize("on", CHIPS, ids=lambda on: on.name)
def test_buffers_do_not_overlap_and_fit(on: Chip) -> None:
    for shape in SHAPES:
        tiles = choose_tiles(on, shape)
        layout = lay_out(on, shape, tiles.rows, tiles.columns, tiles.depth)
        assert layout == tiles.layout
        starts = [*layout.x, *layout.weight, *layout.y, *layout.scratch]
        assert len(set(starts)) == len(starts)
        assert all(start % on.bank_bytes == 0 and start < on.lmem_bytes for start in starts)


def test_cutting_k_keeps_traffic_low() -> None:
    """GIVEN a K too large for local memory THEN each weight is read once and the rows twice, not a time per tile."""
    shape = A16Shape(512, 4096, 29568, 4, 64, False)
    assert choose_tiles(BM1684X, shape).depth < shape.depth
    weight, rows = shape.columns * shape.depth // 2, shape.rows * shape.depth * 2
    parameters = 3 * shape.columns * shape.groups
    assert cost(A16MatMul, operation(shape, BM1684X))[1] == weight + parameters + 2 * rows


def test_parameters_in_rows_are_refused() -> None:
    op = operation(SHAPES[0], BM1684X)
    plain = TensorType((32, 1), "bf16", 0)
    op = replace(op, operand_types=(*op.operand_types[:2], plain, *op.operand_types[3:]))
    with pytest.raises(ValueError, match="run weight-reorder"):
        program(A16MatMul, op)


def test_a_chip_too_small_is_refused() -> None:
    tiny = replace(BM1684X, lmem_bytes=1024)
    with pytest.raises(UserError, match="K = 4096, groups of 64 does not fit the 1024 bytes"):
        choose_tiles(tiny, A16Shape(1, 64, 4096, 4, 64, False))


def test_shape_of_an_op() -> None:
    assert a16_shape(operation(SHAPES[3], BM1684X)) == SHAPES[3]
