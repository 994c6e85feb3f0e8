"""What the explorer's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_program import sample_compilation

from app.workspace import Workspace
from engine.compiler import Compilation


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    """A hand-written program; read only."""
    return sample_compilation(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def work(sample: Compilation) -> Workspace:
    """A fresh look at the hand-written program."""
    return Workspace(sample, "sample-3l", seconds=1.25)


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's settings are not touched, and files are written into the test's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
