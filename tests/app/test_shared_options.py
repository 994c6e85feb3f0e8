"""Options as numbers and as one line: what is written is read back, and mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest

from app.shared_options import SHARED, integers, options_of, spelled, whole_number
from engine.errors import UserError

EVERY: dict[str, Any] = {
    "chip_name": "bm1688",
    "quantize": "w8f16",
    "q_group_size": 32,
    "symmetric": True,
    "seq_length": 64,
    "history": False,
    "max_input_length": 16,
    "decode_chunks": (32, 16),
    "prefill_mask": "full",
    "sample": True,
    "batch": 1,
    "cores": 2,
    "layer_group": True,
    "opt": 3,
    "fuse_weights": True,
    "force_group": ("block_0:1..3", "lm_head:0..1"),
}


def test_a_line_of_options_is_read_back() -> None:
    assert set(EVERY) == set(SHARED)
    line = spelled(EVERY)
    assert options_of(line, {}) == EVERY
    assert "--no-history" in line
    assert "--force-group block_0:1..3 --force-group lm_head:0..1" in line
    assert options_of(spelled({"decode_chunks": ()}), {}) == {"decode_chunks": ()}
    assert options_of("--cores=2", {}) == {"cores": 2}
    assert spelled({"sample": False, "quantize": None}) == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--cors 2", "'--cors' is no option of the compiler; accepted: --chip, "),
        ("two", "'two' is no option"),
        ("--no-sample", "'--no-sample' is no option"),
        ("--cores", "--cores needs a value"),
        ("--cores --sample", "--cores needs a value"),
        ("--cores 1_0", "--cores: '1_0' is no whole number"),
        ("--sample=yes", "--sample takes no value"),
        ("--chip bm1688", "--chip: written elsewhere"),
        ("--cores '2", "cannot be read"),
    ],
)
def test_a_line_that_cannot_be_read_is_explained(line: str, said: str) -> None:
    with pytest.raises(UserError) as found:
        options_of(line, {"chip_name": "written elsewhere"})
    assert said in str(found.value)


@pytest.mark.parametrize("text", ["-", "+", "1__0", "1_0", "+5", "", "１", "9" * 5000])
def test_only_digits_are_a_whole_number(text: str) -> None:
    with pytest.raises(UserError, match=r"rows: .* is no whole number; accepted: 1 to 9"):
        whole_number("rows", text, "1 to 9")
    with pytest.raises(UserError, match="no list of whole numbers"):
        integers("rows", f"1,{text}")


def test_numbers_are_read() -> None:
    assert whole_number("rows", "007", "") == 7
    assert integers("ids", "1, 22,-3") == (1, 22, -3)
    assert integers("ids", "none") == ()
