"""Typed reading of untrusted JSON objects; every refusal names the file and the key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import UserError

_LARGEST_INTEGER = 2**31 - 1


def read_json_object(path: Path) -> dict[str, Any]:
    """Contents of a JSON file that must hold one object. Raises UserError for anything else."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file; a JSON object in UTF-8 is needed") from None
    return parse_json_object(text, str(path))


def parse_json_object(text: str, where: str) -> dict[str, Any]:
    """`text` as one JSON object; `where` names it in messages. Raises UserError, also for a key that stands
    twice, NaN and infinities.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if key in values:
                raise UserError(f"{where}: key '{key}' stands twice; remove one")
            values[key] = value
        return values

    def refuse_constant(name: str) -> NoReturn:
        raise UserError(f"{where}: {name} is not valid JSON; finite numbers are accepted")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: holds {_kind(value)}; a JSON object is needed")
    return value


@dataclass(frozen=True)
class Fields:
    """One JSON object whose values are read by type; `where` is the file, with the key of a nested object."""

    where: str
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """True when the key is present and not null."""
        return self.values.get(key) is not None

    def refusal(self, key: str, reason: str) -> UserError:
        """The error to raise for the value of `key`."""
        return UserError(f"{self.where}: '{key}' is {_shown(self.values.get(key))}; {reason}")

    def integer(self, key: str, minimum: int = 1) -> int:
        """A required integer of at least `minimum`; booleans and floats are refused."""
        kind = f"an integer from {minimum} to {_LARGEST_INTEGER}"
        value = self._required(key, kind)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST_INTEGER:
            raise self.refusal(key, f"{kind} is needed")
        return value

    def number(self, key: str) -> float:
        """A required finite number above zero."""
        value = self._required(key, "a number above zero")
        if isinstance(value, bool) or not isinstance(value, int | float) or not _positive_finite(value):
            raise self.refusal(key, "a number above zero is needed")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """As `number`; None when the key is absent or null."""
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, absent: bool = False) -> bool:
        """A boolean; `absent` when the key is absent or null."""
        if not self.has(key):
            return absent
        value = self.values[key]
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false is needed")
        return value

    def text(self, key: str) -> str:
        """A required string."""
        value = self._required(key, "a string")
        if not isinstance(value, str):
            raise self.refusal(key, "a string is needed")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when the key is absent or null."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
            raise self.refusal(key, "an integer or a list of integers is needed")
        return tuple(ids)

    def nested(self, key: str) -> Fields:
        """The object under `key`; an empty one when the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.refusal(key, "an object is needed")
        return Fields(f"{self.where}, '{key}'", value)

    def _required(self, key: str, kind: str) -> Any:
        if key not in self.values:
            raise UserError(f"{self.where}: '{key}' is missing")
        if self.values[key] is None:
            raise self.refusal(key, f"the model cannot do without it: {kind} is required")
        return self.values[key]


def listed(names: Iterable[str], most: int = 4) -> str:
    """Names for a message: the first few, then how many more."""
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _positive_finite(value: int | float) -> bool:
    try:
        return isfinite(value) and value > 0
    except OverflowError:
        return False


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
