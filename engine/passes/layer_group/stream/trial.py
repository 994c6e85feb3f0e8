"""Whether ops can be a streamed group: the slices of rows and the tiles that are tried, and what is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from engine.passes.layer_group.allocation import FRAGMENTATION, MEMORY
from engine.passes.layer_group.plan import Attempt, Secs
from engine.passes.layer_group.stream.buffers import Buffers
from engine.passes.layer_group.stream.chain import Stream
from engine.passes.layer_group.stream.memory import Full
from engine.passes.layer_group.stream.moves import Part, Role
from engine.passes.layer_group.stream.prices import StreamPrices
from engine.passes.layer_group.stream.schedule import Cut, Schedule, even_rows, even_tiles
from engine.passes.layer_group.trial import Trial
from engine.tpu.a16_kernel import BIAS, SCALE, WEIGHT, a16_shape, tile_scratch
from engine.tpu.cores import Range
from engine.tpu.emit import align_up, ceil_div

MAX_SLICES = 64
"""Slices of rows that are tried at most."""
_GOOD = 1.05
"""More slices of rows are not tried for a group that takes at most this many times what its busier engine does."""
_ROUNDED = 500
"""Cycles by which the sum of the prices of tiles may be less than the price of the whole: each is rounded down."""
RESIDENT_SHARE = 8
"""Scales and zero points of a whole product stay in local memory if they take at most this part of it."""


@dataclass(frozen=True)
class Placed:
    """A streamed group with an address for everything."""

    schedule: Schedule
    buffers: Buffers

    @property
    def cycles(self) -> int:
        """Of the whole group (R4)."""
        return int(self.schedule.cycles)

    @property
    def least(self) -> int:
        """Cycles of its busier engine."""
        computing, moving = zip(*self.schedule.step_cycles, strict=True)
        return int(max(sum(computing), sum(moving)))


def try_stream(stream: Stream, prices: StreamPrices) -> Trial[Placed]:
    """The cheapest streamed group: with as few slices of rows as fit, or a few more if engines wait for each other."""
    chip = prices.chip
    attempts: list[Attempt] = []
    best: Placed | None = None
    plain = _Tiler(stream, ((0, stream.rows),), prices).plain
    for rows in _row_cuts(stream.rows, chip.lanes):
        secs = Secs(c=len(rows))
        if best is not None and plain.moving_again(len(rows)) >= best.cycles:
            break
        found = _fit(stream, rows, prices)
        if isinstance(found, Full):
            reason = MEMORY if found.needed > chip.lmem_bytes else FRAGMENTATION
            attempts.append(Attempt(secs, reason, found.needed, chip.lmem_bytes, None))
            continue
        attempts.append(Attempt(secs, "", found.buffers.used_bytes, chip.lmem_bytes, found.cycles))
        if best is not None and best.cycles <= found.cycles:
            break
        best = found
        if found.cycles <= _GOOD * found.least:
            break
    if best is None:
        return Trial(None, tuple(attempts), _why_not(attempts))
    return Trial(best, tuple(attempts))


def least_cycles(stream: Stream, prices: StreamPrices, *, sliced: bool = False) -> float:
    """Cycles that a streamed group takes at least: what its busier engine does, with what nothing can run beside.

    sliced: with as many slices of rows as the smallest tiles need to fit, which takes longer to find out.
    """
    rows = next(_fitting(stream, prices), None) if sliced else ((0, stream.rows),)
    if rows is None:
        return inf
    tiler = _Tiler(stream, rows, prices)
    plain, last = tiler.plain, len(stream.products) - 1
    computing, moving = (sum(cycles) for cycles in zip(*plain.step_cycles, strict=True))
    begin = sum(plain.price(run) for run in plain.sketch if run.step == 0 and run.track.role is Role.ROWS)
    end = plain.tile_cycles(last, tiler.units[last])[0]
    return float(max(computing + begin, moving + end) - _ROUNDED)


def _fitting(stream: Stream, prices: StreamPrices) -> Iterator[tuple[Range, ...]]:
    """Slices of rows with which the smallest tiles fit."""
    for rows in _row_cuts(stream.rows, prices.chip.lanes):
        tiler = _Tiler(stream, rows, prices)
        if isinstance(_place(tiler, tiler.cut(tiler.units, _Choice(resident=False))), Placed):
            yield rows


def _row_cuts(rows: int, lanes: int) -> Iterator[tuple[Range, ...]]:
    """Slices of rows, from one to as many as there are sets of lanes, each smaller than before."""
    last = 0
    for count in range(1, min(MAX_SLICES, ceil_div(rows, lanes)) + 1):
        found = even_rows(rows, count, lanes)
        if len(found) > last:
            last = len(found)
            yield found


def _why_not(attempts: Sequence[Attempt]) -> str:
    last = attempts[-1]
    slices = f"{last.secs.slices} slice{'s' * (last.secs.slices > 1)} of rows"
    return (
        f"with {slices} it needs {last.needed_bytes} of {last.available_bytes} bytes a lane ({last.reason})"
    )


@dataclass(frozen=True)
class _Choice:
    """How products are cut. smaller: tiles are this many times smaller than they could be. growing: tiles of a product
    begin small and grow, so that none is loaded for longer than the one before computes. tail: the group's last tile is
    as small as can be. resident: scales and zero points may be loaded for all tiles at once."""

    smaller: int = 1
    growing: bool = False
    tail: bool = False
    resident: bool = True


_VARIATIONS: tuple[dict[str, object], ...] = (
    {"smaller": 2},
    {"growing": True},
    {"tail": True},
    {"resident": False},
    {"smaller": 4},
)


_SHRINKS = 8
"""Tiles that do not fit are made smaller by this part, or by what cannot be cut."""
_WORTH_SMALLER = 0.997
"""What the cycles must fall to for smaller tiles: many of them make long programs."""


def _fit(stream: Stream, rows: Sequence[Range], prices: StreamPrices) -> Placed | Full:
    """The largest tiles that fit, then whatever is cheaper."""
    tiler = _Tiler(stream, rows, prices)
    smallest = _place(tiler, tiler.cut(tiler.units, _Choice(resident=False)))
    if not isinstance(smallest, Placed):
        return smallest[0]
    largest = [_first_guess(stream, phase, tiler.units[phase], prices) for phase in range(len(tiler.units))]
    choice = _Choice()
    while True:
        found = _place(tiler, tiler.cut(largest, choice))
        if isinstance(found, Placed):
            break
        full, phase = found
        if phase is None:
            return full
        largest[phase] -= tiler.units[phase] * max(1, largest[phase] // tiler.units[phase] // _SHRINKS)
    for variation in _VARIATIONS:
        changed = replace(choice, **variation)  # type: ignore[arg-type]
        cut = tiler.cut(largest, changed)
        if cut == found.schedule.cut:
            continue
        other = _place(tiler, cut)
        if isinstance(other, Placed) and other.cycles < found.cycles * (
            _WORTH_SMALLER if "smaller" in variation else 1
        ):
            found, choice = other, changed
    return found


def _place(tiler: _Tiler, cut: Cut) -> Placed | tuple[Full, int | None]:
    """Everything at an address; else what finds none, and the phase whose tiles should be smaller, if any can be."""
    schedule = Schedule.of(tiler.stream, cut, tiler.prices)
    buffers = Buffers.of(schedule)
    full = buffers.place()
    if full is None:
        return Placed(schedule, buffers)
    requests = buffers.requests()
    steps = requests[full.request].steps
    able = [phase for phase, tiles in enumerate(cut.tiles) if max(n for _, n in tiles) > tiler.units[phase]]
    used = Counter(dict.fromkeys(able, 0))
    for step in range(steps.bit_length()):
        now = [r for r in requests if steps >> step & r.steps >> step & 1]
        for phase in able:
            used[phase] = max(used[phase], sum(r.nbytes for r in now if r.phase == phase))
    fattest = max(able, key=lambda phase: used[phase], default=None)
    return full, fattest if fattest is not None and used[fattest] else None


def _first_guess(stream: Stream, phase: int, unit: int, prices: StreamPrices) -> int:
    """Columns of a tile that would fit if nothing else were in local memory."""
    product, chip = stream.products[phase], prices.chip
    shape = a16_shape(product.record)
    weight = align_up(product.record.operand_types[WEIGHT].shape[1], chip.eu_bytes)
    most = 1
    for count in range(1, ceil_div(shape.columns, unit) + 1):
        columns = count * unit
        needed = sum(tile_scratch(chip, shape, min(stream.rows, chip.lanes), columns))
        needed += 2 * weight * ceil_div(columns, chip.lanes)
        if needed > chip.lmem_bytes:
            break
        most = count
    return most * unit


@dataclass(frozen=True)
class _Tiler:
    """Cuts the products of a stream."""

    stream: Stream
    rows: Sequence[Range]
    prices: StreamPrices

    @cached_property
    def units(self) -> list[int]:
        """For each phase the columns of which its tiles are multiples."""
        return [self.stream.unit(phase, self.prices.chip.lanes) for phase in range(len(self.stream.products))]

    def columns(self, phase: int) -> int:
        """Of a phase's product."""
        return self.stream.values[self.stream.products[phase].result].columns

    def cut(self, largest: Sequence[int], choice: _Choice) -> Cut:
        """Tiles of at most these sizes."""
        tiles: list[tuple[Range, ...]] = []
        computing = 0.0
        for phase, unit in enumerate(self.units):
            columns = self.columns(phase)
            most = max(unit, largest[phase] // choice.smaller // unit * unit)
            last = _tail(columns, unit) if choice.tail and phase == len(self.units) - 1 else 0
            if choice.growing:
                found = self._grow(phase, columns - last, most, computing)
                computing = self._rates(phase)[0] * found[-1][1]
            else:
                found = even_tiles(columns - last, most, unit)
            tiles.append((*found, (columns - last, last)) if last else found)
        resident = [p for p, found in enumerate(tiles) if choice.resident and self._stays(p, found)]
        return Cut(tuple(self.rows), tuple(tiles), frozenset(resident))

    def _grow(self, phase: int, columns: int, most: int, computing: float) -> tuple[Range, ...]:
        """Tiles that are loaded while the ones before compute; `computing`: cycles of what runs before the first."""
        rate, moving = self._rates(phase)
        if rate <= moving:
            return even_tiles(columns, most, self.units[phase])
        found: list[Range] = []
        at, unit = 0, self.units[phase]
        while at < columns:
            size = max(unit, min(most, int(computing / moving) // unit * unit))
            if size == most:
                rest = even_tiles(columns - at, most, unit)
                return (*found, *((at + start, count) for start, count in rest))
            found.append((at, min(size, columns - at)))
            computing = rate * size
            at += size
        return tuple(found)

    def _rates(self, phase: int) -> tuple[float, float]:
        """Cycles that a column takes to compute with all that follows, and to be loaded."""
        columns = min(4 * self.units[phase], self.columns(phase))
        computing, moving = self.plain.tile_cycles(phase, columns)
        return computing / columns, moving / columns

    @cached_property
    def plain(self) -> Schedule:
        """Every product in one tile, whether that fits or not."""
        whole = tuple(((0, self.columns(phase)),) for phase in range(len(self.units)))
        return Schedule.of(self.stream, Cut(tuple(self.rows), whole, frozenset()), self.prices)

    def _stays(self, phase: int, tiles: Sequence[Range]) -> bool:
        """Whether a product's scales and zero points are better loaded at once than tile by tile."""
        types = self.stream.products[phase].record.operand_types[SCALE:BIAS]
        nbytes = sum(type_.nbytes for type_ in types) // self.prices.chip.lanes
        if len(tiles) == 1 or nbytes * RESIDENT_SHARE > self.prices.chip.lmem_bytes:
            return False

        def cost(parts: Sequence[Range]) -> int:
            return sum(
                self.prices.load(t, Role.PARAMETER, Part((0, 1), part)) for part in parts for t in types
            )

        return cost([(0, self.columns(phase))]) < cost(tiles)


def _tail(columns: int, unit: int) -> int:
    """Columns of a small last tile: what is more than whole units, or one; 0 if there is nothing in front of it."""
    end = columns % unit or unit
    return end if columns > end else 0
