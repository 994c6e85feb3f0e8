"""Sentences about layer groups that the screen and the command line share; nothing here needs a screen."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app import units

DIMS = "ncdhw"


def kib(nbytes: int) -> str:
    """Bytes in KiB, as local memory is counted: `72`, `2.3`."""
    value = nbytes / 1024
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def kib_column(nbytes: int) -> str:
    """The same for columns of numbers, whose points stand under each other: `72.0 KiB`."""
    return f"{nbytes / 1024:.1f} KiB"


def secs_text(secs: Sequence[int]) -> str:
    """Counts of slices in n, c, d, h, w as the IR calls them: `csecs 2`, `nsecs 2 csecs 4`, or `1 slice`."""
    cut = [f"{dim}secs {number}" for dim, number in zip(DIMS, secs, strict=True) if number > 1]
    return " ".join(cut) or "1 slice"


def verdict_text(ops: int, cycles: int, alone: int, cores: int = 1) -> str:
    """Whether a group of `ops` pays: its cycles, and those of its ops one by one from DDR (`alone`), both on one core.

    cores: of the program; the pass chooses groups as one core would run them.
    """
    counted = f"{'on one core ' if cores > 1 else ''}one group of {ops} op{'s' if ops != 1 else ''}"
    text = f"{counted} takes {units.cycles(cycles)}; run one by one {units.cycles(alone)}: "
    if alone <= cycles:
        return text + "gains nothing"
    return text + f"gains {100 * (alone - cycles) / alone:.0f} %"


def gain_text(cycles: int, alone: int) -> str:
    """Cycles that a group saves, exactly."""
    if alone <= cycles:
        return f"nothing: the ops alone take {alone:,} cycles"
    return f"{alone - cycles:,} of the {alone:,} cycles that the ops take one by one from DDR"


_RANGE = re.compile(r"(\d{4,}) of (\d{4,}) bytes")
_BYTES = re.compile(r"\b(\d{4,}) bytes")


def readable_bytes(text: str, exact: bool) -> str:
    """A sentence of the search with its bytes in KiB; exact: the numbers themselves behind them."""

    def both(found: re.Match[str]) -> str:
        needed, there = int(found[1]), int(found[2])
        note = f" ({needed:,} of {there:,} bytes)" if exact else ""
        return f"{kib(needed)} KiB of {kib(there)} KiB{note}"

    def one(found: re.Match[str]) -> str:
        nbytes = int(found[1])
        return f"{kib(nbytes)} KiB" + (f" ({nbytes:,} bytes)" if exact else "")

    return _BYTES.sub(one, _RANGE.sub(both, text))


def joined_kinds(kinds: Sequence[str]) -> str:
    """`3 MatMul + RMSNorm`: kinds in order of appearance, repeats counted."""
    return " + ".join(_named(kind, count) for kind, count in _counted(kinds))


def kinds_in(kinds: Sequence[str], width: int) -> str:
    """`MatMul + Add + 9 more`: kinds of ops in order, as many as fit, repeats counted; "" where none does."""
    whole = _counted(kinds)
    for shown in range(len(whole), 0, -1):
        rest = sum(count for _, count in whole[shown:])
        parts = [_named(kind, count) for kind, count in whole[:shown]]
        text = " + ".join([*parts, *([f"{rest} more"] if rest else [])])
        if len(text) <= width:
            return text
    return ""


def _named(kind: str, count: int) -> str:
    return kind if count == 1 else f"{count} {kind}"


def _counted(kinds: Sequence[str]) -> list[tuple[str, int]]:
    """Kinds in order of appearance with how many there are of each."""
    counts: dict[str, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    return list(counts.items())
