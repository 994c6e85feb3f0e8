"""Inputs of one line: what cannot be drawn is shown, and a value that will not be accepted is red while it is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.text import Text
from textual.validation import Function
from textual.widgets import Input

from app.printable import printable
from app.shared_options import whole_number
from engine.errors import UserError


class Field(Input):
    """An input without a border.

    check: raises UserError for a text that will not be accepted; empty text always is.
    """

    DEFAULT_CSS = """
    Field {
        background: $panel;
        &:focus { background: $surface; }
        &.-invalid { color: $error; background-tint: $error 0%; }
    }
    """

    def __init__(
        self, value: str = "", check: Callable[[str], object] | None = None, **settings: Any
    ) -> None:
        validators = [Function(lambda text: _passes(check, text))] if check is not None else []
        super().__init__(value, compact=True, validators=validators, valid_empty=True, **settings)

    @property
    def _value(self) -> Text:
        """The value as it is drawn: one letter for each of its own, so that the cursor stays where it is."""
        return Text("".join(_one(letter) for letter in self.value), no_wrap=True, overflow="ignore", end="")


def _passes(check: Callable[[str], object], text: str) -> bool:
    try:
        check(text.strip())
    except UserError:
        return False
    return True


def _one(letter: str) -> str:
    shown = printable(letter)
    return shown if len(shown) == 1 else "·"


class NumberField(Field):
    """A whole number. name: what people call it. accepted: words for what it may be."""

    def __init__(self, label: str, accepted: str, value: str = "", least: int = 1, **settings: Any) -> None:
        self.label, self.accepted, self.least = label, accepted, least
        super().__init__(value, self.read, **settings)

    def read(self, text: str) -> int:
        """The number. Raises UserError for anything else, and for one that is too small."""
        number = whole_number(self.label, text, self.accepted)
        if number < self.least:
            raise UserError(f"{self.label}: {number} is too small; accepted: {self.accepted}")
        return number

    @property
    def number(self) -> int | None:
        """The number in it; None when it is empty. Raises UserError."""
        text = self.value.strip()
        return self.read(text) if text else None
