"""What is wrong with a module's instructions beside its records: writes over live data, ops emitted otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from engine.options import CompileOptions
from engine.passes.emission import emit_op
from engine.passes.layer_group.view import GROUP
from engine.sim.memory_rules import memory_rules
from engine.snapshot import OpRecord, Snapshot
from engine.tpu.emit import Emitter
from engine.tpu.isa import INSTRUCTION, OPERANDS, Engine, runs_with_history
from engine.tpu.memory import ArenaLayout
from engine.tpu.overwrites import Overwrite, overwrites

_SHOWN = 3
"""Instructions of one op or group that are listed one by one; the rest are counted."""


def instruction_problems(snapshot: Snapshot, options: CompileOptions) -> Iterator[str]:
    """Sentences; none when all is well. snapshot: of a module after codegen.

    Raises CompileError for a group that cannot be read.
    """
    layout = ArenaLayout.of(snapshot.attributes)
    yield from _written_over(snapshot, layout, options)
    yield from _emitted_otherwise(snapshot, layout, options)


def _written_over(snapshot: Snapshot, layout: ArenaLayout, options: CompileOptions) -> Iterator[str]:
    """Writes over what is still to be read: the first one of each op over each thing, and how many more there are."""
    program, chip = snapshot.report, options.chip
    rules = memory_rules(snapshot.ops, layout, program, chip)
    found: dict[tuple[int, str], list[Overwrite]] = {}
    for write in overwrites(program, chip, rules.reserved, runs_with_history(program, None)):
        key = (int(program["op"][write.instruction]), write.reserved.holds)
        found.setdefault(key, []).append(write)
    for (op, _), writes in found.items():
        more = f"; {len(writes) - 1} more of its instructions: the same" if len(writes) > 1 else ""
        yield f"instruction {writes[0].instruction} of {rules.name(op)} {writes[0]}{more}"


# -- what the records give -----------------------------------------------------------------------------------------


def _emitted_otherwise(snapshot: Snapshot, layout: ArenaLayout, options: CompileOptions) -> Iterator[str]:
    """Instructions that are not those which the records give: each op, or group, is emitted anew behind those that the
    program has before it, so that one too many is not found in all that follow."""
    program, ops = snapshot.report, snapshot.ops
    owner = np.array([index if op.parent is None else op.parent for index, op in enumerate(ops)], np.int64)
    whose = np.where((program["op"] >= 0) & (program["op"] < len(ops)), program["op"], len(ops))
    whose = np.append(owner, len(ops))[whose]
    order = np.argsort(whose, kind="stable")
    ends = np.searchsorted(whose[order], np.arange(len(ops) + 1))
    queues = program["core"].astype(np.int64) * len(Engine) + program["engine"]
    for index in np.flatnonzero(owner == np.arange(len(ops))).tolist():
        rows = order[ends[index] : ends[index + 1]]
        emit = Emitter(options.chip, layout.spans(), options.cores)
        before = np.bincount(queues[: rows[0] if rows.size else 0], minlength=options.cores * len(Engine))
        for core, engine in product(range(options.cores), Engine):
            emit.stream.last[core][engine] = int(before[core * len(Engine) + engine])
        yield from _op_emitted_otherwise(snapshot, index, rows, emit)


def _op_emitted_otherwise(snapshot: Snapshot, index: int, rows: np.ndarray, emit: Emitter) -> Iterator[str]:
    """The same of one op outside of groups, or of a group. rows: its instructions in the program."""
    op = snapshot.ops[index]
    where = f"group at {op.location} (record {index})" if op.name == GROUP else f"{op.name} {op.location}"
    try:
        emit_op(snapshot.ops, index, emit)
    except ValueError as error:
        yield f"{where}: {error}"
        return
    found, given = snapshot.report[rows], emit.program()
    if len(found) != len(given):
        yield f"{where} has {len(found)} instructions, its records give {len(given)}"
        return
    wrong = np.flatnonzero((_bytes(found) != _bytes(given)).any(axis=1)).tolist()
    for at in wrong[:_SHOWN]:
        mine: OpRecord = snapshot.ops[given["op"][at]]
        difference = _difference(found[at], given[at])
        yield f"instruction {rows[at]} of {mine.name} {mine.location} is not what its records give: {difference}"
    if len(wrong) > _SHOWN:
        yield f"{where}: {len(wrong) - _SHOWN} more instructions are not what its records give"


def _bytes(program: np.ndarray) -> np.ndarray[Any, Any]:
    """uint8 [instructions, bytes of one]."""
    return np.frombuffer(program.tobytes(), np.uint8).reshape(len(program), INSTRUCTION.itemsize)


def _difference(found: np.void, given: np.void) -> str:
    """The first field in which two instructions differ."""
    tensors = [("result", found["result"], given["result"])]
    tensors += [
        (f"operand {number}", found["operands"][number], given["operands"][number])
        for number in range(OPERANDS)
    ]
    assert INSTRUCTION.names is not None
    fields = [(name, found[name], given[name]) for name in INSTRUCTION.names[:-2]]
    for tensor, mine, theirs in tensors:
        fields += [(f"{name} of its {tensor}", mine[name], theirs[name]) for name in mine.dtype.names]
    name, is_, should = next(field for field in fields if field[1].tobytes() != field[2].tobytes())
    return f"the {name} is {np.asarray(is_).tolist()}, not {np.asarray(should).tolist()}"
