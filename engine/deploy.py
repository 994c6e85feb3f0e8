"""The deployable file (`NAME.tpuscope`): everything that was compiled, with each distinct weight stored once.

    summary = write_file(compilation, model, "smol.tpuscope")
    file = open_file("smol.tpuscope")
    file.compilation.merged, file.program("block_0"), file.weight(reference, layer)

Tensors of the file (`engine/tpu/binary.py` is its container): `weight/000123`, the numbers of a weight reference in one
layer; `program/MODULE` and `snapshots/MODULE`; `tokenizer/FILE`, the checkpoint's file as it is; `index`, JSON with
config, options, modules, addresses and which weight lies where; `checksums`.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.compiler import WORKERS, Compilation, Model, worker_context
from engine.errors import UserError
from engine.merge import ADDRESSED, Bases, MergePlan, PlacedWeight, placed_weights
from engine.options import CompileOptions
from engine.snapshot import ModuleSnapshots
from engine.snapshot_codec import pack_snapshots, program_of, unpack_snapshots
from engine.stages import ModuleSpec
from engine.top.checkpoint.config import ModelConfig
from engine.top.checkpoint.source import ModelTensors
from engine.tpu import binary
from engine.tpu.binary import is_compiled_file
from engine.tpu.memory import KvRegion
from engine.tpu.weights import WeightReference
from engine.version import version
from engine.weight_writer import Progress, WeightJob, write_weights

__all__ = ["CompiledFile", "FileSummary", "is_compiled_file", "open_file", "write_file"]

INDEX = "index"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
"""Files of a checkpoint folder that are kept, so that text can be generated without it."""

_WEIGHT, _PROGRAM, _SNAPSHOTS, _TOKENIZER = "weight/", "program/", "snapshots/", "tokenizer/"


# -- the index -----------------------------------------------------------------------------------------------------


class _StoredModule(msgspec.Struct, forbid_unknown_fields=True):
    """bases: of each layer. storage: for each of `weights`, the number of the stored tensor in each layer."""

    spec: ModuleSpec
    bases: tuple[Bases, ...]
    weights: tuple[PlacedWeight, ...]
    storage: tuple[tuple[int, ...], ...]

    @property
    def layers(self) -> tuple[int, ...]:
        return _layers(self.spec)


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    """start, end, neuron_size and kv are those of MergePlan."""

    config: ModelConfig
    options: CompileOptions
    start: int
    end: int
    neuron_size: int
    kv: KvRegion | None
    modules: tuple[_StoredModule, ...]

    def merged(self) -> MergePlan:
        bases = {
            (module.spec.name, layer): base
            for module in self.modules
            for layer, base in zip(module.layers, module.bases, strict=True)
        }
        return MergePlan(bases, self.start, self.end, self.neuron_size, self.kv)


def _layers(spec: ModuleSpec) -> tuple[int, ...]:
    return spec.layers or (0,)


def _weight_name(number: int) -> str:
    return f"{_WEIGHT}{number:06d}"


def _encode_path(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no encoding for {type(value).__name__}")


def _decode_path(type_: type, value: Any) -> Any:
    return Path(value) if type_ is Path else value


# -- writing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileSummary:
    """What was written. Sizes in bytes. weights: stored tensors; weight_uses: how many (module, layer, weight) they
    serve."""

    path: Path
    nbytes: int
    weight_nbytes: int
    program_nbytes: int
    snapshot_nbytes: int
    weights: int
    weight_uses: int
    seconds: float


def write_file(
    compilation: Compilation,
    model: Model,
    path: Path | str,
    *,
    progress: Progress = lambda done, total: None,
    cancel: threading.Event | None = None,
) -> FileSummary:
    """Write everything that was compiled, with the model's weights in the form that the chip reads.

    Worker processes quantise and write the weights, a layer at a time. `progress` is called in this thread with the
    bytes of weights written so far and all there are. The file gets its name only when it is whole: on an error, and
    when `cancel` is set, a file that was there before stays as it is.

    Raises CompileError for an incomplete compilation or when cancelled, UserError for a model without weights, weights
    that do not fit and a path that cannot be written.
    """
    began = time.perf_counter()
    compilation.require_complete()
    if model.checkpoint is None:
        raise UserError(
            f"{model.config.source}: this is a config without weights, so there is nothing to put into a compiled "
            "file; give the checkpoint folder that also holds *.safetensors"
        )
    path = Path(os.path.realpath(path))
    layout = _Layout(compilation, model.checkpoint.folder)
    with _replacing(path) as draft:
        checksums = write_weights(
            draft,
            ModelTensors(model.checkpoint, model.config),
            layout.stored.jobs(layout.places),
            processes=WORKERS,
            context=worker_context(),
            progress=progress,
            cancel=cancel,
        )
        layout.complete(draft, checksums)
    return layout.summary(path, time.perf_counter() - began)


class _Layout:
    """Everything of a file but the numbers of its weights, and the place of each tensor in bytes of the file."""

    def __init__(self, compilation: Compilation, folder: Path) -> None:
        self.stored = _StoredWeights()
        self.index = _index(compilation, self.stored)
        self.blobs = _blobs(compilation, self.index, folder)
        self.entries = binary.lay_out(self.stored.types())
        for name, content in self.blobs.items():
            binary.append(self.entries, name, "ui8", len(content))
        binary.append(self.entries, binary.CHECKSUMS, "ui32", len(self.entries))
        self._about = _about(compilation)
        start = len(self._header(b""))
        self.places = {entry.name: start + entry.begin for entry in self.entries}
        self.nbytes = start + self.entries[-1].end

    def complete(self, draft: Path, weight_checksums: Mapping[int, int]) -> None:
        """Write what is not a weight. weight_checksums: the CRC-32 of what was written at each place."""
        contents = {name: zlib.crc32(content) for name, content in self.blobs.items()}
        contents |= {name: weight_checksums[self.places[name]] for name in self.stored.names()}
        table = np.array([e.checksum(contents[e.name]) for e in self.entries[:-1]], "<u4").tobytes()
        with draft.open("r+b") as file:
            for name, content in (*self.blobs.items(), (binary.CHECKSUMS, table)):
                file.seek(self.places[name])
                file.write(content)
            file.seek(0)
            file.write(self._header(table))

    def summary(self, path: Path, seconds: float) -> FileSummary:
        """Sizes and counts of the file."""
        return FileSummary(
            path,
            self.nbytes,
            sum(entry.nbytes for entry in self.entries if entry.name.startswith(_WEIGHT)),
            sum(len(content) for name, content in self.blobs.items() if name.startswith(_PROGRAM)),
            sum(len(content) for name, content in self.blobs.items() if name.startswith(_SNAPSHOTS)),
            len(self.stored.names()),
            sum(len(numbers) for module in self.index.modules for numbers in module.storage),
            seconds,
        )

    def _header(self, checksums: bytes) -> bytes:
        return binary.header(self.entries, self._about | {binary.CHECKSUMS: binary.checksums_of(checksums)})


class _StoredWeights:
    """The distinct weights of a compilation, numbered as they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._weights: list[tuple[ModuleSpec, int, WeightReference]] = []

    def names(self) -> list[str]:
        """The stored tensors, in the order of their numbers."""
        return [_weight_name(number) for number in range(len(self._weights))]

    def number(self, spec: ModuleSpec, layer: int, reference: WeightReference) -> int:
        """The number of the stored tensor that holds the reference's numbers in this layer."""
        number = self._numbers.setdefault(reference.key(layer), len(self._weights))
        if number == len(self._weights):
            self._weights.append((spec, layer, reference))
        return number

    def types(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """(name, IR dtype, shape) of every stored tensor."""
        for number, (_, _, reference) in enumerate(self._weights):
            yield _weight_name(number), reference.type.dtype, reference.type.shape

    def jobs(self, places: Mapping[str, int]) -> list[WeightJob]:
        """A job for each layer, and outside of blocks for each checkpoint tensor, which may be as large as a layer."""
        groups: dict[object, list[int]] = {}
        for number, (spec, layer, reference) in enumerate(self._weights):
            groups.setdefault(layer if spec.layers else reference.tensors, []).append(number)
        return [
            WeightJob(
                self._weights[numbers[0]][1],
                tuple(self._weights[number][2] for number in numbers),
                tuple(places[_weight_name(number)] for number in numbers),
            )
            for numbers in groups.values()
        ]


def _index(compilation: Compilation, stored: _StoredWeights) -> _Index:
    plan = compilation.merged
    modules = []
    for spec in compilation.specs:
        weights = placed_weights(compilation.modules[spec.name].after(ADDRESSED))
        modules.append(
            _StoredModule(
                spec,
                tuple(plan.bases[spec.name, layer] for layer in _layers(spec)),
                weights,
                tuple(
                    tuple(stored.number(spec, layer, weight.reference) for layer in _layers(spec))
                    for weight in weights
                ),
            )
        )
    return _Index(
        compilation.config,
        compilation.options,
        plan.start,
        plan.end,
        plan.neuron_size,
        plan.kv,
        tuple(modules),
    )


def _blobs(compilation: Compilation, index: _Index, folder: Path) -> dict[str, bytes]:
    """Contents of all tensors but the weights and the checksums."""
    blobs = {INDEX: msgspec.json.encode(index, enc_hook=_encode_path)}
    for spec in compilation.specs:
        snapshots = compilation.modules[spec.name]
        blobs[_PROGRAM + spec.name] = binary.pack_program(program_of(snapshots))
        blobs[_SNAPSHOTS + spec.name] = pack_snapshots(snapshots)
    for file in (folder / name for name in TOKENIZER_FILES):
        try:
            blobs[_TOKENIZER + file.name] = file.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    return blobs


def _about(compilation: Compilation) -> dict[str, str]:
    """What a safetensors reader shows of the file."""
    return {
        **binary.identification(),
        "tpuscope_version": version(),
        **_described(compilation.config, compilation.options, len(compilation.specs)),
    }


def _described(config: ModelConfig, options: CompileOptions, modules: int) -> dict[str, str]:
    """What the header says of the program, which the index says again."""
    return {
        "model": config.name,
        "chip": options.chip_name,
        "quantize": options.quantize,
        "seq_length": str(options.seq_length),
        "modules": str(modules),
    }


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """An empty file beside `path` that takes its place when the block ends well and is removed otherwise.

    It is not synced: what a power failure leaves of it fails its checksums.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if path.exists() and not path.is_file():
            raise FileExistsError(None, "it is a device or a pipe, not a file")
        draft.open("xb").close()
        yield draft
        draft.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        with suppress(OSError):
            draft.unlink()


# -- reading -------------------------------------------------------------------------------------------------------


def open_file(path: Path | str) -> CompiledFile:
    """Open a compiled file: its header and index are read, everything else when it is asked for.

    Raises UserError for a file that is missing, foreign, of another version, cut off or damaged. Reading a damaged
    part later raises UserError, too.
    """
    container = binary.open_container(path)
    try:
        index = msgspec.json.decode(container.content(INDEX), type=_Index, dec_hook=_decode_path)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise container.of_another_version(INDEX, error) from None
    for key, value in _described(index.config, index.options, len(index.modules)).items():
        said = container.metadata.get(key)
        if said != value:
            found = "does not say it" if said is None else f"says {said!r}"
            raise container.damaged(f"{key!r} is {value!r} in its index, its header {found}")
    return CompiledFile(container, index)


class CompiledFile:
    """An open compiled file."""

    def __init__(self, container: binary.Container, index: _Index) -> None:
        self._container = container
        self._index = index
        self._modules = {module.spec.name: module for module in index.modules}

    @property
    def path(self) -> Path:
        """Where it was opened."""
        return self._container.path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._container.size

    @property
    def about(self) -> Mapping[str, str]:
        """What the header says: versions, model, chip, quantisation."""
        return self._container.metadata

    @cached_property
    def compilation(self) -> Compilation:
        """What was compiled. The snapshots of a module are decoded when they are first asked for."""
        specs = tuple(module.spec for module in self._index.modules)
        snapshots = _LazySnapshots([spec.name for spec in specs], self._snapshots)
        return Compilation.restored(
            self._index.config, self._index.options, specs, snapshots, self._index.merged()
        )

    def weights(self, module: str) -> tuple[PlacedWeight, ...]:
        """The weights of a module by their offset in its coeff arena. Raises KeyError for an unknown module."""
        return self._modules[module].weights

    def weight(self, reference: WeightReference, layer: int) -> NDArray[Any]:
        """The numbers of a weight in one layer: a read-only view of the file. Raises UserError when it is not there or
        damaged."""
        number = self._numbers.get(reference.key(layer))
        if number is None:
            raise UserError(f"{self.path}: holds no weight {reference.key(layer)}; compile the model again")
        return self._container.array(_weight_name(number), reference.type.dtype, reference.type.shape)

    def program(self, module: str) -> NDArray[Any]:
        """The instructions of a module (isa.INSTRUCTION records). Raises UserError when they are damaged."""
        if module not in self._programs:
            content = self._container.content(_PROGRAM + module)
            with self._decoding(_PROGRAM + module):
                self._programs[module] = binary.unpack_program(content)
        return self._programs[module]

    @property
    def tokenizer_files(self) -> Mapping[str, bytes]:
        """The checkpoint's files about its tokenizer and generation, by name."""
        names = [name for name in self._container.entries if name.startswith(_TOKENIZER)]
        return {name.removeprefix(_TOKENIZER): bytes(self._container.content(name)) for name in names}

    @cached_property
    def _programs(self) -> dict[str, NDArray[Any]]:
        return {}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Number of the stored tensor by weight key."""
        return {
            weight.reference.key(layer): number
            for module in self._index.modules
            for weight, numbers in zip(module.weights, module.storage, strict=True)
            for layer, number in zip(module.layers, numbers, strict=True)
        }

    def _snapshots(self, module: str) -> ModuleSnapshots:
        content = self._container.content(_SNAPSHOTS + module)
        program = self.program(module)
        with self._decoding(_SNAPSHOTS + module):
            return unpack_snapshots(content, program)

    @contextmanager
    def _decoding(self, tensor: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise self._container.of_another_version(tensor, error) from None


class _LazySnapshots(MutableMapping[str, ModuleSnapshots]):
    """Snapshots by module name, read when they are first asked for."""

    def __init__(self, names: Iterable[str], read: Callable[[str], ModuleSnapshots]) -> None:
        self._found: dict[str, ModuleSnapshots | None] = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> ModuleSnapshots:
        found = self._found[name]
        if found is None:
            found = self._found[name] = self._read(name)
        return found

    def __setitem__(self, name: str, value: ModuleSnapshots) -> None:
        self._found[name] = value

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        return name in self._found
