"""The tensors of a checkpoint folder: listed from the safetensors headers, mapped into memory when asked for.

The headers are parsed here because the safetensors library neither tells where a tensor lies in its file nor
gives NumPy a view of it (its numpy framework copies), and its messages do not name the damaged tensor.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from engine.errors import UserError
from engine.top.checkpoint.fields import Fields, listed, parse_json_object, read_json_object

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_IGNORABLE_SUFFIXES = (".rotary_emb.inv_freq",)
"""Tensors that older exporters stored although they follow from the config."""

_WEIGHT_DTYPES: dict[str, tuple[str, Any]] = {
    "BF16": ("bf16", np.dtype(ml_dtypes.bfloat16)),
    "F16": ("f16", np.dtype(np.float16)),
    "F32": ("f32", np.dtype(np.float32)),
}
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_LENGTH_BYTES = 8
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is stored: `offset` and `nbytes` in bytes of `file`; `dtype` as in the header."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Checkpoint:
    """The stored tensors of a checkpoint. Picklable; a copy in another process maps the files anew.

    unlisted: names of those that are in a shard although the index does not list them.
    """

    def __init__(
        self, folder: Path, tensors: Mapping[str, TensorInfo], unlisted: Collection[str] = ()
    ) -> None:
        self.folder = folder
        self.tensors = tensors
        self.unlisted = frozenset(unlisted)
        self._maps: dict[Path, mmap.mmap] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}

    @property
    def dtype(self) -> str:
        """bf16, f16 or f32: how the embedding, or else the first floating-point weight, is stored."""
        stored = [info.dtype for info in self.tensors.values() if info.dtype in _WEIGHT_DTYPES]
        if EMBEDDING in self.tensors:
            stored.insert(0, self.tensors[EMBEDDING].dtype)
        if not stored or stored[0] not in _WEIGHT_DTYPES:
            raise UserError(f"{self.folder}: no weight is stored as {', '.join(_WEIGHT_DTYPES)}")
        return _WEIGHT_DTYPES[stored[0]][0]

    def info(self, name: str) -> TensorInfo:
        """Where `name` is stored. Raises UserError when the checkpoint does not have it."""
        if name not in self.tensors:
            raise UserError(f"{self.folder}: tensor '{name}' is not in this checkpoint")
        return self.tensors[name]

    def tensor(self, name: str) -> np.ndarray:
        """Read-only view of the file, no copy: bfloat16, float16 or float32 in the stored shape."""
        info = self.info(name)
        dtype = _weight_dtype(info)
        if info.nbytes == 0:
            return np.empty(info.shape, dtype)
        stored = np.frombuffer(self._map(info.file), np.uint8, info.nbytes, info.offset)
        return stored.view(dtype).reshape(info.shape)

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Raise UserError unless the checkpoint holds exactly the `expected` tensors, in usable dtypes, and its index
        lists them.

        Allowed besides: `*.rotary_emb.inv_freq` and, when it is not expected because the config ties it, an
        `lm_head.weight` equal to the embedding.
        """
        missing = [name for name in expected if name not in self.tensors]
        if missing:
            raise UserError(
                f"{self.folder}: {len(missing)} tensor(s) missing: {listed(missing)}; config.json and the"
                " weights must be of one model"
            )
        unlisted = [name for name in expected if name in self.unlisted]
        if unlisted:
            raise UserError(
                f"{self.folder / _INDEX}: 'weight_map' does not list {len(unlisted)} tensor(s) that the model needs and"
                f" that are in its shards: {listed(unlisted)} (in {self.tensors[unlisted[0]].file.name}); add them, or"
                " copy the index again: it is not the one of these shards"
            )
        for name, shape in expected.items():
            info = self.tensors[name]
            if info.shape != tuple(shape):
                raise UserError(
                    f"{info.file}: tensor '{name}' has shape {list(info.shape)}; config.json asks for"
                    f" {list(shape)}"
                )
            _weight_dtype(info)
        self._refuse_extras(name for name in self.tensors if name not in expected)

    def _refuse_extras(self, names: Iterable[str]) -> None:
        extras = [name for name in names if not name.endswith(_IGNORABLE_SUFFIXES)]
        if LM_HEAD in extras and EMBEDDING in self.tensors:
            extras.remove(LM_HEAD)
            self._refuse_untied_head()
        if extras:
            file = self.tensors[extras[0]].file
            raise UserError(
                f"{file}: {len(extras)} tensor(s) unknown to the model in config.json: {listed(extras)};"
                " config.json and the weights must be of one model"
            )

    def _refuse_untied_head(self) -> None:
        head, embedding = self.tensors[LM_HEAD], self.tensors[EMBEDDING]
        same_form = (head.dtype, head.shape) == (embedding.dtype, embedding.shape)
        if same_form and np.array_equal(
            self.tensor(LM_HEAD).view(np.uint8), self.tensor(EMBEDDING).view(np.uint8)
        ):
            return
        raise UserError(
            f"{head.file}: tensor '{LM_HEAD}' differs from '{EMBEDDING}' although config.json ties them; set"
            " 'tie_word_embeddings' to false to use it"
        )

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            try:
                with file.open("rb") as stream:
                    self._maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise UserError(f"{file}: cannot be mapped into memory ({error})") from None
        return self._maps[file]


def has_weights(path: Path | str) -> bool:
    """True when the checkpoint folder (or the folder of a config.json) holds safetensors files."""
    path = Path(path)
    if path.is_file():
        return path.name == "config.json" and has_weights(path.parent)
    return (path / _INDEX).exists() or any(path.glob("*.safetensors"))


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The tensors of a checkpoint folder (or the folder of a config.json), by its index when it has one.

    Raises UserError naming the file, and the tensor if there is one, for what is missing, doubled or damaged.
    """
    folder = Path(path)
    if folder.is_file():
        if folder.name != "config.json":
            raise UserError(f"{folder}: holds no weights; the checkpoint's folder is needed")
        folder = folder.parent
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    if (folder / _INDEX).exists():
        return _by_index(folder)
    return Checkpoint(folder, _read_header(_single_file(folder)))


def _single_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.safetensors"))
    if folder / _SINGLE in files:
        return folder / _SINGLE
    if len(files) == 1:
        return files[0]
    if files:
        names = listed(file.name for file in files)
        raise UserError(f"{folder}: several safetensors files ({names}) and no {_INDEX}; add it or keep one")
    if any(folder.glob("pytorch_model*.bin")):
        raise UserError(
            f"{folder}: the weights are in pytorch_model*.bin; convert them to safetensors, for example by"
            " loading the model with transformers and calling save_pretrained"
        )
    raise UserError(f"{folder}: no weights; {_SINGLE}, or {_INDEX} and its shards, is needed in this folder")


def _by_index(folder: Path) -> Checkpoint:
    index = folder / _INDEX
    weight_map = Fields(str(index), read_json_object(index)).nested("weight_map")
    for name, shard in weight_map.values.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise weight_map.refusal(name, "the name of a file in the same folder is needed")
    if not weight_map.values:
        raise UserError(f"{index}: 'weight_map' lists no tensors")
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(weight_map.values.values())):
        if not (folder / shard).exists():
            users = [name for name, file in weight_map.values.items() if file == shard]
            raise UserError(
                f"{folder / shard}: this shard is missing; {_INDEX} expects {len(users)} tensor(s) there:"
                f" {listed(users)}"
            )
        for name, info in _read_header(folder / shard).items():
            if name in tensors:
                other = tensors[name].file.name
                raise UserError(f"{info.file}: tensor '{name}' is also in {other}; remove one")
            tensors[name] = info
    for name, shard in weight_map.values.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise UserError(
                f"{folder / shard}: tensor '{name}' is not in this shard although {_INDEX} says so"
            )
    return Checkpoint(folder, tensors, tensors.keys() - weight_map.values.keys())


def _read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors that a safetensors file lists; all lie within the file and none overlap."""
    header, start, size = _header_text(file)
    entries = parse_json_object(header, f"{file} (header)")
    entries.pop("__metadata__", None)
    tensors = {name: _entry(file, name, entry, start, size) for name, entry in entries.items()}
    end, previous = start, ""
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.nbytes and info.offset < end:
            raise UserError(f"{file}: tensors '{previous}' and '{info.name}' overlap; the file is damaged")
        end, previous = max(end, info.offset + info.nbytes), info.name
    return tensors


def _header_text(file: Path) -> tuple[str, int, int]:
    """(header, byte where the data starts, file size)."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(_LENGTH_BYTES)
            if head.startswith(b"version "):
                raise UserError(f"{file}: a Git LFS pointer, not the weights; fetch them with: git lfs pull")
            length = struct.unpack("<Q", head)[0] if len(head) == _LENGTH_BYTES else size
            if not 2 <= length <= min(size - _LENGTH_BYTES, _LARGEST_HEADER):
                raise UserError(f"{file}: not a safetensors file, or cut off in its header ({size} bytes)")
            return stream.read(length).decode("utf-8"), _LENGTH_BYTES + length, size
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: not a safetensors file; its header is not text") from None


def _entry(file: Path, name: str, entry: Any, start: int, size: int) -> TensorInfo:
    damaged = f"{file}: the header entry of tensor '{name}' is malformed"
    if not isinstance(entry, dict):
        raise UserError(f"{damaged}; an object is needed")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise UserError(f"{damaged}; dtype, shape and two data_offsets are needed")
    begin, end = offsets
    if begin > end:
        raise UserError(f"{damaged}; its data would end ({end}) before it begins ({begin})")
    if start + end > size:
        raise UserError(
            f"{file}: cut off within tensor '{name}', which ends at byte {start + end}; the file has {size}"
            " bytes; download it again"
        )
    if dtype in _ITEM_BYTES and end - begin != prod(shape) * _ITEM_BYTES[dtype]:
        raise UserError(f"{damaged}; {dtype} {shape} is not {end - begin} bytes")
    return TensorInfo(name, file, dtype, tuple(shape), start + begin, end - begin)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _weight_dtype(info: TensorInfo) -> np.dtype[Any]:
    if info.dtype not in _WEIGHT_DTYPES:
        raise UserError(
            f"{info.file}: tensor '{info.name}' is stored as {info.dtype}; supported for weights:"
            f" {', '.join(_WEIGHT_DTYPES)}"
        )
    dtype: np.dtype[Any] = _WEIGHT_DTYPES[info.dtype][1]
    return dtype
