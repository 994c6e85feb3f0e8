"""Which parts of a module's chains stream their weights: those for which nothing else is cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.cost import prices_of, structure
from engine.passes.layer_group.cutting import Chain, Part, shortest
from engine.passes.layer_group.explain import Costs, Neighbourhood, explain
from engine.passes.layer_group.placing import named
from engine.passes.layer_group.plan import Alternative, Explanation, GroupPlan, LayerGroupReport
from engine.passes.layer_group.search import plan_chains
from engine.passes.layer_group.stream.chain import Stream, StreamError, stream_of, stretches
from engine.passes.layer_group.stream.planned import stream_plan
from engine.passes.layer_group.stream.prices import StreamPrices, stream_prices
from engine.passes.layer_group.stream.trial import Placed, least_cycles, try_stream
from engine.passes.layer_group.trial import Trial
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip

_TRIALS: dict[tuple[object, ...], Trial[Placed]] = {}
"""What was found out about streams, by structure: the modules of a layer have much the same ones."""
NEARLY = 1.002
"""How much dearer than the cheapest cut the one that is taken may be: it saves most of the trials."""
_LEAST: dict[tuple[object, ...], float] = {}


def plan_fused(
    ops: Sequence[OpRecord],
    chip: Chip,
    *,
    opt: int,
    forced: Sequence[tuple[int, int]] = (),
    module: str = "",
) -> LayerGroupReport:
    """The groups of a module with `--fuse-weights`: streamed ones where they are cheaper, the usual ones elsewhere.

    Arguments, report and errors as of `plan_groups`; a forced group is never streamed.
    """
    program = Program.of(ops, chip, module, fused=True)
    demanded = {index for first, last in forced for index in range(first, last + 1)}
    streamed: list[tuple[GroupPlan, Explanation]] = []
    for indices in _without(stretches(program), demanded):
        streamed += _cut(StreamChain(program, indices, prices_of(chip), opt))
    taken = {index for plan, _ in streamed for index in plan.records}
    rest = plan_chains(program, _without(program.chains(), taken), opt, forced)
    left = [(group, why) for group, why in zip(rest.groups, rest.explanations, strict=True)]
    found = sorted([*streamed, *left], key=lambda pair: pair[0].records)
    return LayerGroupReport(
        tuple(plan for plan, _ in found),
        tuple(replace(why, group=number) for number, (_, why) in enumerate(found)),
        rest.global_cycles,
    )


def _without(chains: Sequence[tuple[int, ...]], taken: set[int]) -> list[tuple[int, ...]]:
    """The chains, cut at the ops that are taken."""
    found: list[tuple[int, ...]] = []
    for chain in chains:
        part: list[int] = []
        for index in chain:
            if index not in taken:
                part.append(index)
            elif part:
                found.append(tuple(part))
                part = []
        found += [tuple(part)] if part else []
    return found


def _cut(chain: StreamChain) -> Iterator[tuple[GroupPlan, Explanation]]:
    """The streamed parts of the cheapest cut, with why they are as they are."""
    parts = _cut_cheaply(chain)
    for number, part in enumerate(parts):
        if chain.is_streamed(part.first, part.last):
            yield chain.stream_plan(part), _explanation(chain, parts, number)


def _cut_cheaply(chain: StreamChain) -> list[Part]:
    """A cut that takes at most NEARLY times the cycles of any other, by dynamic programming over its last part.

    As `cut_cheapest`: parts count with the least that they may take until a cut that may be the best contains them.
    """
    count = len(chain.indices)
    least = {(a, b): chain.least(a, b) for b in range(count) for a in range(b + 1)}
    tried: dict[tuple[int, int], float] = dict.fromkeys(least, inf)
    bounded: set[tuple[int, int]] = set()
    while True:
        path = shortest(least, count)
        known = shortest(tried, count)
        if sum(tried[part] for part in known) <= NEARLY * sum(least[part] for part in path):
            return [Part(a, b, int(tried[a, b])) for a, b in known]
        loose = [part for part in path if part not in bounded]
        bounded |= set(loose)
        for part in loose:
            least[part] = max(least[part], chain.least_sliced(*part))
        for part in path if not loose else ():
            cost = chain.cost(*part)
            least[part] = tried[part] = inf if cost is None else cost


def _explanation(chain: StreamChain, parts: Sequence[Part], number: int) -> Explanation:
    part = parts[number]
    before, after = (
        (parts[at].first, parts[at].last) if 0 <= at < len(parts) else None for at in (number - 1, number + 1)
    )
    place = Neighbourhood(chain.program, chain.indices, part.first, part.last, before, after)
    found = explain(0, place, Costs(chain.joined, chain.best), chain.stream(part.first, part.last).attempts)
    apart = sum(
        chain.prices.globally(chain.program.ops[i]) for i in chain.indices[part.first : part.last + 1]
    )
    alone = Alternative("without streaming, op by op", part.cycles, apart)
    return replace(found, alternatives=(alone, *found.alternatives))


@dataclass
class StreamChain(Chain):
    """Ops that can be streamed, some of which can also be in groups of the usual kind."""

    _streams: dict[tuple[int, int], Trial[Placed]] = field(default_factory=dict)
    _bounds: dict[tuple[int, int], float] = field(default_factory=dict)

    def stream(self, first: int, last: int) -> Trial[Placed]:
        """The ops from `first` to `last` (positions) as a streamed group."""
        key = (first, last)
        if key not in self._streams:
            self._streams[key] = self._try_stream(first, last)
        return self._streams[key]

    def is_streamed(self, first: int, last: int) -> bool:
        """Whether a part is cheaper streamed than otherwise."""
        cost = self._otherwise(first, last)
        return self.stream(first, last).rank < (inf if cost is None else cost)

    def stream_plan(self, part: Part) -> GroupPlan:
        """The plan of a streamed part."""
        placed = self.stream(part.first, part.last).placed
        assert placed is not None
        indices = self.indices[part.first : part.last + 1]
        names = {number: name for name, number in _numbers(self.program, indices).items()}
        return named(stream_plan(placed), names, indices)

    def joined(self, first: int, last: int) -> tuple[int | None, str]:
        """Cycles of a part as one group, and why it cannot be one."""
        if first == last:
            return None, "it is alone"
        return self.cost(first, last), self.stream(first, last).reason

    # -- as the search asks ------------------------------------------------------------------------------------------

    def cost(self, first: int, last: int) -> int | None:
        """Cycles of a part: streamed, as a group of the usual kind, or of one op run globally."""
        cost = self._otherwise(first, last)
        rank = self.stream(first, last).rank
        return int(min(rank, inf if cost is None else cost)) if cost is not None or rank < inf else None

    def least(self, first: int, last: int) -> float:
        """Cycles that a part takes at least."""
        key = (first, last)
        if key not in self._bounds:
            otherwise = super().least(first, last) if self._is_local(first, last) else inf
            if first == last:
                otherwise = self.prices.globally(self.program.ops[self.indices[first]])
            self._bounds[key] = min(otherwise, self._least_streamed(first, last))
        return self._bounds[key]

    def least_sliced(self, first: int, last: int) -> float:
        """The same, closer: with the slices of rows that a streamed group needs."""
        cost = self._otherwise(first, last)
        return min(inf if cost is None else cost, self._least_streamed(first, last, sliced=True))

    def _otherwise(self, first: int, last: int) -> int | None:
        if first == last or self._is_local(first, last):
            return super().cost(first, last)
        return None

    def _is_local(self, first: int, last: int) -> bool:
        """Whether a part can be a group of the usual kind: ops that can, one right behind the other."""
        homes = {self._homes.get(index) for index in self.indices[first : last + 1]}
        return len(homes) == 1 and None not in homes

    @cached_property
    def _homes(self) -> dict[int, int]:
        """For each op that can be in a group of the usual kind, the chain that it stands in."""
        return {index: at for at, chain in enumerate(self.program.chains()) for index in chain}

    # -- streams, by structure ---------------------------------------------------------------------------------------

    def _least_streamed(self, first: int, last: int, *, sliced: bool = False) -> float:
        try:
            stream, key = self._renamed(first, last)
        except StreamError:
            return inf
        key = (*key, sliced)
        if key not in _LEAST:
            _LEAST[key] = least_cycles(stream, self._stream_prices, sliced=sliced)
        return _LEAST[key]

    def _try_stream(self, first: int, last: int) -> Trial[Placed]:
        try:
            stream, key = self._renamed(first, last)
        except StreamError as error:
            return Trial(None, (), str(error))
        if key not in _TRIALS:
            _TRIALS[key] = try_stream(stream, self._stream_prices)
        return _TRIALS[key]

    @property
    def _stream_prices(self) -> StreamPrices:
        return stream_prices(self.prices.chip)

    def _renamed(self, first: int, last: int) -> tuple[Stream, tuple[object, ...]]:
        """A part as a stream of numbered values, and what it has in common with equal ones. Raises StreamError."""
        program, indices = self.program, self.indices[first : last + 1]
        stream_of(program, indices)
        numbers = _numbers(program, indices)
        records = tuple(_numbered(program.ops[index], numbers) for index in indices)
        weights = frozenset(numbers[v] for v in program.weights if v in numbers)
        kept = {
            numbers[v]
            for at, record in enumerate(program.ops)
            if at not in indices
            for v in record.operands
            if v in numbers
        }
        outside = OpRecord("func.return", tuple(sorted(kept)), (), (), (), {}, ())
        made = {v for record in records for v in record.results}
        same = Program((*records, outside), program.chip, weights, {})
        key: tuple[object, ...] = (id(self.prices), weights, tuple(sorted(kept & made)))
        key += tuple((record.operands, record.results, structure(record)) for record in records)
        return stream_of(same, range(len(records))), key


def _numbers(program: Program, indices: Sequence[int]) -> dict[str, str]:
    """Each value's number in the order of the ops."""
    values: dict[str, None] = {}
    for index in indices:
        values.update(dict.fromkeys((*program.ops[index].operands, *program.ops[index].results)))
    return {value: str(number) for number, value in enumerate(values)}


def _numbered(record: OpRecord, numbers: dict[str, str]) -> OpRecord:
    return replace(
        record,
        operands=tuple(numbers[v] for v in record.operands),
        results=tuple(numbers[v] for v in record.results),
    )
