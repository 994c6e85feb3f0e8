"""tpu.A16MatMul: a matrix product with 4- or 8-bit weights and 16-bit activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.op import TpuOp, require, same_shape
from engine.snapshot import OpRecord
from engine.tpu.a16_kernel import emit_a16_matmul
from engine.tpu.cores import CoreSplit
from engine.tpu.numerics import round_to
from engine.tpu.ops.matmul import bind_linear, column_parts, column_split, transposed
from engine.tpu.quantize import dequantize, lane_restore
from engine.tpu.weights import NUMPY_DTYPES

if TYPE_CHECKING:
    from engine.tpu.chip import Chip
    from engine.tpu.emit import Emitter


class A16MatMul(TpuOp):
    """output = input x dequantised(weight)^T (+ bias).

    input [..., M, K] f16/bf16; weight [N, K / 2] ui8 (4 bits, low nibble even k) or [N, K] ui8; scale in the half type
    and zero point ui8, both [N, G] or, after weight-reorder, [lanes, ceil(N / lanes), G] with G = ceil(K / group);
    bias [N]. The dequantised weight is (q - zero point) * scale rounded to the half type; products accumulate in f32.
    """

    operands = ("input", "weight", "scale", "zero_point", "bias?")
    attributes = {"q_group_size": int, "weight_bits": int, "w_transpose": bool}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        x, weight, scale, zero_point, bias = op.operand_types
        bits, group = op.attributes["weight_bits"], op.attributes["q_group_size"]
        require(bits in (4, 8), f"weight_bits is {bits}, expected 4 or 8")
        require(op.attributes["w_transpose"], "w_transpose must be true: weights are stored [N, K]")
        require(
            len(weight.shape) == 2 and weight.dtype == "ui8", f"weight is {weight}, expected [N, K bytes] ui8"
        )
        n, k = weight.shape[0], weight.shape[1] * 8 // bits
        require(x.shape[-1] == k, f"input has {x.shape[-1]} columns, the weight K = {k}")
        groups = -(-k // group)
        for name, type_ in (("scale", scale), ("zero_point", zero_point)):
            plain = type_.shape == (n, groups)
            reordered = (
                len(type_.shape) == 3 and type_.shape[2] == groups and type_.shape[0] * type_.shape[1] >= n
            )
            require(
                plain or reordered,
                f"{name} has shape {list(type_.shape)}, expected [{n}, {groups}] or by lane",
            )
        require(zero_point.dtype == "ui8", f"zero_point is {zero_point.dtype}, expected ui8")
        require(bias.is_none or bias.elements == n, f"bias has {bias.elements} elements, expected N = {n}")
        same_shape("output", op.result_types[0], (*x.shape[:-1], n))

    @classmethod
    def weights(
        cls, op: OpRecord, weight: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
    ) -> np.ndarray:
        """The dequantised weight [N, K] float32."""
        n = weight.shape[0]
        if scale.ndim == 3:
            scale, zero_point = lane_restore(scale, n), lane_restore(zero_point, n)
        a = op.attributes
        half = NUMPY_DTYPES[op.operand_types[0].dtype]
        rows = dequantize(weight, scale, zero_point, a["weight_bits"], a["q_group_size"], half)
        return rows.astype(np.float32)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        x, weight, scale, zero_point, bias = inputs
        assert x is not None
        assert weight is not None
        assert scale is not None
        assert zero_point is not None
        dtype = op.result_types[0].dtype
        product = round_to(x @ cls.weights(op, weight, scale, zero_point).T, dtype)
        return (product if bias is None else round_to(product + bias.reshape(-1), dtype),)

    @classmethod
    def prepare(cls, op: OpRecord, constants: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The weight dequantised, [K, N], without scale and zero point."""
        prepared = super().prepare(op, {number: constants[number] for number in constants if number == 4})
        prepared[1] = transposed(cls.weights(op, constants[1], constants[2], constants[3]))
        return prepared

    @classmethod
    def bind(cls, op: OpRecord, prepared: Mapping[int, np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
        return bind_linear(op, prepared[1], prepared.get(4), round_before_bias=True)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        emit_a16_matmul(op, emit)

    @classmethod
    def core_split(cls, op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
        """Columns, so that every core reads weights of its own; whole rows of lanes (R52)."""
        return column_split(op, chip, cores)

    @classmethod
    def kernel_parts(cls, op: OpRecord, emit: Emitter, split: CoreSplit) -> None:
        for part in column_parts(op, split):
            emit.sync()
            emit_a16_matmul(op, emit, part)
