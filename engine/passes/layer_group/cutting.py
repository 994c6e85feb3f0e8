"""How a chain is cut into groups and global ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from engine.passes.layer_group.chains import GroupOps, Program, group_of, renamed
from engine.passes.layer_group.cost import Prices, structure
from engine.passes.layer_group.layout import group_types
from engine.passes.layer_group.placing import Placed, named, plan_of
from engine.passes.layer_group.plan import GroupPlan
from engine.passes.layer_group.trial import CHEAPEST, Trial, try_group

MAX_UNITS = 50
"""Parts of a chain between which cuts are chosen at once; longer chains are first cut piece by piece."""


@dataclass(frozen=True)
class Part:
    """Consecutive ops of a chain, from `first` to `last` (positions): a group, or one op run globally."""

    first: int
    last: int
    cycles: int


Unit = tuple[int, int]
"""First and last position of ops that are not cut apart."""

_TRIALS: dict[tuple[object, ...], Trial[Placed]] = {}
"""What was found out about groups, by structure: repeated blocks and variants of a module have the same ones."""


@dataclass
class Chain:
    """A chain with what is known about its parts."""

    program: Program
    indices: tuple[int, ...]
    prices: Prices
    opt: int = CHEAPEST
    _trials: dict[Unit, Trial[Placed]] = field(default_factory=dict)
    _bests: dict[Unit, int] = field(default_factory=dict)
    _least: dict[Unit, float] = field(default_factory=dict)

    def trial(self, first: int, last: int) -> Trial[Placed]:
        """The ops from `first` to `last` (positions, at least two) as one group, of the type that costs least."""
        if (first, last) not in self._trials:
            trials = [self._try(group) for group in self._groups(first, last)]
            self._trials[first, last] = min(trials, key=lambda trial: trial.rank)
        return self._trials[first, last]

    def _try(self, group: GroupOps) -> Trial[Placed]:
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
        path = shortest(costs, len(units))
        open_parts = [part for part in path if part not in tried]
        if not open_parts:
            return [Part(units[a][0], units[b][1], int(costs[a, b])) for a, b in path]
        for start, end in open_parts:
            cost = chain.cost(units[start][0], units[end][1])
            costs[start, end] = inf if cost is None else cost
            tried.add((start, end))


def shortest(costs: Mapping[Unit, float], count: int) -> list[Unit]:
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


def merge_units(
    chain: Chain, units: list[Unit], cut: Callable[[Chain, Sequence[Unit]], list[Part]]
) -> list[Unit]:
    """At most MAX_UNITS units: the parts into which pieces of a longer chain are cut by themselves."""
    while len(units) > MAX_UNITS:
        pieces = [units[at : at + MAX_UNITS] for at in range(0, len(units), MAX_UNITS)]
        merged = [(part.first, part.last) for piece in pieces for part in cut(chain, piece)]
        if len(merged) == len(units):
            break
        units = merged
    return units
