"""Cycles of one instruction: the vendor's static estimate, rebuilt from its traces.

Rule numbers R<n> are those of the cost model (COST_MODEL.md, COST_MODEL_2.md); the chip's constants stand in
`chips.toml` under `costs`. Cycles are those of the chip's clock. No rule depends on what runs beside an
instruction; when it starts is `engine.sim.timing`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.snapshot import BITS
from engine.tpu.chip import Chip
from engine.tpu.isa import (
    ACCUMULATE,
    DTYPES,
    INSTRUCTION,
    OPERAND,
    OPERANDS,
    UNSTRIDED,
    Direction,
    Opcode,
    Shape4,
    Space,
)

_BURST = 256
_BYTES = tuple(BITS[name] // 8 for name in DTYPES)
_RESULT = INSTRUCTION.itemsize - OPERAND.itemsize * (1 + OPERANDS)


def cycles(program: np.ndarray, chip: Chip) -> np.ndarray:
    """Cycles of each instruction (int64, one per INSTRUCTION record): rules R5 to R17, R35 to R38, R48, R49."""
    if not len(program):
        return np.zeros(0, np.int64)
    program = np.ascontiguousarray(program)
    in_place = _in_place(program)
    first, group = _distinct(program, in_place)
    costs = _Costs(chip)
    prices = [costs.price(_read(program[at], in_place[at])) for at in first.tolist()]
    return np.asarray(np.array(prices, np.int64)[group])


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b."""
    return -(-a // b)


# -- what a price depends on -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    space: int
    bytes: int
    lane: int
    shape: Shape4
    stride: Shape4


@dataclass(frozen=True, slots=True)
class _Command:
    opcode: int
    direction: int
    flags: int
    kernel: tuple[int, int]
    in_place: bool
    result: _Tensor
    operands: tuple[_Tensor, ...]

    @property
    def tensors(self) -> list[_Tensor]:
        """The operands that are tensors, in order."""
        return [operand for operand in self.operands if operand.space in (Space.LOCAL, Space.DDR)]


def _in_place(program: np.ndarray) -> np.ndarray:
    """Whether the result starts where a local operand starts (bool, one per instruction)."""
    operands, result = program["operands"], program["result"]
    same = (operands["space"] == Space.LOCAL) & (operands["address"] == result["address"][:, None])
    return np.asarray(same.any(axis=1) & (result["space"] == Space.LOCAL))


def _priced_words() -> np.ndarray:
    """Which 32-bit words of a record decide its price: all but order, addresses and immediate values."""
    blank = np.zeros(1, INSTRUCTION)
    marks = blank.view(np.uint8)
    for name in ("engine", "opcode", "direction", "flags", "kernel"):
        _mark(marks, 0, name, INSTRUCTION)
    for number in range(1 + OPERANDS):
        for name in ("space", "dtype", "arena", "lane", "shape", "stride"):
            _mark(marks, _RESULT + number * OPERAND.itemsize, name, OPERAND)
    return np.flatnonzero(blank.view(np.uint32))


def _mark(marks: np.ndarray, start: int, name: str, record: np.dtype[Any]) -> None:
    assert record.fields is not None
    dtype, offset = record.fields[name][:2]
    marks[start + offset : start + offset + dtype.itemsize] = 1


def _distinct(program: np.ndarray, in_place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the first record of each distinct price key, and each record's key number."""
    words = program.view(np.uint32).reshape(len(program), -1)[:, _WORDS]
    key = np.column_stack([words, in_place.astype(np.uint32)])
    hashed = key @ _WEIGHTS
    _, first, group = np.unique(hashed, return_index=True, return_inverse=True)
    if not np.array_equal(key[first][group], key):  # two keys with one hash: compare whole keys
        rows = np.ascontiguousarray(key).view(np.dtype((np.void, key.shape[1] * 4)))
        _, first, group = np.unique(rows.reshape(-1), return_index=True, return_inverse=True)
    return first, group


_WORDS = _priced_words()
_WEIGHTS = np.random.default_rng(0).integers(1, 1 << 63, len(_WORDS) + 1, np.uint64) | np.uint64(1)


def _read(record: np.void, in_place: np.bool_) -> _Command:
    return _Command(
        opcode=int(record["opcode"]),
        direction=int(record["direction"]),
        flags=int(record["flags"]),
        kernel=(int(record["kernel"][0]), int(record["kernel"][1])),
        in_place=bool(in_place),
        result=_read_tensor(record["result"]),
        operands=tuple(_read_tensor(operand) for operand in record["operands"]),
    )


def _read_tensor(operand: np.void) -> _Tensor:
    shape, stride = operand["shape"].tolist(), operand["stride"].tolist()
    return _Tensor(
        int(operand["space"]),
        _BYTES[int(operand["dtype"])],
        int(operand["lane"]),
        tuple(shape),
        tuple(stride),
    )


# -- the rules ---------------------------------------------------------------------------------------------


class _Costs:
    """The price of a command on one chip."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.constants: Mapping[str, Any] = chip.costs
        self.rules: dict[int, Callable[[_Command], int]] = {
            Opcode.TENSOR: self._tensor,
            Opcode.MATRIX: self._matrix,
            Opcode.BROADCAST: self._broadcast,
            Opcode.GATHER: self._gather,
            Opcode.MM2_NN: self._mm2,
            Opcode.MM2_NT: self._mm2,
            Opcode.MM: self._mm,
            Opcode.DIV: self._div,
            Opcode.AND: self._unpack,
            Opcode.ASHIFT: self._unpack,
            Opcode.TAYLOR: lambda command: self._dense(command) * command.kernel[1],
            Opcode.RSQRT: lambda command: self._dense(command) * int(self.constants["rsqrt"]),
            Opcode.NORMALIZE: self._dense,
            Opcode.SELECT_EQ: lambda command: self._dense(command) * int(self.constants["select"]),
            Opcode.SELECT_LT: lambda command: self._dense(command) * int(self.constants["select"]),
            Opcode.POOL_AVG: self._pool,
            Opcode.POOL_MAX: self._pool,
            Opcode.LANE_BROADCAST: self._lane_broadcast,
            Opcode.STATIC_BROADCAST: lambda command: self._rows(command.result, command.result.shape[3]),
            Opcode.CW_TRANSPOSE: lambda command: self._transpose(command, 3),
            Opcode.WC_TRANSPOSE: lambda command: self._transpose(command, 1),
        }

    def price(self, command: _Command) -> int:
        """Cycles of one command; opcodes without a rule of their own are element by element."""
        return self.rules.get(command.opcode, self._elementwise)(command)

    # transfers

    def _tensor(self, command: _Command) -> int:
        """R5, R35, R38."""
        way = command.direction
        memory = command.operands[0] if way == Direction.LOAD else command.result
        dense = command.flags & UNSTRIDED != 0
        memory = _outer_first(memory, dense)
        n, c, h, w = memory.shape
        if way == Direction.DDR_TO_DDR and self.constants["latency"][way]:
            return self._transfer(n * c * h * w * memory.bytes, way)
        row = _row_bytes(memory, dense)
        rows = n * c * h * w * memory.bytes // row
        moved = rows * max(row, self.constants["burst_bytes"])
        used = (
            self.constants["channels"] if way == Direction.DDR_TO_DDR else self._channels(memory, row, dense)
        )
        return self._transfer(moved, way, self.constants["channels"], used)

    def _transfer(self, moved: int, way: int, channels: int = 1, used: int = 1) -> int:
        speed = self.constants["transfer_bytes_per_cycle"][way]
        return int(self.constants["latency"][way] + moved * channels / used / speed)

    def _channels(self, memory: _Tensor, row: int, dense: bool) -> int:
        """DDR channels that a transfer uses: R5, and R35 for several pieces."""
        n, c, h, w = memory.shape
        channels, page = int(self.constants["channels"]), int(self.constants["channel_bytes"])
        if dense:
            return min(channels, ceil_div(c * h * w * memory.bytes, page))
        if n == 1:
            return min(channels, max(1, ceil_div(c * memory.stride[1] * memory.bytes, page)))
        piece, pitch = c * h * w * memory.bytes, memory.stride[0] * memory.bytes
        pieces = min(n, ceil_div(channels * page, pitch)) if pitch else 1
        step = min(row, _BURST)
        bursts = np.arange(0, min(piece, channels * page), step)
        starts = np.arange(pieces)[:, None] * pitch + bursts
        return len(np.unique(starts // page % channels))

    def _matrix(self, command: _Command) -> int:
        """R6: every lane's piece of a row is a burst of its own."""
        way = command.direction
        memory, local = command.operands[0], command.result
        if way == Direction.STORE:
            memory, local = local, memory
        rows, width = memory.shape[0], local.shape[3]
        row, burst = memory.shape[3] * memory.bytes, self.constants["burst_bytes"]
        if self.constants["latency"][way]:  # R49: lanes used, each piece rounded up to a whole EU
            pieces = ceil_div(row, self.chip.eu_bytes * ceil_div(width * memory.bytes, self.chip.eu_bytes))
            moved: float = rows * max(row, pieces * burst)
        else:
            moved = rows * row * max(1, burst / (width * memory.bytes))
        return int(self.constants["latency"][way] + moved / self.constants["matrix_bytes_per_cycle"][way])

    def _broadcast(self, command: _Command) -> int:
        """R7."""
        n, _, h, w = command.operands[0].shape
        moved = n * h * max(w * command.operands[0].bytes, self.constants["burst_bytes"])
        latency = self.constants["latency"][Direction.LOAD]
        return int(latency + moved / self.constants["broadcast_bytes_per_cycle"])

    def _gather(self, command: _Command) -> int:
        """R8."""
        n, c, h, w = command.result.shape
        moved = n * c * h * w * command.result.bytes
        latency = self.constants["latency"][Direction.DDR_TO_DDR]
        return int(latency + moved / self.constants["gather_bytes_per_cycle"])

    # matrix products

    def _mm2(self, command: _Command) -> int:
        """R10, R36."""
        _, m, _, _ = command.operands[0].shape
        k = command.operands[0].shape[2] * command.operands[0].shape[3]
        n = command.result.shape[2] * command.result.shape[3]
        steps = zip((m, k, n), self.constants["mm2_step"], strict=True)
        rows, depth, columns = (step * ceil_div(size, step) for size, step in steps)
        return int(rows * depth * columns // self.constants["mm2_macs_per_cycle"])

    def _mm(self, command: _Command) -> int:
        """R11, seen for one row and K = 64. Every further row or 64 of K costs as much again: our guess."""
        row, accumulating, biased = self.constants["mm_rows"]
        slices = ceil_div(command.operands[1].shape[0], 64)
        bias = command.operands[2].space == Space.LOCAL
        cost = row * slices + accumulating * (command.flags & ACCUMULATE) + biased * bias
        return int(command.result.shape[0] * cost)

    # element by element

    def _blocks(self, tensor: _Tensor) -> int:
        return ceil_div(tensor.lane + tensor.shape[1], self.chip.lanes)

    def _rows(self, tensor: _Tensor, elements: int, size: int = 0) -> int:
        """Cycles in which a lane passes `elements` elements."""
        return ceil_div(elements, self.chip.eu(size or tensor.bytes))

    def _dense(self, command: _Command) -> int:
        """A(n, c, h*w, EU) of the result."""
        result = command.result
        n, _, h, w = result.shape
        return n * self._blocks(result) * self._rows(result, h * w)

    def _elementwise(self, command: _Command) -> int:
        """R12, R37. Rows set apart cost as if their gaps held whole rows, or a row at a time if that is less.

        R37 counts the gaps to the element; whole rows are what all strided copies in the traces show.
        """
        result, tensors = command.result, command.tensors
        n, _, h, w = result.shape
        eu = self.chip.eu(max(tensor.bytes for tensor in (result, *tensors)))
        spread = [tensor for tensor in (result, *tensors) if tensor.space == Space.LOCAL]
        column = max(tensor.stride[3] for tensor in spread) if w > 1 else 1
        if column > 1:
            step = ceil_div(h * w, eu) * column
        else:
            apart = max(1, *(tensor.stride[2] // w for tensor in spread)) if h > 1 else 1
            step = min(h * ceil_div(w, eu), ceil_div(h * w * apart, eu))
        return n * self._blocks(result) * step * self._slowdown(command)

    def _slowdown(self, command: _Command) -> int:
        """R12: twice when in place, twice when the second operand repeats over n."""
        second = command.operands[1]
        repeats = second.space == Space.LOCAL and second.stride[0] == 0
        return (2 if command.in_place else 1) * (2 if repeats else 1)

    def _div(self, command: _Command) -> int:
        """R12."""
        return self._dense(command) * int(self.constants["div"])

    def _unpack(self, command: _Command) -> int:
        """R12: and, ashift. Into every second byte, a source without gaps between channels costs twice."""
        result, source = command.result, command.operands[0]
        n, _, h, w = result.shape
        plane = self._rows(result, h * w, max(result.bytes, source.bytes))
        interleaved = result.stride[2 if w == 1 else 3] == 2
        twice = interleaved and source.stride[1] == source.shape[2] * source.shape[3]
        in_place = 2 if command.in_place else 1
        return n * self._blocks(result) * plane * (2 if twice else 1) * in_place

    # reductions and layout

    def _pool(self, command: _Command) -> int:
        """R15."""
        n, _, h, w = command.result.shape
        kh, kw = command.kernel
        return n * self._blocks(command.result) * h * self._rows(command.result, w) * kh * kw

    def _lane_broadcast(self, command: _Command) -> int:
        """R16."""
        n, _, h, w = command.result.shape
        return n * self._rows(command.result, h * w) * (2 if command.in_place else 1)

    def _transpose(self, command: _Command, axis: int) -> int:
        """R17: only the operand's dimension `axis` costs."""
        source = command.operands[0]
        return source.shape[0] * self._rows(source, source.shape[axis])


def _outer_first(memory: _Tensor, dense: bool) -> _Tensor:
    """The DDR side as the rules see it: of n and c, the one with the larger stride first.

    A transposing transfer of [tokens, heads, ...] has n = heads here and n = tokens there. The unstrided form
    always transposes.
    """
    (n, c, h, w), (sn, sc, sh, sw) = memory.shape, memory.stride
    if not (dense or 0 < sn < sc):
        return memory
    return _Tensor(memory.space, memory.bytes, memory.lane, (c, n, h, w), (sc, sn, sh, sw))


def _row_bytes(memory: _Tensor, dense: bool) -> int:
    """Bytes that lie together in DDR (R5): h*w when contiguous, else w."""
    _, _, h, w = memory.shape
    _, _, sh, sw = memory.stride
    together = dense or h == 1 or (sh == w and sw == 1) or (w == 1 and sh == 1)
    return (h * w if together else w) * memory.bytes
