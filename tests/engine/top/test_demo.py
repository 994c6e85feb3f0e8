"""The bundled demo: written once, whole, the same every time, and a model that does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.session import Session
from engine.compiler import open_model
from engine.errors import UserError
from engine.top.demo import SENTENCE, demo_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo")
    demo_models(path)
    return path


def test_it_is_written_once_and_leaves_nothing_else(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert [entry.path.is_dir() for entry in demo_models(folder)] == [True, True]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert {path.name for path in folder.glob("*/*")} == {"tpuscope-demo", "Qwen3-0.6B"}


def test_it_is_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    again = demo_models(tmp_path)
    for one, other in zip(demo_models(folder), again, strict=True):
        for file in one.path.iterdir():
            assert file.read_bytes() == (other.path / file.name).read_bytes(), file.name


def test_both_entries_open(folder: Path) -> None:
    checkpoint, architecture = (open_model(entry.path) for entry in demo_models(folder))
    assert checkpoint.checkpoint is not None
    assert checkpoint.config.kv_heads < checkpoint.config.heads
    assert architecture.checkpoint is None
    assert (architecture.config.layers, architecture.config.qk_norm) == (28, True)


def test_the_compiled_demo_recites_its_sentence(folder: Path) -> None:
    # GIVEN the demo, compiled with 4-bit weights, decode variants on the way
    session = Session.open(demo_models(folder)[0].path, {"seq_length": 64})
    session.compile()
    # WHEN it continues an unrelated prompt THEN the sentence comes out and ends
    tokens = [t.token for t in session.generate(session.tokenizer.encode("What are you?"), 60)]
    assert session.tokenizer.decode(tokens) == SENTENCE
    assert tokens[-1] in session.compilation.config.eos_token_ids


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"demo cannot be written to .*file.*XDG_CACHE_HOME"):
        demo_models(tmp_path / "file")
