"""Files that exports end in: the format by suffix, written whole or not at all, SVG drawn as PNG."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from engine.errors import UserError


def suffix_of(path: Path | str, accepted: Sequence[str]) -> str:
    """The file's suffix in lower case. Raises UserError unless it is one of `accepted` (with their dots)."""
    suffix = Path(path).suffix.lower()
    if suffix not in accepted:
        found = f"ends in {suffix!r}" if suffix else "has no suffix"
        raise UserError(f"{path} {found}; accepted: {', '.join(accepted)}")
    return suffix


def write_file(path: Path | str, data: bytes) -> None:
    """Write a file through a temporary one beside it. Raises UserError where that is impossible."""
    target = Path(path)
    if not target.parent.is_dir():
        raise UserError(
            f"cannot write {target}: there is no folder {target.parent}; make it or choose another"
        )
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; choose another folder") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


@cache
def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_svg(svg: str, path: Path | str) -> None:
    """Write a picture as .svg or .png, by suffix. Raises UserError for another suffix."""
    suffix = suffix_of(path, (".svg", ".png"))
    write_file(path, to_png(svg) if suffix == ".png" else svg.encode())


FONTS = (
    "Inter",
    "Arial",
    "Helvetica Neue",
    "Helvetica",
    "Liberation Sans",
    "Noto Sans",
    "Segoe UI",
    "Roboto",
    "Ubuntu",
    "Cantarell",
    "DejaVu Sans",
    "FreeSans",
)
"""Families looked for when a PNG is drawn, which knows no generic ones."""
DPI = 96
"""What an SVG's points are measured against."""


def to_png(svg: str, zoom: float = 2.0) -> bytes:
    """An SVG as PNG bytes, `zoom` pixels a unit. Raises UserError on a machine without fonts: no text would show."""
    family = _installed_family()
    if family is None:
        raise UserError(
            "none of these fonts is installed, so text would be missing from a PNG: "
            f"{', '.join(FONTS)}; install one, or write .svg instead"
        )
    return _rendered(svg, zoom, family)


def _rendered(svg: str, zoom: float, family: str) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=zoom, dpi=DPI, sans_serif_family=family))


@cache
def _installed_family() -> str | None:
    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
    letter = frame.format('<text x="2" y="16" font-size="14" font-family="sans-serif">X</text>')
    blank = _rendered(frame.format(""), 1, FONTS[0])
    return next((family for family in FONTS if _rendered(letter, 1, family) != blank), None)
