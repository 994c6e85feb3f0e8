"""Plans the modules of a model, compiles each distinct one once in worker processes, and merges them.

model = open_model("checkpoint")
compilation = compile_model(model, model.resolve(seq_length=512))
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from engine.errors import CompileError
from engine.merge import MergePlan, merge
from engine.options import CompileOptions, resolve
from engine.passes.base import PassContext
from engine.program_size import require_program_size
from engine.snapshot import ModuleSnapshots, Snapshot
from engine.stages import ModelShape, ModuleSpec, find, plan
from engine.top.checkpoint.config import ModelConfig, load_config
from engine.top.checkpoint.layout import expected_tensors
from engine.top.checkpoint.tensors import Checkpoint, has_weights, open_checkpoint
from engine.worker import Event, ModuleFailed, ModuleFinished, PassFinished, PassStarted, serve

WORKERS = max(1, min(4, os.cpu_count() or 1))
"""Worker processes of one compilation."""


@dataclass(frozen=True)
class Model:
    """A model to compile: its configuration and, where weights are present, its checkpoint."""

    config: ModelConfig
    checkpoint: Checkpoint | None

    @property
    def shape(self) -> ModelShape:
        """The sizes that fix the modules."""
        c = self.config
        return ModelShape(c.layers, c.hidden_size, c.kv_heads, c.head_dim, c.vocab_size)

    def resolve(self, **given: Any) -> CompileOptions:
        """Options with this model's defaults. Raises UserError for values it cannot have."""
        return resolve(max_positions=self.config.max_positions, stored_dtype=self.config.dtype, **given)


def open_model(path: Path | str) -> Model:
    """Open a checkpoint folder or a bare config.json. Raises UserError naming file and key or tensor."""
    config = load_config(path)
    checkpoint = None
    if Path(path).is_dir() and has_weights(path):
        checkpoint = open_checkpoint(path)
        checkpoint.check(expected_tensors(config))
    return Model(config, checkpoint)


@dataclass
class Compilation:
    """What compiling left behind; fills up while the workers run.

    modules: snapshots of each module by name, in the plan's order. errors: what went wrong, by module.
    """

    config: ModelConfig
    options: CompileOptions
    specs: tuple[ModuleSpec, ...]
    modules: MutableMapping[str, ModuleSnapshots] = field(default_factory=dict)
    failures: dict[str, ModuleFailed] = field(default_factory=dict)
    cancelled: bool = False

    @property
    def complete(self) -> bool:
        """Every module has all its snapshots."""
        return not self.failures and not self.cancelled and len(self._finished) == len(self.specs)

    _finished: set[str] = field(default_factory=set)

    @classmethod
    def restored(
        cls,
        config: ModelConfig,
        options: CompileOptions,
        specs: tuple[ModuleSpec, ...],
        modules: MutableMapping[str, ModuleSnapshots],
        merged: MergePlan,
    ) -> Compilation:
        """A complete compilation as a file keeps it; `modules` may make its values when they are asked for."""
        found = cls(config, options, specs, modules, _finished={spec.name for spec in specs})
        found.__dict__["merged"] = merged
        return found

    def add(self, event: Event) -> None:
        """Take in one worker event."""
        match event:
            case PassFinished(module, snapshot):
                known = self.modules.get(module) or ModuleSnapshots(module, ())
                self.modules[module] = ModuleSnapshots(module, (*known.snapshots, snapshot))
            case ModuleFinished(module):
                self._finished.add(module)
            case ModuleFailed():
                self.failures[event.module] = event
                known = self.modules.get(event.module) or ModuleSnapshots(event.module, ())
                self.modules[event.module] = ModuleSnapshots(event.module, known.snapshots, event.message)

    def find(self, name: str) -> tuple[ModuleSpec, int]:
        """The module that serves `name`, and the layer. Raises UserError with the modules that exist."""
        return find(self.specs, name)

    def snapshots(self, name: str) -> ModuleSnapshots:
        """Snapshots of the module that serves `name`. Raises CompileError when it failed before its first pass."""
        spec, _ = self.find(name)
        if spec.name not in self.modules:
            raise CompileError(f"module {spec.name} was not compiled", spec.name)
        return self.modules[spec.name]

    def require_complete(self) -> None:
        """Raise CompileError naming the first failure unless everything was compiled."""
        if self.failures:
            first = next(iter(self.failures.values()))
            saved = f"\nthe IR before the pass was saved to {first.saved_ir}" if first.saved_ir else ""
            raise CompileError(first.message + saved, first.module, first.pass_name, first.saved_ir)
        if not self.complete:
            raise CompileError("the compilation was cancelled")

    @cached_property
    def merged(self) -> MergePlan:
        """Addresses of the whole program. Raises CompileError unless everything was compiled."""
        self.require_complete()
        return merge(self.specs, self.modules, self.options)


Listener = Callable[[Event], None]


def compile_model(
    model: Model,
    options: CompileOptions,
    on_event: Listener = lambda event: None,
    cancel: threading.Event | None = None,
    only: Sequence[str] | None = None,
) -> Compilation:
    """Compile every module of a model, or `only` those that serve the given names.

    `on_event` is called in this thread as passes start and finish. Setting `cancel` stops the workers; the result then
    holds what was finished. Failures are in the result, not raised: everything else is still there. Raises UserError,
    before anything is compiled, for lengths at which a module would take too many instructions.
    """
    specs = plan(model.shape, options)
    compilation = Compilation(model.config, options, specs)
    wanted = specs if only is None else tuple(dict.fromkeys(find(specs, name)[0] for name in only))
    require_program_size(
        wanted,
        model.config,
        options,
        lambda rows: plan(model.shape, replace(options, max_input_length=rows)),
    )
    contexts = [PassContext(spec, model.config, options) for spec in wanted]
    for event in run_workers(contexts, cancel):
        compilation.add(event)
        on_event(event)
    compilation.cancelled = cancel is not None and cancel.is_set()
    return compilation


# -- workers -------------------------------------------------------------------------------------------------------


@dataclass
class _Worker:
    """One process with its pipe and what it is doing."""

    process: BaseProcess
    connection: Connection
    context: PassContext | None = None
    pass_name: str = ""
    last: Snapshot | None = None


def run_workers(contexts: Sequence[PassContext], cancel: threading.Event | None = None) -> Iterator[Event]:
    """Events of compiling the modules in worker processes, largest modules first.

    A worker that dies is reported as ModuleFailed with the pass it was in and the IR before it saved to a file, and
    replaced.
    """
    queue = sorted(contexts, key=_weight)
    workers = [_start() for _ in range(min(WORKERS, len(queue)))]
    for worker in workers:
        _assign(worker, queue)
    try:
        while any(worker.context is not None for worker in workers):
            if cancel is not None and cancel.is_set():
                return
            busy = {worker.connection: worker for worker in workers if worker.context is not None}
            for ready in wait(list(busy), timeout=0.1):
                worker = busy[ready]  # type: ignore[index]
                event = _receive(worker)
                yield event
                if isinstance(event, (ModuleFinished, ModuleFailed)):
                    if not worker.process.is_alive() and worker.process.exitcode is not None:
                        workers[workers.index(worker)] = worker = _start() if queue else worker
                    _assign(worker, queue)
    finally:
        _stop(workers, graceful=all(worker.context is None for worker in workers))


def _weight(context: PassContext) -> int:
    """Sort key by the work to be expected, ascending: `list.pop` takes the last."""
    spec = context.spec
    return spec.rows * (1 + spec.cache)


def worker_context() -> ForkServerContext:
    """How worker processes start: from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.worker_preload"])
    return context


def _start() -> _Worker:
    context = worker_context()
    parent, child = context.Pipe()
    process = context.Process(target=serve, args=(child,), daemon=True)
    try:
        with _interrupts_blocked():
            process.start()
    except (EOFError, OSError) as error:
        raise CompileError(f"a worker process cannot be started ({error or 'its server has died'})") from None
    child.close()
    return _Worker(process, parent)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started inside never see an interrupt from the terminal: it is the parent's to handle."""
    # it starts with the first process, and unblocks interrupts when it has
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _assign(worker: _Worker, queue: list[PassContext]) -> None:
    worker.context = queue.pop() if queue else None
    worker.pass_name, worker.last = "", None
    if worker.context is not None:
        worker.connection.send(worker.context)


def _receive(worker: _Worker) -> Event:
    assert worker.context is not None
    try:
        event: Event = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(5)
        return _aborted(worker)
    if isinstance(event, PassStarted):
        worker.pass_name = event.pass_name
    elif isinstance(event, PassFinished):
        worker.last = event.snapshot
    elif isinstance(event, ModuleFailed) and not event.mistake and worker.last is not None:
        return ModuleFailed(
            event.module, event.pass_name, event.message, _save(event.module, event.pass_name, worker)
        )
    return event


def _aborted(worker: _Worker) -> ModuleFailed:
    assert worker.context is not None
    name = worker.context.spec.name
    code = worker.process.exitcode
    cause = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    message = f"pass {worker.pass_name} aborted on module {name} ({cause})"
    return ModuleFailed(name, worker.pass_name, message, _save(name, worker.pass_name, worker))


def _save(module: str, pass_name: str, worker: _Worker) -> str:
    """Write the IR before the failed pass where the user can look at it."""
    if worker.last is None:
        return ""
    handle, path = tempfile.mkstemp(prefix=f"{module}.before-{pass_name}.", suffix=".mlir")
    with os.fdopen(handle, "w") as file:
        file.write(worker.last.text)
    return path


def _stop(workers: Sequence[_Worker], graceful: bool) -> None:
    for worker in workers:
        if graceful and worker.process.is_alive():
            worker.connection.send(None)
        else:
            worker.process.kill()
        worker.connection.close()
    for worker in workers:
        worker.process.join(2)
