"""The three stages and their modules: names, layers served, inputs and outputs with shapes (DESIGN, section 4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.errors import UserError
from engine.options import CompileOptions
from engine.snapshot import TensorType


class Stage(StrEnum):
    """When a module runs."""

    PREFILL = "prefill"
    PREFILL_KV = "prefill_kv"
    DECODE = "decode"
    BOTH = "both"


class Kind(StrEnum):
    """What a module computes."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    LM_HEAD = "lm_head"
    GREEDY_HEAD = "greedy_head"
    SAMPLE_HEAD = "sample_head"


@dataclass(frozen=True)
class ModelShape:
    """The sizes that fix every module's inputs and outputs."""

    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True)
class TensorSpec:
    """A named module input or output in the types of the lowered module (hidden states, masks and KV in half)."""

    name: str
    type: TensorType

    @property
    def top_type(self) -> TensorType:
        """The same tensor in a TopOp module: floats are f32."""
        dtype = self.type.dtype if self.type.dtype.startswith(("si", "ui")) else "f32"
        return TensorType(self.type.shape, dtype)


@dataclass(frozen=True)
class ModuleSpec:
    """One module that is compiled once and serves `layers`.

    name: the first layer's name (`block_0` for layers 0 to n-2, `block_{n-1}` for the last). rows: new rows that it
    processes (L in prefill, 1 in decode). cache: C, rows of history that it reads (0 without history). last: ends with
    the final RMSNorm.
    """

    name: str
    stage: Stage
    kind: Kind
    layers: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows: int
    cache: int = 0
    variant: int = 0
    last: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every name by which people call it: one for each layer."""
        return tuple(self.name_for(layer) for layer in self.layers) or (self.name,)

    def name_for(self, layer: int) -> str:
        """The module's name for one of its layers (`block_cache_7_1`)."""
        if self.kind is not Kind.BLOCK:
            return self.name
        suffix = f"_{self.variant}" if self.variant else ""
        return f"{_PREFIX[self.stage]}_{layer}{suffix}"


_PREFIX = {Stage.PREFILL: "block", Stage.PREFILL_KV: "block_kv", Stage.DECODE: "block_cache"}
MASKED_SCORE = -10000.0
"""Value of a masked position in an attention mask input (as TPU-MLIR's front end uses)."""


def kv_rows(options: CompileOptions) -> int:
    """Rows of one layer's K (and V) region: S of history plus the largest append behind it.

    prefill_kv appends L rows at slot S; without it only decode appends, one row. Prefill writes from row 0.
    """
    return options.seq_length + (max(1, options.max_input_length) if options.history else 1)


def plan(shape: ModelShape, options: CompileOptions) -> tuple[ModuleSpec, ...]:
    """Every distinct module of a model, in the order in which a run first needs them.

    Raises UserError when a forced group names a module that the model does not have.
    """
    half = options.mode.half
    rows, length = options.max_input_length, options.seq_length
    modules = [_embedding("embedding", Stage.PREFILL, rows, shape, half)]
    modules += _blocks(shape, options, Stage.PREFILL, rows, 0)
    if options.history:
        modules += _blocks(shape, options, Stage.PREFILL_KV, rows, length)
    modules.append(_embedding("embedding_cache", Stage.DECODE, options.batch, shape, half))
    for variant, cache in enumerate((length, *options.decode_chunks)):
        modules += _blocks(shape, options, Stage.DECODE, options.batch, cache, variant)
    modules += _heads(shape, options)
    for forced in options.force_group:
        find(modules, forced.partition(":")[0])
    return tuple(modules)


def _embedding(name: str, stage: Stage, rows: int, shape: ModelShape, half: str) -> ModuleSpec:
    # decode has one row per sequence of the batch, prefill L rows of one sequence
    lead = (rows, 1) if stage is Stage.DECODE else (1, rows)
    return ModuleSpec(
        name,
        stage,
        Kind.EMBEDDING,
        (),
        (TensorSpec("input_ids", TensorType(lead, "si32")),),
        (TensorSpec("output_states", TensorType((*lead, shape.hidden), half)),),
        rows,
    )


def _blocks(
    shape: ModelShape, options: CompileOptions, stage: Stage, rows: int, cache: int, variant: int = 0
) -> list[ModuleSpec]:
    """The block shared by all layers but the last, and the last layer's."""
    inputs, outputs = _block_io(shape, options, stage, rows, cache)
    last = shape.layers - 1
    groups = [(tuple(range(last)), False), ((last,), True)]
    found = []
    for layers, is_last in groups:
        if layers:
            spec = ModuleSpec("", stage, Kind.BLOCK, layers, inputs, outputs, rows, cache, variant, is_last)
            found.append(replace(spec, name=spec.name_for(layers[0])))
    return found


def _block_io(
    shape: ModelShape, options: CompileOptions, stage: Stage, rows: int, cache: int
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    half = options.mode.half
    lead = (options.batch, 1) if stage is Stage.DECODE else (1, rows)
    inputs = [
        TensorSpec("input_states", TensorType((*lead, shape.hidden), half)),
        TensorSpec("position_ids", TensorType(lead, "si32")),
    ]
    if stage is Stage.DECODE:
        inputs.append(TensorSpec("attention_mask", TensorType((options.batch, 1, 1, cache + 1), half)))
    if stage is Stage.PREFILL and options.prefill_mask == "full":
        inputs.append(TensorSpec("attention_mask", TensorType((1, 1, rows, rows), half)))
    if stage is not Stage.PREFILL:
        history = TensorType((lead[0], cache, shape.kv_heads, shape.head_dim), half)
        inputs += [TensorSpec("history_k", history), TensorSpec("history_v", history)]
    if stage is Stage.PREFILL_KV:
        inputs.append(TensorSpec("history_length", TensorType((1,), "si32")))
    new = TensorType((*lead, shape.kv_heads, shape.head_dim), half)
    outputs = (
        TensorSpec("output_states", TensorType((*lead, shape.hidden), half)),
        TensorSpec("k_cache", new),
        TensorSpec("v_cache", new),
    )
    return tuple(inputs), outputs


SAMPLE_CANDIDATES = 50
"""Candidates that the sample head returns, as TPU-MLIR's does (capped at the vocabulary)."""


def _heads(shape: ModelShape, options: CompileOptions) -> list[ModuleSpec]:
    half = options.mode.half
    hidden = TensorSpec("hidden_states", TensorType((1, shape.hidden), half))
    token = TensorSpec("token_id", TensorType((1, 1), "si32"))
    logits = TensorSpec("logits", TensorType((1, shape.vocab), "f32"))
    if not options.sample:
        return [ModuleSpec("lm_head", Stage.BOTH, Kind.LM_HEAD, (), (hidden,), (token,), 1)]
    count = min(SAMPLE_CANDIDATES, shape.vocab)
    scalar = TensorType((1,), "f32")
    sampling = (
        logits,
        TensorSpec("input_ids", TensorType((1, options.seq_length), "si32")),
        TensorSpec("penalty", scalar),
        TensorSpec("temperature", scalar),
        TensorSpec("top_k", TensorType((1,), "si32")),
        TensorSpec("top_p", scalar),
    )
    candidates = (
        TensorSpec("probabilities", TensorType((1, count), "f32")),
        TensorSpec("tokens", TensorType((1, count), "si32")),
    )
    return [
        ModuleSpec("lm_head", Stage.BOTH, Kind.LM_HEAD, (), (hidden,), (logits,), 1),
        ModuleSpec("greedy_head", Stage.BOTH, Kind.GREEDY_HEAD, (), (logits,), (token,), 1),
        ModuleSpec("sample_head", Stage.BOTH, Kind.SAMPLE_HEAD, (), sampling, candidates, 1),
    ]


def find(modules: Sequence[ModuleSpec], name: str) -> tuple[ModuleSpec, int]:
    """The module that serves `name` and the layer meant (0 outside blocks).

    `block_7` finds the module shared by layers 0 to n-2 with layer 7. Raises UserError with the modules that exist.
    """
    for spec in modules:
        if spec.name == name:
            return spec, spec.layers[0] if spec.layers else 0
    match = re.fullmatch(r"(block|block_kv|block_cache)_(\d+)(?:_(\d+))?", name)
    if match:
        prefix, layer, variant = match[1], int(match[2]), int(match[3] or 0)
        for spec in modules:
            if (
                spec.kind is Kind.BLOCK
                and _PREFIX[spec.stage] == prefix
                and spec.variant == variant
                and layer in spec.layers
            ):
                return spec, layer
    known = ", ".join(f"{s.name} (x{len(s.layers)})" if len(s.layers) > 1 else s.name for s in modules)
    raise UserError(f"unknown module {name!r}; this model has: {known}")
