from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tiny import write_json, write_tiny

from engine.errors import UserError
from engine.top.checkpoint.config import load_config
from engine.top.checkpoint.layout import expected_tensors
from engine.top.checkpoint.tensors import Checkpoint, has_weights, open_checkpoint

NORM = "model.norm.weight"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def refused(path: Path, *words: str) -> None:
    with pytest.raises(UserError) as error:
        open_checkpoint(path)
    assert all(word in str(error.value) for word in words), error.value


def check_refused(folder: Path, *words: str) -> None:
    checkpoint = open_checkpoint(folder)
    with pytest.raises(UserError) as error:
        checkpoint.check(expected_tensors(load_config(folder)))
    assert all(word in str(error.value) for word in words), error.value


def rewrite(file: Path, change: Any) -> None:
    """Apply `change` to the dict of the tensors of a safetensors file."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def rewrite_header(file: Path, change: Any) -> None:
    """Apply `change` to the header of a safetensors file; the data stay."""
    raw = file.read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:end])
    write_raw(file, change(header) or header, raw[end:])


def write_raw(file: Path, header: Any, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    ("stored", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16), ("f32", np.float32)]
)
@pytest.mark.parametrize("shards", [1, 2])
def test_tensors_are_read_as_stored(tmp_path: Path, stored: str, dtype: Any, shards: int) -> None:
    # GIVEN a checkpoint in one file or two shards
    folder = write_tiny(tmp_path, "llama", dtype=stored, shards=shards)
    written = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    # WHEN every tensor is read
    checkpoint = open_checkpoint(folder)
    # THEN all are there with the written bits
    assert checkpoint.dtype == stored
    assert set(checkpoint.tensors) == set(written)
    for name, values in written.items():
        read = checkpoint.tensor(name)
        assert read.dtype == dtype
        assert read.shape == values.shape
        assert read.tobytes() == values.tobytes()


def test_a_tensor_is_a_view_of_the_file(tmp_path: Path) -> None:
    # GIVEN a tensor read from a checkpoint
    folder = write_tiny(tmp_path, "llama", dtype="f32")
    checkpoint = open_checkpoint(folder)
    first = checkpoint.tensor(NORM)
    # WHEN the file changes in place
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.seek(checkpoint.info(NORM).offset)
        stream.write(struct.pack("<f", 42.0))
    # THEN the array shows it, because nothing was copied, and cannot be written to
    assert first[0] == 42.0
    assert not first.flags.writeable
    assert not first.flags.owndata


def test_opening_reads_only_the_headers(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path, "llama"))
    assert checkpoint._maps == {}


def test_a_checkpoint_travels_to_another_process(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path, "qwen2"))
    values = checkpoint.tensor(NORM)
    copy: Checkpoint = pickle.loads(pickle.dumps(checkpoint))
    assert copy._maps == {}
    assert np.array_equal(copy.tensor(NORM), values)


def test_data_that_are_not_aligned(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]}
    write_raw(tmp_path / "model.safetensors", {"w": entry}, b"\x07" + values.tobytes())
    assert np.array_equal(open_checkpoint(tmp_path).tensor("w"), values)


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    save_file(
        {"s": np.array(3, np.float32), "e": np.zeros((0, 4), np.float16)}, tmp_path / "model.safetensors"
    )
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensor("s") == 3
    assert checkpoint.tensor("e").shape == (0, 4)


def test_a_folder_can_be_named_by_its_config(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama")
    assert NORM in open_checkpoint(folder / "config.json").tensors


def test_has_weights(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", "llama")
    bare = write_json(folder / "Other-7B.json", {})
    assert has_weights(folder)
    assert has_weights(folder / "config.json")
    assert not has_weights(bare)
    assert not has_weights(tmp_path)
    refused(bare, "Other-7B.json", "no weights")
    refused(tmp_path / "absent", "absent", "no such folder")


def test_the_index_decides_which_files_count(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "mistral", shards=2)
    (folder / "consolidated.safetensors").write_bytes((folder / SHARDS[0]).read_bytes())
    assert {info.file.name for info in open_checkpoint(folder).tensors.values()} == set(SHARDS)


def test_no_weights(tmp_path: Path) -> None:
    refused(tmp_path, str(tmp_path), "no weights", "model.safetensors")
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"")
    refused(tmp_path, "pytorch_model", "convert")


def test_several_files_and_no_index(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama", shards=2)
    (folder / INDEX).unlink()
    refused(folder, *SHARDS, INDEX)


def test_missing_shard(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama", shards=2)
    (folder / SHARDS[1]).unlink()
    refused(folder, SHARDS[1], "missing", "model.layers.")


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama", shards=2)
    rewrite(folder / SHARDS[0], lambda tensors: tensors.update({NORM: np.ones(64, np.float32)}))
    refused(folder, SHARDS[0], SHARDS[1], NORM)


def test_tensor_that_the_index_puts_in_the_wrong_shard(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama", shards=2)
    rewrite(folder / SHARDS[1], lambda tensors: tensors.pop(NORM))
    refused(folder, SHARDS[1], NORM, INDEX)


def test_tensor_that_the_index_leaves_out(tmp_path: Path) -> None:
    # GIVEN an index without a tensor that its shards hold
    folder = write_tiny(tmp_path, "llama", shards=2)
    index = json.loads((folder / INDEX).read_text())
    shard = index["weight_map"].pop(NORM)
    write_json(folder / INDEX, index)
    checkpoint = open_checkpoint(folder)
    expected = {name: info.shape for name, info in checkpoint.tensors.items()}
    # WHEN the model needs it THEN index, tensor and shard are named
    with pytest.raises(
        UserError, match=rf"{INDEX}: 'weight_map' does not list 1 tensor.*{NORM} \(in {shard}\)"
    ):
        checkpoint.check(expected)
    # and it is unknown to a model that does not
    del expected[NORM]
    with pytest.raises(UserError, match=rf"1 tensor\(s\) unknown to the model.*{NORM}"):
        checkpoint.check(expected)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{", ["not valid JSON"]),
        ("{}", ["weight_map", "no tensors"]),
        ('{"weight_map": []}', ["weight_map", "object"]),
        ('{"weight_map": {"w": 3}}', ["'w'", "file"]),
        ('{"weight_map": {"w": "../other.safetensors"}}', ["'w'", "same folder"]),
        ('{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}', ["'w'", "twice"]),
    ],
)
def test_damaged_index(tmp_path: Path, index: str, words: list[str]) -> None:
    (tmp_path / INDEX).write_text(index)
    refused(tmp_path, INDEX, *words)


def test_cut_off_file_names_the_tensor(tmp_path: Path) -> None:
    # GIVEN a file without its last byte
    file = write_tiny(tmp_path, "llama") / "model.safetensors"
    last = max(open_checkpoint(tmp_path).tensors.values(), key=lambda info: info.offset)
    file.write_bytes(file.read_bytes()[:-1])
    # THEN the tensor that lost it is named
    refused(tmp_path, "model.safetensors", "cut off", last.name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not a safetensors file"]),
        (b"\x10", ["not a safetensors file"]),
        (struct.pack("<Q", 1000) + b"{}", ["cut off in its header"]),
        (struct.pack("<Q", 2**63) + b"{}", ["not a safetensors file"]),
        (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", ["not text"]),
        (struct.pack("<Q", 4) + b"[1] ", ["header", "object"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ["Git LFS", "git lfs pull"]),
    ],
)
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, "model.safetensors", *words)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"w": 3}, ["'w'", "malformed"]),
        ({"w": GOOD | {"shape": [-2]}}, ["'w'", "malformed"]),
        ({"w": GOOD | {"shape": [True]}}, ["'w'", "malformed"]),
        ({"w": GOOD | {"dtype": 32}}, ["'w'", "malformed"]),
        ({"w": GOOD | {"data_offsets": [0]}}, ["'w'", "malformed"]),
        ({"w": {"dtype": "F32"}}, ["'w'", "malformed"]),
        ({"w": GOOD | {"data_offsets": [8, 0]}}, ["'w'", "before"]),
        ({"w": GOOD | {"data_offsets": [8, 16]}}, ["'w'", "cut off"]),
        ({"w": GOOD | {"shape": [3]}}, ["'w'", "8 bytes"]),
        ({"w": GOOD, "v": {"dtype": "F16", "shape": [2], "data_offsets": [4, 8]}}, ["'w'", "'v'", "overlap"]),
        (b'{"w": {}, "w": {}}', ["'w'", "twice"]),
    ],
)
def test_damaged_headers(tmp_path: Path, header: Any, words: list[str]) -> None:
    write_raw(tmp_path / "model.safetensors", header, bytes(8))
    refused(tmp_path, "model.safetensors", *words)


def test_check_names_missing_tensors(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama")
    rewrite(folder / "model.safetensors", lambda tensors: tensors.pop(NORM))
    check_refused(folder, NORM, "missing", str(folder))


def test_check_names_wrong_shapes(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama")
    rewrite(folder / "model.safetensors", lambda tensors: tensors.update({NORM: np.ones(63, np.float32)}))
    check_refused(folder, "model.safetensors", NORM, "[63]", "[64]")


def test_check_names_unknown_tensors(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama")
    extra = "model.layers.0.self_attn.q_proj.bias"
    rewrite(folder / "model.safetensors", lambda tensors: tensors.update({extra: np.ones(64, np.float32)}))
    check_refused(folder, "model.safetensors", extra)


def test_check_refuses_other_dtypes_only_where_a_weight_is_needed(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, "llama")
    stale = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float64)}
    rewrite(folder / "model.safetensors", lambda tensors: tensors.update(stale))
    open_checkpoint(folder).check(expected_tensors(load_config(folder)))
    rewrite(folder / "model.safetensors", lambda tensors: tensors.update({NORM: np.ones(64, np.int32)}))
    check_refused(folder, NORM, "I32", "BF16, F16, F32")
    with pytest.raises(UserError, match="I32"):
        open_checkpoint(folder).tensor(NORM)


def test_unknown_dtypes_are_listed_and_refused_when_needed(tmp_path: Path) -> None:
    file = write_tiny(tmp_path, "llama") / "model.safetensors"
    rewrite_header(file, lambda header: header[NORM].update(dtype="F4"))
    assert open_checkpoint(tmp_path).info(NORM).dtype == "F4"
    check_refused(tmp_path, NORM, "F4")


def test_a_stored_head_of_a_tied_model_must_equal_the_embedding(tmp_path: Path) -> None:
    # GIVEN a tied checkpoint that stores the head as well
    file = write_tiny(tmp_path, "llama", tie=True) / "model.safetensors"
    rewrite(
        file, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()})
    )
    # THEN an equal copy is ignored and a different one is not
    open_checkpoint(tmp_path).check(expected_tensors(load_config(tmp_path)))
    rewrite(file, lambda tensors: tensors["lm_head.weight"].__setitem__((0, 0), 100))
    check_refused(tmp_path, "lm_head.weight", "tie_word_embeddings")


def test_asking_for_an_unknown_tensor(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny(tmp_path, "llama"))
    with pytest.raises(UserError, match="'no\\.such'"):
        checkpoint.tensor("no.such")


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 3000), value=st.integers(0, 255))
def test_any_damaged_byte_of_the_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    # GIVEN a checkpoint with one byte of its length or header changed
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not (folder / "original").exists():
        write_tiny(folder, "llama", layers=1)
        (folder / "original").write_bytes((folder / "model.safetensors").read_bytes())
    raw = bytearray((folder / "original").read_bytes())
    raw[min(position, 7 + struct.unpack("<Q", raw[:8])[0])] = value
    (folder / "model.safetensors").write_bytes(raw)
    # WHEN it is opened, checked and read
    try:
        checkpoint = open_checkpoint(folder)
        checkpoint.check(expected_tensors(load_config(folder)))
    except UserError:
        return
    # THEN it either is refused as the user's to mend or gives tensors of the right shapes
    for name, shape in expected_tensors(load_config(folder)).items():
        assert checkpoint.tensor(name).shape == shape
