"""Instructions of a program as lines: what each engine is told, from where to where, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from app import units
from app.widgets.lines import Span
from engine.tpu.isa import DTYPES, Arena, Direction, Engine, Opcode, Space, moved_bytes

_WAYS = {Direction.LOAD: "load", Direction.STORE: "store", Direction.DDR_TO_DDR: "move"}


def instruction_lines(program: np.ndarray[Any, Any], op: int, limit: int = 80) -> Iterator[list[Span]]:
    """The instructions of one op of a module, at most `limit` of them."""
    mine = np.flatnonzero(program["op"] == op)
    moved = moved_bytes(program[mine])
    for index, nbytes in zip(mine[:limit].tolist(), moved.tolist(), strict=False):
        yield _line(program[index], nbytes)
    if len(mine) > limit:
        yield [(f"… {len(mine) - limit} more", "muted")]


def _line(instruction: np.void, nbytes: int) -> list[Span]:
    engine = Engine(int(instruction["engine"]))
    opcode = Opcode(int(instruction["opcode"]))
    on_dma = engine is Engine.GDMA
    what = (
        f"{_WAYS[Direction(int(instruction['direction']))]} {opcode.name.lower()}"
        if on_dma
        else opcode.name.lower()
    )
    other = "TIU" if on_dma else "GDMA"
    wait = int(instruction["wait"])
    result, source = instruction["result"], instruction["operands"][0]
    return [
        (f"{engine.name:<4} {int(instruction['id']):>5}  ", "dma" if on_dma else "compute"),
        (f"{what:<16} ", "heading"),
        (f"{_shape(result):<22} ", ""),
        (f"{_place(source):>16} → {_place(result):<16} ", "muted"),
        (f"{units.size(nbytes):>8} " if nbytes else " " * 9, ""),
        (f"waits for {other} {wait}" if wait else "", "faint"),
    ]


def _shape(operand: np.void) -> str:
    dims = "×".join(str(int(n)) for n in operand["shape"])
    return f"{dims} {DTYPES[int(operand['dtype'])]}"


def _place(operand: np.void) -> str:
    space, address = Space(int(operand["space"])), int(operand["address"])
    if space is Space.LOCAL:
        return f"lmem+{address:#x}"
    if space is Space.DDR:
        return f"{Arena(int(operand['arena'])).name.lower()}+{address:#x}"
    return f"{float(operand['value']):g}" if space is Space.CONSTANT else "-"
