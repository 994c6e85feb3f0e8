"""The two engines over the cycles of one module, as columns: what the timeline draws and `simulate --timeline` prints.

Starts and lengths are those of `engine.sim.timing`, as in a trace; added is what each instruction moves and for what
it waited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Any

import numpy as np

from engine.errors import CompileError
from engine.merge import layout_of
from engine.options import CompileOptions
from engine.sim.events import PROGRAM_PASS, PartialProgram, check_history, program_snapshot
from engine.sim.timing import Bound, ModuleTiming, critical_path, time_module
from engine.snapshot import BITS, OpRecord, Snapshot
from engine.stages import ModuleSpec, find
from engine.tables import weight_kind
from engine.tpu.chip import Chip
from engine.tpu.isa import DTYPES, Arena, Direction, Engine, Opcode, moved_bytes
from engine.tpu.memory import kv_region, tensor_places, value_names

NOBODY = -1
"""In columns of indices: none."""

DATA = ("weights", "kv_cache", "activations", "other")
"""What a tensor in DDR is: checkpoint weights; K and V regions; anything else that is computed while the program runs;
tables computed before (RoPE, causal mask)."""


_PRODUCTS = (Opcode.MM2_NN, Opcode.MM2_NT, Opcode.MM)
_POOLS = (Opcode.POOL_AVG, Opcode.POOL_MAX)
_TRANSPOSES = (Opcode.CW_TRANSPOSE, Opcode.WC_TRANSPOSE)


@dataclass(frozen=True)
class DdrTensor:
    """A tensor that instructions move. name: with the layer's placeholder. data: one of DATA. value: in the IR."""

    name: str
    data: str
    value: str


@dataclass(frozen=True, slots=True)
class OpSpan:
    """Cycles `start` to `end` (the first behind it) in which the op at record `index` is what the module waits for."""

    index: int
    start: int
    end: int


@dataclass(frozen=True)
class Lanes:
    """One run of a module in one layer; entry i of every column is one instruction, in issue order.

    name: as the layer calls the module; spec_name: as it was compiled. records: the module's ops, to which `op` points.
    spans: ops over time, one behind the other from 0 to `cycles`; on several cores those of the slowest, where
    `engine.sim.timing` divides the time among the cores. bounds: by record index.

    start, length: cycles. number: id in its queue. nbytes: moved through DDR. needs: index of the instruction of the
    core's other engine that has to end before, NOBODY for none. idle: cycles that its engine stands still before it;
    above 0 only where it waits for `needs`. tensor: index in `tensors` of what is loaded or stored, NOBODY for none.
    """

    name: str
    spec_name: str
    layer: int
    chip: Chip
    cores: int
    cycles: int
    records: tuple[OpRecord, ...]
    spans: tuple[OpSpan, ...]
    bounds: dict[int, Bound]
    tensors: tuple[DdrTensor, ...]
    program: np.ndarray
    start: np.ndarray
    length: np.ndarray
    engine: np.ndarray
    core: np.ndarray
    op: np.ndarray
    number: np.ndarray
    nbytes: np.ndarray
    needs: np.ndarray
    idle: np.ndarray
    tensor: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def end(self) -> np.ndarray:
        """The first cycle behind each instruction."""
        return np.asarray(self.start + self.length)

    def rows(self, core: int, engine: Engine) -> np.ndarray:
        """Indices of one engine's instructions, in time order."""
        return np.flatnonzero((self.core == core) & (self.engine == engine))

    def busy(self, core: int, engine: Engine) -> int:
        """Cycles in which an engine works."""
        return int(self.length[self.rows(core, engine)].sum())

    def kind(self, index: int) -> str:
        """What the instruction is called: `MM2_NN`."""
        return Opcode(int(self.program["opcode"][index])).name

    def direction(self, index: int) -> str:
        """`load`, `store` or `ddr_to_ddr`; empty for the TIU."""
        if self.engine[index] != Engine.GDMA:
            return ""
        return Direction(int(self.program["direction"][index])).name.lower()

    def moved(self, index: int) -> DdrTensor | None:
        """The tensor that the instruction loads or stores."""
        number = int(self.tensor[index])
        return None if number == NOBODY else self.tensors[number]

    @cached_property
    def rate(self) -> np.ndarray:
        """What each instruction does per cycle: bytes (GDMA), multiply-adds (matrix products), elements (others)."""
        return np.asarray(self._work / np.maximum(self.length, 1))

    @cached_property
    def utilisation(self) -> np.ndarray:
        """`rate` as a part of the most that the chip can do: DDR bandwidth, multiply-adds, elements of all lanes.

        NaN for transposes, which no such limit bounds.
        """
        return np.asarray(self.rate / self._peak)

    @cached_property
    def _work(self) -> np.ndarray:
        opcode, kernel = self.program["opcode"], self.program["kernel"].astype(np.int64)
        elements = self.program["result"]["shape"].astype(np.int64).prod(axis=1)
        left = self.program["operands"]["shape"][:, 0].astype(np.int64)
        depth = left[:, 3] * np.where(opcode == Opcode.MM, left[:, 1], left[:, 2])
        window = np.where(np.isin(opcode, _POOLS), kernel.prod(axis=1), 1)
        return np.where(
            self.engine == Engine.GDMA, self.nbytes, elements * np.where(self.is_product, depth, window)
        )

    @cached_property
    def _peak(self) -> np.ndarray:
        chip, opcode = self.chip, self.program["opcode"]
        width = np.array([max(1, bits // 8) for bits in BITS.values()])[self.program["result"]["dtype"]]
        macs = np.array([chip.macs_per_cycle.get(name) or np.nan for name in DTYPES])
        peak = np.where(
            self.is_product, macs[self.program["operands"]["dtype"][:, 0]], chip.lanes * chip.eu_bytes / width
        )
        peak = np.where(np.isin(opcode, _TRANSPOSES), np.nan, peak)
        return np.where(self.engine == Engine.GDMA, chip.ddr_bandwidth / chip.clock_hz, peak)

    @cached_property
    def is_product(self) -> np.ndarray:
        """Which instructions multiply matrices."""
        return np.isin(self.program["opcode"], _PRODUCTS)

    def named(self, text: str) -> str:
        """A name with the layer in place of its placeholder."""
        return text.replace("{i}", str(self.layer))

    def to_json(self) -> dict[str, Any]:
        """Plain values: cycles and bytes; `end` is the first cycle behind."""
        engines = [(core, engine) for core in range(self.cores) for engine in (Engine.GDMA, Engine.TIU)]
        return {
            "module": self.name,
            "chip": self.chip.name,
            "clock_hz": self.chip.clock_hz,
            "cycles": self.cycles,
            "engines": [
                {
                    "core": core,
                    "engine": engine.name,
                    "instructions": len(self.rows(core, engine)),
                    "busy_cycles": self.busy(core, engine),
                }
                for core, engine in engines
            ],
            "ops": [
                {
                    "index": span.index,
                    "op": self.records[span.index].name,
                    "location": self.named(self.records[span.index].location),
                    "start": span.start,
                    "end": span.end,
                    "bound": self.bounds[span.index],
                }
                for span in self.spans
            ],
            "instructions": list(self._instructions()),
        }

    def _instructions(self) -> Iterator[dict[str, Any]]:
        names = ("engine", "core", "number", "op", "start", "end", "nbytes", "needs", "idle", "utilisation")
        columns = [getattr(self, name).tolist() for name in names]
        numbers = self.number.tolist()
        for index, row in enumerate(zip(*columns, strict=True)):
            engine, core, number, op, start, end, nbytes, needs, idle, utilisation = row
            tensor, record = self.moved(index), self.records[op]
            other = Engine(1 - engine).name
            yield {
                "engine": Engine(engine).name,
                "core": core,
                "id": number,
                "kind": self.kind(index),
                "op": record.name,
                "op_index": op,
                "location": self.named(record.location),
                "direction": self.direction(index) or None,
                "tensor": None if tensor is None else self.named(tensor.name),
                "data": None if tensor is None else tensor.data,
                "start": start,
                "end": end,
                "bytes": nbytes,
                "utilisation": None if isnan(utilisation) else utilisation,
                "waits_for": None if needs == NOBODY else {"engine": other, "id": numbers[needs]},
                "idle_cycles": idle,
            }


def module_lanes(program: PartialProgram, module: str, history: int | None = None) -> Lanes:
    """One call of `module`, in the layer that it names.

    history: rows of history that hold data in a prefill_kv module, None for all. Raises UserError for an unknown
    module and a history that it does not read, CompileError for one that was not compiled.
    """
    check_history(program, module, history)
    spec, layer = find(program.specs, module)
    snapshot, chip = program_snapshot(program, spec), program.options.chip
    if not isinstance(snapshot.report, np.ndarray):
        raise CompileError(f"module {spec.name} has no instructions", spec.name, PROGRAM_PASS)
    timing = time_module(snapshot.report, chip, history)
    rows = snapshot.report[timing.instructions]
    start, length = timing.schedule.start, timing.instruction_cycles
    needs, idle = _waits(rows, start, start + length)
    tensors, tensor = _tensors(snapshot, spec, program.options, rows)
    return Lanes(
        spec.name_for(layer),
        spec.name,
        layer,
        chip,
        int(rows["core"].max(initial=0)) + 1,
        timing.total_cycles,
        snapshot.ops,
        tuple(_op_spans(rows, timing)),
        {op.op: op.bound for op in timing.ops},
        tensors,
        rows,
        start,
        length,
        rows["engine"].copy(),
        rows["core"].copy(),
        rows["op"].copy(),
        rows["id"].copy(),
        moved_bytes(rows),
        needs,
        idle,
        tensor,
    )


def _op_spans(program: np.ndarray, timing: ModuleTiming) -> Iterator[OpSpan]:
    path = critical_path(program["core"], timing.schedule)
    if not len(path):
        return
    ops, starts = program["op"][path], timing.schedule.start[path]
    first = np.flatnonzero(np.diff(ops, prepend=ops[0] - 1))
    edges = [*starts[first].tolist(), timing.total_cycles]
    for number, op in enumerate(ops[first].tolist()):
        yield OpSpan(op, edges[number], edges[number + 1])


def _waits(program: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each instruction the one of the other engine that has to end before it, and the cycles of standing still."""
    needs = np.full(len(program), NOBODY, np.int64)
    idle = np.zeros(len(program), np.int64)
    engine, number, wait = (program[name].copy() for name in ("engine", "id", "wait"))
    for core in np.unique(program["core"]):
        queues = [np.flatnonzero((program["core"] == core) & (engine == queue)) for queue in Engine]
        for own, other in (queues, queues[::-1]):
            at = np.searchsorted(number[other], wait[own], side="right") - 1
            waiting = at >= 0
            needs[own[waiting]] = other[at[waiting]]
            idle[own] = start[own] - np.concatenate([[0], end[own][:-1]])[: len(own)]
    return needs, idle


def _tensors(
    snapshot: Snapshot, spec: ModuleSpec, options: CompileOptions, program: np.ndarray
) -> tuple[tuple[DdrTensor, ...], np.ndarray]:
    """The tensors that a program moves, and which of them each instruction does."""
    finder = _Finder(snapshot, spec, options)
    found = np.full(len(program), NOBODY, np.int64)
    moving = np.flatnonzero(program["engine"] == Engine.GDMA)
    storing = program["direction"][moving] == Direction.STORE
    operand = np.where(storing, program["result"][moving], program["operands"][moving, 0])
    bases = np.array([finder.layout.base[arena] for arena in Arena], np.int64)
    address = bases[operand["arena"]] + operand["address"]
    op = program["op"][moving]
    for index in np.unique(op).tolist():
        mine = op == index
        found[moving[mine]] = finder.numbers(index, address[mine])
    return tuple(finder.found), found


class _Finder:
    """Names tensors by their address while an op runs."""

    def __init__(self, snapshot: Snapshot, spec: ModuleSpec, options: CompileOptions) -> None:
        self.ops, self.layout = snapshot.ops, layout_of(snapshot)
        self.region = kv_region(spec, options)
        self.places = tensor_places(snapshot.ops, self.layout)
        self.makers = {value: op for op in snapshot.ops for value in op.results}
        self.names = value_names(snapshot.ops)
        self.found: list[DdrTensor] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def numbers(self, op: int, address: np.ndarray) -> np.ndarray:
        """The index in `found` of the tensor that holds each address: one that the op reads or makes, else one that
        lives while it runs."""
        result = np.full(len(address), NOBODY, np.int64)
        for value, start, nbytes in self._candidates(op):
            inside = (result == NOBODY) & (start <= address) & (address < start + nbytes)
            if inside.any():
                result[inside] = self._number(value, start)
        return result

    def _candidates(self, op: int) -> Iterator[tuple[str, int, int]]:
        record = self.ops[op]
        values = (*record.operands, *record.results)
        for value, type_ in zip(values, (*record.operand_types, *record.result_types), strict=True):
            if type_.address is not None:
                yield value, type_.address, type_.nbytes
        for place in self.places:
            if place.first <= op <= place.last:
                yield place.value, place.address, place.nbytes

    def _number(self, value: str, address: int) -> int:
        tensor = self._tensor(value, address)
        key = tensor.name, tensor.data
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            self.found.append(tensor)
        return self._numbers[key]

    def _tensor(self, value: str, address: int) -> DdrTensor:
        maker = self.makers.get(value)
        name = self.names.get(value, value)
        if maker is not None and maker.name == "top.Weight":
            part = weight_kind(maker)
            if part in ("scale", "zero_point"):
                name = f"{name}.{part}"
            return DdrTensor(name, "other" if name.startswith("@") else "weights", value)
        arena, offset = self.layout.find(address)
        if arena is Arena.IO and self.region is not None and offset < self.region.nbytes:
            return DdrTensor(name, "kv_cache", value)
        return DdrTensor(name, "activations", value)
