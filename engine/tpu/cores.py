"""How an op is shared between the cores of a chip: the attributes that say so, and what reads them.

    core_dim = 2, core_split = [[0, 288], [288, 288]], run_core_id = [0, 1]

`run_core_id` lists the cores that run an op. Alone it means the whole op on one core. With `core_split` the op is cut
along dimension `core_dim` of its first result into parts, each a start and a length, and part i runs on entry
i mod n of the n cores listed. A tpu.Group has no core_dim: its parts are numbers of slices. Ops with the same number
as `group_parallel` run at the same time, each on cores of its own (TPU-MLIR puts them into one tpu.GroupParallel).
Between all other ops every core waits for every other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from engine.errors import VerifyError
from engine.snapshot import BITS, OpRecord, TensorType

CORE_ATTRIBUTES: Mapping[str, type | tuple[type, ...]] = {
    "core_dim": int,
    "core_split": list,
    "run_core_id": list,
    "group_parallel": int,
}
"""The attributes and their types; every op of the chip may have them."""

_NAMES = frozenset(CORE_ATTRIBUTES)

Range = tuple[int, int]
"""Start and length."""


@dataclass(frozen=True)
class CoreSplit:
    """The parts into which an op is cut. dim: of its first result; None for the slices of a group."""

    dim: int | None
    parts: tuple[Range, ...]


@dataclass(frozen=True)
class CoreUse:
    """Which cores run an op. split: None when one core runs all of it. parallel: number of a set of ops that run at
    the same time."""

    cores: tuple[int, ...]
    split: CoreSplit | None = None
    parallel: int | None = None

    @classmethod
    def of(cls, op: OpRecord) -> CoreUse | None:
        """From the attributes; None for an op that names no core, as all of a program for one core."""
        attributes = op.attributes
        if "run_core_id" not in attributes:
            return None
        split = None
        if "core_split" in attributes:
            parts = tuple((start, length) for start, length in attributes["core_split"])
            split = CoreSplit(attributes.get("core_dim"), parts)
        return cls(tuple(attributes["run_core_id"]), split, attributes.get("group_parallel"))

    def attributes(self) -> dict[str, Any]:
        """As the IR has them."""
        found: dict[str, Any] = {"run_core_id": list(self.cores)}
        if self.split is not None:
            found["core_split"] = [list(part) for part in self.split.parts]
            if self.split.dim is not None:
                found["core_dim"] = self.split.dim
        if self.parallel is not None:
            found["group_parallel"] = self.parallel
        return found

    def parts_of(self, place: int) -> tuple[Range, ...]:
        """The parts that entry `place` of the listed cores runs."""
        assert self.split is not None
        return self.split.parts[place :: len(self.cores)]


# -- cutting -------------------------------------------------------------------------------------------------------


def even_parts(size: int, cores: int, unit: int = 1) -> tuple[Range, ...]:
    """Parts of ceil(units / cores) whole units, the first core's first: the last part is the shortest, and cores that
    nothing is left for get none (as the reference deals out heads and slices, R51, R52)."""
    step = _ceil_div(_ceil_div(size, unit), cores) * unit
    return tuple((start, min(step, size - start)) for start in range(0, size, step))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def even_split(size: int, dim: int | None, cores: int, unit: int = 1) -> CoreSplit | None:
    """`even_parts` of a dimension; None when that is a single one."""
    parts = even_parts(size, cores, unit)
    return CoreSplit(dim, parts) if len(parts) > 1 else None


def outermost_split(shape: Sequence[int], cores: int) -> CoreSplit | None:
    """Cut the first dimension that is not 1, so that every part is dense; None when there is none."""
    dim = next((dim for dim, size in enumerate(shape) if size > 1), None)
    return None if dim is None else even_split(shape[dim], dim, cores)


def narrow(type_: TensorType, dim: int, part: Range) -> TensorType:
    """The part of a tensor, a tensor at an address of its own.

    Raises ValueError for a part that does not lie together in memory.
    """
    start, length = part
    shape = type_.shape
    if prod(shape[:dim]) != 1:
        raise ValueError(f"a part along dimension {dim} of {list(shape)} does not lie together in memory")
    address = None
    if type_.address is not None:
        address = type_.address + start * prod(shape[dim + 1 :]) * BITS[type_.dtype] // 8
    return TensorType((*shape[:dim], length, *shape[dim + 1 :]), type_.dtype, address)


def narrowed(op: OpRecord, dim: int, part: Range, operands: Iterable[int]) -> OpRecord:
    """The op on a part of its results and of the given operands, all cut along one dimension."""
    cut = set(operands)
    return replace(
        op,
        operand_types=tuple(
            narrow(type_, dim, part) if number in cut else type_
            for number, type_ in enumerate(op.operand_types)
        ),
        result_types=tuple(narrow(type_, dim, part) for type_ in op.result_types),
    )


# -- checks --------------------------------------------------------------------------------------------------------


def verify_cores(op: OpRecord) -> None:
    """Check the attributes of one op. Raises VerifyError with the reason."""
    attributes = op.attributes
    if _NAMES.isdisjoint(attributes):
        return
    if "run_core_id" not in attributes:
        given = ", ".join(name for name in CORE_ATTRIBUTES if name in attributes)
        raise VerifyError(f"has {given} but no run_core_id: which cores run it?")
    cores = attributes["run_core_id"]
    if not cores or not all(map(_is_natural, cores)) or len(set(cores)) != len(cores):
        raise VerifyError(f"run_core_id is {cores!r}, expected different numbers of cores from 0 on")
    if "core_split" in attributes:
        _verify_parts(op)
        return
    if len(cores) > 1 or "core_dim" in attributes:
        raise VerifyError(f"run_core_id is {cores!r} but core_split does not say who runs what")


def _verify_parts(op: OpRecord) -> None:
    parts = op.attributes["core_split"]
    pairs = all(isinstance(part, list) and len(part) == 2 and all(map(_is_natural, part)) for part in parts)
    if not parts or not pairs:
        raise VerifyError(f"core_split is {parts!r}, expected a [start, length] for each part")
    if len(parts) < len(op.attributes["run_core_id"]):
        raise VerifyError(
            f"core_split has {len(parts)} parts for {len(op.attributes['run_core_id'])} cores of run_core_id"
        )
    size, what = _divided(op)
    at = 0
    for start, length in parts:
        if start != at or not length:
            raise VerifyError(f"core_split {parts} leaves a gap or an overlap at {at} of {what}")
        at += length
    if at != size:
        raise VerifyError(f"core_split {parts} ends at {at}, {what} has {size}")


def _divided(op: OpRecord) -> tuple[int, str]:
    """How much there is to divide, and what it is."""
    dim = op.attributes.get("core_dim")
    secs = [value for name, value in op.attributes.items() if name.endswith("secs")]
    if secs:
        if dim is not None:
            raise VerifyError("a group is divided by slices and has no core_dim")
        return prod(secs), "the group's slices"
    shape = op.result_types[0].shape if op.result_types else ()
    if dim is None or not 0 <= dim < len(shape):
        raise VerifyError(f"core_dim is {dim}, expected a dimension of the result {list(shape)}")
    return shape[dim], f"dimension {dim}"


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def core_problems(ops: Sequence[OpRecord], cores: int) -> list[str]:
    """What is wrong between the ops of a module for `cores` cores, as sentences; empty when all is well.

    Checked: cores exist; ops that run at the same time stand together, on different cores, and none reads what another
    one makes.
    """
    problems = []
    sets: dict[int, list[int]] = {}
    for index, op in enumerate(ops):
        use = CoreUse.of(op)
        if use is None:
            continue
        if max(use.cores) >= cores:
            problems.append(
                f"{op.name} at {op.location} runs on core {max(use.cores)}, the program has {cores}"
            )
        if use.parallel is not None:
            sets.setdefault(use.parallel, []).append(index)
    for number, members in sets.items():
        problems += _parallel_problems(ops, number, members)
    return problems


def _parallel_problems(ops: Sequence[OpRecord], number: int, members: Sequence[int]) -> list[str]:
    uses = [CoreUse.of(ops[index]) for index in members]
    named = [core for use in uses if use is not None for core in use.cores]
    what = f"group_parallel {number} ({', '.join(ops[index].location for index in members)})"
    problems = []
    if len(set(named)) != len(named):
        problems.append(f"{what}: two of them run on one core")
    between = range(members[0], members[-1])
    inside = set(members)
    if any(CoreUse.of(ops[index]) is not None for index in between if index not in inside):
        problems.append(f"{what}: another op stands between them")
    made = {name for index in between for name in ops[index].results}
    if any(name in made for index in members for name in ops[index].operands):
        problems.append(f"{what}: one of them reads what another one makes")
    return problems


def spans_of(parallel: Sequence[int | None]) -> list[Range]:
    """For each op the first and the last index of the ops that run at the same time. parallel: `group_parallel` of
    each op, None for one that runs alone."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, number in enumerate(parallel):
        if number is not None:
            first.setdefault(number, index)
            last[number] = index
    return [
        (index, index) if number is None else (first[number], last[number])
        for index, number in enumerate(parallel)
    ]
