"""What the process does with its streams and signals, so that no encoding, closed pipe or full disk is a traceback."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that was asked to end."""


def prepare() -> None:
    """Print `?` for what the terminal's encoding lacks, and end on SIGTERM as on an error, removing drafts of files."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)


def discard_output() -> None:
    """Nothing more can be written to stdout: what is still buffered must not be tried again at exit."""
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def text_of_argument(text: str) -> str:
    """An argument as the UTF-8 text that its bytes are, whatever the locale made of them. Raises ValueError for other
    bytes."""
    return os.fsencode(text).decode() if any("\ud800" <= c <= "\udfff" for c in text) else text
