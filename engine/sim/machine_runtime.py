"""Runs compiled modules on the functional machine: their instructions, on the bytes of their DDR arenas.

    runtime = Runtime(program, weights, MachineExecutors(program, weights))

Instructions compute what runs on the accelerator; ops of the host (TopK, Sample) run by their NumPy meaning between
them, on the bytes that the instructions left in DDR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

import engine.tpu.ops  # noqa: F401
from engine.errors import CompileError, UserError
from engine.merge import PlacedWeight, placed_weights
from engine.op import REGISTRY, TpuOp
from engine.sim.arithmetic import NUMPY_DTYPES, convert
from engine.sim.interpreter import APPENDED, Regions, WeightLoader
from engine.sim.machine import Machine, Violation
from engine.sim.memory_rules import memory_rules
from engine.sim.program import Program
from engine.sim.runtime import PROGRAM_PASS, logits_value
from engine.snapshot import OpRecord, Snapshot, TensorType
from engine.stages import ModuleSpec
from engine.tpu.chip import Chip
from engine.tpu.isa import Arena
from engine.tpu.memory import ArenaLayout
from engine.tpu.numerics import to_float32

_UNWRITTEN = 0xFF
"""What memory holds before it is written: NaN in every float type."""


def _fill(memory: np.ndarray, weights: Sequence[PlacedWeight], loader: WeightLoader, layer: int) -> None:
    """Put weights of one layer where they lie in a coeff arena, uint8 [bytes]."""
    numbers = loader.load([weight.reference for weight in weights], layer)
    for weight, stored in zip(weights, numbers, strict=True):
        memory[weight.offset : weight.offset + stored.nbytes] = _bytes(stored)


class Weights:
    """The coeff arenas of a program as bytes: one for each base, so that a layer's modules share their weights."""

    def __init__(self, program: Program, loader: WeightLoader) -> None:
        self._plan, self._loader = program.merged, loader
        self._size: dict[int, int] = {}
        for (module, _), bases in self._plan.bases.items():
            layout = ArenaLayout.of(program.modules[module].after(PROGRAM_PASS).attributes)
            self._size[bases.coeff] = max(self._size.get(bases.coeff, 0), layout.size[Arena.COEFF])
        self._arrays: dict[int, np.ndarray] = {}
        self._filled: set[tuple[int, int]] = set()

    def arena(self, module: str, snapshot: Snapshot, layer: int) -> np.ndarray:
        """The arena of a module in one layer, uint8 [bytes], with that module's weights in place."""
        base = self._plan.bases[module, layer].coeff
        if base not in self._arrays:
            self._arrays[base] = np.full(self._size[base], _UNWRITTEN, np.uint8)
        memory = self._arrays[base]
        missing = [w for w in placed_weights(snapshot) if (base, w.offset) not in self._filled]
        _fill(memory, missing, self._loader, layer)
        self._filled |= {(base, weight.offset) for weight in missing}
        return memory


@dataclass(frozen=True)
class _Value:
    """A tensor in DDR: bytes from `offset` on in an arena of the module."""

    arena: Arena
    offset: int
    type: TensorType


@dataclass(frozen=True)
class _Part:
    """Instructions up to `stop` (exclusive), then an op of the host."""

    stop: int
    host: OpRecord | None


class MachineExecutor:
    """One module of one layer on a machine of its own; a `runtime.ModuleExecutor`.

    snapshot: after codegen. coeff: the module's weights, uint8 [bytes]. outputs: names of the returned values in
    order. observe: further SSA values to return, by the name they shall have; each needs a DDR address. checks: the
    machine records what it finds wrong in `violations` and memory is poisoned before each run.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        chip: Chip,
        coeff: np.ndarray,
        *,
        outputs: Sequence[str],
        observe: Mapping[str, str] | None = None,
        checks: bool = False,
    ) -> None:
        self.snapshot, self.chip, self.checks = snapshot, chip, checks
        self.program: np.ndarray = snapshot.report
        self._layout = ArenaLayout.of(snapshot.attributes)
        self._coeff = coeff
        self._values = self._find_values()
        self._inputs = {
            op.origins[0]: self._values[op.results[0]] for op in snapshot.ops if op.name == "top.Input"
        }
        returned = dict(zip(outputs, snapshot.ops[-1].operands, strict=True)) | dict(observe or {})
        self._returned = {name: self._value(value) for name, value in returned.items()}
        self._rows = {APPENDED[n]: v.type.shape[1] for n, v in self._inputs.items() if n in APPENDED}
        self._parts = self._cut()
        self._rules = memory_rules(snapshot.ops, self._layout, self.program, chip) if checks else None
        self.machine = self._new_machine()

    @property
    def violations(self) -> list[Violation]:
        """What the machine's checks found in the last run."""
        return self.machine.violations

    @property
    def bank_conflicts(self) -> dict[str, int]:
        """How many instructions of each op may use a bank of local memory at the same time as the other engine, by the
        op's name and location; see `Machine.bank_conflicts`."""
        ops = self.snapshot.ops
        return {f"{ops[at].name} {ops[at].location}": n for at, n in self.machine.bank_conflicts.items()}

    def run(self, inputs: Mapping[str, np.ndarray], regions: Regions | None = None) -> dict[str, np.ndarray]:
        """See `runtime.ModuleExecutor`. Raises MachineError for an instruction that cannot be run."""
        self.prepare(inputs, regions)
        self.advance(len(self.program))
        returned = self.outputs()
        for name in set(APPENDED.values()) & set(returned) if regions else ():
            start = self._rows.get(name, 0)
            cast(Regions, regions)[name][:, start : start + returned[name].shape[1]] = returned[name]
        return returned

    # -- step by step ----------------------------------------------------------------------------------------------

    def prepare(self, inputs: Mapping[str, np.ndarray], regions: Regions | None = None) -> None:
        """Put the inputs into memory and go in front of the first instruction.

        Raises UserError for a missing input or one of the wrong shape.
        """
        if self.checks:
            self.machine = self._new_machine()
        for name, value in self._inputs.items():
            self._put(value, self._input(name, value.type, inputs, regions))
        length = inputs.get("history_length")
        self._history = None if length is None else int(length.reshape(-1)[0])
        self._next, self._done = 0, 0

    def advance(self, stop: int) -> int:
        """Run instructions up to index `stop` (exclusive) and the host ops in between; returns the next index."""
        while self._done < len(self._parts):
            part = self._parts[self._done]
            self._next = self.machine.run(
                self.program,
                start=self._next,
                stop_at=min(stop, part.stop),
                history_length=self._history,
            )
            if self._next < part.stop:
                break
            if part.host is not None:
                self._run_host(part.host)
            self._done += 1
        return self._next

    def outputs(self) -> dict[str, np.ndarray]:
        """The returned values by name, as memory holds them now; floats as float32."""
        return {name: to_float32(self._get(value)) for name, value in self._returned.items()}

    def value(self, name: str) -> np.ndarray:
        """A copy of any SSA value's bytes in DDR, in its own dtype. Raises CompileError for one without address."""
        return self._get(self._value(name))

    # -- setting up ------------------------------------------------------------------------------------------------

    def _new_machine(self) -> Machine:
        memory = {
            arena: np.full(self._layout.size[arena], _UNWRITTEN, np.uint8)
            for arena in (Arena.IO, Arena.NEURON)
        }
        return Machine(self.chip, {Arena.COEFF: self._coeff, **memory}, checks=self.checks, rules=self._rules)

    def _find_values(self) -> dict[str, _Value]:
        found = {}
        for op in self.snapshot.ops:
            for name, type_ in zip(op.results, op.result_types, strict=True):
                if type_.address is not None:
                    found[name] = _Value(*self._layout.find(type_.address), type_)
        return found

    def _value(self, name: str) -> _Value:
        if name not in self._values:
            raise CompileError(f"module {self.snapshot.module}: {name} has no address in DDR")
        return self._values[name]

    def _cut(self) -> list[_Part]:
        """The program cut at the host's ops: each runs behind the instructions of all ops before it."""
        parts = []
        for index, op in enumerate(self.snapshot.ops):
            declaration = REGISTRY.get(op.name)
            if declaration is not None and issubclass(declaration, TpuOp) and declaration.host:
                later = np.flatnonzero(self.program["op"] > index)
                parts.append(_Part(int(later[0]) if later.size else len(self.program), op))
        return [*parts, _Part(len(self.program), None)]

    # -- moving numbers --------------------------------------------------------------------------------------------

    def _input(
        self, name: str, type_: TensorType, inputs: Mapping[str, np.ndarray], regions: Regions | None
    ) -> np.ndarray:
        if regions and name in APPENDED:
            return regions[APPENDED[name]][:, : type_.shape[1]]
        module = self.snapshot.module
        if name not in inputs:
            raise UserError(f"module {module}: input {name} is missing; it takes {', '.join(self._inputs)}")
        found = inputs[name]
        if found.shape != type_.shape:
            raise UserError(
                f"module {module}: input {name} has shape {list(found.shape)}, needed {list(type_.shape)}"
            )
        return found

    def _put(self, value: _Value, numbers: np.ndarray) -> None:
        stored = convert(np.asarray(numbers), NUMPY_DTYPES[value.type.dtype])
        end = value.offset + stored.nbytes
        self.machine.memory[value.arena][value.offset : end] = _bytes(stored)
        self.machine.mark_written(value.arena, value.offset, end)

    def _get(self, value: _Value) -> np.ndarray:
        stored = self.machine.memory[value.arena][value.offset : value.offset + value.type.nbytes]
        return stored.copy().view(NUMPY_DTYPES[value.type.dtype]).reshape(value.type.shape)

    def _run_host(self, op: OpRecord) -> None:
        operands = [
            None if type_.is_none else to_float32(self.value(name))
            for name, type_ in zip(op.operands, op.operand_types, strict=True)
        ]
        for name, result in zip(op.results, REGISTRY[op.name].compute(op, operands), strict=True):
            self._put(self._value(name), result)


class MachineExecutors:
    """Makes a MachineExecutor for every module and layer of a program: the `execute` of a Runtime.

    checks: see MachineExecutor. made: the executors so far, by (module, layer).
    """

    def __init__(self, program: Program, loader: WeightLoader, *, checks: bool = False) -> None:
        self._chip, self._checks = program.options.chip, checks
        self._weights = Weights(program, loader)
        self.made: dict[tuple[str, int], MachineExecutor] = {}

    def __call__(self, spec: ModuleSpec, snapshot: Snapshot, layer: int) -> MachineExecutor:
        coeff = self._weights.arena(spec.name, snapshot, layer)
        executor = _executor(spec, snapshot, self._chip, coeff, self._checks)
        self.made[spec.name, layer] = executor
        return executor


def module_executor(
    spec: ModuleSpec,
    snapshot: Snapshot,
    chip: Chip,
    loader: WeightLoader,
    layer: int = 0,
    *,
    checks: bool = False,
) -> MachineExecutor:
    """One module on a machine, without the rest of its program.

    snapshot: after codegen. checks: see MachineExecutor.
    """
    coeff = np.full(ArenaLayout.of(snapshot.attributes).size[Arena.COEFF], _UNWRITTEN, np.uint8)
    _fill(coeff, placed_weights(snapshot), loader, layer)
    return _executor(spec, snapshot, chip, coeff, checks)


def _executor(
    spec: ModuleSpec, snapshot: Snapshot, chip: Chip, coeff: np.ndarray, checks: bool
) -> MachineExecutor:
    return MachineExecutor(
        snapshot,
        chip,
        coeff,
        outputs=[tensor.name for tensor in spec.outputs],
        observe=logits_value(spec, snapshot),
        checks=checks,
    )


def _bytes(numbers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
