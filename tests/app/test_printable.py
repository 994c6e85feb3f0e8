"""Text of others: nothing in it is obeyed by the terminal, and it takes the cells that it is measured by."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.printable import obeyed_shown, printable, wrapped

INVISIBLE = st.sampled_from(
    "\x00\x07\x1b\x7f\x9b\r\n\t\xad\u200b\u200d\u202e\u2066\ufeff\ufe0f\u0301\u0e31\ud800\ue000"
)
TEXT = st.text(
    st.one_of(st.characters(exclude_categories=()), INVISIBLE, st.sampled_from("ab ")), max_size=12
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [x]", "plain [x]"),
        ("\x1b[31mred", "␛[31mred"),
        ("\x00\t\n\r\x7f", "␀␉␊␍␡"),
        ("\x9b2J", "‹9B›2J"),
        ("a\u202eb", "a‹202E›b"),
        ("a\u200d\u200b", "a‹200D›‹200B›"),
        ("❤\ufe0f", "❤‹FE0F›"),
        ("\ud800", "‹D800›"),
        ("\ufffd", "\ufffd"),
        ("e\u0301", "é"),
        ("x\u0301", "x\u0301"),
        (" \u0301", " ◌\u0301"),
        ("\u0301", "◌\u0301"),
        ("한국 ü", "한국 ü"),
    ],
)
def test_what_is_not_seen_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_mark_stays_on_the_letter_in_front() -> None:
    assert printable("\u0301", before="x") == "\u0301"
    assert printable("\u0301", before="x ") == "◌\u0301"


def test_characters_to_keep_are_kept() -> None:
    assert printable("a\n\x1b\tb", keep="\n") == "a\n␛␉b"


@given(TEXT)
def test_every_text_can_be_drawn(text: str) -> None:
    shown = printable(text)
    assert not any(unicodedata.category(letter)[0] == "C" for letter in shown)
    # a sum over letters is what the panels measure; marks stand on letters and add nothing
    assert cell_len(shown) == sum(map(cell_len, shown))
    assert all(cell_len(letter) or unicodedata.category(letter)[0] == "M" for letter in shown)
    assert printable(shown) == shown


@given(TEXT)
def test_running_text_holds_nothing_that_is_obeyed(text: str) -> None:
    shown = obeyed_shown(text)
    assert not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in shown if letter not in "\n\t")
    assert "\u202e" not in shown


def test_running_text_keeps_what_only_joins() -> None:
    assert obeyed_shown("a\n\tb 👩\u200d👧 e\u0301") == "a\n\tb 👩\u200d👧 e\u0301"
    assert obeyed_shown("\x1b]0;title\x07\r") == "␛]0;title␇␍"


@given(TEXT, st.integers(2, 30))
def test_lines_fit_and_lose_no_letter(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(cell_len(line) <= max(2, width) for line in lines)
    assert "".join("".join(lines).split()) == "".join(printable(text, "\n").split())


def test_words_stay_whole_where_they_can() -> None:
    assert wrapped("give a checkpoint folder", 12) == ["give a", "checkpoint", "folder"]
    assert wrapped("/a/very/long/path", 6) == ["/a/ver", "y/long", "/path"]
