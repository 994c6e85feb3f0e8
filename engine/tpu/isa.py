"""The instruction format: what codegen emits, `cost.py` prices, `timing.py` schedules and `machine.py` executes.

A module's program is a NumPy array of INSTRUCTION records in issue order, over two in-order queues: TIU (compute) and
GDMA (data movement). Kinds and fields are those in which the vendor's traces are written (COST_MODEL.md).

Local memory layout. A local tensor [n, c, h, w] starts at byte `address` of every lane; channel c sits in lane
(lane + c) % LANES at channel block (lane + c) // LANES. Strides are in elements, stride[1] steps one channel block.
A matrix [R, C] for MM2 is [1, R, 1, C]: rows on lanes. A matrix for MM and GDMA_MATRIX is [R, ceil(C / wl), 1, wl]:
every row cut into pieces of wl columns, one piece a lane; the last piece may be partly unused.

DDR operands are an arena (coeff, io, neuron) plus a byte offset; the module's or the layer's base is added when run.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np

from engine.snapshot import BITS

OPERANDS = 4


class Engine(IntEnum):
    """The queue that runs the instruction."""

    TIU = 0
    GDMA = 1


class Opcode(IntEnum):
    """What the instruction does. GDMA kinds below 16; the rest run on the TIU."""

    TENSOR = 0
    """GDMA: result = operand 0, element by element (both [n, c, h, w]; a transpose is a choice of strides)."""
    MATRIX = 1
    """GDMA: rows of a matrix between DDR [R, 1, 1, W] and lanes [R, ceil(W/wl), 1, wl]."""
    BROADCAST = 2
    """GDMA: DDR [n, 1, h, w] to every one of the result's c channels."""
    GATHER = 3
    """GDMA: rows of operand 0 [1, 1, rows, w] picked by operand 1 (integers [1, 1, n, 1]); result [1, 1, n, w]."""

    MM2_NN = 16
    """result[M,N] = op0[M,K] op1[K,N] (+ result with ACCUMULATE); f32 accumulation, one rounding."""
    MM2_NT = 17
    """result[M,N] = op0[M,K] op1[N,K]^T (+ result with ACCUMULATE)."""
    MM = 18
    """f32 matrix multiply on column-split matrices, + result with ACCUMULATE, + operand 2 as bias row."""
    ADD = 19
    SUB = 20
    MUL = 21
    DIV = 22
    MAX = 23
    MIN = 24
    CAST = 25
    """result = operand 0 in the result's dtype, rounded as `rounding` says (also f32 to f32: round to integer)."""
    COPY = 26
    AND = 27
    ASHIFT = 28
    """result = operand 0 << operand 1 for positive, >> for negative shifts; >> rounds and keeps the sign only when
    both
    operand 0 and the result are signed."""
    ADDS = 29
    """Saturating add, then << operand 2: builds the exponent field of 2**k."""
    SUBS = 30
    """Saturating subtract; the result is the signed type when the result's dtype is signed."""
    TAYLOR = 31
    """Polynomial in operand 0; operand 1 holds `kernel[1]` coefficients, lowest power first, per lane."""
    RSQRT = 32
    NORMALIZE = 33
    """Operand 0's significand in [1, 2) for a float result, its biased exponent field for an integer result."""
    POOL_AVG = 34
    """Window sum times operand 1 (a constant) over kernel (kh, kw), stride = kernel."""
    POOL_MAX = 35
    SELECT_EQ = 36
    """result = op2 where op0 == op1 (bit patterns) else op3."""
    SELECT_LT = 37
    """result = op2 where op0 < op1 else op3."""
    LANE_BROADCAST = 38
    """Channel 0 of operand 0 [n, 1, h, w] to every channel of the result."""
    STATIC_BROADCAST = 39
    """Coefficient table number operand 0 (a constant) to every lane: 0 exp f32, 1 exp bf16."""
    CW_TRANSPOSE = 40
    """result [n, w, h, c] = operand 0 [n, c, h, w]; cost follows w."""
    WC_TRANSPOSE = 41
    """result [n, w, h, c] = operand 0 [n, c, h, w]; cost follows c."""


class Space(IntEnum):
    """Where an operand lives."""

    NONE = 0
    LOCAL = 1
    DDR = 2
    CONSTANT = 3


class Arena(IntEnum):
    """DDR arenas of a module."""

    COEFF = 0
    IO = 1
    NEURON = 2


class Direction(IntEnum):
    """GDMA direction; also the columns of every traffic table."""

    LOAD = 0
    STORE = 1
    DDR_TO_DDR = 2


class Rounding(IntEnum):
    """How a cast or a shift rounds."""

    HALF_EVEN = 0
    HALF_AWAY = 1
    TOWARD_ZERO = 2
    DOWN = 3
    UP = 4


ACCUMULATE = 1
"""Flag of MM2 and MM: add to what the result already holds."""
HISTORY_TAIL = 2
"""Flag of a COPY of a constant over the scores of a history key block (see `history`): it runs only in the block that
the history length cuts, and only on the columns from the history length on."""

UNSTRIDED = 4
"""Flag of a TENSOR that transposes dense [tokens, heads, 1, d] in DDR: encoded without DDR strides. It moves the same
bytes but one token's bytes decide the DDR channels, usually one (R5, the form of prefill_kv attention)."""

BARRIER = 16
"""Flag of the first instruction of an op in a program for several cores: all cores first end everything issued before
it. The instruction that carries it need not run (see `history`): the barrier is there all the same."""

NIBBLES = 8
"""Flag of SUBS: operand 0 (ui8) packs two 4-bit values a byte, the low nibble first. Its w counts bytes: the
result's w is twice as long."""

DTYPES = tuple(BITS)
"""dtype names by the code stored in an operand."""
_DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}

OPERAND = np.dtype(
    [
        ("space", "u1"),
        ("dtype", "u1"),
        ("arena", "u1"),
        ("lane", "u1"),
        ("shape", "<i4", 4),
        ("stride", "<i4", 4),
        ("address", "<i8"),
        ("value", "<f8"),
    ]
)
"""One operand: shape and strides in elements, address in bytes (per lane, or offset in the arena)."""

INSTRUCTION = np.dtype(
    [
        ("engine", "u1"),
        ("opcode", "u1"),
        ("direction", "u1"),
        ("rounding", "u1"),
        ("flags", "<u2"),
        ("core", "<u2"),
        ("op", "<i4"),
        ("id", "<u4"),
        ("wait", "<u4"),
        ("step", "<i4"),
        ("history", "<i4"),
        ("kernel", "<i4", 2),
        ("result", OPERAND),
        ("operands", OPERAND, OPERANDS),
    ]
)
"""One instruction. core: whose local memory and queues it uses. op: index of the op record it belongs to. id: 1-based
number in its queue, each core's own. wait: id of the last command of the core's other queue that must have ended (0:
none). step: pipeline step inside the op. history: 0, or 1 +
the first history row of the key block that the
instruction works on: it is dropped when the module runs with a history length not beyond that row. kernel: window
(kh, kw)
of poolings, coefficient count of TAYLOR in kernel[1]."""

_OPERAND_STRUCT = struct.Struct("<BBBB4i4iqd")
_HEADER_STRUCT = struct.Struct("<BBBBHHiIIiiii")
assert _OPERAND_STRUCT.size == OPERAND.itemsize
assert _HEADER_STRUCT.size + OPERAND.itemsize * (1 + OPERANDS) == INSTRUCTION.itemsize

Shape4 = tuple[int, int, int, int]


@dataclass(frozen=True)
class Local:
    """A tensor in local memory. address: byte offset in each lane. stride: elements; stride[1] is per channel
    block."""

    address: int
    dtype: str
    shape: Shape4
    stride: Shape4
    lane: int = 0

    @cached_property
    def packed(self) -> bytes:
        """The operand's bytes in an instruction."""
        return _OPERAND_STRUCT.pack(
            Space.LOCAL, _DTYPE_CODE[self.dtype], 0, self.lane, *self.shape, *self.stride, self.address, 0.0
        )

    def view(
        self, shape: Shape4, stride: Shape4 | None = None, dtype: str | None = None, offset: int = 0
    ) -> Local:
        """The same memory read with another shape; `offset` in bytes."""
        return Local(self.address + offset, dtype or self.dtype, shape, stride or self.stride, self.lane)


@dataclass(frozen=True)
class Global:
    """A tensor in DDR: `offset` bytes into an arena, strides in elements."""

    arena: Arena
    offset: int
    dtype: str
    shape: Shape4
    stride: Shape4

    @cached_property
    def packed(self) -> bytes:
        """The operand's bytes in an instruction."""
        return _OPERAND_STRUCT.pack(
            Space.DDR, _DTYPE_CODE[self.dtype], self.arena, 0, *self.shape, *self.stride, self.offset, 0.0
        )


@dataclass(frozen=True)
class Constant:
    """An immediate value."""

    value: float
    dtype: str = "f32"

    @cached_property
    def packed(self) -> bytes:
        """The operand's bytes in an instruction."""
        return _OPERAND_STRUCT.pack(
            Space.CONSTANT, _DTYPE_CODE[self.dtype], 0, 0, *_ZERO8, 0, float(self.value)
        )


Operand = Local | Global | Constant

_ZERO8 = (0,) * 8
_ABSENT = bytes(OPERAND.itemsize)


def contiguous(shape: Shape4) -> Shape4:
    """Strides (elements) of a dense row-major tensor."""
    _, c, h, w = shape
    return (c * h * w, h * w, w, 1)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return BITS[dtype] // 8


@dataclass
class Stream:
    """Builds a program: appends packed instructions and keeps the ids of every core's two queues."""

    data: bytearray = field(default_factory=bytearray)
    last: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def append(
        self,
        opcode: Opcode,
        result: Operand,
        operands: tuple[Operand, ...],
        *,
        op: int,
        wait: int,
        direction: int = 0,
        rounding: int = 0,
        flags: int = 0,
        kernel: tuple[int, int] = (0, 0),
        step: int = 0,
        history: int = 0,
        core: int = 0,
    ) -> None:
        """Append one instruction; `wait` is an id of the core's other queue."""
        engine, ids = 0 if opcode >= 16 else 1, self.last[core]
        ids[engine] += 1
        self.data += _HEADER_STRUCT.pack(
            engine,
            opcode,
            direction,
            rounding,
            flags,
            core,
            op,
            ids[engine],
            wait,
            step,
            history,
            *kernel,
        )
        self.data += result.packed
        for operand in operands:
            self.data += operand.packed
        self.data += _ABSENT * (OPERANDS - len(operands))

    def program(self) -> np.ndarray:
        """The instructions as an array of INSTRUCTION records."""
        return np.frombuffer(bytes(self.data), dtype=INSTRUCTION)


def runs_with_history(program: np.ndarray, length: int | None) -> np.ndarray:
    """Which instructions run when the module's history holds `length` rows (bool, one per instruction).

    None: the whole history. Key blocks that start at or beyond the length are dropped; a HISTORY_TAIL fill runs
    only in
    the block that the length cuts.
    """
    first = program["history"] - 1
    tail = (program["flags"] & HISTORY_TAIL) != 0
    if length is None:
        return np.asarray(~tail)
    shape = program["result"]["shape"]
    columns = shape[:, 2] * shape[:, 3]
    return np.asarray((first < length) & (~tail | (length < first + columns)))


def moved_bytes(program: np.ndarray) -> np.ndarray:
    """DDR bytes that each instruction moves (int64, one per instruction; 0 for TIU instructions).

    A load or store counts its DDR operand's elements, GATHER the rows picked, DDR to DDR its elements once.
    """
    widths = np.array([BITS[name] for name in DTYPES], dtype=np.int64)
    from_source = (program["direction"] == Direction.LOAD) & (program["opcode"] != Opcode.GATHER)
    source, result = program["operands"][:, 0], program["result"]
    shape = np.where(from_source[:, None], source["shape"], result["shape"]).astype(np.int64)
    dtype = np.where(from_source, source["dtype"], result["dtype"])
    return np.where(program["engine"] == Engine.GDMA, shape.prod(axis=1) * widths[dtype] // 8, 0)
