"""The generation loop over the compiled modules: embedding, prefill by segments, lm_head, sampling, decode.

runtime = Runtime(compilation, CheckpointWeights(ModelTensors(checkpoint, config)))
for token in runtime.generate(prompt_ids, max_new_tokens=20):
    print(token.token)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, Protocol

import numpy as np

from engine.errors import CompileError, UserError
from engine.merge import MergePlan
from engine.sim.interpreter import Interpreter, PreparedWeights, Regions, WeightLoader
from engine.sim.program import Program
from engine.snapshot import Snapshot
from engine.stages import MASKED_SCORE, Kind, ModuleSpec, Stage
from engine.top.checkpoint.config import ModelConfig
from engine.top.checkpoint.layout import expected_tensors
from engine.top.checkpoint.tensors import EMBEDDING
from engine.tpu.isa import Arena
from engine.tpu.memory import ArenaLayout

PROGRAM_PASS = "codegen"
"""The pass whose snapshot is run: the program as it is in the deployable file."""

PADDING_TOKEN = 0
"""Fills the rows of a prefill beyond the prompt; what is computed for them is never read."""


class NotFiniteError(UserError):
    """What the program computes is NaN or infinity. found: that, without what it may come from."""

    def __init__(self, found: str, reason: str) -> None:
        super().__init__(f"{found}; {reason}")
        self.found = found


class ModuleExecutor(Protocol):
    """Runs one module of one layer: the interpreter on records, or a machine on instructions."""

    def run(self, inputs: Mapping[str, np.ndarray], regions: Regions | None = None) -> dict[str, np.ndarray]:
        """Outputs by name; floats travel as float32 arrays.

        regions: the layer's KV memory, `k_cache` and `v_cache`, each [1, rows, kv_heads, d]. The module reads its
        history there and leaves its new rows behind the C rows that it reads.
        """


ExecutorFactory = Callable[[ModuleSpec, Snapshot, int], ModuleExecutor]
"""(module, its addressed snapshot, layer) -> what runs it."""


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from the sample head's candidates; temperature 0 takes the most likely one."""

    temperature: float = 1.0
    top_k: int = 0
    """0: all candidates."""
    top_p: float = 1.0
    penalty: float = 1.0
    """Repetition penalty over all tokens so far."""
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature, self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (all) or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("penalty", self.penalty, self.penalty > 0, "above 0"),
        )
        for name, value, fits, accepted in checks:
            if not fits:
                raise UserError(f"sampling: {name} {value} is out of range; accepted: {accepted}")


@dataclass(frozen=True)
class Segment:
    """One run of the blocks over prompt rows. module: the first layer's name. rows: new rows that hold prompt."""

    module: str
    history: int
    rows: int


@dataclass(frozen=True)
class Progress:
    """How far the way to a token is. module: the first layer's name, or lm_head. done: layers ready, or run, of all."""

    doing: Literal["weights", "blocks"]
    """Making the modules and their weights ready, or running them."""
    module: str
    done: int
    layers: int


Watch = Callable[[Progress], None]
"""Told after each layer and before lm_head, in the thread that generates; what it raises ends the generation."""


@dataclass(frozen=True)
class GeneratedToken:
    """One generated token and what it took.

    position: its index in the whole sequence. module: first layer's name of the blocks that ran last. segments: runs of
    the blocks over the prompt (first token) or none. seconds: wall time since the one before. copied_bytes: KV rows
    that the runtime moved from the append slot to the first free row. logits: [V] float32 where asked for.
    """

    token: int
    position: int
    module: str
    segments: tuple[Segment, ...]
    seconds: float
    copied_bytes: int
    logits: np.ndarray | None = None

    def top(self, count: int = 5) -> list[tuple[int, float]]:
        """The most likely tokens with their probabilities; empty without logits."""
        if self.logits is None:
            return []
        weights = np.exp(self.logits - self.logits.max())
        weights /= weights.sum()
        order = np.argsort(-weights, kind="stable")[:count]
        return [(int(token), float(weights[token])) for token in order]


# -- KV memory -----------------------------------------------------------------------------------------------------


class KvMemory:
    """The K and V regions of all layers, where `merge` put them: one float32 array a region, found by DDR address."""

    def __init__(self, program: Program) -> None:
        self._plan = program.merged
        self._kv_shape = (program.config.kv_heads, program.config.head_dim)
        self._arrays: dict[int, np.ndarray] = {}
        self.copied_bytes = 0
        """Bytes that `move` has moved so far, in the program's type."""

    def regions(self, module: str, layer: int) -> dict[str, np.ndarray]:
        """The regions that a module of a layer works on, [1, rows, kv_heads, d]."""
        addresses = self._plan.kv_addresses(module, layer)
        return {name: self._array(at) for name, at in zip(("k_cache", "v_cache"), addresses, strict=True)}

    def move(self, regions: Regions, source: int, target: int, rows: int) -> None:
        """Copy rows inside a layer's regions."""
        if source == target or not rows:
            return
        for array in regions.values():
            array[:, target : target + rows] = array[:, source : source + rows]
        assert self._plan.kv is not None
        self.copied_bytes += len(regions) * rows * self._plan.kv.row_bytes

    def _array(self, address: int) -> np.ndarray:
        if address not in self._arrays:
            assert self._plan.kv is not None
            self._arrays[address] = np.zeros((1, self._plan.kv.rows, *self._kv_shape), np.float32)
        return self._arrays[address]


# -- stages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """One layer's part of a stage. slot: row of the regions where the module leaves its new rows."""

    executor: ModuleExecutor
    regions: dict[str, np.ndarray]
    slot: int


class Runtime:
    """Runs a compiled program. Layers are made ready when they first run; their weights are kept.

    execute: what runs the modules (default: the interpreter on `weights`). Raises UserError for a model whose weights
    in float32 this machine's memory cannot hold.
    """

    def __init__(
        self, program: Program, weights: WeightLoader, execute: ExecutorFactory | None = None
    ) -> None:
        _require_memory(program.config)
        self.program = program
        self.options = program.options
        self.prepared = PreparedWeights(weights)
        self.kv = KvMemory(program)
        self._execute = execute or self._interpret
        self._stacks: dict[str, list[_Layer]] = {}
        self._heads: dict[str, ModuleExecutor] = {}
        self._filled = 0
        self._current = object()
        self._watch: Watch = _nobody

    # -- what people call ------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        stop: Collection[int] | None = None,
        logits: bool = False,
        watch: Watch | None = None,
    ) -> Iterator[GeneratedToken]:
        """Tokens as they come: until one of `stop` (default: the model's end of sequence; it is yielded), until
        `max_new_tokens`, or until the history is full. A later `generate` takes over the KV regions and ends this one.

        sampling None: greedy. watch: is told of each layer on the way to a token. Raises UserError at once for a prompt
        that the program cannot take.
        """
        self._check_prompt(prompt)
        if max_new_tokens < 1:
            raise UserError(f"max_new_tokens is {max_new_tokens}, accepted: 1 or more")
        sampler = self._sampler(sampling)
        ends = set(self.program.config.eos_token_ids if stop is None else stop)
        return self._tokens(list(prompt), max_new_tokens, sampler, ends, logits, watch or _nobody)

    def prefill(self, prompt: Sequence[int]) -> tuple[np.ndarray, tuple[Segment, ...]]:
        """Fill the KV regions from a prompt: (hidden state of its last token [1, H], the segments that ran)."""
        self._check_prompt(prompt)
        self._filled = 0
        segments: list[Segment] = []
        hidden = np.empty(0)
        for start, spec in self._segments(len(prompt)):
            rows = prompt[start : start + spec.rows]
            hidden = self._run_prefill(spec, rows)
            segments.append(Segment(spec.name, start, len(rows)))
        return hidden, tuple(segments)

    def decode(self, token: int) -> tuple[np.ndarray, ModuleSpec]:
        """Run one token behind everything so far: (its hidden state [1, H], the blocks' module that ran).

        Raises UserError when the history is full.
        """
        if self._filled >= self.options.seq_length:
            raise UserError(
                f"the history is full: {self._filled} of --seq-length {self.options.seq_length} rows"
            )
        spec = self.decode_module(self._filled)
        states = self._embed(self._one(Kind.EMBEDDING, Stage.DECODE), np.array([[token]], np.int32), 1)
        mask = np.full((1, 1, 1, spec.cache + 1), MASKED_SCORE, np.float32)
        mask[..., : self._filled] = 0
        mask[..., -1] = 0
        extra = {"position_ids": np.array([[self._filled]], np.int32), "attention_mask": mask}
        return self._run_blocks(spec, states, extra, 1)[:, -1], spec

    def head(self, hidden: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of lm_head for a hidden state [1, H]: `token_id` or `logits`, by how the program was compiled.

        The interpreter gives `logits` in any case. Raises UserError when they are not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._head(Kind.LM_HEAD).run({"hidden_states": hidden})
        if "logits" in found:
            self._require_finite(found["logits"], "lm_head")
        return found

    @property
    def filled(self) -> int:
        """Rows of history that hold data."""
        return self._filled

    def decode_module(self, filled: int) -> ModuleSpec:
        """The first layer's decode module with the smallest cache length that holds `filled` rows."""
        fitting = [spec for spec in self._first_blocks(Stage.DECODE) if spec.cache >= filled]
        return min(fitting, key=lambda spec: spec.cache)

    # -- generation ------------------------------------------------------------------------------------------------

    def _tokens(
        self, prompt: list[int], count: int, sampler: _Sampler, stop: set[int], logits: bool, watch: Watch
    ) -> Iterator[GeneratedToken]:
        self._current = current = object()
        self._watch = watch
        tokens = list(prompt)
        start, copied = time.perf_counter(), self.kv.copied_bytes
        hidden, segments = self.prefill(prompt)
        module = segments[-1].module
        for number in range(count):
            watch(Progress("blocks", self._one(Kind.LM_HEAD, Stage.BOTH).name, 0, 1))
            found = self.head(hidden)
            token = sampler(found, tokens)
            now = time.perf_counter()
            yield GeneratedToken(
                token,
                len(tokens),
                module,
                segments,
                now - start,
                self.kv.copied_bytes - copied,
                found["logits"].reshape(-1) if logits and "logits" in found else None,
            )
            tokens.append(token)
            full = self._filled >= self.options.seq_length
            if token in stop or number + 1 == count or full or self._current is not current:
                return
            start, copied, segments = time.perf_counter(), self.kv.copied_bytes, ()
            hidden, spec = self.decode(token)
            module = spec.name

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        length, vocabulary = len(prompt), self.program.config.vocab_size
        if not length:
            raise UserError("the prompt has no tokens; give at least one")
        limit = self.options.seq_length if self.options.history else self.options.max_input_length
        if length > limit:
            option = (
                "--seq-length" if self.options.history else "--max-input-length (compiled with --no-history)"
            )
            raise UserError(
                f"the prompt has {length} tokens, the program takes {limit} at most; shorten it or compile with a "
                f"larger {option}"
            )
        outside = [token for token in prompt if not 0 <= token < vocabulary]
        if outside:
            raise UserError(
                f"token id {outside[0]} is outside of the model's vocabulary, 0 to {vocabulary - 1}; is the "
                "tokenizer this model's?"
            )

    def _sampler(self, sampling: Sampling | None) -> _Sampler:
        compiled = self.options.sample
        if sampling is not None and not compiled:
            raise UserError(
                "sampling needs the program's sample head; compile with --sample, or generate greedily"
            )
        if not compiled:
            return _token_id
        vocabulary = self.program.config.vocab_size
        if sampling is not None and sampling.top_k > vocabulary:
            raise UserError(
                f"sampling: top_k {sampling.top_k} is out of range; accepted: 0 (all) to {vocabulary} (the vocabulary)"
            )
        if sampling is None or sampling.temperature == 0:
            greedy = self._head(Kind.GREEDY_HEAD)
            return lambda found, tokens: _token_id(greedy.run({"logits": found["logits"]}), tokens)
        return _CandidateSampler(self._head(Kind.SAMPLE_HEAD), sampling, self.options.seq_length)

    # -- prefill ---------------------------------------------------------------------------------------------------

    def _segments(self, length: int) -> Iterator[tuple[int, ModuleSpec]]:
        """(first row, first layer's module) of each segment of a prompt."""
        (first,) = self._first_blocks(Stage.PREFILL)
        yield 0, first
        if length > first.rows:
            (further,) = self._first_blocks(Stage.PREFILL_KV)
            for start in range(first.rows, length, further.rows):
                yield start, further

    def _run_prefill(self, spec: ModuleSpec, tokens: Sequence[int]) -> np.ndarray:
        rows, count = spec.rows, len(tokens)
        ids = np.full((1, rows), PADDING_TOKEN, np.int32)
        ids[0, :count] = tokens
        last = self.options.seq_length - 1
        extra = {"position_ids": np.minimum(self._filled + np.arange(rows, dtype=np.int32), last)[None]}
        needed = {tensor.name for tensor in spec.inputs}
        if "attention_mask" in needed:
            hidden_keys = np.triu(np.full((rows, rows), MASKED_SCORE, np.float32), k=1)
            extra["attention_mask"] = hidden_keys[None, None]
        if "history_length" in needed:
            extra["history_length"] = np.array([self._filled], np.int32)
        states = self._embed(self._one(Kind.EMBEDDING, Stage.PREFILL), ids, count)
        return self._run_blocks(spec, states, extra, count)[:, count - 1]

    # -- running modules -------------------------------------------------------------------------------------------

    def _embed(self, spec: ModuleSpec, ids: np.ndarray, rows: int) -> np.ndarray:
        states = self._executor(spec).run({"input_ids": ids})["output_states"]
        self._require_finite(states[:, :rows], "the embedding")
        return states

    def _require_finite(self, values: np.ndarray, where: str) -> None:
        """Raise NotFiniteError for NaN and infinity: what is computed from them means nothing."""
        if not np.isfinite(values).all():
            half = self.options.mode.half
            range_ = (
                "" if half == "f32" else f", or a value is beyond the range of {half}: try --quantize f32"
            )
            found = f"{self.program.config.name}: {where} computes NaN or infinity"
            raise NotFiniteError(found, f"a weight is damaged{range_}")

    def _run_blocks(
        self, first: ModuleSpec, states: np.ndarray, extra: Mapping[str, np.ndarray], rows: int
    ) -> np.ndarray:
        """All layers over new rows, of which `rows` are kept in the KV regions; the last layer's output states."""
        stack = self._stack(first)
        for number, layer in enumerate(stack):
            with np.errstate(over="ignore", invalid="ignore"):
                states = layer.executor.run({"input_states": states, **extra}, layer.regions)["output_states"]
            self._require_finite(states[:, :rows], f"layer {number}")
            self.kv.move(layer.regions, layer.slot, self._filled, rows)
            self._watch(Progress("blocks", first.name, number + 1, len(stack)))
        self._filled += rows
        return states

    def _stack(self, first: ModuleSpec) -> list[_Layer]:
        if first.name not in self._stacks:
            alike = [s for s in self.program.specs if (s.stage, s.variant) == (first.stage, first.variant)]
            by_layer = {layer: spec for spec in alike for layer in spec.layers}
            stack = []
            for layer in sorted(by_layer):
                stack.append(self._layer(by_layer[layer], layer))
                self._watch(Progress("weights", first.name, len(stack), len(by_layer)))
            self._stacks[first.name] = stack
        return self._stacks[first.name]

    def _layer(self, spec: ModuleSpec, layer: int) -> _Layer:
        snapshot = self._snapshot(spec)
        regions = self.kv.regions(spec.name, layer)
        return _Layer(
            self._execute(spec, snapshot, layer), regions, append_slot(spec, snapshot, self.program.merged)
        )

    def _head(self, kind: Kind) -> ModuleExecutor:
        return self._executor(self._one(kind, Stage.BOTH))

    def _executor(self, spec: ModuleSpec) -> ModuleExecutor:
        if spec.name not in self._heads:
            self._heads[spec.name] = self._execute(spec, self._snapshot(spec), 0)
        return self._heads[spec.name]

    def _interpret(self, spec: ModuleSpec, snapshot: Snapshot, layer: int) -> ModuleExecutor:
        outputs = [tensor.name for tensor in spec.outputs]
        return Interpreter(
            snapshot, self.prepared, layer, outputs=outputs, observe=logits_value(spec, snapshot)
        )

    def _snapshot(self, spec: ModuleSpec) -> Snapshot:
        return self.program.modules[spec.name].after(PROGRAM_PASS)

    def _first_blocks(self, stage: Stage) -> list[ModuleSpec]:
        """The modules of a stage that serve layer 0: one, or one for each decode variant."""
        return [s for s in self._blocks_of_layer_0 if s.stage is stage]

    @cached_property
    def _blocks_of_layer_0(self) -> list[ModuleSpec]:
        return [s for s in self.program.specs if s.kind is Kind.BLOCK and 0 in s.layers]

    def _one(self, kind: Kind, stage: Stage) -> ModuleSpec:
        return next(s for s in self.program.specs if s.kind is kind and s.stage is stage)


def _nobody(progress: Progress) -> None:
    """Nobody watches."""


def _require_memory(config: ModelConfig) -> None:
    """The interpreter keeps all linears in float32; an embedding that is no lm_head as well stays on disk."""
    tensors = expected_tensors(config)
    if not config.tie_word_embeddings:
        del tensors[EMBEDDING]
    needed = 4 * sum(map(prod, tensors.values()))
    present = _physical_memory()
    if needed > present:
        raise UserError(
            f"{config.name}: computing with this model takes {needed / 1e9:.0f} GB of memory for its weights in "
            f"float32, this machine has {present / 1e9:.0f} GB; everything but generating text works"
        )


def _physical_memory() -> int:
    """Bytes of main memory; no limit where the system does not say."""
    if not hasattr(os, "sysconf"):
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def append_slot(spec: ModuleSpec, snapshot: Snapshot, plan: MergePlan) -> int:
    """Row of the KV regions at which a block's addresses put its new rows. Raises CompileError when K and V differ."""
    assert plan.kv is not None
    base = ArenaLayout.of(snapshot.attributes).base[Arena.IO]
    types = dict(zip((t.name for t in spec.outputs), snapshot.ops[-1].operand_types, strict=True))
    found = set()
    for name, start in (("k_cache", plan.kv.k_offset), ("v_cache", plan.kv.v_offset)):
        address = types[name].address
        if address is None:
            raise CompileError(f"module {spec.name}: {name} has no address")
        found.add(divmod(address - base - start, plan.kv.row_bytes))
    if len(found) != 1 or next(iter(found))[1]:
        raise CompileError(
            f"module {spec.name}: new K and V rows are not appended at one row: {sorted(found)}"
        )
    return next(iter(found))[0]


def logits_value(spec: ModuleSpec, snapshot: Snapshot) -> dict[str, str]:
    """The SSA value of the logits in an lm_head that returns a token."""
    if spec.kind is not Kind.LM_HEAD or spec.outputs[0].name == "logits":
        return {}
    return {"logits": next(op.operands[0] for op in snapshot.ops if op.kind == "TopK")}


# -- sampling ------------------------------------------------------------------------------------------------------

_Sampler = Callable[[Mapping[str, np.ndarray], Sequence[int]], int]


def _token_id(found: Mapping[str, np.ndarray], tokens: Sequence[int]) -> int:
    return int(found["token_id"].reshape(-1)[0])


class _CandidateSampler:
    """Draws from the sample head's candidates with a seeded generator."""

    def __init__(self, head: ModuleExecutor, sampling: Sampling, ids: int) -> None:
        self._head, self._ids = head, ids
        self._random = np.random.default_rng(sampling.seed)
        self._fixed = {
            "penalty": np.array([sampling.penalty], np.float32),
            "temperature": np.array([sampling.temperature], np.float32),
            "top_k": np.array([sampling.top_k], np.int32),
            "top_p": np.array([sampling.top_p], np.float32),
        }

    def __call__(self, found: Mapping[str, np.ndarray], tokens: Sequence[int]) -> int:
        ids = np.full((1, self._ids), -1, np.int32)
        recent = tokens[-self._ids :]
        ids[0, : len(recent)] = recent
        candidates = self._head.run({"logits": found["logits"], "input_ids": ids, **self._fixed})
        probabilities = candidates["probabilities"][0].astype(np.float64)
        drawn = self._random.choice(len(probabilities), p=probabilities / probabilities.sum())
        return int(candidates["tokens"][0, drawn])
