"""Commands about layer groups: memory maps, explanations, checks, the machine, and the options of the search."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run, checked, runner
from compiled import compile_here
from tiny import write_tiny

import engine.check
from app import cli
from app.session import Session
from engine.compiler import open_model
from engine.deploy import write_file
from engine.sim.machine import Violation
from engine.sim.machine_runtime import MachineExecutor
from engine.tpu.isa import Engine, Space

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 8960,
    "vocab_size": 1024,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Qwen2.5-1.5B with one layer and few words: an architecture whose groups in TPU-MLIR are known."""

WHOLE_PROMPT = ("--quantize", "bf16", "--seq-length", "512", "--no-history")
"""A prefill of 512 rows, as the vendor's module has it."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups") / "config.json"
    path.write_text(json.dumps(QWEN))
    return path


@pytest.fixture(scope="module")
def session(config: Path) -> Session:
    found = Session.open(config, {"quantize": "bf16", "seq_length": 512, "history": False})
    found.compile()
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def opened(run: Run, session: Session, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run command lines whose MODEL is the session, which is compiled."""
    monkeypatch.setattr(cli, "_open", lambda model, options: session)
    return run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("machine") / "tiny", "qwen3")


# -- memory --------------------------------------------------------------------------------------------------------


def test_block_0_of_qwen25_has_the_references_groups(run: Run, config: Path) -> None:
    # GIVEN the shapes of a module that the reference compiled WHEN its memory is asked for
    code, out, _ = run("memory", config, "--module", "block_0", *WHOLE_PROMPT, "--json")
    found = checked("memory", out)
    # THEN o_proj with what follows is cut in two, and the activation in eight
    assert code == 0
    secs = {tuple(op.removeprefix("tpu.") for op in row["ops"]): row["secs"] for row in found["groups"]}
    assert secs["MatMul", "Add", "RMSNorm"] == [1, 2, 1, 1, 1]
    assert secs["Cast", "Active", "Cast"] == [1, 8, 1, 1, 1]
    assert len(found["groups"]) == 5


def test_rows_of_local_memory_fit_together(opened: Run) -> None:
    _, out, _ = opened("memory", "MODEL", "-m", "block_0", "--json")
    found = checked("memory", out)
    for group in found["groups"]:
        rows = [row for row in found["lmem"] if row["group"] == group["group"]]
        assert len({row["buffer"] for row in rows}) == len(rows)
        assert max(row["address"] + row["bytes"] for row in rows) == group["peak_bytes"]
        for row in rows:
            assert row["banks"][0] == row["address"] // 16384
            assert row["banks"][-1] == (row["address"] + row["bytes"] - 1) // 16384
        # every buffer that a step touches is one of the group's, by its name
        values = {row["buffer"] for row in rows}
        for step in group["steps"]:
            assert set(step["loads"]) <= values
            live = sum(row["bytes"] for row in rows if alive(row, step["step"]))
            assert live >= step["live_bytes"] > 0
            assert step["live_bytes"] + step["largest_free_bytes"] <= 262144


def alive(row: dict[str, Any], step: int) -> bool:
    first, last = row["first_step"], row["last_step"]
    return first <= step <= last if first <= last else step >= first or step <= last


def test_memory_for_people_draws_every_group(opened: Run) -> None:
    code, out, _ = opened("memory", "MODEL", "-m", "block_0")
    assert code == 0
    for text in ("MatMul + Add + RMSNorm", "csecs 2", "group 4 · Add + RMSNorm", "%13 o_proj", "held", "DDR"):
        assert text in out
    assert "TIU, DMA waits" in out


def test_one_group_alone(opened: Run, tmp_path: Path) -> None:
    code, out, _ = opened("memory", "MODEL", "-m", "block_0", "--group", "2", "--json")
    found = checked("memory", out)
    assert code == 0
    assert [row["group"] for row in found["groups"]] == [2]
    assert {row["group"] for row in found["lmem"]} == {2}
    _, out, _ = opened("memory", "MODEL", "-m", "block_0", "-g", "2")
    assert "group 2 ·" in out
    assert "group 1 ·" not in out
    svg, png = tmp_path / "group.svg", tmp_path / "ddr.png"
    code, out, err = opened("memory", "MODEL", "-m", "block_0", "-g", "2", "--svg", svg)
    assert (code, out) == (0, "")
    assert f"wrote {svg}" in err.replace("\n", "")
    assert "csecs 2" in svg.read_text()
    assert opened("memory", "MODEL", "-m", "block_0", "--png", png)[0] == 0
    assert png.read_bytes().startswith(b"\x89PNG")


# -- explain -------------------------------------------------------------------------------------------------------


def test_explain_names_the_slice_counts_that_failed(opened: Run) -> None:
    # GIVEN the first of the reference's groups WHEN it is explained
    code, out, _ = opened("explain", "MODEL", "-m", "block_0", "--group", "2", "--json")
    (group,) = checked("explain", out)["groups"]
    assert code == 0
    # THEN one slice needs more than there is, two fit, and both neighbours are named
    failed = [row for row in group["attempts"] if row["cycles"] is None]
    assert [row["slices"] for row in failed] == [1]
    assert failed[0]["needed_bytes"] > failed[0]["available_bytes"] == 262144
    assert failed[0]["reason"]
    (taken,) = [row for row in group["attempts"] if row["taken"]]
    assert (taken["slices"], taken["cycles"]) == (2, group["cycles"])
    assert "FAttention at model.layers.0.self_attn.attention" in group["begins"]
    assert "MatMul at model.layers.0.mlp.gate_proj" in group["ends"]
    assert group["alone_cycles"] > group["cycles"]
    # AND the same for people
    _, text, _ = opened("explain", "MODEL", "-m", "block_0", "--group", "2")
    assert "of 256 KiB" in text
    assert f"({failed[0]['needed_bytes']:,} of 262,144 bytes) a lane" in text
    assert "one group of 3 ops takes" in text
    assert f"{group['alone_cycles'] - group['cycles']:,} of the {group['alone_cycles']:,} cycles" in text
    assert "✓ csecs 2" in text


def test_explain_says_why_other_ops_are_in_no_group(opened: Run) -> None:
    _, out, _ = opened("explain", "MODEL", "-m", "block_0", "--json")
    found = checked("explain", out)
    why = {row["location"]: row for row in found["global"]}
    assert "no kernel" in why["model.layers.0.self_attn.attention"]["reason"]
    gate = why["model.layers.0.mlp.gate_proj"]
    assert gate["cycles"] > 0
    assert not gate["reason"]
    inside = [index for group in found["groups"] for index in group["records"]]
    assert not set(inside) & {row["record"] for row in found["global"]}
    _, text, _ = opened("explain", "MODEL", "-m", "block_0")
    assert "FAttention" in text


# -- check ---------------------------------------------------------------------------------------------------------


def test_check_is_clean(opened: Run) -> None:
    code, out, _ = opened("check", "MODEL", "--json")
    found = checked("check", out)
    assert (code, found["ok"], found["problems"]) == (0, True, [])
    assert found["groups"] >= 5
    assert "examined" in opened("check", "MODEL")[1]


def test_a_failed_check_is_listed_and_exits_with_1(opened: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program in which an invariant does not hold
    problem = engine.check.Problem("groups", "block_0", "a overlaps b")
    monkeypatch.setattr(engine.check, "check", lambda compilation: [problem])
    # WHEN it is checked THEN the problem is named and the exit code says that there is one
    code, out, _ = opened("check", "MODEL", "--json")
    found = checked("check", out)
    assert (code, found["ok"], found["checks"]["groups"]) == (cli.FOUND, False, 1)
    code, _, err = opened("check", "MODEL")
    assert code == cli.FOUND
    assert "✗ block_0: a overlaps b" in err


# -- the machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantize", ["bf16", "w4bf16"])
def test_the_machine_writes_the_interpreters_tokens(run: Run, checkpoint: Path, quantize: str) -> None:
    common = ("run", checkpoint, "--prompt-ids", "1,2,3", "--max-new-tokens", "4", "--json")
    options = ("--quantize", quantize, "--seq-length", "32", "--decode-chunks", "none")
    code, out, _ = run(*common, *options)
    expected = checked("run", out)
    assert (code, expected["engine"]) == (0, "interpreter")
    code, out, err = run(*common, *options, "--machine", "--checks")
    found = checked("run", out)
    assert (code, found["engine"], found["violations"]) == (0, "machine", [])
    assert [token["id"] for token in found["tokens"]] == [token["id"] for token in expected["tokens"]]
    assert "⚠" not in err


def test_what_the_machine_finds_is_printed_and_fails(
    run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a machine that finds a write over live data in every module
    found = [Violation(7, "overwrite", "tpu.Add model.layers.{i}.mlp writes byte 0 of x")]
    monkeypatch.setattr(MachineExecutor, "violations", property(lambda self: found))
    common = ("run", checkpoint, "--prompt-ids", "1,2", "--max-new-tokens", "2", "--machine", "--checks")
    options = ("--quantize", "bf16", "--seq-length", "64", "--decode-chunks", "none")
    # WHEN tokens are generated THEN the command names it by module and layer, and fails
    code, _, err = run(*common, *options)
    said = " ".join(err.split())
    assert code == cli.FOUND
    assert "block_0, layer 0, instruction 7: tpu.Add model.layers.0.mlp writes byte 0 of x" in said
    assert "may use a bank of local memory at the same time as the other engine" in said
    code, out, _ = run(*common, *options, "--json")
    shown = checked("run", out)
    assert code == cli.FOUND
    assert {row["kind"] for row in shown["violations"]} == {"overwrite"}
    # AND the kernel of attention, which lets both engines into a bank, is listed
    assert "tpu.FAttention" in {row["op"].split()[0] for row in shown["bank_conflicts"]}


def test_violations_explain_numbers_that_are_not_finite(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    # GIVEN a compiled program whose attention loads its operands to where nothing reads them
    model = open_model(checkpoint)
    program = compile_here(checkpoint, quantize="bf16", seq_length=32, decode_chunks=())
    name = "block_0"
    module = program.modules[name]
    last = module.snapshots[-1]
    code = last.report.copy()
    kinds = np.array([op.kind for op in last.ops])
    loads = (kinds[code["op"]] == "FAttention") & (code["engine"] == Engine.GDMA)
    code["result"]["address"][loads & (code["result"]["space"] == Space.LOCAL)] += 8192
    changed = (*module.snapshots[:-1], replace(last, report=code))
    program.modules[name] = replace(module, snapshots=changed)
    path = tmp_path / "damaged.tpuscope"
    write_file(program, model, path)
    command = ("run", path, "--prompt-ids", "1,2,3", "--max-new-tokens", "2", "--machine")
    # WHEN it runs unchecked THEN nobody knows better than that a number is not finite
    code_, _, err = run(*command)
    assert (code_, "a weight is damaged" in " ".join(err.split())) == (2, True)
    # WHEN it is checked THEN the instructions that did it are named, and no weight is blamed
    code_, out, err = run(*command, "--checks")
    said = " ".join(err.split())
    assert (code_, out) == (cli.FOUND, "")
    found = r"✗ block_0, layer 0, instruction \d+: tpu.FAttention \S+ reads .* not all of which was written"
    assert re.search(found, said), said[:500]
    assert said.index("✗") < said.index("layer 0 computes NaN or infinity")
    assert "weight is damaged" not in said
    code_, out, _ = run(*command, "--checks", "--json")
    shown = checked("run", out)
    assert (code_, shown["tokens"], bool(shown["violations"])) == (cli.FOUND, [], True)


# -- options -------------------------------------------------------------------------------------------------------


def test_options_of_the_search(run: Run, config: Path) -> None:
    common = ("explain", config, "-m", "block_0", *WHOLE_PROMPT, "--json")
    # a demanded group is one, though another cut were cheaper
    code, out, _ = run(*common, "--force-group", "block_0:31..32", "--force-group", "block_0:41..42")
    records = [row["records"] for row in checked("explain", out)["groups"]]
    assert code == 0
    assert [31, 32] in records
    assert [41, 42] in records
    # the same one twice is one
    code, again, _ = run(*common, *("--force-group", "block_0:31..32") * 2, "--force-group", "block_0:41..42")
    assert (code, again) == (0, out)
    # without groups nothing is searched
    code, out, _ = run(*common, "--no-layer-group")
    found = checked("explain", out)
    assert (code, found["searched"], found["groups"]) == (0, False, [])


def test_a_demand_on_a_module_that_is_not_compiled_is_noted(run: Run, config: Path) -> None:
    given = ("explain", config, "-m", "embedding", *WHOLE_PROMPT, "--force-group", "block_0:0..1")
    code, _, err = run(*given)
    assert code == 0
    assert "--force-group block_0:0..1 is not checked: this command does not compile block_0" in " ".join(
        err.split()
    )


def test_an_op_too_large_names_its_place_its_need_and_what_fits(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN, "hidden_size": 65536, "intermediate_size": 64}))
    code, _, err = run("explain", path, "-m", "block_0", *WHOLE_PROMPT)
    said = " ".join(err.split())
    assert code == cli.MISTAKE
    for part in (
        "RMSNorm at model.layers.0.input_layernorm",
        "needs 917504 bytes",
        "262144",
        "at most 18720",
    ):
        assert part in said


def test_options_of_the_search_are_kept_in_the_file(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tpuscope"
    options = ("--quantize", "bf16", "--seq-length", "32", "--decode-chunks", "none")
    assert run("compile", checkpoint, "-o", path, *options, "--no-layer-group")[0] == 0
    code, out, _ = run("memory", path, "-m", "block_0", "--json")
    assert (code, checked("memory", out)["groups"]) == (0, [])
    code, _, err = run("memory", path, "-m", "block_0", "--layer-group")
    assert code == cli.MISTAKE
    assert "was compiled without --layer-group, not with it" in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group", "9"), "module block_0 has no layer group 9; it has groups 0 to 4"),
        (("--svg", "x.png"), "--svg x.png: the file's name must end in .svg"),
    ],
)
def test_mistakes_about_groups(opened: Run, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = opened("memory", "MODEL", "-m", "block_0", *arguments)
    assert (code, out) == (cli.MISTAKE, "")
    assert message in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--opt", "4"), ["--opt 4 is unknown; accepted: 1, 2, 3"]),
        (("--force-group", "block_0:5"), ["accepted: MODULE:a..b"]),
        (("--force-group", "block_9:1..2"), ["unknown module 'block_9'; this model has:"]),
        (("--force-group", "block_0:1..2", "--no-layer-group"), ["--force-group needs layer groups"]),
        # a group that cannot be placed: the op, bytes needed and there, and what would fit
        (
            ("--force-group", "block_0:31..34"),
            [
                "block_0:31..34 cannot",
                "layers.0.mlp.gate_proj",
                "430080",
                "262144",
                "no slicing",
                "31..33 fits",
            ],
        ),
        (("--force-group", "block_0:30..31"), ["op 30 (FAttention", "groups may cover"]),
    ],
)
def test_mistakes_of_the_search(
    run: Run, config: Path, arguments: tuple[str, ...], messages: list[str]
) -> None:
    code, out, err = run("explain", config, "-m", "block_0", *WHOLE_PROMPT, *arguments)
    assert (code, out) == (cli.MISTAKE, "")
    for message in messages:
        assert message in " ".join(err.split())
    assert "saved to" not in err


def test_checks_belong_to_the_machine(run: Run, checkpoint: Path) -> None:
    code, _, err = run("run", checkpoint, "--prompt-ids", "1", "--checks")
    assert code == cli.MISTAKE
    assert "--checks needs --machine" in err


# -- simulate ------------------------------------------------------------------------------------------------------


def test_simulated_ops_say_their_group(opened: Run) -> None:
    _, out, _ = opened("simulate", "MODEL", "--json")
    module = next(row for row in checked("simulate", out)["modules"] if row["name"] == "block_0")
    groups = {(op["name"], op["location"]): op["group"] for op in module["ops"]}
    assert groups["tpu.MatMul", "model.layers.0.self_attn.o_proj"] == 2
    assert groups["tpu.FAttention", "model.layers.0.self_attn.attention"] is None
    assert {op["group"] for op in module["ops"]} == {None, 0, 1, 2, 3, 4}
    _, text, _ = opened("simulate", "MODEL")
    assert "group" in text


# -- weights that are streamed -------------------------------------------------------------------------------------


def test_streamed_weights_are_shown_explained_and_checked(run: Run, checkpoint: Path) -> None:
    # GIVEN a checkpoint whose groups stream the weights of its quantised products
    given = (checkpoint, "--quantize", "w4bf16", "--seq-length", "64", "--fuse-weights")
    memory = checked("memory", run("memory", *given, "--module", "block_cache_0", "--json")[1])
    # THEN tables, explanations and checks take them like any other group
    assert {group["type"] for group in memory["groups"]} == {"STREAM"}
    names = [(row["group"], row["buffer"]) for row in memory["lmem"]]
    assert any(name.endswith("q_proj.weight.scale") for _, name in names)
    assert len(set(names)) == len(names)
    explained = checked("explain", run("explain", *given, "--module", "block_cache_0", "--json")[1])
    assert all(group["cycles"] < group["alone_cycles"] for group in explained["groups"])
    assert "without streaming" in run("explain", *given, "--module", "block_0", "--group", "0")[1]
    code, out, _ = run("check", *given, "--json")
    assert (code, checked("check", out)["ok"]) == (0, True)


def test_gains_on_several_cores_are_said_to_be_those_of_one(run: Run, checkpoint: Path) -> None:
    given = ("explain", checkpoint, "--seq-length", "64", "--module", "block_0", "--group", "0")
    for cores in (1, 2):
        shared = ("--chip", "bm1688", "--cores", str(cores))
        text = run(*given, *shared)[1]
        assert ("on one core one group of" in text) is (cores > 1)
        assert ("that 2 cores share the slices is not priced" in text) is (cores > 1)
        assert checked("explain", run(*given, *shared, "--json")[1])["cores"] == cores
