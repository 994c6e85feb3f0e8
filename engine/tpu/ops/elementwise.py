"""tpu.Add and tpu.Mul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from engine.op import TpuOp
from engine.snapshot import OpRecord
from engine.top.ops import elementwise as top
from engine.tpu.chip import Chip
from engine.tpu.emit import Emitter
from engine.tpu.isa import Local, Opcode, dtype_bytes
from engine.tpu.numerics import round_to
from engine.tpu.tiling import FlatBuffer, flat_tiles, run_flat

WIDTH = 256
"""Elements of a row that one lane holds (R30)."""


class _Binary(TpuOp):
    """A Top op of two tensors of one shape that is one instruction and rounds once."""

    abstract = True
    cut_operands = (0, 1)
    opcode: ClassVar[Opcode]

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (exact,) = super().compute(op, inputs)
        return (round_to(exact, op.result_types[0].dtype),)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Six buffers of two banks each: both operands and the result, double buffered (R30)."""
        bank = emit.chip.bank_bytes
        left, right, output = (FlatBuffer(at * bank, (at + 2) * bank) for at in (0, 4, 8))
        type_ = op.result_types[0]
        max_rows = 2 * bank // (WIDTH * dtype_bytes(type_.dtype))
        tiles = flat_tiles(emit.chip, type_.elements, WIDTH, max_rows)
        run_flat(emit, tiles, [left, right], output, lambda x, y: cls.local(op, emit, x, [y], 0))

    @classmethod
    def local_buffer(cls, chip: Chip, sources: Sequence[Local], results: Sequence[Local]) -> int:
        """No scratch."""
        return 0

    @classmethod
    def local(
        cls, op: OpRecord, emit: Emitter, sources: Sequence[Local], results: Sequence[Local], buffer: int
    ) -> None:
        """One instruction on tensors of one shape; `buffer` is not used."""
        emit.tiu(cls.opcode, results[0], *map(_broadcastable, sources))


class Add(_Binary, top.Add):
    """output = left + right, rounded. Same shape."""

    opcode = Opcode.ADD


class Mul(_Binary, top.Mul):
    """output = left * right, rounded. Same shape."""

    opcode = Opcode.MUL


def _broadcastable(tensor: Local) -> Local:
    # the vendor gives an operand with n = 1 the n stride 0, which R12 charges double; the numbers stay
    if tensor.shape[0] > 1:
        return tensor
    return tensor.view(tensor.shape, (0, *tensor.stride[1:]))
