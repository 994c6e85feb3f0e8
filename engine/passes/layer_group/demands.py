"""Groups that the user demands: whether they can be, and what to say if not."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import UserError
from engine.passes.layer_group.chains import Program, group_of
from engine.passes.layer_group.cutting import Chain, Part, Unit
from engine.snapshot import is_computation


def check_demands(
    program: Program, chains: Sequence[tuple[int, ...]], forced: Sequence[tuple[int, int]]
) -> tuple[Unit, ...]:
    """The demanded groups, checked: each within one chain, none overlapping, equal ones once. Raises UserError."""
    taken: dict[int, Unit] = {}
    demands = tuple(sorted(set(forced)))
    for first, last in demands:
        name = _option(program, first, last)
        if not 0 <= first < last < len(program.ops):
            raise UserError(
                f"{name}: ops {first} to {last} are no two ops of the module, which has ops 0 to {len(program.ops) - 1}"
            )
        for index in range(first, last + 1):
            if is_computation(program.ops[index]) and program.why_global(index):
                raise UserError(
                    f"{name}: {_called(program, index)} {program.why_global(index)}; groups may cover "
                    f"{_spans(chains)}{_ordinary(program)}"
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
    return demands


def _option(program: Program, first: int, last: int) -> str:
    """A demand as it stands on the command line."""
    module = f"{program.module}:" if program.module else ""
    return f"--force-group {module}{first}..{last}"


def _ordinary(program: Program) -> str:
    """The end of a message where groups might also be streamed."""
    if not program.fused:
        return ""
    return "; a demanded group is an ordinary one, those that --fuse-weights streams cannot be demanded"


def _spans(chains: Sequence[tuple[int, ...]]) -> str:
    return (
        ", ".join(f"{chain[0]}..{chain[-1]}" for chain in chains if len(chain) > 1)
        or "nothing in this module"
    )


def demanded(chain: Chain, first: int, last: int) -> Part:
    """The part as a group. Raises UserError with what it needs and the longest part of it that fits."""
    trial = chain.trial(first, last)
    if trial.placed is not None:
        return Part(first, last, trial.placed.cycles)
    program, indices = chain.program, chain.indices
    said = f"{_option(program, indices[first], indices[last])} cannot be placed: {trial.reason}"
    if any(attempt.needed_bytes for attempt in trial.attempts):
        worst = max(range(first, last + 1), key=lambda i: _op_bytes(chain, i))
        said += f"; its largest op is {_called(program, indices[worst])} with {_op_bytes(chain, worst)} bytes unsliced"
    raise UserError(f"{said}; {_closest(chain, first, last)}")


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
    return "no smaller part of it can be a group; without the demand each of its ops can run globally"


def _called(program: Program, index: int) -> str:
    return f"op {index} ({program.ops[index].kind} at {program.ops[index].location})"
