"""The op-aligned diff: what stands beside what, and that nothing is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.diff import Diff, diff, side_by_side, unified
from engine.snapshot import OpRecord, Snapshot, TensorType

F32 = TensorType((1, 4), "f32")
BF16 = TensorType((1, 4), "bf16")


def op(
    name: str,
    origin: str,
    operands: tuple[str, ...] = (),
    result: str = "%0",
    type_: TensorType = F32,
    line: int = 0,
    **attributes: object,
) -> OpRecord:
    types = (type_,) * len(operands)
    return OpRecord(name, operands, types, (result,), (type_,), attributes, (origin,), line=line)


def snapshot(*ops: OpRecord) -> Snapshot:
    """A snapshot whose text has one line an op."""
    placed = tuple(
        OpRecord(
            o.name, o.operands, o.operand_types, o.results, o.result_types, o.attributes, o.origins, line=i
        )
        for i, o in enumerate(ops)
    )
    text = "\n".join(f'    {o.results[0]} = "{o.name}" loc(#loc{i})' for i, o in enumerate(placed))
    return Snapshot("block_0", "some-pass", text, placed, {}, True, 0.0)


OPS = st.builds(
    op,
    st.sampled_from(["top.MatMul", "tpu.A16MatMul", "top.Weight"]),
    st.sampled_from("abcde"),
    type_=st.sampled_from([F32, BF16]),
    k=st.sampled_from([1, True]),
)
SIDES = st.lists(OPS, max_size=25).map(lambda ops: snapshot(*ops))


def one_sided(difference: Diff, side: str) -> list[OpRecord]:
    return [getattr(row, side) for h in difference.hunks for row in h.rows if getattr(row, side) is not None]


@given(SIDES, SIDES)
def test_hunks_hold_both_sides_exactly(before: Snapshot, after: Snapshot) -> None:
    difference = diff(before, after)
    assert difference.before_ops() == before.ops
    assert difference.after_ops() == after.ops
    # the rows of the hunks hold each op once, too
    assert sorted(o.line for o in one_sided(difference, "before")) == list(range(len(before.ops)))
    assert sorted(o.line for o in one_sided(difference, "after")) == list(range(len(after.ops)))
    counts = difference.counts()
    assert counts.added - counts.removed == len(after.ops) - len(before.ops)


@given(SIDES)
def test_a_snapshot_equals_itself(side: Snapshot) -> None:
    difference = diff(side, side)
    assert all(hunk.is_quiet for hunk in difference.hunks)
    assert not difference.counts().any
    shown = unified(difference, side.text, side.text, context=None)
    assert [line.kind for line in shown] == ["equal"] * len(side.ops)


@given(SIDES, SIDES)
def test_hunks_follow_the_order_of_the_later_side(before: Snapshot, after: Snapshot) -> None:
    starts = [hunk.after_at[0] for hunk in diff(before, after).hunks if hunk.after]
    assert starts == sorted(starts)


@given(SIDES, SIDES, st.integers(0, 3))
def test_both_views_show_every_change_and_count_the_rest(
    before: Snapshot, after: Snapshot, context: int
) -> None:
    difference = diff(before, after)
    counts = difference.counts()
    lines = unified(difference, before.text, after.text, context)
    kinds = Counter(line.kind for line in lines)
    assert (kinds["added"], kinds["removed"]) == (counts.added, counts.removed)
    hidden = sum(int(line.text.split()[1]) for line in lines if line.kind == "gap")
    assert kinds["equal"] + kinds["moved"] + kinds["added"] + hidden == len(after.ops)
    sides = side_by_side(difference, before.text, after.text, context)
    assert sum(line.kind in ("added", "changed") for line in sides) == counts.added
    assert sum(line.kind in ("removed", "changed") for line in sides) == counts.removed


@given(st.permutations([op("top.Add", f"layer.{i}", result=f"%{i}") for i in range(8)]))
def test_reordering_changes_nothing_but_places(order: list[OpRecord]) -> None:
    before = snapshot(*(op("top.Add", f"layer.{i}", result=f"%{i}") for i in range(8)))
    difference = diff(before, snapshot(*order))
    assert {hunk.kind for hunk in difference.hunks} == {"equal"}
    kept = [hunk.before_at[0] for hunk in difference.hunks if not hunk.moved]
    assert kept == sorted(kept)
    assert difference.counts().any == (
        tuple(o.location for o in order) != tuple(o.location for o in before.ops)
    )


def test_one_op_stands_beside_all_that_it_became() -> None:
    # GIVEN an MLP that was lowered to three ops, the weights of one of them between
    before = snapshot(op("top.Weight", "mlp.gate.weight", result="%1"), op("top.MLP", "mlp", ("%1",)))
    after = snapshot(
        op("tpu.A16MatMul", "mlp", result="%1"),
        op("top.Weight", "mlp.gate.weight", type_=BF16),
        op("tpu.Active", "mlp", result="%3"),
        op("tpu.Mul", "mlp", result="%4"),
    )
    # WHEN aligned THEN there is one hunk for the MLP and one for the weight
    hunks = {hunk.key: hunk for hunk in diff(before, after).hunks}
    assert list(hunks) == ["mlp", "mlp.gate.weight"]
    assert [o.kind for o in hunks["mlp"].before] == ["MLP"]
    assert [o.kind for o in hunks["mlp"].after] == ["A16MatMul", "Active", "Mul"]
    assert hunks["mlp.gate.weight"].kind == "changed"


def test_numbers_of_values_do_not_count_but_their_origins_do() -> None:
    a, b = op("top.Input", "a", result="%1"), op("top.Input", "b", result="%2")
    before = snapshot(a, b, op("top.Sub", "c", ("%1", "%2"), "%3"))
    renumbered = snapshot(
        op("top.Input", "a", result="%7"),
        op("top.Input", "b", result="%8"),
        op("top.Sub", "c", ("%7", "%8"), "%9"),
    )
    swapped = snapshot(a, b, op("top.Sub", "c", ("%2", "%1"), "%3"))
    assert not diff(before, renumbered).counts().any
    assert [h.key for h in diff(before, swapped).hunks if h.kind == "changed"] == ["c"]


def test_a_removed_op_is_shown_at_its_old_place() -> None:
    before = snapshot(*(op("top.Add", name) for name in "abcd"))
    after = snapshot(*(op("top.Add", name) for name in "acd"))
    assert [hunk.key for hunk in diff(before, after).hunks] == ["a", "b", "c", "d"]
    assert [hunk.kind for hunk in diff(before, after).hunks] == ["equal", "removed", "equal", "equal"]


def test_weights_move_past_the_ops_and_not_the_other_way_round() -> None:
    weights = [op("top.Weight", f"w{i}", result=f"%{i}") for i in range(6)]
    adds = [op("top.Add", f"a{i}", result=f"%1{i}") for i in range(3)]
    before = snapshot(*(o for i in range(3) for o in (weights[2 * i], weights[2 * i + 1], adds[i])))
    difference = diff(before, snapshot(*weights, *adds))
    assert {hunk.key[0] for hunk in difference.hunks if hunk.moved} == {"w"}
    assert difference.counts().moved == 4


def test_gaps_count_equal_ops_and_context_keeps_neighbours() -> None:
    before = snapshot(*(op("top.Add", f"{i}") for i in range(10)))
    after = snapshot(*(op("top.Add", f"{i}", type_=BF16 if i == 5 else F32) for i in range(10)))
    lines = unified(diff(before, after), before.text, after.text, context=1)
    assert [(line.kind, line.text) for line in lines] == [
        ("gap", "⋮ 4 equal ops"),
        ("equal", '%0 = "top.Add"'),
        ("removed", '%0 = "top.Add"'),
        ("added", '%0 = "top.Add"'),
        ("equal", '%0 = "top.Add"'),
        ("gap", "⋮ 3 equal ops"),
    ]
    assert [(line.before_line, line.after_line) for line in lines[1:4]] == [(4, 4), (5, None), (None, 5)]


def test_one_changed_op_among_ten_thousand_of_equal_layers_is_the_one_hunk() -> None:
    # GIVEN 500 layers of 20 ops with the same origins in each, and one changed op in the middle
    ops = [op("top.MatMul", f"layers.{{i}}.{i}", k=i) for i in range(20)] * 500
    changed = list(ops)
    changed[5007] = op("tpu.A16MatMul", ops[5007].location)
    before, after = snapshot(*ops), snapshot(*changed)
    # WHEN aligned THEN only that op differs
    difference = diff(before, after)
    assert [hunk.before_at for hunk in difference.hunks if not hunk.is_quiet] == [(5007,)]
