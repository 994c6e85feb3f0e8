"""Runs one kernel on the functional machine and compares it with the op's NumPy meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from engine.op import TpuOp
from engine.passes.emission import emit_op
from engine.sim.machine import Machine
from engine.sim.timing import time_module
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip, chip
from engine.tpu.cores import CoreUse
from engine.tpu.cost import cycles
from engine.tpu.emit import Emitter
from engine.tpu.isa import Arena, Opcode, Shape4

BM1684X, BM1688 = chip("bm1684x"), chip("bm1688")
NUMPY: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "si32": np.dtype(np.int32),
    "ui8": np.dtype(np.uint8),
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
        f"tpu.{cls.__name__}",
        names,
        tuple(types[:-1]),
        ("%y",),
        (types[-1],),
        dict(attributes or {}),
        ("op",),
    )


def emitter(op: OpRecord, on: Chip, cores: int = 1) -> Emitter:
    """An emitter that has begun `op`; one arena holds everything."""
    types = (*op.operand_types, *op.result_types)
    size = max((t.address or 0) + t.nbytes for t in types) - (types[0].address or 0)
    emit = Emitter(on, {Arena.IO: (types[0].address or 0, size)}, cores)
    emit.begin(0, op)
    return emit


def program(cls: type[TpuOp], op: OpRecord, on: Chip = BM1684X, cores: int = 1) -> np.ndarray:
    """The kernel's instructions, shared between cores as the op wants it."""
    emit = emitter(op, on, cores)
    if cores == 1:
        cls.kernel(op, emit)
    else:
        emit_op([shared(cls, op, on, cores)], 0, emit)
    return emit.program()


def shared(cls: type[TpuOp], op: OpRecord, on: Chip, cores: int) -> OpRecord:
    """The op as core-parallel leaves it."""
    split = cls.core_split(op, on, cores)
    use = CoreUse((0,)) if split is None else CoreUse(tuple(range(min(cores, len(split.parts)))), split)
    return replace(op, attributes={**op.attributes, **use.attributes()})


@dataclass(frozen=True)
class Outcome:
    """What the kernel left, what the op means (float32 or integers), and the machine's findings."""

    found: np.ndarray
    expected: np.ndarray
    violations: Sequence[Any]
    dtype: str

    def check(self, units: int = 0) -> None:
        """No findings and equal numbers; with `units`, 16-bit types may be that far off in the last place, f32 1e-6."""
        assert not self.violations, self.violations[:3]
        if self.dtype == "f32" and units:
            np.testing.assert_allclose(self.found, self.expected, rtol=1e-6, atol=1e-30)
        elif units:
            assert ulps(self.found, self.expected, self.dtype).max(initial=0) <= units
        else:
            np.testing.assert_array_equal(self.found, self.expected)


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
    cls: type[TpuOp], op: OpRecord, inputs: Sequence[np.ndarray | None], on: Chip = BM1684X, cores: int = 1
) -> Outcome:
    """Run the kernel on the inputs (rounded to the operands' types; None for an absent operand)."""
    cls.verify(op)
    emit = emitter(op, on)
    base, size = emit.arenas[Arena.IO]
    memory = np.full(size, 0xFF, np.uint8)
    machine = Machine(on, {Arena.IO: memory}, checks=True)
    rounded: list[np.ndarray | None] = []
    for type_, values in zip(op.operand_types, inputs, strict=True):
        if values is None:
            rounded.append(None)
            continue
        typed = np.ascontiguousarray(values.reshape(type_.shape).astype(NUMPY[type_.dtype]))
        assert type_.address is not None
        start = type_.address - base
        memory[start : start + type_.nbytes] = typed.reshape(-1).view(np.uint8)
        machine.mark_written(Arena.IO, start, start + type_.nbytes)
        rounded.append(wide(typed))
    machine.run(program(cls, op, on, cores))
    target = op.result_types[0]
    assert target.address is not None
    start = target.address - base
    found = memory[start : start + target.nbytes].view(NUMPY[target.dtype]).reshape(target.shape)
    return Outcome(wide(found), cls.compute(op, rounded)[0], machine.violations, target.dtype)


def run_local(
    cls: Any,
    op: OpRecord,
    sources: Sequence[tuple[Shape4, str, np.ndarray]],
    result: tuple[Shape4, str],
    on: Chip = BM1684X,
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Run `local` on tensors in local memory and return its result, the rounded sources and the program.

    The scratch is the end of what the op may touch: bytes behind it must stay as they are.
    """
    emit = emitter(op, on)
    machine = Machine(on, {Arena.IO: np.zeros(1, np.uint8)}, checks=True)
    at, tensors, rounded = 0, [], []
    for shape, dtype, values in sources:
        tensors.append(emit.local(at, dtype, shape))
        at += emit.local_bytes(dtype, shape)
        machine.write(tensors[-1], values.reshape(shape))
        rounded.append(wide(machine.read(tensors[-1])))
    target = emit.local(at, result[1], result[0])
    buffer = at + emit.local_bytes(result[1], result[0])
    end = buffer + cls.local_buffer(on, tensors, [target])
    machine.lmem[:, end:] = 0xA5
    cls.local(op, emit, tensors, [target], buffer)
    machine.run(emit.program())
    assert not machine.violations, machine.violations[:3]
    assert (machine.lmem[:, end:] == 0xA5).all(), "wrote behind its scratch"
    return wide(machine.read(target)), rounded, emit.program()


def commands(program: np.ndarray, on: Chip = BM1684X) -> list[tuple[str, int]]:
    """Name and cycles of every instruction."""
    names = [Opcode(opcode).name for opcode in program["opcode"].tolist()]
    return list(zip(names, cycles(program, on).tolist(), strict=True))


def cost(cls: type[TpuOp], op: OpRecord, on: Chip = BM1684X) -> tuple[int, int, int, int, int]:
    """Cycles of the op alone, bytes loaded, stored and moved from DDR to DDR, and instructions."""
    emitted = program(cls, op, on)
    timing = time_module(emitted, on)
    moved = (timing.load_bytes, timing.store_bytes, timing.ddr_to_ddr_bytes)
    return (timing.total_cycles, *moved, len(emitted))


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Random numbers, the same for every run of a shape."""
    rng = np.random.default_rng(shape)
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def whole(*shape: int) -> np.ndarray:
    """Whole numbers that every float type holds exactly, as do their sums."""
    return np.random.default_rng(shape).integers(-64, 64, shape).astype(np.float32)
