"""top.Gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.op import TopOp
from engine.shapes import verify_gather
from engine.snapshot import OpRecord


class Gather(TopOp):
    """Rows of a table. table [rows, ...], indices [a, b] si32 in 0..rows-1 -> [a, b, ...]."""

    operands = ("table", "indices")

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_gather(op)

    @classmethod
    def prepare(cls, op: OpRecord, constants: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Nothing: a memory-mapped table stays on disk."""
        return dict(constants)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        table, indices = inputs
        assert table is not None
        assert indices is not None
        return (table[indices].astype(np.float32),)
