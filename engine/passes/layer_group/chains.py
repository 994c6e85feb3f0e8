"""Which ops can run in local memory, the chains of consecutive ones, and what a part of a chain moves.

Reshapes inside a chain move nothing: their result is the operand's local memory, read otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from engine.passes.layer_group.layout import Role, group_types, lane_bytes, read_as, read_weight
from engine.passes.layer_group.plan import GroupType
from engine.snapshot import OpRecord, TensorType, is_computation
from engine.tpu.chip import Chip
from engine.tpu.isa import Shape4

ROLES: Mapping[str, tuple[Role, ...]] = {
    "RMSNorm": (Role.ROWS, Role.VECTOR),
    "Rope": (Role.ROWS, Role.ROWS, Role.ROWS),
    "Add": (Role.ROWS, Role.ROWS),
    "Mul": (Role.ROWS, Role.ROWS),
    "Active": (Role.ROWS,),
    "Cast": (Role.ROWS,),
    "Reshape": (Role.ROWS,),
    "MatMul": (Role.ROWS, Role.MATRIX, Role.VECTOR),
}
"""Kinds of ops that can run in local memory, with the role of each operand (see `roles_of`)."""

_BIAS = 2
"""Operand number of a MatMul's bias."""

IN_PLACE_KINDS = frozenset({"Add", "Mul"})
"""Kinds whose result may replace an operand; that costs twice the cycles (R12)."""


def roles_of(record: OpRecord, weights: frozenset[str]) -> tuple[Role, ...]:
    """The role of each operand. A product's bias may be an activation of the result's shape: one row, the residual."""
    roles = ROLES[record.kind]
    if record.kind != "MatMul" or record.operands[_BIAS] in weights:
        return roles
    residual = record.operand_types[_BIAS].shape == record.result_types[0].shape
    return (*roles[:_BIAS], Role.ROWS) if residual else roles


def why_global(record: OpRecord, weights: frozenset[str]) -> str:
    """Why an op cannot run in local memory, as the end of a sentence; empty when it can.

    weights: SSA names of the module's weights.
    """
    if record.kind not in ROLES:
        return "has no kernel for operands in local memory"
    roles = roles_of(record, weights)
    for value, type_, role in zip(record.operands, record.operand_types, roles, strict=True):
        if not type_.is_none and (role is not Role.ROWS) != (value in weights):
            return "takes a weight where a group has activations, or the other way round"
    if record.kind == "MatMul":
        return _why_global_matmul(record)
    if record.kind == "Reshape":
        before, after = record.operand_types[0].shape, record.result_types[0].shape
        kept = min(len(before), len(after)) > 2 and before[:2] == after[:2]
        return "" if kept else "changes the first two dimensions"
    return ""


def _why_global_matmul(record: OpRecord) -> str:
    if record.result_types[0].dtype == "f32":
        return "multiplies f32 matrices, which only a global kernel does"
    if record.attributes["right_transpose"]:
        return "takes its weight transposed"
    return ""


@dataclass(frozen=True)
class Program:
    """A module's records with what the pass asks of them again and again.

    weights: SSA names of the weights. last_use: index of the last record that reads a value. module: its name, for
    messages. fused: groups that stream weights are made beside the usual ones.
    """

    ops: Sequence[OpRecord]
    chip: Chip
    weights: frozenset[str]
    last_use: Mapping[str, int]
    module: str = ""
    fused: bool = False

    @classmethod
    def of(cls, ops: Sequence[OpRecord], chip: Chip, module: str = "", *, fused: bool = False) -> Program:
        """Read a module's records."""
        weights = frozenset(record.results[0] for record in ops if record.name == "top.Weight")
        last_use = {value: index for index, record in enumerate(ops) for value in record.operands}
        return cls(ops, chip, weights, last_use, module, fused)

    def why_global(self, index: int) -> str:
        """Why the op cannot run in local memory; empty when it can."""
        return why_global(self.ops[index], self.weights)

    def chains(self) -> list[tuple[int, ...]]:
        """Indices of consecutive ops that can run in local memory, in program order; chains of one op included.

        Weights, inputs and absent operands between them do not count.
        """
        found: list[tuple[int, ...]] = []
        chain: list[int] = []
        for index, record in enumerate(self.ops):
            if record.name == "func.return" or (is_computation(record) and self.why_global(index)):
                found += [tuple(chain)] if chain else []
                chain = []
            elif is_computation(record):
                chain.append(index)
        return found


@dataclass(frozen=True)
class Tensor:
    """A value as a group reads it. shape: (n, c, h, w), whole. aligned: channels padded to EU bytes."""

    value: str
    type: TensorType
    shape: Shape4
    role: Role

    @property
    def aligned(self) -> bool:
        """A vector lies densely in its lane."""
        return self.role is not Role.VECTOR

    @property
    def dtype(self) -> str:
        """Its element type."""
        return self.type.dtype

    def lane_bytes(self, chip: Chip, shape: Shape4) -> int:
        """Bytes per lane of a slice of it."""
        return lane_bytes(chip, self.dtype, shape, aligned=self.aligned)


@dataclass(frozen=True)
class LocalOp:
    """An op of a group. index: of its record. operands: values that it reads, absent ones left out."""

    index: int
    record: OpRecord
    operands: tuple[str, ...]
    result: str

    @property
    def kind(self) -> str:
        """The record's kind."""
        return self.record.kind

    @property
    def moves(self) -> bool:
        """False for a Reshape: its result lies where its operand lies."""
        return self.record.kind != "Reshape"


@dataclass(frozen=True)
class GroupOps:
    """Consecutive ops of a chain as one group: what they read and write outside of it.

    inputs: values loaded, in the order in which ops first read them. outputs: values stored, in program order.
    in_place: results that take the memory of an operand, with that operand.
    """

    type: GroupType
    ops: tuple[LocalOp, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> tuple[int, ...]:
        """Indices of the records."""
        return tuple(op.index for op in self.ops)

    @cached_property
    def roots(self) -> dict[str, str]:
        """Each value's memory: the value of which it is a reshape, or that it replaces, else itself."""
        found = {value: value for value in self.tensors}
        for op in self.ops:
            if not op.moves:
                found[op.result] = found[op.operands[0]]
            elif op.result in self.in_place:
                found[op.result] = found[self.in_place[op.result]]
        return found


def group_of(program: Program, indices: Sequence[int], type_: GroupType | None = None) -> GroupOps:
    """The ops with these indices, consecutive ones of a chain, as a group; of the usual type if none is given."""
    records = [program.ops[index] for index in indices]
    type_, lanes = group_types(records)[0] if type_ is None else type_, program.chip.lanes
    tensors: dict[str, Tensor] = {}
    ops: list[LocalOp] = []
    inputs: list[str] = []
    outputs: list[str] = []
    for index, record in zip(indices, records, strict=True):
        operands = []
        roles = roles_of(record, program.weights)
        for value, operand, role in zip(record.operands, record.operand_types, roles, strict=True):
            if operand.is_none:
                continue
            operands.append(value)
            if value not in tensors:
                tensors[value] = _tensor(value, operand, role, type_, lanes)
                inputs.append(value)
        result = record.results[0]
        tensors[result] = _tensor(result, record.result_types[0], Role.ROWS, type_, lanes)
        outputs += [result] if program.last_use.get(result, -1) > indices[-1] else []
        ops.append(LocalOp(index, record, tuple(operands), result))
    return GroupOps(type_, tuple(ops), tensors, tuple(inputs), tuple(outputs))


def renamed(group: GroupOps, names: Mapping[str, str], indices: Sequence[int]) -> GroupOps:
    """The same group with other names of its values and other indices of its records."""
    return GroupOps(
        group.type,
        tuple(
            replace(op, index=index, operands=tuple(names[v] for v in op.operands), result=names[op.result])
            for op, index in zip(group.ops, indices, strict=True)
        ),
        {names[v]: replace(tensor, value=names[v]) for v, tensor in group.tensors.items()},
        tuple(names[v] for v in group.inputs),
        tuple(names[v] for v in group.outputs),
        {names[result]: names[operand] for result, operand in group.in_place.items()},
    )


def reuse_operands(group: GroupOps) -> GroupOps | None:
    """The group with sums and products that replace an operand read for the last time; None if there is none.

    A result that leaves the group keeps a place of its own: it is still being stored when the operand comes again.
    """
    last_use = {value: position for position, op in enumerate(group.ops) for value in op.operands}
    reshaped = {op.operands[0] for op in group.ops if not op.moves} | {
        op.result for op in group.ops if not op.moves
    }
    found = {}
    for position, op in enumerate(group.ops):
        if op.kind not in IN_PLACE_KINDS or op.result in group.outputs:
            continue
        for value in op.operands:
            free = last_use[value] == position and value not in group.outputs and value not in reshaped
            if free and group.tensors[value].shape == group.tensors[op.result].shape:
                found[op.result] = value
                break
    return replace(group, in_place=found) if found else None


def _tensor(value: str, type_: TensorType, role: Role, group: GroupType, lanes: int) -> Tensor:
    shape = read_as(type_.shape, group, lanes) if role is Role.ROWS else read_weight(type_.shape, role)
    return Tensor(value, type_, shape, role)
