"""Writes planned groups into the IR: a region for each, its loads and stores, and where everything lies and when."""

from __future__ import annotations

from collections.abc import Sequence

from engine import mlir
from engine.errors import CompileError
from engine.op import VARIADIC_LIMIT
from engine.passes.layer_group.occupancy import bank_conflicts
from engine.passes.layer_group.plan import GroupPlan, GroupType, Item, ItemKind
from engine.passes.layer_group.stream.check import stream_bank_conflicts
from engine.passes.layer_group.stream.ginfo import ir_items, stream_ginfo
from engine.passes.layer_group.view import GROUP, group_indices, read_group
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip
from engine.tpu.ginfo import Ginfo
from engine.tpu.ops.group import ACTIVATION, SECS, WEIGHT

PASS = "layer-group"


def apply_plans(module: mlir.Module, records: Sequence[OpRecord], plans: Sequence[GroupPlan]) -> None:
    """Replace the ops of each plan by a group. records: of the module as it is, without groups.

    Raises CompileError for a plan that does not fit the module: naming the op and what is missing.
    """
    operations = mlir.body_operations(module)
    # every group changes what values others see, so all are found before the first is built
    values = {
        name: value
        for operation, record in zip(operations, records, strict=True)
        for name, value in zip(record.results, operation.results, strict=True)
    }
    for plan in plans:
        _Builder(operations, records, values, plan).build()


class _Builder:
    """Builds one group."""

    def __init__(
        self,
        operations: Sequence[mlir.Operation],
        records: Sequence[OpRecord],
        values: dict[str, mlir.Value],
        plan: GroupPlan,
    ) -> None:
        self.operations, self.records, self.values = operations, records, values
        self.plan = plan
        self.members = [operations[index] for index in plan.records]
        self.items = sorted(ir_items(plan), key=lambda item: item.id)
        self.loads = [item for item in self.items if item.kind is ItemKind.LOAD]
        self.stores = [item for item in self.items if item.kind is ItemKind.STORE]
        self.local: dict[str, mlir.Value] = {}

    def build(self) -> None:
        """The group at the place of its last op; what was stored is then read from its results."""
        self._check()
        group = self._build_group()
        block = mlir.add_block(group)
        stored = []
        for item in self.items:
            if item.kind is ItemKind.COMPUTE:
                self._move_in(item, block)
            else:
                with mlir.at_end(block):
                    made = self._transfer(item)
                if item.kind is ItemKind.LOAD:
                    self.local[item.value] = made.results[0]
                else:
                    stored.append(made.results[0])
        with mlir.at_end(block):
            mlir.build("tpu.Yield", stored, [], location=group.location)
        self._read_results(group)

    def _check(self) -> None:
        computed = [item.record for item in self.items if item.kind is ItemKind.COMPUTE]
        first = self.records[self.plan.records[0]].location
        if sorted(computed) != sorted(self.plan.records):
            raise CompileError(f"the group at {first} plans records {computed} but holds {self.plan.records}")
        inside = set(self.members)
        kept = {item.value for item in self.stores}
        for index in self.plan.records:
            for name in self.records[index].results:
                outside = any(user not in inside for user, _ in mlir.uses(self.values[name]))
                if outside and name not in kept:
                    raise CompileError(
                        f"{self.records[index].location} is read outside of its group but not stored"
                    )
        for what, count in (("results", len(self.stores)), ("inputs", len(self._inputs()))):
            if count > VARIADIC_LIMIT:
                raise CompileError(f"the group at {first} has {count} {what}, {VARIADIC_LIMIT} at most")

    def _inputs(self) -> list[str]:
        """Activations that the group loads, by name in order."""
        return list(dict.fromkeys(item.value for item in self.loads if not self._is_weight(item.value)))

    def _is_weight(self, name: str) -> bool:
        maker = mlir.defining(self.values[name])
        return maker is not None and maker.name == "top.Weight"

    def _build_group(self) -> mlir.Operation:
        plan = self.plan
        attributes = {
            **dict(zip(SECS, plan.secs.as_tuple(), strict=True)),
            "flow": plan.flow,
            "swpipl_stage_num": plan.stages,
            "group_type": int(plan.type),
            **({"row_idx": list(plan.row_starts)} if plan.row_starts else {}),
        }
        with mlir.before(self.members[-1]):
            return mlir.build(
                GROUP,
                [self.values[name] for name in self._inputs()],
                [self._type(item.value) for item in self.stores],
                attributes,
                location=mlir.derived_location(PASS, *(operation.location for operation in self.members)),
                regions=1,
            )

    def _type(self, name: str) -> TensorType:
        return mlir.from_mlir_type(self.values[name].type)

    def _transfer(self, item: Item) -> mlir.Operation:
        """A load, which counts as a part of the op that reads it first, or a store, a part of the op that made it."""
        attributes: dict[str, object] = {"ginfo": ginfo_of(item, self.plan).attribute()}
        if item.kind is ItemKind.LOAD:
            attributes["held"] = item.held
            attributes["lmem_type"] = WEIGHT if self._is_weight(item.value) else ACTIVATION
        name = "tpu.Load" if item.kind is ItemKind.LOAD else "tpu.Store"
        location = mlir.derived_location(PASS, self.operations[item.record].location)
        source = self.values[item.value]
        return mlir.build(name, [source], [self._type(item.value)], attributes, location=location)

    def _move_in(self, item: Item, block: mlir.Block) -> None:
        operation = self.operations[item.record]
        mlir.move_to_end(operation, block)
        mlir.set_attribute(operation, "ginfo", ginfo_of(item, self.plan).attribute())
        for number, name in enumerate(self.records[item.record].operands):
            if name in self.local:
                operation.operands[number] = self.local[name]

    def _read_results(self, group: mlir.Operation) -> None:
        """Everything outside reads the group's results in the place of the values inside."""
        for item, result in zip(self.stores, group.results, strict=True):
            for user, number in mlir.uses(self.values[item.value]):
                if not mlir.stands_in(user, group):
                    user.operands[number] = result
            self.values[item.value] = result


def ginfo_of(item: Item, plan: GroupPlan) -> Ginfo:
    """The attribute of an item."""
    if plan.type is GroupType.STREAM:
        return stream_ginfo(item, plan)
    return Ginfo(
        item.out_address,
        item.out_bytes,
        item.buffer_address,
        item.buffer_bytes,
        item.eu_align,
        item.slices.starts,
        item.slices.lengths,
        item.id,
        item.stage,
        int(plan.type),
    )


def mark_bank_conflicts(module: mlir.Module, chip: Chip) -> None:
    """Note in every group which items share a bank with the other engine, as its attribute `bank_conflicts`."""
    records = mlir.records(module)
    groups = [operation for operation in mlir.body_operations(module) if operation.name == GROUP]
    for index, operation in zip(group_indices(records), groups, strict=True):
        view = read_group(records, index)
        conflicts = stream_bank_conflicts if view.type is GroupType.STREAM else bank_conflicts
        found = conflicts(view, chip)
        if found:
            mlir.set_attribute(operation, "bank_conflicts", found)
