"""Lines of the IR view, from plain data."""

from __future__ import annotations

from sample_program import Builder

from app.widgets.documents import (
    Comparison,
    RawDocument,
    SideBySideDocument,
    SnapshotDocument,
    UnifiedDocument,
    op_spans,
    readable_attributes,
    short_location,
    value_roles,
)
from app.widgets.lines import marked, plain
from engine.compiler import Compilation
from engine.snapshot import OpRecord, Snapshot, TensorType


def lowered(sample: Compilation, module: str = "block_cache_0") -> Snapshot:
    return sample.modules[module].after("address-assign")


class TestReadingForm:
    def test_a_line_names_results_op_operands_types_place_and_attributes(self, sample: Compilation) -> None:
        # GIVEN an addressed matmul
        document = SnapshotDocument(lowered(sample))
        index = document.find_op(["model.layers.{i}.self_attn.o_proj"], "tpu.A16MatMul")
        assert index is not None
        # THEN its line says everything but operand types and locations
        text = plain(document.line(index, 0))
        assert "= tpu.A16MatMul(" in text
        assert "→ 1×1×64 bf16 @neuron+0x" in text
        assert "{weight_bits 4, q_group_size 64}" in text
        assert "loc(" not in text
        # AND copying gives the MLIR
        assert '"tpu.A16MatMul"' in document.copy_text(index)

    def test_alias_lines_are_hidden_and_raw_text_is_complete(self, sample: Compilation) -> None:
        snapshot = lowered(sample)
        document = SnapshotDocument(snapshot)
        assert not any("#loc0" in plain(document.line(i, 0)) for i in range(document.count))
        raw = RawDocument(snapshot)
        assert [plain(raw.line(i, 0))[5:] for i in range(raw.count)] == snapshot.text.splitlines()

    def test_weights_are_named_with_what_makes_them(self, sample: Compilation) -> None:
        document = SnapshotDocument(lowered(sample))
        lines = [plain(document.line(i, 0)) for i in range(document.count)]
        assert any("top.Weight self_attn.q_proj.weight | transpose | quantize(w4" in line for line in lines)

    def test_the_place_of_origin_stands_at_the_right_edge_or_not_at_all(self, sample: Compilation) -> None:
        document = SnapshotDocument(lowered(sample))
        index = document.find_op(["model.layers.{i}.mlp_residual"])
        assert index is not None
        text = plain(document.line(index, 200))
        assert len(text) == 199
        assert text.endswith("mlp_residual")
        # a narrow panel shows the whole op, and the label begins behind its edge
        narrow = plain(document.line(index, 40))
        assert "mlp_residual" not in narrow[:40]

    def test_roles_follow_the_data(self, sample: Compilation) -> None:
        snapshot = lowered(sample)
        roles = value_roles(snapshot)
        by_location = {op.location: op for op in snapshot.ops if op.results}
        assert roles[by_location["history_k"].results[0]] == "kv"
        assert roles[by_location["model.layers.{i}.self_attn.keys"].results[0]] == "kv"
        assert roles[by_location["model.layers.{i}.mlp_residual"].results[0]] == "activations"
        weight = next(op for op in snapshot.ops if op.name == "top.Weight")
        assert roles[weight.results[0]] == "weights"
        # what is written into the cache is KV already where it is computed
        returned = snapshot.ops[-1].operands[1]
        assert roles[returned] == "kv"

    def test_absent_operands_are_dots_or_nothing(self) -> None:
        none = TensorType((), "none")
        some = TensorType((2,), "f32")
        op = OpRecord(
            "top.MLP", ("%1", "%0", "%2", "%0"), (some, none, some, none), ("%3",), (some,), {}, ("x",)
        )
        assert plain(op_spans(op, {}, None)) == "%3 = top.MLP(%1, ·, %2) → 2 f32"

    def test_local_memory_is_taken_apart(self) -> None:
        ginfo = {
            "out_addr": 16384,
            "out_size": 1152,
            "buffer_addr": 81920,
            "buffer_size": 2304,
            "stage": 1,
            "c_slice": [256, 256],
            "h_slice": [9],
        }
        op = OpRecord("tpu.Rope", (), (), ("%1",), (TensorType((2,), "bf16"),), {"ginfo": ginfo}, ("x",))
        assert dict(readable_attributes(op)) == {
            "lmem": "0x4000+1152",
            "buffer": "0x14000+2304",
            "stage": "1",
            "c": "256|256",
        }

    def test_short_locations(self) -> None:
        assert short_location("model.layers.{i}.mlp.act") == "mlp.act"
        assert short_location("model.norm") == "norm"
        assert short_location("lm_head") == "lm_head"


class TestDiffs:
    def test_both_views_show_the_same_ops(self, sample: Compilation) -> None:
        module = sample.modules["block_cache_0"]
        pair = Comparison(module.after("import"), module.after("convert-top-to-tpu"))
        unified, side = UnifiedDocument(pair, 31), SideBySideDocument(pair, 31)
        gone = [line for line in unified.lines if line.kind == "removed"]
        came = [line for line in unified.lines if line.kind == "added"]
        assert {line.before_line for line in gone} == {
            line.before_line for line in side.lines if line.kind in ("changed", "removed")
        }
        assert {line.after_line for line in came} == {
            line.after_line for line in side.lines if line.kind in ("changed", "added")
        }
        # every line of a kind lies on its ground
        assert unified.ground(unified.lines.index(gone[0])) == "removed-wash"
        assert unified.ground(unified.lines.index(came[0])) == "added-wash"

    def test_side_by_side_fits_the_panel(self, sample: Compilation) -> None:
        module = sample.modules["block_cache_0"]
        side = SideBySideDocument(Comparison(module.after("import"), module.after("convert-top-to-tpu")), 3)
        assert all(len(plain(side.line(i, 100))) <= 100 for i in range(side.count))


class TestSize:
    def test_a_hundred_thousand_lines_are_opened_and_searched(self) -> None:
        # GIVEN an IR of 100,000 ops
        builder = Builder("bf16")
        one = builder.add("top.Input", ["x"], [], (1, 64))
        op = builder.ops[0]
        types = op.result_types
        ops = [
            op,
            *(
                OpRecord("tpu.Add", (one,), types, (f"%{n}",), types, {}, (f"l.{n}",), (), n)
                for n in range(1, 100_000)
            ),
        ]
        text = "\n".join(
            f'    %{i} = "tpu.Add"(%0) : () -> tensor<1x64xbf16> loc(#loc{i})' for i in range(100_000)
        )
        # WHEN it is opened and 50 lines in its middle are made
        document = SnapshotDocument(Snapshot("m", "p", text, tuple(ops), {}, True, 0.0))
        lines = [plain(document.line(i, 120)) for i in range(60_000, 60_050)]
        # THEN they are those lines
        assert "%60000 = tpu.Add(%0)" in lines[0]
        assert "l.70000" in document.search_text(70_000)


def test_matches_are_marked_across_spans() -> None:
    line = [("tpu.", "muted"), ("MatMul", "heading"), ("(x)", "")]
    found = list(marked(line, "u.matm"))
    assert plain(found) == plain(line)
    assert [text for text, roles in found if "match" in roles] == ["u.", "MatM"]


def test_the_ops_of_a_layer_group_stand_in_a_frame_with_its_number() -> None:
    # GIVEN a module with one group of two ops
    tensor = TensorType((1, 4), "bf16")

    def op(name: str, line: int, parent: int | None = None) -> OpRecord:
        return OpRecord(name, (), (), (f"%{line}",), (tensor,), {}, ("a",), (), line, parent)

    text = "\n".join(
        (
            '    %0 = "tpu.Add"() : () -> tensor<1x4xbf16>',
            '    %1 = "tpu.Group"() ({',
            '      %2 = "tpu.Add"() : () -> tensor<1x4xbf16>',
            "    }) : () -> tensor<1x4xbf16>",
            '    %4 = "tpu.Add"() : () -> tensor<1x4xbf16>',
        )
    )
    ops = (op("tpu.Add", 0), op("tpu.Group", 1), op("tpu.Add", 2, 1), op("tpu.Add", 4))
    document = SnapshotDocument(Snapshot("m", "layer-group", text, ops, {}, True, 0.0))
    # THEN its lines are framed and the others are not
    lines = [plain(document.line(index, 60)) for index in range(document.count)]
    assert [next((c for c in line if c in "╭│╰"), "") for line in lines] == ["", "╭", "│", "╰", ""]
    assert lines[1].endswith("group 0")
