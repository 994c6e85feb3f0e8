"""`tpuscope memory MODEL` without a module: DDR of the whole program."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from commands import Run, checked, runner

from app import cli
from app.session import Session
from engine.compiler import Compilation
from engine.program_memory import program_memory


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def opened(run: Run, sample: Compilation, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run command lines whose MODEL is the hand-written program, which is compiled."""
    monkeypatch.setattr(cli, "_open", lambda model, options: None)
    monkeypatch.setattr(cli, "_compile", lambda session, modules=None: sample)
    return run


def test_arenas_lie_behind_each_other_and_account_for_every_byte(opened: Run) -> None:
    # GIVEN three layers WHEN memory is asked for without a module
    code, out, _ = opened("memory", "MODEL", "--json")
    found = checked("program_memory", out)
    assert code == 0
    # THEN no arena overlaps the next, from the program's start to its end
    arenas = found["arenas"]
    assert all(one["address"] + one["bytes"] <= two["address"] for one, two in pairwise(arenas))
    assert arenas[0]["address"] == found["start"]
    assert arenas[-1]["address"] + arenas[-1]["bytes"] == found["end"]
    # AND tensors and holes add up to all of it
    assert sum(found["totals"].values()) + sum(h["bytes"] for h in found["holes"]) == found["bytes"]
    assert all(sum(arena["kinds"].values()) == arena["used_bytes"] for arena in arenas)


def test_every_layer_has_weights_and_kv_that_its_modules_share(opened: Run) -> None:
    _, out, _ = opened("memory", "MODEL", "--json")
    found = checked("program_memory", out)
    for name in ("coeff", "io"):
        by_layer = {a["layer"]: a for a in found["arenas"] if a["arena"] == name and a["layer"] is not None}
        assert {layer: a["modules"] for layer, a in by_layer.items()} == {
            layer: [f"block_{layer}", f"block_cache_{layer}"] for layer in range(3)
        }
        # K and V of 64 + 1 rows of 2 heads × 32 bf16 numbers
        kv = {a["kinds"]["kv_cache"] for a in by_layer.values()}
        assert kv == ({2 * 65 * 128} if name == "io" else {0})
    assert found["totals"]["kv_cache"] == 3 * 2 * 65 * 128


def test_what_all_modules_share_stands_once(opened: Run) -> None:
    _, out, _ = opened("memory", "MODEL", "--json")
    found = checked("program_memory", out)
    # THEN tied weights are in one arena, activations of all modules in another as large as the largest needs
    tied = next(a for a in found["arenas"] if "lm_head" in a["modules"] and a["arena"] == "coeff")
    assert tied["modules"] == ["embedding", "embedding_cache", "lm_head"]
    (neuron,) = (a for a in found["arenas"] if a["arena"] == "neuron")
    mark = found["high_water"]
    assert neuron["layer"] is None
    assert mark["module"] in neuron["modules"]
    assert mark["bytes"] == neuron["bytes"]
    assert 0 < mark["live_bytes"] <= mark["bytes"]


def test_table_for_people(opened: Run) -> None:
    code, out, _ = opened("memory", "MODEL")
    assert code == 0
    for text in (
        "whole program · DDR",
        "block_1 block_cache_1",
        "KV 49.9 kB",
        "holes    306 kB in 87",
    ):
        assert text in out
    assert "as block_0 needs" in out


@pytest.mark.parametrize(
    "option", [("--group", "0"), ("--svg", "map.svg"), ("--png", "map.png")], ids=lambda option: option[0]
)
def test_options_about_a_module_need_one(run: Run, option: tuple[str, str]) -> None:
    code, out, err = run("memory", "MODEL", *option)
    assert (code, out) == (cli.MISTAKE, "")
    assert f"{option[0]} is about one module: give --module NAME" in " ".join(err.split())


def test_a_compiled_program_accounts_for_every_byte(tmp_path: Path) -> None:
    from tiny import write_tiny

    # GIVEN a program as the compiler makes it, with a history stage
    session = Session.open(
        write_tiny(tmp_path / "tiny", "llama"),
        {"seq_length": 32, "max_input_length": 8, "decode_chunks": (), "quantize": "bf16"},
    )
    session.compile()
    # WHEN its memory is laid out THEN tensors and holes add up, and holes lie between neighbours that do not touch
    found = program_memory(session.compilation)
    holes = found["holes"]
    assert sum(found["totals"].values()) + sum(h["bytes"] for h in holes) == found["bytes"]
    assert all(one["address"] + one["bytes"] < two["address"] for one, two in pairwise(holes))
    assert all(arena["used_bytes"] <= arena["bytes"] for arena in found["arenas"])
