"""Screen 5: text that the compiled program generates on the simulator, with every step it took."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Key
from textual.widget import Widget
from textual.widgets import Input, Label

from app import units
from app.actions import bindings
from app.jobs import Jobs
from app.printable import printable
from app.screens.base import WorkScreen
from app.widgets.bars import Picture
from app.widgets.field import Field, NumberField
from app.widgets.inspector import Inspector
from app.widgets.lines import Line, LineView, Span
from app.widgets.table import Column, Row, TableView, fitted
from app.widgets.text_flow import TextFlow
from app.workspace import Workspace
from engine.errors import CompileError, UserError

if TYPE_CHECKING:
    from app.explorer import Explorer
    from app.session import Session
    from engine.sim.runtime import GeneratedToken, Progress

DEFAULT_PROMPT = "The capital of France is"
DEFAULT_TOKENS = 32
TOP = 5
_DIGITS = 5
"""Of the number of tokens to generate."""


@dataclass
class Step:
    """One generated token: what it is, where it came from, what else was likely. simulated: seconds on the chip."""

    token: int
    text: str
    module: str
    seconds: float
    top: tuple[tuple[str, float], ...]
    rows: int
    simulated: float | None = None


@dataclass
class Run:
    """A generation, as far as it is."""

    prompt: str
    prompt_tokens: int = 0
    wanted: int = 0
    segments: tuple[tuple[str, int], ...] = ()
    steps: list[Step] = field(default_factory=list)
    running: bool = False
    ended: str = ""
    """Why it ended; empty while it runs."""
    failed: bool = False
    tail: str = ""
    progress: Progress | None = None


class _StoppedError(Exception):
    """The user has seen enough, in the middle of a token."""


def visible(text: str) -> str:
    """A token's text with its spaces, line ends and all that has no cell shown."""
    return printable(text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")) or "∅"


class StepTable(TableView):
    """One row a generated token."""

    HELP = """
Every step of the generation: the token, its probability, the module of the blocks that ran (the smallest decode variant
that holds the filled rows), the wall time here and the time on the chip as simulated.

**i** writes a prompt (enter starts, esc leaves the line), **ctrl+x** stops. The panel beside shows what else was likely
at the step under the cursor.
"""
    EMPTY = "no tokens yet"

    def __init__(self) -> None:
        columns = (
            Column("#", right=True),
            Column("token", stretch=True),
            Column("p", right=True),
            Column("module", rank=2),
            Column("here", right=True, rank=1),
            Column("on chip", right=True),
        )
        super().__init__(columns, id="steps", title="steps")


class RunHead(Picture):
    """Where the generation is."""

    DEFAULT_CSS = """
    RunHead { height: 2; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Show lines."""
        self._lines = lines
        self.refresh()

    def lines(self, width: int) -> list[Line]:
        """The lines."""
        return self._lines


class PromptLine(Horizontal):
    """The prompt and the number of tokens to generate."""

    DEFAULT_CSS = """
    PromptLine {
        height: 1; background: $panel;
        & Label { width: auto; padding: 0 1; color: $primary; text-style: bold; }
        & #prompt { width: 1fr; }
        & #count { width: 6; }
    }
    """

    def compose(self) -> ComposeResult:
        yield Label("prompt")
        yield Field(DEFAULT_PROMPT, id="prompt", select_on_focus=False)
        yield Label("tokens")
        start, most = str(DEFAULT_TOKENS), f"1 to {10**_DIGITS - 1}, or empty for {DEFAULT_TOKENS}"
        yield NumberField("tokens", most, start, placeholder=start, id="count", max_length=_DIGITS)

    def on_key(self, event: Key) -> None:
        """Esc leaves the line."""
        if event.key == "escape":
            event.stop()
            self.screen.query_one(StepTable).focus()


class GenerateScreen(WorkScreen):
    """Prompt, text, steps and what else was likely."""

    NAME = "run"
    BINDINGS = bindings("run")
    DEFAULT_CSS = """
    GenerateScreen {
        #body { layout: vertical; }
        TextFlow { height: 1fr; }
        #steps-row { height: 1fr; }
        StepTable { width: 2fr; height: 100%; }
        #steps-row Inspector { width: 1fr; min-width: 28; height: 100%; }
        &.-low TextFlow { height: 8; }
    }
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.run_data: Run | None = None
        self._stop = threading.Event()
        self._generating: Jobs | None = None
        self._follow = True

    def compose_body(self) -> Iterator[Widget]:
        yield PromptLine()
        yield RunHead()
        with Vertical():
            yield TextFlow(id="text", title="text")
            with Horizontal(id="steps-row"):
                yield StepTable()
                yield Inspector(id="likely")

    def on_mount(self) -> None:
        """Keys go to the steps, so that numbers still change the screen."""
        super().on_mount()
        self.query_one(StepTable).focus()

    def on_unmount(self) -> None:
        """Nothing is told to a screen that is gone."""
        self._stop.set()
        if self._generating is not None:
            self._generating.close()

    def attach(self, workspace: Workspace) -> None:
        """Another program: its text is another one."""
        self.action_stop(quiet=True)
        self.run_data = None
        super().attach(workspace)

    # -- contents -----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """The generation as far as it is."""
        run = self.run_data
        self.query_one(RunHead).show(self._head(run))
        table, flow = self.query_one(StepTable), self.query_one(TextFlow)
        if run is None:
            flow.empty = self._missing() or TextFlow.EMPTY
            flow.show([])
            table.show([])
            self.query_one(Inspector).show("also likely", [])
            return
        table.show([_step_row(number, step) for number, step in enumerate(run.steps, 1)])
        if self._follow and run.steps:
            table.move_to_key(len(run.steps))
        self._show_text()
        self.show_likely()

    def _without_numbers(self) -> str:
        """Why this model can never generate; "" when it can."""
        session = self.work.session
        if session is None:
            return "this is data without a model behind it: there is nothing to compute with"
        try:
            session.require_numbers()
        except UserError as error:
            return str(error)
        return ""

    def _missing(self) -> str:
        """Why nothing can be generated now; "" when something can."""
        reason, work = self._without_numbers(), self.work
        if reason:
            return reason
        if work.running:
            done = f"{work.done_count()} of {len(work.specs)}"
            return f"text can be generated when all modules are compiled: {done} so far"
        if work.unfinished:
            return f"{_modules(len(work.specs) - work.done_count())} missing: R compiles what is missing"
        if not work.compilation.complete:
            failed = len(work.compilation.failures)
            return f"{_modules(failed)} not compiled: the explorer (1) shows what went wrong"
        return ""

    def _head(self, run: Run | None) -> list[Line]:
        if run is None:
            return [[(f"  {self._invitation()}", "faint")]]
        first: list[Span] = [("  ", "")]
        if run.ended:
            first.append((run.ended, "bad" if run.failed else "changed"))
        elif not run.steps:
            first += _progress_spans(run.progress)
        else:
            first += [("token ", "muted"), (f"{len(run.steps)}", "bold"), (f" of {run.wanted}", "muted")]
        if run.steps and not run.failed:
            step = run.steps[-1]
            first += [(" · ", "faint"), (step.module, ""), (" · ", "faint")]
            if step.simulated:
                first += [(f"{units.duration(step.simulated)} on the chip", "good"), (" · ", "faint")]
            first.append((f"{units.duration(step.seconds)} here", "muted"))
        return [first, self._way(run)]

    def _invitation(self) -> str:
        """What can be done before anything was generated; the text's panel says what is missing."""
        if self._without_numbers():
            return "this model generates no text; 0 opens another one"
        if self._missing():
            return "i writes a prompt, which can start when all modules are compiled"
        return "i writes a prompt, enter starts"

    def _way(self, run: Run) -> Line:
        if not run.segments:
            return [(f"  prompt {run.prompt_tokens} tokens", "muted")] if run.prompt_tokens else []
        names = [f"{module} ({rows} rows)" for module, rows in run.segments]
        steps = max(0, len(run.steps) - 1)
        text = f"  prompt {run.prompt_tokens} tokens → {' → '.join(names)} → lm_head → {steps} decode steps"
        return [(text, "muted")]

    def _show_text(self) -> None:
        run = self.run_data
        if run is None:
            return
        chosen = self.query_one(StepTable).key
        pieces: list[Span] = [(run.prompt, "muted")]
        for number, step in enumerate(run.steps, 1):
            pieces.append((step.text, "heading bold cursor" if number == chosen else "heading bold"))
        if run.tail:
            pieces.append((run.tail, "heading bold"))
        if run.running:
            pieces.append(("▌", "key"))
        self.query_one(TextFlow).show(pieces)

    @on(LineView.Moved, "#steps")
    def step_moved(self) -> None:
        """Another step; the last one follows what comes."""
        table = self.query_one(StepTable)
        self._follow = table.cursor >= len(table.rows) - 1
        self._show_text()
        self.show_likely()

    def show_likely(self) -> None:
        """What else was likely at the step under the cursor."""
        panel = self.query_one(Inspector)
        run, key = self.run_data, self.query_one(StepTable).key
        if run is None or not isinstance(key, int) or key > len(run.steps):
            panel.show("also likely", [])
            return
        step = run.steps[key - 1]
        wide = min(14, max((cell_len(visible(text)) for text, _ in step.top), default=0))
        room = max(4, panel.inner_width - wide - 11)
        lines: list[list[Span]] = []
        for text, chance in step.top:
            here = text == step.text
            lines.append(
                [
                    *fitted([(visible(text), "heading bold" if here else "")], wide),
                    (" ", ""),
                    (f"{chance:6.1%} ", "good" if here else "muted"),
                    (units.bar(chance, 1, room), "good" if here else "dma"),
                ]
            )
        panel.show(f"top {len(step.top)} at token {key}", lines)

    # -- generating ---------------------------------------------------------------------------------------------

    def action_prompt(self) -> None:
        """Write a prompt."""
        self.query_one("#prompt", Input).focus()

    @on(Input.Submitted, "#prompt")
    @on(Input.Submitted, "#count")
    def start(self) -> None:
        """Generate, in a thread of its own."""
        reason = self._missing()
        if reason:
            self.notify(reason, severity="warning", timeout=8)
            return
        if self.run_data is not None and self.run_data.running:
            self.notify("ctrl+x stops the generation that is running")
            return
        prompt = self.query_one("#prompt", Input).value
        count = self.query_one("#count", NumberField)
        try:
            wanted = count.number or DEFAULT_TOKENS
        except UserError as error:
            self.notify(str(error), severity="warning", timeout=8)
            count.focus()
            return
        session = self.work.session
        assert session is not None
        run = Run(prompt, wanted=wanted, running=True)
        self.run_data, self._follow = run, True
        self._stop = threading.Event()
        if self._generating is None:
            self._generating = Jobs(self.app)
        stop, jobs = self._stop, self._generating
        jobs.submit(
            lambda: self._generate(session, run, stop, jobs),
            lambda ended: self._ended(run, ended),
            lambda error: self._failed(run, error),
        )
        self.query_one(StepTable).focus()
        self.sync()

    def _generate(self, session: Session, run: Run, stop: threading.Event, jobs: Jobs) -> str:
        """In the generation's thread: tokens one by one, told to the screen as they come."""
        ids = session.encode(run.prompt)
        jobs.tell(self._started, run, len(ids))
        stream = session.token_stream(ids)
        made: list[int] = []

        def watch(progress: Progress) -> None:
            if stop.is_set():
                raise _StoppedError
            if not made:
                jobs.tell(self._progressed, run, progress)

        with suppress(_StoppedError):
            for generated in session.generate(ids, run.wanted, logits=True, watch=watch):
                made.append(generated.token)
                text = stream.push(generated.token) if stream else f"{generated.token} "
                names = tuple(
                    (session.tokenizer.token(token), chance) for token, chance in generated.top(TOP)
                )
                jobs.tell(self._arrived, run, generated, text, names)
        jobs.tell(self._tail, run, stream.finish() if stream else "")
        return _reason(session, made, run.wanted, stop.is_set())

    def _started(self, run: Run, tokens: int) -> None:
        run.prompt_tokens = tokens
        self._refresh(run)

    def _progressed(self, run: Run, progress: Progress) -> None:
        run.progress = progress
        if run is self.run_data and self.ready and not run.steps:
            self.query_one(RunHead).show(self._head(run))

    def _tail(self, run: Run, text: str) -> None:
        run.tail = text

    def _arrived(
        self, run: Run, generated: GeneratedToken, text: str, names: tuple[tuple[str, float], ...]
    ) -> None:
        if generated.segments:
            run.segments = tuple((segment.module, segment.rows) for segment in generated.segments)
        step = Step(generated.token, text, generated.module, generated.seconds, names, generated.position)
        run.steps.append(step)
        self.work.filled = generated.position
        self._price(run, step, bool(generated.segments))
        self._refresh(run)

    def _price(self, run: Run, step: Step, first: bool) -> None:
        """The step's time on the chip, computed in the engine's thread."""
        work = self.work

        def compute() -> float:
            if first:
                return work.simulator.simulate(run.prompt_tokens, 1).time_to_first_token
            return 1 / work.simulator.tokens_per_second(step.rows - 1)

        def done(seconds: float) -> None:
            step.simulated = seconds
            self._refresh(run)

        cast("Explorer", self.app).jobs.submit(compute, done, lambda error: None)

    def _ended(self, run: Run, reason: str) -> None:
        run.running, run.ended = False, reason
        self._refresh(run)

    def _failed(self, run: Run, error: Exception) -> None:
        known = isinstance(error, (UserError, CompileError))
        text = str(error) if known else f"{type(error).__name__}: {error}"
        run.running, run.ended, run.failed = False, text, True
        self.notify(text, severity="error", title="cannot generate", timeout=10)
        self._refresh(run)

    def _refresh(self, run: Run) -> None:
        if run is self.run_data and self.ready:
            self.sync()

    def action_stop(self, quiet: bool = False) -> None:
        """Stop generating."""
        if self.run_data is not None and self.run_data.running:
            self._stop.set()
        elif not quiet:
            cast("Explorer", self.app).action_cancel()


def _reason(session: Session, made: Sequence[int], wanted: int, stopped: bool) -> str:
    """Why a generation ended, true to the tokens that it made."""
    count = f"{len(made)} token" + ("" if len(made) == 1 else "s")
    if made and made[-1] in session.compilation.config.eos_token_ids:
        return f"end of sequence after {count}"
    if len(made) >= wanted:
        return f"{count} made"
    if stopped:
        return f"stopped after {count}"
    return f"{count}: the history of {session.options.seq_length} rows is full"


def _modules(count: int) -> str:
    return "1 module is" if count == 1 else f"{count} modules are"


def _progress_spans(progress: Progress | None) -> list[Span]:
    """What is being done before the first token."""
    if progress is None:
        return [("reading the model…", "key")]
    if progress.layers == 1:
        return [(f"running {progress.module}…", "key")]
    doing = "preparing weights" if progress.doing == "weights" else f"running {progress.module}"
    filled = units.bar(progress.done, progress.layers, 20)
    return [
        (f"{doing}: layer {progress.done} of {progress.layers} ", "key"),
        ("▕", "faint"),
        (filled, "key"),
        ("·" * (20 - cell_len(filled)), "faint"),
        ("▏", "faint"),
    ]


def _step_row(number: int, step: Step) -> Row:
    chance = next((p for text, p in step.top if text == step.text), step.top[0][1] if step.top else 0.0)
    return Row(
        (
            (str(number), "muted"),
            (visible(step.text), "heading"),
            (f"{chance:.2f}", ""),
            (step.module, "muted"),
            (units.duration(step.seconds), "muted"),
            (units.duration(step.simulated), "good") if step.simulated else ("…", "faint"),
        ),
        number,
    )
