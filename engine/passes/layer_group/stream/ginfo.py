"""What the IR says of a streamed group: one op for all runs of it, with its pieces and their places."""

from __future__ import annotations

from collections.abc import Sequence

from engine.passes.layer_group.plan import GroupPlan, GroupType, Item
from engine.tpu.ginfo import DIMENSIONS, Ginfo


def ir_items(plan: GroupPlan) -> list[Item]:
    """The items of a plan that become ops: all, or the first run of each op of a streamed group."""
    if plan.type is not GroupType.STREAM:
        return list(plan.items)
    found: dict[tuple[str, str], Item] = {}
    for item in plan.items:
        found.setdefault((item.kind, item.value), item)
    return list(found.values())


def stream_ginfo(first: Item, plan: GroupPlan) -> Ginfo:
    """The attribute of an op, from all its runs."""
    runs = [item for item in plan.items if (item.kind, item.value) == (first.kind, first.value)]
    cuts = [
        dict.fromkeys((item.slices.starts[dim][0], item.slices.lengths[dim][0]) for item in runs)
        for dim in range(len(DIMENSIONS))
    ]
    scratch = next((item for item in runs if item.buffer_bytes), first)
    return Ginfo(
        out_addr=first.out_address,
        out_size=max(item.out_bytes for item in runs),
        buffer_addr=scratch.buffer_address,
        buffer_size=max(item.buffer_bytes for item in runs),
        eu_align=first.eu_align,
        starts=tuple(tuple(start for start, _ in cut) for cut in cuts),
        lengths=tuple(tuple(length for _, length in cut) for cut in cuts),
        id=first.id,
        stage=0,
        group_type=int(plan.type),
        tile_addr=_shortest([item.out_address for item in runs]) if first.own_place else (),
    )


def _shortest(addresses: Sequence[int]) -> tuple[int, ...]:
    """The shortest list that gives these addresses when it is read again and again."""
    for length in range(1, len(addresses)):
        if all(address == addresses[at % length] for at, address in enumerate(addresses)):
            return tuple(addresses[:length])
    return tuple(addresses)
