"""Which bytes operands cover, against the bytes that the machine writes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sim.machine import Machine
from engine.tpu.chip import chip
from engine.tpu.extents import byte_runs, extents, tensors_of
from engine.tpu.isa import OPERAND, Arena, Constant, Global, Local, Opcode, Stream

CHIP = chip("bm1688")
DTYPES = {"ui8": np.uint8, "bf16": np.uint16, "f32": np.uint32}


@st.composite
def tensors(draw: st.DrawFn) -> Local | Global:
    """Dense, padded, transposed or repeated along dimensions."""
    shape = tuple(draw(st.integers(1, 70 if dim == 1 else 4)) for dim in range(4))
    stride = tuple(draw(st.integers(0, 40)) for _ in range(4))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    address = 4 * draw(st.integers(0, 50))
    if draw(st.booleans()):
        return Local(address, dtype, shape, stride, draw(st.integers(0, 31)))  # type: ignore[arg-type]
    return Global(Arena.NEURON, address, dtype, shape, stride)  # type: ignore[arg-type]


def covered(tensor: Local | Global) -> np.ndarray:
    """The bytes that the machine writes, of the arena or of any lane."""
    machine = Machine(CHIP, {Arena.NEURON: np.full(1 << 16, 0xFF, np.uint8)})
    kind = tensor.dtype.replace("bf16", "ui16").replace("f32", "ui32")
    bits = (
        Local(tensor.address, kind, tensor.shape, tensor.stride, tensor.lane)
        if isinstance(tensor, Local)
        else Global(tensor.arena, tensor.offset, kind, tensor.shape, tensor.stride)
    )
    machine.write(bits, np.zeros(tensor.shape))
    local = isinstance(tensor, Local)
    memory = (machine.lmem == 0).any(axis=0) if local else machine.memory[Arena.NEURON] == 0
    return np.flatnonzero(memory)


@settings(max_examples=60, deadline=None)
@given(tensors())
def test_runs_are_the_bytes_that_are_written(tensor: Local | Global) -> None:
    # GIVEN the bytes that a tensor of any strides covers
    expected = covered(tensor)
    operand = np.frombuffer(tensor.packed, OPERAND)
    # WHEN asked without running anything
    starts, length = byte_runs(operand[0], CHIP.lanes)
    start, end = extents(operand, CHIP.lanes)
    # THEN the same bytes are named, and their ends
    found = np.unique((starts[:, None] + np.arange(length)).reshape(-1))
    np.testing.assert_array_equal(found, expected)
    assert (start[0], end[0]) == (expected[0], expected[-1] + 1)


def test_result_comes_before_operands() -> None:
    stream = Stream()
    x = Local(64, "f32", (1, 1, 1, 4), (4, 4, 4, 1))
    stream.append(Opcode.ADD, x.view(x.shape, offset=64), (x, Constant(2.0)), op=0, wait=0)
    stream.append(Opcode.COPY, x, (Constant(0.0),), op=0, wait=0)
    # GIVEN a program of which a part is taken THEN its tensors are those of the part
    found = tensors_of(stream.program())
    assert found["address"].tolist() == [[128, 64, 0, 0, 0], [64, 0, 0, 0, 0]]
    assert tensors_of(stream.program()[1:])["address"].tolist() == [[64, 0, 0, 0, 0]]
