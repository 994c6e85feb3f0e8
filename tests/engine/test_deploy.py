"""The deployable file: written whole or not at all, read back equal, damage found."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tiny import write_tiny

from engine import deploy
from engine.compiler import Compilation, Model, compile_model, open_model
from engine.deploy import CompiledFile, is_compiled_file, open_file, write_file
from engine.errors import CompileError, UserError
from engine.merge import ADDRESSED, placed_weights
from engine.snapshot_codec import program_of
from engine.top.checkpoint.source import ModelTensors
from engine.top.checkpoint.tensors import Checkpoint
from engine.tpu.weights import materialize


@dataclass(frozen=True)
class Case:
    """A compiled tiny model and its file."""

    model: Model
    compilation: Compilation
    path: Path
    summary: deploy.FileSummary
    progress: list[tuple[int, int]]


def compiled(folder: Path, family: str, **options: Any) -> Case:
    model = open_model(write_tiny(folder / family, family))
    compilation = compile_model(model, model.resolve(**options))
    compilation.require_complete()
    path = folder / f"{family}.tpuscope"
    progress: list[tuple[int, int]] = []
    summary = write_file(compilation, model, path, progress=lambda *now: progress.append(now))
    return Case(model, compilation, path, summary, progress)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Untied, W4, no history: the fewest modules."""
    return compiled(tmp_path_factory.mktemp("llama"), "llama", seq_length=32, history=False)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Tied embeddings, bf16, history and a decode variant."""
    options = {"seq_length": 32, "quantize": "bf16", "decode_chunks": [16]}
    return compiled(tmp_path_factory.mktemp("qwen3"), "qwen3", **options)


@pytest.fixture(params=["llama", "qwen3"])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


def uses(compilation: Compilation) -> Iterator[tuple[Any, int]]:
    """(reference, layer) of every weight of every module in every layer."""
    for spec in compilation.specs:
        for weight in placed_weights(compilation.modules[spec.name].after(ADDRESSED)):
            for layer in spec.layers or (0,):
                yield weight.reference, layer


def assert_equal(file: CompiledFile, expected: Compilation) -> None:
    """Everything but the weights is as it was compiled."""
    found = file.compilation
    assert (found.config, found.options, found.specs) == (expected.config, expected.options, expected.specs)
    assert found.complete
    assert found.merged == expected.merged
    assert list(found.modules) == [spec.name for spec in expected.specs]
    for name, module in found.modules.items():
        np.testing.assert_array_equal(file.program(name), program_of(expected.modules[name]))
        assert program_of(module) is file.program(name)
        plain = [replace(s, report=None) for s in module.snapshots]
        assert plain == [replace(s, report=None) for s in expected.modules[name].snapshots]


def test_compilation_and_programs_come_back(case: Case) -> None:
    assert_equal(open_file(case.path), case.compilation)


def test_every_weight_of_every_layer_comes_back(case: Case) -> None:
    # GIVEN a file, WHEN each weight is read
    file, source = open_file(case.path), ModelTensors(case.model.checkpoint, case.model.config)  # type: ignore[arg-type]
    # THEN it has the very bytes that its reference means, of its dtype, without a copy
    for reference, layer in uses(case.compilation):
        found, expected = file.weight(reference, layer), materialize(reference, layer, source)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
        assert not found.flags.owndata


def test_index_lists_each_modules_weights(case: Case) -> None:
    file = open_file(case.path)
    for spec in case.compilation.specs:
        snapshot = case.compilation.modules[spec.name].after(ADDRESSED)
        assert file.weights(spec.name) == placed_weights(snapshot)


def test_equal_weights_are_stored_once(case: Case) -> None:
    # GIVEN a model whose layers' weights serve several modules each
    keys = {reference.key(layer) for reference, layer in uses(case.compilation)}
    # WHEN its file is read by anybody THEN there is one tensor for each distinct weight
    with safe_open(case.path, "np") as found:
        stored = [name for name in found.keys() if name.startswith("weight/")]  # noqa: SIM118
    assert len(stored) == len(keys) == case.summary.weights
    assert case.summary.weight_uses == len(list(uses(case.compilation))) > 1.5 * len(keys)


@pytest.mark.parametrize(("family", "tables"), [("llama", 2), ("qwen3", 1)])
def test_tied_embeddings_are_stored_once(family: str, tables: int, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(family)
    shape = [case.model.config.vocab_size, case.model.config.hidden_size]
    with safe_open(case.path, "np") as found:
        shapes = [found.get_slice(name).get_shape() for name in found.keys()]  # noqa: SIM118
    assert shapes.count(shape) == tables


def test_the_safetensors_library_reads_the_same_numbers(case: Case) -> None:
    file = open_file(case.path)
    with safe_open(case.path, "np") as found:
        metadata = found.metadata()
        for reference, layer in list(uses(case.compilation))[:40]:
            if reference.type.dtype != "bf16":  # which its NumPy side does not know
                number = file._numbers[reference.key(layer)]
                tensor = found.get_tensor(f"weight/{number:06d}")
                np.testing.assert_array_equal(tensor, file.weight(reference, layer))
    assert metadata["chip"] == "bm1684x"
    assert metadata["quantize"] == case.compilation.options.quantize


def test_tokenizer_files_come_back(llama: Case) -> None:
    assert llama.model.checkpoint is not None
    folder = llama.model.checkpoint.folder
    files = open_file(llama.path).tokenizer_files
    assert set(files) == {"tokenizer.json", "tokenizer_config.json", "config.json"}
    assert all(content == (folder / name).read_bytes() for name, content in files.items())


def test_summary_and_progress_tell_the_truth(case: Case) -> None:
    summary = case.summary
    assert summary.nbytes == case.path.stat().st_size == open_file(case.path).size
    assert summary.weight_nbytes + summary.program_nbytes + summary.snapshot_nbytes < summary.nbytes
    done = [now for now, _ in case.progress]
    assert done == sorted(done)
    assert case.progress[-1] == (summary.weight_nbytes, summary.weight_nbytes)


def test_opening_decodes_no_snapshot(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a count of the modules that are decoded
    decoded: list[bytes] = []
    unpack = deploy.unpack_snapshots
    monkeypatch.setattr(
        deploy, "unpack_snapshots", lambda packed, program: decoded.append(b"") or unpack(packed, program)
    )
    # WHEN a file is opened and asked for all that needs no snapshot THEN there are none
    compilation = open_file(case.path).compilation
    assert compilation.complete
    assert compilation.merged == case.compilation.merged
    assert "block_0" in compilation.modules
    assert not decoded
    # AND a module is decoded once
    assert compilation.snapshots("block_0") is compilation.snapshots("block_0")
    assert len(decoded) == 1


def test_a_bare_config_cannot_be_deployed(llama: Case, tmp_path: Path) -> None:
    bare = Model(llama.model.config, None)
    with pytest.raises(UserError, match=r"config\.json: this is a config without weights.*\*\.safetensors"):
        write_file(llama.compilation, bare, tmp_path / "x.tpuscope")
    assert not list(tmp_path.iterdir())


def test_an_incomplete_compilation_cannot_be_deployed(llama: Case, tmp_path: Path) -> None:
    partial = compile_model(llama.model, llama.compilation.options, only=["lm_head"])
    with pytest.raises(CompileError):
        write_file(partial, llama.model, tmp_path / "x.tpuscope")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def present(tmp_path: Path) -> Path:
    """A file that stands where the new one is to go."""
    path = tmp_path / "x.tpuscope"
    path.write_bytes(b"before")
    return path


def assert_untouched(path: Path) -> None:
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_file_that_was_there(llama: Case, present: Path) -> None:
    # GIVEN a checkpoint that lost a tensor after it was checked
    checkpoint = llama.model.checkpoint
    assert checkpoint is not None
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = {key: info for key, info in checkpoint.tensors.items() if key != name}
    broken = Model(llama.model.config, Checkpoint(checkpoint.folder, tensors))
    # WHEN it is written over a file
    with pytest.raises(UserError, match=name):
        write_file(llama.compilation, broken, present)
    # THEN that file stays and nothing else does
    assert_untouched(present)


def test_a_cancel_leaves_the_file_that_was_there(llama: Case, present: Path) -> None:
    cancel = threading.Event()
    with pytest.raises(CompileError, match="cancelled"):
        write_file(llama.compilation, llama.model, present, cancel=cancel, progress=lambda *_: cancel.set())
    assert_untouched(present)


def test_an_interrupt_leaves_the_file_that_was_there(llama: Case, present: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(llama.compilation, llama.model, present, progress=interrupt)
    assert_untouched(present)


def test_writing_replaces_the_file_behind_a_link(llama: Case, present: Path) -> None:
    link = present.with_name("link.tpuscope")
    link.symlink_to(present)
    write_file(llama.compilation, llama.model, link)
    assert link.is_symlink()
    assert_equal(open_file(present), llama.compilation)


@pytest.mark.parametrize("target", ["folder", "missing/x.tpuscope", "file/x.tpuscope"])
def test_a_path_that_cannot_be_written_is_named(llama: Case, tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"{target}: cannot be written \("):
        write_file(llama.compilation, llama.model, tmp_path / target)


def test_a_device_is_not_replaced_by_a_file(llama: Case, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"pipe: cannot be written \(it is a device or a pipe"):
        write_file(llama.compilation, llama.model, pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("tensor", ["index", "snapshots/block_0", "program/block_0"])
def test_whole_content_of_an_unknown_form_is_another_version(
    llama: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: str
) -> None:
    # GIVEN a file whose index, snapshots or program an earlier version wrote in its own form
    def earlier(compilation: Compilation, index: Any, folder: Path) -> dict[str, bytes]:
        return deploy_blobs(compilation, index, folder) | {tensor: b"{}"}

    deploy_blobs = deploy._blobs
    monkeypatch.setattr(deploy, "_blobs", earlier)
    monkeypatch.setattr(deploy, "version", lambda: "0.0.9")
    path = write_file(llama.compilation, llama.model, tmp_path / "old.tpuscope").path
    # WHEN it is read THEN it is not called damaged
    with pytest.raises(UserError, match=rf"another version of tpuscope \(0\.0\.9\).*'{tensor}'"):
        read_all(path, llama)


def test_a_compiled_file_is_known_by_its_header(llama: Case, tmp_path: Path) -> None:
    assert is_compiled_file(llama.path)
    assert is_compiled_file(llama.path.rename(tmp_path / "renamed").rename(llama.path))
    assert llama.model.checkpoint is not None
    assert not is_compiled_file(llama.model.checkpoint.folder / "model.safetensors")


@pytest.mark.parametrize(
    "tensor", ["index", "program/block_0", "snapshots/block_0", "weight/000000", "tokenizer/tokenizer.json"]
)
def test_damage_is_found_where_it_is_read(llama: Case, tmp_path: Path, tensor: str) -> None:
    # GIVEN a file with one byte of one tensor flipped
    path = damaged(llama.path, tmp_path, tensor)
    # WHEN everything is read THEN the tensor is named
    with pytest.raises(UserError, match=rf"x\.tpuscope: damaged: the checksum of tensor '{tensor}'"):
        read_all(path, llama)


@pytest.mark.parametrize("key", ["model", "chip", "quantize", "seq_length", "modules"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_header_that_does_not_fit_its_index_is_damage(
    llama: Case, tmp_path: Path, key: str, gone: bool
) -> None:
    # GIVEN a file in whose header one of the values that describe the program was changed or taken away
    content = llama.path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    was = header["__metadata__"].pop(key)
    if not gone:
        header["__metadata__"][key] = "x"
    text = json.dumps(header, separators=(",", ":")).encode().ljust(start - 8)
    copy = tmp_path / "x.tpuscope"
    copy.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])
    # WHEN it is opened THEN it is refused with what both say
    found = "does not say it" if gone else "says 'x'"
    with pytest.raises(UserError, match=rf"damaged: '{key}' is '{re.escape(was)}' in its index.*{found}"):
        open_file(copy)


def damaged(path: Path, folder: Path, tensor: str) -> Path:
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[start + open_file(path)._container.entries[tensor].begin + 3] ^= 0x10
    copy = folder / "x.tpuscope"
    copy.write_bytes(content)
    return copy


def read_all(path: Path, case: Case) -> None:
    """Read everything of a file and compare it with what was written."""
    file, whole = open_file(path), open_file(case.path)
    assert_equal(file, case.compilation)
    for reference, layer in uses(case.compilation):
        assert file.weight(reference, layer).tobytes() == whole.weight(reference, layer).tobytes()
    assert file.tokenizer_files == whole.tokenizer_files


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_any_damage_is_an_error_or_harmless(llama: Case, tmp_path: Path, data: st.DataObject) -> None:
    # GIVEN a file that was cut off or has bytes changed, most often in its header
    content = bytearray(llama.path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    if data.draw(st.booleans(), "cut off"):
        del content[data.draw(st.integers(0, len(content) - 1), "length") :]
    else:
        for _ in range(data.draw(st.integers(1, 3), "changes")):
            limit = data.draw(st.sampled_from([8, header, header, len(content)]), "region")
            position = data.draw(st.integers(0, limit - 1), "position")
            content[position] ^= data.draw(st.integers(1, 255), "mask")
    path = tmp_path / "damaged.tpuscope"
    path.write_bytes(content)
    # WHEN everything is read THEN it is refused with its name, or nothing that matters has changed
    assert refusal(path, llama) in (None, str(path))


def refusal(path: Path, case: Case) -> str | None:
    """The file that the refusal names; None when the file reads as it was written."""
    try:
        read_all(path, case)
    except UserError as error:
        return str(error).partition(":")[0]
    return None
