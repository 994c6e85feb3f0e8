"""Numbers and names as pictures and pages write them: bytes in powers of 1000, addresses in hex."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.stages import ModuleSpec


def scaled(value: float, units: Sequence[str]) -> str:
    """Three significant digits and the unit that keeps the number below 1000."""
    step = 0
    while abs(value) >= 999.5 and step < len(units) - 1:
        value, step = value / 1000, step + 1
    digits = 0 if step == 0 else max(0, 3 - len(str(int(abs(value)))))
    return f"{value:.{digits}f} {units[step]}".rstrip()


def size(nbytes: float) -> str:
    """Bytes: `2.08 MB`."""
    return scaled(nbytes, ("B", "kB", "MB", "GB", "TB"))


def count(number: float) -> str:
    """A number of things: `135 M`."""
    return scaled(number, ("", "k", "M", "G"))


def cycles(number: float) -> str:
    """Clock cycles: `75.7 kc`."""
    return scaled(number, ("c", "kc", "Mc", "Gc"))


def seconds(value: float) -> str:
    """A time: `3.65 ms`."""
    return f"{value:.3g} s" if value >= 1 else scaled(value * 1e9, ("ns", "us", "ms"))


def address(value: int) -> str:
    """A DDR address in hex, in groups of four digits: `0x1_0000_1000`."""
    return f"0x{value:_x}"


def plural(number: int, thing: str) -> str:
    """`1 layer`, `30 layers`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def layers(numbers: Sequence[int]) -> str:
    """`layers 0-28`, `layer 29`; a sorted list with gaps keeps its ends."""
    if not numbers:
        return ""
    return f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {numbers[0]}-{numbers[-1]}"


def times(spec: ModuleSpec) -> str:
    """`block_0 ×29`, or the bare name of a module that serves one layer or none."""
    return f"{spec.name} ×{len(spec.layers)}" if len(spec.layers) > 1 else spec.name


_LAYER_PREFIX = re.compile(r"^model\.layers\.(\{i\}|\d+)\.")


def short_name(name: str, layer: int | None = None) -> str:
    """A location without the prefix that a block's ops share: `self_attn.q_proj`. layer: fills in the placeholder."""
    return _LAYER_PREFIX.sub("", in_layer(name, layer))


def in_layer(name: str, layer: int | None) -> str:
    """A name with the layer in place of its placeholder; None leaves it."""
    return name if layer is None else name.replace("{i}", str(layer))
