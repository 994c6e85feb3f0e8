"""The session that explorer and command line share: compiling by need, events, cancelling, opening."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tiny import write_tiny

from app.session import Session, Stopped
from engine.errors import CompileError, UserError
from engine.snapshot import Snapshot
from engine.worker import ModuleFailed, ModuleFinished, PassFinished


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("session") / "tiny-llama", "llama")


def sample_snapshot(module: str) -> Snapshot:
    """What the first pass leaves behind, without contents."""
    return Snapshot(module, "import", "", (), {}, changed=True, seconds=0)


OPTIONS = {"seq_length": 32, "decode_chunks": (), "quantize": None}


def test_only_the_asked_module_is_compiled_and_only_once(checkpoint: Path) -> None:
    # GIVEN a session of a model
    session = Session.open(checkpoint, OPTIONS)
    assert session.title == "tiny-llama"
    assert not session.compilation.modules
    # WHEN one module is asked for THEN only that is compiled
    events: list[object] = []
    session.compile(["block_cache_0"], events.append)
    assert list(session.compilation.modules) == ["block_cache_0"]
    assert sum(isinstance(event, PassFinished) for event in events) == len(
        session.compilation.modules["block_cache_0"].snapshots
    )
    assert isinstance(events[-1], Stopped)
    assert session.seconds > 0
    # AND asking again does nothing
    assert not session.start(["block_cache_0"])
    # AND the rest makes it whole
    session.compile()
    assert session.compilation.complete
    assert session.missing() == ()


def test_events_are_taken_in_where_drain_is_called(checkpoint: Path) -> None:
    # GIVEN a compilation that runs in its thread
    session = Session.open(checkpoint, OPTIONS)
    arrived = threading.Event()
    threads: set[str] = set()

    def notify() -> None:
        threads.add(threading.current_thread().name)
        arrived.set()

    assert session.start(["lm_head", "embedding"], notify)
    with pytest.raises(RuntimeError, match="running"):
        session.start()
    # WHEN an event has arrived THEN the compilation is untouched until drain
    assert arrived.wait(20)
    assert not session.compilation.modules
    assert session.running
    seen = []
    while session.running:
        arrived.wait(20)
        arrived.clear()
        seen += session.drain()
    assert {event.module for event in seen if isinstance(event, ModuleFinished)} == {"lm_head", "embedding"}
    assert isinstance(seen[-1], Stopped)
    assert threading.current_thread().name not in threads


def test_a_cancelled_compilation_can_be_taken_up_again(checkpoint: Path) -> None:
    session = Session.open(checkpoint, OPTIONS)
    session.start()
    session.cancel()
    session.wait()
    assert session.compilation.cancelled
    with pytest.raises(CompileError, match="cancelled"):
        session.compilation.require_complete()
    session.compile()
    assert session.compilation.complete


def test_what_was_half_done_is_done_anew(checkpoint: Path) -> None:
    # GIVEN a module of which only the first pass has arrived
    session = Session.open(checkpoint, OPTIONS)
    session.compilation.add(PassFinished("block_0", sample_snapshot("block_0")))
    # WHEN it is compiled THEN no pass is there twice
    session.compile(["block_0"])
    names = [snapshot.pass_name for snapshot in session.compilation.modules["block_0"].snapshots]
    assert names == list(dict.fromkeys(names))


def test_cancelling_what_is_done_changes_nothing(checkpoint: Path) -> None:
    session = Session.open(checkpoint, OPTIONS)
    session.start()
    session.wait(lambda event: session.cancel() if not session.missing() else None)
    assert not session.compilation.cancelled
    assert session.compilation.complete


def test_the_given_options_are_known(checkpoint: Path) -> None:
    session = Session.open(checkpoint, {**OPTIONS, "cores": None, "sample": True})
    assert session.given == {"seq_length": 32, "decode_chunks": (), "sample": True}
    assert Session.open(checkpoint, session.given).options == session.options


def test_options_are_checked_when_opening(checkpoint: Path) -> None:
    with pytest.raises(UserError, match="--seq-length 9999 is out of range"):
        Session.open(checkpoint, {"seq_length": 9999})
    with pytest.raises(UserError, match="unknown chip 'bm1'"):
        Session.open(checkpoint, {"chip_name": "bm1"})


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing-here"):
        Session.open(tmp_path / "nothing-here")


def test_a_bare_config_compiles_but_cannot_generate(checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text((checkpoint / "config.json").read_text())
    session = Session.open(config, OPTIONS)
    session.compile(["lm_head"])
    assert session.compilation.modules["lm_head"].snapshots
    with pytest.raises(UserError, match=r"without weights.*safetensors"):
        _ = session.runtime


def test_a_module_that_is_not_there_is_named(checkpoint: Path) -> None:
    session = Session.open(checkpoint, OPTIONS)
    with pytest.raises(UserError, match="unknown module 'block_7'"):
        session.compile(["block_7"])


def test_text_is_generated_by_the_compiled_program(checkpoint: Path) -> None:
    session = Session.open(checkpoint, {**OPTIONS, "quantize": "f32"})
    session.compile()
    prompt = session.tokenizer.encode("the")
    tokens = [token.token for token in session.generate(prompt, 3)]
    assert 1 <= len(tokens) <= 3


def test_a_compiled_file_opens_without_compiling(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("engine.deploy")
    session = Session.open(checkpoint, {**OPTIONS, "quantize": "w4bf16"})
    session.compile()
    path = tmp_path / "tiny.tpuscope"
    session.save(path)
    opened = Session.open(path, {"seq_length": 32, "quantize": None})
    assert opened.missing() == ()
    assert not opened.start()
    assert opened.options == session.options
    prompt = opened.tokenizer.encode("the")
    assert [t.token for t in opened.generate(prompt, 2)] == [t.token for t in session.generate(prompt, 2)]
    with pytest.raises(UserError, match="compiled with --quantize w4bf16, not f32"):
        Session.open(path, {"quantize": "f32"})
    with pytest.raises(UserError, match="compiled file already"):
        opened.save(tmp_path / "again.tpuscope")


def test_a_failed_module_is_reported_and_not_tried_again(checkpoint: Path) -> None:
    session = Session.open(checkpoint, OPTIONS)
    session.compilation.add(ModuleFailed("block_0", "codegen", "pass codegen aborted on module block_0"))
    failure = session.failure("block_0")
    assert failure
    assert failure.pass_name == "codegen"
    assert session.failure("block_1") is None
    assert "block_0" not in {spec.name for spec in session.missing()}
