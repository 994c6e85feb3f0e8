"""A streamed group as the IR says it is: the piece on which every run works, and where that lies."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property

from engine.passes.layer_group.plan import ItemKind
from engine.passes.layer_group.stream.moves import Part, Role, box_part, dense_shape
from engine.passes.layer_group.stream.pieces import PRODUCT, Operands, Piece
from engine.passes.layer_group.view import GroupItem, GroupView
from engine.tpu.a16_kernel import BIAS, SCALE, WEIGHT, ZERO_POINT
from engine.tpu.chip import Chip
from engine.tpu.cores import Range
from engine.tpu.emit import ceil_div
from engine.tpu.isa import Shape4, dtype_bytes
from engine.tpu.ops.group import WEIGHT as WEIGHT_LOAD

_PRODUCT_ROLES = {WEIGHT: Role.WEIGHT, SCALE: Role.PARAMETER, ZERO_POINT: Role.PARAMETER, BIAS: Role.BIAS}


@dataclass(frozen=True)
class StreamView:
    """Places and pieces of a group of the type STREAM."""

    view: GroupView
    chip: Chip
    _places: dict[int, dict[Range, int]] = field(default_factory=dict)

    @cached_property
    def roles(self) -> dict[str, Role]:
        """What each value is to the group: weights by the operand as which they are read."""
        found = {item.value: Role.ROWS for item in self.view.items.values()}
        weights = {
            item.value
            for item in self.view.items.values()
            if item.kind is ItemKind.LOAD and item.record.attributes["lmem_type"] == WEIGHT_LOAD
        }
        for item in self.view.items.values():
            for number, value in enumerate(item.record.operands):
                if value in weights:
                    product = item.record.kind == PRODUCT
                    found[value] = _PRODUCT_ROLES[number] if product else Role.VECTOR
        return found

    @cached_property
    def row_starts(self) -> list[int]:
        """First row of each slice of rows."""
        return list(self.view.record.attributes.get("row_idx", [0]))

    def whole_shape(self, item: GroupItem) -> Shape4:
        """The (n, c, h, w) of an item's whole value."""
        shape = dense_shape(item.record.result_types[0], self.roles[item.value])
        if self.is_spread(item):
            return (1, shape[3], 1, 1)
        return shape

    def is_spread(self, item: GroupItem) -> bool:
        """Whether a single token lies over the lanes."""
        return self.roles[item.value] is Role.ROWS and not item.ginfo.eu_align

    def part(self, item: GroupItem) -> Part:
        """The part of its value on which a run works."""
        starts, lengths = item.ginfo.piece(item.run)
        at, count = (_four(starts), _four(lengths))
        if self.is_spread(item):
            return Part((0, 1), (at[1], count[1]))
        return box_part(self.roles[item.value], at, count, self.chip.lanes)

    def row_slice(self, part: Part) -> int:
        """Number of the slice of rows in which a part lies."""
        return bisect_right(self.row_starts, part.rows[0]) - 1

    # -- places ------------------------------------------------------------------------------------------------------

    def piece(self, item: GroupItem, part: Part) -> Piece:
        """Where a part of an activation lies that runs of `item` make or load. A part of a value whose pieces have
        places of their own must be one of them."""
        type_, spread = item.record.result_types[0], self.is_spread(item)
        if item.ginfo.tile_addr:
            address = self._own_place(item, part)
            return Piece.dense(self.chip, address, type_.dtype, part.rows[1], part.columns[1], spread=spread)
        columns = self.whole_shape(item)[1 if spread else 3]
        whole = Piece.dense(self.chip, 0, type_.dtype, part.rows[1], columns, spread=spread)
        above = part.rows[0] - self.row_starts[self.row_slice(part)]
        offset = ceil_div(above, self.chip.lanes) * whole.pitch * dtype_bytes(type_.dtype)
        found = Piece.dense(
            self.chip, item.ginfo.out_addr + offset, type_.dtype, part.rows[1], columns, spread=spread
        )
        return found.part(self.chip, *part.columns)

    def address(self, item: GroupItem, part: Part) -> int:
        """Where the part of a weight, parameter, bias or vector lies that belongs to these columns."""
        if item.ginfo.tile_addr:
            return self._own_place(item, part)
        if self.roles[item.value] is not Role.PARAMETER:
            return item.ginfo.out_addr
        type_ = item.record.result_types[0]
        block = part.columns[0] // self.chip.lanes
        return item.ginfo.out_addr + block * type_.shape[2] * dtype_bytes(type_.dtype)

    def _own_place(self, item: GroupItem, part: Part) -> int:
        """The place of the piece that begins where a part begins. Raises ValueError when there is none."""
        if item.index not in self._places:
            self._places[item.index] = self._find_places(item)
        rows = part.rows[0] if self.roles[item.value] is Role.ROWS else 0
        found = self._places[item.index].get((rows, part.columns[0]))
        if found is None:
            last = sum(part.columns) - 1
            raise ValueError(f"{item.record.location} has no piece of columns {part.columns[0]} to {last}")
        return found

    def _find_places(self, item: GroupItem) -> dict[Range, int]:
        """The address of every piece by its first row and column."""
        found = {}
        for number in range(item.ginfo.pieces):
            part = self.part(replace(item, run=number))
            found[part.rows[0], part.columns[0]] = item.ginfo.tile_addr[number % len(item.ginfo.tile_addr)]
        return found

    # -- what a run reads --------------------------------------------------------------------------------------------

    def operand_part(self, item: GroupItem, number: int, part: Part) -> Part:
        """The part of operand `number` that a run reads to make `part`."""
        maker = self.view.maker[item.record.operands[number]]
        role = self.roles[maker.value]
        if role is Role.VECTOR:
            return Part((0, 1), (0, maker.record.result_types[0].elements))
        if role is not Role.ROWS:
            return Part((0, 1), part.columns)
        whole = self.whole_shape(maker)[1 if self.is_spread(maker) else 3]
        takes_all = item.record.kind == PRODUCT or (item.record.kind == "Rope" and number > 0)
        return Part(part.rows, (0, whole) if takes_all else part.columns)

    def operands(self, item: GroupItem, part: Part) -> Operands:
        """Everything that a run reads."""
        pieces: list[Piece] = []
        addresses = {"weight": 0, "scale": 0, "zero_point": 0, "bias": 0}
        for number, value in enumerate(item.record.operands):
            maker = self.view.maker.get(value)
            if maker is None:
                continue
            taken = self.operand_part(item, number, part)
            role = self.roles[value]
            if role is Role.ROWS:
                pieces.append(self.piece(maker, taken))
            elif role is Role.VECTOR:
                type_ = maker.record.result_types[0]
                address = self.address(maker, taken)
                pieces.append(Piece.dense(self.chip, address, type_.dtype, 1, type_.elements))
            else:
                addresses[list(addresses)[number - WEIGHT]] = self.address(maker, taken)
        return Operands(tuple(pieces), **addresses, first=part.columns[0] == 0)


def _four(values: tuple[int, ...]) -> Shape4:
    """n, c, h, w of n, c, d, h, w."""
    n, c, _, h, w = values
    return (n, c, h, w)
