"""What every op of a layer group carries as its attribute `ginfo`: where its result lies in local memory, and when.

Names and meanings of the fields are those of TPU-MLIR's `#tpu.lg`; `tile_addr` is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from engine.errors import VerifyError

DIMENSIONS = ("n", "c", "d", "h", "w")
"""The dimensions in which a group reads and cuts its tensors."""

_NUMBERS = ("out_addr", "out_size", "buffer_addr", "buffer_size", "id", "stage", "group_type")
_LISTS = tuple(f"{dim}_{part}" for dim in DIMENSIONS for part in ("idx", "slice"))
FIELDS = (*_NUMBERS, "eu_align", *_LISTS)
"""Keys of the attribute."""
TILE_ADDRESSES = "tile_addr"
"""A further key that groups which stream weights use."""


@dataclass(frozen=True)
class Ginfo:
    """Place and time of one op of a group.

    out_addr, out_size: the result in local memory, bytes per lane; buffer_addr, buffer_size: scratch, likewise.
    eu_align: channels are padded to EU bytes. starts, lengths: the result's slices in n, c, d, h, w; a dimension with
    one entry is the same in all slices. id: the op's number in the group's `flow`. stage: at pipeline step p the op
    works on slice p - stage. group_type: the group's. tile_addr: where the pieces of the result lie in turn, when each
    has a place of its own (groups that stream weights).
    """

    out_addr: int
    out_size: int
    buffer_addr: int
    buffer_size: int
    eu_align: bool
    starts: tuple[tuple[int, ...], ...]
    lengths: tuple[tuple[int, ...], ...]
    id: int
    stage: int
    group_type: int
    tile_addr: tuple[int, ...] = ()

    @classmethod
    def of(cls, attribute: Mapping[str, Any]) -> Ginfo:
        """From the attribute's plain value. Raises VerifyError for one that is malformed."""
        _check(attribute)
        starts, lengths = (
            tuple(tuple(attribute[f"{dim}_{part}"]) for dim in DIMENSIONS) for part in ("idx", "slice")
        )
        numbers = {name: attribute[name] for name in (*_NUMBERS, "eu_align")}
        return cls(
            starts=starts, lengths=lengths, tile_addr=tuple(attribute.get(TILE_ADDRESSES, ())), **numbers
        )

    def attribute(self) -> dict[str, Any]:
        """The attribute's plain value."""
        found: dict[str, Any] = {name: getattr(self, name) for name in (*_NUMBERS, "eu_align")}
        for dim, starts, lengths in zip(DIMENSIONS, self.starts, self.lengths, strict=True):
            found[f"{dim}_idx"], found[f"{dim}_slice"] = list(starts), list(lengths)
        if self.tile_addr:
            found[TILE_ADDRESSES] = list(self.tile_addr)
        return found

    def slice(self, numbers: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(starts, lengths) of the slice with these numbers in n, c, d, h, w."""
        at = [number if len(starts) > 1 else 0 for number, starts in zip(numbers, self.starts, strict=True)]
        return (
            tuple(starts[i] for starts, i in zip(self.starts, at, strict=True)),
            tuple(lengths[i] for lengths, i in zip(self.lengths, at, strict=True)),
        )

    @property
    def pieces(self) -> int:
        """Pieces into which the lists cut the result."""
        return prod(map(len, self.starts))

    def piece(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(starts, lengths) of a piece; they count w fastest, and begin again behind the last one."""
        numbers: list[int] = []
        for starts in reversed(self.starts):
            number, at = divmod(number, len(starts))
            numbers.insert(0, at)
        return self.slice(tuple(numbers))


def _check(attribute: Mapping[str, Any]) -> None:
    missing = [name for name in FIELDS if name not in attribute]
    unknown = [name for name in attribute if name not in (*FIELDS, TILE_ADDRESSES)]
    if missing or unknown:
        raise VerifyError(
            "attribute ginfo "
            + " and ".join(
                [f"lacks {name}" for name in missing] + [f"has an unknown {name}" for name in unknown]
            )
        )
    for name in _NUMBERS:
        if not _is_natural(attribute[name]):
            raise VerifyError(f"ginfo {name} is {attribute[name]!r}, expected a number from 0 on")
    if not isinstance(attribute["eu_align"], bool):
        raise VerifyError(f"ginfo eu_align is {attribute['eu_align']!r}, expected true or false")
    tiles = attribute.get(TILE_ADDRESSES, [])
    if not isinstance(tiles, list) or not all(map(_is_natural, tiles)):
        raise VerifyError(f"ginfo {TILE_ADDRESSES} is {tiles!r}, expected a list of addresses")
    for dim in DIMENSIONS:
        starts, lengths = attribute[f"{dim}_idx"], attribute[f"{dim}_slice"]
        natural = all(isinstance(x, list) and all(map(_is_natural, x)) for x in (starts, lengths))
        if not natural or len(starts) != len(lengths) or not starts or 0 in lengths:
            raise VerifyError(
                f"ginfo {dim}_idx is {starts!r} and {dim}_slice {lengths!r}, expected a start and a length above 0 "
                "for each slice"
            )


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
