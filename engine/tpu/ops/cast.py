"""tpu.Cast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_elementwise
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.emit import Emitter
from engine.tpu.isa import Local, Opcode, dtype_bytes
from engine.tpu.numerics import round_to
from engine.tpu.tiling import FlatBuffer, flat_tiles, run_flat

WIDTH = 512
"""Elements of a row that one lane holds; the vendor's casts of 49152 and 248320 logits are cut so."""


class Cast(TpuOp):
    """The same numbers in another float type, rounded half to even. Same shape."""

    operands = ("input",)
    cut_operands = (0,)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (round_to(x, op.result_types[0].dtype),)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Four buffers of four banks each: operand and result, double buffered (R31, tiles as R30)."""
        bank = emit.chip.bank_bytes
        source, output = (FlatBuffer(at * bank, (at + 4) * bank) for at in (0, 8))
        widest = max(dtype_bytes(op.operand_types[0].dtype), dtype_bytes(op.result_types[0].dtype))
        tiles = flat_tiles(emit.chip, op.result_types[0].elements, WIDTH, 4 * bank // (WIDTH * widest))
        run_flat(emit, tiles, [source], output, lambda x, y: cls.local(op, emit, x, [y], 0))

    @classmethod
    def local_buffer(cls, chip: Chip, sources: Sequence[Local], results: Sequence[Local]) -> int:
        """No scratch."""
        return 0

    @classmethod
    def local(
        cls, op: OpRecord, emit: Emitter, sources: Sequence[Local], results: Sequence[Local], buffer: int
    ) -> None:
        """One instruction; `buffer` is not used. Equal types are copied: there CAST rounds to whole numbers."""
        same = sources[0].dtype == results[0].dtype
        emit.tiu(Opcode.COPY if same else Opcode.CAST, results[0], sources[0])
