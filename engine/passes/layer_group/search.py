"""Which consecutive ops become groups: every part of a chain is tried, and the cheapest cut of the chain is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.passes.layer_group.allocation import Failure
from engine.passes.layer_group.chains import GroupOps, Program, group_of, reuse_operands
from engine.passes.layer_group.cost import Prices, prices_of
from engine.passes.layer_group.layout import Role
from engine.passes.layer_group.placing import Placed, draft, improve, place, plan_of
from engine.passes.layer_group.plan import Attempt, GroupPlan, LayerGroupReport, Secs
from engine.passes.layer_group.slicing import SliceError, limits
from engine.passes.layer_group.time_steps import ScheduleError
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.emit import ceil_div

MAX_TRIES = 20
"""Slicings tried for one group."""


@dataclass(frozen=True)
class Trial:
    """A part of a chain as one group. placed: None when it cannot be one; reason: then why."""

    group: GroupOps
    placed: Placed | None
    attempts: tuple[Attempt, ...]
    reason: str = ""


def try_group(program: Program, indices: Sequence[int], prices: Prices) -> Trial:
    """The coarsest slicing with which the ops fit local memory as one group."""
    group = group_of(program, indices)
    if not (group.ops[0].moves and group.ops[-1].moves):
        return Trial(group, None, (), "a reshape at its end moves nothing and stays outside")
    chip = program.chip
    attempts: list[Attempt] = []
    for secs in _ladder(group, limits(group, chip), _least_slices(group, prices))[:MAX_TRIES]:
        try:
            placed = _place_somehow(group, secs, prices)
        except (SliceError, ScheduleError) as error:
            attempts.append(Attempt(secs, f"time step: {error}", 0, chip.lmem_bytes, None))
            return Trial(group, None, tuple(attempts), str(error))
        if isinstance(placed, Placed):
            placed = improve(placed, prices)
            attempts.append(Attempt(secs, "", placed.used_bytes, chip.lmem_bytes, placed.cycles))
            return Trial(group, placed, tuple(attempts))
        attempts.append(Attempt(secs, placed.reason, placed.needed, chip.lmem_bytes, None))
    return Trial(group, None, tuple(attempts), "it does not fit local memory in any slicing tried")


def _place_somehow(group: GroupOps, secs: Secs, prices: Prices) -> Placed | Failure:
    """Addresses for the group; results replace operands only where there is no room otherwise."""
    plain = draft(group, secs, prices)
    placed = place(plain, prices)
    reusing = reuse_operands(group)
    if isinstance(placed, Placed) or reusing is None:
        return placed
    try:
        sharing = draft(reusing, secs, prices)
    except ScheduleError:
        return placed
    if sharing.table.rows > plain.table.rows:  # the operand's next slice would have to wait for the result
        return placed
    again = place(sharing, prices)
    return again if isinstance(again, Placed) else placed


def _ladder(group: GroupOps, finest: Secs, least: int) -> list[Secs]:
    """Slicings from coarse to fine, of at least `least` slices: n first, then c, h and w; each makes slices smaller."""
    found = [Secs()]
    for axis in "nchw":
        extent = getattr(finest, axis)
        base = found[-1]
        size = extent
        for count in range(2, extent + 1):
            if ceil_div(extent, count) < size:
                size = ceil_div(extent, count)
                found.append(replace(base, **{axis: count}))
    return [secs for secs in found if secs.slices >= least]


def _least_slices(group: GroupOps, prices: Prices) -> int:
    """Slices below which some op alone does not fit: its weights stay, all else shrinks with the slices."""
    chip, shapes = prices.chip, {value: tensor.shape for value, tensor in group.tensors.items()}
    least = 1
    for op in group.ops:
        sizes = {v: group.tensors[v].lane_bytes(chip, shapes[v]) for v in (*op.operands, op.result)}
        fixed = sum(size for v, size in sizes.items() if group.tensors[v].role is not Role.ROWS)
        room = chip.lmem_bytes - fixed
        if room <= 0:
            return _NEVER
        scratch = prices.scratch(op, group.tensors, shapes)
        least = max(least, ceil_div(sum(sizes.values()) - fixed + scratch, room))
    return least


_NEVER = 1 << 30


# -- the whole chain -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Consecutive ops of a chain, from `first` to `last` (positions): a group, or one op run globally."""

    first: int
    last: int
    cycles: int


@dataclass
class Chain:
    """A chain with the trials of its parts and the costs of its ops run globally."""

    program: Program
    indices: tuple[int, ...]
    prices: Prices
    trials: dict[tuple[int, int], Trial] = field(default_factory=dict)

    def trial(self, first: int, last: int) -> Trial:
        """The ops from `first` to `last` (positions, at least two) as one group."""
        if (first, last) not in self.trials:
            part = self.indices[first : last + 1]
            self.trials[first, last] = try_group(self.program, part, self.prices)
        return self.trials[first, last]

    def cost(self, first: int, last: int) -> int | None:
        """Cycles of a part as one group, or of one op run globally; None when it cannot be."""
        if first == last:
            return self.prices.globally(self.program.ops[self.indices[first]])
        placed = self.trial(first, last).placed
        return None if placed is None else placed.cycles


def cut_greedily(chain: Chain, units: Sequence[tuple[int, int]]) -> list[Part]:
    """From the tail, as many ops to a group as fit, then the next."""
    parts: list[Part] = []
    end = len(units) - 1
    while end >= 0:
        for start in range(end + 1):
            cost = chain.cost(units[start][0], units[end][1])
            if cost is not None:
                parts.insert(0, Part(units[start][0], units[end][1], cost))
                end = start - 1
                break
        else:
            raise AssertionError("a unit alone always has a cost")
    return parts


def cut_cheapest(chain: Chain, units: Sequence[tuple[int, int]]) -> list[Part]:
    """The cut with the least sum of cycles, by dynamic programming over its last part."""
    best: list[tuple[int, tuple[Part, ...]]] = [(0, ())]
    for end in range(len(units)):
        options = []
        for start in range(end + 1):
            cost = chain.cost(units[start][0], units[end][1])
            if cost is not None:
                before, parts = best[start]
                part = Part(units[start][0], units[end][1], cost)
                options.append((before + cost, (*parts, part)))
        best.append(min(options, key=lambda option: (option[0], len(option[1]))))
    return list(best[-1][1])


def plan_groups(
    ops: Sequence[OpRecord], chip: Chip, *, opt: int = 2, forced: Sequence[tuple[int, int]] = ()
) -> LayerGroupReport:
    """The groups of a module from its records after `op-reorder`."""
    program, prices = Program.of(ops, chip), prices_of(chip)
    groups: list[GroupPlan] = []
    global_cycles: dict[int, int] = {}
    for indices in program.chains():
        chain = Chain(program, indices, prices)
        units = [(i, i) for i in range(len(indices))]
        parts = cut_greedily(chain, units) if opt == 1 else cut_cheapest(chain, units)
        for part in parts:
            if part.first == part.last:
                global_cycles[indices[part.first]] = part.cycles
                continue
            placed = chain.trial(part.first, part.last).placed
            assert placed is not None
            groups.append(plan_of(placed, prices))
    return LayerGroupReport(tuple(groups), (), global_cycles)
