"""How many instructions a block will take, reckoned from its sizes before anything is compiled.

Attention over history takes instructions in proportion to L x S. Lengths that the model allows can ask for programs
that no machine holds, and they are refused here, in no time, instead of after minutes of work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from engine.errors import UserError
from engine.options import CompileOptions
from engine.stages import Kind, ModuleSpec, Stage
from engine.top.checkpoint.config import ModelConfig
from engine.top.checkpoint.layout import block_tensors
from engine.tpu.attention_blocks import AttentionShape, attention_blocks
from engine.tpu.emit import LARGEST_PROGRAM, ceil_div
from engine.tpu.isa import INSTRUCTION, dtype_bytes

PLANNED_PROGRAM = LARGEST_PROGRAM * 5 // 6
"""Most instructions that a module may be planned to take; the rest up to LARGEST_PROGRAM is for what the estimate
misses."""

_TILE, _KEY_BLOCK = 8, 41
"""Instructions of the attention kernel for a query tile and for a key block, without those for each head."""
_PRODUCTS, _SPLIT_PRODUCTS = 2, 6
"""For each head of a key block: two products, and in f32 the transposes around them."""
_MACS_PER_LOCAL_BYTE = 0.65
"""Multiply-adds of one instruction of a quantised linear, by bytes of all local memory: what its tiles come to. The
products of other modes take fewer instructions."""


def estimated_instructions(spec: ModuleSpec, config: ModelConfig, options: CompileOptions) -> int:
    """About how many instructions a prefill block takes (within some percent); 0 for other modules, which take few."""
    if spec.kind is not Kind.BLOCK or spec.stage is Stage.DECODE:
        return 0
    return _attention_instructions(spec, config, options) + _linear_instructions(spec, config, options)


def _attention_instructions(spec: ModuleSpec, config: ModelConfig, options: CompileOptions) -> int:
    width = dtype_bytes(options.mode.half)
    full_mask = spec.stage is Stage.PREFILL and options.prefill_mask == "full"
    # under the small mask cores share query tiles and not heads
    cores = min(options.cores, config.kv_heads) if full_mask else 1
    kv_heads = ceil_div(config.kv_heads, cores)
    shape = AttentionShape(
        queries=spec.rows,
        keys=spec.cache + spec.rows,
        dim=config.head_dim,
        heads=kv_heads * (config.heads // config.kv_heads),
        kv_heads=kv_heads,
        mask_size=0 if full_mask else options.chip.mask_size,
        element_bytes=width,
        mask_bytes=width if full_mask else 4,
        split_history=spec.stage is Stage.PREFILL_KV,
    )
    try:
        blocks = attention_blocks(options.chip, shape)
    except UserError:
        # the pass that meets it says which op
        return 0
    ends = [min(first + blocks.rows, spec.rows) for first in range(0, spec.rows, blocks.rows)]
    history = ceil_div(spec.cache, blocks.keys)
    key_blocks = sum(history + ceil_div(spec.rows if full_mask else end, blocks.keys) for end in ends)
    products = blocks.heads * (_PRODUCTS if width < 4 else _SPLIT_PRODUCTS)
    groups = cores * ceil_div(kv_heads, blocks.kv_heads)
    return groups * (len(ends) * _TILE + key_blocks * (_KEY_BLOCK + products))


def _linear_instructions(spec: ModuleSpec, config: ModelConfig, options: CompileOptions) -> int:
    weights = sum(prod(shape) for shape in block_tensors(config).values() if len(shape) == 2)
    local_bytes = options.chip.lanes * options.chip.lmem_bytes
    return round(spec.rows * weights / (_MACS_PER_LOCAL_BYTE * local_bytes))


def require_program_size(
    specs: Sequence[ModuleSpec],
    config: ModelConfig,
    options: CompileOptions,
    plan_for: Callable[[int], Sequence[ModuleSpec]],
) -> None:
    """Refuse modules that would take too many instructions. plan_for: the modules at another L.

    Raises UserError with the largest module, what it needs, what is accepted, and the largest L below that fits.
    """
    needed, largest = max(
        ((estimated_instructions(spec, config, options), spec) for spec in specs),
        key=lambda found: found[0],
        default=(0, None),
    )
    if largest is None or needed <= PLANNED_PROGRAM:
        return

    def fits(rows: int) -> bool:
        return all(estimated_instructions(s, config, options) <= PLANNED_PROGRAM for s in plan_for(rows))

    behind = f" behind {largest.cache:,} rows of history" if largest.cache else ""
    record_bytes = PLANNED_PROGRAM * INSTRUCTION.itemsize
    raise UserError(
        f"{largest.name} would take about {_rounded(needed):,} instructions for {largest.rows:,} rows{behind}; "
        f"accepted: {PLANNED_PROGRAM:,} a module ({record_bytes / 1e9:.2g} GB); {_way_out(options, fits)}"
    )


def _way_out(options: CompileOptions, fits: Callable[[int], bool]) -> str:
    """Which L to choose instead."""
    rows = _largest_fitting(options.max_input_length, fits)
    if not rows:
        return "choose a smaller --seq-length: at this one not even --max-input-length 1 fits"
    default = options.seq_length // 4 if options.history else options.seq_length
    was = (
        f" (the default is {'a quarter of ' if options.history else ''}--seq-length)"
        if options.max_input_length == default
        else ""
    )
    return f"--max-input-length {rows} fits{was}"


def _largest_fitting(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest L below `limit` that fits, of those that fill tiles (multiples of 64) where one of them does; 0 for
    none."""
    step = 64 if fits(min(64, limit)) else 1
    low, high = 0, ceil_div(limit, step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step


def _rounded(number: int) -> int:
    """Three significant digits: it is an estimate."""
    step: int = 10 ** max(0, len(str(number)) - 3)
    return round(number / step) * step
