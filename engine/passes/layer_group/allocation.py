"""Addresses in local memory for the buffers of a group whose lifetimes go around the loop over slices.

First fit, but the buffer that is placed next is always the one that can lie lowest. Buffers of one op, and buffers that
the two engines touch in one time step, get banks of their own where there is room; where there is none, they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.passes.layer_group.plan import BufferKind
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up


@dataclass(frozen=True)
class Request:
    """A buffer to be placed. nbytes: per lane. rows, computed, moved: bit masks of the time steps in which it is live,
    and in which the compute engine and the DMA touch it. ops: ops that read or write it. first: its first row.
    """

    name: str
    kind: BufferKind
    nbytes: int
    rows: int
    computed: int
    moved: int
    ops: frozenset[int]
    first: int
    held: bool = False

    @property
    def area(self) -> int:
        """Bytes times time steps."""
        return self.nbytes * self.rows.bit_count()


@dataclass(frozen=True)
class Failure:
    """Why buffers cannot be placed. needed: bytes per lane; reason: `memory` when more is live at once than there is,
    `fragmentation` when it fits in sum, but not in one piece."""

    needed: int
    reason: str


def peak(requests: Sequence[Request], rows: int) -> int:
    """The most bytes per lane that are live in one time step."""
    return max((sum(r.nbytes for r in requests if r.rows >> row & 1) for row in range(rows)), default=0)


def allocate(requests: Sequence[Request], rows: int, chip: Chip) -> tuple[int, ...] | Failure:
    """Addresses of the buffers: no two that are live at the same time overlap.

    requests: in the order in which the buffers come into being; of equal ones the first chooses first.
    """
    most = peak(requests, rows)
    if most > chip.lmem_bytes:
        return Failure(most, "memory")
    places: list[int | None] = [None] * len(requests)
    spaces = [_Space(request, chip) for request in requests]
    unplaced = list(range(len(requests)))
    while unplaced:
        order = _order(requests, unplaced)
        chosen = min(order, key=lambda i: spaces[i].lowest)
        address = spaces[chosen].lowest
        if address + requests[chosen].nbytes > chip.lmem_bytes:
            return Failure(address + requests[chosen].nbytes, "fragmentation")
        places[chosen] = address
        unplaced.remove(chosen)
        for other in unplaced:
            spaces[other].take(requests[chosen], address)
    return tuple(place for place in places if place is not None)


def _order(requests: Sequence[Request], unplaced: Sequence[int]) -> list[int]:
    """Unplaced buffers in the order in which they choose: contested ones first, then the largest area, then age."""

    def rank(i: int) -> tuple[bool, int, int, int]:
        contested = any(_contest(requests[i], requests[j]) for j in unplaced if j != i)
        return (not contested, -requests[i].area, requests[i].first, i)

    return sorted(unplaced, key=rank)


def _contest(a: Request, b: Request) -> bool:
    """Whether two tensors are touched in one time step, not by the DMA alone. Scratch never counts."""
    if BufferKind.SCRATCH in (a.kind, b.kind):
        return False
    return bool(a.computed & (b.computed | b.moved) or a.moved & b.computed)


def share_a_bank_badly(a: Request, b: Request) -> bool:
    """Whether two buffers in one bank would hold up the engines: operands of one op, or touched by both at once."""
    return bool(a.ops & b.ops or a.computed & b.moved or a.moved & b.computed)


class _Space:
    """Where one buffer may still lie."""

    def __init__(self, request: Request, chip: Chip) -> None:
        self.request, self.chip = request, chip
        self.taken: list[tuple[int, int]] = []
        self.avoided: list[tuple[int, int]] = []
        self.lowest = 0

    def take(self, other: Request, address: int) -> None:
        """Another buffer was placed."""
        if not self.request.rows & other.rows:
            return
        end = address + other.nbytes
        self.taken.append((address, end))
        if share_a_bank_badly(self.request, other):
            bank = self.chip.bank_bytes
            self.avoided.append((address // bank * bank, align_up(end, bank)))
        self._find()

    def _find(self) -> None:
        self.lowest = self._fit([*self.taken, *self.avoided])
        if self.lowest + self.request.nbytes > self.chip.lmem_bytes:
            self.lowest = self._fit(self.taken)

    def _fit(self, blocked: list[tuple[int, int]]) -> int:
        """The lowest address at which the buffer meets none of these ranges."""
        step, at = self.chip.eu_bytes, 0
        for start, end in sorted(blocked):
            if at + self.request.nbytes <= start:
                break
            at = max(at, align_up(end, step))
        return at
