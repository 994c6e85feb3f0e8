"""tpu.Gather."""

from __future__ import annotations

from math import prod

from engine.op import TpuOp
from engine.snapshot import OpRecord
from engine.top.ops import gather as top
from engine.tpu.chip import Chip
from engine.tpu.cores import CoreSplit, outermost_split
from engine.tpu.emit import Emitter, constant
from engine.tpu.isa import Direction, Opcode, dtype_bytes

_INDEX = "si32"


class Gather(TpuOp, top.Gather):
    """Rows of a table. table [rows, ...], indices [a, b] si32 in 0..rows-1 -> [a, b, ...]."""

    cut_operands = (1,)

    @classmethod
    def core_split(cls, op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
        """Indices; a single one stays on one core."""
        return outermost_split(op.operand_types[1].shape, cores)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Indices to every lane, negative ones counted from the end, then rows from DDR to DDR (R33)."""
        chip, table = emit.chip, op.operand_types[0]
        rows, width = table.shape[0], prod(table.shape[1:])
        most = 4 * chip.bank_bytes // dtype_bytes(_INDEX)
        total = op.operand_types[1].elements
        for start in range(0, total, most):
            count = min(most, total - start)
            loaded, wrapped, picked = (
                emit.local(at * chip.bank_bytes, _INDEX, (1, chip.lanes, count, 1)) for at in (0, 4, 8)
            )
            indices = emit.source(1, (1, 1, count, 1), (0, 0, 1, 1), start)
            emit.load(loaded, indices, Opcode.BROADCAST)
            emit.sync()
            emit.tiu(Opcode.ADD, wrapped, loaded, constant(rows, _INDEX))
            emit.tiu(Opcode.SELECT_LT, picked, loaded, constant(0, _INDEX), wrapped, loaded)
            emit.sync()
            emit.gdma(
                Opcode.GATHER,
                Direction.DDR_TO_DDR,
                emit.target(0, (1, 1, count, width), (0, 0, width, 1), start * width),
                emit.source(0, (1, 1, rows, width), (0, 0, width, 1)),
                picked.view((1, 1, count, 1)),
            )
            emit.sync()
