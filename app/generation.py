"""`tpuscope run`: generated text as it comes, on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app import units
from app.console import emit, messages
from app.printable import obeyed_shown
from engine.stages import Stage

if TYPE_CHECKING:
    from app.session import Session
    from engine.sim.machine import Violation
    from engine.sim.machine_runtime import MachineExecutor, MachineExecutors
    from engine.sim.runtime import GeneratedToken


def generate_text(
    session: Session,
    prompt: Sequence[int],
    max_new_tokens: int,
    sampling: Mapping[str, Any] | None,
    as_json: bool,
    *,
    machine: bool = False,
    checks: bool = False,
) -> int:
    """Generate and print; the number of violations found. They explain numbers that are not finite: where there are
    any, text ends in front of these without an error.

    sampling: fields of `engine.sim.runtime.Sampling`; None is greedy. machine: the program's instructions run on a
    simulated memory, instead of its ops in the interpreter; checks: which then also reports what they do wrong, and
    where the two engines meet in banks of local memory.
    """
    from engine.sim.runtime import NotFiniteError, Sampling

    runtime, executors = session.machine_runtime(checks=checks) if machine else (session.runtime, None)
    if machine:
        _warn_of_size(session)
    stream = session.token_stream(prompt)
    if stream is None:
        messages().print(
            f"⚠ token ids in place of text: {session.text_problem}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    texts: list[str] = []
    tokens: list[GeneratedToken] = []
    violations: dict[Any, dict[str, Any]] = {}
    start = time.perf_counter()
    chosen = None if sampling is None else Sampling(**sampling)
    stopped = ""
    try:
        for token in runtime.generate(prompt, max_new_tokens, sampling=chosen):
            tokens.append(token)
            violations |= _violations(executors)
            texts.append(stream.push(token.token) if stream else f"{token.token} ")
            if not as_json:
                _write(texts[-1])
    except NotFiniteError as error:
        violations |= _violations(executors)
        if not violations:
            raise
        stopped = error.found
    texts.append(stream.finish() if stream else "")
    seconds = time.perf_counter() - start
    if as_json:
        found = _json(prompt, tokens, texts, seconds)
        engine = "machine" if machine else "interpreter"
        shared = _bank_conflicts(executors) if checks else []
        emit({**found, "engine": engine, "violations": list(violations.values()), "bank_conflicts": shared})
        return len(violations)
    _write(texts[-1] + "\n" if tokens else "")
    if not stopped:
        full = len(tokens) < max_new_tokens and runtime.filled == session.options.seq_length
        end = f"ended because all {session.options.seq_length} rows of history are full" if full else ""
        messages().print(_summary(prompt, tokens, end), style="dim", markup=False, soft_wrap=True)
    for row in violations.values():
        where = f"{row['module']}, layer {row['layer']}, instruction {row['instruction']}"
        messages().print(f"✗ {where}: {row['message']}", style="red", markup=False, soft_wrap=True)
    if stopped:
        messages().print(f"⚠ no further text: {stopped}", style="yellow", markup=False, soft_wrap=True)
    if checks and not violations:
        messages().print("✓ no instruction did what it must not", style="green")
    if checks:
        _print_bank_conflicts(_bank_conflicts(executors))
    return len(violations)


LARGE = 100_000_000
"""Bytes of weights from which running on the machine takes patience."""


def _warn_of_size(session: Session) -> None:
    """Say beforehand that a large model takes long."""
    compilation = session.compilation
    sizes = ((spec, compilation.modules[spec.name].snapshots[-1].attributes) for spec in compilation.specs)
    nbytes = sum(
        int(attributes["coeff_size"]) * max(1, len(spec.layers))
        for spec, attributes in sizes
        if spec.stage in (Stage.PREFILL, Stage.BOTH)
    )
    if nbytes >= LARGE:
        messages().print(
            f"⚠ {units.size(nbytes)} of weights: the machine moves and computes every byte as the instructions say, "
            "which takes several times as long and as much memory as the interpreter",
            style="yellow",
            soft_wrap=True,
        )


def _violations(executors: MachineExecutors | None) -> dict[Any, dict[str, Any]]:
    """What the machines found in the last run of each module; the same findings have the same keys."""
    made = executors.made if executors is not None else {}
    return {
        (module, layer, found): {
            "module": module,
            "layer": layer,
            "instruction": found.instruction,
            "kind": found.kind,
            "message": _with_op(executor, found).replace("{i}", str(layer)),
        }
        for (module, layer), executor in made.items()
        for found in executor.violations
    }


def _with_op(executor: MachineExecutor, found: Violation) -> str:
    """The message of a finding, led by the name and the location of the op unless it begins with them itself."""
    if found.message.startswith("tpu."):
        return found.message
    index, ops = int(executor.program["op"][found.instruction]), executor.snapshot.ops
    name = f"{ops[index].name} {ops[index].location}" if 0 <= index < len(ops) else "an unknown op"
    return f"{name} {found.message}"


def _bank_conflicts(executors: MachineExecutors | None) -> list[dict[str, Any]]:
    """Instructions that may use a bank of local memory at the same time as the other engine, for each op of a module;
    layers that share a module are alike."""
    made = executors.made if executors is not None else {}
    first = {module: (layer, executor) for (module, layer), executor in reversed(made.items())}
    return [
        {"module": module, "op": op.replace("{i}", str(layer)), "instructions": count}
        for module, (layer, executor) in first.items()
        for op, count in executor.bank_conflicts.items()
    ]


def _print_bank_conflicts(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    total, most = sum(row["instructions"] for row in rows), max(rows, key=lambda row: row["instructions"])
    messages().print(
        f"{_plural(total, 'instruction')} of {_plural(len(rows), 'op')} may use a bank of local memory at the same "
        f"time as the other engine, {most['instructions']} of them in {most['op']} of {most['module']}; kernels and "
        "groups without room do so on purpose",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _write(text: str) -> None:
    """Print text of the model: as it is into a pipe or a file, without anything that a terminal would obey else."""
    sys.stdout.write(obeyed_shown(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _summary(prompt: Sequence[int], tokens: Sequence[GeneratedToken], end: str) -> str:
    first, rest = tokens[0], tokens[1:]
    parts = [
        f"{_plural(len(prompt), 'prompt token')} in {_plural(len(first.segments), 'segment')}",
        f"first token after {units.duration(first.seconds)}",
    ]
    if rest:
        seconds = sum(token.seconds for token in rest)
        parts.append(f"{len(rest)} more at {len(rest) / seconds:.1f} tokens/s")
    parts += [end] if end else []
    return " · ".join([*parts, "computed on this machine, see `tpuscope simulate` for the chip's speed"])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _json(
    prompt: Sequence[int], tokens: Sequence[GeneratedToken], texts: Sequence[str], seconds: float
) -> dict[str, Any]:
    return {
        "prompt_ids": list(prompt),
        "text": "".join(texts),
        "tokens": [
            {
                "id": token.token,
                "position": token.position,
                "text": text,
                "module": token.module,
                "seconds": token.seconds,
                "copied_bytes": token.copied_bytes,
            }
            for token, text in zip(tokens, texts, strict=False)
        ],
        "seconds": seconds,
    }
