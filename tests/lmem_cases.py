"""A small module with one planned layer group, for the tests of the local-memory screens: no compiler needed."""

from __future__ import annotations

from dataclasses import replace

from engine.passes.layer_group.plan import (
    Alternative,
    Attempt,
    BufferKind,
    Explanation,
    GroupPlan,
    GroupType,
    Item,
    ItemKind,
    LayerGroupReport,
    LmemBuffer,
    Secs,
    Slices,
    TimeStep,
)
from engine.snapshot import OpRecord, TensorType

HIDDEN, ROWS = 1536, 512
_BLOCK = "model.layers.{i}"


def op(
    name: str, result: str, operands: str, shape: tuple[int, ...], origin: str, dtype: str = "bf16"
) -> OpRecord:
    """A record with one result; operands: SSA names with spaces between."""
    values = tuple(operands.split())
    types = tuple(_TYPES[value] for value in values)
    type_ = TensorType(shape, dtype)
    _TYPES[result] = type_
    tensors = {"tensors": [origin]} if name == "top.Weight" else {}
    matmul = {"right_transpose": False} if name == "tpu.MatMul" else {}
    norm = {"eps": 1e-6} if name == "tpu.RMSNorm" else {}
    return OpRecord(name, values, types, (result,), (type_,), {**tensors, **matmul, **norm}, (origin,))


_TYPES: dict[str, TensorType] = {}
_STATES = (1, ROWS, HIDDEN)

OPS: tuple[OpRecord, ...] = (
    op("top.None", "%0", "", (), "none", "none"),
    op("top.Input", "%1", "", _STATES, "input_states"),
    op("top.Input", "%30", "", _STATES, "attention"),
    op("top.Weight", "%13", "", (HIDDEN, HIDDEN), f"{_BLOCK}.self_attn.o_proj.weight"),
    op("top.Weight", "%14", "", (1, 1, HIDDEN), f"{_BLOCK}.post_attention_layernorm.weight"),
    op("tpu.MatMul", "%31", "%30 %13 %0", _STATES, f"{_BLOCK}.self_attn.o_proj"),
    op("tpu.Add", "%32", "%1 %31", _STATES, f"{_BLOCK}.attention_residual"),
    op("tpu.RMSNorm", "%33", "%32 %14", _STATES, f"{_BLOCK}.post_attention_layernorm"),
    OpRecord("func.return", ("%32", "%33"), (TensorType(_STATES, "bf16"),) * 2, (), (), {}, ()),
)
"""MatMul, Add and RMSNorm at the end of an attention block: rows on lanes, two slices of 256 rows."""

_HALVES = Slices(((0,), (0, 256), (0,), (0,), (0,)), ((1,), (256, 256), (1,), (HIDDEN,), (1,)))
_MATRIX = Slices(((0,),) * 5, ((1,), (HIDDEN,), (1,), (HIDDEN,), (1,)))
_VECTOR = Slices(((0,),) * 5, ((1,), (1,), (1,), (HIDDEN,), (1,)))
_PLACES = {"%30": 81920, "%13": 0, "%31": 98304, "%1": 114688, "%32": 147456, "%14": 180224, "%33": 163840}
_SIZES = {"%13": 73728, "%14": 3072}


def _item(number: int, kind: ItemKind, record: int, value: str, stage: int) -> Item:
    held = value in ("%13", "%14")
    scratch = (94208, 49408) if kind is ItemKind.COMPUTE and value == "%33" else (0, 0)
    slices = {"%13": _MATRIX, "%14": _VECTOR}.get(value, _HALVES)
    size = _SIZES.get(value, 12288)
    return Item(
        number, kind, record, value, stage, held, _PLACES[value], size, *scratch, value != "%14", slices
    )


def _buffer(value: str, first: int, last: int, item: int) -> LmemBuffer:
    kind = BufferKind.WEIGHT if value in _SIZES else BufferKind.ACTIVATION
    return LmemBuffer(
        value, kind, _PLACES[value], _SIZES.get(value, 12288), first, last, value in _SIZES, item
    )


PLAN = GroupPlan(
    records=(5, 6, 7),
    type=GroupType.MM,
    secs=Secs(c=2),
    stages=3,
    items=(
        _item(0, ItemKind.LOAD, 5, "%30", 0),
        _item(1, ItemKind.LOAD, 5, "%13", 0),
        _item(2, ItemKind.COMPUTE, 5, "%31", 1),
        _item(3, ItemKind.LOAD, 6, "%1", 1),
        _item(4, ItemKind.COMPUTE, 6, "%32", 1),
        _item(5, ItemKind.STORE, 6, "%32", 1),
        _item(6, ItemKind.LOAD, 7, "%14", 1),
        _item(7, ItemKind.COMPUTE, 7, "%33", 1),
        _item(8, ItemKind.STORE, 7, "%33", 2),
    ),
    steps=(
        TimeStep((2,), (3, 6, 8), 73728, 33977),
        TimeStep((4,), (0,), 384, 14559),
        TimeStep((7,), (1, 5), 3700, 106545),
    ),
    buffers=(
        _buffer("%30", 1, 0, 0),
        _buffer("%13", 0, 2, 1),
        _buffer("%31", 0, 1, 2),
        _buffer("%1", 0, 1, 3),
        _buffer("%32", 1, 2, 4),
        _buffer("%14", 0, 2, 6),
        _buffer("%33", 2, 0, 7),
        LmemBuffer("%33", BufferKind.SCRATCH, 94208, 49408, 2, 2, False, 7),
    ),
    cycles=321885,
    peak_bytes=183296,
)

INDEX = {
    "attention": 0,
    "o_proj weight": 1,
    "o_proj": 2,
    "input": 3,
    "residual": 4,
    "gamma": 5,
    "norm": 6,
    "scratch": 7,
}
"""Numbers of the plan's buffers."""

EXPLANATION = Explanation(
    group=0,
    begins="FAttention before it has no kernel for operands in local memory",
    ends="the chain ends: MatMul gate_proj takes its weight transposed",
    attempts=(
        Attempt(Secs(), "memory", 302592, 262144, None),
        Attempt(Secs(c=2), "", 183296, 262144, 321885),
        Attempt(Secs(c=4), "", 128512, 262144, 330120),
    ),
    alternatives=(
        Alternative("MatMul + Add, then RMSNorm alone", 321885, 357202),
        Alternative("with Reshape of the next chain", None, 331000),
    ),
)

REPORT = LayerGroupReport((PLAN,), (EXPLANATION,), {})


def with_buffer(name: str, **changes: object) -> GroupPlan:
    """The plan with one buffer changed, as a broken pass would leave it."""
    buffers = list(PLAN.buffers)
    buffers[INDEX[name]] = replace(buffers[INDEX[name]], **changes)  # type: ignore[arg-type]
    return replace(PLAN, buffers=tuple(buffers))
