"""The search for a module's layer groups: chains, the best cut of each, and why."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import UserError
from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.cost import prices_of
from engine.passes.layer_group.cutting import Chain, Part, Unit, cut_cheapest, cut_greedily, merge_units
from engine.passes.layer_group.demands import check_demands, demanded
from engine.passes.layer_group.explain import Costs, Neighbourhood, explain
from engine.passes.layer_group.plan import Explanation, GroupPlan, LayerGroupReport
from engine.passes.layer_group.trial import CHEAPEST, EXACT, GREEDY
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip


def plan_groups(
    ops: Sequence[OpRecord],
    chip: Chip,
    *,
    opt: int = CHEAPEST,
    forced: Sequence[tuple[int, int]] = (),
    module: str = "",
) -> LayerGroupReport:
    """The groups of a module.

    ops: its records after `op-reorder`. opt: 1 takes as many ops to a group as fit, from the last one on; 2 finds the
    cut with the least cycles; 3 also solves small groups exactly. forced: groups that the user demands, as indices of
    the first and last record. module: its name, for messages. The report has the cycles of every op that could be in a
    group and is not. Raises UserError for an impossible chip, an unknown `opt`, a forced group that cannot be, and an
    op that fits in no way.
    """
    if opt not in (GREEDY, CHEAPEST, EXACT):
        raise UserError(f"--opt {opt} is unknown; accepted: 1 (greedy), 2 (cheapest cut), 3 (exact)")
    program = Program.of(ops, chip, module)
    return plan_chains(program, program.chains(), opt, forced)


def plan_chains(
    program: Program, chains: Sequence[tuple[int, ...]], opt: int, forced: Sequence[tuple[int, int]]
) -> LayerGroupReport:
    """The groups of some chains of a module; arguments and report as of `plan_groups`."""
    demands = check_demands(program, chains, forced)
    groups: list[GroupPlan] = []
    explanations: list[Explanation] = []
    global_cycles: dict[int, int] = {}
    for indices in chains:
        chain = Chain(program, indices, prices_of(program.chip), opt)
        parts = _cut(chain, [(first, last) for first, last in demands if first in indices])
        for number, part in enumerate(parts):
            if part.first == part.last:
                global_cycles[indices[part.first]] = part.cycles
                continue
            groups.append(chain.plan(part))
            explanations.append(_explanation(chain, parts, number, len(groups) - 1, demands))
    return LayerGroupReport(tuple(groups), tuple(explanations), global_cycles)


def _cut(chain: Chain, demands: Sequence[Unit]) -> list[Part]:
    """All parts of a chain. demands: groups that must be, as indices of their first and last record."""
    cut = cut_greedily if chain.opt == GREEDY else cut_cheapest

    def free(first: int, end: int) -> list[Part]:
        return cut(chain, merge_units(chain, [(i, i) for i in range(first, end)], cut))

    parts: list[Part] = []
    at = 0
    for first, last in sorted((chain.indices.index(a), chain.indices.index(b)) for a, b in demands):
        parts += [*free(at, first), demanded(chain, first, last)]
        at = last + 1
    return parts + free(at, len(chain.indices))


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
