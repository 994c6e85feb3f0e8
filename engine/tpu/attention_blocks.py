"""How attention is cut: block sizes (rules R39, R40, R51), key blocks of a query tile, and the layout of local memory.

One iteration works on `heads` query heads (all heads of `kv_heads` KV heads), `rows` queries and `keys` keys at a time.
Scores are [heads, rows, 1, keys]: queries on lanes; in packed decode, where a KV head's queries fill the lanes, they
are [1, heads, 1, keys].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import UserError
from engine.tpu.chip import Chip

F32_BYTES = 4
COEFFICIENTS = 10
"""Terms of the f32 exponential's polynomial."""
PACK_FROM = 3
"""Decode puts a KV head's queries on lanes from this many queries per KV head on (R40)."""
_ROUND = 64
_LARGEST_DECODE_BLOCK = 2048
_SMALLEST_DECODE_START = 64


@dataclass(frozen=True)
class AttentionShape:
    """What decides the blocks of one attention on one core.

    queries, keys: rows (mq, mk); under the small causal mask the last mq keys are the queries' own, those before
    them history. dim: head size. heads, kv_heads: those of this core. mask_size: side of the small causal mask,
    0 for a whole mask or none. element_bytes: of queries, keys, values; mask_bytes: of the mask. split_history:
    the history's length is data, so no key block may hold both history and new rows.
    """

    queries: int
    keys: int
    dim: int
    heads: int
    kv_heads: int
    mask_size: int = 0
    element_bytes: int = 2
    mask_bytes: int = 2
    split_history: bool = False

    @property
    def ratio(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def decodes(self) -> bool:
        """One query, not under the small causal mask."""
        return self.queries == 1 and not self.mask_size


@dataclass(frozen=True)
class AttentionBlocks:
    """Block sizes: query rows, key rows, query heads and KV heads of one iteration; packed: queries' heads on lanes."""

    rows: int
    keys: int
    heads: int
    kv_heads: int
    packed: bool = False


@dataclass(frozen=True)
class KeyBlock:
    """Keys start .. start+length-1 of a query tile.

    mask: first row and column of the block's part of the mask, None where nothing is hidden. history: 0, or 1 + start
    for a block that is dropped when the history is shorter.
    """

    start: int
    length: int
    mask: tuple[int, int] | None = None
    history: int = 0


def attention_blocks(chip: Chip, shape: AttentionShape) -> AttentionBlocks:
    """The first candidate of R40 / R51 whose buffers fit local memory.

    Raises UserError when not even one row of one KV head fits.
    """
    for blocks in _candidates(chip, shape):
        # Both: the rule's own sum decides as the reference does, the layout is what this kernel really occupies.
        if (
            reference_bytes(chip, shape, blocks) <= chip.lmem_bytes
            and AttentionLayout(chip, shape, blocks).size <= chip.lmem_bytes
        ):
            return blocks
    raise UserError(
        f"attention with head size {shape.dim} and {shape.ratio} query heads per KV head does not fit the "
        f"{chip.lmem_bytes} bytes of local memory of {chip.name}; choose a chip with more local memory"
    )


def _candidates(chip: Chip, shape: AttentionShape) -> Iterator[AttentionBlocks]:
    if shape.decodes:
        return _decode_candidates(shape)
    if shape.mask_size:
        return _causal_candidates(chip, shape)
    return _prefill_candidates(chip, shape)


def _decode_candidates(shape: AttentionShape) -> Iterator[AttentionBlocks]:
    packed = shape.ratio >= PACK_FROM
    start = min(_LARGEST_DECODE_BLOCK, max(_SMALLEST_DECODE_START, _power_of_two(shape.keys // 2)))
    for kv in _halvings(1 if packed else shape.kv_heads):
        for keys in _halvings(start):
            yield AttentionBlocks(1, keys, kv * shape.ratio, kv, packed)


def _prefill_candidates(chip: Chip, shape: AttentionShape) -> Iterator[AttentionBlocks]:
    start = min(8 * chip.lanes, _power_of_two(shape.queries))
    for kv in _halvings(shape.kv_heads):
        yield AttentionBlocks(start, start, kv * shape.ratio, kv)
    for rows in _halvings(start // 2):
        yield AttentionBlocks(rows, rows, shape.ratio, 1)


def _causal_candidates(chip: Chip, shape: AttentionShape) -> Iterator[AttentionBlocks]:
    """Blocks of at most half the mask: a block's part of it then fits wherever the diagonal crosses the block."""
    largest = max(1, shape.mask_size // 2)
    wide, narrow = min(2 * chip.lanes, largest), min(chip.lanes, largest)
    yield AttentionBlocks(wide, wide, shape.heads, shape.kv_heads)
    for kv in _halvings(shape.kv_heads):
        yield AttentionBlocks(narrow, narrow, kv * shape.ratio, kv)
    for rows in _halvings(narrow // 2):
        yield AttentionBlocks(rows, rows, shape.ratio, 1)


def reference_bytes(chip: Chip, shape: AttentionShape, blocks: AttentionBlocks) -> int:
    """Local bytes per lane by which R39 decides: six score buffers (seven packed), output, queries, keys and values
    double buffered, mask (bf16 double buffered, or one f32 part of the small mask) and small columns."""
    row_blocks = _ceil_div(blocks.rows, chip.lanes)
    units = 1 if blocks.packed else blocks.heads * row_blocks
    head_bytes = _round(shape.element_bytes * shape.dim)
    scores = units * _round(F32_BYTES * blocks.keys)
    output = units * _round(F32_BYTES * shape.dim)
    keys = blocks.kv_heads * _ceil_div(blocks.keys, chip.lanes) * head_bytes
    mask = row_blocks * _round(shape.mask_bytes * blocks.keys) * (1 if shape.mask_size else 2)
    small = 3 * _ROUND * units + _ROUND
    return (7 if blocks.packed else 6) * scores + output + units * head_bytes + 4 * keys + mask + small


def key_blocks(shape: AttentionShape, blocks: AttentionBlocks, first: int, rows: int) -> tuple[KeyBlock, ...]:
    """Key blocks that queries first .. first+rows-1 look at, in order.

    Whole mask or none (decode too): all keys. Small causal mask: everything up to the tile's last own key; blocks
    beyond it are skipped. A decode whose history is a multiple of the block ends with the new key alone, which is
    what R24 says; any other history shares its last block with the new key.
    """
    past = shape.keys - shape.queries
    if not shape.mask_size:
        return tuple(
            KeyBlock(start, length, (first, start)) for start, length in _cut(0, shape.keys, blocks.keys)
        )
    split = past if shape.split_history else 0
    history = [KeyBlock(start, length, None, 1 + start) for start, length in _cut(0, split, blocks.keys)]
    own = past + first
    new = [
        KeyBlock(start, length, _causal_part(own - start) if start + length > own else None)
        for start, length in _cut(split, own + rows, blocks.keys)
    ]
    return (*history, *new)


def _causal_part(ahead: int) -> tuple[int, int]:
    """First row and column in the small mask for a block that starts `ahead` rows before the tile's first own key.

    Key j of the block is hidden from query i of the tile when j > i + ahead; the mask hides column b from row a when
    b > a. So any part whose first row minus first column is `ahead` serves.
    """
    return max(ahead, 0), max(-ahead, 0)


class AttentionLayout:
    """Byte offset in each lane of every buffer of the kernel.

    `slots` are four score-sized buffers; the partial output starts in slot 2 and may reach beyond slot 3. Pairs are
    ping and pong. The last four are scratch for column-split operands, used by f32 only.
    """

    def __init__(self, chip: Chip, shape: AttentionShape, blocks: AttentionBlocks) -> None:
        self._step, self._lanes, self.size = chip.eu_bytes, chip.lanes, 0
        rows = min(blocks.rows, shape.queries)
        keys = min(blocks.keys, shape.keys)
        count, channels = (1, blocks.heads) if blocks.packed else (blocks.heads, rows)
        head_bytes = shape.element_bytes * shape.dim
        scores = self._bytes(count, channels, F32_BYTES * keys)
        output = self._bytes(count, channels, F32_BYTES * shape.dim)
        self.slots = tuple(slot * scores for slot in range(4))
        self.size = max(4 * scores, 2 * scores + output)
        self.output = self._take(output)
        self.queries = self._take(self._bytes(count, channels, head_bytes))
        key_bytes = self._bytes(blocks.kv_heads, keys, head_bytes)
        self.keys = (self._take(key_bytes), self._take(key_bytes))
        self.values = (self._take(key_bytes), self._take(key_bytes))
        mask = self._bytes(1, rows, shape.mask_bytes * keys)
        self.mask = (self._take(mask), self._take(mask))
        column = self._bytes(count, channels, F32_BYTES)
        self.maximum, self.new_maximum = self._take(column), self._take(column)
        self.total, self.scaled_total = self._take(column), self._take(column)
        self.correction = self._take(column)
        self.table = self._take(self._bytes(1, 1, F32_BYTES * COEFFICIENTS))
        split = shape.element_bytes == F32_BYTES
        by_query = F32_BYTES * channels
        self.split_queries = self._take(split * self._bytes(count, shape.dim, by_query))
        self.split_values = self._take(split * self._bytes(1, shape.dim, F32_BYTES * keys))
        self.split_scores = self._take(split * self._bytes(1, keys, by_query))
        self.split_output = self._take(split * self._bytes(1, shape.dim, by_query))

    def _bytes(self, n: int, channels: int, row_bytes: int) -> int:
        return n * _ceil_div(channels, self._lanes) * _ceil_div(row_bytes, self._step) * self._step

    def _take(self, size: int) -> int:
        self.size += size
        return self.size - size


def _cut(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """(start, length) of consecutive pieces of at most `step`."""
    return [(at, min(step, stop - at)) for at in range(start, stop, step)]


def _halvings(value: int) -> Iterator[int]:
    """value, value // 2, ... down to 1."""
    while value >= 1:
        yield value
        value //= 2


def _power_of_two(value: int) -> int:
    """Largest power of two not above value (at least 1)."""
    return 1 << max(value, 1).bit_length() - 1


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round(value: int) -> int:
    return _ceil_div(value, _ROUND) * _ROUND
