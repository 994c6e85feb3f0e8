"""How ops are divided between cores: parts, attributes, what is refused, and what lives while ops run together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import VerifyError
from engine.snapshot import OpRecord, TensorType
from engine.tpu.cores import (
    CoreSplit,
    CoreUse,
    core_problems,
    even_parts,
    even_split,
    narrow,
    outermost_split,
    spans_of,
    verify_cores,
)

X = TensorType((1, 10, 64), "bf16")


def op(name: str = "tpu.Add", result: str = "%2", reads: str = "%1", **attributes: Any) -> OpRecord:
    return OpRecord(name, (reads,), (X,), (result,), (X,), attributes, (result,))


@given(st.integers(1, 5000), st.integers(1, 8), st.integers(1, 64))
def test_parts_cover_everything_once_and_the_first_core_has_most(size: int, cores: int, unit: int) -> None:
    parts = even_parts(size, cores, unit)
    # THEN they follow each other, begin on units, are no more than the cores, and none is longer than the first
    assert [start for start, _ in parts] == [sum(n for _, n in parts[:i]) for i in range(len(parts))]
    assert sum(length for _, length in parts) == size
    assert len(parts) <= cores
    assert all(start % unit == 0 and 0 < length <= parts[0][1] for start, length in parts)


def test_splits_of_one_part_are_none() -> None:
    assert even_split(32, 2, 2, unit=32) is None
    assert even_split(33, 2, 2, unit=32) == CoreSplit(2, ((0, 32), (32, 1)))
    assert outermost_split((1, 1, 8), 2) == CoreSplit(2, ((0, 4), (4, 4)))
    assert outermost_split((1, 1), 2) is None


def test_narrow_moves_the_address() -> None:
    placed = TensorType((1, 10, 64), "bf16", 4096)
    assert narrow(placed, 1, (4, 3)) == TensorType((1, 3, 64), "bf16", 4096 + 4 * 64 * 2)
    assert narrow(X, 1, (4, 3)) == TensorType((1, 3, 64), "bf16")
    with pytest.raises(ValueError, match=r"dimension 2 of \[1, 10, 64\] does not lie together"):
        narrow(placed, 2, (0, 32))


@pytest.mark.parametrize(
    "use",
    [
        CoreUse((0,)),
        CoreUse((1,), parallel=3),
        CoreUse((0, 1), CoreSplit(1, ((0, 5), (5, 5)))),
        CoreUse((0, 1), CoreSplit(None, ((0, 2), (2, 1)))),
    ],
)
def test_attributes_and_back(use: CoreUse) -> None:
    assert CoreUse.of(op(**use.attributes())) == use
    assert CoreUse.of(op()) is None


def test_parts_are_dealt_out_in_turn() -> None:
    use = CoreUse((0, 1), CoreSplit(1, ((0, 3), (3, 3), (6, 3), (9, 1))))
    assert use.parts_of(0) == ((0, 3), (6, 3))
    assert use.parts_of(1) == ((3, 3), (9, 1))


PARTS = [[0, 5], [5, 5]]


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"core_split": PARTS, "core_dim": 1}, "has core_dim, core_split but no run_core_id"),
        ({"group_parallel": 1}, "has group_parallel but no run_core_id"),
        ({"run_core_id": []}, r"run_core_id is \[\], expected different numbers"),
        ({"run_core_id": [0, 0], "core_dim": 1, "core_split": PARTS}, r"run_core_id is \[0, 0\]"),
        ({"run_core_id": [-1]}, r"run_core_id is \[-1\]"),
        ({"run_core_id": [0, 1]}, "core_split does not say who runs what"),
        ({"run_core_id": [0], "core_dim": 1}, "core_split does not say who runs what"),
        ({"run_core_id": [0, 1], "core_dim": 1, "core_split": [[0, 10]]}, "1 parts for 2 cores"),
        ({"run_core_id": [0, 1], "core_dim": 1, "core_split": [[0, 5], [5]]}, r"a \[start, length\] for each part"),
        ({"run_core_id": [0, 1], "core_dim": 1, "core_split": []}, r"a \[start, length\] for each part"),
        ({"run_core_id": [0, 1], "core_dim": 1, "core_split": [[0, 5], [6, 4]]}, "gap or an overlap at 5"),
        ({"run_core_id": [0, 1], "core_dim": 1, "core_split": [[0, 5], [4, 6]]}, "gap or an overlap at 5"),
        ({"run_core_id": [0, 1], "core_dim": 1, "core_split": [[0, 0], [0, 10]]}, "gap or an overlap at 0"),
        ({"run_core_id": [0, 1], "core_dim": 1, "core_split": [[0, 5], [5, 4]]}, "ends at 9, dimension 1 has 10"),
        ({"run_core_id": [0, 1], "core_dim": 3, "core_split": PARTS}, r"core_dim is 3, .*\[1, 10, 64\]"),
        ({"run_core_id": [0, 1], "core_split": PARTS}, "core_dim is None"),
        ({"run_core_id": [0, 1], "core_split": PARTS, "nsecs": 2, "csecs": 4}, "ends at 10, the group's slices has 8"),
        ({"run_core_id": [0, 1], "core_split": PARTS, "core_dim": 1, "csecs": 10}, "has no core_dim"),
    ],
)  # fmt: skip
def test_malformed_attributes_are_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify_cores(op(**attributes))


def test_well_formed_attributes() -> None:
    verify_cores(op(eps=1))
    verify_cores(op(run_core_id=[1]))
    verify_cores(op(run_core_id=[0, 1], core_dim=1, core_split=PARTS))
    verify_cores(op(run_core_id=[0, 1], core_split=[[0, 4], [4, 4]], nsecs=2, csecs=4))


def test_problems_between_ops() -> None:
    # GIVEN k and v beside each other, a reshape between them
    k = op("tpu.MatMul", "%k", run_core_id=[0], group_parallel=0)
    reshape = op("tpu.Reshape", "%r", reads="%k")
    v = op("tpu.MatMul", "%v", run_core_id=[1], group_parallel=0)
    other = op("tpu.Cast", "%c", run_core_id=[0])
    # THEN nothing is wrong with them
    assert core_problems([k, reshape, v, other], 2) == []
    # WHEN something is, it is named
    same = replace(v, attributes={"run_core_id": [0], "group_parallel": 0})
    reads = replace(v, operands=("%k",))
    assert core_problems([k, v], 1) == ["tpu.MatMul at %v runs on core 1, the program has 1"]
    assert core_problems([k, same], 2) == ["group_parallel 0 (%k, %v): two of them run on one core"]
    assert core_problems([k, other, v], 2) == ["group_parallel 0 (%k, %v): another op stands between them"]
    assert core_problems([k, reads], 2) == [
        "group_parallel 0 (%k, %v): one of them reads what another one makes"
    ]


def test_spans_of_ops_that_run_together() -> None:
    assert spans_of([None, 0, None, 0, None]) == [(0, 0), (1, 3), (2, 2), (1, 3), (4, 4)]
