"""Every command: its data, its JSON against a schema, its exit code, and mistakes answered with a message."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from commands import Run, checked, runner
from rich.cells import cell_len
from rich.console import Console
from tiny import write_tiny

import app
from app import cli, console, render, streams
from app.session import Session
from app.settings import Settings
from engine.compiler import Compilation
from engine.errors import CompileError
from engine.worker import ModuleFailed

OPTIONS = ("--seq-length", "64", "--decode-chunks", "32", "--quantize", "w4bf16")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("cli") / "tiny", "llama", layers=3)


@pytest.fixture(scope="session")
def compiled(checkpoint: Path) -> Path:
    """A compiled file of the checkpoint: commands on it need no compilation."""
    path = checkpoint.parent / "tiny.tpuscope"
    if cli.run(["compile", str(checkpoint), "-o", str(path), *OPTIONS]):
        pytest.fail("the checkpoint does not compile")
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line; (exit code, stdout, stderr)."""
    return runner(capsys)


# -- JSON ----------------------------------------------------------------------------------------------------------


def test_modules(run: Run, compiled: Path) -> None:
    code, out, _ = run("modules", compiled, "--json")
    rows = checked("modules", out)
    assert code == 0
    assert [row["name"] for row in rows if row["stage"] == "prefill_kv"] == ["block_kv_0", "block_kv_2"]
    assert next(row for row in rows if row["name"] == "block_cache_0_1")["layers"] == [0, 1]


def test_passes(run: Run, compiled: Path) -> None:
    code, out, _ = run("passes", compiled, "--module", "block_1", "--json")
    rows = checked("passes", out)
    assert code == 0
    assert rows[0]["pass"] == "import"
    assert rows[-1]["pass"] == "codegen"


def test_ir(run: Run, compiled: Path) -> None:
    code, out, _ = run("ir", compiled, "-m", "block_1", "--after", "address-assign", "--json")
    assert code == 0
    value = checked("ir", out)
    _, text, _ = run("ir", compiled, "-m", "block_1", "--after", "address-assign")
    assert value["ir"] == text
    assert not value["provisional"]
    assert "model.layers.1." in text
    assert "{i}" not in text


@pytest.mark.parametrize("module", ["block_0", "block_1", "block_2", "block_cache_2", "embedding", "lm_head"])
def test_ir_and_memory_agree_on_where_weights_lie(run: Run, compiled: Path, module: str) -> None:
    # GIVEN a compiled file: merge has placed every module
    _, text, err = run("ir", compiled, "-m", module, "--after", "codegen")
    _, out, _ = run("memory", compiled, "-m", module, "--json")
    first = min(row["address"] for row in checked("memory", out)["ddr"] if row["arena"] == "coeff")
    # THEN the arena of weights begins where the first of them lies, and nothing is provisional
    assert f"module.coeff_addr = {first} " in text
    assert "provisional" not in err


def test_ir_and_diff_of_a_module_compiled_alone_say_that_addresses_are_provisional(
    run: Run, checkpoint: Path
) -> None:
    for command in (("ir",), ("diff", "--from", "core-parallel", "--to", "address-assign")):
        _, _, err = run(*command, checkpoint, "-m", "block_2", *OPTIONS)
        assert " ".join(err.split()).count("addresses are provisional: block_2 was compiled alone") == 1
    # BUT not where there are no addresses
    _, text, err = run("ir", checkpoint, "-m", "block_2", "--after", "import", *OPTIONS)
    assert "provisional" not in err
    assert "model.layers.2." in text


def test_diff_shows_what_matmuls_and_the_mlp_became(run: Run, compiled: Path) -> None:
    code, out, _ = run(
        *("diff", compiled, "--module", "block_0", "--json"),
        *("--from", "top-canonicalize", "--to", "convert-top-to-tpu"),
    )
    value = checked("diff", out)
    assert code == cli.FOUND
    hunks = {hunk["key"]: hunk for hunk in value["hunks"]}
    projections = [hunk for key, hunk in hunks.items() if key.endswith("_proj")]
    assert len(projections) == 4
    for hunk in projections:
        assert [op["op"] for op in hunk["before"]] == ["top.MatMul"]
        assert [op["op"] for op in hunk["after"]] == ["tpu.A16MatMul"]
    mlp = hunks["model.layers.{i}.mlp"]
    assert [op["op"] for op in mlp["before"]] == ["top.MLP"]
    assert [op["op"] for op in mlp["after"]].count("tpu.A16MatMul") == 3
    assert value["added"] - value["removed"] == sum(
        len(hunk["after"]) - len(hunk["before"]) for hunk in value["hunks"]
    )


def test_diff_without_a_difference_exits_with_0(run: Run, compiled: Path) -> None:
    code, out, _ = run("diff", compiled, "-m", "lm_head", "--from", "codegen", "--to", "codegen", "--json")
    assert (code, checked("diff", out)["hunks"]) == (0, [])


@pytest.mark.parametrize("module", ["block_cache_0", "block_cache_0_1", "block_kv_0", "block_2"])
def test_memory_has_new_rows_behind_the_history_in_every_layer(run: Run, compiled: Path, module: str) -> None:
    code, out, _ = run("memory", compiled, "--module", module, "--json")
    rows = checked("memory", out)["kv_cache"]
    assert code == 0
    assert [row["layer"] for row in rows] == ([2] if module == "block_2" else [0, 1])
    for row in rows:
        step = row["rows"] * row["row_bytes"]
        assert row["k_append_address"] == row["k_address"] + step
        assert row["v_append_address"] == row["v_address"] + step


def test_memory_of_a_module_without_kv(run: Run, compiled: Path) -> None:
    code, out, _ = run("memory", compiled, "-m", "lm_head", "--json")
    assert (code, checked("memory", out)["kv_cache"]) == (0, [])


def test_simulate(run: Run, compiled: Path) -> None:
    code, out, _ = run("simulate", compiled, "--prompt-length", "40", "--generate", "10", "--json")
    value = checked("simulate", out)
    assert code == 0
    assert (value["prefill"]["tokens"], value["prefill_kv"]["tokens"]) == (16, 24)
    decode = value["decode"]
    assert sum(decode["breakdown"].values()) == pytest.approx(decode["ddr_bytes_per_token"])
    for module in value["modules"]:
        assert sum(op["cycles"] for op in module["ops"]) == module["cycles"]


def test_locations_join_across_commands(run: Run, compiled: Path) -> None:
    _, out, _ = run("simulate", compiled, "--json")
    modules = {row["name"]: row for row in checked("simulate", out)["modules"]}
    for name, layer in (("block_2", "2"), ("block_kv_2", "2"), ("block_0", "{i}"), ("lm_head", "{i}")):
        # GIVEN the ops of a module, with {i} for the layer where it serves several of them
        found = [(op["name"], op["location"]) for op in modules[name]["ops"]]
        assert any(f"model.layers.{layer}." in location for _, location in found) or name == "lm_head"
        read_as = [(op, location.replace("{i}", "0")) for op, location in found]
        # THEN they are the ops of its timeline
        _, out, _ = run("simulate", compiled, "--timeline", "-m", name, "--json")
        assert {(op["op"], op["location"]) for op in checked("timeline", out)["ops"]} <= set(read_as)
        # AND what it computes outside of local memory is called by them
        _, out, _ = run("memory", compiled, "-m", name, "--json")
        rows = [row for row in checked("memory", out)["ddr"] if row["arena"] == "neuron"]
        computed = {
            (row["op"], row["tensor"]) for row in rows if row["op"] not in ("tpu.Group", "tpu.Reshape")
        }
        assert computed <= set(read_as)


@pytest.mark.parametrize("module", ["block_0", "block_kv_1", "block_cache_2", "lm_head"])
def test_a_tensor_of_memory_is_found_in_the_ir_by_its_value(run: Run, compiled: Path, module: str) -> None:
    _, out, _ = run("memory", compiled, "-m", module, "--json")
    rows = checked("memory", out)["ddr"]
    _, text, _ = run("ir", compiled, "-m", module, "--after", "address-assign")
    # THEN values are unique, and a line of the IR makes each with that op at that address
    assert len({row["value"] for row in rows}) == len(rows)
    lines = {line.split(" = ")[0].strip(): line for line in text.splitlines() if re.match(r" +%\d+ = ", line)}
    for row in (row for row in rows if row["op"] != "tpu.Group"):
        assert f'"{row["op"]}"' in lines[row["value"]]
        assert re.search(rf"-> .*tensor<[^>]*, {row['address']} : i64>", lines[row["value"]])


def test_costly_ops_are_summed_over_all_layers(run: Run, compiled: Path) -> None:
    # GIVEN three layers in two modules
    _, text, _ = run("simulate", compiled, "--ops", "50")
    found = [line for line in text.splitlines() if "self_attn.q_proj " in line]
    # THEN an op stands once in each stage, with as many uses
    assert len(found) == 3
    assert all(re.search(r"q_proj +3 ", line) for line in found)


def test_simulate_a_timeline(run: Run, compiled: Path) -> None:
    code, out, _ = run("simulate", compiled, "--timeline", "--module", "block_cache_1", "--json")
    value = checked("timeline", out)
    assert code == 0
    assert value["module"] == "block_cache_1"
    _, whole, _ = run("simulate", compiled, "--json")
    module = next(row for row in json.loads(whole)["modules"] if row["name"] == "block_cache_0")
    assert value["cycles"] == module["cycles"] == value["ops"][-1]["end"]
    assert {row["engine"]: row["busy_cycles"] for row in value["engines"]} == {
        "TIU": module["tiu_busy_cycles"],
        "GDMA": module["gdma_busy_cycles"],
    }
    rows = value["instructions"]
    loaded = sum(row["bytes"] for row in rows if row["direction"] in ("load", "ddr_to_ddr"))
    assert loaded == module["ddr_read_bytes"]
    ends = {(row["engine"], row["id"]): row["end"] for row in rows}
    held = [row for row in rows if row["idle_cycles"]]
    assert held
    for row in held:
        waits = row["waits_for"]
        assert ends[waits["engine"], waits["id"]] == row["start"]


def test_a_timeline_of_a_shorter_history(run: Run, compiled: Path) -> None:
    common = ("simulate", compiled, "--timeline", "-m", "block_kv_0", "--json")
    whole, part = (checked("timeline", run(*common, *more)[1]) for more in ((), ("--history-length", "0")))
    assert part["cycles"] < whole["cycles"]


def test_a_timeline_for_people(run: Run, compiled: Path) -> None:
    code, out, _ = run("simulate", compiled, "--timeline", "-m", "block_1")
    assert code == 0
    lines = out.splitlines()
    assert re.match(r"block_1 · bm1684x · [\d,]+ cycles = ", lines[0])
    head = next(i for i, line in enumerate(lines) if "waits for" in line and "tensor" in line)
    instructions = json.loads(run("simulate", compiled, "--timeline", "-m", "block_1", "--json")[1])[
        "instructions"
    ]
    assert len(lines) - head - 1 == len(instructions)
    assert "model.layers.1.self_attn.q_proj.weight" in out
    # columns are aligned: ends of numbers stand under each other
    at = lines[head].index("cycles") + len("cycles")
    assert all(line[at - 1].isdigit() for line in lines[head + 1 :])


def test_run(run: Run, compiled: Path) -> None:
    code, out, _ = run("run", compiled, "--prompt-ids", "5,6,7", "--max-new-tokens", "4", "--json")
    value = checked("run", out)
    assert code == 0
    assert value["prompt_ids"] == [5, 6, 7]
    assert [token["position"] for token in value["tokens"]] == list(range(3, 3 + len(value["tokens"])))
    # the same tokens, as text, without the JSON
    _, text, messages = run("run", compiled, "--prompt-ids", "5,6,7", "--max-new-tokens", "4")
    assert text == value["text"] + "\n"
    assert "3 prompt tokens in 1 segment" in messages


def test_run_and_simulate_agree_on_how_many_tokens_fit(run: Run, compiled: Path) -> None:
    # GIVEN a prompt behind which 5 new tokens fit WHEN more are asked for THEN `run` gives as many as `simulate` takes
    ids = ",".join(map(str, range(3, 63)))
    _, out, _ = run("run", compiled, "--prompt-ids", ids, "-n", "20", "--json")
    count = len(json.loads(out)["tokens"])
    assert count == 5
    assert run("simulate", compiled, "--prompt-length", "60", "--generate", str(count))[0] == 0
    assert run("simulate", compiled, "--prompt-length", "60", "--generate", str(count + 1))[0] == cli.MISTAKE


def test_compile_reports_the_file(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tpuscope"
    code, out, _ = run(
        "compile", checkpoint, "-o", path, "--json", "--seq-length", "32", "--decode-chunks", "none"
    )
    value = checked("compile", out)
    assert code == 0
    assert value["file"]["bytes"] == path.stat().st_size
    assert value["modules"] == 9


def test_chips(run: Run) -> None:
    code, out, _ = run("chips", "--json")
    rows = checked("chips", out)
    assert code == 0
    assert "bm1684x" in {row["name"] for row in rows}
    for row in rows:
        given = {"lanes", "eu_bytes", "lmem_bytes", "clock_hz", "ddr_bandwidth"}
        assert given <= set(row["sources"]), row["name"]


def test_config_path(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, out, _ = run("config", "path", "--json")
    assert code == 0
    assert Path(checked("config_path", out)["settings"]).name == "settings.json"


# -- for people ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("modules",), ["block_cache_0_1", "×2", "layer 2", "history_k 1×32×2×16 bf16"]),
        (("passes", "-m", "block_0"), ["convert-top-to-tpu", "→", "instructions"]),
        (
            ("memory", "-m", "block_cache_1"),
            ["coeff", "neuron", "model.layers.1.self_attn.q_proj.weight.scale", "✓"],
        ),
        (("simulate",), ["tokens/s", "A16MatMul", "of DDR bandwidth", "lm_head"]),
    ],
)
def test_tables_for_people(run: Run, compiled: Path, arguments: tuple[str, ...], expected: list[str]) -> None:
    code, out, _ = run(arguments[0], compiled, *arguments[1:])
    assert code == 0
    for text in expected:
        assert text in out


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is a terminal of 80 columns."""
    monkeypatch.setattr(
        console, "output", lambda: Console(file=sys.stdout, width=80, force_terminal=True, color_system=None)
    )


@pytest.mark.parametrize(
    ("arguments", "whole", "left_out"),
    [
        (("modules",), ["block_cache_0_1", "embedding_cache", "prefill_kv", "weights"], "of which"),
        (
            ("simulate", "--ops", "30"),
            ["block_cache_0_1", "embedding_cache", "GDMA busy", "self_attn.attention", "A16MatMul", "memory"],
            "TIU busy",
        ),
        (("memory",), ["0x1_0000_0000", "coeff"], "modules"),
        (("memory", "-m", "block_cache_0"), ["model.layers.0.self_attn.q_proj.weight.scale"], "bytes/row"),
        (("check",), ["addresses", "problems"], None),
    ],
)
@pytest.mark.usefixtures("narrow")
def test_tables_fit_80_columns_without_cutting_names(
    run: Run, compiled: Path, arguments: tuple[str, ...], whole: list[str], left_out: str | None
) -> None:
    # WHEN tables are printed on a narrow terminal
    code, out, _ = run(arguments[0], compiled, *arguments[1:])
    assert code == 0
    # THEN no line is longer, no cell is cut, and what has no room is left out with its heading
    assert max(map(cell_len, out.splitlines())) <= 80
    assert "…" not in out
    for text in whole:
        assert text in out
    assert left_out is None or left_out not in out
    # and each module and op still is one line: none begins without its first cell
    if arguments[0] == "simulate":
        tables = [part.splitlines()[1:] for part in re.split(r"\n(?=─)", out)[1:]]
        rows = [line for lines in tables for line in itertools.takewhile(str.strip, lines)]
        assert all(line[0] != " " for line in rows)


def test_a_pipe_gets_all_columns(run: Run, compiled: Path) -> None:
    assert "of which" in run("modules", compiled)[1]
    assert "TIU busy" in run("simulate", compiled)[1]


def test_what_is_not_decoded_is_said(run: Run, compiled: Path) -> None:
    # GIVEN a prompt that leaves room for the prefill's token only
    _, out, _ = run("simulate", compiled, "--prompt-length", "64", "--generate", "1")
    # THEN the speed is said to be another token's
    assert "of a token behind 63 rows; none is decoded, the prefill gives the only one" in out
    found = checked("simulate", run("simulate", compiled, "--prompt-length", "64", "--json")[1])
    assert (found["decode"]["tokens"], found["decode"]["history"]) == (0, 63)
    assert "none is decoded" not in run("simulate", compiled, "--prompt-length", "63")[1]


def test_the_bound_of_an_op_is_that_of_its_stage() -> None:
    # GIVEN an op that computes in prefill, inside a group, and moves data in decode
    def module(name: str, stage: str, moved: int, bound: str) -> dict[str, Any]:
        op = {"name": "tpu.Active", "location": "model.layers.{i}.mlp.act", "cycles": 100, "bound": bound}
        op |= {"ddr_read_bytes": moved, "ddr_write_bytes": moved, "group": None if moved else 0}
        return {"name": name, "stage": stage, "layers": [0], "ops": [op]}

    modules = [module("block_0", "prefill", 0, "compute"), module("block_cache_0", "decode", 64, "memory")]
    # WHEN the costliest ops are listed THEN no op that moves nothing is said to wait for memory
    listed = [Console(width=200).render_lines(view) for view in render._costliest_ops(modules, 1)]
    prefill, decode = ("".join(s.text for line in lines for s in line) for lines in listed)
    assert "compute" in prefill
    assert "memory" not in prefill
    assert "memory" in decode


def test_diffs_for_people(run: Run, compiled: Path) -> None:
    common = ("diff", compiled, "-m", "block_0", "--from", "convert-top-to-tpu", "--context", "0")
    code, out, _ = run(*common)
    assert code == cli.FOUND
    assert "→ tpu-canonicalize" in out
    marks = {line[0] for line in out.splitlines()[1:] if line}
    assert marks <= {"+", "−", " "}
    assert any(re.match(r"− .*tpu\.Cast", line) for line in out.splitlines())
    assert "equal ops" in out
    code, out, _ = run(*common, "--side-by-side")
    assert code == cli.FOUND
    assert "before" in out


def test_chips_for_people(run: Run) -> None:
    code, out, _ = run("chips")
    assert code == 0
    assert "64 GB/s" in out
    assert "256 KiB" in out


def test_help_names_every_command(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name in (
        "compile",
        "modules",
        "passes",
        "ir",
        "diff",
        "memory",
        "explain",
        "check",
        "simulate",
        "run",
        "export",
        "chips",
        "config",
    ):
        assert f" {name} " in out


# -- explorer and exports ----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Session]:
    """Sessions that an explorer on a terminal was opened with."""
    sessions: list[Session] = []
    explorer = types.ModuleType("app.explorer")
    explorer.run = sessions.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "app.explorer", explorer)
    monkeypatch.setattr(app, "explorer", explorer, raising=False)
    monkeypatch.setattr(cli, "_is_terminal", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return sessions


def test_a_model_alone_opens_the_explorer_and_is_remembered(
    run: Run, checkpoint: Path, opened: list[Session]
) -> None:
    assert run(checkpoint, "--seq-length", "48")[0] == 0
    assert run("--seq-length", "48", checkpoint)[0] == 0
    assert [session.options.seq_length for session in opened] == [48, 48]
    (recent,) = Settings.load().recent
    assert (recent.path, recent.options) == (str(checkpoint), {"seq_length": 48})


def test_without_a_model_the_demo_is_opened(run: Run, opened: list[Session]) -> None:
    assert run()[0] == 0
    assert [session.title for session in opened] == ["tpuscope-demo"]
    assert Settings.load().recent == ()


def test_exports(run: Run, compiled: Path, tmp_path: Path) -> None:
    graph, kv, trace = (tmp_path / name for name in ("module.dot", "kv.dot", "token.pftrace"))
    assert (
        run("export", "graph", compiled, "-o", graph, "-m", "block_1", "--after", "top-canonicalize")[0] == 0
    )
    code, out, _ = run("export", "graph", compiled, "-o", kv, "--what", "kv", "--json")
    assert code == 0
    assert checked("export", out) == {"path": str(kv), "bytes": kv.stat().st_size}
    code, out, err = run("export", "trace", compiled, "-o", trace)
    assert (code, out) == (0, "")
    assert f"wrote {trace}" in err.replace("\n", "")
    assert "digraph" in graph.read_text()
    assert graph.read_text() != kv.read_text()
    assert trace.stat().st_size > 1000


# -- mistakes and failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("modules", "MODEL", "--chip", "bm1"), "unknown chip 'bm1'; known chips: bm1684x"),
        (("modules", "MODEL", "--quantize", "w3"), "--quantize 'w3' is unknown"),
        (("modules", "MODEL", "--seq-length", "0"), "--seq-length 0 is out of range"),
        (("modules", "MODEL", "--decode-chunks", "a"), "--decode-chunks 'a' is no list of whole numbers"),
        (("passes", "MODEL", "-m", "block_9"), "unknown module 'block_9'; this model has:"),
        (("ir", "MODEL", "-m", "lm_head", "--after", "nope"), "has no pass 'nope'; it has: import"),
        (("diff", "MODEL", "-m", "lm_head", "--from", "codegen"), "codegen is the last pass"),
        (("run", "MODEL"), "give --prompt TEXT or --prompt-ids IDS"),
        (("run", "MODEL", "--prompt-ids", "1", "--chat"), "--chat needs --prompt"),
        (("run", "MODEL", "--prompt-ids", "99999"), "token id 99999 is outside"),
        (("simulate", "MODEL", "--prompt-length", "65"), "a prompt of 65 tokens does not fit"),
        (("simulate", "MODEL", "--timeline"), "--timeline is about one module: give --module NAME too"),
        (("simulate", "MODEL", "-m", "block_0"), "give --timeline too"),
        (("simulate", "MODEL", "--history-length", "3"), "give --timeline too"),
        (("simulate", "MODEL", "--timeline", "-m", "block_9"), "unknown module 'block_9'"),
        (
            ("simulate", "MODEL", "--timeline", "-m", "block_kv_0", "--history-length", "65"),
            "--history-length 65 is out of range; accepted: 0 to 64 (--seq-length)",
        ),
        (
            ("simulate", "MODEL", "--timeline", "-m", "block_cache_0", "--history-length", "3"),
            "block_cache_0 does not take it",
        ),
        (
            ("export", "trace", "MODEL", "-o", "x.csv", "-m", "block_kv_0", "--history-length", "100000"),
            "--history-length 100000 is out of range; accepted: 0 to 64 (--seq-length)",
        ),
        (
            ("export", "trace", "MODEL", "-o", "x.csv", "-m", "block_0", "--history-length", "3"),
            "is about modules of prefill_kv, such as block_kv_0; block_0 does not take it",
        ),
        (
            ("export", "trace", "MODEL", "-o", "x.csv", "--history-length", "3"),
            "--history-length 3 is about one module of prefill_kv; give --module NAME too",
        ),
        (
            ("simulate", "MODEL", "--prompt-length", "60", "--generate", "6"),
            "6 new tokens do not fit; accepted: 1 to 5 (--seq-length 64",
        ),
        (
            ("simulate", "MODEL", "--timeline", "-m", "block_0", "--prompt-length", "3"),
            "--prompt-length is about the whole program",
        ),
        (("export", "graph", "MODEL", "-o", "x.gif"), "x.gif ends in '.gif'; accepted: .dot"),
        (("export", "graph", "MODEL", "-o", "x.dot", "--what", "x"), "--what 'x' is unknown"),
        (("modules", "/no/such/model"), "/no/such/model: no such file or folder"),
        (("pases", "MODEL"), "did you mean `tpuscope passes`?"),
        (("modules",), "Missing argument 'MODEL'"),
        (("modules", ""), "MODEL is empty; give a checkpoint folder, a config.json or a compiled file"),
        (("",), "MODEL is empty"),
        (("MODEL",), "needs a terminal"),
    ],
)
def test_mistakes_are_answered_and_exit_with_2(
    run: Run, compiled: Path, checkpoint: Path, arguments: tuple[str, ...], message: str
) -> None:
    # options are only free to choose for a checkpoint
    model = checkpoint if arguments[0] == "modules" else compiled
    code, out, err = run(*(model if argument == "MODEL" else argument for argument in arguments))
    assert code == cli.MISTAKE
    assert message in re.sub(r"\s+", " ", err)
    assert out == ""
    assert "Traceback" not in err


def test_options_that_a_compiled_file_does_not_have_are_refused(run: Run, compiled: Path) -> None:
    code, _, err = run("modules", compiled, "--quantize", "f32")
    assert code == cli.MISTAKE
    assert "was compiled with --quantize w4bf16, not f32" in err


def test_options_without_effect_are_noted(run: Run, checkpoint: Path) -> None:
    # GIVEN options about quantised weights WHEN none is quantised THEN that is said, and nothing else happens
    command = (
        "modules",
        checkpoint,
        "--symmetric",
        "--q-group-size",
        "32",
        "--seq-length",
        "32",
        "--no-history",
    )
    code, _, err = run(*command, "--quantize", "bf16")
    assert code == 0
    assert "--q-group-size and --symmetric have no effect: with bf16 no weight is quantised" in err
    assert "no effect" not in run(*command, "--quantize", "w8bf16")[2]


def test_a_bare_config_says_what_is_missing(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text((checkpoint / "config.json").read_text())
    for command in (("run", config, "--prompt", "x"), ("compile", config, "-o", tmp_path / "x.tpuscope")):
        code, _, err = run(*command)
        assert code == cli.MISTAKE
        assert "architecture without weights" in err
    assert run("passes", config, "-m", "lm_head", *OPTIONS)[0] == 0


def failed_lm_head(session: Session, only: Any = None, listener: Any = None) -> Compilation:
    session.compilation.add(
        ModuleFailed("lm_head", "codegen", "pass codegen aborted on module lm_head", "/x.mlir")
    )
    return session.compilation


def test_a_failed_module_exits_with_3(run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a compilation in which a pass aborts
    monkeypatch.setattr(Session, "compile", failed_lm_head)
    # WHEN a command needs the module THEN the pass and the saved IR are named
    code, _, err = run("ir", checkpoint, "-m", "lm_head")
    assert code == cli.FAILURE
    assert "pass codegen aborted on module lm_head" in err
    assert "/x.mlir" in err


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), cli.INTERRUPTED), (CompileError("broken"), cli.FAILURE)]
)
def test_interrupts_and_failures_are_messages(
    run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Session, "compile", fail)
    found, _, err = run("modules", checkpoint)
    assert found == code
    assert "Traceback" not in err


# -- the process ---------------------------------------------------------------------------------------------------


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "app", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("arguments", [("--help",), ("chips",), ("config", "path")])
def test_commands_without_a_model_load_little(arguments: tuple[str, ...]) -> None:
    # GIVEN a fresh process WHEN a light command runs THEN nothing heavy was imported
    found = process(*arguments)
    assert found.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines() if "import time" in line}
    assert not loaded & {"numpy", "textual", "torch_mlir", "transformers", "engine.compiler"}


def test_a_closed_pipe_is_no_error(compiled: Path) -> None:
    command = f"{sys.executable} -m app modules {compiled} | head -1"
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 0
    assert found.stderr == ""


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line in which `tpuscope` is this one; the exit code is the leftmost failure in a pipe."""
    script = f'tpuscope() {{ {sys.executable} -m app "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("arguments", ["--help", "compile --help", "--version", "chips --json"])
def test_a_pipe_closed_before_the_first_word_is_no_error(arguments: str) -> None:
    found = shell(f"tpuscope {arguments} | true")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_done_without(
    checkpoint: Path, compiled: Path, tmp_path: Path, closed: str
) -> None:
    # GIVEN a process without standard output, or without any stream
    file = tmp_path / "x.tpuscope"
    commands = [f"modules {compiled}", f"modules {compiled} --json", "--help", f"ir {compiled} -m lm_head"]
    commands.append(f"compile {checkpoint} -o {file} {' '.join(OPTIONS)} --no-history")
    # WHEN commands print and files are written THEN nothing fails, and what was to be printed is in no file
    for command in commands:
        found = shell(f"tpuscope {command} {closed}")
        assert (found.returncode, found.stderr) == (0, ""), command
    assert shell(f"tpuscope check {file}").returncode == 0


def test_the_version_of_a_source_tree_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert run("--version") == (0, "tpuscope from source\n", "")


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_the_explorer_needs_a_terminal_on_every_stream(
    run: Run, compiled: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    # GIVEN a terminal on all streams but one, such as `tpuscope MODEL 2>log`
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda is_one=name != stream: is_one, raising=False)
    assert not cli._is_terminal()
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True, raising=False)
    assert cli._is_terminal()


def test_ids_in_place_of_text_are_explained(run: Run, compiled: Path, tmp_path: Path) -> None:
    # GIVEN a compiled file with one byte of its tokenizer changed
    content = bytearray(compiled.read_bytes())
    content[content.index(b'"model"', content.index(b'"added_tokens"')) + 1] ^= 1
    damaged = tmp_path / "damaged.tpuscope"
    damaged.write_bytes(content)
    # WHEN ids are continued THEN ids come out, and why is said
    code, out, err = run("run", damaged, "--prompt-ids", "3,4", "-n", "2")
    assert code == 0
    assert re.fullmatch(r"\d+ \d+ \n", out)
    assert "token ids in place of text" in err
    assert "damaged: the checksum of tensor 'tokenizer/tokenizer.json' does not fit" in err
    # and nothing is said of a whole file
    assert "in place of text" not in run("run", compiled, "--prompt-ids", "3,4", "-n", "2")[2]


def test_a_pipe_closed_while_text_is_generated_is_no_error(compiled: Path) -> None:
    found = shell(f"tpuscope run {compiled} --prompt sea -n 40 | true")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "command", ["chips", "--help", "modules {}", "modules {} --json", "ir {} -m lm_head"]
)
def test_a_full_disk_is_a_message(compiled: Path, command: str) -> None:
    found = shell(f"tpuscope {command.format(compiled)} > /dev/full")
    assert found.returncode == cli.MISTAKE
    assert found.stderr == "error: standard output: No space left on device\n"
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr


def test_an_ascii_terminal_gets_what_it_can_show_and_json_stays_utf_8(compiled: Path) -> None:
    # GIVEN a locale without UTF-8
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    # WHEN tables and text are printed THEN nothing fails, and a UTF-8 prompt is read as such
    passes = shell(f"tpuscope passes {compiled} -m block_0", **ascii_only).stdout
    assert re.search(r"^\* \| convert-top-to-tpu +\| \d+>\d+ ", passes, re.MULTILINE)
    assert "x2" in shell(f"tpuscope modules {compiled}", **ascii_only).stdout
    difference = shell(f"tpuscope diff {compiled} -m block_0 --from convert-top-to-tpu", **ascii_only).stdout
    assert re.search(r"^- .*tpu\.Cast", difference, re.MULTILINE)
    assert not {"?"} & set(passes + difference)
    found = shell(f"tpuscope run {compiled} --prompt 'caf\u00e9' -n 3 --json", **ascii_only)
    assert found.returncode == 0, found.stderr
    expected = shell(f"tpuscope run {compiled} --prompt 'caf\u00e9' -n 3 --json")
    assert json.loads(found.stdout)["text"] == json.loads(expected.stdout)["text"]


def test_a_prompt_that_is_no_text_is_a_mistake(compiled: Path) -> None:
    found = shell(f"tpuscope run {compiled} --prompt $'\\xff'")
    assert found.returncode == cli.MISTAKE
    assert "--prompt is not UTF-8 text" in found.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, cli.INTERRUPTED), (signal.SIGTERM, streams.TERMINATED)]
)
@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_an_ended_process_leaves_nothing(
    checkpoint: Path, tmp_path: Path, number: signal.Signals, code: int, delay: float
) -> None:
    # GIVEN a compilation in a process group of its own, as a shell starts it
    started = subprocess.Popen(
        [sys.executable, "-m", "app", "compile", str(checkpoint), "-o", str(tmp_path / "x.tpuscope")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        preexec_fn=interruptible,
    )
    # WHEN its workers run and the whole group is told to end
    wait_for(lambda: len(processes_of(started.pid)) > 2)
    time.sleep(delay)
    os.killpg(started.pid, number)
    _, err = started.communicate(timeout=30)
    # THEN it ends as such, without a traceback of any process, a draft of the file or a process left behind
    assert started.returncode == code, err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: not processes_of(started.pid))


def interruptible() -> None:
    """A shell lets what it runs in the background ignore interrupts, these tests perhaps, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def processes_of(group: int) -> list[str]:
    """Processes of a group that still run."""
    found = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,pid="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in found.stdout.splitlines()]
    return [pid for pgid, state, pid in rows if int(pgid) == group and not state.startswith("Z")]


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.02)
