"""The functional machine: runs instructions one at a time on the bytes of local memory and of the DDR arenas.

Layouts are what addresses and strides say (see `engine.tpu.isa`). Floats compute in float32 and are rounded
once to the result's dtype; integers are exact. Instructions run in issue order, op by op, whatever their core: each
core has its own local memory, all share DDR. `checks=True` finds what that order hides: bytes read before they are
written, accesses outside memory, transfers that race with compute, cores that race with each other; with
`memory_rules` also writes over what is still to be read and engines that meet in a bank where they should not.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import factorial, prod
from typing import Any

import numpy as np

from engine.sim.arithmetic import (
    DTYPE_BY_CODE,
    Array,
    bits_dtype,
    convert,
    is_float,
    round_to_integer,
    saturate,
    shift,
    whole_number,
    wide,
)
from engine.sim.memory_rules import MemoryRules
from engine.tpu.bank_conflicts import bank_conflicts
from engine.tpu.chip import Chip
from engine.tpu.core_races import core_races
from engine.tpu.isa import (
    ACCUMULATE,
    HISTORY_TAIL,
    INSTRUCTION,
    NIBBLES,
    OPERAND,
    OPERANDS,
    Arena,
    Engine,
    Global,
    Local,
    Opcode,
    Shape4,
    Space,
    runs_with_history,
)
from engine.tpu.overwrites import overwrites

COEFFICIENT_TABLES = {
    0: tuple(1 / factorial(k) for k in range(10)),
    1: tuple(1 / factorial(k) for k in range(7)),
}
"""The tables of STATIC_BROADCAST, lowest power first: e**x by its Taylor series, for f32 (0) and bf16 (1)."""

_FIELDS = ("engine", "opcode", "rounding", "flags", "core", "id", "wait", "history", "kernel")
_FIRST_OPERAND = INSTRUCTION.itemsize - OPERAND.itemsize * (1 + OPERANDS)
_OPERAND = struct.Struct("<BBBB4i4iqd")
_KEPT_PLACES = 50_000
_UNWRITTEN = 0xFF
_NO_SHIFT = np.int32(0)


class MachineError(Exception):
    """An instruction that cannot be run: wrong shapes, or an access outside memory."""


@dataclass(frozen=True)
class Violation:
    """A finding of the checker.

    instruction: index in the program. kind: "uninitialised", "overwrite", "race", "cores", "bank", "bounds", "lane",
    "shape" or "index".
    """

    instruction: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class _Operand:
    raw: bytes
    space: int
    code: int
    arena: int
    lane: int
    shape: Shape4
    stride: Shape4
    address: int
    value: float

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPE_BY_CODE[self.code]


@dataclass(frozen=True, slots=True)
class _Instruction:
    index: int
    engine: int
    opcode: int
    rounding: int
    flags: int
    core: int
    id: int
    wait: int
    history: int
    kernel: tuple[int, int]
    result: _Operand
    first: _Operand
    second: _Operand
    third: _Operand
    fourth: _Operand

    @property
    def operands(self) -> tuple[_Operand, _Operand, _Operand, _Operand]:
        return self.first, self.second, self.third, self.fourth


class _Finding(Exception):  # noqa: N818 - control flow inside this module, never seen outside
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class _Span:
    """Consecutive channels that one strided view covers: view[n, block, lane, h, w]."""

    first: int
    last: int
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    def view(self, buffer: Array, dtype: np.dtype[Any]) -> Array:
        return np.ndarray(self.shape, dtype, buffer.data, self.offset, self.strides)

    def thin(self, buffer: Array, dtype: np.dtype[Any]) -> Array:
        """The view with every repeated dimension (stride 0) reduced to length 1."""
        shape = tuple(
            1 if stride == 0 else length for length, stride in zip(self.shape, self.strides, strict=True)
        )
        return np.ndarray(shape, dtype, buffer.data, self.offset, self.strides)


@dataclass(frozen=True)
class _Place:
    """An operand found in memory: its spans, and the buffers that hold its bytes and their written marks."""

    operand: _Operand
    spans: tuple[_Span, ...]
    buffer: Array
    written: Array | None
    lanes: tuple[int, int]
    """First lane and the one after the last; (0, 1) in DDR."""
    extent: tuple[int, int]
    """First byte (of a lane or of the arena) and the one after the last."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.operand.dtype

    @cached_property
    def views(self) -> tuple[Array, ...]:
        return tuple(span.view(self.buffer, self.dtype) for span in self.spans)

    @cached_property
    def thin(self) -> tuple[Array, ...]:
        return tuple(span.thin(self.buffer, self.dtype) for span in self.spans)

    def read(self) -> Array:
        """The tensor [n, c, h, w]: a view of DDR, a copy of local memory."""
        shape = self.operand.shape
        if self.operand.space == Space.DDR or len(self.spans) == 1:
            return self.views[0].reshape(shape)
        values: Array = np.empty(shape, self.dtype)
        for span, view in zip(self.spans, self.views, strict=True):
            values[:, span.first : span.last].reshape(span.shape)[...] = view
        return values

    def write(self, values: Array) -> None:
        """Store [n, c, h, w] (same dtype, or same width: then the bits are kept)."""
        if values.dtype != self.dtype:
            values = values.view(self.dtype)
        for span, view in zip(self.spans, self.views, strict=True):
            view[...] = values[:, span.first : span.last].reshape(view.shape)

    def all_written(self) -> bool:
        if self.written is None:
            return True
        bits = bits_dtype(self.dtype)
        ones = int.from_bytes(b"\x01" * bits.itemsize, "little")
        return all(bool((span.thin(self.written, bits) == ones).all()) for span in self.spans)

    def mark_written(self) -> None:
        if self.written is None:
            return
        bits = bits_dtype(self.dtype)
        ones = int.from_bytes(b"\x01" * bits.itemsize, "little")
        for span in self.spans:
            span.view(self.written, bits)[...] = ones

    def painted(self, lanes: tuple[int, int], extent: tuple[int, int], lane_bytes: int) -> Array:
        """Which bytes of a window of local memory the operand covers: bool [lanes, bytes]."""
        low, high = self.extent
        width = high - low
        canvas: Array = np.zeros((self.lanes[1], width), bool)
        for span in self.spans:
            lane, start = divmod(span.offset, lane_bytes)
            shape = (*span.shape, self.dtype.itemsize)
            strides = (*span.strides[:2], width, *span.strides[3:], 1)
            np.ndarray(shape, bool, canvas.data, lane * width + start - low, strides)[...] = True
        return canvas[lanes[0] : lanes[1], extent[0] - low : extent[1] - low]


@dataclass(frozen=True)
class _Access:
    instruction: int
    id: int
    place: _Place
    writes: bool


class Machine:
    """One chip with its memories.

    chip: geometry. memory: the DDR arenas as uint8 arrays [bytes], changed in place; coeff may be read-only.
    checks: record Violations in `violations` instead of raising MachineError. The coeff arena counts as
    written, io and neuron bytes count once stored to or named by `mark_written`. rules: of the program that it is going
    to run, examined with checks when a run begins at its first instruction.
    """

    def __init__(
        self,
        chip: Chip,
        memory: Mapping[Arena, np.ndarray],
        *,
        checks: bool = False,
        rules: MemoryRules | None = None,
    ) -> None:
        self.chip = chip
        self._rules = rules
        self._foreseen: dict[int, list[Violation]] = {}
        self._begun: tuple[np.ndarray, int | None] | None = None
        self.memory = {arena: _flat(array) for arena, array in memory.items()}
        self.checks = checks
        self.violations: list[Violation] = []
        self._bases: Mapping[Arena, int] = {}
        self._history_length: int | None = None
        self._lmem: dict[int, Array] = {}
        self._lmem_written: dict[int, Array] = {}
        self._written: dict[Arena, Array] = {
            arena: np.zeros(array.size, np.uint8)
            for arena, array in self.memory.items()
            if checks and arena != Arena.COEFF
        }
        self._places: dict[tuple[int, bytes], _Place] = {}
        self._operands: dict[bytes, _Operand] = {}
        self._recent: dict[tuple[int, int], deque[_Access]] = {}

    # -- memory --------------------------------------------------------------------------------------------

    @property
    def lmem(self) -> np.ndarray:
        """Local memory of core 0: uint8 [lanes, bytes]; bytes never written are 0xFF (NaN as a float)."""
        return self.local_memory(0)

    def local_memory(self, core: int) -> np.ndarray:
        """Local memory of a core: uint8 [lanes, bytes]."""
        if core not in self._lmem:
            shape = (self.chip.lanes, self.chip.lmem_bytes)
            self._lmem[core] = np.full(shape, _UNWRITTEN, np.uint8)
            if self.checks:
                self._lmem_written[core] = np.zeros(shape, np.uint8)
        return self._lmem[core]

    def mark_written(self, arena: Arena, start: int = 0, stop: int | None = None) -> None:
        """Declare bytes [start, stop) of an arena initialised, such as inputs. No effect without checks."""
        if arena in self._written:
            self._written[arena][start:stop] = 1

    def read(self, tensor: Local | Global, core: int = 0) -> np.ndarray:
        """A copy of a tensor [n, c, h, w] in its own dtype. Raises MachineError outside memory."""
        return self._find(tensor, core).read().copy()

    def write(self, tensor: Local | Global, values: np.ndarray, core: int = 0) -> None:
        """Put values [n, c, h, w] of the tensor's dtype into memory and mark them written."""
        place = self._find(tensor, core)
        place.write(np.asarray(values).astype(place.dtype).reshape(tensor.shape))
        place.mark_written()

    def _find(self, tensor: Local | Global, core: int) -> _Place:
        try:
            return self._place(self._operand(tensor.packed), core)
        except _Finding as finding:
            raise MachineError(str(finding)) from None

    # -- running -------------------------------------------------------------------------------------------

    def run(
        self,
        program: np.ndarray,
        *,
        bases: Mapping[Arena, int] | None = None,
        start: int = 0,
        stop_at: int | None = None,
        history_length: int | None = None,
    ) -> int:
        """Run instructions start .. stop_at-1 of a program (default: all); returns the index of the next one.

        program: INSTRUCTION records. bases: bytes added to the offsets of each arena (a layer's base).
        history_length: rows of history that hold data (default: all); work on later rows is skipped. Raises
        MachineError at an instruction that cannot be run, unless checks are on.
        """
        stop = len(program) if stop_at is None else min(stop_at, len(program))
        self._bases = dict(bases or {})
        if start == 0:
            self._recent.clear()
            self._foreseen.clear()
            self._begun = (program, history_length)
            if self.checks:
                self._check_cores(program, history_length)
                self._foresee(program, history_length)
        self._history_length = history_length
        part = np.ascontiguousarray(program[start:stop])
        runs = runs_with_history(part, history_length).tolist()
        records, columns = part.tobytes(), [part[name].tolist() for name in _FIELDS]
        with np.errstate(all="ignore"):
            for at, fields in enumerate(zip(*columns, strict=True)):
                if runs[at]:
                    record = records[at * INSTRUCTION.itemsize : (at + 1) * INSTRUCTION.itemsize]
                    self._step(_Instruction(start + at, *fields, *self._tensors(record)))
        return max(start, stop)

    def _tensors(self, record: bytes) -> Iterator[_Operand]:
        for at in range(_FIRST_OPERAND, INSTRUCTION.itemsize, OPERAND.itemsize):
            yield self._operand(record[at : at + OPERAND.itemsize])

    def _operand(self, raw: bytes) -> _Operand:
        operand = self._operands.get(raw)
        if operand is None:
            space, code, arena, lane, *dims, address, value = _OPERAND.unpack(raw)
            shape, stride = (dims[0], dims[1], dims[2], dims[3]), (dims[4], dims[5], dims[6], dims[7])
            operand = _Operand(raw, space, code, arena, lane, shape, stride, address, value)
            if len(self._operands) >= _KEPT_PLACES:
                self._operands.clear()
            self._operands[raw] = operand
        return operand

    def _step(self, instruction: _Instruction) -> None:
        try:
            if self.checks:
                self._check(instruction)
            _EXECUTE[Opcode(instruction.opcode)](self, instruction)
            if self.checks:
                self._result(instruction).mark_written()
        except _Finding as finding:
            if not self.checks:
                name = Opcode(instruction.opcode).name
                raise MachineError(f"instruction {instruction.index} ({name}): {finding}") from None
            self.violations.append(Violation(instruction.index, finding.kind, str(finding)))

    # -- finding operands ----------------------------------------------------------------------------------

    def _result(self, instruction: _Instruction) -> _Place:
        return self._place(instruction.result, instruction.core)

    def _source(self, instruction: _Instruction, number: int) -> _Place:
        return self._place(instruction.operands[number], instruction.core)

    def _place(self, operand: _Operand, core: int) -> _Place:
        if operand.space == Space.DDR:
            return self._place_ddr(operand)
        if operand.space != Space.LOCAL:
            raise _Finding("shape", "an operand that must be in memory is a constant or absent")
        place = self._places.get((core, operand.raw))
        if place is None:
            place = self._place_local(operand, core)
            if len(self._places) >= _KEPT_PLACES:
                self._places.clear()
            self._places[core, operand.raw] = place
        return place

    def _place_ddr(self, operand: _Operand) -> _Place:
        arena = Arena(operand.arena)
        if arena not in self.memory:
            raise _Finding("bounds", f"the machine has no {arena.name.lower()} arena")
        buffer, size = self.memory[arena], operand.dtype.itemsize
        start = operand.address + self._bases.get(arena, 0)
        stop = start + _reach(operand.shape, operand.stride) * size
        if start < 0 or stop > buffer.size:
            raise _Finding(
                "bounds",
                f"bytes {start} to {stop} lie outside the {arena.name.lower()} arena of {buffer.size} bytes",
            )
        strides = tuple(stride * size for stride in operand.stride)
        span = _Span(0, operand.shape[1], operand.shape, start, strides)
        return _Place(operand, (span,), buffer, self._written.get(arena), (0, 1), (start, stop))

    def _place_local(self, operand: _Operand, core: int) -> _Place:
        lanes, lane_bytes, size = self.chip.lanes, self.chip.lmem_bytes, operand.dtype.itemsize
        (n, channels, h, w), (sn, sc, sh, sw) = operand.shape, operand.stride
        if operand.lane >= lanes:
            raise _Finding("lane", f"lane {operand.lane} does not exist; the chip has {lanes}")
        blocks = -(-(operand.lane + channels) // lanes)
        start = operand.address
        stop = start + _reach((n, blocks, h, w), operand.stride) * size
        if start < 0 or stop > lane_bytes:
            raise _Finding("bounds", f"bytes {start} to {stop} lie outside the {lane_bytes} bytes of a lane")
        buffer = self.local_memory(core)
        spans = tuple(
            _Span(
                first,
                first + count * width,
                (n, count, width, h, w),
                lane * lane_bytes + start + block * sc * size,
                (sn * size, sc * size, lane_bytes, sh * size, sw * size),
            )
            for first, block, lane, count, width in _channel_spans(operand.lane, channels, lanes)
        )
        used = (0, lanes) if blocks > 1 else (operand.lane, operand.lane + channels)
        return _Place(operand, spans, buffer, self._lmem_written.get(core), used, (start, stop))

    # -- checks --------------------------------------------------------------------------------------------

    def _check(self, instruction: _Instruction) -> None:
        reads = [
            self._place(operand, instruction.core)
            for number, operand in enumerate(instruction.operands)
            if operand.space in (Space.LOCAL, Space.DDR)
            and not (instruction.opcode == Opcode.GATHER and number == 0)
        ]
        result = self._result(instruction)
        if instruction.flags & ACCUMULATE and instruction.opcode in _ACCUMULATING:
            reads.append(result)
        for place in reads:
            if not place.all_written():
                self._report(
                    instruction, "uninitialised", f"reads {_describe(place)}, not all of which was written"
                )
        self._check_races(instruction, reads, result)
        self.violations += self._foreseen.get(instruction.index, ())

    def _check_races(self, instruction: _Instruction, reads: Sequence[_Place], result: _Place) -> None:
        own = self._recent.setdefault((instruction.core, instruction.engine), deque())
        other = self._recent.setdefault((instruction.core, 1 - instruction.engine), deque())
        while other and other[0].id <= instruction.wait:  # ended before this one and all that follow it here
            other.popleft()
        mine = [
            _Access(instruction.index, instruction.id, place, place is result)
            for place in (*reads, result)
            if place.operand.space == Space.LOCAL
        ]
        for theirs in other:
            if any((a.writes or theirs.writes) and self._overlap(a.place, theirs.place) for a in mine):
                self._report(
                    instruction,
                    "race",
                    f"may overlap in time with instruction {theirs.instruction} on the "
                    f"{Engine(1 - instruction.engine).name} queue, which "
                    f"{'writes' if theirs.writes else 'reads'} {_describe(theirs.place)}",
                )
        own.extend(mine)

    def _check_cores(self, program: np.ndarray, history_length: int | None) -> None:
        for race in core_races(program, runs_with_history(program, history_length)):
            self.violations.append(Violation(race.writer, "cores", str(race)))

    def _foresee(self, program: np.ndarray, history_length: int | None) -> None:
        """Find what breaks the rules; addresses and waits tell it, whatever the numbers."""
        rules = self._rules
        if rules is None:
            return
        runs, op = runs_with_history(program, history_length), program["op"]

        def foresee(at: int, kind: str, message: str) -> None:
            found = Violation(at, kind, f"{rules.name(int(op[at]))} {message}")
            self._foreseen.setdefault(at, []).append(found)

        for write in overwrites(program, self.chip, rules.reserved, runs):
            foresee(write.instruction, "overwrite", str(write))
        for at, other, bank in bank_conflicts(program, self.chip, runs=runs, owners=rules.owners).tolist():
            foresee(
                at,
                "bank",
                f"may use bank {bank} of local memory at the same time as instruction {other} of "
                f"{rules.name(int(op[other]))} on the {Engine(1 - program['engine'][at]).name} queue",
            )

    @property
    def bank_conflicts(self) -> dict[int, int]:
        """For each op (index) of the program that was begun last, how many of its instructions may use a bank of local
        memory at the same time as the other engine; ops without any are left out. Kernels may do so on purpose."""
        if self._begun is None:
            return {}
        program, history_length = self._begun
        found = bank_conflicts(program, self.chip, runs=runs_with_history(program, history_length))
        either = np.unique(np.concatenate([found["instruction"], found["other"]]))
        ops, counts = np.unique(program["op"][either], return_counts=True)
        return dict(zip(ops.tolist(), counts.tolist(), strict=True))

    def _overlap(self, a: _Place, b: _Place) -> bool:
        lanes = (max(a.lanes[0], b.lanes[0]), min(a.lanes[1], b.lanes[1]))
        extent = (max(a.extent[0], b.extent[0]), min(a.extent[1], b.extent[1]))
        if lanes[0] >= lanes[1] or extent[0] >= extent[1]:
            return False
        size = self.chip.lmem_bytes
        return bool((a.painted(lanes, extent, size) & b.painted(lanes, extent, size)).any())

    def _report(self, instruction: _Instruction, kind: str, message: str) -> None:
        self.violations.append(Violation(instruction.index, kind, message))

    # -- transfers -----------------------------------------------------------------------------------------

    def _tensor(self, instruction: _Instruction) -> None:
        source, result = self._source(instruction, 0), self._result(instruction)
        _require_shape("source", source.operand.shape, result.operand.shape)
        _require_width(source, result)
        result.write(source.read())

    def _matrix(self, instruction: _Instruction) -> None:
        source, result = self._source(instruction, 0), self._result(instruction)
        _require_width(source, result)
        loads = source.operand.space == Space.DDR
        memory, local = (source, result) if loads else (result, source)
        rows, pieces, _, width = local.operand.shape
        _, _, _, columns = memory.operand.shape
        if memory.operand.shape[0] != rows or -(-columns // width) != pieces:
            raise _Finding(
                "shape", f"matrix {list(memory.operand.shape)} does not fit lanes {list(local.operand.shape)}"
            )
        lanes = local.read().reshape(rows, pieces * width)
        dense = memory.read().reshape(rows, columns)
        if loads:
            lanes = lanes.copy()
            lanes[:, :columns] = dense if dense.dtype == lanes.dtype else dense.view(lanes.dtype)
            result.write(lanes.reshape(local.operand.shape))
        else:
            result.write(np.ascontiguousarray(lanes[:, :columns]).reshape(memory.operand.shape))

    def _broadcast(self, instruction: _Instruction) -> None:
        source, result = self._source(instruction, 0), self._result(instruction)
        _require_width(source, result)
        n, _, h, w = result.operand.shape
        _require_shape("source", source.operand.shape, (n, 1, h, w))
        result.write(np.broadcast_to(source.read(), result.operand.shape))

    def _gather(self, instruction: _Instruction) -> None:
        table, indices = self._source(instruction, 0), self._source(instruction, 1)
        result = self._result(instruction)
        _require_width(table, result)
        rows = table.read()[0, 0]
        picked = indices.read().reshape(-1).astype(np.int64)
        _require_shape("result", result.operand.shape, (1, 1, picked.size, rows.shape[1]))
        inside = (picked >= 0) & (picked < rows.shape[0])
        values = np.zeros((picked.size, rows.shape[1]), table.dtype)
        values[inside] = rows[picked[inside]]
        if self.checks:
            self._check_gather(instruction, table, picked[inside], bool(inside.all()))
        result.write(values[None, None])

    def _check_gather(self, instruction: _Instruction, table: _Place, picked: Array, inside: bool) -> None:
        if not inside:
            self._report(instruction, "index", f"picks a row outside {_describe(table)}; it reads as zeros")
        if table.written is None:
            return
        marks = table.spans[0].view(table.written, bits_dtype(table.dtype))
        ones = int.from_bytes(b"\x01" * table.dtype.itemsize, "little")
        if not bool((marks[0, 0, picked] == ones).all()):
            self._report(instruction, "uninitialised", f"picks unwritten rows of {_describe(table)}")

    # -- matrix products -----------------------------------------------------------------------------------

    def _mm2(self, instruction: _Instruction) -> None:
        left, right = (_rows(self._source(instruction, number)) for number in (0, 1))
        if instruction.opcode == Opcode.MM2_NT:
            right = right.T
        result = self._result(instruction)
        _, m, h, w = result.operand.shape
        if left.shape[1] != right.shape[0] or (m, h * w) != (left.shape[0], right.shape[1]):
            raise _Finding(
                "shape", f"cannot multiply {left.shape} by {right.shape} into {list(result.operand.shape)}"
            )
        product = _product(left, right)
        self._store_product(instruction, result, product)

    def _mm(self, instruction: _Instruction) -> None:
        result = self._result(instruction)
        rows, pieces, _, width = result.operand.shape
        left, right = (_split(self._source(instruction, number)) for number in (0, 1))
        depth = right.shape[0]
        if left.shape[0] != rows or left.shape[1] < depth or right.shape[1] != pieces * width:
            raise _Finding(
                "shape", f"cannot multiply {left.shape} by {right.shape} into {list(result.operand.shape)}"
            )
        product = _product(left[:, :depth], right)
        if instruction.operands[2].space == Space.LOCAL:
            product = product + wide(_split(self._source(instruction, 2)))
        elif instruction.operands[2].space == Space.CONSTANT:
            product = product + np.float32(instruction.operands[2].value)
        self._store_product(instruction, result, product)

    def _store_product(self, instruction: _Instruction, result: _Place, product: Array) -> None:
        product = product.reshape(result.operand.shape)
        if instruction.flags & ACCUMULATE:
            product = product + wide(result.read())
        result.write(convert(product, result.dtype, instruction.rounding))

    # -- element by element --------------------------------------------------------------------------------

    def _elementwise(self, instruction: _Instruction, function: Callable[..., Array], count: int) -> None:
        """result = function(operands), span by span; `function` gets views or constants as given."""
        result = self._result(instruction)
        sources = [self._element_source(instruction, number, result) for number in range(count)]
        outputs = [
            function(*(source[at] if isinstance(source, tuple) else source for source in sources))
            for at in range(len(result.spans))
        ]
        if len(outputs) > 1:  # a copy's output still lies in memory that an earlier span may overwrite
            outputs = [np.array(output) for output in outputs]
        for view, output in zip(result.views, outputs, strict=True):
            view[...] = output

    def _element_source(
        self, instruction: _Instruction, number: int, result: _Place
    ) -> tuple[Array, ...] | np.generic:
        operand = instruction.operands[number]
        if operand.space == Space.CONSTANT:
            whole = not is_float(operand.dtype) or (not is_float(result.dtype) and operand.value.is_integer())
            return whole_number(int(operand.value)) if whole else np.float32(operand.value)
        place = self._source(instruction, number)
        if operand.space != Space.LOCAL:
            raise _Finding("shape", f"operand {number} of a compute instruction is not in local memory")
        if operand.lane != result.operand.lane:
            raise _Finding(
                "lane",
                f"operand {number} starts in lane {operand.lane}, the result in lane {result.operand.lane}",
            )
        expected = result.operand.shape
        if number == 0 and instruction.opcode == Opcode.SUBS and instruction.flags & NIBBLES:
            expected = (*expected[:3], expected[3] // 2)
        fits = operand.shape[1] == expected[1] and all(
            a in (1, b) for a, b in zip(operand.shape, expected, strict=True)
        )
        if not fits:
            raise _Finding("shape", f"operand {number} is {list(operand.shape)}, the result {list(expected)}")
        return place.thin

    def _arithmetic(self, instruction: _Instruction) -> None:
        compute = _BINARY[Opcode(instruction.opcode)]
        dtype = instruction.result.dtype

        def apply(a: Any, b: Any) -> Array:
            a, b = _common(_wide(a), _wide(b))
            value = np.asarray(compute(a, b))
            if value.dtype.kind == "i" and not is_float(dtype):
                return value.astype(dtype)
            return convert(value, dtype)

        self._elementwise(instruction, apply, 2)

    def _saturating(self, instruction: _Instruction) -> None:
        dtype, adds = instruction.result.dtype, instruction.opcode == Opcode.ADDS
        if is_float(dtype):
            raise _Finding("shape", "a saturating add or subtract needs an integer result")
        packed = bool(instruction.flags & NIBBLES)

        def apply(a: Any, b: Any, amount: Any = _NO_SHIFT) -> Array:
            if packed:
                a = np.stack([a & 15, a >> 4], -1).reshape(*a.shape[:-1], -1)
            total = saturate(np.asarray(_wide(a) + _wide(b) if adds else _wide(a) - _wide(b)), dtype)
            if amount is _NO_SHIFT:
                return total
            return shift(total.astype(np.int64), _wide(amount), instruction.rounding).astype(dtype)

        self._elementwise(instruction, apply, 3 if adds and instruction.operands[2].space else 2)

    def _cast(self, instruction: _Instruction) -> None:
        dtype, rounding = instruction.result.dtype, instruction.rounding
        same = is_float(dtype) and instruction.operands[0].dtype == dtype

        def apply(a: Any) -> Array:
            if same:
                return round_to_integer(_wide(a), rounding).astype(dtype)
            return convert(np.asarray(a), dtype, rounding)

        self._elementwise(instruction, apply, 1)

    def _copy(self, instruction: _Instruction) -> None:
        dtype = instruction.result.dtype
        if instruction.flags & HISTORY_TAIL:
            return self._fill_tail(instruction)
        return self._elementwise(instruction, lambda a: _value_as(a, dtype), 1)

    def _fill_tail(self, instruction: _Instruction) -> None:
        """Columns h*w from the history length on get the constant."""
        result, operand = self._result(instruction), instruction.operands[0]
        if operand.space != Space.CONSTANT or self._history_length is None:
            raise _Finding("shape", "the tail of a history block is filled with a constant")
        values = result.read().copy()
        n, c, h, w = values.shape
        first = self._history_length - (instruction.history - 1)
        values.reshape(n, c, h * w)[:, :, first:] = operand.value
        result.write(values)

    def _and(self, instruction: _Instruction) -> None:
        dtype = instruction.result.dtype
        self._elementwise(instruction, lambda a, b: np.bitwise_and(_wide(a), _wide(b)).astype(dtype), 2)

    def _ashift(self, instruction: _Instruction) -> None:
        dtype, source = instruction.result.dtype, instruction.operands[0].dtype
        unsigned = "u" in (dtype.kind, source.kind)
        mask = (1 << 8 * source.itemsize) - 1

        def apply(a: Any, amount: Any) -> Array:
            values = _wide(a) & mask if unsigned else _wide(a)
            return shift(values, _wide(amount), instruction.rounding).astype(dtype)

        self._elementwise(instruction, apply, 2)

    def _select(self, instruction: _Instruction) -> None:
        dtype, compared = instruction.result.dtype, instruction.operands[0].dtype
        equal = instruction.opcode == Opcode.SELECT_EQ
        if instruction.operands[0].space == Space.CONSTANT:
            compared = instruction.operands[1].dtype

        def apply(a: Any, b: Any, x: Any, y: Any) -> Array:
            pair = (_bits(a, compared), _bits(b, compared)) if equal else _common(_wide(a), _wide(b))
            chosen = np.equal(*pair) if equal else np.less(*pair)
            return np.where(chosen, _value_as(x, dtype), _value_as(y, dtype))

        self._elementwise(instruction, apply, 4)

    def _unary(self, instruction: _Instruction) -> None:
        dtype = instruction.result.dtype
        normalize = instruction.opcode == Opcode.NORMALIZE

        def apply(a: Any) -> Array:
            values = _wide(a)
            if not normalize:
                return convert(np.asarray(np.float32(1) / np.sqrt(values)), dtype)
            bits = np.asarray(values).view(np.uint32)
            if not is_float(dtype):
                return (bits >> 23 & 0xFF).astype(dtype)
            return convert((bits & 0x7FFFFF | 0x3F800000).view(np.float32), dtype)

        self._elementwise(instruction, apply, 1)

    def _taylor(self, instruction: _Instruction) -> None:
        result, table = self._result(instruction), instruction.operands[1]
        sources = self._element_source(instruction, 0, result)
        count, size = instruction.kernel[1], table.dtype.itemsize
        if count < 1 or table.space != Space.LOCAL:
            raise _Finding("shape", "a polynomial needs its coefficients in local memory and their number")
        if table.address + count * size > self.chip.lmem_bytes:
            raise _Finding("bounds", "the coefficients lie outside local memory")
        lmem = self.local_memory(instruction.core)
        coefficients = wide(
            np.ndarray(
                (self.chip.lanes, count), table.dtype, lmem.data, table.address, (self.chip.lmem_bytes, size)
            )
        )
        for at, (span, view) in enumerate(zip(result.spans, result.views, strict=True)):
            x = _wide(sources[at] if isinstance(sources, tuple) else sources)
            first = (result.operand.lane + span.first) % self.chip.lanes
            lanes = coefficients[first : first + span.shape[2]]
            value = np.broadcast_to(lanes[:, count - 1, None, None], view.shape)
            for power in range(count - 2, -1, -1):
                value = value * x + lanes[:, power, None, None]
            view[...] = convert(value, result.dtype)

    # -- reductions and layout -----------------------------------------------------------------------------

    def _pool(self, instruction: _Instruction) -> None:
        result, source = self._result(instruction), self._source(instruction, 0)
        kh, kw = instruction.kernel
        n, c, oh, ow = result.operand.shape
        _, _, ih, iw = source.operand.shape
        if source.operand.shape[:2] != (n, c) or oh * kh > ih or ow * kw > iw:
            raise _Finding(
                "shape", f"window {kh}x{kw} on {list(source.operand.shape)} does not give {[n, c, oh, ow]}"
            )
        if source.operand.lane != result.operand.lane:
            raise _Finding("lane", "a pooling cannot move data between lanes")
        values = wide(source.read())[:, :, : oh * kh, : ow * kw].reshape(n, c, oh, kh, ow, kw)
        if instruction.opcode == Opcode.POOL_MAX:
            pooled = values.max(axis=(3, 5))
        else:
            pooled = values.sum(axis=(3, 5), dtype=values.dtype) * np.float32(instruction.operands[1].value)
        result.write(convert(pooled, result.dtype, instruction.rounding))

    def _lane_broadcast(self, instruction: _Instruction) -> None:
        source, result = self._source(instruction, 0), self._result(instruction)
        _require_width(source, result)
        n, _, h, w = result.operand.shape
        _require_shape("operand", source.operand.shape, (n, 1, h, w))
        result.write(np.broadcast_to(source.read().copy(), result.operand.shape))

    def _static_broadcast(self, instruction: _Instruction) -> None:
        result, number = self._result(instruction), int(instruction.operands[0].value)
        table = COEFFICIENT_TABLES.get(number)
        count = prod(result.operand.shape[2:])
        if table is None or count > len(table):
            raise _Finding("shape", f"coefficient table {number} does not exist or is shorter than {count}")
        values = np.array(table[:count], np.float32).reshape(1, 1, *result.operand.shape[2:])
        result.write(np.broadcast_to(convert(values, result.dtype), result.operand.shape))

    def _transpose(self, instruction: _Instruction) -> None:
        source, result = self._source(instruction, 0), self._result(instruction)
        _require_width(source, result)
        values = source.read().transpose(0, 3, 2, 1)
        _require_shape("result", result.operand.shape, values.shape)
        result.write(np.ascontiguousarray(values))


_ACCUMULATING = (Opcode.MM2_NN, Opcode.MM2_NT, Opcode.MM)

_BINARY: dict[Opcode, Callable[[Any, Any], Any]] = {
    Opcode.ADD: np.add,
    Opcode.SUB: np.subtract,
    Opcode.MUL: np.multiply,
    Opcode.DIV: np.true_divide,
    Opcode.MAX: np.maximum,
    Opcode.MIN: np.minimum,
}

_EXECUTE: dict[Opcode, Callable[[Machine, _Instruction], None]] = {
    Opcode.TENSOR: Machine._tensor,
    Opcode.MATRIX: Machine._matrix,
    Opcode.BROADCAST: Machine._broadcast,
    Opcode.GATHER: Machine._gather,
    Opcode.MM2_NN: Machine._mm2,
    Opcode.MM2_NT: Machine._mm2,
    Opcode.MM: Machine._mm,
    **dict.fromkeys(_BINARY, Machine._arithmetic),
    Opcode.CAST: Machine._cast,
    Opcode.COPY: Machine._copy,
    Opcode.AND: Machine._and,
    Opcode.ASHIFT: Machine._ashift,
    Opcode.ADDS: Machine._saturating,
    Opcode.SUBS: Machine._saturating,
    Opcode.TAYLOR: Machine._taylor,
    Opcode.RSQRT: Machine._unary,
    Opcode.NORMALIZE: Machine._unary,
    Opcode.POOL_AVG: Machine._pool,
    Opcode.POOL_MAX: Machine._pool,
    Opcode.SELECT_EQ: Machine._select,
    Opcode.SELECT_LT: Machine._select,
    Opcode.LANE_BROADCAST: Machine._lane_broadcast,
    Opcode.STATIC_BROADCAST: Machine._static_broadcast,
    Opcode.CW_TRANSPOSE: Machine._transpose,
    Opcode.WC_TRANSPOSE: Machine._transpose,
}
assert OPERANDS == 4


def _flat(array: np.ndarray) -> Array:
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"an arena must be a dense uint8 array [bytes], not {array.dtype} {array.shape}")
    return array


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the one after the last; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))


def _channel_spans(lane: int, channels: int, lanes: int) -> list[tuple[int, int, int, int, int]]:
    """Cut channels into (first channel, block, lane, blocks, lanes): each part is one strided view."""
    spans, channel = [], 0
    while channel < channels:
        block, first = divmod(lane + channel, lanes)
        left = channels - channel
        count, width = (
            (left // lanes, lanes) if first == 0 and left >= lanes else (1, min(lanes - first, left))
        )
        spans.append((channel, block, first, count, width))
        channel += count * width
    return spans


def _describe(place: _Place) -> str:
    operand = place.operand
    local = operand.space == Space.LOCAL
    where = "local memory" if local else f"the {Arena(operand.arena).name.lower()} arena"
    return f"{list(operand.shape)} {operand.dtype.name} at byte {place.extent[0]} of {where}"


def _require_shape(name: str, found: Sequence[int], expected: Sequence[int]) -> None:
    if tuple(found) != tuple(expected):
        raise _Finding("shape", f"{name} is {list(found)}, expected {list(expected)}")


def _require_width(source: _Place, result: _Place) -> None:
    if source.dtype.itemsize != result.dtype.itemsize:
        raise _Finding("shape", f"moves {source.dtype.name} into {result.dtype.name}")


def _rows(place: _Place) -> Array:
    """An MM2 operand [1, R, h, w] as a matrix [R, h*w]."""
    n, rows, h, w = place.operand.shape
    if n != 1:
        raise _Finding("shape", f"matrix operand {list(place.operand.shape)} must have n = 1")
    return wide(place.read().reshape(rows, h * w))


def _split(place: _Place) -> Array:
    """A column-split matrix [R, pieces, 1, width] as [R, pieces*width]."""
    rows, pieces, _, width = place.operand.shape
    return wide(place.read().reshape(rows, pieces * width))


def _product(left: Array, right: Array) -> Array:
    """Matrix product, accumulated in float32; integers exactly."""
    if left.dtype == np.float32:
        return np.asarray(left @ right.astype(np.float32, copy=False))
    return np.asarray((left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64))


def _wide(value: Any) -> Any:
    """A view or constant in the dtype in which the machine computes."""
    return wide(value) if isinstance(value, np.ndarray) else value


def _common(a: Any, b: Any) -> tuple[Any, Any]:
    """Both operands in float32 if one is a float."""
    if a.dtype.kind == b.dtype.kind:
        return a, b
    return a.astype(np.float32), b.astype(np.float32)


def _value_as(value: Any, dtype: np.dtype[Any]) -> Array:
    """A tensor's bits (same width) or a number, in `dtype`."""
    if isinstance(value, np.ndarray) and value.dtype.itemsize == dtype.itemsize:
        return value.view(dtype)
    return convert(np.asarray(value), dtype)


def _bits(value: Any, dtype: np.dtype[Any]) -> Array:
    """The bit patterns of a tensor, or of a number written in `dtype`."""
    if isinstance(value, np.ndarray):
        return value.view(bits_dtype(value.dtype))
    return convert(np.asarray(value), dtype).view(bits_dtype(dtype))
