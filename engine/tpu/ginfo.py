"""What every op of a layer group carries as its attribute `ginfo`: where its result lies in local memory, and when.

Names and meanings of the fields are those of TPU-MLIR's `#tpu.lg`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import VerifyError

DIMENSIONS = ("n", "c", "d", "h", "w")
"""The dimensions in which a group reads and cuts its tensors."""

_NUMBERS = ("out_addr", "out_size", "buffer_addr", "buffer_size", "id", "stage", "group_type")
_LISTS = tuple(f"{dim}_{part}" for dim in DIMENSIONS for part in ("idx", "slice"))
FIELDS = (*_NUMBERS, "eu_align", *_LISTS)
"""Keys of the attribute."""


@dataclass(frozen=True)
class Ginfo:
    """Place and time of one op of a group.

    out_addr, out_size: the result in local memory, bytes per lane; buffer_addr, buffer_size: scratch, likewise.
    eu_align: channels are padded to EU bytes. starts, lengths: the result's slices in n, c, d, h, w; a dimension with
    one entry is the same in all slices. id: the op's number in the group's `flow`. stage: at pipeline step p the op
    works on slice p - stage. group_type: the group's.
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

    @classmethod
    def of(cls, attribute: Mapping[str, Any]) -> Ginfo:
        """From the attribute's plain value. Raises VerifyError for one that is malformed."""
        _check(attribute)
        starts, lengths = (
            tuple(tuple(attribute[f"{dim}_{part}"]) for dim in DIMENSIONS) for part in ("idx", "slice")
        )
        numbers = {name: attribute[name] for name in (*_NUMBERS, "eu_align")}
        return cls(starts=starts, lengths=lengths, **numbers)

    def attribute(self) -> dict[str, Any]:
        """The attribute's plain value."""
        found: dict[str, Any] = {name: getattr(self, name) for name in (*_NUMBERS, "eu_align")}
        for dim, starts, lengths in zip(DIMENSIONS, self.starts, self.lengths, strict=True):
            found[f"{dim}_idx"], found[f"{dim}_slice"] = list(starts), list(lengths)
        return found

    def slice(self, numbers: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(starts, lengths) of the slice with these numbers in n, c, d, h, w."""
        at = [number if len(starts) > 1 else 0 for number, starts in zip(numbers, self.starts, strict=True)]
        return (
            tuple(starts[i] for starts, i in zip(self.starts, at, strict=True)),
            tuple(lengths[i] for lengths, i in zip(self.lengths, at, strict=True)),
        )


def _check(attribute: Mapping[str, Any]) -> None:
    missing = [name for name in FIELDS if name not in attribute]
    unknown = [name for name in attribute if name not in FIELDS]
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
