"""top.Reshape and top.Concat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_concat, verify_reshape
from engine.snapshot import OpRecord


class Reshape(TopOp):
    """The same numbers in another shape."""

    operands = ("input",)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_reshape(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (x.reshape(op.result_types[0].shape),)


class Concat(TopOp):
    """The two operands one behind the other along `axis`."""

    operands = ("first", "second")
    attributes = {"axis": int}
    optional_attributes = {"only_merge": bool}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_concat(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        return (np.concatenate([x for x in inputs if x is not None], axis=op.attributes["axis"]),)
