"""Rows of computations and transfers: nearest, pipelined, balanced, merged; and how long memory is in use."""

from __future__ import annotations

import pytest
from group_records import Records, mlp, norms

from engine.passes.layer_group.chains import GroupOps, Program, group_of
from engine.passes.layer_group.plan import ItemKind
from engine.passes.layer_group.time_steps import (
    ScheduleError,
    Table,
    Transfer,
    assign,
    balance,
    best_move,
    lives,
)
from engine.snapshot import OpRecord
from engine.tpu.chip import chip

NOTHING: frozenset[str] = frozenset()


def group(ops: tuple[OpRecord, ...]) -> GroupOps:
    program = Program.of(ops, chip("bm1684x"))
    return group_of(program, program.chains()[0])


def transfer(table: Table, kind: ItemKind, value: str) -> Transfer:
    return next(t for t in table.transfers if t.kind is kind and t.value == value)


def places(table: Table) -> dict[tuple[ItemKind, str], tuple[int, int]]:
    """(stage, row) of every transfer."""
    return {(t.kind, t.value): (t.stage, t.row) for t in table.transfers}


def test_loads_run_a_row_earlier_and_stores_a_row_later() -> None:
    # GIVEN add, norm
    found = group(norms())
    add, norm = found.ops
    # WHEN they get time steps
    table = assign(found, NOTHING)
    # THEN the first op's loads run in the last row of the slice before, the last store in the first row after
    assert table.computes == ((0,), (1,))
    assert places(table) == {
        (ItemKind.LOAD, add.operands[0]): (0, 1),
        (ItemKind.LOAD, add.operands[1]): (0, 1),
        (ItemKind.LOAD, norm.operands[1]): (1, 0),
        (ItemKind.STORE, add.result): (1, 1),
        (ItemKind.STORE, norm.result): (2, 0),
    }


def test_what_the_last_op_still_reads_is_loaded_in_a_row_of_its_own() -> None:
    # GIVEN two ropes that share their tables
    module = Records()
    sin, cos = module.input(1, 64, 1, 16), module.input(1, 64, 1, 16)
    x = module.input(1, 64, 4, 16)
    q = module.rope(x, sin, cos)
    found = group(module.done(q, module.rope(module.input(1, 64, 2, 16), sin, cos)))
    table = assign(found, NOTHING)
    # THEN the tables for the next slice come after both ropes, x beside the second one
    assert table.computes == ((0,), (1,), ())
    assert places(table)[ItemKind.LOAD, sin] == (0, 2)
    assert places(table)[ItemKind.LOAD, x] == (0, 1)


def test_reshapes_take_no_row() -> None:
    module = Records()
    product = module.matmul(module.input(1, 64, 64), 32)
    heads = module.reshape(product, 1, 64, 2, 16)
    found = group(module.done(module.norm(heads)))
    assert assign(found, NOTHING).computes == ((0, 1), (2,))


def test_one_op_alone_has_no_pipeline() -> None:
    module = Records()
    with pytest.raises(ScheduleError, match="fewer than two"):
        assign(group(module.done(module.norm(module.input(1, 8, 64)))), NOTHING)


def test_a_reshaped_input_cannot_leave_the_group() -> None:
    module = Records()
    x, y = module.input(1, 8, 64), module.input(1, 8, 64)
    total = module.add(x, y)
    heads = module.reshape(module.input(1, 8, 64), 1, 8, 4, 16)
    found = group(module.done(heads, module.norm(total)))
    with pytest.raises(ScheduleError, match="reshape"):
        assign(found, NOTHING)


def test_an_overloaded_row_gives_a_transfer_to_the_row_with_most_slack() -> None:
    # GIVEN cast, SiLU, cast: only the SiLU computes long
    module = Records()
    x = module.input(1, 64, 64)
    y = module.cast(module.silu(module.cast(x, "f32")), "bf16")
    found = group(module.done(y))
    table = assign(found, NOTHING)
    assert places(table) == {(ItemKind.LOAD, x): (0, 2), (ItemKind.STORE, y): (2, 0)}
    # WHEN it is balanced
    balanced = balance(table, [10, 1000, 10], [300, 400])
    # THEN load and store run beside the SiLU
    assert places(balanced) == {(ItemKind.LOAD, x): (0, 1), (ItemKind.STORE, y): (2, 1)}
    # AND nothing is gained any more
    assert all(best_move(balanced, [10, 1000, 10], [300, 400], row) is None for row in range(3))


def test_a_load_never_passes_the_ops_that_use_its_memory() -> None:
    table = assign(group(mlp()), NOTHING)
    used = {v: table.row_of[i] for i, op in enumerate(table.group.ops) for v in op.operands}
    for load in (t for t in table.transfers if t.is_load):
        rows = range(load.earliest, load.latest + 1)
        assert load.row in rows
        assert used[load.value] not in rows
        assert table.row_of[first_reader(table.group, load.value)] not in rows


def first_reader(found: GroupOps, value: str) -> int:
    return next(i for i, op in enumerate(found.ops) if value in op.operands)


def test_rows_are_merged_unless_something_is_moved_and_used_in_one() -> None:
    # GIVEN the mlp: SiLU and the cast behind it share nothing with a transfer; norm and product need a load between
    table = assign(group(mlp()), NOTHING)
    kinds = [table.group.ops[ops[0]].kind for ops in table.computes if ops]
    merged = table.merged(kinds.index("Cast"))
    assert merged is not None
    assert merged.rows == table.rows - 1
    assert table.merged(kinds.index("RMSNorm")) is None


def test_two_rows_are_the_least_that_pipeline() -> None:
    assert assign(group(norms()), NOTHING).merged(0) is None


def test_lives_go_around_the_loop() -> None:
    found = group(norms())
    add, norm = found.ops
    living = lives(assign(found, NOTHING))
    x, total = living[add.operands[0]], living[add.result]
    # x: loaded in row 1 of the slice before, used in row 0
    assert (x.first, x.rows, x.computed, x.moved) == (1, 2, 0b01, 0b10)
    assert x.mask(2) == 0b11
    # the sum: made in row 0, read by the norm and stored in row 1
    assert (total.first, total.rows, total.computed, total.moved) == (0, 2, 0b11, 0b10)
    assert living[norm.result].first == 1


def test_what_is_held_lives_always() -> None:
    found = group(norms())
    gamma = found.ops[1].operands[1]
    life = lives(assign(found, frozenset({gamma})))[gamma]
    assert life.mask(2) == 0b11
