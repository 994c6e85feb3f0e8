"""Runs the passes over one module and takes a snapshot after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from engine import mlir
from engine.errors import CompileError, UserError
from engine.passes import IMPORT, PASSES, load
from engine.passes.base import PassContext, PassReport
from engine.snapshot import Snapshot
from engine.stages import ModuleSpec
from engine.top.families import build_module

Announce = Callable[[str], None]


def run(context: PassContext, announce: Announce = lambda name: None) -> Iterator[Snapshot]:
    """Snapshots of `context.spec`'s module as its passes finish: the import first, then every pass.

    `announce` is called with a pass's name before it runs, so that an abort can be laid at its door. Raises
    CompileError naming module and pass.
    """
    with mlir.using(mlir.new_context()):
        announce(IMPORT)
        start = time.perf_counter()
        module = build_module(context.spec, context.config, context.options)
        mlir.verify(module, f"module {context.spec.name} after {IMPORT}")
        last = _snapshot(module, context.spec.name, IMPORT, None, start, PassReport())
        yield last
        for name in PASSES:
            announce(name)
            start = time.perf_counter()
            if load(name)().applies(context):
                report = _run_pass(name, module, context) or PassReport()
                last = _snapshot(module, context.spec.name, name, last, start, report)
            else:
                last = _unchanged(last, name)
            yield last


def _run_pass(name: str, module: mlir.Module, context: PassContext) -> PassReport | None:
    where = f"module {context.spec.name}, pass {name}"
    try:
        report = load(name)().run(module, context)
        mlir.verify(module, where)
    except CompileError as error:
        raise CompileError(f"{where}: {error}", context.spec.name, name) from error
    except UserError as error:
        raise CompileError(_in_layer(str(error), context.spec), context.spec.name, name) from error
    return report


def _in_layer(message: str, spec: ModuleSpec) -> str:
    """A message with the locations of the first layer that the module serves."""
    return message.replace("{i}", str(spec.layers[0])) if spec.layers else message


def _snapshot(
    module: mlir.Module,
    module_name: str,
    pass_name: str,
    before: Snapshot | None,
    start: float,
    report: PassReport,
) -> Snapshot:
    text = mlir.print_module(module)
    if before is not None and text == before.text:
        changed, ops, attributes = False, before.ops, before.attributes
    else:
        changed, ops, attributes = True, mlir.records(module, text), mlir.module_attributes(module)
    seconds = time.perf_counter() - start
    return Snapshot(
        module_name, pass_name, text, ops, attributes, changed, seconds, report.notes, report.data
    )


def _unchanged(before: Snapshot, pass_name: str) -> Snapshot:
    """The snapshot of a pass that did not run."""
    return replace(before, pass_name=pass_name, changed=False, seconds=0.0, notes=(), report=None)
