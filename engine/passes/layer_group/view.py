"""A group as the IR says it is: what codegen emits, what `check` examines and what screens draw, from records alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.errors import CompileError, VerifyError
from engine.passes.layer_group.layout import Role, read_as, read_weight
from engine.passes.layer_group.plan import GroupType, ItemKind, Secs
from engine.snapshot import OpRecord
from engine.tpu.ginfo import Ginfo
from engine.tpu.group_memory import flow_steps
from engine.tpu.isa import Shape4
from engine.tpu.ops.group import SECS, WEIGHT

GROUP = "tpu.Group"
_KINDS = {"Load": ItemKind.LOAD, "Store": ItemKind.STORE}


@dataclass(frozen=True)
class GroupItem:
    """One op of a group, or (in a STREAM group) its run number `run`. index: of its record."""

    index: int
    record: OpRecord
    kind: ItemKind
    ginfo: Ginfo
    run: int = 0

    @property
    def value(self) -> str:
        """The SSA value that it makes."""
        return self.record.results[0]

    @property
    def held(self) -> bool:
        """Loaded once, for all slices."""
        return bool(self.record.attributes.get("held", False))

    @property
    def role(self) -> Role:
        """How its result is read: weights by whether their channels are padded."""
        if self.record.attributes.get("lmem_type") != WEIGHT:
            return Role.ROWS
        return Role.MATRIX if self.ginfo.eu_align else Role.VECTOR

    @property
    def moves(self) -> bool:
        """False for a Reshape: its result is its operand's memory, read otherwise."""
        return self.record.kind != "Reshape"

    def slice_at(self, step: int, slices: int) -> int | None:
        """The slice on which it works at a pipeline step, of `slices`; None when it rests."""
        number = step - self.ginfo.stage
        if not 0 <= number < slices or (self.held and number):
            return None
        return number


@dataclass(frozen=True)
class GroupView:
    """A group. index: of its record; last: of the last record inside. items: by id, in the order of the region. steps:
    ids of each time step. maker: the item that makes a value of the group."""

    index: int
    last: int
    record: OpRecord
    type: GroupType
    secs: Secs
    stages: int
    items: Mapping[int, GroupItem]
    steps: tuple[tuple[int, ...], ...]
    maker: Mapping[str, GroupItem]

    @property
    def yielded(self) -> tuple[GroupItem, ...]:
        """The stores behind the group's results."""
        return tuple(item for item in self.items.values() if item.kind is ItemKind.STORE)


def whole_shape(item: GroupItem, view: GroupView, lanes: int) -> Shape4:
    """The (n, c, h, w) of an item's whole result."""
    shape = item.record.result_types[0].shape
    return read_as(shape, view.type, lanes) if item.role is Role.ROWS else read_weight(shape, item.role)


def group_indices(ops: Sequence[OpRecord]) -> list[int]:
    """Indices of the group records of a module."""
    return [index for index, op in enumerate(ops) if op.name == GROUP]


def read_group(ops: Sequence[OpRecord], index: int) -> GroupView:
    """The group at a record. Raises CompileError naming the op and what does not fit."""
    group = ops[index]
    inner = [(at, op) for at, op in enumerate(ops) if op.parent == index]
    items: dict[int, GroupItem] = {}
    for at, op in inner:
        if op.kind == "Yield":
            continue
        if "ginfo" not in op.attributes:
            raise CompileError(f"{op.name} at {op.location}: it stands in a group but has no ginfo")
        item = GroupItem(at, op, _KINDS.get(op.kind, ItemKind.COMPUTE), Ginfo.of(op.attributes["ginfo"]))
        if item.ginfo.id in items:
            raise CompileError(f"{op.name} at {op.location}: id {item.ginfo.id} is taken by another op")
        items[item.ginfo.id] = item
    steps = flow_steps(group.attributes["flow"])
    listed = {number for step in steps for number in step}
    if group.attributes["group_type"] == GroupType.STREAM:
        items = _runs(items, listed)
    if listed != set(items):
        raise CompileError(
            f"{group.name} at {group.location}: flow runs ids {sorted(listed)}, the group has {sorted(items)}"
        )
    secs = Secs(*(group.attributes[name] for name in SECS))
    view = GroupView(
        index,
        max((at for at, _ in inner), default=index),
        group,
        GroupType(group.attributes["group_type"]),
        secs,
        group.attributes["swpipl_stage_num"],
        items,
        steps,
        {item.value: item for item in items.values()},
    )
    for item in items.values():
        _check_item(item, view)
    return view


def _ginfo(op: OpRecord) -> Ginfo:
    try:
        return Ginfo.of(op.attributes["ginfo"])
    except VerifyError as error:
        raise CompileError(f"{op.name} at {op.location}: {error}") from None


def _runs(items: Mapping[int, GroupItem], listed: Collection[int]) -> dict[int, GroupItem]:
    """Every run of every op: its ids are those that `flow` lists from its own on, up to the next op's."""
    first = sorted(items)
    found = {}
    for number in sorted(listed):
        at = bisect_right(first, number) - 1
        if at >= 0:
            found[number] = replace(items[first[at]], run=number - first[at])
    return found | {number: item for number, item in items.items() if number not in found}


def _check_item(item: GroupItem, view: GroupView) -> None:
    where = f"{item.record.name} at {item.record.location}"
    if item.ginfo.stage >= view.stages:
        raise CompileError(f"{where}: stage {item.ginfo.stage} of a pipeline of {view.stages}")
    if item.ginfo.group_type != view.type:
        raise CompileError(f"{where}: group_type {item.ginfo.group_type} in a group of type {int(view.type)}")
    for count, starts in zip(view.secs.as_tuple(), item.ginfo.starts, strict=True):
        if len(starts) not in (1, count) and view.type is not GroupType.STREAM:
            raise CompileError(f"{where}: {len(starts)} slices where the group has {count}")
    if item.kind is not ItemKind.LOAD:
        operands = zip(item.record.operands, item.record.operand_types, strict=True)
        outside = [value for value, type_ in operands if not type_.is_none and value not in view.maker]
        if outside:
            raise CompileError(f"{where}: reads {outside[0]}, which is not in local memory")
