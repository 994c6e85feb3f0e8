"""Makes the numbers of weights in worker processes, which write them into the file: no numbers travel between them."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np

from engine.errors import CompileError, UserError
from engine.tpu.weights import TensorSource, WeightReference, materialize_many

Progress = Callable[[int, int], None]

LONGEST_WRITE = 1 << 30
"""Bytes of one system call; Linux takes less than 2 GiB at once."""


@dataclass(frozen=True)
class WeightJob:
    """Weights of one layer that a worker makes in one go. offsets: where each goes, in bytes from the file's start."""

    layer: int
    references: tuple[WeightReference, ...]
    offsets: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the job writes."""
        return sum(reference.type.nbytes for reference in self.references)


def write_weights(
    path: Path,
    source: TensorSource,
    jobs: Sequence[WeightJob],
    *,
    processes: int,
    context: BaseContext,
    progress: Progress = lambda done, total: None,
    cancel: threading.Event | None = None,
) -> dict[int, int]:
    """Run the jobs, largest first; return the CRC-32 of what was written at each offset.

    `source` is pickled into every process. `progress` is called in this thread with the bytes done and all there are.
    Raises UserError for a tensor that is missing or does not fit and for a full disk, CompileError when `cancel` is
    set or a worker dies. Only jobs that run already are waited for.
    """
    total, done = sum(job.nbytes for job in jobs), 0
    checksums: dict[int, int] = {}
    progress(0, total)
    pool = ProcessPoolExecutor(max(1, min(processes, len(jobs))), context, _begin, (path, source))
    try:
        sizes = {pool.submit(_run, job): job.nbytes for job in sorted(jobs, key=lambda job: -job.nbytes)}
        running: set[Future[dict[int, int]]] = set(sizes)
        while running:
            finished, running = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
            for future in finished:
                checksums |= future.result()
                done += sizes[future]
                progress(done, total)
            if cancel is not None and cancel.is_set():
                raise CompileError("writing the compiled file was cancelled")
    except BrokenProcessPool:
        raise CompileError(
            "a process that quantises weights died, most likely for want of memory; close other programs"
        ) from None
    except OSError as error:
        raise UserError(f"{path.parent}: the compiled file cannot be written ({error.strerror})") from None
    finally:
        pool.shutdown(cancel_futures=True)
    return checksums


@dataclass
class _State:
    """What a worker process keeps from job to job."""

    file: int
    source: TensorSource


_STATE: list[_State] = []


def _begin(path: Path, source: TensorSource) -> None:
    # an interrupt on the terminal is the parent's to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _STATE.append(_State(os.open(path, os.O_WRONLY), source))


def _run(job: WeightJob) -> dict[int, int]:
    state = _STATE[0]
    checksums = {}
    arrays = materialize_many(job.references, job.layer, state.source)
    for offset, array in zip(job.offsets, arrays, strict=True):
        content = array.reshape(-1).view(np.uint8).data
        _write(state.file, content, offset)
        checksums[offset] = zlib.crc32(content)
    return checksums


def _write(file: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(file, content[:LONGEST_WRITE], offset)
        content, offset = content[written:], offset + written
