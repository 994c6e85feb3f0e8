"""The time steps of a streamed group whose slices of rows and tiles of columns are chosen.

Every tile of a product is a step: it computes the tile with all that follows it, while the next tile's weights are
loaded and the results of the one before are stored. Norms of whole rows run in the step of the next tile; what comes
before the first product has a step of its own. The steps of all slices of rows follow each other; the last one of a
slice loads for the first one of the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from engine.passes.layer_group.plan import ItemKind
from engine.passes.layer_group.stream.chain import Stream, StreamOp
from engine.passes.layer_group.stream.moves import Part, Role
from engine.passes.layer_group.stream.pieces import Operands, Piece
from engine.passes.layer_group.stream.prices import StreamPrices
from engine.snapshot import TensorType
from engine.tpu.a16_kernel import BIAS, SCALE, WEIGHT, ZERO_POINT
from engine.tpu.cores import Range
from engine.tpu.emit import align_up

_SCRATCH_SHARE = 16
"""Norms work on so many rows at once that their scratch takes at most this part of local memory."""
_ROLES = {WEIGHT: Role.WEIGHT, SCALE: Role.PARAMETER, ZERO_POINT: Role.PARAMETER, BIAS: Role.BIAS}


@dataclass(frozen=True)
class Cut:
    """rows: slices of the tokens. tiles: for each phase, the columns of its product. resident: phases whose scales and
    zero points are loaded at once for all tiles."""

    rows: tuple[Range, ...]
    tiles: tuple[tuple[Range, ...], ...]
    resident: frozenset[int]


@dataclass(frozen=True)
class Track:
    """An op of the group in the IR. record: of the op that computes, that reads first what is loaded, or that made what
    is stored. value: what is loaded, computed or stored, of type `type`. role: of the value. phase: in which it
    runs. parity: its tiles lie in turn in two places."""

    kind: ItemKind
    record: int
    value: str
    type: TensorType
    role: Role
    phase: int
    parity: bool = False


@dataclass(frozen=True)
class Run:
    """A track works on a part of its value. step: number in the group, from 0. slice: of rows; tile: of its phase, 0
    if the track has none. op: what computes."""

    track: Track
    part: Part
    step: int
    slice: int
    tile: int
    op: StreamOp | None = None


@dataclass
class Schedule:
    """All runs of a group. gap: steps between two slices of rows in which nothing is computed."""

    stream: Stream
    cut: Cut
    prices: StreamPrices
    gap: int = 0
    tracks: dict[tuple[ItemKind, str], Track] = field(default_factory=dict)
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    @classmethod
    def of(cls, stream: Stream, cut: Cut, prices: StreamPrices) -> Schedule:
        """Put everything into steps."""
        found = cls(stream, cut, prices)
        found._make_tracks()
        return found

    @property
    def computing(self) -> int:
        """Steps that compute in each slice of rows."""
        return bool(self.stream.behind(-1)) + sum(map(len, self.cut.tiles))

    @property
    def period(self) -> int:
        """Steps from the beginning of a slice of rows to that of the next."""
        return self.computing + self.gap

    @property
    def steps(self) -> int:
        """All steps: one before the first that computes, to load, and one behind the last, to store."""
        return self.period * (len(self.cut.rows) - 1) + self.computing + 2

    @cached_property
    def runs(self) -> list[Run]:
        """All runs, in the order in which each engine takes them up."""
        found: list[Run] = []
        for number in range(len(self.cut.rows)):
            self._run_slice(number, [range(len(tiles)) for tiles in self.cut.tiles], found)
        return found

    @cached_property
    def sketch(self) -> list[Run]:
        """Of the first slice of rows, what decides how large buffers are and how long they are in use: the first tiles
        of each phase, the last ones and the largest."""
        found: list[Run] = []
        self._run_slice(0, [_telling(tiles) for tiles in self.cut.tiles], found)
        return found

    @cached_property
    def step_cycles(self) -> list[tuple[int, int]]:
        """Cycles of compute and of transfers in every step."""
        found = [[0, 0] for _ in range(self.steps)]
        known: dict[int, list[tuple[int, bool, int]]] = {}
        for number, (_, count) in enumerate(self.cut.rows):
            if count not in known:  # slices of as many rows take as long
                known[count] = self._slice_cycles(number)
            for step, moves, cycles in known[count]:
                found[number * self.period + step][moves] += cycles
        return [(computing, moving) for computing, moving in found]

    def _slice_cycles(self, number: int) -> list[tuple[int, bool, int]]:
        """(step of the slice, whether it is a transfer, cycles) of every run."""
        runs: list[Run] = []
        self._run_slice(number, [range(len(tiles)) for tiles in self.cut.tiles], runs)
        return [(run.step - number * self.period, run.op is None, self.price(run)) for run in runs]

    @cached_property
    def cycles(self) -> int:
        """R4: in every step the slower engine."""
        return sum(map(max, self.step_cycles))

    def moving_again(self, slices: int) -> int:
        """Cycles of all transfers if rows went through in so many slices, each with all weights."""
        return sum(
            self.price(run) * (1 if run.track.role is Role.ROWS else slices)
            for run in self.runs
            if run.op is None
        )

    def tile_cycles(self, phase: int, columns: int) -> tuple[int, int]:
        """Cycles to compute a tile of a phase with all that follows it, and to load what comes with it."""
        part = Part(self.cut.rows[0], (0, columns))
        computing = moving = 0
        for op in self.stream.followers(phase):
            track = self.tracks[ItemKind.COMPUTE, op.result]
            computing += self.price(Run(track, part, 0, 0, 1, op))
            for value in op.record.operands:
                load = self.tracks.get((ItemKind.LOAD, value))
                if load is not None and load.parity:
                    moving += self.price(Run(load, self._loaded_part(load, op, part, 0), 0, 0, 1))
        return computing, moving

    # -- tracks ------------------------------------------------------------------------------------------------------

    def _make_tracks(self) -> None:
        """Every op of the group, in the order of the IR: loads in front of the op that reads first, stores behind."""
        for op in self.stream.ops:
            record = op.record
            for number, (value, type_) in enumerate(zip(record.operands, record.operand_types, strict=True)):
                key = (ItemKind.LOAD, value)
                loaded = value not in self.stream.values or self.stream.values[value].loaded
                if not type_.is_none and loaded and key not in self.tracks:
                    role, parity = self._loading(op, number, value)
                    phase = op.rank.phase
                    self.tracks[key] = Track(ItemKind.LOAD, op.index, value, type_, role, phase, parity)
            result, type_ = op.result, record.result_types[0]
            root_stored = self._stored_by_tile(result)
            self.tracks[ItemKind.COMPUTE, result] = Track(
                ItemKind.COMPUTE, op.index, result, type_, Role.ROWS, op.rank.phase, root_stored
            )
            if result in self.stream.outputs:
                self.tracks[ItemKind.STORE, result] = Track(
                    ItemKind.STORE, op.index, result, type_, Role.ROWS, op.rank.phase, root_stored
                )

    def _loading(self, op: StreamOp, number: int, value: str) -> tuple[Role, bool]:
        """Role of a loaded operand, and whether it comes by tiles."""
        if value in self.stream.values:
            return Role.ROWS, not self.stream.is_whole(value)
        if not op.is_product:
            return Role.VECTOR, False
        role = _ROLES[number]
        return role, not (role is Role.PARAMETER and op.rank.phase in self.cut.resident)

    def _stored_by_tile(self, value: str) -> bool:
        """Whether a value that lives for a tile only is stored: then the next tile must not lie in its place."""
        root = self.stream.roots[value]
        sharing = [v for v, r in self.stream.roots.items() if r == root]
        return not self.stream.is_whole(root) and bool(set(sharing) & set(self.stream.outputs))

    # -- runs --------------------------------------------------------------------------------------------------------

    def _run_slice(self, number: int, tiles: Sequence[Collection[int]], runs: list[Run]) -> None:
        """Append the runs of a slice, with these tiles of each phase."""
        step = number * self.period + 1
        done: set[tuple[str, int]] = set()

        def compute(op: StreamOp, part: Part, tile: int, at: int) -> None:
            runs.extend(self._loads_for(op, part, number, tile, at - 1, done))
            runs.append(Run(self.tracks[ItemKind.COMPUTE, op.result], part, at, number, tile, op))
            if op.result in self.stream.outputs and not op.rank.whole:
                runs.append(self._store(op, part, number, tile, at + 1))

        def compute_rows(phase: int, at: int) -> None:
            for op in self.stream.behind(phase):
                columns = (0, self.stream.values[op.result].columns)
                for piece, rows in enumerate(self._row_pieces(op, number)):
                    compute(op, Part(rows, columns), piece, at)
                if op.result in self.stream.outputs:
                    runs.append(self._store(op, Part(self.cut.rows[number], columns), number, 0, at + 1))

        if self.stream.behind(-1):
            compute_rows(-1, step)
            step += 1
        for phase, wanted in enumerate(tiles):
            if phase:
                compute_rows(phase - 1, step)
            for tile, columns in enumerate(self.cut.tiles[phase]):
                for op in self.stream.followers(phase) if tile in wanted else ():
                    compute(op, Part(self.cut.rows[number], columns), tile, step)
                step += 1
        compute_rows(len(self.cut.tiles) - 1, step - 1)

    def _row_pieces(self, op: StreamOp, number: int) -> Iterator[Range]:
        """The rows of a slice, as many at once as an op has scratch for."""
        start, count = self.cut.rows[number]
        step = self._rows_at_once(op)
        for at in range(0, count, step):
            yield start + at, min(step, count - at)

    def _rows_at_once(self, op: StreamOp) -> int:
        chip = self.prices.chip
        if not op.moves:
            return self.stream.rows
        columns = (0, self.stream.values[op.result].columns)
        one = self.scratch(op, Part((0, min(chip.lanes, self.stream.rows)), columns))
        return chip.lanes * max(1, chip.lmem_bytes // _SCRATCH_SHARE // max(1, one))

    def _loads_for(
        self, op: StreamOp, part: Part, number: int, tile: int, step: int, done: set[tuple[str, int]]
    ) -> Iterator[Run]:
        """Loads of what a run reads, each once in a slice."""
        for value in op.record.operands:
            track = self.tracks.get((ItemKind.LOAD, value))
            if track is None:
                continue
            key = (value, tile if track.parity else 0)
            if key in done:
                continue
            done.add(key)
            loaded = self._loaded_part(track, op, part, number)
            yield Run(track, loaded, step, number, key[1])

    def _loaded_part(self, track: Track, op: StreamOp, part: Part, number: int) -> Part:
        if track.role is Role.ROWS:
            columns = part.columns if track.parity else (0, self.stream.values[track.value].columns)
            return Part(self.cut.rows[number], columns)
        if track.role is Role.VECTOR:
            return Part((0, 1), (0, track.type.elements))
        columns = part.columns if track.parity else (0, self.stream.values[op.result].columns)
        return Part((0, 1), columns)

    def _store(self, op: StreamOp, part: Part, number: int, tile: int, step: int) -> Run:
        return Run(self.tracks[ItemKind.STORE, op.result], part, step, number, tile)

    # -- prices ------------------------------------------------------------------------------------------------------

    def price(self, run: Run) -> int:
        """Cycles of a run."""
        key = (run.track.kind, run.track.value, run.part.rows[1], run.part.columns[1], run.tile == 0)
        if key not in self._known:
            self._known[key] = self._find_price(run)
        return self._known[key]

    def _find_price(self, run: Run) -> int:
        if run.track.kind is ItemKind.LOAD:
            return self.prices.load(run.track.type, run.track.role, run.part)
        if run.op is None:
            return self.prices.store(run.track.type, run.part)
        if not run.op.moves:
            return 0
        pieces, result = self._pieces(run.op, run.part)
        return self.prices.run(run.op.record, Operands(pieces, first=run.tile == 0), result)

    def scratch(self, op: StreamOp, part: Part) -> int:
        """Bytes per lane that a run needs beside operands and result."""
        if not op.moves:
            return 0
        return self.prices.scratch(op.record, *self._pieces(op, part))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {root: at for at, root in enumerate(dict.fromkeys(self.stream.roots.values()), 1)}

    def _pieces(self, op: StreamOp, part: Part) -> tuple[tuple[Piece, ...], Piece]:
        """Operands and result of a run at addresses that are equal only for what shares memory."""
        numbers = self._numbers

        def piece(value: str, columns: Range) -> Piece:
            found, chip = self.stream.values[value], self.prices.chip
            address, spread = numbers[self.stream.roots[value]] << 32, value in self.stream.spread
            if self.stream.is_whole(value):
                whole = Piece.dense(chip, address, found.dtype, part.rows[1], found.columns, spread=spread)
                return whole.part(chip, *columns)
            return Piece.dense(chip, address, found.dtype, part.rows[1], columns[1], spread=spread)

        pieces = [
            piece(v, (0, self.stream.values[v].columns) if op.takes_whole(v) else part.columns)
            for v in op.operands
        ]
        if op.kind == "RMSNorm":
            gamma = op.record.operand_types[1]
            pieces.append(Piece.dense(self.prices.chip, 0, gamma.dtype, 1, gamma.elements))
        return tuple(pieces), piece(op.result, part.columns)


def _telling(tiles: Sequence[Range]) -> set[int]:
    """The first two tiles, the last two, and of every second one the largest."""
    count = len(tiles)
    largest = {max(range(half, count, 2), key=lambda at: tiles[at][1]) for half in range(min(2, count))}
    return {0, min(1, count - 1), max(0, count - 2), count - 1} | largest


def even_rows(rows: int, count: int, lanes: int) -> tuple[Range, ...]:
    """`count` slices of whole sets of lanes, or fewer if that is all there is."""
    step = align_up(-(-rows // count), lanes)
    return tuple((start, min(step, rows - start)) for start in range(0, rows, step))


def even_tiles(columns: int, largest: int, unit: int) -> tuple[Range, ...]:
    """Tiles of at most `largest` columns, multiples of `unit`, as even as they get."""
    count = -(-columns // largest)
    step = align_up(-(-columns // count), unit)
    return tuple((start, min(step, columns - start)) for start in range(0, columns, step))
