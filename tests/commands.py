"""For tests of commands: running a command line in this process, and checking its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from app import cli

SCHEMAS = Path(__file__).parent / "schemas"

Run = Callable[..., tuple[int, str, str]]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs a command line: (exit code, stdout, stderr)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def checked(name: str, text: str) -> Any:
    """JSON output, checked against its schema."""
    value = json.loads(text)
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(value)
    return value
