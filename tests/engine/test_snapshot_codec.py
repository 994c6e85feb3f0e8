"""Snapshots as bytes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.snapshot import ModuleSnapshots, OpRecord, Snapshot, TensorType
from engine.snapshot_codec import pack_snapshots, program_of, unpack_snapshots
from engine.stages import TensorSpec
from engine.tpu.isa import INSTRUCTION

PROGRAM = np.zeros(2, INSTRUCTION)
ATTRIBUTES: dict[str, Any] = {
    "flag": False,
    "count": -7,
    "address": 2**40,
    "eps": 1e-6,
    "mode": "SILU",
    "shape": [1, [2, 3]],
    "ginfo": {"out_addr": 0, "h": [1.5]},
}


def module() -> ModuleSnapshots:
    """Two passes over an op with everything that a record may hold, and an op inside its region."""
    type_ = TensorType((1, 4, 8), "bf16", 4296257536)
    group = OpRecord(
        "tpu.Group",
        ("%arg0", "%0"),
        (type_, TensorType((), "none")),
        ("%1#0", "%1#1"),
        (type_, TensorType((2,), "f32")),
        ATTRIBUTES,
        ("model.layers.{i}.mlp", "input"),
        ("convert-top-to-tpu",),
        7,
    )
    inner = replace(group, name="tpu.Yield", results=(), result_types=(), attributes={}, parent=0, line=8)
    first = Snapshot("block_0", "import", "module {\n}\n", (group, inner), {"chip": "x"}, True, 0.25)
    last = replace(first, pass_name="codegen", changed=False, notes=("2 instructions",), report=PROGRAM)
    return ModuleSnapshots("block_0", (first, last), extra={"peak": 3})


def test_everything_comes_back() -> None:
    # GIVEN the snapshots of a module, WHEN they are packed and unpacked
    again = unpack_snapshots(pack_snapshots(module()), PROGRAM)
    # THEN they are the same, with the program as the report of codegen
    assert again == module()
    assert program_of(again) is PROGRAM


def test_attribute_types_are_kept() -> None:
    again = unpack_snapshots(pack_snapshots(module()), PROGRAM).snapshots[0].ops[0].attributes
    assert {name: type(value) for name, value in again.items()} == {
        name: type(value) for name, value in ATTRIBUTES.items()
    }


def test_a_typed_report_comes_back() -> None:
    # GIVEN a pass that reports a dataclass of the engine
    first, last = module().snapshots
    report = TensorSpec("input_ids", TensorType((1, 8), "si32"))
    reported = ModuleSnapshots("m", (replace(first, report=report), last))
    # WHEN its module is stored THEN the report comes back as that dataclass
    assert unpack_snapshots(pack_snapshots(reported), PROGRAM).snapshots[0].report == report


def test_a_report_of_another_class_is_refused() -> None:
    first, last = module().snapshots
    reported = ModuleSnapshots("m", (replace(first, report=Fraction(1, 2)), last))
    with pytest.raises(TypeError, match="must be a dataclass of the engine, found fractions:Fraction"):
        pack_snapshots(reported)


@given(st.binary(max_size=64))
def test_foreign_bytes_are_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="no snapshots"):
        unpack_snapshots(content, PROGRAM)
