"""What a row of the chip table may hold: every key with what is accepted, and what values must be to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from engine.errors import UserError

FLOATS = ("f32", "f16", "bf16")
"""Dtypes that the matrix units multiply."""


@dataclass(frozen=True)
class _Rule:
    """What a key accepts, in words and as a test."""

    accepted: str
    accepts: Callable[[Any], bool]
    optional: bool = False


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_int(value) and value > 0


def _is_speed(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and isfinite(value) and value > 0


def _is_delay(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _list_of(length: int, accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) == length and all(map(accepts, value))


def _is_rates(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == set(FLOATS) and all(map(_is_count, value.values()))


def _is_dtypes(value: Any) -> bool:
    return isinstance(value, list) and all(name in FLOATS for name in value)


_COUNT = _Rule("a whole number above 0", _is_count)
_SPEED = _Rule("a number above 0", _is_speed)

_CHIP: Mapping[str, _Rule] = {
    "description": _Rule("a text", lambda value: isinstance(value, str)),
    "lanes": _COUNT,
    "eu_bytes": _COUNT,
    "lmem_bytes": _COUNT,
    "banks": _COUNT,
    "cores": _COUNT,
    "ddr_base": _Rule("a whole number from 0", _is_delay),
    "ddr_bandwidth": _SPEED,
    "clock_hz": _SPEED,
    "macs_per_cycle": _Rule(f"a whole number above 0 for each of {', '.join(FLOATS)}", _is_rates),
    "alignment": _Rule("a power of two", lambda value: _is_count(value) and value & (value - 1) == 0),
    "mask_size": _COUNT,
    "fused_mlp": _Rule("true or false", _is_bool),
    "int4_operands": _Rule("true or false", _is_bool, optional=True),
    "residual_bias": _Rule(f"a list of some of {', '.join(FLOATS)}", _is_dtypes, optional=True),
    "costs": _Rule("a table of cost constants", lambda value: isinstance(value, dict)),
}

_COSTS: Mapping[str, _Rule] = {
    "transfer_bytes_per_cycle": _Rule("3 numbers above 0", _list_of(3, _is_speed)),
    "matrix_bytes_per_cycle": _Rule("2 numbers above 0", _list_of(2, _is_speed)),
    "broadcast_bytes_per_cycle": _SPEED,
    "gather_bytes_per_cycle": _SPEED,
    "latency": _Rule("3 whole numbers from 0", _list_of(3, _is_delay)),
    "burst_bytes": _COUNT,
    "channel_bytes": _COUNT,
    "channels": _COUNT,
    "mm2_step": _Rule("3 whole numbers above 0", _list_of(3, _is_count)),
    "mm2_macs_per_cycle": _COUNT,
    "mm_rows": _Rule("3 whole numbers above 0", _list_of(3, _is_count)),
    "div": _COUNT,
    "rsqrt": _COUNT,
    "select": _COUNT,
}


def check_chips(table: Mapping[str, Any], file: str) -> None:
    """Raise UserError for the first value of a chip table that no chip can have: it names the file, chip and key, what
    was found and what is accepted. table: chip -> its row as read from TOML."""
    for name, row in table.items():
        where = f"{file}: chip {name}"
        if not isinstance(row, dict):
            raise UserError(f"{where} is {row!r}; accepted: a table; correct the chip table")
        _check_keys(row, _CHIP, where, "")
        _check_keys(row["costs"], _COSTS, where, "costs.")
        _check_together(row, where)


def _check_keys(row: Mapping[str, Any], rules: Mapping[str, _Rule], where: str, prefix: str) -> None:
    for key in row:
        if key not in rules:
            raise UserError(f"{where}: {prefix}{key} is unknown; accepted: {', '.join(rules)}; remove it")
    for key, rule in rules.items():
        if key not in row:
            if not rule.optional:
                raise UserError(f"{where}: {prefix}{key} is missing; accepted: {rule.accepted}; add it")
        elif not rule.accepts(row[key]):
            raise _refused(where, prefix + key, row[key], rule.accepted)


def _check_together(row: Mapping[str, Any], where: str) -> None:
    eu, banks, lanes, alignment = row["eu_bytes"], row["banks"], row["lanes"], row["alignment"]
    multiples = (
        ("eu_bytes", 4, "4, the bytes of an f32"),
        ("lmem_bytes", banks * eu, f"banks x eu_bytes = {banks} x {eu} = {banks * eu}"),
        ("ddr_base", alignment, f"alignment = {alignment}"),
        ("mask_size", lanes, f"lanes = {lanes}"),
    )
    for key, unit, text in multiples:
        if row[key] % unit:
            raise _refused(where, key, row[key], f"a multiple of {text}")


def _refused(where: str, key: str, found: Any, accepted: str) -> UserError:
    return UserError(f"{where}: {key} is {found!r}; accepted: {accepted}; correct the chip table")
