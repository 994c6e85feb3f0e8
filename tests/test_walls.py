"""The walls between the rooms: the import contracts of pyproject.toml hold, and would be seen to fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command as check; check()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_walls_stand() -> None:
    found = lint_imports(ROOT)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Contracts: 3 kept, 0 broken." in found.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("engine/shapes.py", "import app.units", "The engine never imports the app"),
        ("engine/merge.py", "import torch_mlir.ir", "Only engine.mlir imports the MLIR bindings"),
        (
            "engine/sim/timing.py",
            "import engine.passes.pipeline",
            "Passes and the simulator do not import each",
        ),
    ],
)
def test_hole_in_a_wall_is_found(tmp_path: Path, file: str, line: str, contract: str) -> None:
    # GIVEN the sources with one import too many
    for name in ("app", "engine"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / file).open("a") as source:
        source.write(f"\n{line}\n")
    # WHEN the contracts are checked THEN the right one is broken
    found = lint_imports(tmp_path)
    assert found.returncode == 1
    assert f"{contract}" in found.stdout.partition("Broken contracts")[2]
