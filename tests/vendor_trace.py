"""Reads commands of the reference compiler's traces, joined with their disassembly, as INSTRUCTION records.

A command is its mnemonic, operands (`%R2.64` local, `%G4096` DDR, `%C15` constant, `%D7` wait), MLIR-like types
and result; transposing transfers become our form, in which both sides have the local shape.
"""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path

import numpy as np

from engine.snapshot import BITS
from engine.tpu.isa import (
    ACCUMULATE,
    NIBBLES,
    UNSTRIDED,
    Arena,
    Constant,
    Global,
    Local,
    Opcode,
    Operand,
    Rounding,
    Shape4,
    Stream,
    contiguous,
)

OPCODES = {
    "dma.tensor": Opcode.TENSOR,
    "dma.tensor.transpose": Opcode.TENSOR,
    "dma.matrix": Opcode.MATRIX,
    "dma.tensor.broadcast": Opcode.BROADCAST,
    "gdma.gather": Opcode.GATHER,
    "mm2.nn": Opcode.MM2_NN,
    "mm2.nt": Opcode.MM2_NT,
    "mm.normal": Opcode.MM,
    "sfu.taylor_4x": Opcode.TAYLOR,
    "sfu.rsqrt": Opcode.RSQRT,
    "sfu.normalize": Opcode.NORMALIZE,
    "pord.avgpooling": Opcode.POOL_AVG,
    "pord.maxpooling": Opcode.POOL_MAX,
    "cmp.sel_eq": Opcode.SELECT_EQ,
    "cmp.sel_lt": Opcode.SELECT_LT,
    "tsbc.l_bc": Opcode.LANE_BROADCAST,
    "tsbc.s_bc": Opcode.STATIC_BROADCAST,
    "tsbc.cw_ts": Opcode.CW_TRANSPOSE,
    "tsbc.wc_ts": Opcode.WC_TRANSPOSE,
    "arith.add_satu": Opcode.ADDS,
    "arith.sub_satu": Opcode.SUBS,
    **{
        f"arith.{name}": Opcode[name.upper()]
        for name in (
            "add",
            "sub",
            "mul",
            "div",
            "max",
            "min",
            "cast",
            "copy",
            "and",
            "ashift",
            "adds",
            "subs",
        )
    },
}
"""Our opcode of each mnemonic."""

_TYPE = re.compile(r"memref<([0-9x]+)x([a-z]+[0-9]+)(?:, strides: \[([^\]]*)\])?>|([a-z]+[0-9]+|none)")
_DTYPE = {"i8": "si8", "i16": "si16", "i32": "si32", "ui8": "ui8"}
_KERNEL = re.compile(r"kernel = \[(\d+), (\d+)\]")


class UnreadableError(Exception):
    """A command whose disassembly is missing or of a kind that has no opcode here."""


def append(
    stream: Stream,
    asm: str,
    operands: str,
    types: str,
    result: str,
    direction: str,
    *,
    lanes: int = 64,
    bank_bytes: int = 16384,
    eu_bytes: int = 64,
    op: int = 0,
) -> None:
    """Add one command of a trace to a stream. Raises UnreadableError."""
    if asm not in OPCODES:
        raise UnreadableError(asm or "no disassembly")
    opcode = OPCODES[asm]
    attributes, _, signature = types.rpartition("}")
    left, _, right = signature.partition(" -> ")
    tensors = [
        _operand(name, *parsed, bank_bytes, eu_bytes)
        for name, parsed in zip(operands.split(", "), _types(left), strict=True)
        if name[1] not in "DB" or len(name) == 1
    ]
    target = _operand(result, *_types(right)[0], bank_bytes, eu_bytes)
    way = int(direction or 0) if opcode < 16 else 0
    flags = (ACCUMULATE if "res_add = True" in attributes else 0) | (NIBBLES if "xui4" in left else 0)
    if asm == "dma.tensor.transpose":
        target, tensors, flags = _transposing(target, tensors)
    if opcode == Opcode.MATRIX:
        target, tensors = _matrix(target, tensors, lanes, eu_bytes)
    if opcode == Opcode.GATHER:
        way = 2
    kernel = (0, 0)
    if match := _KERNEL.search(attributes):
        kernel = (int(match[1]), int(match[2]))
    if opcode == Opcode.TAYLOR:
        kernel = (1, tensors[1].shape[3] if isinstance(tensors[1], Local) else 0)
    rounding = re.search(r"round_mode = (\d)", attributes)
    stream.append(
        opcode,
        target,
        tuple(tensors),
        op=op,
        wait=0,
        direction=way,
        flags=flags,
        kernel=kernel,
        rounding=int(rounding[1]) if rounding and int(rounding[1]) < len(Rounding) else 0,
    )


def read_rows(name: str) -> list[dict[str, str]]:
    """Rows of a compressed table in tests/data."""
    with gzip.open(Path(__file__).parent / "data" / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_trace(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A whole module: (program with the trace's ids and waits, cycles, start), from `vendor_traces`."""
    rows = [row for row in read_rows("vendor_traces") if row["module"] == name]
    stream = Stream()
    for row in rows:
        fields = (row["asm"], row["operands"], row["types"], row["result"], row["direction"])
        append(stream, *fields, op=int(row["op"]))
    program = stream.program().copy()
    for field in ("id", "wait"):
        program[field] = [int(row[field]) for row in rows]
    cycles, start = (np.array([int(row[field]) for row in rows]) for field in ("cycles", "start"))
    return program, cycles, start


def _types(text: str) -> list[tuple[tuple[int, ...], str, tuple[int, ...] | None]]:
    """(shape, dtype, strides) of each type in a signature's half."""
    found = []
    for shape, dtype, strides, scalar in _TYPE.findall(text):
        name = dtype or scalar
        numbers = tuple(int(part) for part in strides.split(",")) if strides else None
        found.append(
            (tuple(int(part) for part in shape.split("x")) if shape else (), _DTYPE.get(name, name), numbers)
        )
    return found


def _operand(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    stride: tuple[int, ...] | None,
    bank_bytes: int,
    eu_bytes: int,
) -> Operand:
    kind, value = name[1], name[2:]
    if kind == "C":
        return Constant(float(value), dtype if dtype in BITS else "f32")
    if kind == "S":
        return Constant(0.0)
    full = _four(shape)
    steps = _four_strides(stride) if stride else contiguous(full)
    if len(shape) == 2 and stride is None:  # rows on lanes, each padded to whole EUs
        step = eu_bytes * 8 // BITS[dtype]
        steps = (0, -(-shape[1] // step) * step, shape[1], 1)
    if dtype == "ui4":  # two a byte
        n, c, h, w = full
        full, steps, dtype = (n, c, h, w // 2), (steps[0] // 2, steps[1] // 2, steps[2] // 2, 1), "ui8"
    if kind == "G":
        return Global(Arena.NEURON, int(value.rpartition(".")[2]), dtype, full, steps)
    bank, *rest = value.split(".")
    byte = int(rest[0]) if rest else 0
    lane = int(rest[1].removeprefix("L")) if len(rest) > 1 else 0
    return Local(int(bank) * bank_bytes + byte, dtype, full, steps, lane)


def _four(shape: tuple[int, ...]) -> Shape4:
    if len(shape) == 2:
        return (1, shape[0], 1, shape[1])
    n, c, h, w = shape
    return (n, c, h, w)


def _four_strides(stride: tuple[int, ...]) -> Shape4:
    n, c, h, w = stride
    return (n, c, h, w)


def _transposing(target: Operand, tensors: list[Operand]) -> tuple[Operand, list[Operand], int]:
    """Give the DDR side the local shape: its n and c change places. No strides: the dense, unstrided form."""
    source = tensors[0]
    loads = isinstance(source, Global)
    memory, local = (source, target) if loads else (target, source)
    assert isinstance(memory, Global)
    assert isinstance(local, Local)
    unstrided = memory.stride[:3] == (0, 0, 0)
    n, c, h, w = contiguous(memory.shape) if unstrided else memory.stride
    turned = Global(memory.arena, memory.offset, memory.dtype, local.shape, (c, n, h, w))
    flags = UNSTRIDED if unstrided else 0
    return (target, [turned], flags) if loads else (turned, tensors, flags)


def _matrix(
    target: Operand, tensors: list[Operand], lanes: int, eu_bytes: int
) -> tuple[Operand, list[Operand]]:
    """Rows [R, W] on lanes: the width of a piece is read from the local stride (R6)."""
    source = tensors[0]
    loads = isinstance(source, Global)
    memory, local = (source, target) if loads else (target, source)
    assert isinstance(memory, Global)
    assert isinstance(local, Local)
    rows, columns = memory.shape[2], memory.shape[3]
    even = -(-columns // lanes)
    step = eu_bytes * 8 // BITS[local.dtype]
    padded = -(-even // step) * step == local.stride[1]
    width = even if padded and columns > lanes else local.stride[1]  # a 64-column slice has pieces of 32
    pieces = -(-columns // width)
    inside = Local(
        local.address, local.dtype, (rows, pieces, 1, width), (local.stride[0], local.stride[1], width, 1)
    )
    outside = Global(
        memory.arena, memory.offset, memory.dtype, (rows, 1, 1, columns), (memory.stride[2], 0, 0, 1)
    )
    return (inside, [outside]) if loads else (outside, [inside])
