"""The buffers of a streamed group, and where every run finds what it works on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.passes.layer_group.plan import BufferKind, ItemKind
from engine.passes.layer_group.stream.chain import StreamOp
from engine.passes.layer_group.stream.memory import Full, Request, place
from engine.passes.layer_group.stream.moves import Part, Role, local_bytes
from engine.passes.layer_group.stream.pieces import piece_bytes
from engine.passes.layer_group.stream.schedule import Run, Schedule
from engine.tpu.a16_kernel import a16_shape, tile_scratch
from engine.tpu.cores import Range
from engine.tpu.emit import align_up
from engine.tpu.isa import Engine

Key = tuple[str, str | int, int]
"""Kind of buffer, whose it is, and which of two."""


@dataclass
class _Buffer:
    """One buffer while it is being measured. parts: bytes of each value that travels in it. touched: for compute and
    for the DMA the first and the last step in which it touches the buffer."""

    kind: BufferKind
    phase: int | None
    apart: bool
    parts: dict[str, int] = field(default_factory=dict)
    touched: dict[Engine, Range] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(self.parts.values())

    @property
    def first(self) -> int:
        return min(first for first, _ in self.touched.values())

    @property
    def last(self) -> int:
        return max(last for _, last in self.touched.values())

    def touch(self, engine: Engine, step: int) -> None:
        first, last = self.touched.get(engine, (step, step))
        self.touched[engine] = (min(first, step), max(last, step))

    def mask(self, period: int, *engines: Engine) -> int:
        """The steps between the first and the last touch, counted around a loop, as bits."""
        spans = [self.touched[engine] for engine in engines if engine in self.touched]
        if not spans:
            return 0
        first, last = min(first for first, _ in spans), max(last for _, last in spans)
        return sum(1 << step for step in {at % period for at in range(first, last + 1)})


@dataclass
class Buffers:
    """All buffers of a schedule; every slice of rows uses the same ones.

    Steps count from 0 in each slice: the one that loads for its first step that computes.
    """

    schedule: Schedule
    _found: dict[Key, _Buffer] = field(default_factory=dict)
    addresses: dict[Key, int] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Schedule) -> Buffers:
        """Measure them, and leave as many steps between slices of rows as the one in use longest needs."""
        found = cls(schedule)
        for run in schedule.sketch:
            found._add(run)
        if len(schedule.cut.rows) > 1:
            longest = max(buffer.last - buffer.first + 1 for buffer in found._found.values())
            schedule.gap = max(0, longest - schedule.computing)
        return found

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _add(self, run: Run) -> None:
        track = run.track
        key = self.key(track.value, run.tile)
        if track.kind is ItemKind.LOAD:
            self._use(key, run, track.value, self._load_bytes(run))
        elif track.kind is ItemKind.STORE:
            self._use(key, run, self._root(track.value), 0)
        else:
            op = run.op
            assert op is not None
            self._use(key, run, self._root(track.value), self._value_bytes(track.value, run.part))
            for value in op.record.operands:
                if value in self.schedule.stream.values or (ItemKind.LOAD, value) in self.schedule.tracks:
                    self._use(self.key(value, run.tile), run, self._root(value), 0)
            scratch = self._scratch_bytes(op, run)
            if scratch:
                self._use(self._scratch_key(op), run, self._scratch_name(op), scratch)

    def _use(self, key: Key, run: Run, value: str, nbytes: int) -> None:
        kind = key[0]
        buffer = self._found.get(key)
        if buffer is None:
            phase = None if kind in ("whole", "once") else run.track.phase
            sort = {"scratch": BufferKind.SCRATCH, "weights": BufferKind.WEIGHT, "once": BufferKind.WEIGHT}
            apart = kind in ("scratch", "weights")
            buffer = self._found[key] = _Buffer(sort.get(kind, BufferKind.ACTIVATION), phase, apart)
        buffer.touch(Engine.GDMA if run.op is None else Engine.TIU, run.step)
        if kind == "scratch":
            buffer.phase = int(key[1])
        chip = self.schedule.prices.chip
        buffer.parts[value] = max(buffer.parts.get(value, 0), align_up(nbytes, chip.eu_bytes))

    def key(self, value: str, tile: int) -> Key:
        """The buffer that holds a value, or a tile of it."""
        stream = self.schedule.stream
        track = self.schedule.tracks.get((ItemKind.LOAD, value))
        if track is not None:
            half = tile % 2 if track.parity else 0
            if track.role is Role.ROWS:
                return ("tile" if track.parity else "whole", self._root(value), half)
            return ("weights", track.phase, half) if track.parity else ("once", value, 0)
        root = stream.roots[value]
        if stream.is_whole(root):
            return ("whole", root, 0)
        return ("tile", root, tile % 2 if self.schedule.tracks[ItemKind.COMPUTE, value].parity else 0)

    def _scratch_key(self, op: StreamOp) -> Key:
        return ("scratch", self._home(op), 0)

    def _scratch_name(self, op: StreamOp) -> str:
        """Scratch goes by the result of the product in whose steps it is used, or of what runs before all products."""
        home = self._home(op)
        return self.schedule.stream.products[home].result if home >= 0 else self.schedule.stream.ops[0].result

    def _home(self, op: StreamOp) -> int:
        """The phase in whose steps an op runs: norms behind a phase run with the next one."""
        last = len(self.schedule.cut.tiles) - 1
        if not op.rank.whole:
            return op.rank.phase
        return -1 if op.rank.phase < 0 else min(op.rank.phase + 1, last)

    def _root(self, value: str) -> str:
        return self.schedule.stream.roots.get(value, value)

    def _load_bytes(self, run: Run) -> int:
        return local_bytes(self.schedule.prices.chip, run.track.type, run.track.role, run.part)

    def _value_bytes(self, value: str, part: Part) -> int:
        """Bytes per lane of a tile, or of a whole slice of rows."""
        stream, chip = self.schedule.stream, self.schedule.prices.chip
        found = stream.values[value]
        whole = stream.is_whole(stream.roots[value])
        rows = self.schedule.cut.rows[0][1] if whole else part.rows[1]
        columns = found.columns if whole else part.columns[1]
        return piece_bytes(chip, found.dtype, rows, columns, spread=value in stream.spread)

    def _scratch_bytes(self, op: StreamOp, run: Run) -> int:
        """From the beginning of the phase's scratch, which keeps the transposed x of its product."""
        needed = self.schedule.scratch(op, run.part)
        return needed if op.is_product or not needed else self.kept_scratch(op) + needed

    def kept_scratch(self, op: StreamOp) -> int:
        """Bytes at the beginning of the scratch of an op's phase that live from tile to tile."""
        home = self._home(op)
        if home < 0:
            return 0
        product, chip = self.schedule.stream.products[home], self.schedule.prices.chip
        return tile_scratch(chip, a16_shape(product.record), 1, chip.lanes)[0]

    # -- placing -----------------------------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """What is to be placed. Steps of several slices are counted around their loop."""
        period = self.schedule.period if len(self.schedule.cut.rows) > 1 else self.schedule.steps
        return [
            Request(
                str(name),
                buffer.kind,
                buffer.nbytes,
                buffer.mask(period, *Engine),
                buffer.mask(period, Engine.TIU),
                buffer.mask(period, Engine.GDMA),
                buffer.phase,
                buffer.apart,
            )
            for (_, name, _), buffer in self._found.items()
        ]

    def place(self) -> Full | None:
        """Find an address for every buffer; otherwise the one that finds none."""
        found = place(self.requests(), self.schedule.prices.chip)
        if isinstance(found, Full):
            return found
        self.addresses = dict(zip(self._found, found, strict=True))
        return None

    def address(self, value: str, tile: int) -> int:
        """Where a value, or a tile of it, begins."""
        key = self.key(value, tile)
        offset = 0
        for name, nbytes in self._found[key].parts.items():
            if name == self._root(value):
                return self.addresses[key] + offset
            offset += nbytes
        raise KeyError(value)

    def size(self, value: str, tile: int) -> int:
        """Bytes per lane of its place."""
        return self._found[self.key(value, tile)].parts[self._root(value)]

    def scratch(self, op: StreamOp, run: Run) -> tuple[int, int]:
        """Address and bytes of an op's scratch; (0, 0) for none."""
        needed = self.schedule.scratch(op, run.part)
        if not needed:
            return (0, 0)
        skipped = 0 if op.is_product else self.kept_scratch(op)
        return self.addresses[self._scratch_key(op)] + skipped, needed

    @property
    def used_bytes(self) -> int:
        """Bytes per lane up to the highest address."""
        return max(self.addresses[key] + buffer.nbytes for key, buffer in self._found.items())

    def listed(self) -> Iterator[tuple[Key, str, BufferKind, int, int, int, int]]:
        """(key, value, kind, address, bytes, first and last step) of every piece of every buffer."""
        for key, buffer in self._found.items():
            at = self.addresses[key]
            for value, nbytes in buffer.parts.items():
                if nbytes:
                    yield key, value, buffer.kind, at, nbytes, buffer.first, buffer.last
                at += nbytes
