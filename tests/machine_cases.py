"""Inputs for single modules, and what the machine and the interpreter make of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from compiled import compile_here
from running import weights_of
from tiny import write_tiny

from engine.compiler import Compilation, open_model
from engine.sim.interpreter import Interpreter, PreparedWeights, WeightLoader
from engine.sim.machine_runtime import MachineExecutor, module_executor
from engine.sim.runtime import PROGRAM_PASS, logits_value
from engine.snapshot import TensorType
from engine.stages import MASKED_SCORE, ModuleSpec
from engine.tpu.numerics import round_to

Arrays = dict[str, np.ndarray]


@cache
def tiny_program(
    family: str, quantize: str, *, tie: bool | None = None, **options: Any
) -> tuple[Compilation, WeightLoader]:
    """A tiny checkpoint at S 64, L 16, decode chunks 32 and 16, and its weights. The folder stays for the process.

    tie: embedding and lm_head, None as the family does.
    """
    path = write_tiny(Path(mkdtemp(prefix="tiny-")) / family, family, tie=tie)
    program = compile_here(path, **{"seq_length": 64, "quantize": quantize, **options})
    return program, weights_of(open_model(path))


def random_inputs(
    program: Compilation, spec: ModuleSpec, history: int, seed: int = 0, *, whole: bool = False
) -> Arrays:
    """Inputs of a module whose history holds `history` rows. whole: integers from -2 to 2 in the place of floats."""
    vocabulary, length = program.config.vocab_size, program.options.seq_length
    random = np.random.default_rng(seed)
    found = {t.name: _random(random, t.name, t.type, vocabulary, history, whole) for t in spec.inputs}
    if "position_ids" in found:
        shape = found["position_ids"].shape
        positions = np.minimum(history + np.arange(found["position_ids"].size, dtype=np.int32), length - 1)
        found["position_ids"] = positions.reshape(shape)
    if "attention_mask" in found:
        found["attention_mask"] = _mask(found["attention_mask"].shape, history)
    return found


def _random(
    random: np.random.Generator, name: str, type_: TensorType, vocabulary: int, history: int, whole: bool
) -> np.ndarray:
    if name == "history_length":
        return np.array([history], np.int32)
    if name == "input_ids":
        return random.integers(0, vocabulary, type_.shape).astype(np.int32)
    if type_.dtype == "si32":
        return np.ones(type_.shape, np.int32)
    if whole:
        return random.integers(-2, 3, type_.shape).astype(np.float32)
    if name in ("penalty", "temperature", "top_p"):
        return np.full(type_.shape, 0.9, np.float32)
    values = round_to(random.standard_normal(type_.shape, dtype=np.float32), type_.dtype)
    if name.startswith("history"):
        values[:, history:] = 0
    return values


def _mask(shape: tuple[int, ...], history: int) -> np.ndarray:
    if shape[-2] > 1:
        return np.triu(np.full(shape, MASKED_SCORE, np.float32), k=1)
    mask = np.full(shape, MASKED_SCORE, np.float32)
    mask[..., :history] = 0
    mask[..., -1] = 0
    return mask


def both(
    program: Compilation, loader: WeightLoader, spec: ModuleSpec, inputs: Mapping[str, np.ndarray]
) -> tuple[Arrays, Arrays, MachineExecutor]:
    """(outputs of the machine with its checks on, outputs of the interpreter, the machine)."""
    layer = spec.layers[-1] if spec.layers else 0
    snapshot = program.modules[spec.name].after(PROGRAM_PASS)
    machine = module_executor(spec, snapshot, program.options.chip, loader, layer, checks=True)
    interpreter = Interpreter(
        snapshot,
        PreparedWeights(loader),
        layer,
        outputs=[t.name for t in spec.outputs],
        observe=logits_value(spec, snapshot),
    )
    return machine.run(inputs), interpreter.run(inputs), machine


def largest_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference as a part of the largest value."""
    return float(np.abs(found - expected).max() / max(1e-30, float(np.abs(expected).max())))
