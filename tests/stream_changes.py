"""Changes to the records of a streamed group, for tests that corrupt it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.passes.layer_group.view import group_indices
from engine.snapshot import OpRecord
from engine.tpu.group_memory import flow_steps

Ops = tuple[OpRecord, ...]


def find(ops: Ops, kind: str, number: int = 0) -> int:
    """Index of the `number`-th op of a kind inside of the group."""
    return [at for at, op in enumerate(ops) if op.parent is not None and op.kind == kind][number]


def weight_load(ops: Ops, product: int) -> int:
    """Index of the load of a product's weight."""
    weight = ops[find(ops, "A16MatMul", product)].operands[1]
    return next(at for at, op in enumerate(ops) if weight in op.results)


def with_attributes(ops: Ops, index: int, **changes: Any) -> Ops:
    attributes: Mapping[str, Any] = {**ops[index].attributes, **changes}
    return (*ops[:index], replace(ops[index], attributes=attributes), *ops[index + 1 :])


def with_ginfo(ops: Ops, index: int, **changes: Any) -> Ops:
    return with_attributes(ops, index, ginfo={**ops[index].attributes["ginfo"], **changes})


def ginfo(ops: Ops, index: int) -> dict[str, Any]:
    return dict(ops[index].attributes["ginfo"])


def with_flow(ops: Ops, change: Callable[[list[list[int]]], None]) -> Ops:
    """The group with other time steps."""
    (index,) = group_indices(ops)
    steps = [list(ids) for ids in flow_steps(ops[index].attributes["flow"])]
    change(steps)
    flow = [entry for number, step in enumerate(steps, 1) for entry in (-number, *step)]
    return with_attributes(ops, index, flow=flow)


def move(ops: Ops, index: int, run: int, by: int) -> Ops:
    """A run of an op so many time steps later."""
    number = ginfo(ops, index)["id"] + run

    def change(steps: list[list[int]]) -> None:
        at = next(at for at, step in enumerate(steps) if number in step)
        steps[at].remove(number)
        steps[at + by].append(number)

    return with_flow(ops, change)
