"""tpu.Gather."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_gather
from engine.snapshot import OpRecord


class Gather(TpuOp):
    """Rows of a table. table [rows, ...], indices [a, b] si32 in 0..rows-1 -> [a, b, ...]."""

    operands = ("table", "indices")

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_gather(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        table, indices = inputs
        assert table is not None
        assert indices is not None
        # a memory-mapped table stays on disk: only the rows are converted
        return (table[indices].astype(np.float32),)
