"""One opened model and everything that is done with it: the core that the explorer and the command line share.

session = Session.open("checkpoint", {"seq_length": 512})
session.compile(["block_0"])            # blocks; or start(notify=...) and drain() as events arrive
session.compilation.after(...)

It knows nothing of terminals: events come out as data, errors as UserError and CompileError.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.compiler import Compilation, Model, compile_model, open_model
from engine.errors import UserError
from engine.options import CompileOptions
from engine.stages import ModuleSpec, plan
from engine.worker import Event, ModuleFailed, ModuleFinished

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.deploy import CompiledFile, FileSummary
    from engine.sim.interpreter import WeightLoader
    from engine.sim.machine_runtime import MachineExecutors
    from engine.sim.runtime import GeneratedToken, Runtime, Sampling, Watch
    from engine.sim.throughput import Simulation, Simulator
    from engine.sim.tokenizer import TextTokenizer, TokenStream
    from engine.tpu.weights import WeightReference


@dataclass(frozen=True)
class Stopped:
    """The last event of a compilation: finished, cancelled, or ended by `error`."""

    seconds: float
    error: BaseException | None = None


SessionEvent = Event | Stopped

Listener = Callable[[SessionEvent], None]


@dataclass(frozen=True)
class _FileWeights:
    """The weights of a compiled file, as the interpreter asks for them."""

    file: CompiledFile

    def load(self, references: Sequence[WeightReference], layer: int) -> Iterator[NDArray[Any]]:
        return (self.file.weight(reference, layer) for reference in references)


class Session:
    """A model that is compiled module by module as it is needed.

    Only `drain`, `wait` and `compile` change `compilation`, so the thread that calls them may read it at any time.

    title: the model's name. source: what was opened. model: None for a compiled file. file: None for anything else.
    """

    def __init__(
        self,
        source: Path,
        title: str,
        compilation: Compilation,
        model: Model | None,
        file: CompiledFile | None,
    ) -> None:
        self.source = source
        self.title = title
        self.compilation = compilation
        self.model = model
        self.file = file
        self.given: dict[str, Any] = {}
        """The options that were given, as keywords of `engine.options.resolve`: opening with them again gives the same
        program."""
        self.seconds = 0.0
        """Wall time of compiling, so far."""
        self._finished = {spec.name for spec in compilation.specs} if file else set[str]()
        self._events: queue.SimpleQueue[SessionEvent] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._cancel = threading.Event()
        self._started = 0.0
        self._simulations: dict[tuple[int | None, int | None], Simulation] = {}

    @classmethod
    def open(cls, path: Path | str, options: Mapping[str, Any] | None = None) -> Session:
        """Open a checkpoint folder, a config.json or a compiled file; nothing is compiled yet.

        options: keywords of `engine.options.resolve`; None values count as not given. Raises UserError.
        """
        source = Path(path).expanduser()
        given = {name: value for name, value in (options or {}).items() if value is not None}
        if is_compiled(source):
            session = cls._open_compiled(source, given)
        else:
            model = open_model(source)
            resolved = model.resolve(**given)
            compilation = Compilation(model.config, resolved, plan(model.shape, resolved))
            session = cls(source, model.config.name, compilation, model, None)
        session.given = given
        return session

    @classmethod
    def _open_compiled(cls, source: Path, given: Mapping[str, Any]) -> Session:
        from engine.deploy import open_file

        file = open_file(source)
        _refuse_other_options(source, file.compilation.options, given)
        return cls(source, file.compilation.config.name, file.compilation, None, file)

    @property
    def options(self) -> CompileOptions:
        """How the model is compiled."""
        return self.compilation.options

    # -- compiling -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """A compilation has been started and its last event not yet taken in."""
        return self._thread is not None

    @property
    def cancelling(self) -> bool:
        """The running compilation has been asked to stop."""
        return self.running and self._cancel.is_set()

    def missing(self, only: Sequence[str] | None = None) -> tuple[ModuleSpec, ...]:
        """The modules (all, or those that serve the names) that are neither compiled nor failed."""
        found = self.compilation.specs if only is None else [self.compilation.find(name)[0] for name in only]
        done = self._finished | set(self.compilation.failures)
        return tuple(spec for spec in dict.fromkeys(found) if spec.name not in done)

    def start(self, only: Sequence[str] | None = None, notify: Callable[[], None] | None = None) -> bool:
        """Compile what is missing in a thread of its own; False when there is nothing to do.

        `notify` is called in that thread whenever an event waits for `drain`. Raises UserError for an unknown module
        and RuntimeError while another compilation runs.
        """
        if self.running:
            raise RuntimeError("a compilation is running already")
        names = [spec.name for spec in self.missing(only)]
        if not names or self.model is None:
            return False
        for spec in self.missing():
            # what a cancelled compilation left half done is done anew
            self.compilation.modules.pop(spec.name, None)
        self._cancel = threading.Event()
        self.compilation.cancelled = False
        self._started = time.perf_counter()
        self._thread = threading.Thread(
            target=self._work, args=(self.model, names, notify or (lambda: None), self._cancel), daemon=True
        )
        self._thread.start()
        return True

    def _work(
        self, model: Model, names: list[str], notify: Callable[[], None], cancel: threading.Event
    ) -> None:
        def pass_on(event: SessionEvent) -> None:
            self._events.put(event)
            notify()

        start = time.perf_counter()
        error: BaseException | None = None
        try:
            compile_model(model, self.options, pass_on, cancel, names)
        except BaseException as found:
            error = found
        pass_on(Stopped(time.perf_counter() - start, error))

    def cancel(self) -> None:
        """Ask the running compilation to stop; its `Stopped` event still comes."""
        self._cancel.set()

    def drain(self) -> list[SessionEvent]:
        """Take in what has arrived and return it, oldest first. Does not wait."""
        return list(self._arrived())

    def _arrived(self) -> Iterator[SessionEvent]:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            self._take(event)
            yield event

    def wait(self, listener: Listener = lambda event: None) -> None:
        """Take in events until the running compilation has stopped, and raise the error that ended it, if one did.

        An interrupt cancels the compilation and is raised again.
        """
        try:
            while self.running:
                event = self._events.get()
                self._take(event)
                listener(event)
                if isinstance(event, Stopped) and event.error is not None:
                    raise event.error
        except KeyboardInterrupt:
            self.cancel()
            if self._thread is not None:
                self._thread.join(5)
            raise

    def compile(
        self, only: Sequence[str] | None = None, listener: Listener = lambda event: None
    ) -> Compilation:
        """Compile what is missing and wait for it. Failures are in the result, not raised."""
        if self.running:
            self.wait(listener)
        if self.start(only):
            self.wait(listener)
        return self.compilation

    def _take(self, event: SessionEvent) -> None:
        if not isinstance(event, Stopped):
            self.compilation.add(event)
            if isinstance(event, ModuleFinished):
                self._finished.add(event.module)
            return
        self.seconds += event.seconds
        self.compilation.cancelled = self._cancel.is_set() and bool(self.missing())
        self._thread = None

    @property
    def elapsed(self) -> float:
        """Seconds of compiling, the running one included."""
        return self.seconds + (time.perf_counter() - self._started if self.running else 0.0)

    def failure(self, module: str) -> ModuleFailed | None:
        """How the module that serves a name failed, if it did."""
        return self.compilation.failures.get(self.compilation.find(module)[0].name)

    # -- using what was compiled -----------------------------------------------------------------------------------

    @cached_property
    def simulator(self) -> Simulator:
        """Prices modules and stages; keeps what it has priced. Raises CompileError unless everything was compiled."""
        from engine.sim.throughput import Simulator

        self.compilation.require_complete()
        return Simulator(self.compilation, None if self.file is None else self.file.size)

    def simulate(self, prompt_length: int | None = None, generate: int | None = None) -> Simulation:
        """Cycles, DDR traffic and speeds of the whole program; kept, so asking again costs nothing.

        prompt_length, generate: tokens; see `engine.sim.throughput.simulate` for None.
        """
        key = prompt_length, generate
        if key not in self._simulations:
            self._simulations[key] = self.simulator.simulate(prompt_length, generate)
        return self._simulations[key]

    def require_savable(self) -> None:
        """Raise UserError when no deployable file can be made of what was opened."""
        if self.file is not None:
            raise UserError(f"{self.source} is a compiled file already; compile a checkpoint folder instead")
        self.require_numbers()

    def save(
        self, path: Path | str, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> FileSummary:
        """Write the deployable file, atomically. Raises UserError for a model without weights."""
        from engine.deploy import write_file

        self.require_savable()
        assert self.model is not None
        return write_file(self.compilation, self.model, path, progress=progress)

    def require_numbers(self) -> None:
        """Raise UserError saying what is missing when the model has no weights to compute with."""
        if self.file is None and (self.model is None or self.model.checkpoint is None):
            raise UserError(
                f"{self.source}: this is an architecture without weights, so there is nothing to compute with; "
                "give a checkpoint folder with *.safetensors and tokenizer.json, or a compiled file made from one"
            )

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The model's tokenizer. Raises UserError when there is none."""
        from engine.sim.tokenizer import TextTokenizer

        if self.file is not None:
            return TextTokenizer(self.file.tokenizer_files, str(self.source))
        return TextTokenizer.of_folder(self.source if self.source.is_dir() else self.source.parent)

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a raw prompt, or of one message in the model's chat template."""
        return self.tokenizer.encode_chat(text) if chat else self.tokenizer.encode(text)

    def token_stream(self, prompt: Sequence[int]) -> TokenStream | None:
        """Turns generated tokens into text; None for a model whose tokenizer is missing or cannot be read."""
        return None if self.text_problem else self.tokenizer.stream(prompt)

    @cached_property
    def text_problem(self) -> str:
        """Why tokens cannot become text; empty when they can."""
        try:
            _ = self.tokenizer
        except UserError as error:
            return str(error)
        return ""

    @cached_property
    def runtime(self) -> Runtime:
        """Computes the program op by op. Raises UserError without weights, CompileError if incomplete."""
        from engine.sim.runtime import Runtime

        return Runtime(self.compilation, self._weights())

    def machine_runtime(self, *, checks: bool = False) -> tuple[Runtime, MachineExecutors]:
        """A runtime that runs the program's instructions on a simulated memory, and the machines that it makes.

        checks: they record what instructions do wrong. Raises like `runtime`.
        """
        from engine.sim.machine_runtime import MachineExecutors
        from engine.sim.runtime import Runtime

        weights = self._weights()
        executors = MachineExecutors(self.compilation, weights, checks=checks)
        return Runtime(self.compilation, weights, executors), executors

    def _weights(self) -> WeightLoader:
        from engine.sim.interpreter import CheckpointWeights
        from engine.top.checkpoint.source import ModelTensors

        self.require_numbers()
        self.compilation.require_complete()
        if self.file is not None:
            return _FileWeights(self.file)
        assert self.model is not None
        assert self.model.checkpoint is not None
        return CheckpointWeights(ModelTensors(self.model.checkpoint, self.model.config))

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        logits: bool = False,
        watch: Watch | None = None,
    ) -> Iterator[GeneratedToken]:
        """Tokens as the compiled program computes them, until the model's end of sequence or `max_new_tokens`.

        watch: is told of each layer on the way to a token.
        """
        return self.runtime.generate(prompt, max_new_tokens, sampling=sampling, logits=logits, watch=watch)


def is_compiled(path: Path) -> bool:
    """True for a deployable file."""
    if not path.is_file() or path.suffix == ".json":
        return False
    from engine.tpu.binary import is_compiled_file

    return is_compiled_file(path)


def _refuse_other_options(source: Path, compiled: CompileOptions, given: Mapping[str, Any]) -> None:
    """A compiled file is what it is: options that ask for something else are a mistake."""
    values = compiled.to_dict()
    for name, value in given.items():
        wanted = tuple(value) if isinstance(values[name], (list, tuple)) else value
        if wanted != values[name] and not (name == "quantize" and wanted == "auto"):
            was, not_this = _spelled(name, values[name], value)
            raise UserError(
                f"{source} was compiled {was}, not {not_this}; leave the option out or compile the checkpoint again"
            )


def _spelled(name: str, was: Any, wanted: Any) -> tuple[str, str]:
    """How a compiled option and the wanted one are called."""
    option = "--" + name.removesuffix("_name").replace("_", "-")
    if isinstance(was, bool):
        return (f"with {option}", "without") if was else (f"without {option}", "with it")
    was, wanted = (
        ",".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else value
        for value in (was, wanted)
    )
    return f"with {option} {was}", str(wanted)
