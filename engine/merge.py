"""`merge`: where every module of every layer lies in DDR once all modules are one program.

Each layer gets its own coeff and io base, shared by its prefill, prefill_kv and decode modules; modules outside of
the
blocks share a coeff base when they have the same weights; all modules share one neuron arena, because they run one
after
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import CompileError
from engine.options import CompileOptions
from engine.snapshot import ModuleSnapshots, Snapshot
from engine.stages import Kind, ModuleSpec
from engine.tpu.emit import align_up
from engine.tpu.isa import Arena
from engine.tpu.memory import ArenaLayout, KvRegion, kv_region
from engine.tpu.weights import WeightReference

ADDRESSED = "address-assign"
"""The pass whose snapshot holds the addresses."""


@dataclass(frozen=True)
class Bases:
    """DDR base address of each arena of one module in one layer."""

    coeff: int
    io: int
    neuron: int

    def of(self, arena: Arena) -> int:
        """The base of an arena."""
        return (self.coeff, self.io, self.neuron)[arena]


@dataclass(frozen=True)
class PlacedWeight:
    """One weight of one module: offset in the module's coeff arena (bytes) and how its numbers are made."""

    offset: int
    reference: WeightReference
    value: str


@dataclass(frozen=True)
class MergePlan:
    """Addresses of the whole program. bases: (module, layer) -> bases; layer 0 outside of blocks. end: first free
    byte. kv: the KV regions inside a layer's io arena, None for a model without."""

    bases: Mapping[tuple[str, int], Bases]
    start: int
    end: int
    neuron_size: int
    kv: KvRegion | None

    def kv_addresses(self, module: str, layer: int) -> tuple[int, int]:
        """(K address, V address) of a layer's regions, as a module of that layer sees them."""
        if self.kv is None:
            raise CompileError("the model has no KV regions")
        io = self.bases[module, layer].io
        return io + self.kv.k_offset, io + self.kv.v_offset


def layout_of(snapshot: Snapshot) -> ArenaLayout:
    """Arena bases and sizes of an addressed snapshot."""
    return ArenaLayout.of(snapshot.attributes)


def placed_weights(snapshot: Snapshot) -> tuple[PlacedWeight, ...]:
    """The weights of an addressed module in address order."""
    base = layout_of(snapshot).base[Arena.COEFF]
    found = [
        PlacedWeight(op.result_types[0].address - base, WeightReference.from_record(op), op.results[0])
        for op in snapshot.ops
        if op.name == "top.Weight" and op.result_types[0].address is not None
    ]
    return tuple(sorted(found, key=lambda w: w.offset))


def merge(
    specs: Sequence[ModuleSpec], modules: Mapping[str, ModuleSnapshots], options: CompileOptions
) -> MergePlan:
    """Place all modules. Raises CompileError when modules of one layer disagree on where a shared weight lies."""
    alignment = options.chip.alignment
    address = options.chip.ddr_base
    snapshots = {spec.name: modules[spec.name].after(ADDRESSED) for spec in specs}
    coeff: dict[tuple[str, int], int] = {}
    io: dict[tuple[str, int], int] = {}
    for group in _coeff_groups(specs, snapshots):
        _check_shared([(spec, snapshots[spec.name]) for spec, _ in group])
        size = max(layout_of(snapshots[spec.name]).size[Arena.COEFF] for spec, _ in group)
        for spec, layer in group:
            coeff[spec.name, layer] = address
        address = align_up(address + size, alignment)
    for group in _io_groups(specs):
        size = max(layout_of(snapshots[spec.name]).size[Arena.IO] for spec, _ in group)
        for spec, layer in group:
            io[spec.name, layer] = address
        address = align_up(address + size, alignment)
    neuron_size = max(layout_of(s).size[Arena.NEURON] for s in snapshots.values())
    bases = {key: Bases(coeff[key], io[key], address) for key in coeff}
    kv = next((region for spec in specs if (region := kv_region(spec, options))), None)
    return MergePlan(bases, options.chip.ddr_base, address + neuron_size, neuron_size, kv)


Group = list[tuple[ModuleSpec, int]]


def _coeff_groups(specs: Sequence[ModuleSpec], snapshots: Mapping[str, Snapshot]) -> list[Group]:
    """Modules that share a coeff base: those of one layer, and those outside of blocks with the same weights."""
    groups: dict[object, Group] = {}
    for spec in specs:
        if spec.kind is Kind.BLOCK:
            for layer in spec.layers:
                groups.setdefault(layer, []).append((spec, layer))
        else:
            weights = tuple(w.reference.key(0) for w in placed_weights(snapshots[spec.name]))
            groups.setdefault(weights or spec.name, []).append((spec, 0))
    return list(groups.values())


def _io_groups(specs: Sequence[ModuleSpec]) -> list[Group]:
    """Modules that share an io base: those of one layer."""
    groups: dict[object, Group] = {}
    for spec in specs:
        if spec.kind is Kind.BLOCK:
            for layer in spec.layers:
                groups.setdefault(layer, []).append((spec, layer))
        else:
            groups[spec.name] = [(spec, 0)]
    return list(groups.values())


def _check_shared(group: Sequence[tuple[ModuleSpec, Snapshot]]) -> None:
    at: dict[int, tuple[str, str]] = {}
    for spec, snapshot in group:
        for weight in placed_weights(snapshot):
            key = weight.reference.key(0)
            other, owner = at.setdefault(weight.offset, (key, spec.name))
            if other != key:
                raise CompileError(
                    f"modules {owner} and {spec.name} share their weights' memory but disagree at offset "
                    f"{weight.offset}: {other} and {key}"
                )
