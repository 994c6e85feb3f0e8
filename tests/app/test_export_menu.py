"""The export menu: the data of each screen as a table, maps of memory, and what files are called."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from compiled import tiny_compilation
from textual.pilot import Pilot
from textual.widgets import Input

from app.explorer import Explorer
from app.screen_data import Subject, csv_text, screen_data
from app.screens.export import Export, ExportScreen, exports
from app.workspace import Workspace
from engine.errors import UserError
from engine.tables import memory_table, passes_table

BLOCK = "block_cache_0"


@pytest.fixture(scope="module")
def tiny() -> Workspace:
    """A small compiled model, with layer groups."""
    work = Workspace(tiny_compilation(), "tiny-qwen2")
    work.select_module(BLOCK)
    return work


def menu(work: Workspace, subject: Subject) -> dict[str, Export]:
    return {choice.title: choice for choice in exports(work, lambda: "<svg/>", subject)}


def test_files_are_called_after_the_module(tiny: Workspace) -> None:
    found = menu(tiny, Subject("memory", "local", group=0))
    assert found["IR"].file == f"{BLOCK}.import.mlir"
    assert found["graph of the module"].file == f"{BLOCK}.svg"
    assert found["map of local memory"].file == f"{BLOCK}.group0.svg"
    assert found["map of DDR"].file == f"{BLOCK}.ddr.svg"


@pytest.mark.parametrize("title", ["map of local memory", "map of DDR"])
def test_maps_are_drawn(tiny: Workspace, tmp_path: Path, title: str) -> None:
    choice = menu(tiny, Subject("memory", "local", group=0))[title]
    for suffix, start in ((".svg", b"<svg"), (".png", b"\x89PNG")):
        target = tmp_path / f"map{suffix}"
        choice.write(target)
        assert target.read_bytes().startswith(start)


def test_modules_without_groups_have_no_map_of_local_memory(work: Workspace) -> None:
    # GIVEN a program without the pass
    assert "map of local memory" not in menu(work, Subject("memory"))
    assert "map of DDR" in menu(work, Subject("memory"))


@pytest.mark.parametrize(
    "subject",
    [
        Subject("explore"),
        Subject("explore", "modules"),
        Subject("memory"),
        Subject("memory", "program"),
        Subject("memory", "local"),
        Subject("simulate"),
        Subject("kv"),
    ],
    ids=lambda subject: f"{subject.screen}-{subject.view}",
)
def test_every_screen_has_a_table(tiny: Workspace, tmp_path: Path, subject: Subject) -> None:
    choice = menu(tiny, subject)["table"]
    assert choice.file.endswith(".csv")
    choice.write(tmp_path / "t.csv")
    choice.write(tmp_path / "t.json")
    data = screen_data(tiny, subject)
    assert data is not None
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # THEN the table has a row for each of the JSON's, with its values
    wanted = data.rows(json.loads((tmp_path / "t.json").read_text()))
    assert len(rows) == len(wanted) > 0
    plain = {name: value for name, value in wanted[0].items() if isinstance(value, (int, str))}
    assert {name: rows[0][name] for name in plain} == {name: str(value) for name, value in plain.items()}


def test_the_json_is_what_the_command_prints(tiny: Workspace, tmp_path: Path) -> None:
    def written(subject: Subject) -> Any:
        menu(tiny, subject)["table"].write(tmp_path / "t.json")
        return json.loads((tmp_path / "t.json").read_text())

    assert written(Subject("explore")) == passes_table(tiny.compilation, BLOCK)
    assert written(Subject("memory")) == json.loads(json.dumps(memory_table(tiny.compilation, BLOCK)))


def test_other_kinds_of_files_are_refused(tiny: Workspace, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.csv or \.json"):
        menu(tiny, Subject("explore"))["table"].write(tmp_path / "t.xlsx")


def test_nested_values_become_columns() -> None:
    rows = [{"a": 1, "kinds": {"x": 2}}, {"a": 3, "shape": [1, 2], "parts": [{"n": 1}], "none": None}]
    assert csv_text(rows).splitlines() == ["a,kinds.x,shape,parts,none", "1,2,,,", "3,,1 2,n=1,"]


async def test_the_name_begins_with_the_model(tiny: Workspace) -> None:
    async with Explorer(tiny).run_test(size=(80, 24)) as pilot:
        await _menu(pilot, "down")
        assert pilot.app.screen.query_one(Input).value == f"tiny-qwen2.{BLOCK}.import.mlir"
        await pilot.press("down")
        await pilot.pause()
        assert pilot.app.screen.query_one(Input).value == f"tiny-qwen2.{BLOCK}.passes.csv"


async def test_the_map_is_of_the_group_that_is_shown(tiny: Workspace) -> None:
    async with Explorer(tiny).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("2", "m", "g")
        screen = await _menu(pilot)
        groups = len(tiny.snapshots().after("layer-group").report.groups)
        choice = next(c for c in screen.choices if c.title == "map of local memory")
        assert choice.file == f"{BLOCK}.group{1 % groups}.svg"


async def _menu(pilot: Pilot[None], *keys: str) -> ExportScreen:
    await pilot.pause()
    await pilot.press("e", *keys)
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, ExportScreen)
    return screen
