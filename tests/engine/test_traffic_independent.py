"""DDR bytes of a decoded token, counted a second time from the bytes of the instructions.

Nothing of the simulator or of the instruction format's helpers is used: the records are taken apart here, field by
field, and what a command moves is counted here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pytest
from compiled import compile_here, tiny_compilation

from engine.compiler import Compilation
from engine.sim.throughput import simulate

HEADER = struct.Struct("<BBBBHHiIIiiii")
OPERAND = struct.Struct("<BBBB4i4iqd")
RECORD_BYTES = HEADER.size + 5 * OPERAND.size

GDMA = 1
GATHER = 3
LOAD, STORE, DDR_TO_DDR = 0, 1, 2
IN_DDR = 2
WIDTHS = {"f32": 4, "f16": 2, "bf16": 2, "si32": 4, "ui32": 4, "si16": 2, "ui16": 2, "si8": 1, "ui8": 1}
"""Bytes of one element, in the order of the codes that stand in a record."""
DTYPES = tuple(WIDTHS)

SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
VENDOR_BLOCK = 2_376_078 + 36_096 + 2 * 256
"""What TPU-MLIR's block_cache_0 moves (W4BF16, S 512): loads, stores, DDR to DDR."""
VENDOR_LM_HEAD = 56_722_560 + 294_912


@dataclass(frozen=True)
class Operand:
    space: int
    dtype: str
    arena: int
    shape: tuple[int, ...]
    address: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * WIDTHS[self.dtype]


@dataclass(frozen=True)
class Command:
    """One command of the DMA engine. sources, result: what it names, where a command has it."""

    opcode: int
    direction: int
    result: Operand
    sources: tuple[Operand, ...]

    @property
    def ddr_bytes(self) -> int:
        """Bytes over the DDR bus: both ways for a copy inside DDR."""
        rows = self.result.nbytes if self.opcode == GATHER else self.sources[0].nbytes
        if self.direction == LOAD:
            assert self.sources[0].space == IN_DDR
            return rows
        if self.direction == STORE:
            assert self.result.space == IN_DDR
            return self.result.nbytes
        assert self.sources[0].space == self.result.space == IN_DDR
        return 2 * self.result.nbytes


def commands(compilation: Compilation, module: str) -> Iterator[Command]:
    """The DMA commands of a module's stream that run with the whole history."""
    program = compilation.modules[module].after("codegen").report
    raw = program.tobytes()
    assert len(raw) == RECORD_BYTES * len(program)
    for start in range(0, len(raw), RECORD_BYTES):
        engine, opcode, direction, *_ = HEADER.unpack_from(raw, start)
        if engine != GDMA:
            continue
        result, *sources = (operand(raw, start + HEADER.size + number * OPERAND.size) for number in range(5))
        yield Command(opcode, direction, result, tuple(sources))


def operand(raw: bytes, start: int) -> Operand:
    space, dtype, arena, _, *numbers = OPERAND.unpack_from(raw, start)
    return Operand(space, DTYPES[dtype], arena, tuple(numbers[:4]), numbers[8])


def module_bytes(compilation: Compilation, module: str) -> int:
    """DDR bytes of one run of a module."""
    return sum(command.ddr_bytes for command in commands(compilation, module))


def token_bytes(compilation: Compilation, filled: int) -> int:
    """DDR bytes of decoding one token behind `filled` rows: every layer's block at the smallest cache length that holds
    them, its new K and V rows read at the append slot and written behind the rows, embedding and lm_head."""
    options, config = compilation.options, compilation.config
    cache = min(c for c in (options.seq_length, *options.decode_chunks) if c >= filled)
    layers: dict[int, str] = {}
    for spec in compilation.specs:
        if spec.name.startswith("block_cache_") and spec.inputs[2].type.shape[-1] == cache + 1:
            layers |= dict.fromkeys(spec.layers, spec.name)
    assert sorted(layers) == list(range(config.layers))
    row = config.kv_heads * config.head_dim * WIDTHS[options.mode.half]
    copied = 2 * 2 * row if cache != filled else 0
    blocks = sum(module_bytes(compilation, name) + copied for name in layers.values())
    return blocks + module_bytes(compilation, "embedding_cache") + module_bytes(compilation, "lm_head")


@pytest.mark.parametrize("quantize", ["f32", "bf16", "w8f16", "w4bf16"])
@pytest.mark.parametrize(("prompt", "count"), [(10, 20), (1, 1), (40, 24), (63, 1)])
def test_decode_bytes_equal_the_sum_over_the_instructions(quantize: str, prompt: int, count: int) -> None:
    # GIVEN a program with two decode variants, and tokens that are decoded by several of them
    compilation = tiny_compilation("qwen2", quantize)
    filled = range(prompt, prompt + count)
    # WHEN decoding is simulated THEN it moves what the emitted instructions and the runtime's row copies move
    simulated = simulate(compilation, prompt_length=prompt, generate=1 + count).decode
    counted = sum(token_bytes(compilation, rows) for rows in filled)
    assert simulated.ddr_bytes_per_token == pytest.approx(counted / count, rel=1e-12)
    assert sum(simulated.breakdown.values()) == pytest.approx(counted / count, rel=1e-12)


def test_module_bytes_equal_the_sum_over_the_instructions() -> None:
    compilation = tiny_compilation("qwen2", "w4bf16")
    simulation = simulate(compilation)
    for spec in compilation.specs:
        cost = simulation.module(spec.name)
        assert cost.ddr_read_bytes + cost.ddr_write_bytes == module_bytes(compilation, spec.name), spec.name


def test_smollm2_moves_what_the_vendor_s_program_moves(tmp_path: Path) -> None:
    # GIVEN the architecture of SmolLM2-135M, W4BF16, S 512 (a config is enough: no number of a weight is looked at)
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    compilation = compile_here(
        tmp_path, quantize="w4bf16", seq_length=512, max_input_length=300, history=False
    )
    # WHEN tokens are decoded behind 300 THEN a token moves 129.4 MB, as the vendor's 30 blocks and lm_head do
    found = simulate(compilation, prompt_length=300, generate=100).decode.ddr_bytes_per_token
    assert found == token_bytes(compilation, 300)
    assert found == pytest.approx(30 * VENDOR_BLOCK + VENDOR_LM_HEAD, rel=0.05)
    assert found == pytest.approx(129.4e6, rel=0.05)
