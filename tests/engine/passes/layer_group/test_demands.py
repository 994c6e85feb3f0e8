"""What is said of demanded groups: twice the same one, and why one cannot be."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from group_records import Records, mlp

from engine.errors import UserError
from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.search import plan_groups
from engine.tpu.chip import chip

CHIP = chip("bm1684x")


def test_a_demand_given_twice_is_one() -> None:
    ops = mlp()
    chain = Program.of(ops, CHIP).chains()[0]
    span = (chain[0], chain[2])
    assert plan_groups(ops, CHIP, forced=[span, span]) == plan_groups(ops, CHIP, forced=[span])


def test_a_refused_demand_names_the_module_and_not_memory_when_that_is_not_why() -> None:
    # GIVEN a part that ends with a reshape, which memory has nothing to do with
    module = Records()
    product = module.matmul(module.input(1, 64, 128), 128)
    heads = module.reshape(product, 1, 64, 2, 64)
    ops = module.done(module.add(heads, heads))
    first, last, _ = Program.of(ops, CHIP).chains()[0]
    # WHEN it is demanded
    with pytest.raises(UserError) as raised:
        plan_groups(ops, CHIP, forced=[(first, last)], module="block_0")
    # THEN the message gives that reason alone, and what would do
    text = str(raised.value)
    assert text.startswith(f"--force-group block_0:{first}..{last} cannot be placed: a reshape at the end")
    assert "memory has" not in text
    assert "largest op" not in text
    assert "each of its ops can run globally" in text


def test_weights_larger_than_local_memory_are_named_as_such() -> None:
    # GIVEN 8960 columns of 1536: 24 KiB x 17.5 a lane
    module = Records()
    x = module.input(1, 512, 1536)
    ops = module.done(module.matmul(module.norm(x), 8960))
    first, last = Program.of(ops, CHIP).chains()[0]
    with pytest.raises(
        UserError, match=r"weights of a MatMul alone take 430080 bytes a lane.*no slicing helps"
    ):
        plan_groups(ops, CHIP, forced=[(first, last)])


def test_rows_too_long_for_any_slicing_say_what_the_finest_needs() -> None:
    # GIVEN rows of which not one fits a lane, 512 of them: 8 sets of lanes
    module = Records()
    x = module.input(1, 512, 40000)
    ops = module.done(module.silu(module.add(module.matmul(module.input(1, 512, 64), 40000), x)))
    on = replace(CHIP, lmem_bytes=CHIP.lmem_bytes // 2)
    first, *_, last = Program.of(ops, on).chains()[0]
    with pytest.raises(
        UserError, match=r"with 8 slices, which is the most, a \w+ alone needs (\d+) of 131072"
    ) as raised:
        plan_groups(ops, on, forced=[(first, last)])
    needed = re.search(r"needs (\d+) of", str(raised.value))
    assert needed is not None
    assert int(needed[1]) > on.lmem_bytes
