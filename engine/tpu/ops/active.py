"""tpu.Active: activation functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log2

import numpy as np

from engine.op import TpuOp, require
from engine.shapes import verify_elementwise
from engine.snapshot import OpRecord
from engine.top.ops.silu import silu
from engine.tpu.chip import Chip
from engine.tpu.emit import Emitter, constant
from engine.tpu.isa import Local, Opcode, Rounding
from engine.tpu.numerics import round_to
from engine.tpu.tiling import FlatBuffer, aligned_bytes, flat_tiles, local_bytes, run_flat

MODES = ("SILU",)

WIDTH = 256
"""Elements of a row that one lane holds (R31)."""
COEFFICIENTS = 10
"""Terms of the polynomial for exp in f32 (R13)."""
_EXP_TABLE = constant(0)
_LARGEST = float(np.finfo(np.float32).max)
_EXPONENT_BIAS = 127
_MANTISSA_BITS = 23


class Active(TpuOp):
    """output = activation(input) by `mode`. Same shape."""

    operands = ("input",)
    attributes = {"mode": str}
    cut_operands = (0,)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)
        require(
            op.attributes["mode"] in MODES,
            f"mode {op.attributes['mode']!r} is unknown; known: {', '.join(MODES)}",
        )

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (round_to(silu(x), op.result_types[0].dtype),)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Operand and result double buffered in banks 0 to 3, scratch behind them; one row a tile (R31)."""
        bank = emit.chip.bank_bytes
        source, output = (FlatBuffer(at * bank, (at + 1) * bank) for at in (0, 2))
        tiles = flat_tiles(emit.chip, op.result_types[0].elements, WIDTH, 1)
        run_flat(emit, tiles, [source], output, lambda x, y: cls.local(op, emit, x, [y], 4 * bank))

    @classmethod
    def local_buffer(cls, chip: Chip, sources: Sequence[Local], results: Sequence[Local]) -> int:
        """Bytes of scratch: the coefficients, two f32 tensors, and f32 copies of 16-bit operands and results."""
        tensors = 2 + (sources[0].dtype != "f32") + (results[0].dtype != "f32")
        return _table_bytes(chip) + tensors * local_bytes(chip, "f32", sources[0].shape)

    @classmethod
    def local(
        cls, op: OpRecord, emit: Emitter, sources: Sequence[Local], results: Sequence[Local], buffer: int
    ) -> None:
        """SiLU in f32 on tensors of one shape: 57A + 2B + 1 cycles (R31, R44), casts of other types on top.

        Operand and result are laid out as `Emitter.local` does and must not overlap.
        """
        chip, shape = emit.chip, sources[0].shape
        size = local_bytes(chip, "f32", shape)
        table = emit.local(buffer, "f32", (1, chip.lanes, 1, COEFFICIENTS))
        scratch = [
            emit.local(buffer + _table_bytes(chip) + number * size, "f32", shape) for number in range(4)
        ]
        first, second, spare = scratch[0], scratch[1], scratch[2:]
        x = sources[0] if sources[0].dtype == "f32" else spare.pop(0)
        y = results[0] if results[0].dtype == "f32" else spare.pop(0)
        emit.tiu(Opcode.STATIC_BROADCAST, table, _EXP_TABLE)
        if x is not sources[0]:
            emit.tiu(Opcode.CAST, x, sources[0])
        emit.tiu(Opcode.SUB, second, constant(0.0), x)
        _exp(emit, second, y, first, table)
        emit.tiu(Opcode.ADD, first, y, constant(1.0))
        emit.tiu(Opcode.DIV, y, constant(1.0), first)
        emit.tiu(Opcode.MUL, y, y, x)
        if y is not results[0]:
            emit.tiu(Opcode.CAST, results[0], y)


def _table_bytes(chip: Chip) -> int:
    return aligned_bytes(chip, "f32", COEFFICIENTS)


def _exp(emit: Emitter, x: Local, result: Local, rest: Local, table: Local) -> None:
    """result = e**x in f32, as 2**k times a polynomial in x - k ln 2. `x` and `rest` are overwritten.

    k is clamped to -127..127, so 2**k is built by shifting k + 127 into the exponent field.
    """

    def as_integers(tensor: Local, dtype: str) -> Local:
        return emit.local(tensor.address, dtype, tensor.shape, lane=tensor.lane)

    emit.tiu(Opcode.MAX, x, x, constant(-_LARGEST))
    emit.tiu(Opcode.MIN, result, x, constant(_LARGEST))
    emit.tiu(Opcode.MUL, rest, result, constant(log2(np.e)))
    emit.tiu(Opcode.CAST, x, rest, rounding=Rounding.DOWN)
    emit.tiu(Opcode.MUL, rest, x, constant(log(2)))
    emit.tiu(Opcode.SUB, rest, result, rest)
    power, clamped = as_integers(result, "si16"), as_integers(x, "si16")
    emit.tiu(Opcode.CAST, power, x)
    emit.tiu(Opcode.MIN, clamped, power, constant(_EXPONENT_BIAS, "si16"))
    emit.tiu(Opcode.MAX, power, clamped, constant(-_EXPONENT_BIAS, "si16"))
    exponent = as_integers(x, "si32")
    emit.tiu(Opcode.ADDS, exponent, power, constant(_EXPONENT_BIAS, "si16"), constant(_MANTISSA_BITS, "ui8"))
    emit.tiu(Opcode.TAYLOR, result, rest, table, kernel=(0, COEFFICIENTS))
    emit.tiu(Opcode.MUL, result, result, x)
