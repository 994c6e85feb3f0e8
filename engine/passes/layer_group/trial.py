"""Whether ops can be one group: the slicings that are tried, and the one that is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from engine.passes.layer_group.allocation import BANK_RULE, MEMORY, Failure
from engine.passes.layer_group.chains import GroupOps, reuse_operands
from engine.passes.layer_group.cost import Prices
from engine.passes.layer_group.exact import best_table
from engine.passes.layer_group.layout import Role
from engine.passes.layer_group.placing import Placed, draft, improve, place, with_table
from engine.passes.layer_group.plan import Attempt, Secs
from engine.passes.layer_group.slicing import SliceError, limits
from engine.passes.layer_group.time_steps import ScheduleError
from engine.tpu.chip import Chip
from engine.tpu.emit import ceil_div

GREEDY, CHEAPEST, EXACT = 1, 2, 3
"""Values of `opt`."""
MAX_TRIES = 20
"""Slicings tried for one group."""
MAX_EXACT_OPS = 8
"""Ops of the longest group that is solved exactly."""


@dataclass(frozen=True)
class Trial:
    """A part of a chain as one group. placed: None when it cannot be one; reason: then why."""

    placed: Placed | None
    attempts: tuple[Attempt, ...]
    reason: str = ""

    @property
    def rank(self) -> float:
        """Cycles, infinitely many if it cannot be."""
        return inf if self.placed is None else self.placed.cycles


def try_group(group: GroupOps, prices: Prices, opt: int = CHEAPEST) -> Trial:
    """The coarsest slicing with which a group fits local memory, with its time steps as cheap as they get.

    opt 3: of all slicings the cheapest, with the best time steps (small groups only).
    """
    if not (group.ops[0].moves and group.ops[-1].moves):
        return Trial(None, (), "a reshape at the end of a group moves nothing and stays outside")
    chip = prices.chip
    least, unsliced = _least_slices(group, prices)
    ladder = _ladder(limits(group, chip), least)[:MAX_TRIES]
    attempts: list[Attempt] = []
    if least > 1:
        attempts.append(Attempt(Secs(), MEMORY, unsliced, chip.lmem_bytes, None))
    found: list[Placed] = []
    for secs in ladder:
        try:
            result = _place_somehow(group, secs, prices)
        except (SliceError, ScheduleError) as error:
            attempts.append(Attempt(secs, f"time step: {error}", 0, chip.lmem_bytes, None))
            continue
        if isinstance(result, Placed):
            result = improve(result, prices)
            if opt == EXACT and len(group.ops) <= MAX_EXACT_OPS:
                result = _solve(result, prices)
            found.append(result)
        attempts.append(_attempt(secs, result, chip))
        if found and (opt != EXACT or len(group.ops) > MAX_EXACT_OPS):
            break
    if not found:
        found = _share_banks(group, attempts, prices)
    if found:
        return Trial(min(found, key=lambda placed: placed.cycles), tuple(attempts))
    return Trial(None, tuple(attempts), _why_not(attempts, chip))


def _attempt(secs: Secs, result: Placed | Failure, chip: Chip) -> Attempt:
    if isinstance(result, Failure):
        return Attempt(secs, result.reason, result.needed, chip.lmem_bytes, None)
    return Attempt(secs, "", result.used_bytes, chip.lmem_bytes, result.cycles)


def _why_not(attempts: Sequence[Attempt], chip: Chip) -> str:
    finest = attempts[-1]
    slices = "1 slice" if finest.secs.slices == 1 else f"{finest.secs.slices} slices"
    if not finest.needed_bytes:
        return f"with {slices}: {finest.reason}"
    needed = f"{finest.needed_bytes} of {chip.lmem_bytes} bytes a lane ({finest.reason})"
    return f"with {slices} it needs {needed}"


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


def _share_banks(group: GroupOps, attempts: Sequence[Attempt], prices: Prices) -> list[Placed]:
    """The group with the coarsest slicing that only the bank rule forbids."""
    for attempt in attempts:
        if attempt.reason == BANK_RULE:
            placed = place(draft(group, attempt.secs, prices), prices, spread=False)
            if isinstance(placed, Placed):
                return [improve(placed, prices)]
    return []


def _solve(placed: Placed, prices: Prices) -> Placed:
    """The same slices with the best time steps, if addresses are found for them."""
    spread_out = draft(placed.draft.group, placed.draft.secs, prices)
    table = best_table(spread_out, prices.chip)
    if table is None:
        return placed
    best = place(with_table(spread_out, table, prices), prices)
    if isinstance(best, Failure):
        return placed
    best = improve(best, prices)
    return best if best.cycles < placed.cycles else placed


def _ladder(finest: Secs, least: int) -> list[Secs]:
    """Slicings from coarse to fine, of at least `least` slices: n first, then c, h and w; each makes slices smaller."""
    found = [Secs()]
    for axis in "nchw":
        extent = getattr(finest, axis)
        base, size = found[-1], extent
        for count in range(2, extent + 1):
            if ceil_div(extent, count) < size:
                size = ceil_div(extent, count)
                found.append(replace(base, **{axis: count}))
    return [secs for secs in found if secs.slices >= least]


def _least_slices(group: GroupOps, prices: Prices) -> tuple[int, int]:
    """Slices below which some op alone does not fit, and the bytes per lane that it takes unsliced.

    Its weights stay, all else shrinks with the slices.
    """
    chip, shapes = prices.chip, {value: tensor.shape for value, tensor in group.tensors.items()}
    least, most = 1, 0
    for op in group.ops:
        sizes = {v: group.tensors[v].lane_bytes(chip, shapes[v]) for v in (*op.operands, op.result)}
        fixed = sum(size for v, size in sizes.items() if group.tensors[v].role is not Role.ROWS)
        scratch = 0 if op.kind == "MatMul" else prices.scratch(op, group.tensors, shapes)
        needed, room = sum(sizes.values()) + scratch, chip.lmem_bytes - fixed
        most = max(most, needed)
        least = max(least, ceil_div(needed - fixed, room) if room > 0 else _NEVER)
    return least, most


_NEVER = 1 << 30
