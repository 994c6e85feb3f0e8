"""The chip table as data with the source of every figure, read from the comments of `chips.toml`."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.resources import files
from typing import Any

from engine.tpu.chip import chips

SOURCES = {
    "W": "headers and tools of the TPU-MLIR 1.30.2 wheel",
    "P": "the paper on TPU-MLIR's LLM deployment",
    "R": "rule of the cost model recovered from the reference compiler's traces",
}
"""What the letters in front of a source mean."""

_SECTION = re.compile(r"\[(\w+)(\.costs)?\]")
_ENTRY = re.compile(r"(\w+)\s*=.*?#\s*(.+)")


def chip_sources() -> dict[str, dict[str, str]]:
    """chip -> field -> where its value comes from; fields of the cost rules are called `costs.NAME`."""
    found: dict[str, dict[str, str]] = {}
    chip, prefix = "", ""
    for line in files("engine.tpu").joinpath("chips.toml").read_text().splitlines():
        if section := _SECTION.match(line):
            chip, prefix = section[1], "costs." if section[2] else ""
        elif entry := _ENTRY.match(line):
            found.setdefault(chip, {})[prefix + entry[1]] = entry[2].strip()
    return found


def chips_table() -> list[dict[str, Any]]:
    """Every chip: its fields (bytes, bytes/s, Hz, operations per cycle), cost constants, and `sources` by field."""
    sources = chip_sources()
    rows = []
    for name, chip in chips().items():
        values = {field.name: getattr(chip, field.name) for field in fields(chip)}
        values |= {"costs": dict(chip.costs), "macs_per_cycle": dict(chip.macs_per_cycle)}
        rows.append({**values, "sources": sources.get(name, {})})
    return rows
