"""What the process does with its streams and signals, so that no encoding, closed pipe or full disk is a traceback."""

from __future__ import annotations

import codecs
import errno
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that was asked to end."""


_SIGNS = {
    **dict.fromkeys("−–—─╌┈▔", "-"),
    **dict.fromkeys("━", "="),
    **dict.fromkeys("·│╎╵▏▕", "|"),
    **dict.fromkeys("→▸›", ">"),
    **dict.fromkeys("←◂‹", "<"),
    **dict.fromkeys("↓▾▼✓", "v"),
    **dict.fromkeys("↑▴▲↕", "^"),
    **dict.fromkeys("×✗╳", "x"),
    **dict.fromkeys("▎▍▌⋮", ":"),
    **dict.fromkeys("▋▊▉█▓▒■▀▄▐◆", "#"),
    **dict.fromkeys("░•", "."),
    **dict.fromkeys("╱", "/"),
    **dict.fromkeys("╰╭", "+"),
    "…": "~",
    "±": "*",
    "⚠": "!",
    "≤": "<",
    "∅": "0",
    "◌": "o",
}
"""What a sign of ours becomes where the encoding lacks it: one cell for one, so that columns stay aligned."""

_HANDLER = "tpuscope-signs"


def prepare() -> None:
    """Print plain signs for those of ours that the terminal's encoding lacks and `?` for other text, do without streams
    that were closed, and end on SIGTERM as on an error, removing drafts of files."""
    _open_closed()
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
    signal.signal(signal.SIGTERM, _terminate)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """The replacement of what an encoding lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SIGNS.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _open_closed() -> None:
    """Give a process that was started with closed streams (`>&-`) null devices in their place, so that no file that it
    opens later, of a worker process or a draft, gets the number of a stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # the system gives the lowest number that is free, which is that of the closed stream
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="replace"))  # noqa: SIM115


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)


def discard_output() -> None:
    """Nothing more can be written to stdout: what is still buffered must not be tried again at exit."""
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def name_of(error: OSError) -> str:
    """What an error of the system is about: its file, or standard output, which alone is written without a name."""
    return str(error.filename or ("standard output" if error.errno in _NOT_WRITTEN else ""))


def text_of_argument(text: str) -> str:
    """An argument as the UTF-8 text that its bytes are, whatever the locale made of them. Raises ValueError for other
    bytes."""
    return os.fsencode(text).decode() if any("\ud800" <= c <= "\udfff" for c in text) else text
