"""The process that compiles modules: one task in, a stream of events out.

Passes run here and not in the user's process because a wrong rewrite aborts the whole process; the parent then knows
the module, the pass and the last good snapshot.
"""

from __future__ import annotations

import os
import signal
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from engine.errors import CompileError, UserError
from engine.passes.base import PassContext
from engine.snapshot import Snapshot


@dataclass(frozen=True)
class PassStarted:
    """A pass begins."""

    module: str
    pass_name: str


@dataclass(frozen=True)
class PassFinished:
    """A pass ended well."""

    module: str
    snapshot: Snapshot


@dataclass(frozen=True)
class ModuleFinished:
    """All passes of a module ended well."""

    module: str


@dataclass(frozen=True)
class ModuleFailed:
    """A module could not be compiled; its earlier snapshots stand.

    saved_ir: file with the IR before the pass. mistake: the user asked for something that cannot be.
    """

    module: str
    pass_name: str
    message: str
    saved_ir: str = ""
    mistake: bool = False


Event = PassStarted | PassFinished | ModuleFinished | ModuleFailed


def serve(connection: Connection) -> None:
    """Compile the modules that arrive as PassContext until None arrives or the parent is gone."""
    # an interrupt on the terminal is the parent's to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while (context := connection.recv()) is not None:
            for event in _events(context, connection):
                connection.send(event)
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _events(context: PassContext, connection: Connection) -> list[Event]:
    """Send events as passes run; return the last one."""
    # here and not above: the parent imports this module for its events and needs no bindings
    from engine.passes import pipeline

    name = context.spec.name
    current = [""]

    def announce(pass_name: str) -> None:
        current[0] = pass_name
        connection.send(PassStarted(name, pass_name))

    try:
        for snapshot in pipeline.run(context, announce):
            connection.send(PassFinished(name, snapshot))
    except CompileError as error:
        mistake = isinstance(error.__cause__, UserError)
        return [ModuleFailed(name, error.pass_name or current[0], str(error), mistake=mistake)]
    except Exception as error:
        detail = "".join(traceback.format_exception(error)[-3:])
        return [ModuleFailed(name, current[0], f"internal error: {error}\n{detail}")]
    return [ModuleFinished(name)]
