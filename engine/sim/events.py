"""What the two engines do when, as plain events that a trace writer or a timeline draws.

Events of a module count cycles from its start; a timeline places runs of modules one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.errors import CompileError, UserError
from engine.merge import layout_of
from engine.sim.program import Program
from engine.sim.timing import Bound, ModuleTiming, time_module
from engine.snapshot import Snapshot
from engine.stages import Kind, ModuleSpec, Stage, find
from engine.tpu.chip import Chip
from engine.tpu.isa import DTYPES, OPERANDS, Arena, Direction, Engine, Opcode, Space, moved_bytes

PROGRAM_PASS = "codegen"
"""The pass whose snapshot holds the program."""


class PartialProgram(Program, Protocol):
    """A compilation that may still be going on. complete: every module is there, so that `merged` is known."""

    @property
    def complete(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class OperandPlace:
    """Where an operand of an instruction lies and what it holds.

    space: `LMEM`, `DDR` or `constant`. address: in LMEM bytes in each lane, in DDR bytes from the start of `arena`.
    bank: of the LMEM address.
    """

    space: str
    dtype: str
    shape: tuple[int, ...] = ()
    address: int = 0
    arena: Arena | None = None
    bank: int | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class InstructionEvent:
    """One instruction: engine and core that run it, first cycle and duration, the op record that it belongs to.

    number: its id in its queue. wait: id of the other queue's command that it waits for, 0 for none. nbytes: moved
    through DDR. direction: `load`, `store`, `ddr_to_ddr`; empty for the TIU.
    """

    start: int
    cycles: int
    engine: Engine
    core: int
    kind: str
    op: int
    number: int
    wait: int
    step: int
    nbytes: int
    direction: str
    result: OperandPlace
    operands: tuple[OperandPlace, ...]


@dataclass(frozen=True, slots=True)
class OpEvent:
    """The part of a module's time that an op adds; these never overlap. index: of its record."""

    start: int
    cycles: int
    index: int
    name: str
    location: str
    bound: Bound
    ddr_read_bytes: int
    ddr_write_bytes: int


@dataclass(frozen=True)
class ModuleEvents:
    """One run of a module. ops: by start; names of ops by record index in `op_names` and `locations`."""

    module: str
    cycles: int
    ops: tuple[OpEvent, ...]
    instructions: tuple[InstructionEvent, ...]
    op_names: Mapping[int, str]
    locations: Mapping[int, str]


@dataclass(frozen=True)
class ModuleRun:
    """A run on the timeline. name: as its layer calls it. bases: DDR address of each arena. start: cycle."""

    name: str
    layer: int
    start: int
    bases: Mapping[Arena, int]
    events: ModuleEvents


@dataclass(frozen=True)
class Timeline:
    """Runs one behind the other at `clock_hz` cycles a second."""

    title: str
    chip: str
    clock_hz: float
    runs: tuple[ModuleRun, ...]

    @property
    def cycles(self) -> int:
        """Length of the whole timeline."""
        return max((run.start + run.events.cycles for run in self.runs), default=0)


def timeline(program: PartialProgram, module: str | None = None, history: int | None = None) -> Timeline:
    """What runs for one call of `module` (of the layer that it names), or, for None, for one decoded token.

    A decoded token is the embedding, every layer's block of the longest cache, and the heads. Addresses are those of
    the whole program where everything was compiled, else the module's own. history: rows of history that hold data in
    a prefill_kv module, None for all. Raises UserError for an unknown module and a history that it does not read,
    CompileError for one that was not compiled.
    """
    check_history(program, module, history)
    calls = _decode_calls(program.specs) if module is None else [find(program.specs, module)]
    chip = program.options.chip
    known: dict[str, ModuleEvents] = {}
    runs: list[ModuleRun] = []
    start = 0
    for spec, layer in calls:
        snapshot = program_snapshot(program, spec)
        if spec.name not in known:
            known[spec.name] = module_events(snapshot, chip, history)
        bases = _bases(program, spec, layer, snapshot)
        runs.append(ModuleRun(spec.name_for(layer), layer, start, bases, known[spec.name]))
        start += known[spec.name].cycles
    what = "one decoded token" if module is None else module
    return Timeline(f"{program.config.name}: {what}", chip.name, chip.clock_hz, tuple(runs))


def check_history(program: PartialProgram, module: str | None, history: int | None) -> None:
    """Raise UserError unless a length of the history is None, or fits the prefill_kv module that it is given for."""
    if history is None:
        return
    option = f"--history-length {history}"
    if module is None:
        raise UserError(
            f"{option} is about one module of prefill_kv; give --module NAME too, such as block_kv_0"
        )
    if find(program.specs, module)[0].stage is not Stage.PREFILL_KV:
        raise UserError(
            f"{option} is about modules of prefill_kv, such as block_kv_0; {module} does not take it"
        )
    length = program.options.seq_length
    if not 0 <= history <= length:
        raise UserError(f"{option} is out of range; accepted: 0 to {length} (--seq-length)")


def _decode_calls(specs: Sequence[ModuleSpec]) -> Iterator[tuple[ModuleSpec, int]]:
    """(module, layer) of one decode step in order."""
    for spec in specs:
        if spec.kind is Kind.EMBEDDING and spec.stage is Stage.DECODE:
            yield spec, 0
    blocks = [s for s in specs if s.kind is Kind.BLOCK and s.stage is Stage.DECODE and not s.variant]
    yield from sorted(((s, layer) for s in blocks for layer in s.layers), key=lambda call: call[1])
    for spec in specs:
        if spec.kind in (Kind.LM_HEAD, Kind.GREEDY_HEAD):
            yield spec, 0


def program_snapshot(program: PartialProgram, spec: ModuleSpec) -> Snapshot:
    """A module with its instructions. Raises CompileError for one that was not compiled."""
    module = program.modules.get(spec.name)
    for snapshot in module.snapshots if module else ():
        if snapshot.pass_name == PROGRAM_PASS:
            return snapshot
    cause = module.error if module and module.error else f"module {spec.name} was not compiled"
    raise CompileError(cause, spec.name, PROGRAM_PASS)


def _bases(program: PartialProgram, spec: ModuleSpec, layer: int, snapshot: Snapshot) -> dict[Arena, int]:
    """DDR address of each arena."""
    if not program.complete:
        return dict(layout_of(snapshot).base)
    bases = program.merged.bases[spec.name, layer]
    return {arena: bases.of(arena) for arena in Arena}


def module_events(snapshot: Snapshot, chip: Chip, history: int | None = None) -> ModuleEvents:
    """The events of one run of a module. Raises CompileError for a snapshot without instructions."""
    program = snapshot.report
    if not isinstance(program, np.ndarray):
        raise CompileError(f"module {snapshot.module} has no instructions", snapshot.module, PROGRAM_PASS)
    timing = time_module(program, chip, history)
    ops = tuple(_op_events(snapshot, timing))
    used = {event.index for event in ops}
    return ModuleEvents(
        snapshot.module,
        timing.total_cycles,
        ops,
        tuple(_instruction_events(program[timing.instructions], timing, chip)),
        {index: snapshot.ops[index].kind for index in used},
        {index: snapshot.ops[index].location for index in used},
    )


def _op_events(snapshot: Snapshot, timing: ModuleTiming) -> Iterator[OpEvent]:
    last: dict[int, int] = {}
    for op, end in zip(_op_column(snapshot, timing), timing.schedule.end.tolist(), strict=True):
        last[op] = max(end, last.get(op, -1))
    start = 0
    for cost in sorted(timing.ops, key=lambda op: last[op.op]):
        record = snapshot.ops[cost.op]
        yield OpEvent(
            start,
            cost.cycles,
            cost.op,
            record.name,
            record.location,
            cost.bound,
            cost.ddr_read_bytes,
            cost.ddr_write_bytes,
        )
        start += cost.cycles


def _op_column(snapshot: Snapshot, timing: ModuleTiming) -> list[int]:
    column: list[int] = snapshot.report["op"][timing.instructions].tolist()
    return column


_COLUMNS = ("engine", "core", "opcode", "op", "id", "wait", "step", "direction")


def _instruction_events(program: np.ndarray, timing: ModuleTiming, chip: Chip) -> Iterator[InstructionEvent]:
    columns = [program[name].tolist() for name in _COLUMNS]
    columns += [
        column.tolist() for column in (timing.schedule.start, timing.instruction_cycles, moved_bytes(program))
    ]
    results = _places(program["result"], chip)
    operands = [_places(program["operands"][:, index], chip) for index in range(OPERANDS)]
    for row, values in enumerate(zip(*columns, strict=True)):
        engine, core, opcode, op, number, wait, step, direction, start, cycles, nbytes = values
        yield InstructionEvent(
            start,
            cycles,
            Engine(engine),
            core,
            Opcode(opcode).name,
            op,
            number,
            wait,
            step,
            nbytes,
            Direction(direction).name.lower() if engine == Engine.GDMA else "",
            results[row] or _NOWHERE,
            tuple(place for column in operands if (place := column[row]) is not None),
        )


_NOWHERE = OperandPlace("none", "none")


def _places(operand: np.ndarray, chip: Chip) -> list[OperandPlace | None]:
    """A column of operands; None where an instruction has none."""
    names = ("space", "dtype", "arena", "shape", "address", "value")
    columns = [operand[name].tolist() for name in names]
    return [_place(chip, *values) for values in zip(*columns, strict=True)]


def _place(
    chip: Chip, space: int, dtype: int, arena: int, shape: list[int], address: int, value: float
) -> OperandPlace | None:
    if space == Space.NONE:
        return None
    if space == Space.CONSTANT:
        return OperandPlace("constant", DTYPES[dtype], value=value)
    if space == Space.DDR:
        return OperandPlace("DDR", DTYPES[dtype], tuple(shape), address, Arena(arena))
    return OperandPlace("LMEM", DTYPES[dtype], tuple(shape), address, bank=address // chip.bank_bytes)
