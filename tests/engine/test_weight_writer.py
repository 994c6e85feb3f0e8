"""Weights written by worker processes."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.compiler import worker_context
from engine.errors import CompileError, UserError
from engine.snapshot import TensorType
from engine.tpu.weights import WeightReference, materialize
from engine.weight_writer import WeightJob, write_weights

QUANTIZED = ("transpose", "quantize(w4,g8,asymmetric).{}")


class Numbers:
    """Seeded numbers for any name."""

    def tensor(self, name: str) -> NDArray[Any]:
        return np.random.default_rng(zlib.crc32(name.encode())).standard_normal((6, 16), np.float32)

    def computed(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return np.full(shape, 3, np.float32)


class Dying(Numbers):
    """Ends the process that asks."""

    def tensor(self, name: str) -> NDArray[Any]:
        os._exit(9)


class Missing(Numbers):
    """Has no tensors."""

    def tensor(self, name: str) -> NDArray[Any]:
        raise UserError(f"model: tensor '{name}' is not in this checkpoint")


def quantized(part: str, dtype: str, shape: tuple[int, ...]) -> WeightReference:
    transforms = tuple(t.format(part) for t in QUANTIZED)
    return WeightReference(("layer.{i}.w",), transforms, TensorType(shape, dtype))


REFERENCES = (
    quantized("weight", "ui8", (6, 8)),
    quantized("scale", "f32", (6, 2)),
    WeightReference(("@table",), (), TensorType((4,), "bf16")),
)


def job(layer: int, start: int) -> WeightJob:
    sizes = np.cumsum([0, *(reference.type.nbytes for reference in REFERENCES)])
    return WeightJob(layer, REFERENCES, tuple(start + int(size) for size in sizes[:-1]))


def write(path: Path, source: Numbers, jobs: list[WeightJob], **options: Any) -> dict[int, int]:
    path.touch()
    return write_weights(path, source, jobs, processes=2, context=worker_context(), **options)


def test_numbers_land_at_their_offsets_with_their_checksums(tmp_path: Path) -> None:
    # GIVEN two layers, WHEN they are written, the second in front of the first
    jobs = [job(0, 200), job(1, 0)]
    seen: list[tuple[int, int]] = []
    checksums = write(tmp_path / "w", Numbers(), jobs, progress=lambda *now: seen.append(now))
    # THEN each weight is where its job says
    content = (tmp_path / "w").read_bytes()
    for one in jobs:
        for reference, offset in zip(one.references, one.offsets, strict=True):
            expected = materialize(reference, one.layer, Numbers()).tobytes()
            assert content[offset : offset + len(expected)] == expected
            assert checksums[offset] == zlib.crc32(expected)
    # AND progress ran from nothing to everything
    total = jobs[0].nbytes + jobs[1].nbytes
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)


def test_a_missing_tensor_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tensor 'layer\.0\.w' is not in this checkpoint"):
        write(tmp_path / "w", Missing(), [job(0, 0)])


def test_a_dead_worker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="died"):
        write(tmp_path / "w", Dying(), [job(0, 0), job(1, 100)])


def test_a_full_disk_is_the_users_error() -> None:
    with pytest.raises(UserError, match="No space left on device"):
        write(Path("/dev/full"), Numbers(), [job(0, 0)])


def test_cancelling_stops_it(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CompileError, match="cancelled"):
        write(tmp_path / "w", Numbers(), [job(layer, 100 * layer) for layer in range(20)], cancel=cancel)
