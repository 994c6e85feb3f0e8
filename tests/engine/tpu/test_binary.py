"""The container of a deployable file: its layout, its checks, its programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.numpy import save_file

from engine.errors import UserError
from engine.tpu import binary
from engine.tpu.isa import INSTRUCTION

DTYPES = {"f32": 4, "f16": 2, "bf16": 2, "ui8": 1}
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
TENSORS = st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), min_size=1, max_size=12)


def write(
    path: Path, contents: dict[str, bytes], *, about: dict[str, str] | None = None, wrong: bool = False
) -> Path:
    """A compiled file of the given ui8 tensors; `wrong` spoils the first checksum."""
    entries: list[binary.Entry] = []
    for name, content in contents.items():
        binary.append(entries, name, "ui8", len(content))
    sums = [e.checksum(binary.zlib.crc32(contents[e.name])) for e in entries]
    table = (np.array(sums, "<u4") + np.uint32(wrong)).tobytes()
    binary.append(entries, binary.CHECKSUMS, "ui32", len(sums))
    known = {**binary.identification(), binary.CHECKSUMS: binary.checksums_of(table), **(about or {})}
    path.write_bytes(binary.header(entries, known) + b"".join(contents.values()) + table)
    return path


@given(TENSORS)
def test_layout_has_no_gaps_and_aligns_every_tensor(tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    # GIVEN tensors of any dtype and shape
    named = [(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(tensors)]
    # WHEN they are laid out
    entries = binary.lay_out(named)
    # THEN they follow each other, as long as their shapes say, on the grid of their elements
    assert [e.begin for e in entries] == [0, *(e.end for e in entries[:-1])]
    by_name = {e.name: e for e in entries}
    for name, dtype, shape in named:
        assert by_name[name].nbytes == DTYPES[dtype] * np.prod(shape)
        assert by_name[name].begin % DTYPES[dtype] == 0
    # AND those whose size fits the 64-byte grid start on it
    assert all(e.begin % 64 == 0 for e in entries if e.nbytes % 64 == 0)


@given(TENSORS)
def test_any_safetensors_reader_accepts_the_layout(tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    entries = binary.lay_out((f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(tensors))
    # GIVEN the header and the bytes of a layout
    head = binary.header(entries, {"format": "tpuscope"})
    file = head + bytes(entries[-1].end)
    # WHEN the safetensors library reads them THEN it finds every tensor
    found = dict(deserialize(file))
    assert {e.name: (e.dtype, list(e.shape)) for e in entries} == {
        name: (t["dtype"], t["shape"]) for name, t in found.items()
    }
    assert len(head) % 64 == 0


@given(st.integers(0, 40), st.integers(0, 2**32))
def test_program_comes_back_from_its_columns(count: int, seed: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, count * INSTRUCTION.itemsize, np.uint8)
    program = raw.view(INSTRUCTION)
    again = binary.unpack_program(binary.pack_program(program))
    assert again.dtype == INSTRUCTION
    assert again.tobytes() == program.tobytes()


def test_program_of_a_broken_length_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole number"):
        binary.unpack_program(binary.zlib.compress(bytes(INSTRUCTION.itemsize + 1)))


def test_content_is_a_view_and_comes_back(tmp_path: Path) -> None:
    container = binary.open_container(write(tmp_path / "a.tpuscope", {"x": b"abc", "y": b""}))
    assert container.content("x") == b"abc"
    assert container.content("y") == b""
    assert container.array("x", "ui8", (3,)).tolist() == [97, 98, 99]
    assert not container.array("x", "ui8", (3,)).flags.writeable


def test_array_of_another_shape_is_refused(tmp_path: Path) -> None:
    container = binary.open_container(write(tmp_path / "a.tpuscope", {"x": b"abcd"}))
    with pytest.raises(UserError, match=r"'x' is U8 \[4\], its module needs f32 \[1\]"):
        container.array("x", "f32", (1,))


def test_wrong_checksum_is_found_when_the_tensor_is_read(tmp_path: Path) -> None:
    container = binary.open_container(write(tmp_path / "a.tpuscope", {"x": b"abc", "y": b"d"}, wrong=True))
    with pytest.raises(UserError, match=r"a\.tpuscope: damaged: the checksum of tensor 'x'"):
        container.content("x")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    container = binary.open_container(write(tmp_path / "a.tpuscope", {"x": b"abc"}))
    with pytest.raises(UserError, match="tensor 'index' is missing"):
        container.content("index")


@pytest.mark.parametrize("key", ["format_version", "instruction_format"])
def test_another_version_is_refused_with_both(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "a.tpuscope", {"x": b""}, about={key: "other", "tpuscope_version": "9.9"})
    with pytest.raises(UserError, match=rf"tpuscope 9\.9 with {key} 'other'.*compile the model again"):
        binary.open_container(path)


def test_foreign_safetensors_is_no_compiled_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(3, np.int64)}, path)
    assert not binary.is_compiled_file(path)
    with pytest.raises(UserError, match="not a compiled one; make one with: tpuscope compile"):
        binary.open_container(path)


@pytest.mark.parametrize("content", [b"", b"short", b"{}" * 40, bytes(100), b"\xff" * 100])
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    assert not binary.is_compiled_file(path)
    with pytest.raises(UserError, match=r"x\.bin: "):
        binary.open_container(path)


def test_cut_off_and_overlong_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tpuscope", {"x": b"abc" * 100})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match="cut off: its tensors end at byte"):
        binary.open_container(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(UserError, match="1 bytes follow the last tensor"):
        binary.open_container(path)


def test_what_counts_as_a_compiled_file(tmp_path: Path) -> None:
    # GIVEN a compiled file under another name, a damaged one under its own, a folder and nothing
    assert binary.is_compiled_file(write(tmp_path / "renamed.bin", {"x": b""}))
    (tmp_path / "damaged.tpuscope").write_bytes(b"?")
    assert binary.is_compiled_file(tmp_path / "damaged.tpuscope")
    (tmp_path / "folder.tpuscope").mkdir()
    assert not binary.is_compiled_file(tmp_path / "folder.tpuscope")
    assert not binary.is_compiled_file(tmp_path / "missing.tpuscope")
