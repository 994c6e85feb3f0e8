"""Slices cover a result once, and the slices read for them hold all that the op needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from group_records import Records, mlp, norms
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.tpu.ops  # noqa: F401
from engine.op import REGISTRY
from engine.passes.layer_group.chains import GroupOps, Program, group_of
from engine.passes.layer_group.plan import Secs
from engine.passes.layer_group.slicing import Cut, SliceError, infer, limits, number_of
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import chip
from engine.tpu.numerics import round_to

CHIP = chip("bm1684x")


def group(ops: tuple[OpRecord, ...]) -> GroupOps:
    program = Program.of(ops, CHIP)
    return group_of(program, program.chains()[0])


@given(st.integers(1, 5000), st.integers(1, 40))
def test_pieces_cover_a_dimension_once_and_differ_by_one(length: int, count: int) -> None:
    count = min(count, length)
    cut = Cut.even(length, count)
    covered = [i for start, n in zip(cut.starts, cut.lengths, strict=True) for i in range(start, start + n)]
    assert covered == list(range(length))
    assert max(cut.lengths) - min(cut.lengths) <= 1


@given(st.integers(1, 5000), st.integers(1, 40), st.sampled_from([32, 64]))
def test_channels_are_cut_into_whole_sets_of_lanes(length: int, count: int, lanes: int) -> None:
    count = min(count, -(-length // lanes))
    cut = Cut.lanes(length, count, lanes)
    assert sum(cut.lengths) == length
    assert all(n % lanes == 0 for n in cut.lengths[:-1])
    assert cut.lengths[-1] > 0
    assert cut.starts == tuple(sum(cut.lengths[:i]) for i in range(count))


def test_slice_numbers_count_c_fastest() -> None:
    secs = Secs(n=2, c=3, h=2)
    numbers = [number_of(secs, index) for index in range(secs.slices)]
    assert [(at.n, at.h, at.c) for at in numbers[:4]] == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)]
    assert len(set(numbers)) == secs.slices


def test_only_elementwise_ops_are_cut_in_h() -> None:
    module = Records()
    ops = module.done(module.silu(module.cast(module.input(1, 200, 96), "f32")))
    assert limits(group(ops), CHIP) == Secs(1, 4, h=96)
    assert limits(group(norms(200, 96)), CHIP) == Secs(1, 4)


def test_a_matrix_product_of_several_n_is_refused() -> None:
    module = Records()
    ops = module.done(module.norm(module.matmul(module.input(2, 8, 64), 32)))
    with pytest.raises(SliceError, match="takes one n"):
        infer(group(ops), Secs(), CHIP)
    assert infer(group(ops), Secs(n=2), CHIP)


def elementwise() -> tuple[OpRecord, ...]:
    module = Records()
    x, y = module.input(1, 200, 48), module.input(1, 200, 48)
    return module.done(module.mul(module.add(x, y), y))


def ropes() -> tuple[OpRecord, ...]:
    module = Records()
    sin, cos = module.input(1, 200, 1, 16), module.input(1, 200, 1, 16)
    q = module.rope(module.input(1, 200, 6, 16), sin, cos)
    return module.done(q, module.rope(module.input(1, 200, 2, 16), sin, cos))


def head_norms() -> tuple[OpRecord, ...]:
    module = Records()
    q = module.norm(module.input(1, 200, 16, 16))
    return module.done(q, module.norm(module.input(1, 200, 8, 16)))


CASES = {
    "norms": (norms(200, 48), Secs(c=4)),
    "mlp": (mlp(200, 48, 64), Secs(c=3)),
    "elementwise": (elementwise(), Secs(c=2, h=5)),
    "ropes": (ropes(), Secs(c=3)),
    "head norms": (head_norms(), Secs(n=7)),
}


@pytest.mark.parametrize("name", CASES)
def test_slices_read_hold_all_that_an_op_needs(name: str) -> None:
    # GIVEN the whole result of every op of a group
    ops, secs = CASES[name]
    found = group(ops)
    slices = infer(found, secs, CHIP)
    random = np.random.default_rng(3)
    values = {
        v: round_to(random.standard_normal(found.tensors[v].type.shape).astype(np.float32), "bf16")
        for v in found.inputs
    }
    for op in found.ops:
        inputs = [values.get(operand) for operand in op.record.operands]
        (values[op.result],) = REGISTRY[op.record.name].compute(op.record, inputs)
    # WHEN each op works on slices only
    for index in range(secs.slices):
        number = number_of(secs, index)
        for op in found.ops:
            cut = {
                v: values[v].reshape(found.tensors[v].shape)[window(slices[v], number)]
                for v in (*op.operands, op.result)
            }
            inputs = [as_op_reads(op.record, i, cut.get(v)) for i, v in enumerate(op.record.operands)]
            record = replace(op.record, result_types=(TensorType(cut[op.result].shape, "bf16"),))
            if op.record.result_types[0].dtype == "f32":
                record = replace(record, result_types=(TensorType(cut[op.result].shape, "f32"),))
            (made,) = REGISTRY[record.name].compute(record, inputs)
            # THEN it makes the same slice of the result
            np.testing.assert_allclose(
                made.reshape(cut[op.result].shape), cut[op.result], rtol=2e-2, atol=2e-2, err_msg=op.kind
            )


def window(sliced: object, number: Secs) -> tuple[slice, ...]:
    dims = zip(sliced.dims, (number.n, number.c, number.h, number.w), strict=True)  # type: ignore[attr-defined]
    pieces = [cut.piece(at) for cut, at in dims]
    return tuple(slice(start, start + length) for start, length in pieces)


def as_op_reads(record: OpRecord, operand: int, value: np.ndarray | None) -> np.ndarray | None:
    """A slice (n, c, h, w) in the form in which the op's meaning takes it."""
    if value is None:
        return None
    if record.kind == "MatMul":
        return value.reshape(value.shape[1:3]) if operand == 1 else value[..., 0]
    return value[..., 0] if record.kind == "RMSNorm" else value


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 5), st.integers(1, 3))
def test_slices_of_outputs_cover_them_once(tokens: int, c: int, h: int) -> None:
    module = Records()
    ops = module.done(module.cast(module.cast(module.input(1, tokens, 7), "f32"), "bf16"))
    found = group(ops)
    finest = limits(found, CHIP)
    secs = Secs(c=min(c, finest.c), h=min(h, finest.h))
    sliced = infer(found, secs, CHIP)[found.outputs[0]]
    covered = np.zeros((1, tokens, 7, 1), int)
    for index in range(secs.slices):
        covered[window(sliced, number_of(secs, index))] += 1
    assert (covered == 1).all()
