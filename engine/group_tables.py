"""Layer groups of a module as plain data: what `memory --json` and `explain --json` say about local memory.

Rows are dicts ready for JSON (units: bytes per lane, cycles). Groups and time steps count from 0, records are those
before the pass, as `--force-group` numbers them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.errors import UserError
from engine.group_cores import (
    COMPUTE_STAGE,
    LOAD_STAGE,
    STORE_STAGE,
    CoreShare,
    ItemCycles,
    on_core,
    pipeline_cycles,
    price_items,
    step_cycles,
    whole_share,
)
from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.cost import prices_of
from engine.passes.layer_group.plan import (
    Attempt,
    BufferKind,
    Explanation,
    GroupPlan,
    Item,
    ItemKind,
    LayerGroupReport,
    LmemBuffer,
    Slices,
    TimeStep,
)
from engine.passes.layer_group.slicing import number_of
from engine.snapshot import OpRecord, is_computation
from engine.tpu.chip import Chip

Table = list[dict[str, Any]]

_PARTS = ("scale", "zero_point")
"""Parts of a quantised weight that come from the same tensor as the weight."""


@dataclass(frozen=True)
class ModuleGroups:
    """The groups of a module. ops: the records that the report numbers. name: how a location reads in the layer that is
    looked at. shares: what each core runs of every group (`core_shares`); none for a program for one core."""

    report: LayerGroupReport
    ops: Sequence[OpRecord]
    chip: Chip
    name: Callable[[str], str]
    shares: Sequence[Sequence[CoreShare]] = ()

    # -- memory ------------------------------------------------------------------------------------------------------

    def groups(self, core: int | None = None) -> Table:
        """Ops, slices, cycles and peak of every group, what each core runs of it, and the time steps: of the largest
        slice, or of a core's largest."""
        return [self._group_row(number, plan, core) for number, plan in enumerate(self.report.groups)]

    def lmem(self, core: int | None = None) -> Table:
        """Every buffer of every group, or of those of which a core runs something; one whose first step is behind its
        last lives around the end of the loop."""
        return [
            self._buffer_row(number, plan, buffer, name, self._share(number, core))
            for number, plan in enumerate(self.report.groups)
            if not self._share(number, core).idle
            for buffer, name in zip(plan.buffers, self._buffer_names(plan), strict=True)
        ]

    def _share(self, group: int, core: int | None) -> CoreShare:
        """What a core runs of a group; all of it for None."""
        if core is None or not self.shares:
            return whole_share(self.report.groups[group])
        return self.shares[group][core]

    def _group_row(self, number: int, plan: GroupPlan, core: int | None) -> dict[str, Any]:
        names = {
            buffer.value: name
            for buffer, name in zip(plan.buffers, self._buffer_names(plan), strict=True)
            if _holds_value(buffer)
        }
        share, costs = self._share(number, core), price_items(plan, self.ops, self.chip)
        shown = on_core(plan, share)
        return {
            **self._identity(number, plan),
            "type": plan.type.name,
            "secs": list(plan.secs.as_tuple()),
            "stages": plan.stages,
            "cycles": plan.cycles,
            "peak_bytes": plan.peak_bytes,
            "core": core,
            "cores": [
                _core_row(plan, one, costs)
                for one in (self.shares[number] if self.shares else [whole_share(plan)])
            ],
            "steps": [
                self._step_row(at, step, plan, names, step_cycles(plan, share, costs, at, None))
                for at, step in enumerate(shown.steps)
            ],
        }

    def _identity(self, number: int, plan: GroupPlan) -> dict[str, Any]:
        records = [self.ops[index] for index in plan.records]
        return {
            "group": number,
            "ops": [record.name for record in records],
            "locations": [self.name(record.location) for record in records],
            "records": list(plan.records),
        }

    def _step_row(
        self,
        number: int,
        step: TimeStep,
        plan: GroupPlan,
        names: Mapping[str, str],
        cycles: tuple[int, int],
    ) -> dict[str, Any]:
        items = {item.id: item for item in plan.items}
        moved = [items[item] for item in step.transfers]

        def what(chosen: Sequence[Item]) -> list[str]:
            return [names.get(item.value) or self._value_name(item.value) for item in chosen]

        used, largest_free = _occupancy(plan.buffers, number, self.chip.lmem_bytes)
        return {
            "step": number,
            "computes": what([items[item] for item in step.computes]),
            "loads": what([item for item in moved if item.kind is ItemKind.LOAD]),
            "stores": what([item for item in moved if item.kind is ItemKind.STORE]),
            "compute_cycles": cycles[0],
            "transfer_cycles": cycles[1],
            "live_bytes": used,
            "largest_free_bytes": largest_free,
        }

    def _buffer_row(
        self, group: int, plan: GroupPlan, buffer: LmemBuffer, name: str, share: CoreShare
    ) -> dict[str, Any]:
        maker, size = self._makers[buffer.value], self.chip.bank_bytes
        end = buffer.address + max(1, buffer.nbytes)
        slices = next((item.slices for item in plan.items if item.id == buffer.item), None)
        whole = slices is None or buffer.kind is BufferKind.SCRATCH
        return {
            "group": group,
            "buffer": name,
            "kind": str(buffer.kind),
            "address": buffer.address,
            "bytes": buffer.nbytes,
            "first_step": buffer.first_step,
            "last_step": buffer.last_step,
            "banks": list(range(buffer.address // size, (end - 1) // size + 1)),
            "held": buffer.held,
            "op": maker.name,
            "location": self.name(maker.location),
            "tensor": self._tensor(maker),
            "slice": None if whole or slices is None else _largest(slices, plan, share),
        }

    @cached_property
    def _makers(self) -> dict[str, OpRecord]:
        return {value: record for record in self.ops for value in record.results}

    def _value_name(self, value: str) -> str:
        maker = self._makers[value]
        part = str(maker.attributes.get("path", "")).rpartition(".")[2]
        ending = f".{part}" if part in _PARTS else ""
        return (self._tensor(maker) or self.name(maker.location)) + ending

    def _tensor(self, maker: OpRecord) -> str | None:
        """The checkpoint tensor that an op brings; None for what is computed."""
        tensors = maker.attributes.get("tensors") or () if maker.name == "top.Weight" else ()
        return self.name(tensors[0]) if tensors else None

    def _buffer_names(self, plan: GroupPlan) -> list[str]:
        """A name for each buffer that no other buffer of the group has."""
        values = [self._value_name(buffer.value) for buffer in plan.buffers]
        kept = Counter(v for v, buffer in zip(values, plan.buffers, strict=True) if _holds_value(buffer))
        seen: Counter[tuple[str, str]] = Counter()
        found = []
        for value, buffer in zip(values, plan.buffers, strict=True):
            kind = self._makers[buffer.value].kind if kept[value] > 1 else ""
            note = kind if _holds_value(buffer) else f"{kind} scratch".strip()
            seen[value, note] += 1
            number = str(seen[value, note]) if seen[value, note] > 1 else ""
            note = f"{note} {number}".strip()
            found.append(f"{value} ({note})" if note else value)
        return found

    # -- explanations --------------------------------------------------------------------------------------------------

    def explanations(self) -> Table:
        """Why every group begins and ends where it does, the slicings that were tried, and what cuts would cost."""
        known = {explanation.group: explanation for explanation in self.report.explanations}
        return [
            {
                **self._identity(number, plan),
                "secs": list(plan.secs.as_tuple()),
                "cycles": plan.cycles,
                "alone_cycles": alone_cycles(plan, self.ops, self.chip),
                "peak_bytes": plan.peak_bytes,
                **self._reasons(known.get(number), plan),
            }
            for number, plan in enumerate(self.report.groups)
        ]

    def _reasons(self, found: Explanation | None, plan: GroupPlan) -> dict[str, Any]:
        if found is None:
            return {"begins": "", "ends": "", "attempts": [], "alternatives": []}
        return {
            "begins": self.name(found.begins),
            "ends": self.name(found.ends),
            "attempts": [self._attempt_row(attempt, plan) for attempt in found.attempts],
            "alternatives": [
                {
                    "description": self.name(alternative.description),
                    "joined_cycles": alternative.joined_cycles,
                    "split_cycles": alternative.split_cycles,
                }
                for alternative in found.alternatives
            ],
        }

    def _attempt_row(self, attempt: Attempt, plan: GroupPlan) -> dict[str, Any]:
        return {
            "secs": list(attempt.secs.as_tuple()),
            "slices": attempt.secs.slices,
            "needed_bytes": attempt.needed_bytes,
            "available_bytes": attempt.available_bytes,
            "cycles": attempt.cycles,
            "reason": self.name(attempt.reason),
            "taken": attempt.secs == plan.row_secs,
        }

    def global_ops(self) -> Table:
        """Ops outside of groups. reason: why the op cannot run in local memory; empty when it can, but does not pay."""
        inside = {index for plan in self.report.groups for index in plan.records}
        program = Program.of(self.ops, self.chip)
        return [
            {
                "record": index,
                "op": record.name,
                "location": self.name(record.location),
                "cycles": self.report.global_cycles.get(index),
                "reason": program.why_global(index),
            }
            for index, record in enumerate(self.ops)
            if index not in inside and is_computation(record)
        ]


def alone_cycles(plan: GroupPlan, ops: Sequence[OpRecord], chip: Chip) -> int | None:
    """Cycles of a group's ops run one by one from DDR; None when one of them has no such kernel."""
    prices = prices_of(chip)
    try:
        return sum(prices.globally(ops[index]) for index in plan.records)
    except (UserError, ValueError):
        return None


def _core_row(plan: GroupPlan, share: CoreShare, costs: ItemCycles) -> dict[str, Any]:
    """What a core runs of a group: ranges of slices (start, length), and in each pipeline step the slices in the
    pipeline's stages."""
    cycles = pipeline_cycles(plan, share, costs)
    stages = {"load": LOAD_STAGE, "compute": COMPUTE_STAGE, "store": STORE_STAGE}
    return {
        "core": share.core,
        "slices": [list(part) for part in share.parts],
        "cycles": sum(cycles),
        "pipeline": [
            {
                "step": at,
                **{name: share.slice_at(min(stage, plan.stages - 1), at) for name, stage in stages.items()},
                "cycles": cycles[at],
            }
            for at in range(share.pipeline_steps)
        ],
    }


def _largest(slices: Slices, plan: GroupPlan, share: CoreShare) -> list[int]:
    """Lengths of the largest slice that a core runs, in n, c, d, h, w."""
    numbers = [number_of(plan.secs, index).as_tuple() for index in share.numbers]
    return [
        max(lengths[at[dim] if len(lengths) > 1 else 0] for at in numbers)
        for dim, lengths in enumerate(slices.lengths)
    ]


def _holds_value(buffer: LmemBuffer) -> bool:
    return buffer.kind is not BufferKind.SCRATCH


def _occupancy(buffers: Sequence[LmemBuffer], step: int, capacity: int) -> tuple[int, int]:
    """Bytes in use in a step, and the largest free range."""
    ranges = sorted((b.address, b.address + b.nbytes) for b in buffers if _lives(b, step))
    used, at, largest = 0, 0, 0
    for start, end in ranges:
        largest = max(largest, start - at)
        used += max(0, end - max(at, start))
        at = max(at, end)
    return used, max(largest, capacity - at)


def _lives(buffer: LmemBuffer, step: int) -> bool:
    first, last = buffer.first_step, buffer.last_step
    return first <= step <= last if first <= last else step >= first or step <= last
