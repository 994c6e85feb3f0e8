"""Options: defaults and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UserError
from engine.options import CompileOptions, QuantizeMode, resolve


def options(**given: Any) -> CompileOptions:
    return resolve(**{"max_positions": 8192, "stored_dtype": "bf16", **given})


def test_defaults_follow_the_model() -> None:
    o = options()
    assert (o.seq_length, o.max_input_length, o.decode_chunks) == (2048, 512, (1024, 512))
    assert (o.quantize, o.history, o.prefill_mask, o.q_group_size) == ("w4bf16", True, "small", 64)
    assert options(stored_dtype="f16").quantize == "w4f16"
    assert options(max_positions=300).seq_length == 300


def test_without_history_there_is_one_prefill_and_no_variant() -> None:
    o = options(history=False, seq_length=512)
    assert (o.max_input_length, o.decode_chunks) == (512, ())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quantize": "w3bf16"}, "w3bf16.*accepted: auto, f32"),
        ({"seq_length": 9000}, "--seq-length 9000 .*1 to 8192"),
        ({"seq_length": 0}, "--seq-length 0"),
        ({"seq_length": 64, "max_input_length": 65}, "--max-input-length 65 .*1 to 64"),
        ({"seq_length": 64, "decode_chunks": [64]}, "--decode-chunks 64 .*1 to 63"),
        ({"seq_length": 64, "decode_chunks": [8, 8]}, "twice"),
        ({"q_group_size": 12}, "--q-group-size 12 is not accepted; accepted: multiples of 8 from 8 to 4096"),
        ({"q_group_size": 0}, "--q-group-size 0 is not accepted"),
        ({"batch": 2}, "--batch 2 is not supported"),
        ({"cores": 2}, "--cores 2 .*bm1684x"),
        ({"chip_name": "tpu9"}, "unknown chip 'tpu9'.*bm1684x"),
        ({"prefill_mask": "huge"}, "--prefill-mask 'huge'"),
    ],
)
def test_bad_values_are_refused_with_what_is_accepted(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        options(**given)


def test_options_survive_storage() -> None:
    o = options(decode_chunks=[100, 300], seq_length=512, symmetric=True)
    assert CompileOptions.from_dict(o.to_dict()) == o


@pytest.mark.parametrize(
    ("name", "half", "bits"),
    [("f32", "f32", 0), ("bf16", "bf16", 0), ("w8f16", "f16", 8), ("w4bf16", "bf16", 4)],
)
def test_a_mode_is_taken_apart(name: str, half: str, bits: int) -> None:
    assert QuantizeMode.of(name) == QuantizeMode(name, half, bits)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"opt": 4}, "--opt 4 is unknown; accepted: 1, 2, 3"),
        ({"force_group": ["block_0"]}, "'block_0' is not a group; accepted: MODULE:a..b"),
        ({"force_group": ["block_0:5..5"]}, "with a below b"),
        ({"force_group": ["block_0:5..6"], "layer_group": False}, "--force-group needs layer groups"),
    ],
)
def test_layer_group_options_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        resolve(max_positions=128, stored_dtype="bf16", **given)
    assert message in str(error.value)


def test_forced_groups_are_found_by_any_name_of_their_module() -> None:
    options = resolve(max_positions=128, stored_dtype="bf16", force_group=["block_1:5..9", "lm_head:1..2"])
    assert options.forced_groups(["block_0", "block_1"]) == [(5, 9)]
    assert options.forced_groups(["embedding"]) == []
    assert type(options).from_dict(options.to_dict()) == options
