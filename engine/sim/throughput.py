"""What a compiled program costs on its chip: cycles and DDR traffic by module and op, time to first token, tokens/s.

simulation = simulate(compilation, prompt_length=300, generate=100)
simulation.decode.tokens_per_s, simulation.to_json()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from engine.errors import CompileError, UserError
from engine.merge import placed_weights
from engine.sim.program import Program
from engine.sim.timing import Bound, ModuleTiming, time_module
from engine.snapshot import Snapshot
from engine.stages import Kind, ModuleSpec, Stage
from engine.tpu.cost import cycles
from engine.tpu.isa import Arena, Direction, Global, Opcode, Space, Stream, contiguous, moved_bytes

PROGRAM_PASS = "codegen"
"""The pass whose snapshot holds the program."""

CATEGORIES = ("weights", "lm_head", "kv_cache", "state", "activations", "other")
"""Where DDR bytes go. weights: checkpoint tensors; lm_head: all that this module moves; kv_cache: the KV regions, with
the rows that the runtime moves inside them; other: computed tables (RoPE, causal mask)."""


# -- what comes out ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpCost:
    """One op of a module in one layer. index: of its record. cycles: what it adds to the module's time.

    group: number of the layer group that it is in, from 0; None outside of groups. under: index of the op in whose time
    it runs when it adds nothing.
    """

    index: int
    name: str
    location: str
    cycles: int
    ddr_read_bytes: int
    ddr_write_bytes: int
    bound: Bound
    group: int | None = None
    under: int | None = None


@dataclass(frozen=True)
class ModuleCost:
    """One run of a module in one of its `layers`. history: rows that a prefill_kv module reads, None for all.

    tiu_busy_cycles, gdma_busy_cycles: summed over cores.
    """

    name: str
    stage: Stage
    layers: tuple[int, ...]
    history: int | None
    cycles: int
    ddr_read_bytes: int
    ddr_write_bytes: int
    tiu_busy_cycles: int
    gdma_busy_cycles: int
    ops: tuple[OpCost, ...]


@dataclass(frozen=True)
class PrefillCost:
    """A part of a prompt: its tokens, the rows of history before the last of its segments, seconds."""

    tokens: int
    history: int
    seconds: float


@dataclass(frozen=True)
class DecodeCost:
    """Mean over decoded tokens; where none is decoded, because the prompt gives the only token, that of the next one.

    tokens: that are decoded. history: rows before the first of them. breakdown: bytes per token by CATEGORIES.
    utilisation: fractions of the peak bandwidth, counting the file's size once per token (paper) or the bytes that are
    moved (traffic). steps: tokens by the number of the decode variant that they ran in. moved_rows_bytes,
    moved_rows_cycles: of a token, the part with which the runtime moves the new K and V rows behind the history; no
    module's.
    """

    tokens: int
    history: int
    tokens_per_s: float
    ddr_bytes_per_token: float
    breakdown: Mapping[str, float]
    utilisation_paper: float
    utilisation_traffic: float
    steps: Mapping[int, int]
    moved_rows_bytes: float
    moved_rows_cycles: float


@dataclass(frozen=True)
class Simulation:
    """The cost of a program; see `simulate`."""

    chip: str
    quantize: str
    seq_length: int
    modules: tuple[ModuleCost, ...]
    prefill: PrefillCost
    prefill_kv: PrefillCost
    decode: DecodeCost

    @property
    def time_to_first_token(self) -> float:
        """Seconds of all of the prompt's segments."""
        return self.prefill.seconds + self.prefill_kv.seconds

    def module(self, name: str) -> ModuleCost:
        """The module compiled under this name. Raises KeyError when there is none."""
        return next((m for m in self.modules if m.name == name), None) or _no_module(name)

    def to_json(self) -> dict[str, Any]:
        """Plain values: bytes, cycles (of engines: summed over cores), seconds."""
        decode = self.decode
        return {
            "chip": self.chip,
            "quantize": self.quantize,
            "seq_length": self.seq_length,
            "modules": [_module_json(module) for module in self.modules],
            "prefill": {"tokens": self.prefill.tokens, "seconds": self.prefill.seconds},
            "prefill_kv": {
                "tokens": self.prefill_kv.tokens,
                "history": self.prefill_kv.history,
                "seconds": self.prefill_kv.seconds,
            },
            "decode": {
                "tokens": decode.tokens,
                "history": decode.history,
                "tokens_per_s": decode.tokens_per_s,
                "ddr_bytes_per_token": decode.ddr_bytes_per_token,
                "breakdown": {name: decode.breakdown[name] for name in CATEGORIES},
                "bandwidth_utilisation": {
                    "paper": decode.utilisation_paper,
                    "traffic": decode.utilisation_traffic,
                },
            },
        }


def _no_module(name: str) -> ModuleCost:
    raise KeyError(f"no module {name!r}")


def _module_json(module: ModuleCost) -> dict[str, Any]:
    """A module that serves one layer names it in its locations; what several layers share keeps the placeholder."""
    layer = str(module.layers[0]) if len(module.layers) == 1 else "{i}"
    return {
        "name": module.name,
        "stage": str(module.stage),
        "layers": list(module.layers),
        "cycles": module.cycles,
        "ddr_read_bytes": module.ddr_read_bytes,
        "ddr_write_bytes": module.ddr_write_bytes,
        "tiu_busy_cycles": module.tiu_busy_cycles,
        "gdma_busy_cycles": module.gdma_busy_cycles,
        "ops": [
            {
                "name": op.name,
                "location": op.location.replace("{i}", layer),
                "cycles": op.cycles,
                "ddr_read_bytes": op.ddr_read_bytes,
                "ddr_write_bytes": op.ddr_write_bytes,
                "bound": op.bound,
                "group": op.group,
            }
            for op in module.ops
        ],
    }


# -- what people call ----------------------------------------------------------------------------------------------


def simulate(
    program: Program,
    *,
    prompt_length: int | None = None,
    generate: int | None = None,
    file_bytes: int | None = None,
) -> Simulation:
    """Run the program's instruction streams on the two engines of its chip.

    prompt_length: P tokens, prefilled by segments. generate: N new tokens (default: as many as fit, S - P + 1), as
    `run` counts them: the prefill gives the first, the other N - 1 are decoded, each by the smallest variant that holds
    the rows before it. Without a prompt length the lengths are the compiled ones: a prefill of L tokens, a prefill_kv
    of L tokens behind S rows, and decoding up to S rows (default: the last token), as a static program runs.
    file_bytes: size of the deployable file (default: of the coefficients). Raises UserError for lengths that do not
    fit.
    """
    return Simulator(program, file_bytes).simulate(prompt_length, generate)


def tokens_per_second_curve(program: Program, lengths: Iterable[int]) -> list[tuple[int, float]]:
    """(rows of history, decode tokens/s) for each length from 0 to S - 1; see `Simulator.tokens_per_second`."""
    simulator = Simulator(program)
    return [(length, simulator.tokens_per_second(length)) for length in lengths]


@dataclass(frozen=True)
class _Cost:
    """Cycles and bytes by category of a sequence of module runs."""

    cycles: int = 0
    traffic: tuple[tuple[str, int], ...] = ()

    @property
    def moved(self) -> Counter[str]:
        return Counter(dict(self.traffic))

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(self.cycles + other.cycles, tuple((self.moved + other.moved).items()))

    def __mul__(self, times: int) -> _Cost:
        return _Cost(self.cycles * times, tuple((name, count * times) for name, count in self.traffic))


class Simulator:
    """Costs of one program; a module's stream is priced once for each history length and kept."""

    def __init__(self, program: Program, file_bytes: int | None = None) -> None:
        self.program = program
        self.options = program.options
        self.chip = program.options.chip
        self._file_bytes = file_bytes
        self._timings: dict[tuple[str, int | None], ModuleTiming] = {}
        self._costs: dict[tuple[str, int | None], _Cost] = {}

    # -- results ---------------------------------------------------------------------------------------------------

    def simulate(self, prompt_length: int | None = None, generate: int | None = None) -> Simulation:
        """See `simulate`."""
        rows, length = self.options.max_input_length, self.options.seq_length
        if prompt_length is None:
            prompt = rows
            further = [(length, rows)] if self.options.history else []
        else:
            prompt = prompt_length
            self._check_prompt(prompt)
            further = [(start, min(rows, prompt - start)) for start in range(rows, prompt, rows)]
        tokens, filled = self._filled(prompt_length, generate)
        prefill = self._prefill_cost(ends=prompt_length is None or not further)
        prefill_kv = self._prefill_kv_cost(further, moves=prompt_length is not None)
        history = further[-1][0] if further else 0
        last_history = history if prompt_length is not None and further else None
        return Simulation(
            chip=self.chip.name,
            quantize=self.options.quantize,
            seq_length=length,
            modules=tuple(
                self.module_cost(spec, self._history(spec, last_history)) for spec in self.program.specs
            ),
            prefill=PrefillCost(min(prompt, rows), 0, self._seconds(prefill)),
            prefill_kv=PrefillCost(sum(n for _, n in further), history, self._seconds(prefill_kv)),
            decode=self._decode_cost(tokens, filled),
        )

    def module_cost(self, spec: ModuleSpec, history: int | None = None) -> ModuleCost:
        """Cycles and bytes of one run of a module and of its ops."""
        timing = self.timing(spec, history)
        records = self._snapshot(spec).ops
        parents = dict.fromkeys(record.parent for record in records if record.parent is not None)
        groups = {parent: number for number, parent in enumerate(parents)}
        return ModuleCost(
            spec.name,
            spec.stage,
            spec.layers,
            history,
            timing.total_cycles,
            timing.ddr_read_bytes,
            timing.ddr_write_bytes,
            timing.tiu_busy_cycles,
            timing.gdma_busy_cycles,
            tuple(
                OpCost(
                    op.op,
                    records[op.op].name,
                    records[op.op].location,
                    op.cycles,
                    op.ddr_read_bytes,
                    op.ddr_write_bytes,
                    op.bound,
                    None if (parent := records[op.op].parent) is None else groups[parent],
                    op.under,
                )
                for op in timing.ops
            ),
        )

    def timing(self, spec: ModuleSpec, history: int | None = None) -> ModuleTiming:
        """The schedule of a module's stream; history: rows that a prefill_kv module reads, None for all."""
        key = spec.name, history
        if key not in self._timings:
            self._timings[key] = time_module(self._stream(spec), self.chip, history)
        return self._timings[key]

    def tokens_per_second(self, filled: int) -> float:
        """Speed of decoding the token behind `filled` rows of history (0 to S - 1)."""
        if not 0 <= filled < self.options.seq_length:
            raise UserError(f"{filled} rows of history do not fit --seq-length {self.options.seq_length}")
        variant = self._variant(filled)
        cost = self._decoded(variant.variant) + self._moved_rows(variant.cache, filled, 1)
        return 1 / self._seconds(cost)

    # -- stages ----------------------------------------------------------------------------------------------------

    def _prefill_cost(self, *, ends: bool) -> _Cost:
        """The first segment, and lm_head when it `ends` the prompt."""
        cost = self._run(self._head(Kind.EMBEDDING, Stage.PREFILL)) + self._blocks(Stage.PREFILL)
        return cost + self._lm_head if ends else cost

    def _prefill_kv_cost(self, segments: Sequence[tuple[int, int]], *, moves: bool) -> _Cost:
        """(history, rows) of each further segment, and lm_head behind the last."""
        cost = _Cost()
        for history, rows in segments:
            cost += self._run(self._head(Kind.EMBEDDING, Stage.PREFILL))
            cost += self._blocks(Stage.PREFILL_KV, history=history)
            if moves:
                cost += self._moved_rows(self.options.seq_length, history, rows)
        return cost + self._lm_head if segments else cost

    def _moves(self, filled: Iterable[int]) -> Counter[_Cost]:
        """What the runtime's copies of one token's rows cost behind each number of rows."""
        return Counter(self._moved_rows(self._variant(rows).cache, rows, 1) for rows in filled)

    def _variant(self, filled: int) -> ModuleSpec:
        """The decode block of layer 0 that runs behind `filled` rows."""
        return min((s for s in self._decode_blocks if s.cache >= filled), key=lambda s: s.cache)

    def _decoded(self, variant: int) -> _Cost:
        embedded = self._run(self._head(Kind.EMBEDDING, Stage.DECODE))
        return embedded + self._blocks(Stage.DECODE, variant) + self._lm_head

    def _decode_cost(self, tokens: int, filled: Sequence[int]) -> DecodeCost:
        """The mean behind numbers of rows. tokens: that are decoded."""
        steps = Counter(self._variant(rows).variant for rows in filled)
        moves = sum((move * times for move, times in self._moves(filled).items()), _Cost())
        total = sum((self._decoded(variant) * times for variant, times in steps.items()), moves)
        count = len(filled)
        moved = {name: total.moved[name] / count for name in CATEGORIES}
        per_token = sum(moved.values())
        speed = count / self._seconds(total)
        peak = self.options.ddr_bandwidth
        return DecodeCost(
            tokens,
            filled[0],
            speed,
            per_token,
            moved,
            speed * self.file_bytes / peak,
            speed * per_token / peak,
            steps,
            moves.moved.total() / count,
            moves.cycles / count,
        )

    @cached_property
    def file_bytes(self) -> int:
        """Size of the deployable file, or of all coefficients where it is not known."""
        if self._file_bytes is not None:
            return self._file_bytes
        sizes: dict[int, int] = {}
        for spec in self.program.specs:
            attributes = self._snapshot(spec).attributes
            for layer in spec.layers or (0,):
                base = self.program.merged.bases[spec.name, layer].coeff
                sizes[base] = max(sizes.get(base, 0), int(attributes["coeff_size"]))
        return sum(sizes.values())

    # -- module runs -----------------------------------------------------------------------------------------------

    def _blocks(self, stage: Stage, variant: int = 0, history: int | None = None) -> _Cost:
        alike = [
            s for s in self.program.specs if s.kind is Kind.BLOCK and (s.stage, s.variant) == (stage, variant)
        ]
        return sum((self._run(spec, history) * len(spec.layers) for spec in alike), _Cost())

    def _run(self, spec: ModuleSpec, history: int | None = None) -> _Cost:
        """One run of a module in one layer."""
        key = spec.name, history
        if key not in self._costs:
            timing = self.timing(spec, history)
            moved = self._traffic(spec, self._stream(spec)[timing.instructions])
            self._costs[key] = _Cost(timing.total_cycles, tuple(moved.items()))
        return self._costs[key]

    @cached_property
    def _lm_head(self) -> _Cost:
        return self._run(self._head(Kind.LM_HEAD, Stage.BOTH))

    def _moved_rows(self, source: int, target: int, rows: int) -> _Cost:
        """The runtime's copy of new K and V rows, in all layers, from the append slot to the first free row."""
        region = self.program.merged.kv
        if region is None or source == target:
            return _Cost()
        layers = sum(
            len(s.layers) for s in self.program.specs if s.kind is Kind.BLOCK and s.stage is Stage.PREFILL
        )
        dtype = self.options.mode.half
        shape = (1, 1, rows, region.row_bytes // (2 if dtype != "f32" else 4))
        stream = Stream()
        for start in (region.k_offset, region.v_offset):
            new, free = (
                Global(Arena.IO, start + row * region.row_bytes, dtype, shape, contiguous(shape))
                for row in (source, target)
            )
            stream.append(Opcode.TENSOR, free, (new,), op=0, wait=0, direction=Direction.DDR_TO_DDR)
        program = stream.program()
        moved = 2 * int(moved_bytes(program).sum())
        return _Cost(int(cycles(program, self.chip).sum()), (("kv_cache", moved),)) * layers

    def _traffic(self, spec: ModuleSpec, program: np.ndarray) -> Counter[str]:
        """Bytes read and written in DDR by category."""
        sides = (
            (program["operands"][:, 0], (Direction.LOAD, Direction.DDR_TO_DDR)),
            (program["result"], (Direction.STORE, Direction.DDR_TO_DDR)),
        )
        moved = moved_bytes(program)
        found: Counter[str] = Counter()
        for operand, directions in sides:
            counted = np.isin(program["direction"], directions) & (operand["space"] == Space.DDR)
            category = self._category(spec, operand[counted])
            sums = np.bincount(category, weights=moved[counted], minlength=len(CATEGORIES))
            found.update({name: int(count) for name, count in zip(CATEGORIES, sums, strict=True)})
        return found

    def _category(self, spec: ModuleSpec, operand: np.ndarray) -> np.ndarray:
        """Number in CATEGORIES of each DDR operand, by arena and offset."""
        number = {name: index for index, name in enumerate(CATEGORIES)}
        if spec.kind is Kind.LM_HEAD:
            return np.full(len(operand), number["lm_head"])
        offset, arena = operand["address"], operand["arena"]
        category = np.full(len(operand), number["activations"])
        category[arena == Arena.COEFF] = number["weights"]
        for start, end in self._computed_weights(spec):
            category[(arena == Arena.COEFF) & (start <= offset) & (offset < end)] = number["other"]
        region = self.program.merged.kv
        if region is not None and spec.kind is Kind.BLOCK:
            category[(arena == Arena.IO) & (offset < region.nbytes)] = number["kv_cache"]
        return category

    def _computed_weights(self, spec: ModuleSpec) -> list[tuple[int, int]]:
        """Spans in the coeff arena of weights that no checkpoint stores."""
        return [
            (weight.offset, weight.offset + weight.reference.type.nbytes)
            for weight in placed_weights(self._snapshot(spec))
            if all(name.startswith("@") for name in weight.reference.tensors)
        ]

    # -- looking things up -----------------------------------------------------------------------------------------

    def _check_prompt(self, prompt: int) -> None:
        options = self.options
        limit = options.seq_length if options.history else options.max_input_length
        if not 1 <= prompt <= limit:
            name = "--seq-length" if options.history else "--max-input-length (compiled with --no-history)"
            raise UserError(f"a prompt of {prompt} tokens does not fit; accepted: 1 to {limit} ({name})")

    def _filled(self, prompt_length: int | None, generate: int | None) -> tuple[int, Sequence[int]]:
        """(tokens that are decoded, rows of history before each), or, where none is, the rows that are priced."""
        length = self.options.seq_length
        if prompt_length is None:
            # up to a full history; the last token stands for all when nothing else is asked for
            most, new = length, 2 if generate is None else generate
            first = max(0, length - new + 1)
        else:
            most = length - prompt_length + 1
            new, first = most if generate is None else generate, prompt_length
        if generate is not None and not 1 <= generate <= most:
            raise UserError(
                f"{generate} new tokens do not fit; accepted: 1 to {most} (--seq-length {length}; the first one comes "
                "from the prefill)"
            )
        first = min(first, length - 1)
        return new - 1, range(first, first + max(1, new - 1))

    @staticmethod
    def _history(spec: ModuleSpec, history: int | None) -> int | None:
        return history if spec.stage is Stage.PREFILL_KV else None

    @cached_property
    def _decode_blocks(self) -> list[ModuleSpec]:
        return [
            s
            for s in self.program.specs
            if s.kind is Kind.BLOCK and s.stage is Stage.DECODE and 0 in s.layers
        ]

    def _head(self, kind: Kind, stage: Stage) -> ModuleSpec:
        return next(s for s in self.program.specs if s.kind is kind and s.stage is stage)

    def _snapshot(self, spec: ModuleSpec) -> Snapshot:
        return self.program.modules[spec.name].after(PROGRAM_PASS)

    def _stream(self, spec: ModuleSpec) -> np.ndarray:
        program = self._snapshot(spec).report
        if not isinstance(program, np.ndarray):
            raise CompileError(f"module {spec.name} has no instructions", spec.name, PROGRAM_PASS)
        return program

    def _seconds(self, cost: _Cost) -> float:
        return cost.cycles / self.chip.clock_hz
