"""Runs one kernel on the functional machine and compares it with the op's NumPy meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from engine.op import TpuOp
from engine.sim.machine import Machine
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip, chip
from engine.tpu.emit import Emitter
from engine.tpu.isa import Arena, Local

BM1684X, BM1688 = chip("bm1684x"), chip("bm1688")
NUMPY: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "si32": np.dtype(np.int32),
}
_PAGE = 4096


def record(
    cls: type[TpuOp],
    inputs: Sequence[tuple[tuple[int, ...], str]],
    output: tuple[tuple[int, ...], str],
    attributes: Mapping[str, Any] | None = None,
    base: int = 0,
) -> OpRecord:
    """An op with its tensors one behind the other in DDR from `base` on, each on a page of its own."""
    types, at = [], base
    for shape, dtype in (*inputs, output):
        types.append(TensorType(shape, dtype, at))
        at += -(-types[-1].nbytes // _PAGE) * _PAGE
    names = tuple(f"%{i}" for i in range(len(inputs)))
    return OpRecord(
        f"tpu.{cls.__name__}", names, tuple(types[:-1]), ("%y",), (types[-1],), dict(attributes or {}), ("op",)
    )


def emitter(op: OpRecord, on: Chip) -> Emitter:
    """An emitter that has begun `op`; one arena holds everything."""
    types = (*op.operand_types, *op.result_types)
    size = max((t.address or 0) + t.nbytes for t in types) - (types[0].address or 0)
    emit = Emitter(on, {Arena.IO: (types[0].address or 0, size)})
    emit.begin(0, op)
    return emit


def program(cls: type[TpuOp], op: OpRecord, on: Chip = BM1684X) -> np.ndarray:
    """The kernel's instructions."""
    emit = emitter(op, on)
    cls.kernel(op, emit)
    return emit.program()


@dataclass(frozen=True)
class Outcome:
    """What the machine left in DDR and what the op means (float32 or integers), and the machine's findings."""

    found: np.ndarray
    expected: np.ndarray
    violations: Sequence[Any]
    dtype: str

    def check(self) -> None:
        """f32 within 1e-6 of the number, 16-bit types within one unit in the last place, integers equal."""
        assert not self.violations, self.violations[:3]
        check_close(self.found, self.expected, self.dtype)


def check_close(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """The tolerances of Outcome.check."""
    if dtype == "si32":
        np.testing.assert_array_equal(found, expected)
    elif dtype == "f32":
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)
    else:
        assert ulps(found, expected, dtype).max(initial=0) <= 1


def ulps(found: np.ndarray, expected: np.ndarray, dtype: str) -> np.ndarray:
    """Distance in units in the last place of a 16-bit float type."""

    def order(values: np.ndarray) -> np.ndarray:
        bits = values.astype(NUMPY[dtype]).view(np.int16).astype(np.int64)
        return np.asarray(np.where(bits < 0, -0x8000 - bits, bits))

    return np.asarray(np.abs(order(found) - order(expected)))


def wide(values: np.ndarray) -> np.ndarray:
    """Floats as float32, as the ops' meanings take them."""
    return values.astype(np.float32) if values.dtype.kind not in "iu" else values


def run(
    cls: type[TpuOp], op: OpRecord, inputs: Sequence[np.ndarray], on: Chip = BM1684X
) -> Outcome:
    """Run the kernel on the inputs (rounded to the operands' types)."""
    cls.verify(op)
    emit = emitter(op, on)
    base, size = emit.arenas[Arena.IO]
    memory = np.full(size, 0xFF, np.uint8)
    machine = Machine(on, {Arena.IO: memory}, checks=True)
    rounded = []
    for type_, values in zip(op.operand_types, inputs, strict=True):
        typed = np.ascontiguousarray(values.reshape(type_.shape).astype(NUMPY[type_.dtype]))
        assert type_.address is not None
        start = type_.address - base
        memory[start : start + type_.nbytes] = typed.reshape(-1).view(np.uint8)
        machine.mark_written(Arena.IO, start, start + type_.nbytes)
        rounded.append(wide(typed))
    cls.kernel(op, emit)
    machine.run(emit.program())
    target = op.result_types[0]
    assert target.address is not None
    start = target.address - base
    found = memory[start : start + target.nbytes].view(NUMPY[target.dtype]).reshape(target.shape)
    return Outcome(wide(found), cls.compute(op, rounded)[0], machine.violations, target.dtype)


def run_local(
    cls: Any,
    op: OpRecord,
    sources: Sequence[tuple[tuple[int, int, int, int], str, np.ndarray]],
    result: tuple[tuple[int, int, int, int], str],
    on: Chip = BM1684X,
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray, Sequence[Any]]:
    """Run `local` on tensors put into local memory one behind the other.

    Returns the result, the rounded sources, the program and the machine's findings. The scratch is filled with NaN and
    followed by a guard that must stay as it is.
    """
    emit = emitter(op, on)
    machine = Machine(on, {Arena.IO: np.zeros(1, np.uint8)}, checks=True)
    at, locals_, rounded = 0, [], []
    for shape, dtype, values in sources:
        locals_.append(emit.local(at, dtype, shape))
        at += emit.local_bytes(dtype, shape)
        machine.write(locals_[-1], values.reshape(shape))
        rounded.append(wide(machine.read(locals_[-1])))
    target: Local = emit.local(at, result[1], result[0])
    buffer = at + emit.local_bytes(result[1], result[0])
    end = buffer + cls.local_buffer(on, locals_, [target])
    machine.lmem[:, end:] = 0xA5
    cls.local(op, emit, locals_, [target], buffer)
    program = emit.program()
    machine.run(program)
    assert (machine.lmem[:, end:] == 0xA5).all(), "wrote behind its scratch"
    return wide(machine.read(target)), rounded, program, machine.violations
