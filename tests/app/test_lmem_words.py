"""Sentences about layer groups."""

from __future__ import annotations

import pytest

from app.widgets.lmem_words import gain_text, kib_column, kinds_in, readable_bytes, secs_text, verdict_text


def test_a_verdict_names_both_ways_and_what_is_gained() -> None:
    assert verdict_text(11, 133_600, 168_200) == (
        "one group of 11 ops takes 134 kc; run one by one 168 kc: gains 21 %"
    )
    assert verdict_text(1, 500, 400).startswith("one group of 1 op takes 500 c")
    assert verdict_text(2, 500, 400).endswith("gains nothing")


def test_gains_are_exact() -> None:
    assert gain_text(171_026, 205_657).startswith("34,631 of the 205,657 cycles")
    assert gain_text(500, 400) == "nothing: the ops alone take 400 cycles"


def test_bytes_of_the_search_are_in_kib() -> None:
    told = "with 1 slice it needs 598016 of 262144 bytes a lane (memory)"
    assert readable_bytes(told, exact=False) == "with 1 slice it needs 584 KiB of 256 KiB a lane (memory)"
    assert "584 KiB of 256 KiB (598,016 of 262,144 bytes) a lane" in readable_bytes(told, exact=True)
    assert readable_bytes("it needs 302592 bytes", exact=False) == "it needs 295.5 KiB"
    assert readable_bytes("%4096 reads 3 of 4", exact=True) == "%4096 reads 3 of 4"


def test_columns_have_their_points_under_each_other() -> None:
    assert [kib_column(nbytes) for nbytes in (98_509, 77_824)] == ["96.2 KiB", "76.0 KiB"]


def test_slices_have_one_name() -> None:
    assert secs_text((2, 4, 1, 1, 1)) == "nsecs 2 csecs 4"
    assert secs_text((1, 1, 1, 1, 1)) == "1 slice"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (80, "MatMul + Add + RMSNorm + 3 Cast + Active"),
        (39, "MatMul + Add + RMSNorm + 4 more"),
        (22, "MatMul + Add + 5 more"),
        (15, "MatMul + 6 more"),
        (14, ""),
    ],
)
def test_the_last_ops_are_cut_and_counted(width: int, text: str) -> None:
    kinds = ["MatMul", "Add", "RMSNorm", "Cast", "Cast", "Cast", "Active"]
    assert kinds_in(kinds, width) == text
