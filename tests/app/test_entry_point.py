"""Ctrl-C while the command line is still being imported."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from app.__main__ import INTERRUPTED

ROOT = Path(__file__).parents[2]

START = """
    import os, signal, sys

    class Interrupting:
        '''Interrupts the process when a module is looked for, and makes of the exception what a library might.'''
        def find_spec(self, name, path=None, target=None):
            if name == {module!r}:
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except BaseException as error:
                    raise ImportError("no such luck") from error

    signal.signal(signal.SIGINT, signal.{handler})
    sys.argv[1:] = ["chips", "--json"]
    sys.meta_path.insert(0, Interrupting())
    from app.__main__ import main
    main()
"""


def started(module: str, handler: str) -> subprocess.CompletedProcess[str]:
    """The console script's steps in a process that is interrupted when it imports a module."""
    script = textwrap.dedent(START.format(module=module, handler=handler))
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize("module", ["app.cli", "typer", "app.shared_options"])
def test_an_interrupt_of_the_imports_ends_quietly(module: str) -> None:
    # GIVEN a start WHEN it is interrupted while a module is imported THEN nothing is printed, and the code says why
    found = started(module, "default_int_handler")
    assert (found.returncode, found.stdout, found.stderr) == (INTERRUPTED, "", "")


def test_ignored_interrupts_stay_ignored() -> None:
    found = started("typer", "SIG_IGN")
    assert (found.returncode, found.stderr) == (0, "")
    assert "bm1684x" in found.stdout


def test_the_entry_point_imports_next_to_nothing() -> None:
    # an interrupt before `main` is a traceback, so its module is loaded in no time
    code = "import sys; before = set(sys.modules); import app.__main__; print(*set(sys.modules) - before)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert set(found.stdout.split()) == {"__future__", "app", "app.__main__"}


def test_the_console_script_is_the_entry_point() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"tpuscope": "app.__main__:main"}
    assert signal.SIGINT + 128 == INTERRUPTED
