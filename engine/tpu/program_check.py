"""Invariants of a module's instructions that need no run: queues, waits, memory ranges, and whose memory they touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip
from engine.tpu.core_races import core_races
from engine.tpu.cores import core_problems
from engine.tpu.extents import extents
from engine.tpu.isa import Arena, Direction, Engine, Opcode, Space
from engine.tpu.memory import ArenaLayout

_FIRST_TIU = 16
_SHOWN = 3
"""Findings of one kind that are listed one by one; the rest are counted."""

Array = np.ndarray[Any, Any]


def program_problems(
    program: np.ndarray, ops: Sequence[OpRecord], layout: ArenaLayout, chip: Chip
) -> list[str]:
    """Everything in a program that cannot be right, as sentences; empty when all is well.

    program: INSTRUCTION records. ops: the module's records with addresses. Checked: opcodes run on their engine; ids of
    each core's queues count up from 1; waits name commands issued before; every instruction belongs to an op, and ops
    follow each other; operands are inside local memory or inside their arena; weights are not written; DDR operands lie
    inside the tensors that the op reads, results inside those that it makes; the chip has the cores that run ops and
    instructions, and no core writes what another one uses before the next barrier.
    """
    found = [*core_problems(ops, chip.cores), *_cores(program, chip)]
    for finder in (_engines, _ids, _waits, _ops, _order):
        found += finder(program, ops)
    for name, operand in _operands(program):
        found += _in_local(name, operand, chip)
        found += _in_arena(name, operand, layout)
    if found:
        return found
    races = [str(race) for race in core_races(program)]
    return [*_written_weights(program), *_foreign(program, ops, layout), *races]


def _listed(rows: Array, reason: str) -> Iterator[str]:
    """One sentence for each of the first instructions, and one that counts the others."""
    positions = np.flatnonzero(rows).tolist()
    for position in positions[:_SHOWN]:
        yield f"instruction {position} {reason}"
    if len(positions) > _SHOWN:
        yield f"{len(positions) - _SHOWN} more instructions: the same"


def _engines(program: np.ndarray, ops: Sequence[OpRecord]) -> Iterator[str]:
    known = np.isin(program["opcode"], [int(opcode) for opcode in Opcode])
    yield from _listed(~known, "has an unknown opcode")
    tiu = program["opcode"] >= _FIRST_TIU
    yield from _listed(tiu != (program["engine"] == Engine.TIU), "is queued on the wrong engine")
    yield from _listed(
        ~tiu & ~np.isin(program["direction"], [int(way) for way in Direction]), "has an unknown direction"
    )


def _cores(program: np.ndarray, chip: Chip) -> Iterator[str]:
    yield from _listed(program["core"] >= chip.cores, f"runs on a core that {chip.name} does not have")


def _ids(program: np.ndarray, ops: Sequence[OpRecord]) -> Iterator[str]:
    for core in np.unique(program["core"]):
        for engine in Engine:
            mine = (program["core"] == core) & (program["engine"] == engine)
            expected = np.zeros(len(program), np.int64)
            expected[mine] = np.arange(1, int(mine.sum()) + 1)
            wrong = mine & (program["id"] != expected)
            yield from _listed(wrong, f"has an id out of order on the {engine.name} queue of core {core}")


def _waits(program: np.ndarray, ops: Sequence[OpRecord]) -> Iterator[str]:
    for core in np.unique(program["core"]):
        on_core = program["core"] == core
        for engine in Engine:
            issued = np.cumsum(on_core & (program["engine"] != engine))
            late = on_core & (program["engine"] == engine) & (program["wait"] > issued)
            yield from _listed(late, "waits for a command of the other queue that is not issued before it")


def _ops(program: np.ndarray, ops: Sequence[OpRecord]) -> Iterator[str]:
    valid = np.array([op.name.startswith("tpu.") and op.name not in ("tpu.Group", "tpu.Yield") for op in ops])
    inside = (program["op"] >= 0) & (program["op"] < len(ops))
    belongs = np.zeros(len(program), bool)
    belongs[inside] = valid[program["op"][inside]]
    yield from _listed(~belongs, "belongs to no op that computes")


def _order(program: np.ndarray, ops: Sequence[OpRecord]) -> Iterator[str]:
    top = np.array([index if op.parent is None else op.parent for index, op in enumerate(ops)])
    inside = (program["op"] >= 0) & (program["op"] < len(ops))
    order = top[program["op"][inside]]
    backwards = np.zeros(len(program), bool)
    backwards[np.flatnonzero(inside)[1:]] = np.diff(order) < 0
    yield from _listed(backwards, "belongs to an op that has ended before")


# -- memory --------------------------------------------------------------------------------------------------------


def _operands(program: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "result", program["result"]
    for number in range(program["operands"].shape[1]):
        yield f"operand {number}", program["operands"][:, number]


def _in_local(name: str, operand: np.ndarray, chip: Chip) -> Iterator[str]:
    local = operand["space"] == Space.LOCAL
    yield from _listed(local & (operand["shape"] < 1).any(axis=1), f"has an empty {name}")
    _, end = extents(operand, chip.lanes)
    outside = local & ((operand["address"] < 0) | (end > chip.lmem_bytes) | (operand["lane"] >= chip.lanes))
    yield from _listed(outside, f"has its {name} outside of the {chip.lmem_bytes} bytes of a lane")


def _in_arena(name: str, operand: np.ndarray, layout: ArenaLayout) -> Iterator[str]:
    remote = operand["space"] == Space.DDR
    _, end = extents(operand)
    for arena in Arena:
        mine = remote & (operand["arena"] == arena)
        outside = mine & ((operand["address"] < 0) | (end > layout.size[arena]))
        yield from _listed(
            outside,
            f"has its {name} outside of the {layout.size[arena]} bytes of the {arena.name.lower()} arena",
        )


def _written_weights(program: np.ndarray) -> Iterator[str]:
    result = program["result"]
    written = (result["space"] == Space.DDR) & (result["arena"] == Arena.COEFF)
    yield from _listed(written, "writes into the weights")


def _foreign(program: np.ndarray, ops: Sequence[OpRecord], layout: ArenaLayout) -> Iterator[str]:
    """Accesses outside of the tensors of the instruction's op."""
    base = np.array([layout.base[arena] for arena in Arena], np.int64)
    columns = list(_operands(program))
    for index in np.unique(program["op"]).tolist():
        rows = np.flatnonzero(program["op"] == index)
        op = ops[index]
        for name, operand in columns:
            part = operand[rows]
            remote = part["space"] == Space.DDR
            if not remote.any():
                continue
            start, end = (base[np.where(remote, part["arena"], 0)] + at for at in extents(part))
            reads = name != "result"
            allowed = _ranges(op.operand_types if reads else op.result_types)
            fits = np.zeros(len(rows), bool)
            for low, high in allowed:
                fits |= (start >= low) & (end <= high)
            wrong = np.zeros(len(program), bool)
            wrong[rows[remote & ~fits]] = True
            what = "reads DDR outside of the operands" if reads else "writes DDR outside of the results"
            yield from _listed(wrong, f"{what} of {op.name} {op.location}")


def _ranges(types: Sequence[TensorType]) -> list[tuple[int, int]]:
    return [(t.address, t.address + t.nbytes) for t in types if t.address is not None]
