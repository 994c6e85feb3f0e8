"""Slices of a group's tensors: how far each dimension can be cut, and which slices an op reads to make its result.

All cuts are separate by dimension. Rows (n and c) of every op here depend only on the same rows of its activations, so
a slice of rows needs the same rows of the operands; h and w are cut only where every op works element by element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from engine.passes.layer_group.chains import GroupOps, LocalOp, Tensor
from engine.passes.layer_group.layout import Role
from engine.passes.layer_group.plan import Secs, Slices
from engine.tpu.chip import Chip
from engine.tpu.emit import ceil_div
from engine.tpu.isa import Shape4

ELEMENTWISE = frozenset({"Add", "Mul", "Active", "Cast"})
"""Kinds of ops in which every element depends on the same element of the operands only."""


class SliceError(Exception):
    """Two ops read different slices of one tensor, or an op cannot take the slice; the message names them."""


@dataclass(frozen=True)
class Cut:
    """One dimension cut into consecutive pieces."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def whole(cls, length: int) -> Cut:
        """Not cut."""
        return cls((0,), (length,))

    @classmethod
    def even(cls, length: int, count: int) -> Cut:
        """`count` pieces that differ by at most one element, longer ones first."""
        base, longer = divmod(length, count)
        return cls.of_lengths([base + (i < longer) for i in range(count)])

    @classmethod
    def lanes(cls, length: int, count: int, lanes: int) -> Cut:
        """Even pieces of whole sets of lanes; the last one ends with the dimension."""
        blocks = cls.even(ceil_div(length, lanes), count)
        lengths = [lanes * n for n in blocks.lengths]
        return cls.of_lengths([*lengths[:-1], length - sum(lengths[:-1])])

    @classmethod
    def of_lengths(cls, lengths: list[int]) -> Cut:
        """Pieces of these lengths, one behind the other."""
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        return cls(tuple(starts), tuple(lengths))

    @property
    def longest(self) -> int:
        """Length of the largest piece."""
        return max(self.lengths)

    def piece(self, number: int) -> tuple[int, int]:
        """Start and length of a piece; an uncut dimension has one for all slices."""
        at = number if len(self.starts) > 1 else 0
        return self.starts[at], self.lengths[at]


@dataclass(frozen=True)
class Sliced:
    """A tensor's cuts by dimension."""

    n: Cut
    c: Cut
    h: Cut
    w: Cut

    @property
    def dims(self) -> tuple[Cut, Cut, Cut, Cut]:
        """The cuts in order n, c, h, w."""
        return (self.n, self.c, self.h, self.w)

    @cached_property
    def largest(self) -> Shape4:
        """Shape of the largest slice."""
        return (self.n.longest, self.c.longest, self.h.longest, self.w.longest)

    @property
    def is_whole(self) -> bool:
        """The same for every slice of the group."""
        return all(len(cut.starts) == 1 for cut in self.dims)

    def shape(self, number: Secs) -> Shape4:
        """Shape of the slice with this number in each dimension."""
        parts = zip(self.dims, (number.n, number.c, number.h, number.w), strict=True)
        n, c, h, w = (cut.piece(at)[1] for cut, at in parts)
        return (n, c, h, w)

    def plan(self) -> Slices:
        """As the pass reports it, with d."""
        n, c, h, w = self.dims
        cuts = (n, c, Cut.whole(1), h, w)
        return Slices(tuple(cut.starts for cut in cuts), tuple(cut.lengths for cut in cuts))


def whole(shape: Shape4) -> Sliced:
    """A tensor that every slice takes whole."""
    return Sliced(*(Cut.whole(length) for length in shape))


def limits(group: GroupOps, chip: Chip) -> Secs:
    """The finest slicing of each dimension: the least over all rows that the group makes.

    c is cut into whole sets of lanes; h and w only between ops that work element by element, and w only as long as a
    row of DDR stays at least one burst.
    """
    shapes = [group.tensors[op.result].shape for op in group.ops]
    n = min(shape[0] for shape in shapes)
    c = min(ceil_div(shape[1], chip.lanes) for shape in shapes)
    if not all(op.kind in ELEMENTWISE for op in group.ops):
        return Secs(n, c)
    h, w = (min(shape[axis] for shape in shapes) for axis in (2, 3))
    return Secs(n, c, h=h, w=w)


def slice_results(tensor: Tensor, secs: Secs, chip: Chip) -> Sliced:
    """The slices of a tensor that leaves the group: they cover it exactly once."""
    n, c, h, w = tensor.shape
    return Sliced(
        Cut.even(n, secs.n),
        Cut.lanes(c, secs.c, chip.lanes) if secs.c > 1 else Cut.whole(c),
        Cut.even(h, secs.h),
        Cut.even(w, secs.w),
    )


def backward(op: LocalOp, operand: Tensor, result: Tensor, made: Sliced) -> Sliced:
    """The slices of `operand` that the op reads for the slices `made` of its result."""
    if operand.role is not Role.ROWS:
        return whole(operand.shape)
    n, c, h, w = (Cut.whole(length) for length in operand.shape)
    n = made.n if operand.shape[0] == result.shape[0] else n
    c = made.c if operand.shape[1] == result.shape[1] else c
    if op.kind in ELEMENTWISE:
        h, w = made.h, made.w
    return Sliced(n, c, h, w)


def infer(group: GroupOps, secs: Secs, chip: Chip) -> Mapping[str, Sliced]:
    """The slices of every tensor of a group, from its outputs backwards.

    Raises SliceError when the users of a tensor disagree, or a product would get several n.
    """
    found = {value: slice_results(group.tensors[value], secs, chip) for value in group.outputs}
    for op in reversed(group.ops):
        made = found.get(op.result)
        if made is None:
            raise SliceError(f"nothing reads the result of {op.kind}")
        for value in op.operands:
            read = backward(op, group.tensors[value], group.tensors[op.result], made)
            if found.setdefault(value, read) != read:
                raise SliceError(f"{op.kind} reads other slices of a tensor than another op")
        if op.kind == "MatMul" and made.n.longest > 1:
            raise SliceError(f"{op.kind} takes one n, the slice has {made.n.longest}")
    return found


def number_of(secs: Secs, index: int) -> Secs:
    """The number in each dimension of the group's slice `index`; c runs fastest, then w, h, d, n."""
    numbers = []
    for count in (secs.c, secs.w, secs.h, secs.d, secs.n):
        index, number = divmod(index, count)
        numbers.append(number)
    c, w, h, d, n = numbers
    return Secs(n, c, d, h, w)
