"""Which consecutive ops become groups: every part of a chain is tried, and the cheapest cut of the chain is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from engine.errors import UserError
from engine.passes.layer_group.allocation import BANK_RULE, MEMORY, Failure
from engine.passes.layer_group.chains import GroupOps, Program, group_of, renamed, reuse_operands
from engine.passes.layer_group.cost import Prices, prices_of, structure
from engine.passes.layer_group.exact import best_table
from engine.passes.layer_group.explain import Costs, Neighbourhood, explain
from engine.passes.layer_group.layout import Role, group_types
from engine.passes.layer_group.placing import Placed, draft, improve, named, place, plan_of, with_table
from engine.passes.layer_group.plan import Attempt, Explanation, GroupPlan, LayerGroupReport, Secs
from engine.passes.layer_group.slicing import SliceError, limits
from engine.passes.layer_group.time_steps import ScheduleError
from engine.snapshot import OpRecord, is_computation
from engine.tpu.chip import Chip
from engine.tpu.emit import ceil_div

GREEDY, CHEAPEST, EXACT = 1, 2, 3
"""Values of `opt`."""
MAX_TRIES = 20
"""Slicings tried for one group."""
MAX_UNITS = 50
"""Parts of a chain between which cuts are chosen at once; longer chains are first cut piece by piece."""
MAX_EXACT_OPS = 8
"""Ops of the longest group that is solved exactly."""


def plan_groups(
    ops: Sequence[OpRecord], chip: Chip, *, opt: int = CHEAPEST, forced: Sequence[tuple[int, int]] = ()
) -> LayerGroupReport:
    """The groups of a module.

    ops: its records after `op-reorder`. opt: 1 takes as many ops to a group as fit, from the last one on; 2 finds the
    cut with the least cycles; 3 also solves small groups exactly. forced: groups that the user demands, as indices of
    the first and last record. The report has the cycles of every op that could be in a group and is not. Raises
    UserError for an impossible chip, an unknown `opt`, a forced group that cannot be, and an op that fits in no way.
    """
    check_chip(chip)
    if opt not in (GREEDY, CHEAPEST, EXACT):
        raise UserError(f"--opt {opt} is unknown; accepted: 1 (greedy), 2 (cheapest cut), 3 (exact)")
    program = Program.of(ops, chip)
    chains = program.chains()
    demands = _demands(program, chains, forced)
    groups: list[GroupPlan] = []
    explanations: list[Explanation] = []
    global_cycles: dict[int, int] = {}
    for indices in chains:
        chain = Chain(program, indices, prices_of(chip), opt)
        parts = _cut(chain, [(first, last) for first, last in demands if first in indices])
        for number, part in enumerate(parts):
            if part.first == part.last:
                global_cycles[indices[part.first]] = part.cycles
                continue
            groups.append(chain.plan(part))
            explanations.append(_explanation(chain, parts, number, len(groups) - 1, demands))
    return LayerGroupReport(tuple(groups), tuple(explanations), global_cycles)


def check_chip(chip: Chip) -> None:
    """Raise UserError for a chip on which no local memory can be laid out."""
    for name in ("lanes", "eu_bytes", "lmem_bytes", "banks", "cores"):
        value = getattr(chip, name)
        if value <= 0:
            raise UserError(
                f"chip {chip.name}: {name} is {value}; it must be positive; correct the chip table"
            )
    if chip.eu_bytes % 4:
        raise UserError(
            f"chip {chip.name}: eu_bytes is {chip.eu_bytes}; it must be a multiple of 4, the bytes of an f32"
        )
    if chip.lmem_bytes % (chip.banks * chip.eu_bytes):
        raise UserError(
            f"chip {chip.name}: lmem_bytes is {chip.lmem_bytes}; it must be a multiple of banks x eu_bytes = "
            f"{chip.banks * chip.eu_bytes}"
        )


# -- one group -----------------------------------------------------------------------------------------------------


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


# -- a chain -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Consecutive ops of a chain, from `first` to `last` (positions): a group, or one op run globally."""

    first: int
    last: int
    cycles: int


Unit = tuple[int, int]
"""First and last position of ops that are not cut apart."""

_TRIALS: dict[tuple[object, ...], Trial] = {}
"""What was found out about groups, by structure: repeated blocks and variants of a module have the same ones."""


@dataclass
class Chain:
    """A chain with what is known about its parts."""

    program: Program
    indices: tuple[int, ...]
    prices: Prices
    opt: int = CHEAPEST
    _trials: dict[Unit, Trial] = field(default_factory=dict)
    _bests: dict[Unit, int] = field(default_factory=dict)
    _least: dict[Unit, float] = field(default_factory=dict)

    def trial(self, first: int, last: int) -> Trial:
        """The ops from `first` to `last` (positions, at least two) as one group, of the type that costs least."""
        if (first, last) not in self._trials:
            trials = [self._try(group) for group in self._groups(first, last)]
            self._trials[first, last] = min(trials, key=lambda trial: trial.rank)
        return self._trials[first, last]

    def _try(self, group: GroupOps) -> Trial:
        """What comes out of a group; looked up if one of its structure was tried before."""
        numbers = _numbers(group)
        same = renamed(group, numbers, range(len(group.ops)))
        ops = tuple((op.operands, op.result, structure(op.record)) for op in same.ops)
        key = (id(self.prices), self.opt, group.type, ops, same.outputs)
        if key not in _TRIALS:
            _TRIALS[key] = try_group(same, self.prices, self.opt)
        return _TRIALS[key]

    def cost(self, first: int, last: int) -> int | None:
        """Cycles of a part as one group, or of one op run globally; None when it cannot be."""
        if first == last:
            return self.prices.globally(self.program.ops[self.indices[first]])
        placed = self.trial(first, last).placed
        return None if placed is None else placed.cycles

    def least(self, first: int, last: int) -> float:
        """Cycles that a part takes at least: what its busier engine does if nothing is in the way."""
        key = (first, last)
        if key not in self._least:
            groups = self._groups(first, last)
            self._least[key] = min(self.prices.least(group, alone=first == last) for group in groups)
        return self._least[key]

    def best(self, first: int, last: int) -> int:
        """Cycles of a part that is cut as cheaply as possible."""
        if (first, last) not in self._bests:
            parts = cut_cheapest(self, [(i, i) for i in range(first, last + 1)])
            self._bests[first, last] = sum(part.cycles for part in parts)
        return self._bests[first, last]

    def plan(self, part: Part) -> GroupPlan:
        """The plan of a part that is a group."""
        placed = self.trial(part.first, part.last).placed
        assert placed is not None
        indices = self.indices[part.first : part.last + 1]
        names = {number: name for name, number in _numbers(group_of(self.program, indices)).items()}
        return named(plan_of(placed, self.prices), names, indices)

    def _groups(self, first: int, last: int) -> list[GroupOps]:
        """A part as a group of every type that it may have."""
        indices = self.indices[first : last + 1]
        types = group_types([self.program.ops[index] for index in indices])
        return [group_of(self.program, indices, type_) for type_ in types]


def _numbers(group: GroupOps) -> dict[str, str]:
    """Each value's number in the order of the ops."""
    values = dict.fromkeys(value for op in group.ops for value in (*op.operands, op.result))
    return {value: str(number) for number, value in enumerate(values)}


def cut_greedily(chain: Chain, units: Sequence[Unit]) -> list[Part]:
    """From the tail, as many units to a group as fit, then the next."""
    parts: list[Part] = []
    end = len(units) - 1
    while end >= 0:
        for start in range(end + 1):
            cost = chain.cost(units[start][0], units[end][1])
            if cost is not None:
                parts.insert(0, Part(units[start][0], units[end][1], cost))
                end = start - 1
                break
    return parts


def cut_cheapest(chain: Chain, units: Sequence[Unit]) -> list[Part]:
    """The cut with the least sum of cycles, by dynamic programming over its last part; of equal ones the fewest parts.

    Parts count with the least that they may take until the best cut contains them: most are never tried.
    """
    costs: dict[Unit, float] = {}
    tried: set[Unit] = set()
    for end in range(len(units)):
        for start in range(end + 1):
            costs[start, end] = chain.least(units[start][0], units[end][1])
    while True:
        path = _shortest(costs, len(units))
        open_parts = [part for part in path if part not in tried]
        if not open_parts:
            return [Part(units[a][0], units[b][1], int(costs[a, b])) for a, b in path]
        for start, end in open_parts:
            cost = chain.cost(units[start][0], units[end][1])
            costs[start, end] = inf if cost is None else cost
            tried.add((start, end))


def _shortest(costs: Mapping[Unit, float], count: int) -> list[Unit]:
    """The parts, of units 0 to count - 1, with the least sum of costs."""
    best: list[tuple[float, int, int]] = [(0, 0, 0)]
    for end in range(count):
        options = (
            (best[start][0] + costs[start, end], best[start][1] + 1, start) for start in range(end + 1)
        )
        best.append(min(options))
    path: list[Unit] = []
    at = count
    while at > 0:
        start = best[at][2]
        path.insert(0, (start, at - 1))
        at = start
    return path


def _units(chain: Chain, units: list[Unit], cut: Callable[[Chain, Sequence[Unit]], list[Part]]) -> list[Unit]:
    """At most MAX_UNITS units: the parts into which pieces of a longer chain are cut by themselves."""
    while len(units) > MAX_UNITS:
        pieces = [units[at : at + MAX_UNITS] for at in range(0, len(units), MAX_UNITS)]
        merged = [(part.first, part.last) for piece in pieces for part in cut(chain, piece)]
        if len(merged) == len(units):
            break
        units = merged
    return units


def _cut(chain: Chain, demands: Sequence[Unit]) -> list[Part]:
    """All parts of a chain. demands: groups that must be, as indices of their first and last record."""
    cut = cut_greedily if chain.opt == GREEDY else cut_cheapest
    parts: list[Part] = []
    at = 0
    for first, last in [
        *sorted((chain.indices.index(a), chain.indices.index(b)) for a, b in demands),
        (None, None),
    ]:
        end = len(chain.indices) if first is None else first
        free = _units(chain, [(i, i) for i in range(at, end)], cut)
        parts += cut(chain, free)
        if first is not None and last is not None:
            parts.append(_demanded(chain, first, last))
            at = last + 1
    return parts


# -- groups that the user demands ----------------------------------------------------------------------------------


def _demands(
    program: Program, chains: Sequence[tuple[int, ...]], forced: Sequence[tuple[int, int]]
) -> tuple[Unit, ...]:
    """The demanded groups, checked: each within one chain, none overlapping. Raises UserError."""
    taken: dict[int, Unit] = {}
    for first, last in forced:
        name = f"--force-group {first}..{last}"
        if not 0 <= first < last < len(program.ops):
            raise UserError(
                f"{name}: ops {first} to {last} are no two ops of the module, which has ops 0 to {len(program.ops) - 1}"
            )
        for index in range(first, last + 1):
            if is_computation(program.ops[index]) and program.why_global(index):
                raise UserError(
                    f"{name}: {_called(program, index)} {program.why_global(index)}; groups may cover "
                    f"{_spans(chains)}"
                )
        chain = next((chain for chain in chains if first in chain and last in chain), None)
        if chain is None:
            raise UserError(
                f"{name}: op {first} or {last} computes nothing; groups may cover {_spans(chains)}"
            )
        for index in range(first, last + 1):
            if taken.setdefault(index, (first, last)) != (first, last):
                other = taken[index]
                raise UserError(f"{name}: op {index} is also in the demanded group {other[0]}..{other[1]}")
    return tuple(sorted(forced))


def _spans(chains: Sequence[tuple[int, ...]]) -> str:
    return (
        ", ".join(f"{chain[0]}..{chain[-1]}" for chain in chains if len(chain) > 1)
        or "nothing in this module"
    )


def _demanded(chain: Chain, first: int, last: int) -> Part:
    """The part as a group. Raises UserError with what it needs and the longest part of it that fits."""
    trial = chain.trial(first, last)
    if trial.placed is not None:
        return Part(first, last, trial.placed.cycles)
    program, indices = chain.program, chain.indices
    lmem = program.chip.lmem_bytes
    if trial.attempts:
        closest = min(trial.attempts, key=lambda attempt: attempt.needed_bytes)
        need = f"it needs {closest.needed_bytes} bytes a lane with {closest.secs.slices} slices"
    else:
        need = trial.reason
    worst = max(range(first, last + 1), key=lambda i: _op_bytes(chain, i))
    raise UserError(
        f"--force-group {indices[first]}..{indices[last]} cannot be placed: {need}, local memory has {lmem}; "
        f"its largest op is {_called(program, indices[worst])} with {_op_bytes(chain, worst)} bytes unsliced; "
        f"{_closest(chain, first, last)}"
    )


def _op_bytes(chain: Chain, position: int) -> int:
    group = group_of(chain.program, [chain.indices[position]])
    return sum(tensor.lane_bytes(chain.program.chip, tensor.shape) for tensor in group.tensors.values())


def _closest(chain: Chain, first: int, last: int) -> str:
    """The longest part that fits, as the end of a message."""
    for length in range(last - first, 1, -1):
        for start in range(first, last - length + 2):
            placed = chain.trial(start, start + length - 1).placed
            if placed is not None:
                span = f"{chain.indices[start]}..{chain.indices[start + length - 1]}"
                secs = placed.draft.secs
                slices = " ".join(
                    f"{axis} {getattr(secs, axis)}" for axis in "nchw" if getattr(secs, axis) > 1
                )
                return f"{span} fits, cut in {slices or 'one slice'}"
    return "no two of its ops fit together"


def _called(program: Program, index: int) -> str:
    return f"op {index} ({program.ops[index].kind} at {program.ops[index].location})"


# -- explanations --------------------------------------------------------------------------------------------------


def _explanation(
    chain: Chain, parts: Sequence[Part], number: int, group: int, demands: Sequence[Unit]
) -> Explanation:
    part = parts[number]
    before, after = (
        (parts[at].first, parts[at].last) if 0 <= at < len(parts) else None for at in (number - 1, number + 1)
    )
    span = (chain.indices[part.first], chain.indices[part.last])
    place_in_chain = Neighbourhood(
        chain.program, chain.indices, part.first, part.last, before, after, span in demands
    )

    def joined(first: int, last: int) -> tuple[int | None, str]:
        return chain.cost(first, last), chain.trial(first, last).reason

    attempts = chain.trial(part.first, part.last).attempts
    return explain(group, place_in_chain, Costs(joined, chain.best), attempts)
