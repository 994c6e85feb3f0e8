"""Which ops can be in a group, where chains end, what a group reads and writes."""

from __future__ import annotations

import pytest
from group_records import Records, norms

from engine.passes.layer_group.chains import Program, group_of, reuse_operands
from engine.passes.layer_group.layout import Role
from engine.passes.layer_group.plan import GroupType
from engine.tpu.chip import chip

CHIP = chip("bm1684x")


def test_a_chain_ends_at_ops_without_local_kernel() -> None:
    # GIVEN norm, attention, add, norm
    module = Records()
    x = module.input(1, 8, 64)
    read = module.attention(module.norm(x))
    total = module.add(x, read)
    ops = module.done(module.norm(total))
    # WHEN chains are looked for
    program = Program.of(ops, CHIP)
    kinds = [[ops[index].kind for index in chain] for chain in program.chains()]
    # THEN attention is in none, and weights between ops do not part them
    assert kinds == [["RMSNorm"], ["Add", "RMSNorm"]]
    assert "no kernel" in program.why_global(next(i for i, op in enumerate(ops) if op.kind == "FAttention"))


@pytest.mark.parametrize(
    ("dtype", "transposed", "reason"),
    [("bf16", False, ""), ("f16", False, ""), ("f32", False, "f32"), ("bf16", True, "transposed")],
)
def test_matrix_products_of_half_types_with_a_plain_weight_are_local(
    dtype: str, transposed: bool, reason: str
) -> None:
    module = Records()
    y = module.matmul(module.input(1, 8, 64, dtype=dtype), 32, transposed=transposed)
    ops = module.done(y)
    found = Program.of(ops, CHIP).why_global(len(ops) - 2)
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_product_of_two_activations_is_global() -> None:
    module = Records()
    x, y = module.input(1, 8, 64), module.input(64, 32)
    value = module.matmul(x, 32)
    ops = [
        *module.ops[:-2],
        module.ops[-1].__class__(
            "tpu.MatMul",
            (x, y, ""),
            (module.types[x], module.types[y], module.ops[-1].operand_types[2]),
            (value,),
            module.ops[-1].result_types,
            {"right_transpose": False},
            ("product",),
        ),
    ]
    assert "weight" in Program.of(ops, CHIP).why_global(len(ops) - 1)


def test_a_residual_is_the_bias_of_one_row_and_an_activation() -> None:
    # GIVEN a norm behind a product with a residual, and a product that adds the norm's operand again
    module = Records()
    x, residual = module.input(1, 1, 64), module.input(1, 1, 32)
    states = module.matmul(x, 32, residual=residual)
    ops = module.done(module.matmul(module.norm(states), 32, residual=states))
    program = Program.of(ops, CHIP)
    # WHEN they are a group
    (chain,) = program.chains()
    group = group_of(program, chain)
    # THEN the residual is loaded as rows are, and what a product made is its reader's bias
    assert group.inputs[:3] == (x, group.ops[0].operands[1], residual)
    assert group.tensors[residual].role is Role.ROWS
    assert group.tensors[residual].shape == (1, 1, 32, 1)
    assert group.ops[2].operands[2] == states
    assert group.outputs == (group.ops[2].result,)


def test_an_activation_is_no_bias_of_several_rows() -> None:
    module = Records()
    y = module.matmul(module.input(1, 8, 64), 32, residual=module.input(1, 1, 32))
    ops = module.done(y)
    assert "activations" in Program.of(ops, CHIP).why_global(len(ops) - 2)


@pytest.mark.parametrize(("shape", "local"), [((1, 8, 4, 16), True), ((8, 1, 64), False), ((512,), False)])
def test_reshapes_that_keep_two_dimensions_are_local(shape: tuple[int, ...], local: bool) -> None:
    module = Records()
    ops = module.done(module.reshape(module.input(1, 8, 64), *shape))
    assert bool(Program.of(ops, CHIP).why_global(1)) != local


def test_a_group_knows_what_it_loads_and_what_leaves_it() -> None:
    ops = norms()
    program = Program.of(ops, CHIP)
    group = group_of(program, program.chains()[0])
    add, norm = group.ops
    assert group.type is GroupType.MM
    assert group.inputs == (*add.operands, norm.operands[1])
    assert group.outputs == (add.result, norm.result)
    assert group.tensors[norm.operands[1]].role is Role.VECTOR
    assert group.tensors[norm.operands[1]].shape == (1, 1, 576, 1)


def test_reshapes_share_the_memory_of_what_they_read() -> None:
    module = Records()
    product = module.matmul(module.input(1, 8, 64), 32)
    heads = module.reshape(product, 1, 8, 2, 16)
    ops = module.done(module.norm(heads))
    program = Program.of(ops, CHIP)
    group = group_of(program, program.chains()[0])
    assert group.roots[heads] == product


def test_heads_alone_are_spread_over_the_lanes() -> None:
    module = Records()
    ops = module.done(module.norm(module.input(1, 8, 16, 64)))
    program = Program.of(ops, CHIP)
    group = group_of(program, program.chains()[0])
    assert group.type is GroupType.SMALL_C
    assert group.tensors[group.ops[0].result].shape == (2, 64, 64, 1)


def test_only_results_that_stay_inside_replace_an_operand_read_for_the_last_time() -> None:
    # GIVEN a product read by a norm only, and a sum that leaves the group and reads x, which is read again
    module = Records()
    x, y = module.input(1, 8, 64), module.input(1, 8, 64)
    product = module.mul(x, y)
    total = module.add(product, x)
    ops = module.done(total, module.norm(total))
    program = Program.of(ops, CHIP)
    reusing = reuse_operands(group_of(program, program.chains()[0]))
    # THEN the product replaces y, not x, and the sum keeps a place of its own
    assert reusing is not None
    assert dict(reusing.in_place) == {product: y}
