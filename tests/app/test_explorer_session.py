"""The explorer on a real session: opening, compiling in the background, generating, cancelling."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import driving
import pytest
from textual.widgets import Input, Static
from tiny import write_tiny

from app.explorer import Explorer
from app.screens.explore import ExploreScreen
from app.screens.generate import GenerateScreen
from app.screens.open_model import ChoiceTable, OpenScreen
from app.session import Session
from app.settings import Settings
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.lines import plain
from app.widgets.text_flow import TextFlow
from app.workspace import Workspace

OPTIONS = {"seq_length": 32, "max_input_length": 8, "decode_chunks": (), "quantize": "bf16"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("explorer") / "tiny-llama", "llama")


until = partial(driving.until, seconds=60)


async def test_compile_run_and_look_at_the_cache(checkpoint: Path) -> None:
    # GIVEN the explorer on a model that is not compiled yet
    work = Workspace.of(Session.open(checkpoint, OPTIONS))
    assert work.running
    app = Explorer(work)
    async with app.run_test(size=(110, 34)) as pilot:
        # THEN passes arrive, and at last all modules are compiled and priced
        await until(pilot, lambda: work.snapshot() is not None)
        await until(pilot, lambda: not work.running)
        assert work.compilation.complete
        await until(pilot, lambda: len(work.timings) == len(work.specs))
        assert all(work.state(spec.name) == "done" for spec in work.specs)
        # WHEN text is generated
        await pilot.press("5", "i")
        screen = app.screen
        assert isinstance(screen, GenerateScreen)
        screen.query_one("#prompt", Input).value = "hello"
        screen.query_one("#count", Input).value = "4"
        await pilot.press("enter")
        await until(pilot, lambda: screen.run_data is not None and not screen.run_data.running)
        run = screen.run_data
        assert run is not None
        # THEN every token is there with its alternatives, and with its time on the chip
        session = work.session
        assert session is not None
        expected = [t.token for t in session.generate(session.encode("hello"), 4)]
        assert [step.token for step in run.steps] == expected
        assert all(len(step.top) == 5 for step in run.steps)
        await until(pilot, lambda: all(step.simulated for step in run.steps))
        # AND the KV screen knows how full the cache is
        await pilot.press("escape", "4")
        await pilot.pause()
        assert work.filled >= run.prompt_tokens


async def test_a_running_generation_can_be_stopped(checkpoint: Path) -> None:
    session = Session.open(checkpoint, OPTIONS)
    session.compile()
    work = Workspace.of(session)
    app = Explorer(work)
    async with app.run_test(size=(110, 34)) as pilot:
        await pilot.press("5", "i")
        screen = app.screen
        assert isinstance(screen, GenerateScreen)
        screen.query_one("#count", Input).value = "24"
        await pilot.press("enter")
        await until(pilot, lambda: screen.run_data is not None and screen.run_data.steps)
        await pilot.press("ctrl+x")
        await until(pilot, lambda: screen.run_data is not None and not screen.run_data.running)
        assert screen.run_data is not None
        # THEN it says how far it came: one token may follow before the stop, or it was done already
        made = len(screen.run_data.steps)
        assert re.search(rf"\b{made} tokens?\b", screen.run_data.ended)


async def test_a_prompt_that_is_too_long_is_explained(checkpoint: Path) -> None:
    session = Session.open(checkpoint, OPTIONS)
    session.compile()
    app = Explorer(Workspace.of(session))
    async with app.run_test(size=(110, 34)) as pilot:
        await pilot.press("5", "i")
        screen = app.screen
        assert isinstance(screen, GenerateScreen)
        screen.query_one("#prompt", Input).value = "hello " * 40
        await pilot.press("enter")
        await until(pilot, lambda: screen.run_data is not None and screen.run_data.ended)
        assert screen.run_data is not None
        assert "the program takes 32 at most" in screen.run_data.ended


async def test_a_cancelled_compilation_is_taken_up_again(checkpoint: Path) -> None:
    # GIVEN a compilation that is cancelled while a module is half done
    work = Workspace.of(Session.open(checkpoint, OPTIONS))
    app = Explorer(work)
    async with app.run_test(size=(120, 34)) as pilot:
        await until(pilot, lambda: work.compilation.modules)
        await pilot.press("ctrl+x")
        await until(pilot, lambda: not work.running)
        assert work.compilation.cancelled
        for number in "234512":
            await pilot.press(number)
            await pilot.pause()
        # THEN the bars say how to go on, and so does the screen that needs the whole program
        await pilot.press("5")
        await pilot.pause()
        assert "R compiles the rest" in plain(app.screen.query_one(TitleBar).spans())
        assert "R compile " in plain(app.screen.query_one(KeyBar).spans())
        assert "R compiles what is missing" in app.screen.query_one(TextFlow).empty
        # WHEN that is done
        await pilot.press("R")
        assert work.running
        assert "R compile " not in plain(app.screen.query_one(KeyBar).spans())
        await until(pilot, lambda: not work.running)
        # THEN all is compiled, every pass once
        assert work.compilation.complete
        for module in work.compilation.modules.values():
            names = [snapshot.pass_name for snapshot in module.snapshots]
            assert names == list(dict.fromkeys(names))
        assert "✓" in plain(app.screen.query_one(TitleBar).spans())
        # AND there is no more to do
        await pilot.press("R")
        assert not work.running


async def test_opening_explains_mistakes_in_place_and_then_opens(checkpoint: Path) -> None:
    # GIVEN no model: the open screen
    app = Explorer(remember=True)
    async with app.run_test(size=(110, 34)) as pilot:
        screen = app.screen
        assert isinstance(screen, OpenScreen)
        problem = screen.query_one("#problem", Static)

        def said() -> str:
            return str(problem.content)

        # WHEN the path is wrong THEN the form says so, and what to do
        screen.query_one("#path", Input).value = str(checkpoint / "missing")
        await pilot.press("enter")
        await until(pilot, lambda: "missing" in said())
        # AND so it does for a length that the model does not have
        screen.query_one("#path", Input).value = str(checkpoint)
        screen.query_one("#seq_length", Input).value = "999999"
        await pilot.press("enter")
        await until(pilot, lambda: "--seq-length 999999" in said())
        screen.query_one("#decode_chunks", Input).value = "a,b"
        await pilot.press("enter")
        await until(pilot, lambda: "chunks" in said())
        # AND when all is well the explorer opens
        screen.query_one("#seq_length", Input).value = "32"
        screen.query_one("#decode_chunks", Input).value = "none"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ExploreScreen))
        assert app.work is not None
        assert app.work.compilation.options.seq_length == 32
        await until(pilot, lambda: app.work is not None and not app.work.running)
        # AND the model is among the recent ones, with its options
        assert Settings.load().recent[0].options == {"seq_length": 32, "decode_chunks": []}
        await pilot.press("0")
        await pilot.pause()
        reopened = app.screen
        assert isinstance(reopened, OpenScreen)
        assert reopened.query_one("#path", Input).value == str(checkpoint)
        reopened.query_one("#path", Input).value = ""
        await until(
            pilot, lambda: "recent" in [_kind(row.key) for row in reopened.query_one(ChoiceTable).rows]
        )


def _kind(choice: object) -> str:
    return str(getattr(choice, "kind", ""))


async def test_the_path_is_completed(checkpoint: Path) -> None:
    app = Explorer()
    async with app.run_test(size=(110, 34)) as pilot:
        entry = app.screen.query_one("#path", Input)
        entry.value = str(checkpoint)[:-3]
        entry.cursor_position = len(entry.value)
        await until(pilot, lambda: entry._suggestion.endswith("tiny-llama/"))
        await pilot.press("right")
        assert entry.value == f"{checkpoint}/"


def test_the_explorer_starts_without_bindings_and_transformers() -> None:
    """What is slow to import is left to workers and to the screens that need it."""
    code = (
        "import sys, json, app.explorer, app.session\n"
        "slow = ('torch_mlir', 'transformers', 'tokenizers', 'plotext', 'perfetto', 'graphviz')\n"
        "print(json.dumps([name for name in slow if name in sys.modules]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == []


async def test_lengths_that_take_too_much_are_explained_in_place(tmp_path: Path) -> None:
    # GIVEN a model opened at lengths at which its prefill would take too many instructions
    path = write_tiny(tmp_path / "long", "llama", max_positions=131072)
    work = Workspace.of(Session.open(path, {"seq_length": 131072, "history": False}))
    app = Explorer(work)
    async with app.run_test(size=(110, 34)) as pilot:
        await until(pilot, lambda: work.problem)
        # THEN the place of the IR says which module, and what to choose instead
        screen = app.screen
        assert isinstance(screen, ExploreScreen)
        await until(pilot, lambda: screen.ir.empty == work.problem)
        assert work.problem.startswith("block_0 would take about ")
        assert "--max-input-length" in work.problem
        assert not work.running
