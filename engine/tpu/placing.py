"""Laying buffers out in local memory, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Pieces:
    """Hands out consecutive pieces of memory, each rounded up to `unit` bytes.

    used: address of the next piece, so also the bytes taken so far when it began at 0.
    """

    unit: int = 1
    used: int = 0

    def take(self, count: int) -> int:
        """The address of a new piece of `count` bytes."""
        start = self.used
        self.used += -(-count // self.unit) * self.unit
        return start

    def take_pair(self, count: int) -> tuple[int, int]:
        """The addresses of the two halves of a double buffer, `count` bytes each."""
        return self.take(count), self.take(count)


def largest_fitting(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest count in 1 .. limit that fits, where everything below one that fits does too; 0 if none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
