"""What can be streamed together, when its values are there, and in which layout."""

from __future__ import annotations

import pytest
from stream_bench import StreamRecords, feed_forward, heads

from engine.passes.layer_group.chains import Program
from engine.passes.layer_group.stream.chain import (
    BEFORE,
    Rank,
    Stream,
    StreamError,
    execution_order,
    stream_of,
    stretches,
)
from engine.snapshot import OpRecord
from engine.tpu.chip import chip

CHIP = chip("bm1684x")


def program(ops: tuple[OpRecord, ...]) -> Program:
    return Program.of(ops, CHIP)


def whole(ops: tuple[OpRecord, ...]) -> Stream:
    found = program(ops)
    (indices,) = stretches(found)
    return stream_of(found, indices)


def value(stream: Stream, kind: str, number: int = 0) -> str:
    return [op.result for op in stream.ops if op.kind == kind][number]


def test_ops_follow_the_product_whose_columns_they_take() -> None:
    # GIVEN products behind attention and of a feed-forward network
    stream = whole(feed_forward(64))
    kinds = [[op.kind for op in stream.followers(phase)] for phase in range(4)]
    # THEN sums, SiLU and its casts run with the tiles of the product before them, norms behind all tiles
    assert kinds == [
        ["A16MatMul", "Add"],
        ["A16MatMul", "Cast", "Active", "Cast"],
        ["A16MatMul", "Mul"],
        ["A16MatMul", "Add"],
    ]
    assert [[op.kind for op in stream.behind(phase)] for phase in range(4)] == [
        ["RMSNorm"],
        [],
        [],
        ["RMSNorm"],
    ]


def test_heads_are_not_cut_apart() -> None:
    stream = whole(heads(64, count=3, size=80))
    # THEN tiles of q are whole heads and whole sets of lanes, those of v only the latter
    assert [stream.unit(phase, CHIP.lanes) for phase in range(3)] == [320, 320, 64]
    # and rotary positions run with q and k, though they stand behind v
    assert [op.kind for op in stream.followers(0)] == ["A16MatMul", "Reshape", "RMSNorm", "Rope"]
    assert [op.kind for op in execution_order(stream)][:2] == ["RMSNorm", "A16MatMul"]


def test_what_must_be_whole() -> None:
    stream = whole(feed_forward(64))
    # THEN what a norm or a later product reads is whole, what lives for a tile is not
    assert stream.is_whole(value(stream, "Add"))
    assert stream.is_whole(value(stream, "Mul"))
    assert not stream.is_whole(value(stream, "A16MatMul"))
    assert not stream.is_whole(value(stream, "Active"))
    # and of the loaded ones the product's operand comes at once, the residual by tiles
    assert [stream.is_whole(name) for name in stream.inputs] == [True, False]
    assert all(stream.values[name].rank == BEFORE for name in stream.inputs)


def test_results_replace_operands_that_die() -> None:
    stream = whole(feed_forward(64))
    assert stream.in_place == {
        value(stream, "Mul"): value(stream, "Cast", 1),
        value(stream, "Add", 1): value(stream, "Add"),
    }


def test_an_operand_that_is_stored_keeps_its_place() -> None:
    # GIVEN the first sum read outside, too
    ops = feed_forward(64)
    total = next(op.results[0] for op in ops if op.name == "tpu.Add")
    returned = ops[-1]
    type_ = ops[3].result_types[0]
    kept = OpRecord(
        "func.return", (*returned.operands, total), (*returned.operand_types, type_), (), (), {}, ()
    )
    stream = whole((*ops[:-1], kept))
    assert total in stream.outputs
    assert total not in stream.in_place.values()


def test_one_token_is_spread_where_nobody_needs_rows() -> None:
    stream = whole(feed_forward(1))
    # THEN from gate to the operand of down all lanes work; sums with what is loaded stay rows
    spread = {value(stream, "A16MatMul", 1), value(stream, "A16MatMul", 2), value(stream, "Active")}
    assert spread | {value(stream, "Mul")} <= stream.spread
    assert not {value(stream, "Add"), value(stream, "A16MatMul")} & stream.spread
    # unless a bias is added to rows, or columns do not fill the lanes, or there are more tokens
    assert not whole(feed_forward(1, bias=True)).spread
    assert not whole(feed_forward(1, inner=168)).spread
    assert not whole(feed_forward(2)).spread


def test_lookups_between_do_not_end_a_stretch() -> None:
    # GIVEN an op without a local kernel in the middle
    def module(*, reads: bool) -> tuple[OpRecord, ...]:
        records = StreamRecords()
        x = records.input(1, 8, 128)
        first = records.product(x, 128)
        other = records.attention(first if reads else x)
        return records.done(records.add(first, records.product(other, 128)))

    # THEN it stays in front when it reads nothing that is made before it, else it ends the stretch
    apart = stretches(program(module(reads=False)))
    assert [len(indices) for indices in apart] == [3]
    assert [len(indices) for indices in stretches(program(module(reads=True)))] == [1, 2]


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [(1, 1, "no product"), (3, 6, "no product"), (2, 7, "")],
)
def test_parts_that_are_no_streams(first: int, last: int, reason: str) -> None:
    ops = feed_forward(8)
    found = program(ops)
    (indices,) = stretches(found)
    part = indices[first : last + 1]
    if reason:
        with pytest.raises(StreamError, match=reason):
            stream_of(found, [index for index in part if found.ops[index].kind != "A16MatMul"])
    else:
        assert stream_of(found, part).values


def test_products_with_other_columns_are_refused() -> None:
    # GIVEN a norm of heads that are not the columns of the product before them
    records = StreamRecords()
    x = records.reshape(records.product(records.input(1, 4, 128), 128), 1, 4, 2, 64)
    ops = records.done(records.rope(x, records.input(1, 4, 1, 64), records.input(1, 4, 1, 64)))
    assert whole(ops).unit(0, CHIP.lanes) == 64
    assert Rank(0, False) < Rank(0, True) < Rank(1, False)
