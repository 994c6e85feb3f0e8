"""tpu.Group with tpu.Load, tpu.Store and tpu.Yield: ops that keep their tensors in local memory between them.

    %3:2 = "tpu.Group"(%0, %1) ({
      %4 = "tpu.Load"(%0) {ginfo = {...}, held = false, lmem_type = 1 : i64}
      %5 = "tpu.Load"(%1) ...
      %6 = "tpu.Add"(%4, %5) {ginfo = {...}}
      %7 = "tpu.Store"(%6) {ginfo = {...}}
      "tpu.Yield"(%7, ...)
    }) {csecs = 2 : i64, flow = [-1, 1, -2, 2, 0, -3, 3], ...}

The region reads values of the module by their names; operands list the activations among them, weights are not listed.
`ginfo` is described in engine/tpu/ginfo.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TpuOp, require, same_shape
from engine.snapshot import OpRecord

SECS = ("nsecs", "csecs", "dsecs", "hsecs", "wsecs")
"""Attributes with the number of slices of each dimension."""

WEIGHT, ACTIVATION = 0, 1
"""Values of `lmem_type`: what a Load brings."""


class Group(TpuOp):
    """Runs the ops of its region nsecs * csecs * dsecs * hsecs * wsecs times, once for every slice, pipelined.

    flow: time steps, each a negative number (-1, -2, ...) and the ids of the ops that run in it. swpipl_stage_num:
    stages of the pipeline; an op of stage s works on slice p - s at pipeline step p. group_type: how tensors are read
    as [n, c, d, h, w]. bank_conflicts: ids of ops whose results or scratch share a bank with memory that the other
    engine uses in the same time step, because there was no room to keep them apart. row_idx: first rows of the slices
    of rows that go through a group of the type that streams weights, one after the other.
    """

    operands = ("inputs*",)
    results = ("outputs*",)
    attributes = {**dict.fromkeys(SECS, int), "flow": list, "swpipl_stage_num": int, "group_type": int}
    optional_attributes = {"bank_conflicts": list, "row_idx": list}
    regions = 1

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        for name in (*SECS, "swpipl_stage_num"):
            require(op.attributes[name] > 0, f"{name} is {op.attributes[name]}, expected 1 or more")
        flow = op.attributes["flow"]
        require(all(isinstance(entry, int) for entry in flow), f"flow {flow} holds something else than ids")
        markers, ids = [x for x in flow if x < 0], [x for x in flow if x >= 0]
        require(
            bool(flow) and flow[0] == -1 and markers == [-1 - i for i in range(len(markers))],
            f"flow {flow} is not made of time steps -1, -2, ... with the ids of their ops behind them",
        )
        require(len(ids) == len(set(ids)), f"flow {flow} names an op twice")


class _Move(TpuOp):
    """The same tensor in another memory."""

    abstract = True
    operands = ("input",)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        require("ginfo" in op.attributes, "attribute ginfo is missing")
        same_shape("the result", op.result_types[0], op.operand_types[0].shape)
        found, expected = op.result_types[0].dtype, op.operand_types[0].dtype
        require(found == expected, f"the result is {found}, the operand {expected}")

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        assert x is not None
        return (x,)


class Load(_Move):
    """DDR to local memory, a slice at a time. held: once, for all slices. lmem_type: 0 weight, 1 activation."""

    attributes = {"held": bool, "lmem_type": int}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        super().verify(op)
        kind = op.attributes["lmem_type"]
        require(kind in (WEIGHT, ACTIVATION), f"lmem_type is {kind}, expected 0 (weight) or 1 (activation)")


class Store(_Move):
    """Local memory to DDR, a slice at a time; the result has the DDR address."""


class Yield(TpuOp):
    """Ends a group's region: the stored values in the order of the group's results."""

    operands = ("values*",)
    results = ()
    terminator = True
