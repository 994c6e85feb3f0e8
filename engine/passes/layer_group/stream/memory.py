"""Addresses in local memory for a streamed group.

Weights and scratch lie from the top down, in banks of their own, so that the DMA fills other banks than those that
compute reads; everything else from the bottom up, where there is room in other banks than what the other engine touches
at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.passes.layer_group.plan import BufferKind
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up


@dataclass(frozen=True)
class Request:
    """A buffer. nbytes: per lane. steps, computed, moved: bit masks of the steps in which it is in use, and in which
    compute and the DMA may touch it. phase: on whose tiles its size depends; None for anything else. apart: it gets
    banks of its own."""

    value: str
    kind: BufferKind
    nbytes: int
    steps: int
    computed: int
    moved: int
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
    found = _place(requests, chip, spread=True)
    return _place(requests, chip, spread=False) if isinstance(found, Full) else found


def _place(requests: Sequence[Request], chip: Chip, *, spread: bool) -> tuple[int, ...] | Full:
    addresses = [0] * len(requests)
    placed: list[tuple[int, int, Request]] = []
    for number in sorted(range(len(requests)), key=lambda n: _order(requests[n])):
        request = requests[number]
        size = _size(request, chip)
        blocked = sorted((start, end) for start, end, other in placed if other.steps & request.steps)
        if request.apart:
            found = _highest(blocked, size, chip)
        else:
            found = _lowest(_with_banks(request, placed, chip), size) if spread else chip.lmem_bytes
            found = found if found + size <= chip.lmem_bytes else _lowest(blocked, size)
        if found < 0 or found + size > chip.lmem_bytes:
            return Full(number, most_used(requests, chip))
        addresses[number] = found
        placed.append((found, found + size, request))
    return tuple(addresses)


def _with_banks(
    request: Request, placed: Sequence[tuple[int, int, Request]], chip: Chip
) -> list[tuple[int, int]]:
    """What a buffer should keep off: buffers in use with it, and all banks of those that the other engine touches."""
    blocked = []
    for start, end, other in placed:
        if request.computed & other.moved | request.moved & other.computed:
            bank = chip.bank_bytes
            blocked.append((start // bank * bank, align_up(end, bank)))
        elif request.steps & other.steps:
            blocked.append((start, end))
    return sorted(blocked)


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
