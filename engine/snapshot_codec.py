"""A module's snapshots as bytes, for the deployable file: MessagePack, compressed.

The program that `codegen` reports is not among them: the file keeps it as a tensor of its own. Any other report is a
dataclass of the engine whose fields have exact types; it is stored with its class's name.
"""

from __future__ import annotations

import zlib
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.snapshot import ModuleSnapshots, OpRecord, Snapshot, TensorType

CODEGEN = "codegen"
"""The pass whose report is the program."""

_PlainType = tuple[tuple[int, ...], str, int | None]


class _StoredOp(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An OpRecord; its types by number."""

    name: str
    operands: tuple[str, ...]
    operand_types: tuple[int, ...]
    results: tuple[str, ...]
    result_types: tuple[int, ...]
    attributes: dict[str, Any]
    origins: tuple[str, ...]
    history: tuple[str, ...]
    line: int
    parent: int | None


class _StoredSnapshot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    pass_name: str
    text: str
    ops: tuple[_StoredOp, ...]
    attributes: dict[str, Any]
    changed: bool
    seconds: float
    notes: tuple[str, ...]
    report: tuple[str, msgspec.Raw] | None
    """Class (`module:name`) and fields."""


class _StoredModule(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    types: tuple[_PlainType, ...]
    snapshots: tuple[_StoredSnapshot, ...]
    extra: dict[str, Any]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_StoredModule)


def program_of(snapshots: ModuleSnapshots) -> NDArray[Any]:
    """The instructions of a compiled module. Raises KeyError when it has not got that far."""
    program = snapshots.after(CODEGEN).report
    assert isinstance(program, np.ndarray)
    return program


def pack_snapshots(module: ModuleSnapshots) -> bytes:
    """Compress the snapshots of a module that was compiled without error.

    Raises TypeError for a report that is no dataclass of the engine.
    """
    types: dict[TensorType, int] = {}
    snapshots = tuple(_stored(snapshot, types) for snapshot in module.snapshots)
    plain = tuple((t.shape, t.dtype, t.address) for t in types)
    return zlib.compress(_ENCODER.encode(_StoredModule(module.name, plain, snapshots, dict(module.extra))), 6)


def unpack_snapshots(packed: bytes | memoryview, program: NDArray[Any]) -> ModuleSnapshots:
    """Inverse of `pack_snapshots`. Raises ValueError for bytes that it did not write."""
    try:
        stored = _DECODER.decode(zlib.decompress(packed))
        types = [TensorType(*plain) for plain in stored.types]
        snapshots = tuple(_restored(snapshot, stored.name, types, program) for snapshot in stored.snapshots)
    except (zlib.error, msgspec.DecodeError, IndexError, ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"no snapshots: {error}") from None
    return ModuleSnapshots(stored.name, snapshots, extra=stored.extra)


def _stored(snapshot: Snapshot, types: dict[TensorType, int]) -> _StoredSnapshot:
    report = None if snapshot.pass_name == CODEGEN else _stored_report(snapshot.report)
    return _StoredSnapshot(
        snapshot.pass_name,
        snapshot.text,
        tuple(_stored_op(op, types) for op in snapshot.ops),
        dict(snapshot.attributes),
        snapshot.changed,
        snapshot.seconds,
        snapshot.notes,
        report,
    )


def _stored_report(report: Any) -> tuple[str, msgspec.Raw] | None:
    if report is None:
        return None
    name = f"{type(report).__module__}:{type(report).__qualname__}"
    _report_class(name)
    return name, msgspec.Raw(_ENCODER.encode(report))


def _report_class(name: str) -> Any:
    """The class of a report. Raises TypeError unless it is a dataclass of the engine: a file must not name others."""
    module, _, qualified = name.partition(":")
    found = getattr(import_module(module), qualified) if module.startswith("engine.") else None
    if not is_dataclass(found):
        raise TypeError(f"a pass's report must be a dataclass of the engine, found {name}")
    return found


def _stored_op(op: OpRecord, types: dict[TensorType, int]) -> _StoredOp:
    return _StoredOp(
        op.name,
        op.operands,
        tuple(types.setdefault(t, len(types)) for t in op.operand_types),
        op.results,
        tuple(types.setdefault(t, len(types)) for t in op.result_types),
        dict(op.attributes),
        op.origins,
        op.history,
        op.line,
        op.parent,
    )


def _restored(
    stored: _StoredSnapshot, module: str, types: list[TensorType], program: NDArray[Any]
) -> Snapshot:
    return Snapshot(
        module,
        stored.pass_name,
        stored.text,
        tuple(_restored_op(op, types) for op in stored.ops),
        stored.attributes,
        stored.changed,
        stored.seconds,
        stored.notes,
        program if stored.pass_name == CODEGEN else _restored_report(stored.report),
    )


def _restored_report(stored: tuple[str, msgspec.Raw] | None) -> Any:
    if stored is None:
        return None
    name, fields = stored
    return msgspec.msgpack.decode(fields, type=_report_class(name))


def _restored_op(stored: _StoredOp, types: list[TensorType]) -> OpRecord:
    return OpRecord(
        stored.name,
        stored.operands,
        tuple(types[i] for i in stored.operand_types),
        stored.results,
        tuple(types[i] for i in stored.result_types),
        stored.attributes,
        stored.origins,
        stored.history,
        stored.line,
        stored.parent,
    )
