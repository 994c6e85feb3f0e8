"""Runs the op records of a module on NumPy arrays: the meaning of what a pass left behind, Top or Tpu, as numbers.

weights = PreparedWeights(CheckpointWeights(ModelTensors(checkpoint, config)))
block = Interpreter(snapshot, weights, layer=3)
block.run({"input_states": states, "position_ids": positions})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

import engine.top.ops
import engine.tpu.ops  # noqa: F401
from engine.errors import CompileError, UserError
from engine.op import REGISTRY, Op
from engine.snapshot import OpRecord, Snapshot
from engine.tpu.weights import TensorSource, WeightReference, materialize_many

Outputs = tuple[np.ndarray, ...]
Regions = Mapping[str, np.ndarray]
"""KV memory by the name of the output that is appended to it: `k_cache` and `v_cache`, each [1, rows, kv_heads, d]."""

_MOVES = ("tpu.Load", "tpu.Store")
"""Ops of a layer group that bring the same tensor from one memory to the other."""

APPENDED = {"history_k": "k_cache", "history_v": "v_cache"}
"""Module input -> the output whose rows are appended behind it."""


# -- weights -------------------------------------------------------------------------------------------------------


class WeightLoader(Protocol):
    """Where the numbers of weight references come from: a checkpoint, or a deployable file."""

    def load(self, references: Sequence[WeightReference], layer: int) -> Iterable[np.ndarray]:
        """The numbers of each reference for one layer, in order, as stored (bf16, packed ui8, ...)."""


@dataclass(frozen=True)
class CheckpointWeights:
    """Weights made from checkpoint tensors when they are asked for."""

    source: TensorSource

    def load(self, references: Sequence[WeightReference], layer: int) -> Iterable[np.ndarray]:
        """See WeightLoader. Raises UserError naming a tensor that is missing or does not fit."""
        return materialize_many(references, layer, self.source)


@dataclass(frozen=True)
class StoredWeights:
    """Weights that lie ready one by one, as in a deployable file: `StoredWeights(file.weight)`."""

    weight: Callable[[WeightReference, int], np.ndarray]

    def load(self, references: Sequence[WeightReference], layer: int) -> Iterable[np.ndarray]:
        """See WeightLoader."""
        return [self.weight(reference, layer) for reference in references]


class PreparedWeights:
    """Weights in the form in which ops use them, made once for all modules that use the same ones.

    The blocks of one layer (prefill, prefill_kv, decode and its variants) share every array; nothing is dequantised
    twice. Not for use by several threads at once.
    """

    def __init__(self, loader: WeightLoader) -> None:
        self._loader = loader
        self._stored: WeakValueDictionary[str, np.ndarray] = WeakValueDictionary()
        self._prepared: dict[tuple[Any, ...], dict[int, np.ndarray]] = {}

    def of(
        self, op: OpRecord, references: Mapping[int, WeightReference], layer: int
    ) -> dict[int, np.ndarray]:
        """What `Op.prepare` makes of the op's weights, by operand number."""
        names = tuple((number, reference.key(layer)) for number, reference in references.items())
        # where an op runs in local memory changes nothing in its weights
        attributes = sorted((name, value) for name, value in op.attributes.items() if name != "ginfo")
        key = (op.name, repr(attributes), op.operand_types[0].dtype, names)
        if key not in self._prepared:
            constants = self._load(references, layer)
            self._prepared[key] = REGISTRY[op.name].prepare(op, constants)
        return self._prepared[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all prepared arrays, each counted once."""
        arrays = {id(array): array.nbytes for made in self._prepared.values() for array in made.values()}
        return sum(arrays.values())

    def _load(self, references: Mapping[int, WeightReference], layer: int) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for number, reference in references.items():
            stored = self._stored.get(reference.key(layer))
            if stored is not None:
                found[number] = stored
        missing = {number: reference for number, reference in references.items() if number not in found}
        made = self._loader.load(list(missing.values()), layer)
        for (number, reference), stored in zip(missing.items(), made, strict=True):
            self._stored[reference.key(layer)] = found[number] = stored
        return found


# -- one module ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """One op of the plan: call `run` with the values in `operands`, keep the results, forget the `dead` values."""

    run: Callable[..., Outputs]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...]


class Interpreter:
    """One module of one layer, ready to run any number of times.

    snapshot: after any pass. observe: further SSA values to return, by the name they shall have. outputs: names of the
    returned values in order (default: the locations of the ops that make them).
    """

    def __init__(
        self,
        snapshot: Snapshot,
        weights: PreparedWeights,
        layer: int = 0,
        *,
        outputs: Sequence[str] | None = None,
        observe: Mapping[str, str] | None = None,
    ) -> None:
        self.module = snapshot.module
        builder = _PlanBuilder(snapshot, weights, layer, dict(observe or {}))
        self._inputs = builder.inputs
        self._steps = builder.steps
        self._size = builder.size
        names = list(outputs) if outputs is not None else builder.output_names
        if len(names) != len(builder.outputs):
            raise CompileError(
                f"module {self.module} returns {len(builder.outputs)} values, not {len(names)}"
            )
        observed = {name: builder.slots[value] for name, value in (observe or {}).items()}
        self._returned = {**dict(zip(names, builder.outputs, strict=True)), **observed}
        self._rows = {APPENDED[n]: shape[1] for n, (_, shape) in self._inputs.items() if n in APPENDED}
        self._to_store = {name for name in APPENDED.values() if name in self._returned} - builder.appended

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the module's inputs."""
        return tuple(self._inputs)

    def run(self, inputs: Mapping[str, np.ndarray], regions: Regions | None = None) -> dict[str, np.ndarray]:
        """Outputs by name. Floats are float32 arrays, exactly representable in the type that the snapshot says.

        With `regions` the module works in place as the chip does: histories are read there, in-place appends write the
        new rows behind the rows that the module reads, and nothing is copied. Raises UserError for a missing input or
        one of the wrong shape.
        """
        values: list[Any] = [None] * self._size
        for name, (slot, shape) in self._inputs.items():
            values[slot] = self._input(name, shape, inputs, regions)
        if regions:
            values[_REGIONS] = regions
        for step in self._steps:
            results = step.run(*[values[slot] for slot in step.operands])
            for slot, result in zip(step.results, results, strict=True):
                values[slot] = result
            for slot in step.dead:
                values[slot] = None
        returned = {name: values[slot] for name, slot in self._returned.items()}
        if regions:
            self._store(returned, regions)
        return returned

    def _store(self, returned: Mapping[str, np.ndarray], regions: Regions) -> None:
        """Leave new rows that no op of the module appended behind the rows that the module reads."""
        for name in self._to_store:
            start = self._rows.get(name, 0)
            regions[name][:, start : start + returned[name].shape[1]] = returned[name]

    def _input(
        self,
        name: str,
        shape: tuple[int, ...],
        inputs: Mapping[str, np.ndarray],
        regions: Regions | None,
    ) -> np.ndarray:
        if regions and name in APPENDED:
            return regions[APPENDED[name]][:, : shape[1]]
        if name not in inputs:
            raise UserError(
                f"module {self.module}: input {name} is missing; it takes {', '.join(self._inputs)}"
            )
        value = inputs[name]
        if value.shape != shape:
            raise UserError(
                f"module {self.module}: input {name} has shape {list(value.shape)}, needed {list(shape)}"
            )
        return value


_ABSENT = 0
"""Slot that always holds None."""
_REGIONS = 1
"""Slot of the KV regions of a run."""


class _PlanBuilder:
    """Turns records into steps over numbered slots."""

    def __init__(
        self, snapshot: Snapshot, weights: PreparedWeights, layer: int, observe: Mapping[str, str]
    ) -> None:
        self._snapshot, self._weights, self._layer = snapshot, weights, layer
        self.slots: dict[str, int] = {}
        self.size = _REGIONS + 1
        self.inputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.appended: set[str] = set()
        self.steps: list[_Step] = []
        self.outputs: list[int] = []
        self.output_names: list[str] = []
        self._references: dict[str, WeightReference] = {}
        self._makers: dict[str, OpRecord] = {}
        kept = set(observe.values())
        steps: list[tuple[Callable[..., Outputs], tuple[int, ...], tuple[int, ...]]] = []
        parents = {op.parent for op in snapshot.ops if op.parent is not None}
        for index, op in enumerate(snapshot.ops):
            for result in op.results:
                self._makers[result] = op
            if op.name == "top.Weight":
                self._references[op.results[0]] = WeightReference.from_record(op)
            elif op.name == "top.None":
                self.slots[op.results[0]] = _ABSENT
            elif op.name == "top.Input":
                self.inputs[op.origins[0]] = (self._new(op.results[0]), op.result_types[0].shape)
            elif op.name == "func.return":
                kept.update(op.operands)
                self._return(op)
            elif op.kind == "Yield" and op.parent is not None:
                self._alias(snapshot.ops[op.parent].results, op.operands)
            elif op.name in _MOVES:
                self._alias(op.results, op.operands)
            elif index not in parents:
                steps.append(self._step(op))
        self.steps = self._with_deaths(steps, {self.slots[name] for name in kept if name in self.slots})

    def _new(self, value: str) -> int:
        self.slots[value] = self.size
        self.size += 1
        return self.slots[value]

    def _alias(self, values: Sequence[str], sources: Sequence[str]) -> None:
        for value, source in zip(values, sources, strict=True):
            if source in self._references:
                self._references[value] = self._references[source]
            else:
                self.slots[value] = self.slots[source]

    def _return(self, op: OpRecord) -> None:
        self.outputs = [self.slots[operand] for operand in op.operands]
        self.output_names = [self._makers[operand].location for operand in op.operands]

    def _step(self, op: OpRecord) -> tuple[Callable[..., Outputs], tuple[int, ...], tuple[int, ...]]:
        if op.name not in REGISTRY:
            raise CompileError(
                f"module {self._snapshot.module}: op {op.name} at {op.location} has no meaning"
            )
        declaration = REGISTRY[op.name]
        references = {
            number: self._references[operand]
            for number, operand in enumerate(op.operands)
            if operand in self._references
        }
        prepared = self._weights.of(op, references, self._layer) if references else {}
        run = declaration.bind(op, prepared)
        operands = tuple(_ABSENT if n in references else self.slots[v] for n, v in enumerate(op.operands))
        appended = self._appended(op, declaration)
        if appended is not None:
            self.appended.add(appended)
            run, operands = _append(run, op, appended), (_REGIONS, *operands)
        return run, operands, tuple(self._new(result) for result in op.results)

    def _appended(self, op: OpRecord, declaration: type[Op]) -> str | None:
        """The region that an in-place concatenation appends to."""
        if op.name != "tpu.Concat" or not op.attributes.get("only_merge", False):
            return None
        source = self._makers[op.operands[0]]
        return APPENDED.get(source.location) if source.name == "top.Input" else None

    @staticmethod
    def _with_deaths(
        steps: Sequence[tuple[Callable[..., Outputs], tuple[int, ...], tuple[int, ...]]], kept: set[int]
    ) -> list[_Step]:
        kept = kept | {_ABSENT, _REGIONS}
        seen: set[int] = set()
        found: list[_Step] = []
        for run, operands, results in reversed(steps):
            used = {*operands, *results}
            found.append(_Step(run, operands, results, tuple(sorted(used - seen - kept))))
            seen |= used
        return found[::-1]


def _append(run: Callable[..., Outputs], op: OpRecord, region: str) -> Callable[..., Outputs]:
    """A concatenation of history and new rows that writes the new rows into the region, where the run has one."""
    start, end = op.operand_types[0].shape[1], op.result_types[0].shape[1]

    def append(regions: Regions | None, history: np.ndarray, new: np.ndarray) -> Outputs:
        if regions is None:
            return run(history, new)
        memory = regions[region]
        memory[:, start:end] = new
        return (memory[:, :end],)

    return append


def run_snapshot(
    snapshot: Snapshot, inputs: Mapping[str, np.ndarray], weights: WeightLoader, layer: int = 0
) -> dict[str, np.ndarray]:
    """Run a module once."""
    return Interpreter(snapshot, PreparedWeights(weights), layer).run(inputs)
