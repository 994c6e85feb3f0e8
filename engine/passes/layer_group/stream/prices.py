"""What runs, loads and stores of a streamed group cost on one chip: by emitting and pricing their instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.passes.layer_group.cost import structure
from engine.passes.layer_group.stream.moves import Part, Role, load, store
from engine.passes.layer_group.stream.pieces import Operands, Piece, emit_run, scratch_bytes
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip
from engine.tpu.cost import cycles
from engine.tpu.emit import Emitter
from engine.tpu.isa import Arena

_ARENA = {Arena.NEURON: (0, 1 << 48)}
_BEHIND = 1 << 40
"""An address of scratch behind everything else."""


@dataclass
class StreamPrices:
    """Cycles, and bytes of scratch, each found once for pieces of one size."""

    chip: Chip
    _known: dict[Any, int] = field(default_factory=dict)

    def run(self, record: OpRecord, operands: Operands, result: Piece) -> int:
        """Cycles of one run of an op."""
        key = ("run", *_key(record, operands.pieces, result), operands.first)
        return self._look_up(key, lambda emit: emit_run(record, emit, operands, result, _BEHIND))

    def scratch(self, record: OpRecord, pieces: tuple[Piece, ...], result: Piece) -> int:
        """Bytes per lane that a run needs beside operands and result."""
        key = ("scratch", *_key(record, pieces, result))
        if key not in self._known:
            self._known[key] = scratch_bytes(record, self.chip, pieces, result)
        return self._known[key]

    def load(self, type_: TensorType, role: Role, part: Part) -> int:
        """Cycles of loading a part of a tensor."""
        place: Piece | int = 0
        if role is Role.ROWS:
            place = Piece.dense(self.chip, 0, type_.dtype, part.rows[1], part.columns[1])
        key = ("load", type_, role, part.rows[1], part.columns[1])
        return self._look_up(key, lambda emit: load(emit, _placed(type_), role, part, place))

    def store(self, type_: TensorType, part: Part) -> int:
        """Cycles of storing a part of an activation."""
        piece = Piece.dense(self.chip, 0, type_.dtype, part.rows[1], part.columns[1])
        key = ("store", type_, part.rows[1], part.columns[1])
        return self._look_up(key, lambda emit: store(emit, _placed(type_), part, piece))

    def _look_up(self, key: Any, emission: Callable[[Emitter], None]) -> int:
        if key not in self._known:
            emit = Emitter(self.chip, _ARENA)
            emission(emit)
            self._known[key] = int(cycles(emit.program(), self.chip).sum())
        return self._known[key]


def _key(record: OpRecord, pieces: tuple[Piece, ...], result: Piece) -> tuple[Any, ...]:
    """All on which the price of a run depends: sizes, and which operands the result replaces."""
    sizes = tuple((p.dtype, p.rows, p.columns, p.pitch, p.spread) for p in (*pieces, result))
    return (structure(record), sizes, tuple(piece.address == result.address for piece in pieces))


def _placed(type_: TensorType) -> TensorType:
    return TensorType(type_.shape, type_.dtype, 0)


_PRICES: dict[Any, StreamPrices] = {}


def stream_prices(chip: Chip) -> StreamPrices:
    """The prices found so far on a chip."""
    key = (chip.name, chip.lanes, chip.eu_bytes, chip.lmem_bytes, chip.banks)
    return _PRICES.setdefault(key, StreamPrices(chip))
