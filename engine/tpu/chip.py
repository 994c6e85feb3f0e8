"""Chips: geometry and speeds from `chips.toml`, the one table; every value there names its source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from engine.errors import UserError
from engine.tpu.chip_check import check_chips


@dataclass(frozen=True)
class Chip:
    """One accelerator.

    lanes: compute lanes per core. eu_bytes: bytes a lane processes per cycle. lmem_bytes: local memory per lane
    (bytes), in `banks` equal banks. ddr_base: first DDR address. ddr_bandwidth: bytes/s of a core. clock_hz:
    cycles/s. macs_per_cycle: multiply-accumulates per cycle and core by dtype. alignment: DDR alignment of tensors
    (bytes). mask_size: side of the small causal mask (rows). fused_mlp: keeps top.MLP as one op. costs: constants of
    the cost rules (see `cost.py`). int4_operands: the TIU reads packed 4-bit operands (isa.NIBBLES). residual_bias:
    dtypes in which the product of one row takes the tensor that is added to it as its bias.
    """

    name: str
    description: str
    lanes: int
    eu_bytes: int
    lmem_bytes: int
    banks: int
    cores: int
    ddr_base: int
    ddr_bandwidth: float
    clock_hz: float
    macs_per_cycle: Mapping[str, int]
    alignment: int
    mask_size: int
    fused_mlp: bool
    costs: Mapping[str, Any]
    int4_operands: bool = False
    residual_bias: Sequence[str] = ()

    @property
    def bank_bytes(self) -> int:
        """Bytes of one bank in one lane."""
        return self.lmem_bytes // self.banks

    def eu(self, dtype_bytes: int) -> int:
        """Elements of that size that a lane processes per cycle."""
        return self.eu_bytes // dtype_bytes


@cache
def chips() -> Mapping[str, Chip]:
    """Every chip by name. Raises UserError for a value in the table that no chip can have."""
    file = "chips.toml"
    return read_chips(files("engine.tpu").joinpath(file).read_text(), f"engine/tpu/{file}")


def read_chips(text: str, file: str) -> Mapping[str, Chip]:
    """The chips of a table by name. text: TOML, called `file` in errors. Raises UserError for text that is no TOML and
    as `check_chips`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file}: {error}; accepted: TOML; correct the chip table") from None
    check_chips(table, file)
    return {name: Chip(name=name, **row) for name, row in table.items()}


def chip(name: str) -> Chip:
    """The chip called `name`. Raises UserError with the list of chips."""
    try:
        return chips()[name]
    except KeyError:
        raise UserError(f"unknown chip {name!r}; known chips: {', '.join(chips())}") from None
