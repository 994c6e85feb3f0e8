"""The attention kernel: its numbers on the machine, its cycles and commands against the reference's."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine.errors import UserError
from engine.sim.machine import Machine
from engine.sim.timing import time_module
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip, chip
from engine.tpu.cost import cycles
from engine.tpu.emit import Emitter
from engine.tpu.isa import HISTORY_TAIL, Arena, Engine, Opcode, moved_bytes
from engine.tpu.ops.attention import FAttention

BM1684X, BM1688 = chip("bm1684x"), chip("bm1688")
NUMPY: dict[str, Any] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "si32": np.int32}
ABSENT = TensorType((), "none")
PAGE = 4096


def attention(
    mq: int,
    mk: int,
    dim: int,
    heads: int,
    kv_heads: int,
    mask_size: int = 0,
    dtype: str = "bf16",
    *,
    mask: bool = True,
    history: bool = False,
    batch: int = 1,
) -> OpRecord:
    """An op with its tensors one behind the other in DDR, each on a page of its own."""
    address = 0

    def place(shape: tuple[int, ...], element: str) -> TensorType:
        nonlocal address
        placed = TensorType(shape, element, address)
        address += -(-placed.nbytes // PAGE) * PAGE
        return placed

    mask_type = ((mask_size, mask_size), "f32") if mask_size else ((1, 1, mq, mk), dtype)
    types = (
        place((1, mq, heads, dim), dtype),
        place((1, mk, kv_heads, dim), dtype),
        place((1, mk, kv_heads, dim), dtype),
        place(*mask_type) if mask else ABSENT,
        place((1,), "si32") if history else ABSENT,
    )
    attributes = {
        "batch": batch,
        "dim": dim,
        "kv_head": kv_heads,
        "mask_size": mask_size,
        "mk": mk,
        "mq": mq,
        "q_head": heads,
        "scale": dim**-0.5,
    }
    names = ("%q", "%k", "%v", "%mask", "%length")
    output = place((1, mq, heads * dim), dtype)
    return OpRecord("tpu.FAttention", names, types, ("%y",), (output,), attributes, ("model.attn",))


def end_of(type_: TensorType) -> int:
    assert type_.address is not None
    return type_.address + type_.nbytes


def program_of(op: OpRecord, on: Chip = BM1684X) -> np.ndarray:
    emit = Emitter(on, {Arena.NEURON: (0, end_of(op.result_types[0]))})
    emit.begin(0, op)
    FAttention.kernel(op, emit)
    return emit.program()


def inputs_of(op: OpRecord, length: int | None = None) -> list[np.ndarray | None]:
    """Random operands in their dtypes: a whole mask hides a fifth of the keys but never the last one."""
    rng = np.random.default_rng(7)
    a, inputs = op.attributes, []
    for number, type_ in enumerate(op.operand_types):
        if type_.is_none:
            inputs.append(None)
            continue
        if number == 4:
            value = np.array([a["mk"] - a["mq"] if length is None else length])
        elif number == 3 and a["mask_size"]:
            value = np.triu(np.full(type_.shape, -1e9), 1)
        elif number == 3:
            value = np.where(rng.random(type_.shape) < 0.2, -10000.0, 0.0)
            value[..., -1] = 0
        else:
            value = rng.standard_normal(type_.shape)
        inputs.append(value.astype(NUMPY[type_.dtype]))
    return inputs


def run(
    op: OpRecord, inputs: list[np.ndarray | None], on: Chip = BM1684X, length: int | None = None
) -> np.ndarray:
    """The kernel's output (float32) on the checking machine."""
    memory = np.zeros(end_of(op.result_types[0]), np.uint8)
    machine = Machine(on, {Arena.NEURON: memory}, checks=True)
    for type_, value in zip(op.operand_types, inputs, strict=True):
        if value is not None:
            memory[type_.address : end_of(type_)] = np.frombuffer(value.tobytes(), np.uint8)
            machine.mark_written(Arena.NEURON, type_.address or 0, end_of(type_))
    machine.run(program_of(op, on), history_length=length)
    assert not machine.violations
    output = op.result_types[0]
    return memory[output.address : end_of(output)].view(NUMPY[output.dtype]).astype(np.float32)


def meaning(op: OpRecord, inputs: list[np.ndarray | None]) -> np.ndarray:
    """FAttention.compute on the same operands."""
    wide = [x if x is None or x.dtype == np.int32 else x.astype(np.float32) for x in inputs]
    return FAttention.compute(op, wide)[0].reshape(-1)


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """f32: 1e-5 of the largest value. Half types: cosine 0.9999."""
    if dtype == "f32":
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        return
    a, b = found.astype(np.float64), expected.astype(np.float64)
    assert a @ b >= 0.9999 * np.linalg.norm(a) * np.linalg.norm(b)


DECODE = [
    (1, 257, 64, 4, 2),  # all heads at once
    (1, 257, 80, 3, 3),
    (1, 513, 64, 14, 2),  # a KV head's queries on lanes
    (1, 66, 128, 8, 1),
    (1, 40, 16, 40, 1),  # more queries than the smaller chip has lanes
    (1, 1, 256, 2, 1),
]
PREFILL = [
    (64, 64, 64, 4, 2),
    (130, 130, 48, 3, 1),
    (3, 3, 256, 2, 2),
    (2, 9, 32, 6, 1),  # more keys than queries under a whole mask
    (300, 300, 16, 2, 1),
]
CAUSAL = [
    (130, 130, 64, 4, 2),
    (1, 100, 64, 3, 1),
    (200, 264, 64, 4, 1),
    (77, 205, 96, 2, 2),
    (1, 1, 32, 1, 1),
]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda c: c.name)
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "small"])
def test_numbers_are_those_of_the_op(causal: bool, on: Chip, dtype: str) -> None:
    for shape in CAUSAL if causal else (*DECODE, *PREFILL):
        # GIVEN attention under a whole mask, or under the small causal mask
        op = attention(*shape, on.mask_size if causal else 0, dtype)
        inputs = inputs_of(op)
        # WHEN the kernel runs THEN its numbers are the op's, and nothing races or reads what was never written
        assert_close(run(op, inputs, on), meaning(op, inputs), dtype)


def test_no_mask_means_every_key() -> None:
    op = attention(70, 70, 64, 2, 1, mask=False)
    inputs = inputs_of(op)
    assert_close(run(op, inputs), meaning(op, inputs), "bf16")


def test_infinitely_hidden_keys_weigh_nothing() -> None:
    # GIVEN a decode mask of minus infinity, over a whole key block too
    op = attention(1, 200, 64, 4, 2)
    inputs = inputs_of(op)
    mask = inputs[3]
    assert mask is not None
    mask[...] = np.where(np.arange(200) < 70, -np.inf, mask)
    # WHEN the kernel runs THEN no NaN arises and the numbers hold
    assert_close(run(op, inputs), meaning(op, inputs), "bf16")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("rows", [256, 300], ids=["whole blocks", "odd"])
@pytest.mark.parametrize("on", [BM1684X, BM1688], ids=lambda c: c.name)
def test_history_length_is_data(on: Chip, rows: int, dtype: str) -> None:
    # GIVEN prefill over `rows` rows of history
    op = attention(130, rows + 130, 64, 3, 1, on.mask_size, dtype, history=True)
    for length in (0, 1, 37, 128, 200, rows - 1, rows):
        inputs = inputs_of(op, length)
        expected = meaning(op, inputs)
        keys, values = inputs[1:3]
        assert keys is not None
        assert values is not None
        # with rubbish behind the rows that hold data
        keys[:, length:rows] = np.nan
        values[:, length:rows] = 1e4
        # WHEN the same program runs with that length THEN only the rows that hold data count
        assert_close(run(op, inputs, on, length), expected, dtype)


def test_a_shorter_history_costs_less_and_a_full_one_what_the_reference_takes() -> None:
    # GIVEN one module with the length as data and one as the reference compiles it, whole
    program = program_of(attention(256, 1280, 128, 16, 8, 256, history=True))
    whole = program_of(attention(256, 1280, 128, 16, 8, 256))

    # WHEN both are timed
    def cycles_at(length: int) -> int:
        return time_module(program, BM1684X, length).total_cycles

    times = [cycles_at(length) for length in range(0, 1025, 128)]

    # THEN every key block adds its share, up to the reference's 960,725
    assert all(shorter < longer for shorter, longer in pairwise(times))
    assert times[-1] == time_module(whole, BM1684X).total_cycles == 960_725
    # and a length that cuts a block costs the whole block and, in both query tiles, its tail fill
    assert cycles_at(600) == cycles_at(640) + 2 * 256


def test_history_blocks_carry_their_first_row_and_a_tail_fill() -> None:
    # GIVEN history blocks at rows 0, 128 and 256 of 300 (the last one of 44), and two query tiles
    program = program_of(attention(130, 430, 64, 2, 1, 256, history=True))

    # WHEN instructions are grouped by their tag
    loads = program[program["opcode"] == Opcode.TENSOR]
    tails = program[program["flags"] & HISTORY_TAIL != 0]

    # THEN each block has its keys' and values' loads and one fill over its columns, in every query tile
    assert set(np.unique(program["history"])) == {0, 1, 129, 257}
    assert [int(np.count_nonzero(loads["history"] == tag)) for tag in (1, 129, 257)] == [4, 4, 4]
    assert [(int(t["history"]), int(t["result"]["shape"][3])) for t in tails] == [
        (1, 128),
        (129, 128),
        (257, 44),
    ] * 2
    # and new rows always run: queries, output, keys and values of each block, mask on the diagonal
    assert np.count_nonzero(loads["history"] == 0) == (2 + 3) + (2 + 2 + 3)


def test_spans_and_first_transfers_are_those_of_the_reference(data: Path) -> None:
    # GIVEN attentions that the reference compiled alone
    with (data / "attention_sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        shape = [int(row[name]) for name in ("mq", "mk", "head_dim", "q_heads", "kv_heads", "mask_size")]
        # WHEN ours is emitted and timed
        program = program_of(attention(*shape))
        moved = moved_bytes(program)[program["engine"] == Engine.GDMA][:4]
        # THEN its cycles and its first four transfers are the same
        assert time_module(program, BM1684X).total_cycles == int(row["span_cycles"]), shape
        assert "|".join(map(str, moved)) == row["first_load_bytes"], shape
    assert len(rows) == 145


def traces(data: Path) -> Iterator[tuple[Chip, list[int], list[tuple[str, int, int, int]]]]:
    """Chip, shape and commands (opcode, start, cycles, bytes) of each traced attention."""
    with (data / "attention_commands.csv").open() as file:
        for (on, *shape), rows in groupby(list(csv.reader(file))[1:], key=lambda row: row[:7]):
            commands = [(row[7], int(row[8]), int(row[9]), int(row[10])) for row in rows]
            yield chip(on), [int(size) for size in shape], commands


def test_every_command_is_the_reference_one_at_its_very_cycle(data: Path) -> None:
    count = 0
    for on, shape, commands in traces(data):
        # GIVEN a trace of the reference WHEN ours is scheduled
        program = program_of(attention(*shape), on)
        timing = time_module(program, on)
        found = zip(
            (Opcode(code).name for code in program["opcode"]),
            timing.schedule.start.tolist(),
            cycles(program, on).tolist(),
            moved_bytes(program).tolist(),
            strict=True,
        )
        # THEN both hold the same commands (the two queues interleave differently in issue order)
        assert sorted(found) == sorted(commands), shape
        count += len(commands)
    assert count == 1090


def test_a_batch_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"model\.attn: attention over a batch of 2"):
        program_of(attention(1, 10, 64, 2, 1, batch=2))
