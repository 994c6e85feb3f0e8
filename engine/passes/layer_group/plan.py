"""What the layer-group pass decides, as plain data: groups with slices, time steps and local-memory addresses, and why.

The pass computes this from op records (no MLIR), then writes it into the IR; the screens and `explain` print it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class GroupType(IntEnum):
    """How tensors of a group are read as [n, c, d, h, w]; numbers as in TPU-MLIR, but for STREAM, which is ours.

    STREAM: weights come tile by tile (`--fuse-weights`). Such a group has one slice and one stage: `flow` lists the
    time steps of all its tiles, and an op runs once for each of its pieces, under ids that count up from its own.
    """

    NORMAL = 0
    SMALL_C = 2
    MM = 4
    STREAM = 16


class ItemKind(StrEnum):
    """What an item of a group does."""

    LOAD = "load"
    COMPUTE = "compute"
    STORE = "store"


class BufferKind(StrEnum):
    """What a local buffer holds."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    SCRATCH = "scratch"


@dataclass(frozen=True)
class Secs:
    """Number of slices of each dimension; the group runs n * c * d * h * w times, c fastest."""

    n: int = 1
    c: int = 1
    d: int = 1
    h: int = 1
    w: int = 1

    @property
    def slices(self) -> int:
        """How often the group runs."""
        return self.n * self.c * self.d * self.h * self.w

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        """(n, c, d, h, w)."""
        return (self.n, self.c, self.d, self.h, self.w)


@dataclass(frozen=True)
class Slices:
    """Start and length of every slice of a tensor, per dimension n, c, d, h, w."""

    starts: tuple[tuple[int, ...], ...]
    lengths: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Item:
    """One load, computation or store of a group.

    id: number used in `flow`. record: index of the op record that computes, or that made the value moved. value: SSA
    value loaded, computed (first result) or stored. stage: pipeline stage 0, 1 or 2: at pipeline step p the item
    works on slice p - stage. held: loaded once for all slices. out_address, out_bytes: the value in local memory
    (bytes per lane); buffer_address, buffer_bytes: scratch. eu_align: channels padded to EU bytes. slices: of the
    value. In a STREAM group an item is one run of an op on one piece, and out_address is that piece's if `own_place`,
    that of the whole value otherwise.
    """

    id: int
    kind: ItemKind
    record: int
    value: str
    stage: int
    held: bool
    out_address: int
    out_bytes: int
    buffer_address: int
    buffer_bytes: int
    eu_align: bool
    slices: Slices
    own_place: bool = False


@dataclass(frozen=True)
class TimeStep:
    """Items that run at the same time: computations on the TIU, transfers on the GDMA; with their cycles per slice."""

    computes: tuple[int, ...]
    transfers: tuple[int, ...]
    compute_cycles: int
    transfer_cycles: int


@dataclass(frozen=True)
class LmemBuffer:
    """A buffer in local memory: bytes per lane, live from `first_step` to `last_step` inclusive.

    first_step > last_step: the lifetime wraps around the pipelined loop. `value` names what it holds.
    """

    value: str
    kind: BufferKind
    address: int
    nbytes: int
    first_step: int
    last_step: int
    held: bool
    item: int


@dataclass(frozen=True)
class GroupPlan:
    """One group. records: indices of its op records in program order. cycles: of the whole group, all slices.
    row_starts: of a STREAM group, the first row of each slice of rows that goes through all its ops."""

    records: tuple[int, ...]
    type: GroupType
    secs: Secs
    stages: int
    items: tuple[Item, ...]
    steps: tuple[TimeStep, ...]
    buffers: tuple[LmemBuffer, ...]
    cycles: int
    peak_bytes: int
    row_starts: tuple[int, ...] = ()

    @property
    def row_secs(self) -> Secs:
        """As how many slices the group was tried: a STREAM group counts its slices of rows as those of c."""
        return Secs(c=len(self.row_starts)) if self.row_starts else self.secs

    @property
    def flow(self) -> list[int]:
        """Time steps as TPU-MLIR writes them: -1, ids of step 1, -2, ids of step 2, ..."""
        found: list[int] = []
        for number, step in enumerate(self.steps, 1):
            found += [-number, *step.computes, *step.transfers]
        return found


@dataclass(frozen=True)
class Attempt:
    """One slicing that was tried. needed_bytes, available_bytes: local memory per lane; reason: empty when it was taken
    or merely cost more; cycles: None when it does not fit."""

    secs: Secs
    reason: str
    needed_bytes: int
    available_bytes: int
    cycles: int | None


@dataclass(frozen=True)
class Alternative:
    """What the search compared an interval with: `cycles` of the group with this op and of the split."""

    description: str
    joined_cycles: int | None
    split_cycles: int


@dataclass(frozen=True)
class Explanation:
    """Why group number `group` is as it is: why it begins and ends where it does, and which slicings were tried."""

    group: int
    begins: str
    ends: str
    attempts: tuple[Attempt, ...]
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class LayerGroupReport:
    """The pass's report: groups in program order with their explanations, and the cycles of ops left global."""

    groups: tuple[GroupPlan, ...]
    explanations: tuple[Explanation, ...]
    global_cycles: dict[int, int]
