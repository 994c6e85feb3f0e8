"""`tpuscope` and `python -m app`: the command line, and a quiet end on Ctrl-C before it is there to catch one.

Nothing is imported before `main` runs but what Python has loaded anyway.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
"""Exit code of a process that was interrupted."""


def main() -> None:
    """Import the command line, run it and exit.

    While modules are imported, an interrupt ends the process at once: raised as an exception it could be swallowed, or
    printed, by whatever is being imported. Afterwards it raises KeyboardInterrupt, as programs expect. A process that
    was started with interrupts ignored goes on ignoring them.
    """
    try:
        import signal

        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        from app import cli

        signal.signal(signal.SIGINT, before)
        cli.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
