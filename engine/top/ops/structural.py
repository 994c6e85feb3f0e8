"""Ops that carry values into a module and compute nothing: Input, Weight, None."""

from __future__ import annotations

from engine.op import TopOp, require
from engine.snapshot import OpRecord


class Input(TopOp):
    """A module input: the function argument under its name (the op's location). input, output: same shape."""

    operands = ("input",)

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        require(op.operand_types[0].shape == op.result_types[0].shape, "input and output differ in shape")


class Weight(TopOp):
    """A reference to checkpoint tensors; holds no numbers.

    tensors: checkpoint tensor names, `{i}` standing for the layer; names that begin with `@` are computed (RoPE tables,
    the causal mask). transforms: what passes did to the numbers, in order (see `engine/tpu/weights.py`). path: the
    operand that the weight feeds, as `tpu.A16MatMul.scale`.
    """

    attributes = {"tensors": list, "transforms": list}
    optional_attributes = {"path": str}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        require(len(op.attributes["tensors"]) > 0, "tensors is empty")


class None_(TopOp):  # noqa: N801
    """The absent operand; its result has type `none`."""

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        require(op.result_types[0].is_none, "result must have type none")
