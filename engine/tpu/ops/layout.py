"""tpu.Reshape and tpu.Concat."""

from __future__ import annotations

from math import prod

from engine.op import TpuOp
from engine.snapshot import OpRecord
from engine.top.ops import layout as top
from engine.tpu.emit import Emitter
from engine.tpu.isa import Direction, Opcode


class Reshape(TpuOp, top.Reshape):
    """The same numbers in another shape, at the same address: nothing is moved."""


class Concat(TpuOp, top.Concat):
    """Operands one behind the other along `axis`.

    only_merge: the operands already lie one behind the other in DDR and the output has the first one's address,
    so that nothing is moved (how a KV cache is appended to in place).
    """

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """One copy from DDR to DDR for each operand, a row for each index before `axis` (R38)."""
        if op.attributes.get("only_merge", False):
            return
        shape, axis = op.result_types[0].shape, op.attributes["axis"]
        outer, pitch, at = prod(shape[:axis]), prod(shape[axis:]), 0
        for index, type_ in enumerate(op.operand_types):
            row = prod(type_.shape[axis:])
            view = (1, outer, 1, row)
            emit.gdma(
                Opcode.TENSOR,
                Direction.DDR_TO_DDR,
                emit.target(0, view, (outer * pitch, pitch, row, 1), at),
                emit.source(index, view, (outer * row, row, row, 1)),
            )
            at += row
