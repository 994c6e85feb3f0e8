"""MatMul on the machine, globally and in a group, and its cycles and traffic against the reference compiler."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernel_bench import BM1684X, BM1688, commands, cost, normal, program, record, run, run_local, ulps, whole

from engine.errors import UserError
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip, chip
from engine.tpu.isa import Opcode
from engine.tpu.matmul_kernel import Product, choose_column_tiles, choose_row_tiles, choose_vector_tiles
from engine.tpu.ops.matmul import MatMul

CHIPS = [BM1684X, BM1688]
PRODUCTS = [
    Product(1, 32, 64, "bf16", False),
    Product(1, 96, 100, "bf16", True),  # a shorter last slice of K
    Product(1, 9000, 130, "f16", True),  # several tiles of N
    Product(
        1, 9000, 48, "bf16", False
    ),  # one slice a tile: the next tile must not touch y before it is stored
    Product(5, 96, 100, "bf16", True),
    Product(70, 130, 72, "f16", False),  # N and K no multiples of the lanes
    Product(33, 9000, 64, "bf16", False),
    Product(130, 5000, 96, "bf16", True),  # several tiles of M and N, with a bias
    Product(64, 64, 30000, "bf16", False),  # K in parts on BM1688
    Product(70, 70, 40000, "f16", False),  # K in parts
    Product(70, 70, 19000, "bf16", True),
    Product(1, 32, 64, "f32", False),
    Product(1, 9000, 130, "f32", True),
    Product(5, 96, 100, "f32", True),
    Product(300, 130, 72, "f32", True),  # several tiles of M
]
LOGITS = [
    Product(512, 1, 64, "bf16", False),
    Product(1000, 1, 96, "bf16", False),
    Product(100, 1, 20, "f16", False),
    Product(20000, 1, 64, "bf16", False),  # several tiles
    Product(512, 1, 64, "f32", False),
    Product(77, 1, 33, "f32", False),  # K odd: no partial sums
    Product(300, 1, 4096, "f32", False),
]


def operation(product: Product) -> OpRecord:
    m, n, k, dtype = product.rows, product.columns, product.depth, product.dtype
    if n == 1:
        inputs = [((m, k), dtype), ((1, k), dtype), ((), "none")]
        return record(MatMul, inputs, ((m, 1), dtype), {"right_transpose": True})
    bias = ((1, 1, n), dtype) if product.bias else ((), "none")
    inputs = [((1, m, k), dtype), ((k, n), dtype), bias]
    return record(MatMul, inputs, ((1, m, n), dtype), {"right_transpose": False})


def numbers(product: Product) -> list[np.ndarray | None]:
    values = normal(product.rows, product.depth), normal(product.depth, product.columns)
    return [*values, normal(product.columns) if product.bias else None]


def whole_numbers(product: Product) -> list[np.ndarray | None]:
    """Sparse enough that no sum needs rounding."""
    x, right = (np.sign(whole(*a.shape)) for a in numbers(product)[:2] if a is not None)
    x *= np.random.default_rng(0).random(x.shape) < 8 / product.depth
    return [x, right, whole(product.columns) if product.bias else None]


@pytest.mark.parametrize("on", CHIPS, ids=lambda on: on.name)
@pytest.mark.parametrize("product", PRODUCTS + LOGITS, ids=str)
def test_machine_equals_meaning(product: Product, on: Chip) -> None:
    outcome = run(MatMul, operation(product), numbers(product), on)
    assert not outcome.violations, outcome.violations[:3]
    found, expected = outcome.found, outcome.expected
    if product.dtype == "f32":
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    else:  # sums in another order: a neighbour now and then, more only next to zero
        assert (ulps(found, expected, product.dtype) > 1).mean() < 1e-2
        assert np.abs(found - expected).max() <= 2**-8 * np.abs(expected).max()


@pytest.mark.parametrize("on", CHIPS, ids=lambda on: on.name)
@pytest.mark.parametrize("product", PRODUCTS + LOGITS, ids=str)
def test_machine_is_exact_on_whole_numbers(product: Product, on: Chip) -> None:
    run(MatMul, operation(product), whole_numbers(product), on).check()


TRACES = list(csv.DictReader((Path(__file__).parents[3] / "data" / "matmul_spans.csv").open()))
"""Every distinct global MatMul in the reference compiler's traces (prefill, decode, logits)."""


def test_span_and_traffic_are_the_reference_compilers() -> None:
    assert {row["kind"] for row in TRACES} == {"prefill", "decode", "head"}
    for row in TRACES:
        m, n, k = (int(row[name]) for name in ("rows", "columns", "depth"))
        product = Product(m, n, k, row["dtype"], row["bias"] == "1")
        found = cost(MatMul, operation(product), chip(row["chip"]))
        assert found[:4] == (int(row["span"]), int(row["load_bytes"]), int(row["store_bytes"]), 0), row


def test_bias_is_added_before_the_only_rounding() -> None:
    """GIVEN a product 257, which bf16 rounds to 256, THEN a bias of 1 makes 258, not 256."""
    x, right = np.ones((2, 64)), np.full((64, 64), 4.0)
    right[0] = 5
    outcome = run(MatMul, operation(Product(2, 64, 64, "bf16", True)), [x, right, np.ones(64)])
    outcome.check()
    assert (outcome.found == 258).all()


def test_a_residual_is_added_as_any_bias_when_the_weight_is_prepared() -> None:
    """GIVEN a bias that comes with each run, THEN what `bind` makes adds it, and rounds once."""
    op = operation(Product(1, 64, 64, "bf16", True))
    x, right = np.ones((1, 1, 64), np.float32), np.full((64, 64), 4, np.float32)
    right[0] = 5
    run_op = MatMul.bind(op, MatMul.prepare(op, {1: right}))
    for residual in (1, 3):
        (found,) = run_op(x, None, np.full((1, 1, 64), residual, np.float32))
        assert found.shape == (1, 1, 64)
        assert (found == 257 + residual).all()


def test_f32_runs_without_half_precision_products() -> None:
    for product in (PRODUCTS[-1], LOGITS[-1]):
        opcodes = program(MatMul, operation(product))["opcode"]
        assert Opcode.MM2_NN not in opcodes
        assert Opcode.CAST not in opcodes


def test_a_transposed_matrix_is_refused() -> None:
    op = operation(LOGITS[0])
    right, output = TensorType((3, 64), "bf16", 0), TensorType((512, 3), "bf16", 0)
    op = replace(op, operand_types=(op.operand_types[0], right, op.operand_types[2]), result_types=(output,))
    with pytest.raises(ValueError, match=r"not for 3 rows; store the weight as \[K, N\]"):
        program(MatMul, op)


def test_a_chip_too_small_is_refused() -> None:
    tiny = replace(BM1684X, lmem_bytes=1024)
    with pytest.raises(UserError, match="K = 4096 in bf16 does not fit the 1024 bytes"):
        choose_vector_tiles(tiny, Product(64, 1, 4096, "bf16", False))
    with pytest.raises(UserError, match="does not fit"):
        choose_row_tiles(tiny, Product(64, 64, 4096, "bf16", False))
    with pytest.raises(UserError, match="does not fit"):
        choose_column_tiles(tiny, Product(1, 64, 4096, "bf16", False))
    with pytest.raises(UserError, match="does not fit"):
        choose_vector_tiles(tiny, Product(64, 1, 4096, "f32", False))


# -- in a layer group ------------------------------------------------------------------------------------------


def local_sources(
    rows: int, columns: int, depth: int, dtype: str, bias: bool
) -> list[tuple[tuple[int, int, int, int], str, np.ndarray]]:
    sources = [
        ((1, rows, depth, 1), dtype, normal(rows, depth)),
        ((1, depth, 1, columns), dtype, normal(depth, columns)),
    ]
    return [*sources, ((1, 1, columns, 1), dtype, normal(columns))] if bias else sources


@pytest.mark.parametrize("on", CHIPS, ids=lambda on: on.name)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("rows", [1, 70, 130])
def test_local_equals_meaning(rows: int, dtype: str, bias: bool, on: Chip) -> None:
    op = operation(Product(rows, 100, 96, dtype, bias))
    sources = local_sources(rows, 100, 96, dtype, bias)
    found, rounded, _ = run_local(MatMul, op, sources, ((1, rows, 100, 1), dtype), on)
    x, right, *rest = rounded
    product = x.reshape(rows, 96) @ right.reshape(96, 100)
    expected = product + rest[0].reshape(-1) if rest else product
    assert np.abs(found.reshape(rows, 100) - expected).max() <= 2**-7 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "bias", "expected"),
    [
        (512, 256, 1536, True, [("LANE_BROADCAST", 16), ("MM2_NN", 24576), ("ADD", 128)]),
        (512, 192, 576, False, [("MM2_NN", 6912)]),
        (1, 256, 1536, True, [("LANE_BROADCAST", 16), ("MM2_NN", 3072), ("ADD", 16)]),
    ],
)
def test_local_commands_are_the_reference_compilers(
    rows: int, columns: int, depth: int, bias: bool, expected: list[tuple[str, int]]
) -> None:
    op = operation(Product(rows, columns, depth, "bf16", bias))
    sources = local_sources(rows, columns, depth, "bf16", bias)
    _, _, emitted = run_local(MatMul, op, sources, ((1, rows, columns, 1), "bf16"))
    assert commands(emitted) == expected


def test_f32_and_several_batches_are_refused_in_a_group() -> None:
    op = operation(PRODUCTS[-1])
    with pytest.raises(ValueError, match="f32 MatMul has no kernel inside a layer group"):
        run_local(MatMul, op, local_sources(4, 64, 64, "f32", False), ((1, 4, 64, 1), "f32"))
    sources = local_sources(4, 64, 64, "bf16", False)
    sources[0] = ((2, 4, 64, 1), "bf16", normal(2, 4, 64))
    with pytest.raises(ValueError, match=r"takes n = 1, found a slice \[2, 4, 64, 1\]"):
        run_local(MatMul, op, sources, ((2, 4, 64, 1), "bf16"))
