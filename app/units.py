"""Numbers as people read them: bytes in kB and MB (powers of 1000), cycles in kc and Mc, times in us and ms."""

from __future__ import annotations

TRAFFIC_NAMES = {"kv_cache": "KV", "other": "tables"}
"""What people call kinds of DDR traffic that have another name in the simulation (see throughput.CATEGORIES)."""

CONTENTION = "each core as if alone: their contention for DDR is not modelled"
"""What to say beside figures of a program on several cores."""


def _scaled(value: float, units: tuple[str, ...], digits: int = 3) -> str:
    """Three significant digits with the unit that keeps the number between 1 and 1000."""
    index = 0
    while abs(value) >= 999.5 and index < len(units) - 1:
        value /= 1000
        index += 1
    if index == 0:
        return f"{value:.0f} {units[0]}".rstrip()
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f} {units[index]}"


def size(nbytes: float, digits: int = 3) -> str:
    """Bytes: `2.08 MB`."""
    return _scaled(nbytes, ("B", "kB", "MB", "GB", "TB"), digits)


def cycles(count: float) -> str:
    """Clock cycles: `75.7 kc`."""
    return _scaled(count, ("c", "kc", "Mc", "Gc"))


def count(number: int) -> str:
    """A whole number with thousands separators."""
    return f"{number:,}"


def rate(number: float) -> str:
    """How much a second, with thousands separators: `25,236`, `273.4`."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def short_count(number: float) -> str:
    """A number of things: `135 M`."""
    return _scaled(number, ("", "k", "M", "G"))


def duration(seconds: float) -> str:
    """A time: `3.65 ms`, `1.9 s`."""
    if seconds >= 60:
        return f"{int(seconds // 60)} min {seconds % 60:.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def share(part: float, whole: float) -> str:
    """A share: `37.8 %`."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def address(value: int) -> str:
    """A DDR address in hex, in groups of four digits: `0x1_0000_1000`."""
    return f"0x{value:_x}"


def shape(dims: tuple[int, ...]) -> str:
    """A shape: `1x512x576`."""
    return "×".join(map(str, dims)) if dims else "scalar"


def bar(part: float, whole: float, width: int) -> str:
    """A horizontal bar in eighths of a cell, at least a sliver for anything above zero."""
    if whole <= 0 or part <= 0 or width <= 0:
        return ""
    eighths = max(1, round(8 * width * min(1.0, part / whole)))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
