"""Proves what can be proved about a compiled program without running it: addresses, KV regions, groups, instructions.

    problems = check(compilation)      # [] when all is well

`tpuscope check MODEL` prints them and exits with 1 when there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.compiler import Compilation
from engine.errors import CompileError, UserError
from engine.instruction_check import instruction_problems
from engine.merge import layout_of
from engine.passes.layer_group.occupancy import bank_conflicts, problems, slice_problems
from engine.passes.layer_group.plan import GroupType
from engine.passes.layer_group.stream.check import stream_bank_conflicts, stream_problems
from engine.passes.layer_group.view import GroupView, group_indices, read_group
from engine.snapshot import Snapshot, is_computation
from engine.stages import Kind, ModuleSpec
from engine.tables import kv_table
from engine.tpu.isa import Arena
from engine.tpu.memory import check_addresses
from engine.tpu.program_check import program_problems

CHECKS = ("compiled", "ir", "addresses", "kv", "groups", "program", "merge")
"""Kinds of checks, in the order in which they are made."""


@dataclass(frozen=True)
class Problem:
    """One invariant that does not hold. check: one of CHECKS. module: empty for the whole program."""

    check: str
    module: str
    message: str

    def __str__(self) -> str:
        return f"{self.module}: {self.message}" if self.module else self.message


def check(compilation: Compilation) -> list[Problem]:
    """Every invariant of every module that was compiled, and of the program when all were."""
    found = [Problem("compiled", name, failure.message) for name, failure in compilation.failures.items()]
    for spec in compilation.specs:
        module = compilation.modules.get(spec.name)
        if module is not None and module.error is None:
            found += check_module(module.snapshots[-1], spec, compilation)
    if compilation.complete:
        found += _check_program(compilation)
    return found


def report(compilation: Compilation, found: Iterable[Problem]) -> dict[str, Any]:
    """What `tpuscope check --json` prints.

    ok: nothing was found. modules: names of those that were checked. checks: for each kind, how many problems. groups,
    instructions: how many were examined. problems: check, module and message of each.
    """
    problems_ = list(found)
    last = [m.snapshots[-1] for m in compilation.modules.values() if m.snapshots]
    return {
        "ok": not problems_,
        "modules": [snapshot.module for snapshot in last],
        "checks": {kind: sum(p.check == kind for p in problems_) for kind in CHECKS},
        "groups": sum(len(group_indices(snapshot.ops)) for snapshot in last),
        "instructions": sum(len(s.report) for s in last if isinstance(s.report, np.ndarray)),
        "problems": [asdict(problem) for problem in problems_],
    }


# -- one module ----------------------------------------------------------------------------------------------------


def check_module(snapshot: Snapshot, spec: ModuleSpec, compilation: Compilation) -> Iterator[Problem]:
    """The invariants of one module after its last pass."""
    options = compilation.options

    def named(kind: str, messages: Callable[[], Iterable[str]]) -> Iterator[Problem]:
        try:
            for message in messages():
                yield Problem(kind, snapshot.module, message)
        except (CompileError, UserError) as error:
            yield Problem(kind, snapshot.module, str(error))

    yield from named("ir", lambda: _check_text(snapshot))
    yield from named(
        "addresses",
        lambda: [
            *_unaddressed(snapshot),
            *check_addresses(snapshot.ops, snapshot.attributes, spec, options),
        ],
    )
    for index in group_indices(snapshot.ops):
        yield from named("groups", lambda i=index: _check_group(read_group(snapshot.ops, i), compilation))  # type: ignore[misc]
    if isinstance(snapshot.report, np.ndarray):
        yield from named(
            "program",
            lambda: [
                *program_problems(snapshot.report, snapshot.ops, layout_of(snapshot), options.chip),
                *instruction_problems(snapshot, options),
            ],
        )


def _check_text(snapshot: Snapshot) -> Iterator[str]:
    """Printing the parse of the text gives the text, and its records are those of the snapshot."""
    from engine import mlir

    with mlir.using(mlir.new_context()):
        module = mlir.parse(snapshot.text, f"module {snapshot.module}")
        again = mlir.print_module(module)
        records = mlir.records(module, again)
    if again != snapshot.text:
        lines = zip(again.split("\n"), snapshot.text.split("\n"), strict=False)
        line = next((number for number, (a, b) in enumerate(lines, 1) if a != b), "?")
        yield f"printing the parsed IR gives another text from line {line} on"
    if records != snapshot.ops:
        yield "the parsed IR has other ops than the snapshot"


def _unaddressed(snapshot: Snapshot) -> Iterator[str]:
    """Values of the module itself that should lie in DDR but have no address."""
    for op in snapshot.ops:
        if op.parent is None and (is_computation(op) or op.name in ("top.Weight", "top.Input")):
            for value, type_ in zip(op.results, op.result_types, strict=True):
                if type_.address is None and not type_.is_none:
                    yield f"{op.location} ({value}) has no address"


def _check_group(view: GroupView, compilation: Compilation) -> Iterator[str]:
    chip = compilation.options.chip
    where = f"group at {view.record.location} (record {view.index})"
    streams = view.type is GroupType.STREAM
    found = stream_problems(view, chip) if streams else [*problems(view, chip), *slice_problems(view, chip)]
    for message in found:
        yield f"{where}: {message}"
    noted = set(view.record.attributes.get("bank_conflicts", ()))
    for number in stream_bank_conflicts(view, chip) if streams else bank_conflicts(view, chip):
        if number not in noted:
            location = view.items[number].record.location
            yield f"{where}: {location} shares a bank with the other engine, which is not noted"


# -- the program ---------------------------------------------------------------------------------------------------


def _check_program(compilation: Compilation) -> Iterator[Problem]:
    try:
        merged = compilation.merged
    except CompileError as error:
        yield Problem("merge", error.module, str(error))
        return
    if any(spec.kind is Kind.BLOCK for spec in compilation.specs) and merged.kv is not None:
        for layer in kv_table(compilation).layers:
            for message in layer.problems:
                yield Problem("kv", "", f"layer {layer.layer}: {message}")
    for message in _overlaps(compilation):
        yield Problem("merge", "", message)


def _overlaps(compilation: Compilation) -> Iterator[str]:
    """Arenas of the whole program that overlap, or leave it."""
    merged = compilation.merged
    spans: dict[tuple[int, str], tuple[int, str]] = {}
    for (name, layer), bases in merged.bases.items():
        size = layout_of(compilation.modules[name].snapshots[-1]).size
        for arena in Arena:
            key = (bases.of(arena), arena.name.lower())
            label = f"{arena.name.lower()} arena of {name} in layer {layer}"
            known, first = spans.get(key, (0, label))
            spans[key] = (max(known, size[arena]), first)
    ordered = sorted((base, base + size, label) for (base, _), (size, label) in spans.items() if size)
    for (_, end, one), (start, _, other) in pairwise(ordered):
        if start < end:
            yield f"the {one} ends at {end}, behind the start {start} of the {other}"
    for start, end, label in ordered:
        if start < merged.start or end > merged.end:
            yield f"the {label} (bytes {start} to {end - 1}) leaves the program's {merged.start} to {merged.end - 1}"
