"""tpu.MatMul: a matrix product with weights in the activations' type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.op import TpuOp
from engine.snapshot import OpRecord
from engine.top.ops import matmul as top
from engine.tpu.cores import CoreSplit, Range, even_split
from engine.tpu.matmul_kernel import emit_local_matmul, emit_matmul, require_local
from engine.tpu.numerics import round_to

if TYPE_CHECKING:
    from engine.tpu.chip import Chip
    from engine.tpu.emit import Emitter
    from engine.tpu.isa import Local


class MatMul(TpuOp, top.MatMul):
    """output = input x right (+ bias), accumulated in f32 and rounded once.

    input [..., M, K]; right [K, N], or [N, K] with right_transpose; bias of N elements, a weight or, where M = 1, an
    activation (a residual); f32, f16 or bf16.
    """

    cut_operands = (0,)

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        (exact,) = super().compute(op, inputs)
        return (round_to(exact, op.result_types[0].dtype),)

    @classmethod
    def prepare(cls, op: OpRecord, constants: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """A weight on either side becomes [K, N], in which rows of activations meet it fastest."""
        prepared = super().prepare(op, constants)
        if 1 in prepared and op.attributes["right_transpose"]:
            prepared[1] = transposed(prepared[1])
        if _weight_is_left(op, prepared):
            prepared[0] = transposed(prepared[0])
        return prepared

    @classmethod
    def bind(cls, op: OpRecord, prepared: Mapping[int, np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
        if _weight_is_left(op, prepared):
            # (W h^T)^T = h W^T: the one row of activations on the right meets the weight's rows
            linear = bind_linear(op, prepared[0], None, round_before_bias=False)
            return lambda left, right, *_: linear(right)
        if 1 in prepared and 0 not in prepared:
            return bind_linear(op, prepared[1], prepared.get(2), round_before_bias=False)
        return super().bind(op, prepared)

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        emit_matmul(op, emit)

    @classmethod
    def core_split(cls, op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
        """Columns, as A16MatMul; of logits, whose one column comes from a table, the table's rows."""
        if op.attributes["right_transpose"]:
            return even_split(op.result_types[0].shape[0], 0, cores, chip.lanes)
        return column_split(op, chip, cores)

    @classmethod
    def kernel_parts(cls, op: OpRecord, emit: Emitter, split: CoreSplit) -> None:
        if op.attributes["right_transpose"]:
            super().kernel_parts(op, emit, split)
            return
        for part in column_parts(op, split):
            emit.sync()
            emit_matmul(op, emit, part)

    @classmethod
    def local_buffer(cls, chip: Chip, sources: Sequence[Local], results: Sequence[Local]) -> int:
        """No scratch. Raises ValueError for f32, which has no kernel inside a group."""
        require_local(sources[0])
        return 0

    @classmethod
    def local(
        cls, op: OpRecord, emit: Emitter, sources: Sequence[Local], results: Sequence[Local], buffer: int
    ) -> None:
        """The product of (sliced) operands in local memory (R10); see `emit_local_matmul` for their layout."""
        emit_local_matmul(emit, sources, results[0])


def column_split(op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
    """A product's columns in whole rows of lanes."""
    shape = op.result_types[0].shape
    return even_split(shape[-1], len(shape) - 1, cores, chip.lanes)


def column_parts(op: OpRecord, split: CoreSplit) -> tuple[Range, ...]:
    """The columns of a split. Raises ValueError when it is one of another dimension."""
    last = len(op.result_types[0].shape) - 1
    if split.dim != last:
        raise ValueError(f"{op.name} at {op.location} is cut along {split.dim}, not along its columns {last}")
    return split.parts


def _weight_is_left(op: OpRecord, constants: Mapping[int, np.ndarray]) -> bool:
    """As in lm_head: weight [V, H] times one row [1, H] of activations, transposed, without bias."""
    one_row = op.attributes["right_transpose"] and op.operand_types[1].shape[0] == 1
    return constants.keys() == {0} and one_row and len(op.operand_types[0].shape) == 2


def transposed(matrix: np.ndarray) -> np.ndarray:
    """A contiguous transpose, copied in strips that stay in the cache."""
    rows, columns = matrix.shape
    result = np.empty((columns, rows), matrix.dtype)
    for start in range(0, rows, _STRIP):
        result[:, start : start + _STRIP] = matrix[start : start + _STRIP].T
    return result


_STRIP = 64


def bind_linear(
    op: OpRecord, weight: np.ndarray, bias: np.ndarray | None, *, round_before_bias: bool
) -> Callable[..., tuple[np.ndarray, ...]]:
    """y = x weight (+ bias) for a weight [K, N] float32; x in any shape whose elements are rows of K.

    bias: the one that is a weight; one that is an activation comes as the op's last operand.
    """
    dtype, shape = op.result_types[0].dtype, op.result_types[0].shape
    columns = weight.shape[0]

    def run(x: np.ndarray, *others: np.ndarray | None) -> tuple[np.ndarray, ...]:
        product = x.reshape(-1, columns) @ weight
        added = others[-1] if bias is None and others else bias
        if added is None:
            return (round_to(product, dtype).reshape(shape),)
        if round_before_bias:
            product = round_to(product, dtype)
        return (round_to(product + added.reshape(-1), dtype).reshape(shape),)

    return run
