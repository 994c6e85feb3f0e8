"""What is wrong with a module's instructions beside its records: writes over live data, groups emitted otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from engine.options import CompileOptions
from engine.passes.layer_group.emission import emit_group
from engine.passes.layer_group.view import GroupView, group_indices, read_group
from engine.sim.memory_rules import memory_rules
from engine.snapshot import OpRecord, Snapshot
from engine.tpu.emit import Emitter
from engine.tpu.isa import INSTRUCTION, OPERANDS, Engine, runs_with_history
from engine.tpu.memory import ArenaLayout
from engine.tpu.overwrites import Overwrite, overwrites

_SHOWN = 3
"""Instructions of one group that are listed one by one; the rest are counted."""


def instruction_problems(snapshot: Snapshot, options: CompileOptions) -> Iterator[str]:
    """Sentences; none when all is well. snapshot: of a module after codegen.

    Raises CompileError for a group that cannot be read.
    """
    layout = ArenaLayout.of(snapshot.attributes)
    yield from _written_over(snapshot, layout, options)
    for index in group_indices(snapshot.ops):
        yield from _emitted_otherwise(snapshot, read_group(snapshot.ops, index), layout, options)


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


# -- groups --------------------------------------------------------------------------------------------------------


def _emitted_otherwise(
    snapshot: Snapshot, view: GroupView, layout: ArenaLayout, options: CompileOptions
) -> Iterator[str]:
    """Instructions of a group that are not those which its records give."""
    program = snapshot.report
    where = f"group at {view.record.location} (record {view.index})"
    rows = np.flatnonzero(np.isin(program["op"], [item.index for item in view.items.values()]))
    emit = Emitter(options.chip, layout.spans(), options.cores)
    before = program[: rows[0]] if rows.size else program[:0]
    for core, engine in product(range(options.cores), Engine):
        emit.stream.last[core][engine] = int(((before["core"] == core) & (before["engine"] == engine)).sum())
    try:
        emit_group(view, emit)
    except ValueError as error:
        yield f"{where}: {error}"
        return
    found, given = program[rows], emit.program()
    if len(found) != len(given):
        yield f"{where} has {len(found)} instructions, its records give {len(given)}"
        return
    wrong = np.flatnonzero((_bytes(found) != _bytes(given)).any(axis=1)).tolist()
    for at in wrong[:_SHOWN]:
        op: OpRecord = snapshot.ops[given["op"][at]]
        difference = _difference(found[at], given[at])
        yield f"instruction {rows[at]} of {op.name} {op.location} is not what its records give: {difference}"
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
    name, is_, should = next(field for field in fields if np.any(field[1] != field[2]))
    return f"the {name} is {np.asarray(is_).tolist()}, not {np.asarray(should).tolist()}"
