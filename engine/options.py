"""What the user asks the compiler for: defaults and validation, once, here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from engine.errors import UserError
from engine.tpu.chip import Chip, chip

MODES = ("f32", "f16", "bf16", "w8f16", "w8bf16", "w4f16", "w4bf16")
"""Accepted `--quantize` values beside `auto`."""

PREFILL_MASKS = ("small", "full")

LARGEST_GROUP = 4096
"""Most weights that share a scale."""

SEARCHES = (1, 2, 3)
"""Accepted `--opt` values: greedy, dynamic programming, exact on small chains."""

_FORCED = re.compile(r"([a-z][a-z0-9_]*):(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class QuantizeMode:
    """A quantisation mode taken apart: activations (and unquantised weights) in `half`, linears in `weight_bits`."""

    name: str
    half: str
    weight_bits: int
    """4 or 8; 0 when weights stay in `half`."""

    @classmethod
    def of(cls, name: str) -> QuantizeMode:
        """Take a mode's name apart. Raises UserError for an unknown name."""
        if name not in MODES:
            raise UserError(f"--quantize {name!r} is unknown; accepted: auto, {', '.join(MODES)}")
        if name[0] == "w":
            return cls(name, name[2:], int(name[1]))
        return cls(name, name, 0)


@dataclass(frozen=True)
class CompileOptions:
    """Resolved options: no `auto`, no missing value. Make one with `resolve`.

    seq_length: S, rows of history. max_input_length: L, rows of one prefill. decode_chunks: cache lengths of the decode
    variants, largest first, all below S. history: prefill_kv modules exist. layer_group: ops are put into layer groups;
    opt: how they are searched for (SEARCHES); force_group: groups wanted in any case, each `MODULE:a..b` with the first
    and last index of its ops in the module's records. fuse_weights: groups may hold quantised products, whose weights
    come tile by tile.
    """

    chip_name: str
    quantize: str
    seq_length: int
    max_input_length: int
    decode_chunks: tuple[int, ...]
    history: bool = True
    q_group_size: int = 64
    symmetric: bool = False
    prefill_mask: str = "small"
    sample: bool = False
    batch: int = 1
    cores: int = 1
    opt: int = 2
    layer_group: bool = True
    force_group: tuple[str, ...] = ()
    fuse_weights: bool = False

    def forced_groups(self, modules: Collection[str]) -> list[tuple[int, int]]:
        """(first, last) op of each forced group of a module that goes by these names."""
        found = [_forced_group(text) for text in self.force_group]
        return [(first, last) for module, first, last in found if module in modules]

    @property
    def chip(self) -> Chip:
        """The chip's table entry."""
        return chip(self.chip_name)

    @property
    def ddr_bandwidth(self) -> float:
        """Bytes/s that the program's cores move at the most, each as if it were alone."""
        return self.chip.ddr_bandwidth * self.cores

    @property
    def mode(self) -> QuantizeMode:
        """The quantisation mode taken apart."""
        return QuantizeMode.of(self.quantize)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as stored in a deployable file."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CompileOptions:
        """Inverse of `to_dict`."""
        chunks, forced = values["decode_chunks"], values.get("force_group", ())
        return cls(**{**values, "decode_chunks": tuple(chunks), "force_group": tuple(forced)})


def resolve(
    *,
    max_positions: int,
    stored_dtype: str,
    chip_name: str = "bm1684x",
    quantize: str = "auto",
    q_group_size: int = 64,
    symmetric: bool = False,
    seq_length: int | None = None,
    history: bool = True,
    max_input_length: int | None = None,
    decode_chunks: Sequence[int] | None = None,
    prefill_mask: str = "small",
    sample: bool = False,
    batch: int = 1,
    cores: int = 1,
    opt: int = 2,
    layer_group: bool = True,
    force_group: Sequence[str] = (),
    fuse_weights: bool = False,
) -> CompileOptions:
    """Fill in defaults for a model and check everything.

    max_positions: the model's maximum length. stored_dtype: dtype of the checkpoint's weights (f32, f16, bf16), which
    decides the half type of `auto`. Defaults: S = min(2048, maximum); L = S / 4 with history, S without; decode chunks
    L, 2L, 4L, ... below S with history, none without. Raises UserError naming option, value and what is accepted.
    """
    limits = chip(chip_name)
    if quantize == "auto":
        quantize = "w4f16" if stored_dtype == "f16" else "w4bf16"
    QuantizeMode.of(quantize)
    length = min(2048, max_positions) if seq_length is None else seq_length
    _in_range("--seq-length", length, 1, max_positions, "the model's maximum number of positions")
    default_input = max(1, length // 4) if history else length
    rows = default_input if max_input_length is None else max_input_length
    _in_range("--max-input-length", rows, 1, length, "--seq-length")
    if q_group_size % 8 or not 8 <= q_group_size <= LARGEST_GROUP:
        raise UserError(
            f"--q-group-size {q_group_size} is not accepted; accepted: multiples of 8 from 8 to {LARGEST_GROUP}"
        )
    if prefill_mask not in PREFILL_MASKS:
        raise UserError(f"--prefill-mask {prefill_mask!r} is unknown; accepted: {', '.join(PREFILL_MASKS)}")
    if batch != 1:
        raise UserError(f"--batch {batch} is not supported yet; only --batch 1 is")
    _in_range("--cores", cores, 1, limits.cores, f"the cores of {chip_name}")
    if opt not in SEARCHES:
        raise UserError(f"--opt {opt} is unknown; accepted: {', '.join(map(str, SEARCHES))}")
    if force_group and not layer_group:
        raise UserError("--force-group needs layer groups; leave out --no-layer-group")
    if fuse_weights and not layer_group:
        raise UserError("--fuse-weights needs layer groups; leave out --no-layer-group")
    if fuse_weights and cores > 1:
        raise UserError(f"--fuse-weights runs on one core; leave out --cores {cores} or --fuse-weights")
    for text in force_group:
        _forced_group(text)
    return CompileOptions(
        chip_name=chip_name,
        quantize=quantize,
        seq_length=length,
        max_input_length=rows,
        decode_chunks=_chunks(decode_chunks, rows, length, history),
        history=history,
        q_group_size=q_group_size,
        symmetric=symmetric,
        prefill_mask=prefill_mask,
        sample=sample,
        batch=batch,
        cores=cores,
        opt=opt,
        layer_group=layer_group,
        force_group=tuple(force_group),
        fuse_weights=fuse_weights,
    )


def _forced_group(text: str) -> tuple[str, int, int]:
    """(module, first op, last op). Raises UserError for anything but MODULE:a..b with a below b."""
    match = _FORCED.fullmatch(text)
    if match is None or int(match[2]) >= int(match[3]):
        raise UserError(
            f"--force-group {text!r} is not a group; accepted: MODULE:a..b with a below b, such as block_0:12..15"
        )
    return match[1], int(match[2]), int(match[3])


def _chunks(given: Sequence[int] | None, rows: int, length: int, history: bool) -> tuple[int, ...]:
    if given is None:
        found = []
        size = rows
        while history and size < length:
            found.append(size)
            size *= 2
        return tuple(reversed(found))
    for size in given:
        _in_range("--decode-chunks", size, 1, length - 1, "--seq-length minus 1")
    if len(set(given)) != len(given):
        raise UserError(f"--decode-chunks {','.join(map(str, given))} lists a length twice")
    return tuple(sorted(given, reverse=True))


def _in_range(option: str, value: int, low: int, high: int, what: str) -> None:
    if not low <= value <= high:
        raise UserError(f"{option} {value} is out of range; accepted: {low} to {high} ({what})")
