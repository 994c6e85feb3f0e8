"""Why groups begin and end where they do, as sentences and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.plan import Alternative, Attempt, Explanation
from engine.snapshot import is_computation


@dataclass(frozen=True)
class Neighbourhood:
    """A group in its chain. indices: records of the chain. first, last: the group; before, after: the parts beside it,
    None at an end of the chain. fixed: the user demanded the group."""

    program: Program
    indices: Sequence[int]
    first: int
    last: int
    before: tuple[int, int] | None
    after: tuple[int, int] | None
    fixed: bool = False


@dataclass(frozen=True)
class Costs:
    """What the search knows. joined: cycles of a part as one group, and why it cannot be one. best: of a part cut as
    cheaply as possible."""

    joined: Callable[[int, int], tuple[int | None, str]]
    best: Callable[[int, int], int]


def explain(number: int, place: Neighbourhood, costs: Costs, attempts: Sequence[Attempt]) -> Explanation:
    """The explanation of group `number`."""
    begins, left = _side(place, costs, forward=False)
    ends, right = _side(place, costs, forward=True)
    return Explanation(number, begins, ends, tuple(attempts), (*left, *right))


def _side(place: Neighbourhood, costs: Costs, *, forward: bool) -> tuple[str, tuple[Alternative, ...]]:
    """Why the group does not go on in one direction, and what it would cost if it did."""
    if place.fixed:
        return "as the user demanded", ()
    beside = place.after if forward else place.before
    if beside is None:
        return _chain_end(place, forward=forward), ()
    near = beside[0] if forward else beside[1]
    op = _describe(place.program, place.indices[near])
    first, last = (place.first, near) if forward else (near, place.last)
    cycles, reason = costs.joined(first, last)
    span = (place.first, beside[1]) if forward else (beside[0], place.last)
    split = costs.best(place.first, place.last) + costs.best(*beside)
    if cycles is None:
        return f"{op} cannot join: {reason}", (Alternative(f"with {op}", None, split),)
    rest = (near + 1, span[1]) if forward else (span[0], near - 1)
    joined = cycles + (costs.best(*rest) if rest[0] <= rest[1] else 0)
    text = f"with {op} it takes {joined} cycles, split {split}"
    return text, (Alternative(f"with {op}", joined, split),)


def _chain_end(place: Neighbourhood, *, forward: bool) -> str:
    """Which op ends the chain."""
    ops = place.program.ops
    step = 1 if forward else -1
    at = (place.indices[-1] if forward else place.indices[0]) + step
    while 0 <= at < len(ops) and not is_computation(ops[at]):
        at += step
    if not 0 <= at < len(ops):
        return "the module ends" if forward else "the module begins"
    return f"{_describe(place.program, at)} {place.program.why_global(at)}"


def _describe(program: Program, index: int) -> str:
    record = program.ops[index]
    return f"{record.kind} at {record.location}"
