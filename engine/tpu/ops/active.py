"""tpu.Active: activation functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp, require
from engine.shapes import verify_elementwise
from engine.snapshot import OpRecord
from engine.top.ops.silu import silu
from engine.tpu.numerics import round_to

MODES = ("SILU",)


class Active(TpuOp):
    """output = activation(input) by `mode`. Same shape."""

    operands = ("input",)
    attributes = {"mode": str}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_elementwise(op)
        require(op.attributes["mode"] in MODES, f"mode {op.attributes['mode']!r} is unknown; known: {', '.join(MODES)}")

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (round_to(silu(x), op.result_types[0].dtype),)
