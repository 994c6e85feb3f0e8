"""A module's snapshots as bytes, for the deployable file: MessagePack, compressed.

The program that `codegen` reports is not among them: the file keeps it as a tensor of its own.
"""

from __future__ import annotations

import zlib
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

    Raises TypeError for a report other than the program: give it an encoding here.
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
    except (zlib.error, msgspec.DecodeError, IndexError) as error:
        raise ValueError(f"no snapshots: {error}") from None
    return ModuleSnapshots(stored.name, snapshots, extra=stored.extra)


def _stored(snapshot: Snapshot, types: dict[TensorType, int]) -> _StoredSnapshot:
    if snapshot.pass_name != CODEGEN and snapshot.report is not None:
        raise TypeError(f"pass {snapshot.pass_name} reports a {type(snapshot.report).__name__}")
    return _StoredSnapshot(
        snapshot.pass_name,
        snapshot.text,
        tuple(_stored_op(op, types) for op in snapshot.ops),
        dict(snapshot.attributes),
        snapshot.changed,
        snapshot.seconds,
        snapshot.notes,
    )


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
        program if stored.pass_name == CODEGEN else None,
    )


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
