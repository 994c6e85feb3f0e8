"""tpu.Reshape and tpu.Concat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_concat, verify_reshape
from engine.snapshot import OpRecord


class Reshape(TpuOp):
    """The same numbers in another shape, at the same address: nothing is moved."""

    operands = ("input",)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_reshape(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (x.reshape(op.result_types[0].shape),)


class Concat(TpuOp):
    """The two operands one behind the other along `axis`.

    only_merge: the operands already lie one behind the other in DDR and the output has the first one's address, so that
    nothing is moved (how a KV cache is appended to in place).
    """

    operands = ("first", "second")
    attributes = {"axis": int}
    optional_attributes = {"only_merge": bool}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_concat(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        return (np.concatenate([x for x in inputs if x is not None], axis=op.attributes["axis"]),)
