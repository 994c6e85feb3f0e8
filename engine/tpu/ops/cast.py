"""tpu.Cast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_elementwise
from engine.snapshot import OpRecord
from engine.tpu.numerics import round_to


class Cast(TpuOp):
    """The same numbers in another float type, rounded half to even. Same shape."""

    operands = ("input",)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (round_to(x, op.result_types[0].dtype),)
