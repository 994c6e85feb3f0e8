"""Prices of ops and transfers, and rule R4 for a group."""

from __future__ import annotations

import numpy as np
import pytest
from group_records import Records, mlp, norms

from engine.passes.layer_group.chains import GroupOps, Program, group_of
from engine.passes.layer_group.cost import prices_of
from engine.passes.layer_group.placing import Draft, draft
from engine.passes.layer_group.plan import ItemKind, Secs
from engine.passes.layer_group.slicing import number_of
from engine.passes.layer_group.time_steps import COMPUTE_STAGE, STAGES
from engine.snapshot import OpRecord
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
PRICES = prices_of(CHIP)


def group(ops: tuple[OpRecord, ...]) -> GroupOps:
    program = Program.of(ops, CHIP)
    return group_of(program, program.chains()[0])


def by_the_rule(found: Draft) -> int:
    """R4, word by word."""
    table, secs = found.table, found.secs
    total = 0
    for p in range(secs.slices + STAGES - 1):
        for row, ops in enumerate(table.computes):
            computing = moving = 0
            index = p - COMPUTE_STAGE
            if 0 <= index < secs.slices:
                shapes = {v: s.shape(number_of(secs, index)) for v, s in found.slices.items()}
                computing = sum(PRICES.compute(table.group.ops[op], table.group, shapes) for op in ops)
            for transfer in table.transfers:
                index = p - transfer.stage
                if transfer.row == row and 0 <= index < (1 if transfer.held else secs.slices):
                    shape = found.slices[transfer.value].shape(number_of(secs, index))
                    tensor = table.group.tensors[transfer.value]
                    moving += PRICES.transfer(tensor, shape, transfer.kind)
            total += max(computing, moving)
    return total


@pytest.mark.parametrize("secs", [Secs(), Secs(c=2), Secs(c=3), Secs(c=7)])
@pytest.mark.parametrize("ops", [norms(500, 96), mlp(500, 96, 128)], ids=["norms", "mlp"])
def test_a_group_costs_what_the_rule_says(ops: tuple[OpRecord, ...], secs: Secs) -> None:
    found = draft(group(ops), secs, PRICES)
    assert found.profile.cycles(found.table) == by_the_rule(found)


def test_loads_and_stores_cost_what_was_traced() -> None:
    # GIVEN the operands of the reference's {Add, RMSNorm} of 512 tokens of 576 bf16 values
    found = group(norms())
    tensor = found.tensors[found.inputs[0]]
    gamma = found.tensors[found.ops[1].operands[1]]
    # THEN
    assert PRICES.transfer(tensor, tensor.shape, ItemKind.LOAD) == 10919
    assert PRICES.transfer(tensor, tensor.shape, ItemKind.STORE) == 14393
    assert PRICES.transfer(gamma, gamma.shape, ItemKind.LOAD) == 85


def test_ops_cost_what_was_traced_in_and_out_of_a_group() -> None:
    ops = norms()
    found = group(ops)
    shapes = {value: tensor.shape for value, tensor in found.tensors.items()}
    add, norm = (PRICES.compute(op, found, shapes) for op in found.ops)
    assert (add, norm) == (288, 3002)
    assert PRICES.globally(ops[-2]) == 31745


def test_a_result_in_an_operands_place_costs_twice() -> None:
    module = Records()
    x, y = module.input(2, 64, 64), module.input(2, 64, 64)
    found = group(module.done(module.mul(x, y)))
    (op,) = found.ops
    shapes = {value: tensor.shape for value, tensor in found.tensors.items()}
    apart = PRICES.compute(op, found, shapes)
    in_place = GroupOps(
        found.type, found.ops, found.tensors, found.inputs, found.outputs, {op.result: op.operands[0]}
    )
    assert PRICES.compute(op, in_place, shapes) == 2 * apart


@pytest.mark.parametrize("ops", [norms(), mlp(), norms(1, 576), mlp(1, 256, 512)])
def test_nothing_costs_less_than_the_least(ops: tuple[OpRecord, ...]) -> None:
    # a bound that is too high would make the search miss the best cut
    program = Program.of(ops, CHIP)
    (indices,) = program.chains()
    for index in indices:
        alone = group_of(program, [index])
        assert PRICES.least(alone, alone=True) <= PRICES.globally(ops[index])
    for secs in (Secs(), Secs(c=2)):
        whole = group_of(program, indices)
        if whole.tensors[whole.outputs[0]].shape[1] > 1 or secs == Secs():
            found = draft(whole, secs, PRICES)
            assert PRICES.least(whole, alone=False) <= found.profile.cycles(found.table)


def test_prices_do_not_depend_on_who_asks_first() -> None:
    found = draft(group(norms(512, 96)), Secs(c=3), PRICES)
    again = draft(group(norms(512, 96)), Secs(c=3), PRICES)
    assert found.profile == again.profile
    assert np.isfinite(found.profile.cycles(found.table))
