"""What `tpuscope run` writes of the model's text: all of it into a pipe, nothing that a terminal obeys onto one."""

from __future__ import annotations

import io
import sys

import pytest

from app import generation

TEXT = "a\x1b[31mb\n\tc\x07\u202e"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_shown_what_it_would_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    generation._write(TEXT)
    assert screen.getvalue() == "a␛[31mb\n\tc␇‹202E›"


def test_a_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    generation._write(TEXT)
    assert pipe.getvalue() == TEXT
