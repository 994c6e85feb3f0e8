"""Screen 0: which model to open and how to compile it; what is wrong is said in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.suggester import Suggester
from textual.widgets import Input, Label, Select, Static

from app.printable import printable
from app.shared_options import integers, options_of, spelled
from app.widgets.field import Field, NumberField
from app.widgets.lines import LineView
from app.widgets.table import Column, Row, TableView
from engine.errors import UserError
from engine.options import MODES
from engine.tpu.chip import chips

if TYPE_CHECKING:
    from app.explorer import Explorer
    from app.session import Session

MODEL_FILES = (".tpuscope", ".json")
"""Suffixes of files that can be opened."""

KEYS = "enter opens · → completes a path · ↓ list · tab next field · ^u clears · esc back"

_LIMIT = 200
"""Entries of a folder that are listed."""

_FIELDS = ("chip_name", "quantize", "seq_length", "max_input_length", "decode_chunks")
"""Options with a field of their own; the others are written into one line."""

_DEFAULTS = {"chip_name": "bm1684x", "quantize": "auto"}
"""What a menu shows for an option that is not given."""


@dataclass(frozen=True)
class Choice:
    """Something that can be opened. kind: demo, recent, or what it is in the file system.

    options: its own; None for what is opened as the form says.
    """

    kind: str
    title: str
    about: str
    path: str
    options: Mapping[str, Any] | None = None

    @property
    def is_model(self) -> bool:
        """Opening it makes sense; a plain folder is only looked into."""
        return self.kind != "folder"


def completions(text: str) -> list[Choice]:
    """Models and folders that a path may go on to."""
    typed = Path(text).expanduser() if text else Path()
    folder, start = (typed, "") if not text or text.endswith("/") else (typed.parent, typed.name)
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name.lower())[: 10 * _LIMIT]
    except OSError:
        return []
    found = []
    for entry in entries:
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start.startswith(".")):
            continue
        choice = _choice(entry)
        if choice is not None:
            found.append(choice)
    return found[:_LIMIT]


def _choice(entry: Path) -> Choice | None:
    try:
        if entry.is_dir():
            if (entry / "config.json").is_file():
                weights = any(entry.glob("*.safetensors"))
                about = "checkpoint" if weights else "architecture without weights"
                return Choice("model", f"{entry.name}/", about, str(entry))
            return Choice("folder", f"{entry.name}/", "", str(entry))
        if entry.suffix in MODEL_FILES:
            about = "compiled file" if entry.suffix == ".tpuscope" else "config"
            return Choice("model", entry.name, about, str(entry))
    except OSError:
        return None
    return None


class PathSuggester(Suggester):
    """Completes a path to the first model or folder that begins like it."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """The rest of the path."""
        found = completions(value) if value else []
        if not found or printable(found[0].title) != found[0].title:
            return None
        name = found[0].title
        head = value[: len(value) - len(Path(value).name)] if not value.endswith("/") else value
        return head + name


class ChoiceTable(TableView):
    """Demos, recent models, and what lies where the path points to."""

    HELP = """
Demos need no download: one is a small checkpoint that generates text, the other the architecture of a known model.
Recent models are opened with the options that they were compiled with last, demos with the defaults; what you change in
the form comes on top. While a path is typed the list shows what lies there, and the form's options are used; enter
opens a model or looks into a folder.
"""
    EMPTY = "nothing to open here"

    def __init__(self) -> None:
        columns = (Column(""), Column("model", stretch=True), Column("about", stretch=True, rank=1))
        super().__init__(columns, id="choices", title="open", head=False)


class OpenScreen(Screen[None]):
    """A form over a list of models."""

    BINDINGS = [("escape", "leave", "Back"), ("down", "to_list", "List")]
    AUTO_FOCUS = "#path"
    VERTICAL_BREAKPOINTS = [(0, "-low"), (28, "-tall")]
    DEFAULT_CSS = """
    OpenScreen {
        align: center top; background: $background;
        & #form { width: 100%; max-width: 110; height: 1fr; padding: 1 2; }
        & #name { text-style: bold; color: $primary; width: 100%; text-align: center; }
        & #what { color: $text-muted; width: 100%; text-align: center; margin-bottom: 1; }
        & Horizontal { height: 1; margin-bottom: 1; }
        & Label { width: 11; color: $text-muted; }
        & .short { width: 11; margin-left: 2; }
        & Input { width: 1fr; padding: 0 1; }
        & Select { width: 22; }
        & #problem { color: $error; height: auto; max-height: 6; margin-bottom: 1; display: none; }
        & #problem.-shown { display: block; }
        & #busy { color: $text-muted; height: 1; width: 100%; }
        & ChoiceTable { height: 1fr; min-height: 4; }
        &.-low #form { padding: 0 1; }
    }
    """

    def __init__(self, choices: Sequence[Choice] = (), session: Session | None = None) -> None:
        super().__init__()
        self.known = list(choices)
        self.session = session
        self._opening = False
        self._filled: dict[str, Any] = {}
        """What the fields said before the user changed them."""
        self.ready = False
        """The fields are there: Esc may come before, and then waits."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No action before the fields are there."""
        return self.ready

    def compose(self) -> ComposeResult:
        with Vertical(id="form"):
            yield Static("tpuscope", id="name")
            yield Static("see how a language model is compiled for a TPU, and run it", id="what")
            with Horizontal():
                yield Label("model")
                yield Field(
                    placeholder="checkpoint folder, config.json or compiled file",
                    suggester=PathSuggester(),
                    id="path",
                )
            with Horizontal():
                yield Label("chip")
                names = [(name, name) for name in chips()]
                yield Select(names, value="bm1684x", allow_blank=False, compact=True, id="chip_name")
                yield Label("quantise", classes="short")
                modes = [(mode, mode) for mode in ("auto", *MODES)]
                yield Select(modes, value="auto", allow_blank=False, compact=True, id="quantize")
            with Horizontal():
                yield Label("history S")
                most = "1 to the model's number of positions, or empty for 2048 (that number, if it is less)"
                yield NumberField("history S", most, placeholder="2048", id="seq_length")
                yield Label("prefill L", classes="short")
                most = "1 to history S, or empty for S/4"
                yield NumberField("prefill L", most, placeholder="S/4", id="max_input_length")
                yield Label("chunks", classes="short")
                yield Field("", _chunks, placeholder="L, 2L, … below S", id="decode_chunks")
            with Horizontal():
                yield Label("also")
                yield Field("", _others, placeholder="such as --cores 2 --fuse-weights --sample", id="others")
            yield Static(id="problem", markup=False)
            yield ChoiceTable()
            yield Static(KEYS, id="busy", markup=False)

    def on_mount(self) -> None:
        """What can be opened at once; demos are made ready behind the scenes."""
        self.ready = True
        self.list_choices("")
        if self.session is not None:
            self._fill(self.session)
        app = cast("Explorer", self.app)
        app.jobs.submit(demo_choices, self._add_demos, lambda error: None)

    def _fill(self, session: Session) -> None:
        """What is open now, to be opened with other options."""
        path = self.query_one("#path", Input)
        path.value = str(session.source)
        path.cursor_position = len(path.value)
        self._show(session.given)
        self._filled = self.given_options()

    def _show(self, options: Mapping[str, Any]) -> None:
        """Write options into the fields."""
        for name in ("chip_name", "quantize"):
            self.query_one(f"#{name}", Select).value = options.get(name, _DEFAULTS[name])
        for name in ("seq_length", "max_input_length"):
            self.query_one(f"#{name}", Input).value = str(options.get(name, ""))
        chunks = options.get("decode_chunks")
        text = "" if chunks is None else ",".join(map(str, chunks)) or "none"
        self.query_one("#decode_chunks", Input).value = text
        others = {name: value for name, value in options.items() if name not in _FIELDS}
        self.query_one("#others", Input).value = spelled(others)

    @property
    def is_open(self) -> bool:
        """The form has not been left while something was being made ready."""
        return self.is_running and self in self.app.screen_stack

    def _add_demos(self, demos: list[Choice]) -> None:
        self.known = [*demos, *(choice for choice in self.known if choice.kind != "demo")]
        if self.is_open:
            self.list_choices(self.query_one("#path", Input).value)

    def list_choices(self, text: str) -> None:
        """Known models while nothing is typed, then what the path may go on to."""
        found = completions(text)
        choices = [*self.known, *(c for c in found if c.is_model)] if not text else found
        title = "demos and recent models" if not text else "what lies there"
        self.query_one(ChoiceTable).border_title = title
        self.query_one(ChoiceTable).show(
            [
                Row(
                    (
                        (
                            choice.kind,
                            {"demo": "good", "recent": "kv", "model": "weights"}.get(choice.kind, "faint"),
                        ),
                        (choice.title, "heading" if choice.is_model else "muted"),
                        (choice.about, "muted"),
                    ),
                    choice,
                )
                for choice in choices
            ],
            keep=False,
        )

    def say(self, problem: str) -> None:
        """Show what is wrong, or nothing."""
        line = self.query_one("#problem", Static)
        line.update(printable(problem, keep="\n"))
        line.set_class(bool(problem), "-shown")

    @on(Input.Changed)
    @on(Select.Changed)
    def edited(self) -> None:
        """What was wrong may be right now."""
        self.say("")

    @on(Input.Changed, "#path")
    def typed(self, event: Input.Changed) -> None:
        """The list follows the path; without one the options of what was open are no longer meant."""
        self.list_choices(event.value)
        if not event.value and self._filled:
            with suppress(UserError):
                changed = self.changed_options()
                self._filled = {}
                self._show(changed)

    @on(Input.Submitted)
    def submitted(self) -> None:
        """Open what the form says."""
        path = self.query_one("#path", Input).value.strip()
        if not path:
            self.query_one(ChoiceTable).focus()
            return
        self.open(path)

    @on(LineView.Chosen, "#choices")
    def chosen(self) -> None:
        """Open a model; look into a folder."""
        choice = self.query_one(ChoiceTable).key
        if not isinstance(choice, Choice):
            return
        if choice.is_model:
            self.open(choice.path, choice.options)
            return
        entry = self.query_one("#path", Input)
        entry.value = f"{choice.path}/"
        entry.cursor_position = len(entry.value)

    def given_options(self) -> dict[str, Any]:
        """Options that differ from the defaults. Raises UserError naming the field that cannot be read."""
        found: dict[str, Any] = {}
        for name, default in _DEFAULTS.items():
            value = self.query_one(f"#{name}", Select).value
            if value != default:
                found[name] = value
        for name in ("seq_length", "max_input_length"):
            number = self.query_one(f"#{name}", NumberField).number
            if number is not None:
                found[name] = number
        chunks = self.query_one("#decode_chunks", Input).value.strip()
        if chunks:
            found["decode_chunks"] = _chunks(chunks)
        return found | _others(self.query_one("#others", Input).value)

    def changed_options(self) -> dict[str, Any]:
        """Options that the user wrote into the form. Raises UserError like `given_options`."""
        given = self.given_options()
        return {name: value for name, value in given.items() if self._filled.get(name) != value}

    def _options_for(self, path: str, own: Mapping[str, Any] | None) -> dict[str, Any]:
        """What to open a model with: its own options under those that the user wrote, or what the form says.

        A compiled file has its options in it: those of what was open before are not meant.
        """
        from app.session import is_compiled

        if own is not None:
            return {**own, **self.changed_options()}
        return self.changed_options() if is_compiled(Path(path).expanduser()) else self.given_options()

    def open(self, path: str, own: Mapping[str, Any] | None = None) -> None:
        """Open in the engine's thread; the explorer shows it, or the form says what is wrong.

        own: options of the model itself; None for those of the form.
        """
        if self._opening:
            return
        try:
            given = self._options_for(path, own)
        except UserError as error:
            self.say(str(error))
            return
        self._opening = True
        self.say("")
        self.query_one("#busy", Static).update(printable(f"opening {path} …"))

        def failed(error: Exception) -> None:
            self._opening = False
            if self.is_open:
                known = isinstance(error, UserError)
                self.say(str(error) if known else f"{type(error).__name__}: {error}")
                self.query_one("#busy", Static).update("mend the path or the options and press enter again")

        def done(_: object) -> None:
            self._opening = False

        cast("Explorer", self.app).open_path(path, given, done, failed)

    def action_to_list(self) -> None:
        """From the form to the list."""
        self.query_one(ChoiceTable).focus()

    def action_leave(self) -> None:
        """Back to what is open, if anything is."""
        app = cast("Explorer", self.app)
        if isinstance(self.focused, LineView):
            self.query_one("#path", Input).focus()
        elif app.work is not None:
            app.action_show_screen("explore")


def demo_choices() -> list[Choice]:
    """The bundled demos; none where they cannot be written."""
    from app.settings import cache_path
    from engine.top.demo import demo_models

    try:
        return [
            Choice("demo", model.title, model.about, str(model.path), {})
            for model in demo_models(cache_path())
        ]
    except UserError:
        return []


def recent_choices() -> list[Choice]:
    """Models that were opened before, the latest first."""
    from app.settings import Settings

    found = []
    for model in Settings.load().recent:
        path = Path(model.path)
        if path.exists():
            about = f"{_in_short(model.options)}  {path.parent}".strip()
            found.append(Choice("recent", path.name, about, str(path), model.options))
    return found


_SHORT = {"seq_length": "S ", "max_input_length": "L ", "decode_chunks": "chunks "}


def _in_short(options: Mapping[str, Any]) -> str:
    """Options as a list has room for."""
    words = []
    for name in _FIELDS:
        value = options.get(name)
        if value is not None:
            text = ",".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else str(value)
            words.append(_SHORT.get(name, "") + text)
    others = {name: value for name, value in options.items() if name not in _FIELDS}
    return " ".join([*words, *([spelled(others)] if others else [])])


def _chunks(text: str) -> tuple[int, ...]:
    """The decode variants that the field names. Raises UserError."""
    return integers("chunks", text)


def _others(text: str) -> dict[str, Any]:
    """The options of the line of further ones. Raises UserError."""
    try:
        return options_of(text, dict.fromkeys(_FIELDS, "it has a field of its own above"))
    except UserError as error:
        raise UserError(f"also: {error}") from None
