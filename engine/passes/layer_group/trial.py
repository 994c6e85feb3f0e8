"""Whether ops can be one group: the slicings that are tried, and the one that is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, Protocol, TypeVar

from engine.passes.layer_group.allocation import BANK_RULE, MEMORY, Failure
from engine.passes.layer_group.chains import GroupOps, LocalOp, reuse_operands
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


class Costed(Protocol):
    """A group with an address for everything, as it is tried."""

    @property
    def cycles(self) -> int:
        """Of the whole group."""


AnyPlaced = TypeVar("AnyPlaced", bound=Costed, covariant=True)


@dataclass(frozen=True)
class Trial(Generic[AnyPlaced]):
    """A part of a chain as one group. placed: None when it cannot be one; reason: then why."""

    placed: AnyPlaced | None
    attempts: tuple[Attempt, ...]
    reason: str = ""

    @property
    def rank(self) -> float:
        """Cycles, infinitely many if it cannot be."""
        return inf if self.placed is None else self.placed.cycles


def try_group(group: GroupOps, prices: Prices, opt: int = CHEAPEST) -> Trial[Placed]:
    """The coarsest slicing with which a group fits local memory, with its time steps as cheap as they get.

    opt 3: of all slicings the cheapest, with the best time steps (small groups only).
    """
    if not (group.ops[0].moves and group.ops[-1].moves):
        return Trial(None, (), "a reshape at the end of a group moves nothing and stays outside")
    chip = prices.chip
    least, unsliced = _least_slices(group, prices)
    finest = limits(group, chip)
    ladder = _ladder(finest, least)[:MAX_TRIES]
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
    reason = _why_not(attempts, chip) if ladder else _too_large(group, _ladder(finest, 1)[-1], prices)
    return Trial(None, tuple(attempts), reason)


def _attempt(secs: Secs, result: Placed | Failure, chip: Chip) -> Attempt:
    if isinstance(result, Failure):
        return Attempt(secs, result.reason, result.needed, chip.lmem_bytes, None)
    return Attempt(secs, "", result.used_bytes, chip.lmem_bytes, result.cycles)


def _too_large(group: GroupOps, finest: Secs, prices: Prices) -> str:
    """Why no slicing is worth a trial: an op that alone needs more than local memory has."""
    lmem = prices.chip.lmem_bytes
    kind, fixed = max(
        ((op.kind, _op_bytes(op, group, prices)[1]) for op in group.ops), key=lambda found: found[1]
    )
    if fixed >= lmem:
        return f"the weights of a {kind} alone take {fixed} bytes a lane, local memory has {lmem}; no slicing helps"
    needs = []
    for op in group.ops:
        needed, fixed = _op_bytes(op, group, prices)
        needs.append((fixed + ceil_div(needed - fixed, finest.slices), op.kind))
    needed, kind = max(needs)
    most = _slices(finest.slices)
    return f"with {most}, which is the most, a {kind} alone needs {needed} of {lmem} bytes a lane"


def _slices(count: int) -> str:
    return "1 slice" if count == 1 else f"{count} slices"


def _why_not(attempts: Sequence[Attempt], chip: Chip) -> str:
    finest = attempts[-1]
    slices = _slices(finest.secs.slices)
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
    least, most = 1, 0
    for op in group.ops:
        needed, fixed = _op_bytes(op, group, prices)
        room = prices.chip.lmem_bytes - fixed
        most = max(most, needed)
        least = max(least, ceil_div(needed - fixed, room) if room > 0 else _NEVER)
    return least, most


def _op_bytes(op: LocalOp, group: GroupOps, prices: Prices) -> tuple[int, int]:
    """Bytes per lane that an op takes unsliced, and those of them that are its weights."""
    chip, shapes = prices.chip, {value: tensor.shape for value, tensor in group.tensors.items()}
    sizes = {v: group.tensors[v].lane_bytes(chip, shapes[v]) for v in (*op.operands, op.result)}
    fixed = sum(size for v, size in sizes.items() if group.tensors[v].role is not Role.ROWS)
    scratch = 0 if op.kind == "MatMul" else prices.scratch(op, group.tensors, shapes)
    return sum(sizes.values()) + scratch, fixed


_NEVER = 1 << 30
