"""Small modules whose groups are planned by hand, compiled as far as instructions, and run in two ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine import mlir
from engine.errors import UserError
from engine.merge import placed_weights
from engine.options import CompileOptions
from engine.passes.address_assign import AddressAssign
from engine.passes.base import PassContext
from engine.passes.codegen import Codegen
from engine.passes.core_parallel import CoreParallel
from engine.passes.layer_group.apply import apply_plans, mark_bank_conflicts
from engine.passes.layer_group.layout import Role, read_as, read_weight
from engine.passes.layer_group.plan import GroupPlan, GroupType, Item, ItemKind, Secs, Slices, TimeStep
from engine.sim.interpreter import CheckpointWeights, Interpreter, PreparedWeights
from engine.sim.machine_runtime import MachineExecutor
from engine.snapshot import OpRecord, Snapshot
from engine.stages import Kind, ModuleSpec, Stage, TensorSpec
from engine.tpu.chip import Chip
from engine.tpu.emit import Emitter, align_up, ceil_div
from engine.tpu.isa import Arena
from engine.tpu.memory import ArenaLayout

Arrays = dict[str, np.ndarray]


def options(chip_name: str = "bm1684x", cores: int = 1) -> CompileOptions:
    return CompileOptions(chip_name, "bf16", 64, 16, (), cores=cores)


class RandomTensors:
    """Weights by name, float32; `whole`: integers from -2 to 2."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], whole: bool = False) -> None:
        random = np.random.default_rng(7)
        self._tensors = {
            name: (random.integers(-2, 3, shape) if whole else random.standard_normal(shape)).astype(
                np.float32
            )
            for name, shape in shapes.items()
        }

    def tensor(self, name: str) -> np.ndarray:
        return self._tensors[name]

    def computed(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        raise UserError(f"no computed tensor {name}")


# -- plans by hand -------------------------------------------------------------------------------------------------


@dataclass
class HandPlan:
    """One group in which no memory is used twice. type, secs: given; slices follow. pipelined: a time step for each op,
    stores a step later, the next slice's loads in a last one; otherwise loads, ops, stores one after the other."""

    ops: Sequence[OpRecord]
    indices: Sequence[int]
    secs: Secs
    chip: Chip
    type: GroupType = GroupType.MM
    held: frozenset[str] = frozenset()
    pipelined: bool = False
    items: list[Item] = field(default_factory=list)
    used: int = 0

    def build(self) -> GroupPlan:
        records = [self.ops[index] for index in self.indices]
        weights = {op.results[0] for op in self.ops if op.name == "top.Weight"}
        makers = {op.results[0]: op for op in records}
        at: dict[str, int] = {}
        steps: list[tuple[int, ...]] = []
        loads = []
        for index, op in zip(self.indices, records, strict=True):
            for value, type_ in zip(op.operands, op.operand_types, strict=True):
                if value not in makers and value not in at and not type_.is_none:
                    role = Role.ROWS
                    if value in weights:
                        role = Role.MATRIX if len(type_.shape) == 2 else Role.VECTOR
                    loads.append(self._add(ItemKind.LOAD, index, value, type_, role, at))
        first_step = tuple(loads)
        for index, op in zip(self.indices, records, strict=True):
            if op.kind == "Reshape":
                at[op.results[0]] = at[op.operands[0]]
            steps.append(
                (self._add(ItemKind.COMPUTE, index, op.results[0], op.result_types[0], Role.ROWS, at),)
            )
        inside = set(self.indices)
        read = {v for i, op in enumerate(self.ops) if i not in inside for v in op.operands}
        stored = [op for op in records if op.results[0] in read]
        ids = [
            self._add(
                ItemKind.STORE,
                self.indices[records.index(op)],
                op.results[0],
                op.result_types[0],
                Role.ROWS,
                at,
            )
            for op in stored
        ]
        if self.pipelined:
            steps.append(first_step)
            for op, number in zip(stored, ids, strict=True):
                steps[records.index(op) + 1] += (number,)
        else:
            steps = [first_step, *steps, tuple(ids)]
        kinds = {item.id: item.kind for item in self.items}
        table = tuple(
            TimeStep(
                tuple(i for i in step if kinds[i] is ItemKind.COMPUTE),
                tuple(i for i in step if kinds[i] is not ItemKind.COMPUTE),
                0,
                0,
            )
            for step in steps
        )
        return GroupPlan(
            tuple(self.indices),
            self.type,
            self.secs,
            1 + self.pipelined,
            tuple(self.items),
            table,
            (),
            0,
            self.used,
        )

    def _add(
        self, kind: ItemKind, record: int, value: str, type_: Any, role: Role, at: dict[str, int]
    ) -> int:
        aligned = role is not Role.VECTOR
        rows = role is Role.ROWS
        shape = read_as(type_.shape, self.type, self.chip.lanes) if rows else read_weight(type_.shape, role)
        slices = self._slices(shape, rows)
        largest = tuple(max(lengths) for lengths in slices.lengths)
        n, c, _, h, w = largest
        emit = Emitter(self.chip, {})
        nbytes = emit.local_bytes(type_.dtype, (n, c, h, w), aligned=aligned)
        if value not in at:
            at[value] = self._take(nbytes)
        scratch, stage = (0, 0), int(self.pipelined and kind is not ItemKind.LOAD)
        if kind is ItemKind.COMPUTE and self.ops[record].kind in ("RMSNorm", "Rope", "Active"):
            size = 8 * align_up(4 * ceil_div(c, self.chip.lanes) * n * align_up(h * w, 16), 64)
            scratch = (self._take(size), size)
        self.items.append(
            Item(
                len(self.items), kind, record, value, stage, value in self.held and kind is ItemKind.LOAD,
                at[value], nbytes, *scratch, aligned, slices,
            )
        )  # fmt: skip
        return len(self.items) - 1

    def _take(self, nbytes: int) -> int:
        start, self.used = self.used, align_up(self.used + nbytes, self.chip.eu_bytes)
        assert self.used <= self.chip.lmem_bytes
        return start

    def _slices(self, shape: tuple[int, int, int, int], rows: bool) -> Slices:
        n, c, h, w = shape
        cuts = [
            _cut(n, self.secs.n if rows else 1, 1),
            _cut(c, self.secs.c if rows else 1, self.chip.lanes),
            ((0,), (1,)),
            _cut(h, self.secs.h if rows else 1, 1),
            _cut(w, self.secs.w if rows else 1, 1),
        ]
        return Slices(tuple(start for start, _ in cuts), tuple(length for _, length in cuts))


def _cut(length: int, count: int, unit: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    step = align_up(ceil_div(length, count), unit)
    starts = tuple(min(step * i, length) for i in range(count)) if count > 1 else (0,)
    return starts, tuple(min(start + step, length) - start for start in starts)


# -- compiling and running -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """A module as far as its instructions."""

    snapshot: Snapshot
    options: CompileOptions
    loader: CheckpointWeights
    outputs: tuple[str, ...]

    def machine(self, *, checks: bool = True) -> MachineExecutor:
        size = ArenaLayout.of(self.snapshot.attributes).size[Arena.COEFF]
        coeff = np.zeros(max(1, size), np.uint8)
        placed = placed_weights(self.snapshot)
        for weight, numbers in zip(placed, self.loader.load([w.reference for w in placed], 0), strict=True):
            coeff[weight.offset : weight.offset + numbers.nbytes] = np.frombuffer(numbers.tobytes(), np.uint8)
        return MachineExecutor(self.snapshot, self.options.chip, coeff, outputs=self.outputs, checks=checks)

    def run(self, inputs: Arrays) -> tuple[Arrays, Arrays, MachineExecutor]:
        """(the machine's outputs, the interpreter's, the machine)."""
        interpreter = Interpreter(self.snapshot, PreparedWeights(self.loader), outputs=self.outputs)
        machine = self.machine()
        return machine.run(inputs), interpreter.run(inputs), machine


Planner = Callable[[Sequence[OpRecord], Chip], Sequence[GroupPlan]]


def build(
    text: str, planner: Planner, *, chip_name: str = "bm1684x", whole: bool = False, cores: int = 1
) -> Built:
    """Parse a module, apply the planned groups, share them between cores, give addresses and emit instructions."""
    chosen = options(chip_name, cores)
    with mlir.using(mlir.new_context()):
        module = mlir.parse(text)
        records = mlir.records(module)
        inputs = tuple(
            TensorSpec(op.origins[0], op.result_types[0]) for op in records if op.name == "top.Input"
        )
        outputs = tuple(TensorSpec(f"out{i}", t) for i, t in enumerate(records[-1].operand_types))
        spec = ModuleSpec("m", Stage.BOTH, Kind.LM_HEAD, (), inputs, outputs, 1)
        shapes = {
            op.attributes["tensors"][0]: op.result_types[0].shape for op in records if op.name == "top.Weight"
        }
        apply_plans(module, records, planner(records, chosen.chip))
        mark_bank_conflicts(module, chosen.chip)
        mlir.verify(module)
        context = PassContext(spec, None, chosen)  # type: ignore[arg-type]
        if cores > 1:
            CoreParallel().run(module, context)
        AddressAssign().run(module, context)
        report = Codegen().run(module, context)
        assert report is not None
        printed = mlir.print_module(module)
        assert mlir.print_module(mlir.parse(printed)) == printed
        snapshot = Snapshot(
            "m", "codegen", printed, mlir.records(module, printed), mlir.module_attributes(module), True, 0.0,
            (), report.data,
        )  # fmt: skip
    loader = CheckpointWeights(RandomTensors(shapes, whole))
    return Built(snapshot, chosen, loader, tuple(t.name for t in outputs))
