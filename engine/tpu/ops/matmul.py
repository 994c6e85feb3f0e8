"""tpu.MatMul: a matrix product with weights in the activations' type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from engine.op import TpuOp
from engine.shapes import verify_matmul
from engine.snapshot import OpRecord
from engine.tpu.numerics import round_to


class MatMul(TpuOp):
    """output = input x right (+ bias), accumulated in f32 and rounded once.

    input [..., M, K]; right [K, N], or [N, K] with right_transpose; bias [N]; f32, f16 or bf16.
    """

    operands = ("input", "right", "bias?")
    attributes = {"right_transpose": bool}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        verify_matmul(op)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        left, right, bias = inputs
        assert left is not None
        assert right is not None
        product = left @ (right.T if op.attributes["right_transpose"] else right)
        if bias is not None:
            product = product + bias.reshape(-1)
        return (round_to(product, op.result_types[0].dtype),)

    @classmethod
    def bind(cls, op: OpRecord, constants: Mapping[int, np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
        if 0 in constants or 1 not in constants:
            return super().bind(op, constants)
        right = constants[1]
        rows = right if op.attributes["right_transpose"] else np.ascontiguousarray(right.T)
        return bind_linear(op, rows, constants.get(2), round_before_bias=False)


def bind_linear(
    op: OpRecord, rows: np.ndarray, bias: np.ndarray | None, *, round_before_bias: bool
) -> Callable[..., tuple[np.ndarray, ...]]:
    """y = x rows^T (+ bias) for weights `rows` [N, K] float32: a matrix-vector product when x has one row."""
    dtype = op.result_types[0].dtype
    shape = op.result_types[0].shape
    flat_bias = None if bias is None else bias.reshape(-1)
    single = op.result_types[0].elements == rows.shape[0]

    def run(x: np.ndarray, *_: np.ndarray | None) -> tuple[np.ndarray, ...]:
        product = rows @ x.reshape(-1) if single else x.reshape(-1, rows.shape[1]) @ rows.T
        if flat_bias is None:
            return (round_to(product, dtype).reshape(shape),)
        if round_before_bias:
            product = round_to(product, dtype)
        return (round_to(product + flat_bias, dtype).reshape(shape),)

    return run
