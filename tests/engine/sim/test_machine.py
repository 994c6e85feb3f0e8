"""The machine against NumPy: layouts, every opcode, and a checker that notices each kind of mistake."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from vendor_trace import read_trace

from engine.sim.machine import Machine, MachineError
from engine.tpu.chip import chip
from engine.tpu.isa import (
    ACCUMULATE,
    HISTORY_TAIL,
    NIBBLES,
    Arena,
    Constant,
    Direction,
    Global,
    Local,
    Opcode,
    Operand,
    Rounding,
    Shape4,
    Stream,
    contiguous,
)

CHIP = chip("bm1684x")
LANES = CHIP.lanes
BF16 = ml_dtypes.bfloat16
NUMPY = {
    "f32": np.float32,
    "bf16": BF16,
    "f16": np.float16,
    "si32": np.int32,
    "ui32": np.uint32,
    "si16": np.int16,
    "ui16": np.uint16,
    "si8": np.int8,
    "ui8": np.uint8,
}


class Bench:
    """A machine with 1 MiB arenas and a stream to fill."""

    def __init__(self, *, checks: bool = False) -> None:
        self.memory = {arena: np.zeros(1 << 20, np.uint8) for arena in Arena}
        self.machine = Machine(CHIP, self.memory, checks=checks)
        self.stream = Stream()
        self.rng = np.random.default_rng(0)

    def emit(self, opcode: Opcode, result: Operand, *operands: Operand, wait: int = 0, **fields: Any) -> None:
        self.stream.append(opcode, result, operands, op=0, wait=wait, **fields)

    def run(self, **options: Any) -> int:
        return self.machine.run(self.stream.program(), **options)

    def filled(self, tensor: Local | Global, values: np.ndarray | None = None) -> np.ndarray:
        """Put values (random by default) into memory and return them."""
        if values is None:
            values = self.rng.standard_normal(tensor.shape) * 4
        values = np.asarray(values).astype(NUMPY[tensor.dtype]).reshape(tensor.shape)
        self.machine.write(tensor, values)
        return values


def local(address: int, dtype: str, shape: Shape4, stride: Shape4 | None = None, lane: int = 0) -> Local:
    """A local tensor with dense planes by default."""
    _, c, h, w = shape
    blocks = -(-(lane + c) // LANES)
    return Local(address, dtype, shape, stride or (blocks * h * w, h * w, w, 1), lane)


def ddr(
    offset: int, dtype: str, shape: Shape4, stride: Shape4 | None = None, arena: Arena = Arena.NEURON
) -> Global:
    return Global(arena, offset, dtype, shape, stride or contiguous(shape))


def f32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


@pytest.mark.parametrize(("channels", "lane"), [(3, 0), (64, 0), (192, 0), (100, 0), (100, 5), (64, 63)])
def test_channels_are_spread_over_lanes_and_blocks(channels: int, lane: int) -> None:
    # GIVEN a tensor whose channels start in some lane
    bench = Bench()
    tensor = local(256, "f32", (2, channels, 3, 4), lane=lane)
    # WHEN it is loaded from DDR
    source = ddr(64, "f32", tensor.shape)
    values = bench.filled(source)
    bench.emit(Opcode.TENSOR, tensor, source, direction=Direction.LOAD)
    bench.run()
    # THEN channel c lies in lane (lane + c) % LANES at block (lane + c) // LANES
    blocks = -(-(lane + channels) // LANES)
    for n in range(2):
        for c in range(channels):
            at = 256 + 4 * (n * blocks * 12 + (lane + c) // LANES * 12)
            plane = bench.machine.lmem[(lane + c) % LANES, at : at + 48].view(np.float32)
            np.testing.assert_array_equal(plane, values[n, c].reshape(-1))
    np.testing.assert_array_equal(bench.machine.read(tensor), values)


def test_elementwise_broadcast_by_zero_strides() -> None:
    # GIVEN a scale per channel and 64-wide group, read with a zero stride, on 100 channels
    bench = Bench()
    x, result = local(0, "bf16", (1, 100, 4, 64)), local(8192, "bf16", (1, 100, 4, 64))
    scale = local(4096, "bf16", (1, 100, 4, 1))
    a, b = bench.filled(x), bench.filled(scale)
    bench.emit(Opcode.MUL, result, x, scale.view((1, 100, 4, 64), (8, 4, 1, 0)))
    # WHEN multiplied THEN each value is rounded once from the f32 product
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(result), (f32(a) * f32(b)).astype(BF16))


# -- transfers ---------------------------------------------------------------------------------------------


def test_a_transfer_follows_strides_of_both_sides() -> None:
    # GIVEN K rows [tokens, heads, d] in DDR and local memory that wants [heads, tokens, 1, d]
    bench = Bench()
    dense = bench.filled(ddr(0, "bf16", (70, 3, 1, 16)))
    source = ddr(0, "bf16", (3, 70, 1, 16), (16, 48, 16, 1))
    inside = local(512, "bf16", (3, 70, 1, 16), (64, 32, 16, 1))
    # WHEN loaded and stored elsewhere with gaps between rows
    target = ddr(65536, "bf16", (3, 70, 1, 16), (2100, 30, 16, 1))
    bench.emit(Opcode.TENSOR, inside, source, direction=Direction.LOAD)
    bench.emit(Opcode.TENSOR, target, inside, direction=Direction.STORE)
    bench.run()
    # THEN both hold the transposed values
    expected = dense[:, :, 0].transpose(1, 0, 2)[:, :, None]
    np.testing.assert_array_equal(bench.machine.read(inside), expected)
    np.testing.assert_array_equal(bench.machine.read(target), expected)


def test_ddr_to_ddr_keeps_bytes_between_rows() -> None:
    bench = Bench()
    values = bench.filled(ddr(0, "si8", (1, 1, 4, 8)))
    bench.memory[Arena.NEURON][4096:8192] = 7
    target = ddr(4096, "si8", (1, 1, 4, 8), (0, 0, 16, 1))
    bench.emit(Opcode.TENSOR, target, ddr(0, "si8", (1, 1, 4, 8)), direction=Direction.DDR_TO_DDR)
    bench.run()
    rows = bench.memory[Arena.NEURON][4096 : 4096 + 64].view(np.int8).reshape(4, 16)
    np.testing.assert_array_equal(rows[:, :8], values[0, 0])
    assert (rows[:, 8:] == 7).all()


@pytest.mark.parametrize("columns", [128, 130])
def test_matrix_rows_are_cut_into_pieces_and_put_together_again(columns: int) -> None:
    # GIVEN rows cut into pieces of 3 columns; 130 leaves the last piece partly unused
    bench = Bench()
    source, pieces = ddr(0, "f32", (5, 1, 1, columns)), -(-columns // 3)
    values = bench.filled(source)
    split = local(64, "f32", (5, pieces, 1, 3))
    target = ddr(65536, "f32", (5, 1, 1, columns))
    bench.emit(Opcode.MATRIX, split, source, direction=Direction.LOAD)
    bench.emit(Opcode.MATRIX, target, split, direction=Direction.STORE)
    bench.run()
    padded = np.pad(values.reshape(5, columns), ((0, 0), (0, pieces * 3 - columns)))
    found = bench.machine.read(split)
    np.testing.assert_array_equal(found.reshape(5, -1)[:, :columns], padded[:, :columns])
    np.testing.assert_array_equal(found[:, 1, 0], values.reshape(5, columns)[:, 3:6])
    np.testing.assert_array_equal(bench.machine.read(target), values)


def test_broadcast_and_lane_broadcast_fill_every_channel() -> None:
    bench = Bench()
    values = bench.filled(ddr(0, "si32", (2, 1, 3, 1)), np.arange(6))
    first, second = local(0, "si32", (2, 70, 3, 1)), local(4096, "si32", (2, 64, 3, 1))
    bench.emit(Opcode.BROADCAST, first, ddr(0, "si32", (2, 1, 3, 1)), direction=Direction.LOAD)
    bench.emit(Opcode.LANE_BROADCAST, second, first.view((2, 1, 3, 1)))
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(first), np.broadcast_to(values, (2, 70, 3, 1)))
    np.testing.assert_array_equal(bench.machine.read(second), np.broadcast_to(values, (2, 64, 3, 1)))


@pytest.mark.parametrize("space", ["local", "ddr"])
def test_gather_picks_rows_and_gives_zeros_beyond_the_table(space: str) -> None:
    bench = Bench()
    table = bench.filled(ddr(0, "bf16", (1, 1, 10, 8), arena=Arena.COEFF))[0, 0]
    picks = np.array([3, 9, 0, 3, 10])
    where: Local | Global = ddr(128, "si32", (1, 1, 5, 1), arena=Arena.IO)
    if space == "local":
        where = local(32, "si32", (1, 1, 5, 1))
    bench.filled(where, picks)
    target = ddr(4096, "bf16", (1, 1, 5, 8))
    source = ddr(0, "bf16", (1, 1, 10, 8), arena=Arena.COEFF)
    bench.emit(Opcode.GATHER, target, source, where, direction=Direction.DDR_TO_DDR)
    bench.run()
    found = bench.machine.read(target)[0, 0]
    np.testing.assert_array_equal(found[:4], table[picks[:4]])
    assert (f32(found[4]) == 0).all()


def test_bases_move_every_layer_to_its_own_arena_part() -> None:
    bench = Bench()
    values = bench.filled(ddr(8192 + 64, "f32", (1, 4, 1, 4), arena=Arena.COEFF))
    inside = local(0, "f32", (1, 4, 1, 4))
    source = ddr(64, "f32", (1, 4, 1, 4), arena=Arena.COEFF)
    bench.emit(Opcode.TENSOR, inside, source, direction=Direction.LOAD)
    bench.run(bases={Arena.COEFF: 8192})
    np.testing.assert_array_equal(bench.machine.read(inside), values)


# -- matrix products ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [Opcode.MM2_NN, Opcode.MM2_NT])
@pytest.mark.parametrize("accumulate", [False, True])
def test_mm2_multiplies_rows_on_lanes(opcode: Opcode, accumulate: bool) -> None:
    # GIVEN bf16 matrices [70, 40] and [40, 9] (or its transpose)
    bench = Bench()
    left, result = local(0, "bf16", (1, 70, 1, 40)), local(4096, "f32", (1, 70, 1, 9))
    right = local(2048, "bf16", (1, 40, 1, 9) if opcode == Opcode.MM2_NN else (1, 9, 1, 40))
    a, b = f32(bench.filled(left))[0, :, 0], f32(bench.filled(right))[0, :, 0]
    before = bench.filled(result)[0, :, 0]
    # WHEN multiplied
    bench.emit(opcode, result, left, right, flags=ACCUMULATE if accumulate else 0)
    bench.run()
    # THEN the f32 product, plus what was there
    expected = a @ (b if opcode == Opcode.MM2_NN else b.T) + (before if accumulate else 0)
    np.testing.assert_allclose(bench.machine.read(result)[0, :, 0], expected, rtol=1e-6, atol=1e-5)


def test_mm2_rounds_the_product_once() -> None:
    bench = Bench()
    left, right = local(0, "bf16", (1, 3, 1, 64)), local(2048, "bf16", (1, 64, 1, 5))
    result = local(4096, "bf16", (1, 3, 1, 5))
    a, b = f32(bench.filled(left))[0, :, 0], f32(bench.filled(right))[0, :, 0]
    bench.emit(Opcode.MM2_NN, result, left, right)
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(result)[0, :, 0], (a @ b).astype(BF16))


def test_mm_multiplies_column_split_matrices_with_bias_and_accumulation() -> None:
    # GIVEN x [2, 6] in pieces of 4 (2 unused), W [6, 10] and bias [1, 10] in pieces of 5
    bench = Bench()
    x, w = local(0, "f32", (2, 2, 1, 4)), local(64, "f32", (6, 2, 1, 5))
    bias, y = local(512, "f32", (1, 2, 1, 5)), local(1024, "f32", (2, 2, 1, 5))
    a, b = (bench.filled(t).reshape(t.shape[0], -1) for t in (x, w))
    c, before = (bench.filled(t).reshape(t.shape[0], -1) for t in (bias, y))
    bench.emit(Opcode.MM, y, x, w, bias, flags=ACCUMULATE)
    bench.run()
    found = bench.machine.read(y).reshape(2, 10)
    np.testing.assert_allclose(found, a[:, :6] @ b + c + before, rtol=1e-5, atol=1e-5)


# -- element by element ------------------------------------------------------------------------------------

BINARY = {
    Opcode.ADD: np.add,
    Opcode.SUB: np.subtract,
    Opcode.MUL: np.multiply,
    Opcode.DIV: np.divide,
    Opcode.MAX: np.maximum,
    Opcode.MIN: np.minimum,
}


@pytest.mark.parametrize("opcode", list(BINARY))
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("constant_left", [False, True])
def test_float_arithmetic_rounds_once(opcode: Opcode, dtype: str, constant_left: bool) -> None:
    bench = Bench()
    x, y = local(0, dtype, (2, 70, 2, 3)), local(4096, dtype, (2, 70, 2, 3))
    result = local(8192, dtype, (2, 70, 2, 3))
    a, b = f32(bench.filled(x)), f32(bench.filled(y))
    if constant_left:
        a = np.float32(1.5)
    bench.emit(opcode, result, Constant(1.5) if constant_left else x, y)
    bench.run()
    expected = BINARY[opcode](a, b).astype(NUMPY[dtype])
    np.testing.assert_array_equal(bench.machine.read(result), expected)


def test_integer_arithmetic_is_exact_beyond_f32() -> None:
    bench = Bench()
    x, result = local(0, "si32", (1, 2, 1, 2)), local(64, "si32", (1, 2, 1, 2))
    values = bench.filled(x, np.array([2**24 + 1, -5, 2**31 - 1, 0]))
    bench.emit(Opcode.ADD, result, x, Constant(256.0))
    bench.run()
    expected = (values.astype(np.int64) + 256).astype(np.int32)
    np.testing.assert_array_equal(bench.machine.read(result), expected)


def test_nibbles_are_unpacked_in_place_of_each_other() -> None:
    # GIVEN packed 4-bit weights
    bench = Bench()
    packed, low = local(0, "ui8", (1, 3, 8, 1)), local(64, "ui8", (1, 3, 8, 1), (16, 16, 2, 1))
    values = bench.filled(packed, np.arange(24) * 11 % 256).astype(np.int64)
    # WHEN the low and high halves go to even and odd bytes
    high = Local(65, "si8", low.shape, low.stride)
    bench.emit(Opcode.AND, low, packed, Constant(15.0, "ui8"))
    bench.emit(Opcode.ASHIFT, high, packed, Constant(-4.0, "si8"), rounding=Rounding.TOWARD_ZERO)
    bench.run()
    # THEN 16 bytes per channel hold the nibbles in order
    found = bench.machine.read(local(64, "ui8", (1, 3, 8, 2))).reshape(-1, 2)
    np.testing.assert_array_equal(found, np.stack([values & 15, values >> 4], -1).reshape(-1, 2))


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (Rounding.HALF_EVEN, [2, 2, -2, -2, 1]),
        (Rounding.HALF_AWAY, [2, 3, -2, -3, 1]),
        (Rounding.TOWARD_ZERO, [1, 2, -1, -2, 1]),
        (Rounding.DOWN, [1, 2, -2, -3, 1]),
        (Rounding.UP, [2, 3, -1, -2, 2]),
    ],
)
def test_a_right_shift_and_a_cast_round_as_told(rounding: Rounding, expected: list[int]) -> None:
    # GIVEN 1.5, 2.5, -1.5, -2.5 and 1.25, as quarters and as floats
    bench = Bench()
    quarters, floats = local(0, "si32", (1, 5, 1, 1)), local(64, "f32", (1, 5, 1, 1))
    bench.filled(quarters, np.array([6, 10, -6, -10, 5]))
    bench.filled(floats, np.array([1.5, 2.5, -1.5, -2.5, 1.25]))
    kinds = ((128, "si32"), (192, "si16"), (256, "f32"))
    shifted, cast, whole = (local(at, dtype, (1, 5, 1, 1)) for at, dtype in kinds)
    bench.emit(Opcode.ASHIFT, shifted, quarters, Constant(-2.0, "si8"), rounding=rounding)
    bench.emit(Opcode.CAST, cast, floats, rounding=rounding)
    bench.emit(Opcode.CAST, whole, floats, rounding=rounding)
    bench.run()
    for tensor in (shifted, cast, whole):
        np.testing.assert_array_equal(bench.machine.read(tensor).reshape(-1), expected)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("rounding", list(Rounding))
def test_narrowing_picks_the_neighbour_that_the_mode_names(dtype: str, rounding: Rounding) -> None:
    # GIVEN values between two neighbours of the half type, ties included
    bench = Bench()
    halves = (bench.rng.standard_normal(200) * 100).astype(NUMPY[dtype])
    bits = halves.view(np.uint16)
    away = (bits + 1).view(NUMPY[dtype])
    weights = np.resize([0.0, 0.25, 0.5, 0.75], 200)
    exact = (f32(halves) * (1 - weights) + f32(away) * weights).astype(np.float32)
    x, result = local(0, "f32", (1, 10, 1, 20)), local(4096, dtype, (1, 10, 1, 20))
    bench.filled(x, exact)
    bench.emit(Opcode.CAST, result, x, rounding=rounding)
    bench.run()
    # THEN the neighbour nearer to zero is `halves`, the farther one `away`
    up_is_away = exact > 0
    take_away = {
        Rounding.HALF_EVEN: (weights > 0.5) | ((weights == 0.5) & (bits % 2 == 1)),
        Rounding.HALF_AWAY: weights >= 0.5,
        Rounding.TOWARD_ZERO: weights > 1,
        Rounding.DOWN: (weights > 0) & ~up_is_away,
        Rounding.UP: (weights > 0) & up_is_away,
    }[rounding]
    found = bench.machine.read(result).reshape(-1)
    np.testing.assert_array_equal(found, np.where(take_away, away, halves))


def test_casts_to_integers_saturate() -> None:
    bench = Bench()
    x, result = local(0, "f32", (1, 4, 1, 1)), local(64, "si8", (1, 4, 1, 1))
    bench.filled(x, np.array([1000.0, -1000.0, np.nan, 3.6]))
    bench.emit(Opcode.CAST, result, x)
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(result).reshape(-1), [127, -128, 0, 4])


def test_saturating_subtract_gives_the_sign_of_the_result() -> None:
    bench = Bench()
    x, zero = local(0, "ui8", (1, 3, 1, 1)), local(64, "ui8", (1, 3, 1, 1))
    bench.filled(x, np.array([3, 200, 7]))
    bench.filled(zero, np.array([8, 8, 7]))
    signed, unsigned = local(128, "si8", (1, 3, 1, 1)), local(192, "ui8", (1, 3, 1, 1))
    bench.emit(Opcode.SUBS, signed, x, zero)
    bench.emit(Opcode.SUBS, unsigned, x, zero)
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(signed).reshape(-1), [-5, 127, 0])
    np.testing.assert_array_equal(bench.machine.read(unsigned).reshape(-1), [0, 192, 0])


def test_two_to_the_k_is_built_in_the_exponent_field() -> None:
    # GIVEN whole numbers k
    bench = Bench()
    k, power = local(0, "si16", (1, 4, 1, 1)), local(64, "si32", (1, 4, 1, 1))
    bench.filled(k, np.array([-127, -1, 0, 10]))
    # WHEN (k + 127) << 23 is read as a float
    bench.emit(Opcode.ADDS, power, k, Constant(127.0, "si32"), Constant(23.0, "ui8"))
    bench.run()
    found = bench.machine.read(power.view(power.shape, dtype="f32")).reshape(-1)
    np.testing.assert_array_equal(found, [0.0, 0.5, 1.0, 1024.0])


@pytest.mark.parametrize(("table", "dtype", "count"), [(0, "f32", 10), (1, "bf16", 7)])
def test_taylor_evaluates_the_coefficients_in_local_memory(table: int, dtype: str, count: int) -> None:
    bench = Bench()
    coefficients = local(0, dtype, (1, LANES, 1, count))
    x, result = local(64, dtype, (2, 70, 1, 3), lane=0), local(4096, dtype, (2, 70, 1, 3))
    values = f32(bench.filled(x, bench.rng.uniform(-1, 1, x.shape)))
    bench.emit(Opcode.STATIC_BROADCAST, coefficients, Constant(float(table)))
    bench.emit(Opcode.TAYLOR, result, x, coefficients, kernel=(1, count))
    bench.run()
    tolerance = 1e-6 if dtype == "f32" else 1e-2
    np.testing.assert_allclose(f32(bench.machine.read(result)), np.exp(values), rtol=tolerance)
    # AND another table in one lane changes only that lane's channels
    bench.machine.write(local(0, dtype, (1, 1, 1, count), lane=2), np.arange(count))
    bench.run(start=1)
    found = f32(bench.machine.read(result))
    expected = np.polynomial.polynomial.polyval(values[:, 2::64], np.arange(count))
    np.testing.assert_allclose(found[:, 2::64], expected, rtol=max(tolerance, 1e-5), atol=1e-5)
    np.testing.assert_allclose(found[:, 3], np.exp(values[:, 3]), rtol=tolerance)


def test_rsqrt_and_normalize() -> None:
    bench = Bench()
    x = local(0, "f32", (1, 4, 1, 2))
    kinds = ((64, "f32"), (128, "f32"), (192, "si32"))
    root, significand, exponent = (local(at, dtype, x.shape) for at, dtype in kinds)
    values = np.abs(bench.filled(x, bench.rng.uniform(0.1, 50, x.shape)))
    bench.emit(Opcode.RSQRT, root, x)
    bench.emit(Opcode.NORMALIZE, significand, x)
    bench.emit(Opcode.NORMALIZE, exponent, x)
    bench.run()
    np.testing.assert_allclose(bench.machine.read(root), 1 / np.sqrt(values), rtol=1e-6)
    m, e = bench.machine.read(significand), bench.machine.read(exponent)
    assert ((m >= 1) & (m < 2)).all()
    np.testing.assert_array_equal(np.ldexp(m, e - 127), values)


def test_selects_compare_bits_or_numbers() -> None:
    bench = Bench()
    x, equal, less = (local(at, "f32", (1, 4, 1, 1)) for at in (0, 64, 128))
    values = np.array([np.inf, 1.0, -2.0, 0.0])
    bench.filled(x, values)
    bits = x.view(x.shape, dtype="ui32")
    bench.emit(Opcode.SELECT_EQ, equal, bits, Constant(float(0x7F800000), "ui32"), Constant(0.0), x)
    bench.emit(Opcode.SELECT_LT, less, x, Constant(0.0), Constant(-1.0), x)
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(equal).reshape(-1), [0.0, 1.0, -2.0, 0.0])
    np.testing.assert_array_equal(bench.machine.read(less).reshape(-1), [np.inf, 1.0, -1.0, 0.0])


def test_copy_fills_moves_and_leaves_gaps_alone() -> None:
    bench = Bench()
    x, y = local(0, "bf16", (1, 65, 2, 3), (16, 8, 4, 1)), local(256, "bf16", (1, 65, 2, 3))
    values = bench.filled(x)
    bench.emit(Opcode.COPY, y, x)
    bench.emit(Opcode.COPY, x.view((1, 65, 1, 3)), Constant(-3.5))
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(y), values)
    np.testing.assert_array_equal(f32(bench.machine.read(x))[:, :, 0], -3.5)
    np.testing.assert_array_equal(bench.machine.read(x)[:, :, 1], values[:, :, 1])


# -- reductions and layout ---------------------------------------------------------------------------------


def test_poolings_reduce_windows() -> None:
    bench = Bench()
    x = local(0, "f32", (2, 70, 8, 4))
    mean, top = local(4096, "f32", (2, 70, 2, 2)), local(8192, "f32", (2, 70, 1, 4))
    windows = bench.filled(x).reshape(2, 70, 2, 4, 2, 2)
    bench.emit(Opcode.POOL_AVG, mean, x, Constant(0.125), kernel=(4, 2))
    bench.emit(Opcode.POOL_MAX, top, x, kernel=(8, 1))
    bench.run()
    np.testing.assert_allclose(bench.machine.read(mean), windows.mean(axis=(3, 5)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(bench.machine.read(top), windows.reshape(2, 70, 8, 4).max(2, keepdims=True))


@pytest.mark.parametrize("opcode", [Opcode.CW_TRANSPOSE, Opcode.WC_TRANSPOSE])
def test_transposes_exchange_channels_and_columns(opcode: Opcode) -> None:
    bench = Bench()
    x, y = local(0, "bf16", (2, 70, 1, 5)), local(4096, "bf16", (2, 5, 1, 70))
    values = bench.filled(x)
    bench.emit(opcode, y, x)
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(y), values.transpose(0, 3, 2, 1))


# -- stepping and history ----------------------------------------------------------------------------------


def test_a_run_stops_before_an_instruction_and_goes_on_from_there() -> None:
    bench = Bench()
    x = local(0, "f32", (1, 1, 1, 1))
    for value in (1.0, 2.0, 3.0):
        bench.emit(Opcode.COPY, x, Constant(value))
    assert bench.run(stop_at=2) == 2
    assert bench.machine.read(x).item() == 2.0
    assert bench.run(start=2) == 3
    assert bench.machine.read(x).item() == 3.0


def test_history_blocks_beyond_the_length_are_dropped_and_the_cut_block_is_masked() -> None:
    # GIVEN scores of three key blocks of 4 rows each, a mask fill after each
    bench = Bench()
    blocks = [local(64 * b, "f32", (1, 2, 1, 4)) for b in range(3)]
    for b, block in enumerate(blocks):
        bench.emit(Opcode.COPY, block, Constant(1.0), history=1 + 4 * b)
        bench.emit(Opcode.COPY, block, Constant(-9.0), history=1 + 4 * b, flags=HISTORY_TAIL)
    # WHEN the history holds 6 rows
    bench.run(history_length=6)
    # THEN block 0 is whole, block 1 is masked from its third column, block 2 did not run
    np.testing.assert_array_equal(bench.machine.read(blocks[0])[0, 1, 0], [1, 1, 1, 1])
    np.testing.assert_array_equal(bench.machine.read(blocks[1])[0, 1, 0], [1, 1, -9, -9])
    assert np.isnan(bench.machine.read(blocks[2])).all()
    # AND without a length all blocks are whole
    bench.run()
    assert all((bench.machine.read(block) == 1).all() for block in blocks)


# -- mistakes ----------------------------------------------------------------------------------------------


def test_an_impossible_instruction_is_named() -> None:
    bench = Bench()
    bench.emit(Opcode.COPY, local(CHIP.lmem_bytes - 4, "f32", (1, 1, 1, 2)), Constant(0.0))
    with pytest.raises(MachineError, match=r"instruction 0 \(COPY\): bytes 262140 to 262148"):
        bench.run()


def good_program(bench: Bench) -> None:
    """Load, double, store: every wait in place."""
    bench.filled(ddr(0, "f32", (1, 64, 1, 16)))
    x, y = local(0, "f32", (1, 64, 1, 16)), local(64, "f32", (1, 64, 1, 16))
    bench.emit(Opcode.TENSOR, x, ddr(0, "f32", x.shape), direction=Direction.LOAD)
    bench.emit(Opcode.ADD, y, x, x, wait=1)
    bench.emit(Opcode.TENSOR, ddr(8192, "f32", x.shape), y, direction=Direction.STORE, wait=1)
    bench.emit(Opcode.TENSOR, x, ddr(8192, "f32", x.shape), direction=Direction.LOAD, wait=1)


def test_a_correct_program_has_no_violation() -> None:
    bench = Bench(checks=True)
    good_program(bench)
    bench.run()
    assert bench.machine.violations == []


@pytest.mark.parametrize(
    ("at", "change", "kind"),
    [
        (1, {"wait": 0}, "race"),
        (2, {"wait": 0}, "race"),
        (0, {"opcode": Opcode.MATRIX}, "shape"),
        (1, {("operands", 0, "address"): 32}, "uninitialised"),
        (1, {("operands", 0, "lane"): 1}, "lane"),
        (1, {("result", "address"): CHIP.lmem_bytes - 32}, "bounds"),
        (0, {("operands", 0, "address"): (1 << 20) - 64}, "bounds"),
        (0, {("operands", 0, "address"): 65536}, "uninitialised"),
        (3, {("operands", 0, "address"): 8196}, "uninitialised"),
    ],
)
def test_the_checker_notices_a_mutation(at: int, change: dict[Any, Any], kind: str) -> None:
    # GIVEN the correct program with one field changed
    bench = Bench(checks=True)
    good_program(bench)
    program = bench.stream.program().copy()
    for key, value in change.items():
        if isinstance(key, str):
            program[key][at] = value
        elif key[0] == "operands":
            program["operands"][key[2]][at, key[1]] = value
        else:
            program[key[0]][key[1]][at] = value
    # WHEN run THEN the checker names that instruction
    bench.machine.run(program)
    assert (at, kind) in [(v.instruction, v.kind) for v in bench.machine.violations]


def test_interleaved_bytes_do_not_race() -> None:
    # GIVEN a load into odd columns while compute writes the even ones
    bench = Bench(checks=True)
    bench.filled(ddr(0, "f32", (1, 64, 1, 8)))
    even, odd = (Local(at, "f32", (1, 64, 1, 8), (16, 16, 16, 2)) for at in (0, 4))
    bench.emit(Opcode.TENSOR, odd, ddr(0, "f32", odd.shape), direction=Direction.LOAD)
    bench.emit(Opcode.COPY, even, Constant(0.0))
    bench.run()
    assert bench.machine.violations == []
    # WHEN they share bytes THEN it is a race
    bench.emit(Opcode.COPY, odd, Constant(0.0))
    bench.run(start=2)
    assert [v.kind for v in bench.machine.violations] == ["race"]


def test_unused_columns_of_the_last_matrix_piece_count_as_loaded() -> None:
    bench = Bench(checks=True)
    bench.filled(ddr(0, "f32", (1, 1, 1, 130)))
    split = local(0, "f32", (1, 44, 1, 3))
    bench.emit(Opcode.MATRIX, split, ddr(0, "f32", (1, 1, 1, 130)), direction=Direction.LOAD)
    bench.emit(Opcode.MUL, split, split, split, wait=1)
    bench.run()
    assert bench.machine.violations == []


def test_gather_checks_only_the_rows_picked() -> None:
    bench = Bench(checks=True)
    bench.filled(ddr(0, "f32", (1, 1, 2, 4)))
    where = ddr(0, "si32", (1, 1, 2, 1), arena=Arena.IO)
    bench.filled(where, np.array([1, 0]))
    table, target = ddr(0, "f32", (1, 1, 8, 4)), ddr(4096, "f32", (1, 1, 2, 4))
    bench.emit(Opcode.GATHER, target, table, where, direction=Direction.DDR_TO_DDR)
    bench.run()
    assert bench.machine.violations == []
    bench.filled(where, np.array([2, 9]))
    bench.run()
    assert {v.kind for v in bench.machine.violations} == {"uninitialised", "index"}


@pytest.mark.parametrize(
    "name", ["smollm2-135m__w4bf16_s512__block_cache_0", "qwen3-tiny__bf16_s256__block_0"]
)
def test_the_vendors_programs_have_no_violation(name: str) -> None:
    # GIVEN whole modules of the reference compiler, their addresses and waits
    program, _, _ = read_trace(name)
    machine = Machine(CHIP, {Arena.NEURON: np.zeros(16 << 20, np.uint8)}, checks=True)
    machine.mark_written(Arena.NEURON)
    # WHEN run with checks THEN their local memory and waits are found sound
    machine.run(program)
    assert machine.violations == []
    # AND without waits they race
    program["wait"] = 0
    machine.run(program)
    assert {violation.kind for violation in machine.violations} == {"race"}


def test_packed_nibbles_are_subtracted_from_without_unpacking_first() -> None:
    # GIVEN four bytes a channel that hold eight 4-bit values, low nibble first, and a zero point per channel
    bench = Bench()
    packed, zero = local(0, "ui8", (1, 70, 2, 2)), local(256, "ui8", (1, 70, 1, 1))
    result = local(512, "si8", (1, 70, 2, 4))
    bytes_ = bench.filled(packed, bench.rng.integers(0, 256, packed.shape)).astype(np.int64)
    zeros = bench.filled(zero, bench.rng.integers(0, 16, zero.shape)).astype(np.int64)
    spread = zero.view((1, 70, 2, 4), (2, 1, 0, 0))
    bench.emit(Opcode.SUBS, result, packed, spread, flags=NIBBLES)
    bench.run()
    values = np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(1, 70, 2, 4)
    np.testing.assert_array_equal(bench.machine.read(result), values - zeros)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("rounding", list(Rounding))
def test_narrowing_keeps_infinities_and_nan(dtype: str, rounding: Rounding) -> None:
    bench = Bench()
    x, result = local(0, "f32", (1, 3, 1, 1)), local(64, dtype, (1, 3, 1, 1))
    bits = np.array([0x7F800000, 0xFF800000, 0x7FFFFFFF], np.uint32)
    bench.filled(x, bits.view(np.float32))
    bench.emit(Opcode.CAST, result, x, rounding=rounding)
    bench.run()
    np.testing.assert_array_equal(f32(bench.machine.read(result)).reshape(-1), [np.inf, -np.inf, np.nan])


def test_a_saturating_add_of_a_byte_and_a_large_constant_stops_at_the_limit() -> None:
    bench = Bench()
    x, result = local(0, "ui8", (1, 2, 1, 1)), local(64, "si32", (1, 2, 1, 1))
    bench.filled(x, np.array([3, 200]))
    bench.emit(Opcode.ADDS, result, x, Constant(float(2**31 - 10), "si32"))
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(result).reshape(-1), [2**31 - 7, 2**31 - 1])


def test_taylor_takes_each_lanes_own_coefficients() -> None:
    # GIVEN the constant polynomial `lane` in every lane and a tensor that starts in lane 5
    bench = Bench()
    table, x = local(0, "f32", (1, LANES, 1, 1)), local(64, "f32", (1, 100, 1, 2), lane=5)
    bench.filled(table, np.arange(LANES))
    bench.filled(x)
    bench.emit(Opcode.TAYLOR, x, x, table, kernel=(1, 1))
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(x)[0, :, 0, 1], (5 + np.arange(100)) % LANES)


def test_a_copy_onto_its_own_next_block_moves_what_was_there() -> None:
    bench = Bench()
    source, target = local(0, "f32", (1, 100, 1, 4)), local(16, "f32", (1, 100, 1, 4))
    values = bench.filled(source)
    bench.emit(Opcode.COPY, target, source)
    bench.run()
    np.testing.assert_array_equal(bench.machine.read(target), values)


def test_a_wait_covers_all_later_commands_of_its_queue() -> None:
    # GIVEN two fills that wait for a load, the second without saying so again
    bench = Bench(checks=True)
    x = local(0, "f32", (1, 64, 1, 4))
    bench.filled(ddr(0, "f32", x.shape))
    bench.emit(Opcode.TENSOR, x, ddr(0, "f32", x.shape), direction=Direction.LOAD)
    bench.emit(Opcode.COPY, x.view((1, 64, 1, 1)), Constant(0.0), wait=1)
    bench.emit(Opcode.COPY, x, Constant(0.0), wait=0)
    bench.run()
    assert bench.machine.violations == []


def test_accumulating_onto_nothing_is_noticed() -> None:
    bench = Bench(checks=True)
    x, y = local(0, "f32", (1, 4, 1, 4)), local(64, "f32", (1, 4, 1, 4))
    bench.filled(x)
    bench.emit(Opcode.MM2_NN, y, x, x, flags=ACCUMULATE)
    bench.run()
    assert [violation.kind for violation in bench.machine.violations] == ["uninitialised"]
