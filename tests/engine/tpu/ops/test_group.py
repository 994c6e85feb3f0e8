"""tpu.Group and what stands in it: declarations, round trips, records with regions."""

from __future__ import annotations

import re

import pytest

from engine import mlir
from engine.errors import UserError

GINFO = (
    "{buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 64], c_slice = [64, 64], d_idx = [0], d_slice = [1], "
    "eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [8], id = ID : i64, n_idx = [0], n_slice = [1], "
    "out_addr = 0 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}"
)
X = "tensor<1x128x8xbf16>"
Y = "tensor<1x128x8xf32>"
SEGMENTS = ", ".join(["1"] * 2 + ["0"] * 14)


def ginfo(number: int) -> str:
    return GINFO.replace("ID", str(number))


def group(first: int, x: str, secs: str = "csecs = 2 : i64", flow: str = "[-1, 0, -2, 1, 2, 3]") -> str:
    """A group that casts `x` and adds it to itself; its values are named from %`first` on."""
    load, cast, sum_, kept = (f"%{first + i}" for i in range(4))
    return f"""
      {load} = "tpu.Load"({x}) {{ginfo = {ginfo(0)}, held = false, lmem_type = 1 : i64}} : ({X}) -> {X} loc("l")
      {cast} = "tpu.Cast"({load}) {{ginfo = {ginfo(1)}}} : ({X}) -> {Y} loc("c")
      {sum_} = "tpu.Store"({cast}) {{ginfo = {ginfo(2)}}} : ({Y}) -> {Y} loc("s")
      {kept} = "tpu.Store"({load}) {{ginfo = {ginfo(3)}}} : ({X}) -> {X} loc("t")
      "tpu.Yield"({sum_}, {kept}) {{operandSegmentSizes = array<i32: {SEGMENTS}>}} : ({Y}, {X}) -> () loc("y")
    }}) {{{secs}, dsecs = 1 : i64, flow = {flow}, group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64,
         operandSegmentSizes = array<i32: 1{", 0" * 15}>, resultSegmentSizes = array<i32: {SEGMENTS}>,
         swpipl_stage_num = 3 : i64, wsecs = 1 : i64}} : ({X}) -> ({Y}, {X}) loc("g")"""


def module(secs: str = "csecs = 2 : i64", flow: str = "[-1, 0, -2, 1, 2, 3]") -> str:
    """Two groups one behind the other; results of different types."""
    return f"""module @m {{
  func.func @main(%arg0: {X}) -> ({Y}, {X}) {{
    %0 = "top.Input"(%arg0) : ({X}) -> {X} loc("x")
    %1:2 = "tpu.Group"(%0) ({{{group(10, "%0", secs, flow)}
    %2:2 = "tpu.Group"(%1#1) ({{{group(20, "%1#1")}
    %3 = "tpu.Reshape"(%2#1) : ({X}) -> {X} loc("r")
    return %2#0, %3 : {Y}, {X}
  }}
}}
"""


def test_a_group_prints_parses_and_prints_the_same_bytes() -> None:
    with mlir.using(mlir.new_context()):
        # GIVEN a module with two groups
        text = mlir.print_module(mlir.parse(module()))
        # WHEN it is parsed and printed
        again = mlir.print_module(mlir.parse(text))
    # THEN the bytes are the same, and no two values share a name
    assert again == text
    made = re.findall(r"^\s*(%\d+)(?::\d+)? = ", text, re.M)
    assert made == ["%0", "%1", "%4", "%5", "%6", "%7", "%2", "%8", "%9", "%10", "%11", "%3"]


def test_records_know_their_group_and_hide_how_mlir_counts_segments() -> None:
    with mlir.using(mlir.new_context()):
        parsed = mlir.parse(module())
        text = mlir.print_module(parsed)
        records = mlir.records(parsed, text)
    lines = text.split("\n")
    groups = [index for index, record in enumerate(records) if record.name == "tpu.Group"]
    # THEN every op in a region names its group, with values named as in the text
    for at, group_index in enumerate(groups):
        inner = [record for record in records if record.parent == group_index]
        assert [record.kind for record in inner] == ["Load", "Cast", "Store", "Store", "Yield"], at
        assert inner[0].operands == records[group_index].operands
    for record in records:
        assert "operandSegmentSizes" not in record.attributes
        assert "resultSegmentSizes" not in record.attributes
        if record.results:
            assert lines[record.line].lstrip().startswith(record.results[0].split("#")[0])
        if record.name.startswith("tpu."):
            assert f'"{record.name}"({", ".join(record.operands)})' in lines[record.line]
    assert records[groups[0]].attributes["flow"] == [-1, 0, -2, 1, 2, 3]
    assert records[groups[0] + 1].attributes["ginfo"]["c_idx"] == [0, 64]


def test_an_op_built_with_values_of_different_types_verifies() -> None:
    with mlir.using(mlir.new_context()):
        parsed = mlir.parse(module())
        yields = [op for op in mlir.walk(parsed) if op.name == "tpu.Yield"]
        with mlir.before(yields[0]):
            mlir.build("tpu.Yield", list(yields[0].operands), [], location=yields[0].location)
        mlir.erase(yields[0])
        mlir.verify(parsed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("csecs = 2 : i64", "csecs = 0 : i64"), "csecs is 0, expected 1 or more"),
        (("[-1, 0, -2, 1, 2, 3]", "[-1, 0, -3, 1]"), "is not made of time steps"),
        (("[-1, 0, -2, 1, 2, 3]", "[-1, 0, -2, 0]"), "names an op twice"),
        (("c_slice = [64, 64]", "c_slice = [64]"), "c_slice [64], expected a start and a length"),
        (("out_addr = 0 : i64, ", ""), "ginfo lacks out_addr"),
        (("lmem_type = 1", "lmem_type = 7"), "lmem_type is 7, expected 0"),
        (("eu_align = true", "eu_align = 3 : i64"), "eu_align is 3"),
        (("stage = 1", "stage = -1"), "stage is -1"),
    ],
)
def test_malformed_groups_are_refused(change: tuple[str, str], reason: str) -> None:
    text = module()
    assert change[0] in text
    with mlir.using(mlir.new_context()), pytest.raises(UserError) as error:
        mlir.parse(text.replace(*change, 1))
    assert reason in str(error.value)
