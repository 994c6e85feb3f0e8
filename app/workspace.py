"""What is open and what is looked at: the one model that all screens show and change.

It holds no widget and draws nothing, so that a screen can be made from plain data in a test.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from engine.compiler import Compilation
from engine.errors import UserError
from engine.passes import PASS_NAMES
from engine.snapshot import ModuleSnapshots, OpRecord, Snapshot
from engine.stages import Kind, ModuleSpec, Stage
from engine.worker import Event, ModuleFailed, ModuleFinished, PassStarted

if TYPE_CHECKING:
    from app.session import Session
    from engine.provenance import Provenance
    from engine.sim.throughput import Simulation, Simulator
    from engine.sim.timing import ModuleTiming, OpTiming

State = Literal["pending", "running", "done", "failed"]

STAGE_TITLES = {
    Stage.PREFILL: "prefill",
    Stage.PREFILL_KV: "prefill_kv",
    Stage.DECODE: "decode",
    Stage.BOTH: "head",
}
"""Group titles of the module tree, in order."""

_KEPT_READINGS = 64
"""Texts that are kept, so that stepping through passes and layers and back makes none anew."""


@dataclass
class Workspace:
    """An opened model, how far its compilation is, and the selection.

    session: None for data without a model behind it, as in tests. module: name of a ModuleSpec. layer: one of its
    layers. timings: what one run of each module costs, where known. filled: rows of the KV cache that the last
    generation filled. problem: what ended the compilation before its end.
    """

    compilation: Compilation
    title: str
    session: Session | None = None
    running: bool = False
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    module: str = ""
    layer: int = 0
    pass_name: str = PASS_NAMES[0]
    timings: dict[str, ModuleTiming] = field(default_factory=dict)
    simulation: Simulation | None = None
    curve: tuple[tuple[int, float], ...] = ()
    filled: int = 0
    problem: str = ""
    current: dict[str, str] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    _ways: dict[Any, Provenance] = field(default_factory=dict)
    _views: dict[Any, Any] = field(default_factory=dict)
    _readings: dict[Any, tuple[Snapshot, Snapshot]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.running:
            self.finished |= {name for name, found in self.compilation.modules.items() if found.error is None}
        if not self.module:
            self.select_module(self._first_choice())

    @classmethod
    def of(cls, session: Session) -> Workspace:
        """The workspace of a session, before or after its compilation."""
        missing = {spec.name for spec in session.missing()}
        finished = {spec.name for spec in session.compilation.specs} - missing
        return cls(
            session.compilation,
            session.title,
            session,
            running=bool(missing),
            seconds=session.seconds,
            finished=finished,
        )

    @cached_property
    def simulator(self) -> Simulator:
        """Costs of the program; to be used by one thread at a time."""
        from engine.sim.throughput import Simulator

        return Simulator(self.compilation)

    def _first_choice(self) -> str:
        """The decode block, which is where most people look first; the first module without one."""
        specs = self.compilation.specs
        for spec in specs:
            if spec.kind is Kind.BLOCK and spec.stage is Stage.DECODE:
                return spec.name
        return specs[0].name if specs else ""

    def first_wanted(self) -> list[str]:
        """Modules to compile before all others: the one that is looked at, and the block of prefill."""
        prefill = [s.name for s in self.specs if s.kind is Kind.BLOCK and s.stage is Stage.PREFILL]
        return [self.module, *prefill[:1]]

    # -- compilation --------------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Note what a worker is doing. The compilation itself has taken the event in already."""
        match event:
            case PassStarted(module, pass_name):
                self.current[module] = pass_name
            case ModuleFinished(module):
                self.current.pop(module, None)
                self.finished.add(module)
            case ModuleFailed():
                self.current.pop(event.module, None)

    @property
    def unfinished(self) -> bool:
        """Modules are missing and nothing compiles them: the compilation was cancelled, or ended by an error."""
        session = self.session
        return session is not None and not self.running and not session.running and bool(session.missing())

    def compile_missing(self) -> bool:
        """Go on with a compilation that was cancelled; False when there is nothing left to do."""
        if not self.unfinished:
            return False
        assert self.session is not None
        self.current.clear()
        self.problem = ""
        names = [name for name in self.first_wanted() if self.state(name) == "pending"]
        self.running = self.session.start(names or None)
        return self.running

    @property
    def elapsed(self) -> float:
        """Seconds of compiling, so far or in all."""
        if self.session is not None:
            return self.session.elapsed
        return time.perf_counter() - self.started if self.running else self.seconds

    @property
    def specs(self) -> Sequence[ModuleSpec]:
        """Every distinct module."""
        return self.compilation.specs

    def spec(self, name: str) -> ModuleSpec:
        """A module by name."""
        return next(spec for spec in self.specs if spec.name == name)

    def state(self, module: str) -> State:
        """How far a module is."""
        if module in self.compilation.failures:
            return "failed"
        if module in self.finished:
            return "done"
        if module in self.current or module in self.compilation.modules:
            return "running" if self.running else "pending"
        return "pending"

    def done_count(self) -> int:
        """Modules that are finished or failed."""
        return len(self.finished | set(self.compilation.failures))

    def snapshots(self, module: str = "") -> ModuleSnapshots:
        """Snapshots of a module (default: the selected one) so far."""
        name = module or self.module
        return self.compilation.modules.get(name) or ModuleSnapshots(name, ())

    def pass_names(self) -> tuple[str, ...]:
        """All passes, those that are still to come included."""
        found = tuple(snapshot.pass_name for snapshot in self.snapshots().snapshots)
        if self.state(self.module) == "done":
            return found
        return found + tuple(name for name in PASS_NAMES if name not in found)

    # -- selection ----------------------------------------------------------------------------------------------

    @property
    def selected_spec(self) -> ModuleSpec | None:
        """The selected module."""
        return next((spec for spec in self.specs if spec.name == self.module), None)

    @property
    def layer_name(self) -> str:
        """The selected module as its selected layer calls it (`block_cache_7`)."""
        spec = self.selected_spec
        return spec.name_for(self.layer) if spec else ""

    def select_module(self, name: str) -> None:
        """Look at a module; the layer stays where the module serves it."""
        self.module = name
        spec = self.selected_spec
        layers = spec.layers if spec else ()
        if self.layer not in layers:
            self.layer = layers[0] if layers else 0

    def select_layer(self, layer: int) -> bool:
        """Look at another layer of the stage, also when another module serves it. False when there is none."""
        spec = self.selected_spec
        if spec is None or spec.kind is not Kind.BLOCK:
            return False
        for other in self.specs:
            if (other.stage, other.variant) == (spec.stage, spec.variant) and layer in other.layers:
                self.module, self.layer = other.name, layer
                return True
        return False

    def snapshot(self, pass_name: str = "") -> Snapshot | None:
        """The selected module after a pass (default: the selected one); None when it is not there (yet)."""
        name = pass_name or self.pass_name
        return next((s for s in self.snapshots().snapshots if s.pass_name == name), None)

    def before(self, pass_name: str = "") -> Snapshot | None:
        """The snapshot before a pass (default: the selected one); None for the first."""
        name = pass_name or self.pass_name
        previous = None
        for snapshot in self.snapshots().snapshots:
            if snapshot.pass_name == name:
                return previous
            previous = snapshot
        return None

    def reading(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot of the selected module with its text as the selected layer has it.

        Only the text is the layer's: ops are followed by the names that the records share with all layers.
        """
        from engine.tables import ir_text

        key = (snapshot.module, snapshot.pass_name, self.layer, self.compilation.complete)
        known = self._readings.get(key)
        if known is not None and known[0] is snapshot:
            return known[1]
        if len(self._readings) >= _KEPT_READINGS:
            self._readings.clear()
        name = self.spec(snapshot.module).name_for(self.layer)
        found = replace(snapshot, text=ir_text(self.compilation, name, snapshot.pass_name))
        self._readings[key] = snapshot, found
        return found

    def is_provisional(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot's addresses are still to be moved, when all modules are compiled."""
        from engine.tables import is_provisional

        return is_provisional(self.compilation, snapshot)

    def go_to(self, name: str) -> bool:
        """Look at the module and layer that a name says (`block_cache_7`). False when there is none of that name."""
        try:
            spec, layer = self.compilation.find(name)
        except UserError:
            return False
        self.module, self.layer = spec.name, layer
        return True

    def modules_in_order(self) -> list[str]:
        """Module names as the tree lists them."""
        return [
            spec.name
            for stage in STAGE_TITLES
            for module in self.stage_modules(stage)
            for spec in (module, *self.variants(module))
        ]

    def stage_modules(self, stage: Stage) -> list[ModuleSpec]:
        """The modules of a stage, without the variants of blocks."""
        return [spec for spec in self.specs if spec.stage is stage and not spec.variant]

    def variants(self, module: ModuleSpec) -> list[ModuleSpec]:
        """The blocks that stand in for one while the cache is shorter, the longest cache first."""
        key = (module.stage, module.kind, module.layers)
        alike = [spec for spec in self.specs if (spec.stage, spec.kind, spec.layers) == key]
        return sorted((s for s in alike if s.variant > module.variant), key=lambda spec: spec.variant)

    def step_module(self, step: int) -> bool:
        """Select the next or previous module; False at the end."""
        names = self.modules_in_order()
        at = names.index(self.module) + step
        if not 0 <= at < len(names):
            return False
        self.select_module(names[at])
        return True

    def stage_cycles(self, stage: Stage, variant: int = 0) -> int | None:
        """Cycles of a stage, all layers (decode: with the blocks of a variant); None until all are known."""
        total = 0
        for spec in self.specs:
            if spec.stage is not stage or spec.variant != (variant if spec.kind is Kind.BLOCK else 0):
                continue
            if spec.name not in self.timings:
                return None
            total += self.timings[spec.name].total_cycles * max(1, len(spec.layers))
        return total or None

    # -- what the inspector asks --------------------------------------------------------------------------------

    def layer_text(self, name: str) -> str:
        """A tensor's name in the selected layer."""
        return name.replace("{i}", str(self.layer))

    def layer_address(self, snapshot: Snapshot, address: int) -> int:
        """An address of the module as the selected layer has it; the module's own until everything is compiled."""
        from engine.tables import layer_view

        if not self.compilation.complete:
            return address
        key = (snapshot.module, self.layer)
        if key not in self._views:
            self._views[key] = layer_view(self.compilation, self.spec(snapshot.module).name_for(self.layer))
        return int(self._views[key].address(address))

    def provenance(self, op: OpRecord) -> Provenance | None:
        """The op's way through the compilation; None for ops that come from nowhere."""
        from engine.provenance import origin_of

        if op.name in ("top.None", "func.return") or not op.origins:
            return None
        found = self.snapshots().snapshots
        key = (self.module, op.name == "top.Weight", op.location, len(found))
        if key not in self._ways:
            self._ways[key] = origin_of(self.compilation, self.module, op)
        return self._ways[key]

    def readers(self, weight: OpRecord) -> list[str]:
        """Names of the ops that read a weight in the selected snapshot."""
        snapshot = self.snapshot()
        if snapshot is None:
            return []
        return [
            f"{op.name} {op.results[0]}"
            for op in snapshot.ops
            if op.results and set(weight.results) & set(op.operands)
        ]

    def weight_bytes(self, module: str = "") -> dict[str, int]:
        """Weight bytes of one layer of a module (default: the selected one) by kind."""
        from engine.tables import weight_kind, weight_ops

        found: dict[str, int] = {}
        snapshots = self.snapshots(module).snapshots
        for weight in weight_ops(snapshots[-1]) if snapshots else ():
            kind = weight_kind(weight)
            found[kind] = found.get(kind, 0) + weight.result_types[0].nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def op_cost(self, op: OpRecord) -> OpCost | None:
        """What became of an op: its own instructions where they can be told apart, else its origin's.

        None before codegen.
        """
        way = self.provenance(op)
        if way is None or not (way.tiu or way.gdma):
            return None
        alike = {i for i, o in way.tpu_ops if (o.name, o.origins) == (op.name, op.origins)}
        indices = alike if len(alike) == 1 else {index for index, _ in way.tpu_ops}
        tiu, gdma = _count_instructions(self.snapshots().snapshots[-1], indices)
        timing = self.timings.get(self.module)
        return OpCost(tiu, gdma, tuple(row for row in timing.ops if row.op in indices) if timing else None)


@dataclass(frozen=True)
class OpCost:
    """Instructions of an op, and what they cost in one layer where that is known."""

    tiu: int
    gdma: int
    rows: Sequence[OpTiming] | None

    def total(self, name: str) -> int:
        """The sum of a field of the timings."""
        return sum(int(getattr(row, name)) for row in self.rows or ())

    @property
    def bound(self) -> str:
        """The busier engine: memory or compute."""
        busier = self.total("gdma_busy_cycles") >= self.total("tiu_busy_cycles")
        return "memory" if busier else "compute"


def _count_instructions(last: Snapshot, indices: set[int]) -> tuple[int, int]:
    """(TIU, GDMA) instructions of some ops of a module's program."""
    import numpy as np

    if last.report is None:
        return 0, 0
    mine = np.isin(last.report["op"], list(indices))
    tiu = int((last.report["engine"][mine] == 0).sum())
    return tiu, int(mine.sum()) - tiu
