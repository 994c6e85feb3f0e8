"""The door to MLIR: round trips, refusals, records."""

from __future__ import annotations

import pytest
from tiny import FAMILIES, write_tiny

from engine import mlir
from engine.compiler import compile_model, open_model
from engine.errors import UserError
from engine.passes import PASS_NAMES

HEAD = """module @m {
  func.func @main(%arg0: tensor<1x4x8xf32>) -> tensor<1x4x8xf32> {
    %0 = "top.None"() : () -> none loc("none")
    %1 = "top.Input"(%arg0) : (tensor<1x4x8xf32>) -> tensor<1x4x8xf32> loc("x")
"""
TAIL = """    return %2 : tensor<1x4x8xf32>
  }
}
"""


def refused(line: str) -> str:
    """The message with which a module with this op is refused."""
    with mlir.using(mlir.new_context()), pytest.raises(UserError) as error:
        mlir.parse(HEAD + "    " + line + "\n" + TAIL, "case.mlir")
    return str(error.value)


@pytest.mark.parametrize(
    ("line", "reasons"),
    [
        (
            '%2 = "top.Add"(%1) : (tensor<1x4x8xf32>) -> tensor<1x4x8xf32> loc("sum")',
            ["sum", "operand"],
        ),
        (
            '%2 = "top.RMSNorm"(%1, %1) {eps = 1.0e-5 : f64} : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) '
            '-> tensor<1x4x8xf32> loc("norm")',
            ["norm", "'top.RMSNorm'", "gamma has 32 elements, expected 8"],
        ),
        (
            '%2 = "top.SiLU"(%0) : (none) -> tensor<1x4x8xf32> loc("act")',
            ["act", "operand input is absent"],
        ),
        (
            '%2 = "top.Add"(%1, %1) {scale = 2 : i64} : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) '
            '-> tensor<1x4x8xf32> loc("sum")',
            ["attribute scale is unknown"],
        ),
        (
            '%2 = "top.RMSNorm"(%1, %1) {eps = "small"} : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) '
            '-> tensor<1x4x8xf32> loc("norm")',
            ["attribute eps is 'small', expected float"],
        ),
        (
            '%2 = "top.Nonsense"(%1) : (tensor<1x4x8xf32>) -> tensor<1x4x8xf32> loc("n")',
            ["top.Nonsense"],
        ),
        (
            '%2 = "tosa.add"(%1, %1) : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) -> tensor<1x4x8xf32> loc("n")',
            ["tosa", "accepted dialects"],
        ),
        ('%2 = "top.Add"(%1, %1 : (tensor<1x4x8xf32>)', ["case.mlir", "malformed"]),
    ],
)
def test_malformed_module_is_refused_with_op_location_and_reason(line: str, reasons: list[str]) -> None:
    message = refused(line)
    for reason in reasons:
        assert reason in message


@pytest.mark.parametrize("family", FAMILIES)
def test_print_parse_print_is_byte_identical_after_every_pass(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # GIVEN every stage's block of a tiny model
    model = open_model(write_tiny(tmp_path_factory.mktemp("m") / family, family))
    names = ["block_0", "block_kv_0", "block_cache_0", "lm_head"]
    compilation = compile_model(model, model.resolve(seq_length=64), only=names)
    assert not compilation.failures, compilation.failures
    context = mlir.new_context()
    for name in names:
        assert [s.pass_name for s in compilation.modules[name].snapshots] == list(PASS_NAMES)
        for snapshot in compilation.modules[name].snapshots:
            # WHEN its text is parsed and printed
            with mlir.using(context):
                module = mlir.parse(snapshot.text)
                again = mlir.print_module(module)
                records = mlir.records(module, again)
            # THEN text and records are the same
            assert again == snapshot.text
            assert records == snapshot.ops


def test_records_name_values_and_lines_as_the_text_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = open_model(write_tiny(tmp_path_factory.mktemp("m") / "qwen3", "qwen3"))
    compilation = compile_model(model, model.resolve(seq_length=64), only=["block_kv_0"])
    for snapshot in compilation.modules["block_kv_0"].snapshots:
        lines = snapshot.text.split("\n")
        for op in snapshot.ops:
            line = lines[op.line].strip()
            if op.results:
                assert line.startswith(f"{op.results[0].split('#')[0]}")
            if op.name != "func.return":
                assert f'"{op.name}"({", ".join(op.operands)})' in line


def test_a_location_tells_origins_and_the_passes_that_rewrote() -> None:
    with mlir.using(mlir.new_context()):
        mlp = mlir.named_location("mlp")
        lowered = mlir.derived_location("convert-top-to-tpu", mlp, detail="mlp.gate_proj")
        grouped = mlir.derived_location("layer-group", lowered)
        assert mlir.origins(mlp) == (("mlp",), ())
        assert mlir.origins(grouped) == (("mlp", "mlp.gate_proj"), ("convert-top-to-tpu", "layer-group"))
