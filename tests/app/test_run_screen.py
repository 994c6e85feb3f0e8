"""The screen that generates text: what it says on the way and at the end, and that a model's text cannot spoil it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import driving
import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input
from tiny import EOS, write_tiny

from app.explorer import Explorer
from app.screens.generate import GenerateScreen, RunHead, StepTable
from app.session import Session
from app.widgets.inspector import Inspector
from app.widgets.lines import LineView, plain
from app.widgets.text_flow import TextFlow, wrap
from app.workspace import Workspace
from engine.sim.runtime import GeneratedToken, Progress, Watch

OPTIONS = {"seq_length": 32, "max_input_length": 8, "decode_chunks": (), "quantize": "bf16"}
SIZE = (80, 24)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("run") / "tiny-llama", "llama")


@pytest.fixture(scope="module")
def compiled(checkpoint: Path) -> Session:
    session = Session.open(checkpoint, OPTIONS)
    session.compile()
    return session


until = partial(driving.until, seconds=30)


def token(number: int, position: int) -> GeneratedToken:
    return GeneratedToken(number, position, "block_cache_0", (), 0.001, 0)


def making(tokens: Sequence[int]) -> Callable[..., Iterator[GeneratedToken]]:
    """A program that makes these tokens, one right behind the other."""

    def generate(prompt: Sequence[int], *_: Any, **__: Any) -> Iterator[GeneratedToken]:
        for position, number in enumerate(tokens, len(prompt)):
            yield token(number, position)

    return generate


async def started(pilot: Pilot[None], count: str = "4") -> GenerateScreen:
    """The screen, with a generation on its way."""
    await pilot.press("5", "i")
    screen = pilot.app.screen
    assert isinstance(screen, GenerateScreen)
    screen.query_one("#prompt", Input).value = "hello"
    screen.query_one("#count", Input).value = count
    await pilot.press("enter")
    return screen


def head(screen: GenerateScreen) -> str:
    return "\n".join(map(plain, screen.query_one(RunHead).lines(80)))


def ended(screen: GenerateScreen) -> bool:
    return screen.run_data is not None and not screen.run_data.running


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([5, 6, 7, 8], "4 tokens made"),
        ([5, EOS], "end of sequence after 2 tokens"),
        ([5, 6, 7, EOS], "end of sequence after 4 tokens"),
        ([5, 6], "2 tokens: the history of 32 rows is full"),
    ],
)
async def test_the_end_is_told_truly(
    compiled: Session, monkeypatch: pytest.MonkeyPatch, tokens: list[int], reason: str
) -> None:
    monkeypatch.setattr(compiled, "generate", making(tokens))
    async with Explorer(Workspace.of(compiled)).run_test(size=SIZE) as pilot:
        screen = await started(pilot)
        await until(pilot, lambda: ended(screen))
        assert screen.run_data is not None
        assert screen.run_data.ended == reason
        assert head(screen).startswith(f"  {reason} · block_cache_0")


async def test_the_way_to_the_first_token_is_shown_and_can_be_left(
    compiled: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a model whose layers take their time
    go_on = threading.Event()
    turns: list[Progress] = []

    def generate(prompt: Sequence[int], *_: Any, watch: Watch, **__: Any) -> Iterator[GeneratedToken]:
        for turn in (
            Progress("weights", "block_0", 3, 8),
            Progress("blocks", "block_0", 5, 8),
            Progress("blocks", "lm_head", 0, 1),
            Progress("blocks", "lm_head", 0, 1),
        ):
            turns.append(turn)
            watch(turn)
            go_on.wait(20)
            go_on.clear()
        yield token(5, len(prompt))

    monkeypatch.setattr(compiled, "generate", generate)
    async with Explorer(Workspace.of(compiled)).run_test(size=SIZE) as pilot:
        # THEN each of them is counted
        screen = await started(pilot)
        for said in (
            "preparing weights: layer 3 of 8 ▕███████▌············▏",
            "running block_0: layer 5 of 8",
            "running lm_head…",
        ):
            await until(pilot, lambda said=said: said in head(screen))
            if "lm_head" in said:
                # AND ctrl+x ends it before there is a token
                await pilot.press("ctrl+x")
            go_on.set()
        await until(pilot, lambda: ended(screen))
        assert len(turns) == 4
        assert "stopped after 0 tokens" in head(screen)


WILD = ["\x1b[31mred", "\x9b2J\r\x07", "a\u202eb\u200d", "\u0301", "日本", "❤\ufe0f", "\ud800", "x\n\ty"]


async def test_no_text_of_a_model_can_spoil_the_screen(
    compiled: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a model that makes whatever there is, and a prompt of the same kind
    class Stream:
        def push(self, number: int) -> str:
            return WILD[number]

        def finish(self) -> str:
            return "\x1b"

    monkeypatch.setattr(compiled, "generate", making(range(len(WILD))))
    monkeypatch.setattr(compiled, "token_stream", lambda prompt: Stream())
    monkeypatch.setattr(GeneratedToken, "top", lambda self, count: [(n, 0.1) for n in range(count)])
    monkeypatch.setattr(compiled.tokenizer, "token", lambda number: WILD[number])
    async with Explorer(Workspace.of(compiled)).run_test(size=SIZE) as pilot:
        screen = await started(pilot, str(len(WILD)))
        await until(pilot, lambda: ended(screen))
        await pilot.pause()
        for panel in (screen.query_one(TextFlow), screen.query_one(StepTable), screen.query_one(Inspector)):
            drawn = [strip.text for strip in map(panel.render_line, range(panel.size.height))]
            # THEN every line takes the cells of the panel, and nothing in it is obeyed
            assert {sum(map(cell_len, line)) for line in drawn} == {panel.inner_width}
            assert not any(letter < " " or "\x7f" <= letter < "\xa0" for line in drawn for letter in line)
        flow = screen.query_one(TextFlow)
        text = "".join(map(plain, map(flow.line, range(flow.line_count()))))
        assert "␛[31mred‹9B›2J␍␇a‹202E›b‹200D›◌\u0301日本❤‹FE0F›‹D800›x" in text


def test_a_mark_that_comes_as_a_token_stays_on_its_letter() -> None:
    (line,) = wrap([("e", "a"), ("\u0301", "b"), ("!", "b")], 20)
    assert line == [("e", "a"), ("\u0301!", "b")]


@pytest.mark.parametrize("text", ["-", "+", "0", "1_0"])
async def test_a_count_that_is_none_is_explained(
    compiled: Session, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(compiled, "generate", making([5]))
    app = Explorer(Workspace.of(compiled))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5", "i", "tab", "ctrl+u", *text)
        field = app.screen.query_one("#count", Input)
        assert field.has_class("-invalid")
        assert field.render_line(0).text.startswith(text)
        await pilot.press("enter")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, GenerateScreen)
        assert screen.run_data is None
        (told,) = [notice.message for notice in app._notifications]
        assert told.startswith("tokens: ")
        assert text in told
        assert "accepted: 1 to 99999" in told


async def test_a_bare_config_says_what_is_missing_in_full(checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text((checkpoint / "config.json").read_text())
    app = Explorer(Workspace.of(Session.open(config, OPTIONS)))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, GenerateScreen)
        assert "enter starts" not in head(screen)
        drawn = _drawn(screen.query_one(TextFlow))
        assert "without weights" in drawn
        assert "give a checkpoint folder with *.safetensors and tokenizer.json" in drawn
        assert drawn.endswith("or a compiled file made from one")
        await pilot.press("ctrl+x")


def _drawn(panel: LineView) -> str:
    """The text of a panel, its line ends taken away."""
    return " ".join(" ".join(panel.render_line(y).text for y in range(panel.size.height)).split())


async def test_a_toast_is_no_markup(work: Workspace) -> None:
    app = Explorer(work)
    async with app.run_test(size=SIZE) as pilot:
        app.screen.notify("[/b] \x1b[31m", title="[x")
        await pilot.pause()
        (notice,) = app._notifications
        assert (notice.message, notice.title, notice.markup) == ("[/b] ␛[31m", "[x", False)
