"""Shared set-up. Standing here, it also lets the tests import their helpers, such as `tiny`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of golden files and of inputs that are not generated."""
    return Path(__file__).parent / "data"
