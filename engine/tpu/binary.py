"""The container of a deployable file: safetensors, laid out before it is written and mapped into memory when read.

Any safetensors reader opens it. Every tensor has a CRC-32, checked when the tensor is first read. A program is stored
as the bytes of its INSTRUCTION records in columns (byte 0 of every record, then byte 1, ...), compressed: neighbouring
instructions differ in few columns, which makes it ten times smaller than compressed rows.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from engine.tpu.isa import INSTRUCTION
from engine.tpu.weights import NUMPY_DTYPES

SUFFIX = ".tpuscope"
FORMAT = "tpuscope"
"""Value of the header's `format`."""

FORMAT_VERSION = "1"
INSTRUCTION_FORMAT = f"{zlib.crc32(repr(INSTRUCTION.descr).encode()):08x}"
"""Changes with the fields of an instruction, whatever their number."""

CHECKSUMS = "checksums"
"""The tensor with the checksum of every other one, in the order of their data; the header holds its own."""

_STORED_DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "ui8": "U8", "ui32": "U32"}
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "U32": 4}
_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 100_000_000
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored tensor; `begin` and `end` are bytes from the start of the data. dtype as safetensors writes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.begin

    def checksum(self, content_checksum: int) -> int:
        """Covers the content, of which the CRC-32 is given, and what the header says of it."""
        described = f"{self.name} {self.dtype} {self.shape}"
        return zlib.crc32(described.encode()) ^ content_checksum


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[Entry]:
    """Entries of (name, IR dtype, shape), one behind the other: sizes that keep the 64-byte grid first, then the rest
    by element size, so that every tensor is aligned to its elements and nearly all to a cache line."""
    sized = []
    for name, dtype, shape in tensors:
        stored = _STORED_DTYPES[dtype]
        sized.append((name, stored, shape, prod(shape) * _ITEM_BYTES[stored]))
    sized.sort(key=lambda t: 0 if t[3] % _ALIGNMENT == 0 else 5 - _ITEM_BYTES[t[1]])
    entries, end = [], 0
    for name, stored, shape, nbytes in sized:
        entries.append(Entry(name, stored, shape, end, end + nbytes))
        end += nbytes
    return entries


def append(entries: list[Entry], name: str, dtype: str, count: int) -> None:
    """Add the entry of a one-dimensional tensor behind all others."""
    begin = entries[-1].end if entries else 0
    stored = _STORED_DTYPES[dtype]
    entries.append(Entry(name, stored, (count,), begin, begin + count * _ITEM_BYTES[stored]))


def header(entries: Iterable[Entry], metadata: Mapping[str, str]) -> bytes:
    """What stands in front of the data, padded so that the data starts on the 64-byte grid."""
    values: dict[str, Any] = {"__metadata__": dict(metadata)}
    for entry in entries:
        values[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (entry.begin, entry.end),
        }
    text = msgspec.json.encode(values)
    padded = text.ljust(-(-(len(text) + _LENGTH.size) // _ALIGNMENT) * _ALIGNMENT - _LENGTH.size)
    return _LENGTH.pack(len(padded)) + padded


def checksums_of(table: bytes | memoryview) -> str:
    """The header's value for the bytes of the checksum table."""
    return f"{zlib.crc32(table):08x}"


def identification() -> dict[str, str]:
    """The header's metadata by which a reader knows a compiled file and its version."""
    return {"format": FORMAT, "format_version": FORMAT_VERSION, "instruction_format": INSTRUCTION_FORMAT}


# -- programs ------------------------------------------------------------------------------------------------------


def pack_program(program: NDArray[Any]) -> bytes:
    """Compress INSTRUCTION records."""
    columns = np.ascontiguousarray(program).view(np.uint8).reshape(len(program), INSTRUCTION.itemsize).T
    return zlib.compress(np.ascontiguousarray(columns).data, 1)


def unpack_program(packed: bytes | memoryview) -> NDArray[Any]:
    """Inverse of `pack_program`. Raises ValueError for bytes that are no whole number of compressed records."""
    try:
        raw = np.frombuffer(zlib.decompress(packed), np.uint8)
    except zlib.error as error:
        raise ValueError(f"no compressed instructions: {error}") from None
    if raw.size % INSTRUCTION.itemsize:
        raise ValueError(f"{raw.size} bytes are no whole number of {INSTRUCTION.itemsize}-byte instructions")
    records = np.ascontiguousarray(raw.reshape(INSTRUCTION.itemsize, -1).T)
    return records.reshape(-1).view(INSTRUCTION)


# -- reading -------------------------------------------------------------------------------------------------------


class _HeaderEntry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Container:
    """An open file. Tensors are views of the mapped file, without a copy.

    metadata: the header's strings. entries: the stored tensors by name. size: of the file in bytes.
    """

    def __init__(
        self, path: Path, view: memoryview, start: int, metadata: Mapping[str, str], entries: list[Entry]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.entries = {entry.name: entry for entry in entries}
        self.size = len(view)
        self._view = view
        self._start = start
        self._unchecked = self._checksums(entries)

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Read-only view of a tensor that must have this IR dtype and shape. Raises UserError unless it does."""
        entry = self._entry(name)
        if (entry.dtype, entry.shape) != (_STORED_DTYPES.get(dtype), shape):
            raise self.damaged(
                f"tensor '{name}' is {entry.dtype} {list(entry.shape)}, its module needs {dtype} {list(shape)}"
            )
        return np.frombuffer(self.content(name), np.uint8).view(NUMPY_DTYPES[dtype]).reshape(shape)

    def content(self, name: str) -> memoryview:
        """The bytes of a tensor. Raises UserError when it is missing or its checksum does not fit."""
        entry = self._entry(name)
        content = self._slice(entry)
        if name in self._unchecked:
            if entry.checksum(zlib.crc32(content)) != self._unchecked[name]:
                raise self.damaged(f"the checksum of tensor '{name}' does not fit")
            del self._unchecked[name]
        return content

    def damaged(self, what: str) -> UserError:
        """The error for a file that was changed after it was written."""
        return UserError(f"{self.path}: damaged: {what}; compile the model again")

    def of_another_version(self, tensor: str, reason: Exception) -> UserError:
        """The error for a tensor whose checksum fits and whose content this version cannot take in."""
        writer = self.metadata.get("tpuscope_version", "an unknown version")
        return UserError(
            f"{self.path}: written by another version of tpuscope ({writer}): this one cannot read its tensor"
            f" '{tensor}' ({reason}); compile the model again"
        )

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise self.damaged(f"tensor '{name}' is missing")
        return self.entries[name]

    def _slice(self, entry: Entry) -> memoryview:
        return self._view[self._start + entry.begin : self._start + entry.end]

    def _checksums(self, entries: list[Entry]) -> dict[str, int]:
        """What the checksum of each tensor must be."""
        content = self._slice(self._entry(CHECKSUMS))
        if len(content) % 4 or checksums_of(content) != self.metadata.get(CHECKSUMS):
            raise self.damaged("the table of checksums does not fit its own")
        others = [entry.name for entry in entries if entry.name != CHECKSUMS]
        values = np.frombuffer(bytes(content), "<u4").tolist()
        if len(values) != len(others):
            raise self.damaged(f"{len(values)} checksums for {len(others)} tensors")
        return dict(zip(others, values, strict=True))


def is_compiled_file(path: Path | str) -> bool:
    """True for a file that says so in its header, and for any file named *.tpuscope (it may be a damaged one)."""
    path = Path(path)
    if not path.is_file():
        return False
    if path.suffix == SUFFIX:
        return True
    try:
        metadata, _, _ = _read_header(path, _map(path))
    except UserError:
        return False
    return metadata.get("format") == FORMAT


def open_container(path: Path | str) -> Container:
    """Map a compiled file and check its header.

    Raises UserError for a file that is missing, not safetensors, not a compiled file, of another version, cut off or
    damaged.
    """
    path = Path(path)
    view = _map(path)
    metadata, entries, start = _read_header(path, view)
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"{path}: a safetensors file, but not a compiled one; make one with: tpuscope compile MODEL -o FILE"
        )
    for key, needed in identification().items():
        if metadata.get(key) != needed:
            writer = metadata.get("tpuscope_version", "an unknown version")
            raise UserError(
                f"{path}: written by tpuscope {writer} with {key} {metadata.get(key)!r}; this tpuscope reads"
                f" {needed!r}; compile the model again"
            )
    end = start + (entries[-1].end if entries else 0)
    if end > len(view):
        raise UserError(
            f"{path}: cut off: its tensors end at byte {end}, the file has {len(view)} bytes; compile the model again"
        )
    container = Container(path, view, start, metadata, entries)
    if end < len(view):
        raise container.damaged(f"{len(view) - end} bytes follow the last tensor")
    return container


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise UserError(f"{path}: empty; a compiled file is needed")
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _read_header(path: Path, view: memoryview) -> tuple[dict[str, str], list[Entry], int]:
    """(metadata, entries in the order of their data, byte where the data starts)."""
    length = _LENGTH.unpack_from(view)[0] if len(view) >= _LENGTH.size else 0
    if not 2 <= length <= min(len(view) - _LENGTH.size, _LARGEST_HEADER):
        raise UserError(f"{path}: not a compiled file, or cut off in its header ({len(view)} bytes)")
    start = _LENGTH.size + length
    try:
        values = msgspec.json.decode(view[_LENGTH.size : start], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(values.pop("__metadata__", b"{}"), type=dict[str, str])
        found = {name: msgspec.json.decode(raw, type=_HeaderEntry) for name, raw in values.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not a compiled file, or a damaged one; its header is malformed: {error}"
        ) from None
    entries = [Entry(name, e.dtype, e.shape, *e.data_offsets) for name, e in found.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_entries(path, entries)
    return metadata, entries, start


def _check_entries(path: Path, entries: list[Entry]) -> None:
    """Tensors follow each other without a gap, each as long as its shape says."""
    end = 0
    for entry in entries:
        nbytes = prod(entry.shape) * _ITEM_BYTES.get(entry.dtype, 0)
        known = entry.dtype in _ITEM_BYTES and all(size >= 0 for size in entry.shape)
        if entry.begin != end or (known and entry.nbytes != nbytes) or entry.end < entry.begin:
            raise UserError(
                f"{path}: not a compiled file, or a damaged one: the header entry of tensor '{entry.name}' "
                f"({entry.dtype} {list(entry.shape)}, bytes {entry.begin} to {entry.end}) does not fit its neighbours"
            )
        end = entry.end
