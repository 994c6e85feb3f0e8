"""Addresses in local memory for the buffers of a group whose lifetimes go around the loop over slices.

First fit, but the buffer that is placed next is always the one that can lie lowest. Buffers of one op, and buffers that
the two engines touch in one time step, get banks of their own where there is room; where there is none, they share.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from engine.passes.layer_group.plan import BufferKind
from engine.tpu.chip import Chip
from engine.tpu.emit import align_up

MEMORY, FRAGMENTATION, BANK_RULE = "memory", "fragmentation", "bank rule"


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
    """Why buffers cannot be placed.

    needed: bytes per lane. reason: MEMORY when more is live at once than there is, FRAGMENTATION when it fits in sum
    but not in whole pieces, BANK_RULE when it would fit if buffers that hold up each other could share banks.
    """

    needed: int
    reason: str


def peak(requests: Sequence[Request], rows: int) -> int:
    """The most bytes per lane that are live in one time step."""
    return max((sum(r.nbytes for r in requests if r.rows >> row & 1) for row in range(rows)), default=0)


def allocate(
    requests: Sequence[Request], rows: int, chip: Chip, *, spread: bool = True
) -> tuple[int, ...] | Failure:
    """Addresses of the buffers: no two that are live at the same time overlap.

    requests: in the order in which the buffers come into being; of equal ones the first chooses first. spread: keep
    buffers that hold up each other out of each other's banks, where there is room for that.
    """
    most = peak(requests, rows)
    if most > chip.lmem_bytes:
        return Failure(most, MEMORY)
    found = _first_fit(requests, chip, spread)
    if isinstance(found, Failure) and spread and not isinstance(_first_fit(requests, chip, False), Failure):
        return Failure(found.needed, BANK_RULE)
    return found


def _first_fit(requests: Sequence[Request], chip: Chip, spread: bool) -> tuple[int, ...] | Failure:
    unplaced = [_Space(number, request, requests, chip, spread) for number, request in enumerate(requests)]
    addresses = [0] * len(requests)
    while unplaced:
        chosen = min(unplaced, key=_Space.rank)
        address, end = chosen.lowest, chosen.lowest + chosen.request.nbytes
        if end > chip.lmem_bytes:
            return Failure(end, FRAGMENTATION)
        addresses[chosen.number] = address
        unplaced = [space for space in unplaced if space is not chosen]
        for space in unplaced:
            space.take(chosen, address, end)
    return tuple(addresses)


def share_a_bank_badly(a: Request, b: Request) -> bool:
    """Whether two buffers in one bank would hold up the engines: operands of one op, or touched by both at once."""
    return bool(a.computed & b.moved or a.moved & b.computed or a.ops & b.ops)


def _contest(a: Request, b: Request) -> bool:
    """Whether two tensors are touched in one time step, not by the DMA alone. Scratch never counts."""
    return bool(a.computed & (b.computed | b.moved) or a.moved & b.computed)


class _Space:
    """Where one buffer may still lie, and which others it contends with."""

    def __init__(
        self, number: int, request: Request, requests: Sequence[Request], chip: Chip, spread: bool
    ) -> None:
        self.number, self.request, self.chip, self.spread = number, request, chip, spread
        self.taken: list[tuple[int, int]] = []
        self.avoided: list[tuple[int, int]] = []
        self.lowest = 0
        self.rivals = {
            other
            for other, it in enumerate(requests)
            if other != number and BufferKind.SCRATCH not in (it.kind, request.kind) and _contest(it, request)
        }
        self.order = (-request.area, request.first, number)

    def rank(self) -> tuple[int, bool, int, int, int]:
        """Who chooses first: who can lie lowest, then who has rivals left, then the largest area, then the oldest."""
        return (self.lowest, not self.rivals, *self.order)

    def take(self, other: _Space, address: int, end: int) -> None:
        """Another buffer was placed."""
        self.rivals.discard(other.number)
        if not self.request.rows & other.request.rows:
            return
        insort(self.taken, (address, end))
        if self.spread and share_a_bank_badly(self.request, other.request):
            bank = self.chip.bank_bytes
            insort(self.avoided, (address // bank * bank, align_up(end, bank)))
        else:
            insort(self.avoided, (address, end))
        self.lowest = self._fit(self.avoided)
        if self.lowest + self.request.nbytes > self.chip.lmem_bytes:
            self.lowest = self._fit(self.taken)

    def _fit(self, blocked: Sequence[tuple[int, int]]) -> int:
        """The lowest address at which the buffer meets none of these ranges."""
        step, size, at = self.chip.eu_bytes, self.request.nbytes, 0
        for start, end in blocked:
            if at + size <= start:
                break
            if end > at:
                at = align_up(end, step)
        return at
