"""Addresses in local memory for a streamed group: weights and scratch from the top down, in banks of their own, so that
the DMA fills other banks than those that compute reads; activations from the bottom up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.passes.layer_group.plan import BufferKind
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up


@dataclass(frozen=True)
class Request:
    """A buffer. nbytes: per lane. steps: bit mask of the steps in which it is in use. phase: of whose tiles its size
    depends; None for anything else. apart: it gets banks of its own."""

    value: str
    kind: BufferKind
    nbytes: int
    steps: int
    phase: int | None
    apart: bool


@dataclass(frozen=True)
class Full:
    """A buffer that finds no place. needed: most bytes per lane in use at once."""

    request: int
    needed: int


def most_used(requests: Sequence[Request], chip: Chip) -> int:
    """The most bytes per lane that are in use in one step."""
    length = max((request.steps.bit_length() for request in requests), default=0)
    return max(
        (sum(_size(r, chip) for r in requests if r.steps >> step & 1) for step in range(length)), default=0
    )


def place(requests: Sequence[Request], chip: Chip) -> tuple[int, ...] | Full:
    """The address of every buffer: no two that are in use in one step overlap."""
    addresses = [0] * len(requests)
    placed: list[tuple[int, int, int]] = []
    for number in sorted(range(len(requests)), key=lambda n: _order(requests[n])):
        request = requests[number]
        blocked = sorted((start, end) for start, end, steps in placed if steps & request.steps)
        size = _size(request, chip)
        found = _highest(blocked, size, chip) if request.apart else _lowest(blocked, size)
        if found < 0 or found + size > chip.lmem_bytes:
            return Full(number, most_used(requests, chip))
        addresses[number] = found
        placed.append((found, found + size, request.steps))
    return tuple(addresses)


def _order(request: Request) -> tuple[bool, bool, int]:
    """Scratch first, then weights, then activations; long-lived large ones first."""
    return (
        not request.apart,
        request.kind is not BufferKind.SCRATCH,
        -request.nbytes * request.steps.bit_count(),
    )


def _size(request: Request, chip: Chip) -> int:
    return align_up(request.nbytes, chip.bank_bytes if request.apart else chip.eu_bytes)


def _lowest(blocked: Sequence[tuple[int, int]], size: int) -> int:
    at = 0
    for start, end in blocked:
        if at + size <= start:
            break
        at = max(at, end)
    return at


def _highest(blocked: Sequence[tuple[int, int]], size: int, chip: Chip) -> int:
    """The highest whole bank from which on the buffer is free; negative if there is none."""
    at = (chip.lmem_bytes - size) // chip.bank_bytes * chip.bank_bytes
    for start, end in sorted(blocked, key=lambda span: -span[1]):
        if end <= at:
            break
        if start < at + size:
            at = (start - size) // chip.bank_bytes * chip.bank_bytes
    return at
