"""A chip table with a value that no chip can have is refused when it is read, in words that lead to the value."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from engine.errors import UserError
from engine.tpu.chip import chips, read_chips

TEXT = files("engine.tpu").joinpath("chips.toml").read_text()
FILE = "some/chips.toml"


def changed(key: str, value: str | None) -> str:
    """The table with another value for a key of the first chip, or without the key."""
    line = "" if value is None else f"{key} = {value}"
    text, count = re.subn(rf"(?m)^{key} = .*$", line, TEXT, count=1)
    assert count == 1
    return text


def test_the_table_of_the_project_is_accepted() -> None:
    assert read_chips(TEXT, FILE) == chips()


COUNTS = ("lanes", "eu_bytes", "lmem_bytes", "banks", "cores", "mask_size")
COST_COUNTS = ("burst_bytes", "channel_bytes", "channels", "mm2_macs_per_cycle", "div", "rsqrt", "select")
SPEEDS = ("ddr_bandwidth", "clock_hz")
COST_SPEEDS = ("broadcast_bytes_per_cycle", "gather_bytes_per_cycle")


@pytest.mark.parametrize("value", ["0", "-64", '"64"', "64.5", "true", "[64]"])
@pytest.mark.parametrize("key", COUNTS + COST_COUNTS)
def test_a_count_is_a_whole_number_above_0(key: str, value: str) -> None:
    with pytest.raises(UserError, match=rf"{key} is .*; accepted: a whole number above 0"):
        read_chips(changed(key, value), FILE)


@pytest.mark.parametrize("value", ["0", "-1e9", '"1e9"', "inf", "nan", "true"])
@pytest.mark.parametrize("key", SPEEDS + COST_SPEEDS)
def test_a_speed_is_a_number_above_0(key: str, value: str) -> None:
    with pytest.raises(UserError, match=rf"{key} is .*; accepted: a number above 0"):
        read_chips(changed(key, value), FILE)


def test_a_speed_may_be_a_whole_number() -> None:
    assert read_chips(changed("clock_hz", "1000000000"), FILE)["bm1684x"].clock_hz == 1e9


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("description", "1", "description is 1; accepted: a text"),
        ("eu_bytes", "6", "eu_bytes is 6; accepted: a multiple of 4"),
        ("banks", "7", "lmem_bytes is 262144; accepted: a multiple of banks x eu_bytes = 7 x 64 = 448"),
        (
            "lmem_bytes",
            "1000",
            "lmem_bytes is 1000; accepted: a multiple of banks x eu_bytes = 16 x 64 = 1024",
        ),
        ("ddr_base", "-4096", "ddr_base is -4096; accepted: a whole number from 0"),
        ("ddr_base", "100", "ddr_base is 100; accepted: a multiple of alignment = 4096"),
        ("alignment", "0", "alignment is 0; accepted: a power of two"),
        ("alignment", "-4096", "alignment is -4096; accepted: a power of two"),
        ("alignment", "3000", "alignment is 3000; accepted: a power of two"),
        ("mask_size", "100", "mask_size is 100; accepted: a multiple of lanes = 64"),
        ("fused_mlp", "1", "fused_mlp is 1; accepted: true or false"),
        ("residual_bias", '["f64"]', "residual_bias is ['f64']; accepted: a list of some of f32, f16, bf16"),
        ("macs_per_cycle", "{ f32 = 1024 }", "accepted: a whole number above 0 for each of f32, f16, bf16"),
        ("macs_per_cycle", "{ f32 = 0, f16 = 1, bf16 = 1 }", "macs_per_cycle is {'f32': 0, "),
        (
            "transfer_bytes_per_cycle",
            "[54.0, 0, 26.0]",
            "costs.transfer_bytes_per_cycle is [54.0, 0, 26.0]; ",
        ),
        ("transfer_bytes_per_cycle", "[54.0, 26.0]", "accepted: 3 numbers above 0"),
        ("matrix_bytes_per_cycle", "[0.0, 44.0]", "costs.matrix_bytes_per_cycle is [0.0, 44.0]; "),
        ("latency", "[0, -1, 0]", "costs.latency is [0, -1, 0]; accepted: 3 whole numbers from 0"),
        ("mm2_step", "[64, 0, 4]", "costs.mm2_step is [64, 0, 4]; accepted: 3 whole numbers above 0"),
        ("mm_rows", "[512, 8]", "costs.mm_rows is [512, 8]; accepted: 3 whole numbers above 0"),
    ],
)
def test_an_impossible_value_is_refused(key: str, value: str, message: str) -> None:
    # GIVEN a table of which one value is impossible WHEN it is read THEN the error names place, value and remedy
    with pytest.raises(UserError) as error:
        read_chips(changed(key, value), FILE)
    assert str(error.value).startswith(f"{FILE}: chip bm1684x: ")
    assert str(error.value).endswith("; correct the chip table")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "key", ["lanes", "description", "alignment", "fused_mlp", "macs_per_cycle", "channels", "latency"]
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(
        UserError, match=rf"^{FILE}: chip bm1684x: (costs\.)?{key} is missing; accepted: .*; add it$"
    ):
        read_chips(changed(key, None), FILE)


def test_costs_are_needed() -> None:
    text = TEXT[TEXT.index("[bm1684x]") : TEXT.index("[bm1684x.costs]")]
    with pytest.raises(
        UserError, match="chip bm1684x: costs is missing; accepted: a table of cost constants"
    ):
        read_chips(text, FILE)


def test_only_what_may_be_left_out_may_be_left_out() -> None:
    assert read_chips(changed("residual_bias", None), FILE)["bm1684x"].residual_bias == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x", f"^{FILE}: .*accepted: TOML"),
        ("x = 1", f"^{FILE}: chip x is 1; accepted: a table"),
        (
            TEXT.replace("lanes = 64", "lains = 1\nlanes = 64", 1),
            "chip bm1684x: lains is unknown; accepted: .*lanes",
        ),
        (
            TEXT.replace("div = 31", "dif = 31\ndiv = 31", 1),
            r"chip bm1684x: costs\.dif is unknown; accepted: .*div",
        ),
    ],
)
def test_what_is_no_table_of_chips_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_chips(text, FILE)
