"""DDR of the whole program: the arenas of every layer, what they hold, what no tensor uses, the most that is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from engine.compiler import Compilation
from engine.merge import ADDRESSED, MergePlan, layout_of
from engine.stages import Kind, ModuleSpec
from engine.tpu.isa import Arena
from engine.tpu.memory import ArenaLayout, TensorPlace, tensor_places

Interval = tuple[int, int]
"""First byte, and the first byte behind."""


def program_memory(compilation: Compilation) -> dict[str, Any]:
    """Where everything lies once all modules are one program (addresses and sizes in bytes).

    `arenas` by address; layer is None outside of blocks and for the neuron arena, which all modules share one after
    another. `kinds` splits `used_bytes`, those that some tensor of some module or a KV region covers. `holes` are the
    others between `start` and `end`, so that `totals` and holes add up to `bytes`. `high_water` is the module that
    needs the largest neuron arena, with the most bytes that live in it at once. Raises CompileError unless everything
    was compiled.
    """
    plan = compilation.merged
    modules = {spec.name: _Module.of(compilation, spec) for spec in compilation.specs}
    regions = _regions(plan, list(modules.values()))
    arenas = [region.row(plan) for region in regions]
    largest = max(modules.values(), key=lambda module: module.layout.size[Arena.NEURON])
    taken = _union((region.base + a, region.base + b) for region in regions for a, b in region.used(plan))
    return {
        "start": plan.start,
        "end": plan.end,
        "bytes": plan.end - plan.start,
        "arenas": arenas,
        "holes": _holes(taken, plan.start, plan.end),
        "totals": {kind: sum(arena["kinds"][kind] for arena in arenas) for kind in KINDS},
        "high_water": {
            "module": largest.spec.name,
            "bytes": plan.neuron_size,
            "live_bytes": largest.live_bytes,
        },
    }


KINDS = ("weights", "kv_cache", "io", "neuron")
"""What DDR is used for: io are inputs and outputs, neuron the activations."""


@dataclass(frozen=True)
class _Module:
    spec: ModuleSpec
    layout: ArenaLayout
    places: tuple[TensorPlace, ...]

    @classmethod
    def of(cls, compilation: Compilation, spec: ModuleSpec) -> _Module:
        snapshot = compilation.modules[spec.name].after(ADDRESSED)
        layout = layout_of(snapshot)
        return cls(spec, layout, tensor_places(snapshot.ops, layout))

    @cached_property
    def used(self) -> dict[Arena, list[Interval]]:
        """Offsets in each arena that tensors cover."""
        base = self.layout.base
        return {
            arena: _union(
                (place.address - base[arena], place.address - base[arena] + place.nbytes)
                for place in self.places
                if place.arena is arena
            )
            for arena in Arena
        }

    @property
    def live_bytes(self) -> int:
        """Most bytes of the neuron arena that are live at once."""
        places = [place for place in self.places if place.arena is Arena.NEURON]
        return max(
            (
                sum(p.nbytes for p in places if p.first <= now <= p.last)
                for now in {place.first for place in places}
            ),
            default=0,
        )


@dataclass(frozen=True)
class _Region:
    """One arena at its place in the program. users: the modules that share it, each in one layer."""

    arena: Arena
    base: int
    users: tuple[tuple[_Module, int], ...]

    @property
    def layer(self) -> int | None:
        module, layer = self.users[0]
        return layer if self.arena is not Arena.NEURON and module.spec.kind is Kind.BLOCK else None

    def kv(self, plan: MergePlan) -> list[Interval]:
        """Offsets of the layer's K and V."""
        if plan.kv is None or self.arena is not Arena.IO or self.layer is None:
            return []
        size = plan.kv.rows * plan.kv.row_bytes
        return [(start, start + size) for start in (plan.kv.k_offset, plan.kv.v_offset)]

    def used(self, plan: MergePlan) -> list[Interval]:
        """Offsets that tensors of any user or the KV regions cover."""
        distinct = {module.spec.name: module for module, _ in self.users}
        tensors = (interval for module in distinct.values() for interval in module.used[self.arena])
        return _union([*tensors, *self.kv(plan)])

    def row(self, plan: MergePlan) -> dict[str, Any]:
        used, kv = _length(self.used(plan)), _length(self.kv(plan))
        kind = {Arena.COEFF: "weights", Arena.IO: "io", Arena.NEURON: "neuron"}[self.arena]
        # a block stands for all of its layers in the arena that every layer shares
        names = (
            m.spec.name if self.arena is Arena.NEURON else m.spec.name_for(layer) for m, layer in self.users
        )
        return {
            "arena": self.arena.name.lower(),
            "layer": self.layer,
            "modules": list(dict.fromkeys(names)),
            "address": self.base,
            "bytes": max(module.layout.size[self.arena] for module, _ in self.users),
            "used_bytes": used,
            "kinds": {**dict.fromkeys(KINDS, 0), "kv_cache": kv, kind: used - kv},
        }


def _regions(plan: MergePlan, modules: Sequence[_Module]) -> list[_Region]:
    """Every arena by address. Modules share one where their bases are equal; those that need none are left out."""
    users: dict[tuple[int, Arena], list[tuple[_Module, int]]] = defaultdict(list)
    for module in modules:
        for layer in module.spec.layers or (0,):
            bases = plan.bases[module.spec.name, layer]
            for arena in Arena:
                if module.layout.size[arena]:
                    users[bases.of(arena), arena].append((module, layer))
    return [_Region(arena, base, tuple(found)) for (base, arena), found in sorted(users.items())]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same bytes as intervals that neither touch nor overlap, by address."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def _holes(taken: Sequence[Interval], start: int, end: int) -> list[dict[str, int]]:
    edges = [(start, start), *taken, (end, end)]
    return [
        {"address": before, "bytes": after - before}
        for (_, before), (after, _) in pairwise(edges)
        if after > before
    ]
