"""Kernels shared between cores: together they leave what one core leaves, and none writes what another one uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from kernel_bench import BM1688, normal, program, record, run, shared
from test_a16_matmul import operation as a16_operation
from test_a16_matmul import quantised
from test_a16_matmul import whole_numbers as a16_whole_numbers
from test_attention import attention, inputs_of
from test_matmul import operation as matmul_operation
from test_matmul import whole_numbers as matmul_whole_numbers

from engine.op import TpuOp, verify_structure
from engine.snapshot import OpRecord
from engine.tpu.a16_tiles import A16Shape
from engine.tpu.chip import Chip, chip
from engine.tpu.core_races import core_races
from engine.tpu.cores import CoreSplit
from engine.tpu.emit import Emitter
from engine.tpu.isa import Arena, moved_bytes
from engine.tpu.matmul_kernel import Product
from engine.tpu.ops.a16_matmul import A16MatMul
from engine.tpu.ops.active import Active
from engine.tpu.ops.attention import FAttention
from engine.tpu.ops.cast import Cast
from engine.tpu.ops.elementwise import Add, Mul
from engine.tpu.ops.gather import Gather
from engine.tpu.ops.layout import Concat
from engine.tpu.ops.matmul import MatMul
from engine.tpu.ops.rms_norm import RMSNorm
from engine.tpu.ops.rope import Rope

BM1690 = chip("bm1690")
ON = [(BM1688, 2), (BM1690, 8)]
Inputs = Sequence[np.ndarray | None]


def unary(cls: type[TpuOp], shape: tuple[int, ...], to: str = "bf16", **attributes: object) -> OpRecord:
    return record(cls, [(shape, "bf16")], (shape, to), attributes)


def same_as_one_core(cls: type[TpuOp], op: OpRecord, inputs: Inputs, on: Chip, cores: int) -> None:
    """The same bytes, found without a violation; more than one core has worked."""
    verify_structure(shared(cls, op, on, cores), cls)
    several, single = run(cls, op, inputs, on, cores), run(cls, op, inputs, on)
    assert not several.violations, several.violations[:3]
    np.testing.assert_array_equal(several.found, single.found)
    instructions = program(cls, op, on, cores)
    assert not core_races(instructions)
    assert instructions["core"].any()


ELEMENTWISE = [
    (Add, record(Add, [((1, 70, 96), "bf16")] * 2, ((1, 70, 96), "bf16")), 2),
    (Mul, record(Mul, [((1, 1, 5000), "f32")] * 2, ((1, 1, 5000), "f32")), 2),
    (Cast, unary(Cast, (1, 1000), "f32"), 1),
    (Active, unary(Active, (1, 33, 640), mode="SILU"), 1),
    (RMSNorm, record(RMSNorm, [((1, 70, 96), "bf16"), ((96,), "bf16")], ((1, 70, 96), "bf16"), {"eps": 1e-6}), 2),
    (
        RMSNorm,
        record(RMSNorm, [((1, 1, 9, 64), "f32"), ((64,), "f32")], ((1, 1, 9, 64), "f32"), {"eps": 1e-6}),
        2,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("on", "cores"), ON, ids=["bm1688", "bm1690"])
@pytest.mark.parametrize(
    ("cls", "op", "count"), ELEMENTWISE, ids=lambda value: getattr(value, "__name__", "")
)
def test_rows_or_channels(cls: type[TpuOp], op: OpRecord, count: int, on: Chip, cores: int) -> None:
    inputs = [normal(*op.operand_types[number].shape) for number in range(count)]
    same_as_one_core(cls, op, inputs, on, cores)


@pytest.mark.parametrize(("on", "cores"), ON, ids=["bm1688", "bm1690"])
@pytest.mark.parametrize("shape", [(1, 70, 3, 16), (1, 1, 9, 16)])
def test_rope_by_tokens_or_heads(shape: tuple[int, ...], on: Chip, cores: int) -> None:
    table = (1, shape[1], 1, shape[3])
    op = record(
        Rope, [(shape, "bf16"), (table, "bf16"), (table, "bf16")], (shape, "bf16"),
        {"rope_mode": "contiguous_halves"},
    )  # fmt: skip
    same_as_one_core(Rope, op, [normal(*shape), normal(*table), normal(*table)], on, cores)


@pytest.mark.parametrize(("on", "cores"), ON, ids=["bm1688", "bm1690"])
def test_gather_by_indices(on: Chip, cores: int) -> None:
    op = record(Gather, [((50, 24), "bf16"), ((1, 35), "si32")], ((1, 35, 24), "bf16"))
    indices = np.random.default_rng(0).integers(0, 50, (1, 35))
    same_as_one_core(Gather, op, [normal(50, 24), indices], on, cores)


A16 = [
    A16Shape(1, 576, 576, 4, 64, False),
    A16Shape(1, 608, 160, 4, 64, True),  # parts of different lengths
    A16Shape(70, 520, 72, 8, 32, True),  # a last part that ends inside a row of lanes
    A16Shape(5, 6000, 96, 4, 32, True),  # several tiles a core
    A16Shape(40, 160, 20000, 4, 128, True),  # K in parts
]


@pytest.mark.parametrize(("on", "cores"), ON, ids=["bm1688", "bm1690"])
@pytest.mark.parametrize("shape", A16, ids=str)
def test_a16_columns(shape: A16Shape, on: Chip, cores: int) -> None:
    # GIVEN numbers whose sums are exact
    op = a16_operation(shape, on)
    # THEN the parts of several cores are the product of one, to the bit
    same_as_one_core(A16MatMul, op, a16_whole_numbers(shape, on), on, cores)


PRODUCTS = [
    Product(1, 576, 130, "bf16", True),
    Product(70, 640, 72, "f16", False),
    Product(33, 9000, 64, "bf16", True),
    Product(33, 160, 19000, "bf16", True),  # K in parts
    Product(1, 20000, 100, "f32", True),
    Product(70, 300, 72, "f32", False),
    Product(1000, 1, 96, "bf16", False),
    Product(777, 1, 64, "f32", False),
]


@pytest.mark.parametrize(("on", "cores"), ON, ids=["bm1688", "bm1690"])
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_products_by_columns_and_logits_by_rows(product: Product, on: Chip, cores: int) -> None:
    same_as_one_core(MatMul, matmul_operation(product), matmul_whole_numbers(product), on, cores)


@pytest.mark.parametrize(("on", "cores"), ON, ids=["bm1688", "bm1690"])
def test_real_numbers_round_alike(on: Chip, cores: int) -> None:
    # GIVEN weights and activations of any size
    shape = A16Shape(5, 600, 256, 4, 64, True)
    op, inputs = a16_operation(shape, on), quantised(shape, on)
    # THEN nothing but the order in which the host's product adds up can differ
    several, single = (run(A16MatMul, op, inputs, on, count) for count in (cores, 1))
    difference = np.abs(several.found - single.found)
    assert (difference <= np.abs(single.found) / 128).all()


ATTENTION = [
    attention(1, 97, 16, 6, 3, history=False),  # heads 2 and 1
    attention(1, 200, 64, 16, 4),  # packed decode
    attention(1, 70, 32, 9, 9, dtype="f32"),
    attention(70, 70, 16, 6, 3),  # a whole mask
    attention(70, 70, 16, 6, 3, dtype="f32", mask=False),
]
TILES = [
    attention(300, 300, 16, 4, 2, 128),  # the small mask: query tiles in turn
    attention(150, 350, 16, 4, 2, 128, history=True),
    attention(300, 300, 16, 2, 2, 128, "f32"),
]


@pytest.mark.parametrize(("on", "cores"), ON, ids=["bm1688", "bm1690"])
@pytest.mark.parametrize("op", ATTENTION, ids=lambda op: str(dict(op.attributes)))
def test_attention_by_heads(op: OpRecord, on: Chip, cores: int) -> None:
    # other blocks than those of one core round otherwise
    compare_attention(op, on, cores, 0.02)


@pytest.mark.parametrize("op", TILES, ids=lambda op: str(dict(op.attributes)))
def test_attention_by_query_tiles(op: OpRecord) -> None:
    compare_attention(op, BM1688, 2, 1e-6)


def compare_attention(op: OpRecord, on: Chip, cores: int, tolerance: float) -> None:
    several, single = (run(FAttention, op, inputs_of(op), on, count) for count in (cores, 1))
    assert not several.violations, several.violations[:3]
    largest = np.abs(single.found).max()
    np.testing.assert_allclose(several.found, single.found, rtol=0, atol=largest * tolerance)
    instructions = program(FAttention, op, on, cores)
    assert not core_races(instructions)
    assert instructions["core"].any()


def test_a_core_takes_whole_heads_core_0_first_and_tiles_in_turn() -> None:
    # GIVEN 9 heads of 3 KV heads, and 5 tiles of 64 queries
    heads = FAttention.core_split(attention(1, 97, 16, 9, 3), BM1688, 2)
    tiles = FAttention.core_split(attention(300, 300, 16, 4, 2, 128), BM1688, 2)
    # THEN core 0 has two KV heads, and every second tile
    assert heads == CoreSplit(2, ((0, 96), (96, 48)))
    assert tiles is not None
    assert tiles.dim == 1
    assert [length for _, length in tiles.parts] == [64, 64, 64, 64, 44]
    assert FAttention.core_split(attention(1, 97, 16, 9, 1), BM1688, 2) is None


def test_what_cannot_be_cut_stays_whole() -> None:
    norm = record(RMSNorm, [((1, 1, 96), "bf16"), ((96,), "bf16")], ((1, 1, 96), "bf16"), {"eps": 1e-6})
    concat = record(Concat, [((1, 4, 8), "bf16")] * 2, ((1, 8, 8), "bf16"), {"axis": 1})
    narrow = a16_operation(A16Shape(1, 32, 64, 4, 64, False), BM1688)
    gather = record(Gather, [((50, 24), "bf16"), ((1, 1), "si32")], ((1, 1, 24), "bf16"))
    for cls, op in ((RMSNorm, norm), (Concat, concat), (A16MatMul, narrow), (Gather, gather)):
        assert cls.core_split(op, BM1688, 2) is None
        assert not program(cls, op, BM1688, 2)["core"].any()


def test_no_byte_but_x_moves_twice() -> None:
    # GIVEN a product whose one-core tiling loads everything once
    shape = A16Shape(64, 512, 256, 4, 64, False)
    op = a16_operation(shape, BM1688)
    single, several = (int(moved_bytes(program(A16MatMul, op, BM1688, cores)).sum()) for cores in (1, 2))
    # THEN the second core adds its own copy of x; scales, weights and columns are moved by one core each
    assert several - single == 64 * 256 * 2


HALF = A16Shape(4, 96, 64, 4, 64, False)
X = ((1, 4, 8), "bf16")
FOREIGN_PARTS = {
    "multiple of the 32 lanes": (A16MatMul, a16_operation(HALF, BM1688), 2, (16, 16)),
    "not along its columns 2": (A16MatMul, a16_operation(HALF, BM1688), 1, (0, 2)),
    "whole KV heads (2, 32 columns each)": (FAttention, attention(1, 97, 16, 6, 3), 2, (0, 48)),
    "rows [0, 150] are no query tile": (FAttention, attention(300, 300, 16, 4, 2, 128), 1, (0, 150)),
    "tokens (1) or heads (2)": (Rope, record(Rope, [((1, 4, 2, 8), "bf16")] * 3, ((1, 4, 2, 8), "bf16")), 3, (0, 4)),
    "does not lie together": (Add, record(Add, [X, X], X), 2, (0, 4)),
    "cannot be cut": (Concat, record(Concat, [X, X], ((1, 8, 8), "bf16")), 1, (0, 4)),
}  # fmt: skip


@pytest.mark.parametrize("message", FOREIGN_PARTS)
def test_parts_that_no_kernel_takes(message: str) -> None:
    # GIVEN a part that the op cannot be cut into
    cls, op, dim, part = FOREIGN_PARTS[message]
    size = max((t.address or 0) + t.nbytes for t in (*op.operand_types, *op.result_types))
    emit = Emitter(BM1688, {Arena.IO: (0, size), Arena.NEURON: (0, size)}, 2)
    emit.begin(0, op)
    # THEN the message says which ones it takes
    with pytest.raises(ValueError) as caught:
        cls.kernel_parts(op, emit, CoreSplit(dim, (part,)))
    assert message in str(caught.value)
