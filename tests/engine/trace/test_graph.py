"""Graphs: what they say, in dot source, and that every format is drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import tiny_compilation

from engine.compiler import Compilation
from engine.errors import CompileError, UserError
from engine.snapshot import OpRecord, Snapshot, TensorType
from engine.trace import dot
from engine.trace.graph import graph_svg, graph_text, write_graph
from engine.trace.module_graph import module_graph


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return tiny_compilation()


def nodes(source: str) -> dict[str, str]:
    """Node name -> the words of its label."""
    found = re.findall(r"^\s*(\w+) \[label=<(.*?)>(?: \w+=|\])", source, re.MULTILINE | re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]*>", " ", label).split()) for name, label in found}


def edges(source: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^\s*([\w:]+) -> ([\w:]+)", source, re.MULTILINE))


# -- a module ----------------------------------------------------------------------------------------------------------


def test_ops_inputs_outputs_and_weights_of_a_module_are_there(compilation: Compilation) -> None:
    # GIVEN a block with fused MLP at Top level
    source = graph_text(compilation, "module", module="block_0", pass_name="top-canonicalize")
    found = nodes(source)
    # THEN its op names its weights with shapes, inputs and outputs carry shapes and dtypes
    mlp = next(text for text in found.values() if text.startswith("MLP "))
    assert re.search(r"gate_proj.weight \d+x\d+ f32 up_proj.weight \d+x\d+ f32 down_proj.weight", mlp)
    assert "input_states 1x16x64 f32" in found.values()
    assert any(text.startswith("k_cache 1x16x") for text in found.values())
    # AND no weight or absent operand is a node of its own
    snapshot = compilation.snapshots("block_0").after("top-canonicalize")
    inputs = sum(op.name == "top.Input" for op in snapshot.ops)
    assert len(found) == snapshot.op_count + inputs + 3


def test_edges_follow_the_values(compilation: Compilation) -> None:
    snapshot = compilation.snapshots("lm_head").snapshots[-1]
    source = graph_text(compilation, "module", module="lm_head")
    made = {value: index for index, op in enumerate(snapshot.ops) for value in op.results}
    hidden = {"top.Weight", "top.None"}
    wanted = {
        (f"op{made[value]}", f"op{index}")
        for index, op in enumerate(snapshot.ops[:-1])
        for value in op.operands
        if value in made and snapshot.ops[made[value]].name not in hidden
    }
    assert wanted | {(f"op{made[snapshot.ops[-1].operands[0]]}", "out0")} == edges(source)


def test_a_quantised_linear_shows_its_parts(compilation: Compilation) -> None:
    found = nodes(graph_text(compilation, "module", module="block_cache_0", pass_name="convert-top-to-tpu"))
    q = next(text for text in found.values() if "self_attn.q_proj bits 4" in text)
    assert re.search(r"weight \d+x\d+ ui8 scale .*zero_point", q)


def test_a_layer_has_its_own_name_and_tensors(compilation: Compilation) -> None:
    shared = graph_text(compilation, "module", module="block_0")
    own = graph_text(compilation, "module", module="block_1")
    assert "block_0 x2 after codegen" in shared
    assert "block_1 after codegen" in own
    assert "model.layers.1.self_attn.q_proj" in own
    assert "{i}" in shared
    assert "{i}" not in own


def test_the_default_is_the_decode_block_at_its_end(compilation: Compilation) -> None:
    assert graph_text(compilation, "module") == graph_text(
        compilation, "module", module="block_cache_0", pass_name="codegen"
    )


def grouped() -> Snapshot:
    """A module with one layer group of an Add between Load and Store."""
    t = TensorType((1, 4), "bf16")

    def op(name: str, operands: tuple[str, ...], results: tuple[str, ...], **more: object) -> OpRecord:
        parent = more.pop("parent", None)
        return OpRecord(
            name,
            operands,
            (t,) * len(operands),
            results,
            (t,) * len(results),
            more,
            (name.partition(".")[2].lower(),),
            parent=parent,  # type: ignore[arg-type]
        )

    ops = (
        op("top.Input", ("%arg0",), ("%1",)),
        op("tpu.Load", ("%1",), ("%2",), parent=5),
        op("tpu.Add", ("%2", "%2"), ("%3",), parent=5, ginfo={"out_addr": 16384, "out_size": 1536}),
        op("tpu.Store", ("%3",), ("%4",), parent=5),
        op("tpu.Yield", ("%4",), (), parent=5),
        op("tpu.Group", ("%1",), ("%5",), nsecs=1, csecs=2),
        op("tpu.Active", ("%5",), ("%6",)),
        op("func.return", ("%6",), ()),
    )
    return Snapshot("m", "layer-group", "", ops, {}, True, 0.0)


def test_a_group_is_a_frame_and_its_result_comes_from_inside() -> None:
    source = module_graph(grouped(), title="m", subtitle="", outputs=["y"]).source
    frame = source[source.index("subgraph cluster_group5") :]
    frame = frame[: frame.index("\n\t}")]
    assert "group 0 · csecs 2" in frame
    assert nodes(frame)["op2"] == "Add add LMEM 16 KiB · 1.5 KiB"
    assert [name in frame for name in ("op1", "op2", "op3", "op6")] == [True, True, True, False]
    assert edges(source) == {("op0", "op1"), ("op1", "op2"), ("op2", "op3"), ("op3", "op6"), ("op6", "out0")}


# -- the program -------------------------------------------------------------------------------------------------------


def test_pipeline_names_every_module_and_pass(compilation: Compilation) -> None:
    source = graph_text(compilation, "pipeline")
    found = nodes(source)
    assert {spec.name for spec in compilation.specs} <= set(found)
    for snapshot in compilation.snapshots("block_0").snapshots:
        assert snapshot.pass_name in found["passes"]
    assert {("passes", "merge"), ("merge", "file")} <= edges(source)
    assert "subgraph cluster_prefill_kv" in source


def test_runtime_has_the_variants_and_the_loop(compilation: Compilation) -> None:
    source = graph_text(compilation, "runtime")
    found = nodes(source)
    assert "reads 16 rows, appends 1" in found["decode_16"]
    assert "block_cache_0_2 ×2 block_cache_2_2 with the final norm" in found["decode_16"]
    assert {("state", "lm_head"), ("end", "embedding_cache"), ("more", "block_kv")} <= edges(source)


def test_runtime_without_history_has_neither_segments_nor_a_choice(compilation: Compilation) -> None:
    options = replace(compilation.options, history=False, decode_chunks=())
    specs = tuple(s for s in compilation.specs if s.stage != "prefill_kv" and not s.variant)
    plain = Compilation(compilation.config, options, specs)
    source = graph_text(plain, "runtime")
    assert not {"more", "filled", "embedding_kv"} & set(nodes(source))
    assert ("embedding_cache", "decode_64") in edges(source)


def test_runtime_with_sampling_has_its_heads(compilation: Compilation) -> None:
    sampled = Compilation(compilation.config, replace(compilation.options, sample=True), compilation.specs)
    source = graph_text(sampled, "runtime")
    assert {("lm_head", "pick"), ("pick", "token")} <= edges(source)


def test_kv_shows_addresses_and_append_rows(compilation: Compilation) -> None:
    source = graph_text(compilation, "kv")
    found = nodes(source)
    k, v = compilation.merged.kv_addresses("block_cache_0", 1)
    assert f"1 0x{k:_x} 0x{v:_x} ok" in found["layers"]
    assert "writes 1 row at 32" in found["block_cache_0_1"]
    assert ("region:row32:e", "block_cache_0_1:w") in edges(source)
    assert "rows 64 to 79" in source


# -- files and errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["module", "pipeline", "runtime", "kv"])
def test_every_format_is_drawn(compilation: Compilation, what: str, tmp_path: Path) -> None:
    for suffix in (".dot", ".svg", ".png"):
        write_graph(compilation, what, tmp_path / f"g{suffix}")
    assert (tmp_path / "g.dot").read_text() == graph_text(compilation, what)
    root = ET.fromstring((tmp_path / "g.svg").read_text())
    assert root.tag.endswith("svg")
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.dot", "g.png", "g.svg"]


def test_svg_text_says_what_the_nodes_say(compilation: Compilation) -> None:
    words = "".join(ET.fromstring(graph_svg(compilation, "runtime")).itertext())
    assert "block_cache_i_1" in words
    assert "generation loop" in words


def test_unknown_things_are_named_with_what_there_is(compilation: Compilation, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in '.pdf'; accepted: .dot, .svg, .png"):
        write_graph(compilation, "kv", tmp_path / "g.pdf")
    with pytest.raises(UserError, match="no graph of 'nope'; accepted: module, pipeline"):
        write_graph(compilation, "nope", tmp_path / "g.svg")
    with pytest.raises(UserError, match="unknown module 'block_9'"):
        write_graph(compilation, "module", tmp_path / "g.svg", module="block_9")
    with pytest.raises(UserError, match="has no pass 'nope'"):
        write_graph(compilation, "module", tmp_path / "g.svg", module="block_0", pass_name="nope")
    with pytest.raises(UserError, match="there is no folder"):
        write_graph(compilation, "runtime", tmp_path / "missing" / "g.dot")
    assert list(tmp_path.iterdir()) == []


def test_without_a_renderer_only_dot_source_is_written(
    compilation: Compilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dot.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="no Graphviz renderer: install graphviz"):
        write_graph(compilation, "runtime", tmp_path / "g.svg")
    write_graph(compilation, "runtime", tmp_path / "g.dot")
    assert (tmp_path / "g.dot").exists()


def test_a_renderer_without_png_draws_through_svg(monkeypatch: pytest.MonkeyPatch) -> None:
    run = dot._run
    monkeypatch.setattr(
        dot, "_run", lambda source, kind, *o: run(source, kind, *o) if kind == "svg" else None
    )
    assert dot.render("digraph { a -> b }", ".png").startswith(b"\x89PNG")


def test_a_graph_that_is_refused_says_so() -> None:
    with pytest.raises(UserError, match=r"could not draw the graph; write .dot instead"):
        dot.render("digraph { a -> ", ".svg")


def test_what_was_not_compiled_is_a_compile_failure(compilation: Compilation) -> None:
    empty = Compilation(compilation.config, compilation.options, compilation.specs)
    with pytest.raises(CompileError, match="was not compiled"):
        graph_text(empty, "module", module="block_0")
    with pytest.raises(CompileError):
        graph_text(empty, "kv")
