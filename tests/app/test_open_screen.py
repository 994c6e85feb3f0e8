"""The form that opens a model: what it takes, what it says, and which options a model is opened with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driving import until
from textual.widgets import Input, Select, Static
from tiny import write_tiny

from app import explorer
from app.explorer import Explorer
from app.screens import open_model
from app.screens.explore import ExploreScreen
from app.screens.open_model import Choice, ChoiceTable, OpenScreen
from app.session import Session
from app.settings import Settings
from app.workspace import Workspace

SIZE = (100, 30)
GIVEN: dict[str, Any] = {
    "quantize": "f32",
    "seq_length": 64,
    "max_input_length": 32,
    "symmetric": True,
    "layer_group": False,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("open") / "tiny-llama", "llama")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the explorer was asked to open; nothing is opened."""
    asked: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        Explorer, "open_path", lambda self, path, options, *told: asked.append((path, dict(options)))
    )
    return asked


def form(app: Explorer) -> OpenScreen:
    assert isinstance(app.screen, OpenScreen)
    return app.screen


def said(app: Explorer) -> str:
    problem = form(app).query_one("#problem", Static)
    return str(problem.content) if problem.has_class("-shown") else ""


def value(app: Explorer, field: str) -> str:
    return form(app).query_one(f"#{field}", Input).value


@pytest.mark.parametrize("text", ["-", "+", "1_0", "1__0", "x", "0"])
@pytest.mark.parametrize(("tabs", "name"), [(3, "history S"), (4, "prefill L")])
async def test_a_number_that_is_none_is_explained(
    checkpoint: Path, opened: list[Any], tabs: int, name: str, text: str
) -> None:
    app = Explorer(Workspace.of(Session.open(checkpoint, GIVEN)))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("0", *["tab"] * tabs, "ctrl+u", *text)
        # THEN the field shows that it is wrong, and what is in it
        field = form(app).focused
        assert isinstance(field, Input)
        assert field.has_class("-invalid")
        assert field.size.height == 1
        assert field.render_line(0).text.startswith(text)
        # AND enter says which field, what was found and what is accepted
        await pilot.press("enter")
        await pilot.pause()
        assert said(app).startswith(f"{name}: ")
        assert text in said(app)
        assert "accepted: 1 to " in said(app)
        assert not opened
        # AND an edit takes the problem away
        await pilot.press("ctrl+u", "8")
        await pilot.pause()
        assert said(app) == ""
        assert not field.has_class("-invalid")


async def test_an_edited_path_takes_the_problem_away(tmp_path: Path) -> None:
    app = Explorer()
    async with app.run_test(size=SIZE) as pilot:
        form(app).query_one("#path", Input).value = str(tmp_path / "[/nowhere")
        await pilot.press("enter")
        await until(pilot, lambda: said(app))
        # THEN every kind of model is named
        assert "a checkpoint folder, a config.json or a compiled file is needed" in said(app)
        await pilot.press("x")
        await pilot.pause()
        assert said(app) == ""


async def test_opening_again_keeps_every_option(checkpoint: Path) -> None:
    # GIVEN a model with options, of which some have no field of their own
    first = Session.open(checkpoint, GIVEN)
    app = Explorer(Workspace.of(first))
    async with app.run_test(size=SIZE) as pilot:
        # WHEN the form is opened
        await pilot.press("0")
        assert value(app, "seq_length") == "64"
        assert value(app, "max_input_length") == "32"
        assert value(app, "others") == "--symmetric --no-layer-group"
        # AND sent as it is THEN the program is the same
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ExploreScreen))
        assert app.work is not None
        session = app.work.session
        assert session is not None
        assert session is not first
        assert session.options == first.options
        assert [spec.name for spec in app.work.specs] == [spec.name for spec in first.compilation.specs]


async def test_the_other_options_can_be_cleared(checkpoint: Path, opened: list[Any]) -> None:
    app = Explorer(Workspace.of(Session.open(checkpoint, GIVEN)))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("0")
        form(app).query_one("#others", Input).focus()
        await pilot.press("ctrl+u", *"--opt 9x", "enter")
        await pilot.pause()
        assert said(app).startswith("also: --opt: '9x' is no whole number")
        await pilot.press("ctrl+u", "enter")
        await pilot.pause()
    assert opened == [
        (str(checkpoint), {"quantize": "f32", "seq_length": 64, "max_input_length": 32}),
    ]


async def test_a_demo_and_a_recent_model_have_options_of_their_own(
    checkpoint: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_model, "demo_choices", lambda: [Choice("demo", "demo", "", "/demo", {})])
    Settings().opened(checkpoint, {"seq_length": 48, "cores": 1, "decode_chunks": [16]}).save()
    app = Explorer(Workspace.of(Session.open(checkpoint, GIVEN)), remember=True)
    async with app.run_test(size=SIZE) as pilot:
        # GIVEN the form with the options of what is open
        await pilot.press("0")
        table = form(app).query_one(ChoiceTable)
        # WHEN the path is cleared THEN so are they
        await pilot.press("ctrl+u")
        await until(
            pilot, lambda: [getattr(row.key, "kind", "") for row in table.rows[:2]] == ["demo", "recent"]
        )
        assert value(app, "seq_length") == value(app, "others") == ""
        assert form(app).query_one("#quantize", Select).value == "auto"
        # AND a demo is opened without them, a recent model with its own
        await pilot.press("down", "enter")
        assert opened.pop() == ("/demo", {})
        form(app)._opening = False
        await pilot.press("down", "enter")
        own = {"seq_length": 48, "cores": 1, "decode_chunks": [16]}
        assert opened.pop() == (str(checkpoint), own)
        # AND what the user writes comes on top
        form(app)._opening = False
        form(app).query_one("#seq_length", Input).value = "32"
        table.focus()
        await pilot.press("enter")
        assert opened.pop() == (str(checkpoint), {**own, "seq_length": 32})


async def test_a_compiled_file_is_not_asked_for_the_options_of_another_model(
    checkpoint: Path, tmp_path: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.session.is_compiled", lambda path: path.suffix == ".tpuscope")
    app = Explorer(Workspace.of(Session.open(checkpoint, GIVEN)))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("0")
        form(app).query_one("#path", Input).value = str(tmp_path / "a.tpuscope")
        await pilot.press("enter")
        await pilot.pause()
    assert opened == [(str(tmp_path / "a.tpuscope"), {})]


async def test_a_path_that_cannot_be_drawn_is_shown_in_its_cells(tmp_path: Path) -> None:
    strange = tmp_path / "a\x1b[31m\u202eb"
    strange.mkdir()
    (strange / "config.json").write_text("{}")
    app = Explorer()
    async with app.run_test(size=SIZE) as pilot:
        field = form(app).query_one("#path", Input)
        field.value = "x\x1b\u202ey"
        await pilot.pause()
        assert field.render_line(0).text.startswith("x␛·y")
        field.value = f"{tmp_path}/"
        await pilot.pause()
        drawn = form(app).query_one(ChoiceTable).render_line(0).text
        assert "a␛[31m‹202E›b/" in drawn


def test_the_options_of_the_command_line_are_remembered(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explorer starts with what the command line has noted, and does not overwrite it."""
    from app import cli

    monkeypatch.setattr(cli, "_is_terminal", lambda: True)
    monkeypatch.setattr(explorer.Explorer, "run", lambda self: None)
    assert cli.run([str(checkpoint), "--seq-length", "64", "--fuse-weights"]) == 0
    (recent,) = Settings.load().recent
    assert recent.options == {"seq_length": 64, "fuse_weights": True}
    # AND the list says so
    (choice,) = open_model.recent_choices()
    assert choice.about.startswith("S 64 --fuse-weights")
    assert choice.options == recent.options
