"""Text that others wrote (prompts, tokens, names in files) made fit for a terminal: all visible, nothing obeyed.

A control character moves the cursor or changes colours, a bidirectional mark turns a line around, and a character
without a cell of its own makes a line shorter than it was measured. Each is shown by a sign or by its code instead.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from rich.cells import cell_len

_HOLDER = "◌"
"""Carries a combining mark that has no letter to stand on."""

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

_JOINING = frozenset(map(chr, (*range(0x1F1E6, 0x1F200), *range(0x1F3FB, 0x1F400))))
"""Halves of flags and skin tones: terminals do not agree on how many cells they take beside their neighbours."""


class _Signs(dict[int, str]):
    """Code point -> what to draw, decided when a character is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _sign(chr(code))
        return found


def _sign(letter: str) -> str:
    code, category = ord(letter), unicodedata.category(letter)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if category in ("Mn", "Me", "Mc") and not 0xFE00 <= code <= 0xFE0F and not 0xE0100 <= code <= 0xE01EF:
        return _HOLDER + letter
    plain = category[0] not in "CM" and category not in ("Zl", "Zp") and letter not in _JOINING
    return letter if plain and cell_len(letter) else f"‹{code:02X}›"


_SIGNS = _Signs()


def printable(text: str, keep: str = "", before: str = "") -> str:
    """The text with every character taking the cells that it is measured by.

    Control characters become their signs (ESC is ␛), what has no cell becomes its code (‹202E›), a combining mark
    stays on the letter that it follows and else stands on ◌. keep: characters to leave as they are. before: the text
    that is drawn in front, whose last letter may carry the first mark.
    """
    if text.isascii() and text.isprintable():
        return text
    if keep:
        parts = re.split(f"([{re.escape(keep)}])", text)
        fronts = [before, *parts]
        return "".join(
            part if part in keep else printable(part, before=front)
            for front, part in zip(fronts, parts, strict=False)
        )
    text = unicodedata.normalize("NFC", text)
    shown = text.translate(_SIGNS)
    return _with_marks(text, before[-1:]) if _HOLDER in shown else shown


def _with_marks(text: str, last: str) -> str:
    """`printable` where marks stay on letters."""
    found = []
    carries = unicodedata.category(last)[0] in "LM" if last else False
    for letter in text:
        kind = unicodedata.category(letter)[0]
        shown = _SIGNS[ord(letter)]
        found.append(letter if kind == "M" and carries and shown.startswith(_HOLDER) else shown)
        carries = kind == "L" or letter == _HOLDER or (kind == "M" and carries)
    return "".join(found)


def obeyed_shown(text: str) -> str:
    """The text with what a terminal would obey shown: control characters but line end and tab, and marks of direction.

    For running text, which no border stands beside: everything else is left to the terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_OBEYED)


def _obeyed() -> Mapping[int, str]:
    codes = [*range(0x20), *range(0x7F, 0xA0), *map(ord, _BIDIRECTIONAL), *range(0xD800, 0xE000)]
    return {code: _sign(chr(code)) for code in codes if chr(code) not in "\n\t"}


_OBEYED = _obeyed()


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` cells, broken between words, and inside those that are longer than a line.

    Line ends of the text are kept.
    """
    return [line for part in printable(text, "\n").split("\n") for line in _wrapped(part, max(2, width))]


def _wrapped(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while cell_len(line) > width:
            cut = next(n for n in range(len(line), 0, -1) if cell_len(line[:n]) <= width)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line]
