"""The helper with which kernels emit instructions: queues, waits, pipeline steps and views of DDR tensors.

Waits follow rule R1 of COST_MODEL.md: a command starts after the previous one of its queue and after the command
of the
other queue that it names. `sync` names everything emitted so far; commands between two syncs overlap. Both are about
one core: each has its own two queues and its own local memory. All cores meet only where an op begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine.errors import UserError
from engine.snapshot import OpRecord, TensorType
from engine.tpu.chip import Chip
from engine.tpu.isa import (
    BARRIER,
    INSTRUCTION,
    Arena,
    Constant,
    Direction,
    Global,
    Local,
    Opcode,
    Operand,
    Rounding,
    Shape4,
    Stream,
    contiguous,
    dtype_bytes,
)

LARGEST_PROGRAM = 2_500_000
"""Most instructions of one module. At 296 bytes each that is 740 MB, of which a worker holds a copy more while it hands
them over, and the workers of a block's two modules do so side by side; they take some 20 s to emit and as long to
price. What fits in a minute or two and a few GB ends here."""
_LARGEST_BYTES = LARGEST_PROGRAM * INSTRUCTION.itemsize


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b."""
    return -(-a // b)


def align_up(value: int, step: int) -> int:
    """Smallest multiple of `step` not below value."""
    return ceil_div(value, step) * step


def shape4(shape: tuple[int, ...]) -> Shape4:
    """A tensor shape read as [n, c, h, w]: missing dims are 1 on the right of c (so [1, L, H] is n=1, c=L, h=H,
    w=1)."""
    padded = (*shape, 1, 1, 1, 1)[:4]
    if len(shape) > 4:
        raise ValueError(f"shape {shape} has more than four dimensions")
    return (padded[0], padded[1], padded[2], padded[3])


@dataclass
class Emitter:
    """Emits the program of one module, op by op.

    base: DDR address of each arena, so that absolute addresses in the IR become arena plus offset. cores: how many run
    the program; with several of them ops begin with a barrier.
    """

    chip: Chip
    arenas: dict[Arena, tuple[int, int]]
    """arena -> (base address, size in bytes) of the module."""
    cores: int = 1
    stream: Stream = field(default_factory=Stream)
    record: OpRecord | None = None
    op_index: int = 0
    core: int = 0
    step: int = 0
    history: int = 0
    """Set while emitting the work of one history key block: 1 + its first row (see isa.INSTRUCTION)."""
    _waits: list[int] = field(default_factory=lambda: [0, 0])
    _pending: int = 0
    """Flags of the next instruction."""

    def begin(self, op_index: int, record: OpRecord, *, beside: bool = False) -> None:
        """Start an op: its first commands wait for everything before it (R2), on all cores unless it runs `beside` the
        op before it."""
        self.op_index, self.record, self.step, self.history = op_index, record, 0, 0
        self._pending = BARRIER if self.cores > 1 and not beside else 0
        self.on_core(0)

    def on_core(self, core: int) -> None:
        """Go on with the op on a core; its commands wait for everything before them there."""
        self.core, self.step = core, 0
        self.sync()

    def within(self, op_index: int, record: OpRecord, step: int) -> None:
        """Go on with an op that shares its time with others, at a step of them all; nothing waits."""
        self.op_index, self.record, self.step = op_index, record, step

    def sync(self) -> None:
        """Commands emitted from here on wait for all emitted before on this core.

        Raises UserError when the program has become too large.
        """
        # every tile syncs, so that a look here is as good as one at each instruction, and costs nothing
        if len(self.stream.data) > _LARGEST_BYTES:
            where = f"{self.record.name} at {self.record.location}" if self.record else "the program"
            raise UserError(
                f"{where} takes the module beyond {LARGEST_PROGRAM:,} instructions, which is the most; "
                "choose a smaller --max-input-length or --seq-length"
            )
        self._waits = list(self.stream.last[self.core])

    def pipeline(
        self,
        count: int,
        load: Callable[[int], None],
        compute: Callable[[int], None],
        store: Callable[[int], None],
    ) -> None:
        """Run `count` tiles double buffered (R3): step q computes tile q while q-1 is stored and q+1 loaded."""
        self.sync()
        load(0)
        for q in range(count):
            self.sync()
            self.step = q
            if q > 0:
                store(q - 1)
            if q + 1 < count:
                load(q + 1)
            compute(q)
        self.sync()
        store(count - 1)
        self.sync()

    # -- DDR views -------------------------------------------------------------------------------------------------

    def source(
        self, index: int, shape: Shape4 | None = None, stride: Shape4 | None = None, offset: int = 0
    ) -> Global:
        """DDR view of operand `index`: default dense shape4 of its type; `offset` and `stride` in elements."""
        assert self.record is not None
        return self.ddr(self.record.operand_types[index], shape, stride, offset)

    def target(
        self, index: int = 0, shape: Shape4 | None = None, stride: Shape4 | None = None, offset: int = 0
    ) -> Global:
        """DDR view of result `index`."""
        assert self.record is not None
        return self.ddr(self.record.result_types[index], shape, stride, offset)

    def ddr(
        self, type_: TensorType, shape: Shape4 | None = None, stride: Shape4 | None = None, offset: int = 0
    ) -> Global:
        """DDR view of a tensor with an absolute address."""
        if type_.address is None:
            raise ValueError(f"{type_} has no address; run address-assign first")
        shape = shape or shape4(type_.shape)
        for arena, (base, size) in self.arenas.items():
            if base <= type_.address < base + size:
                start = type_.address - base + offset * dtype_bytes(type_.dtype)
                return Global(arena, start, type_.dtype, shape, stride or contiguous(shape))
        raise ValueError(f"address {type_.address} of {type_} lies in no arena of the module")

    # -- local memory ----------------------------------------------------------------------------------------------

    def local(self, address: int, dtype: str, shape: Shape4, *, aligned: bool = True, lane: int = 0) -> Local:
        """A local tensor with the chip's layout: each channel's h x w is dense and, if `aligned`, padded to EU
        bytes."""
        _, c, h, w = shape
        plane = h * w
        if aligned:
            plane = align_up(plane, self.chip.eu_bytes // dtype_bytes(dtype))
        return Local(address, dtype, shape, (ceil_div(lane + c, self.chip.lanes) * plane, plane, w, 1), lane)

    def local_bytes(self, dtype: str, shape: Shape4, *, aligned: bool = True) -> int:
        """Bytes per lane of `local(...)` with the same arguments."""
        tensor = self.local(0, dtype, shape, aligned=aligned)
        return shape[0] * tensor.stride[0] * dtype_bytes(dtype)

    # -- instructions ----------------------------------------------------------------------------------------------

    def load(self, result: Local, source: Global, opcode: Opcode = Opcode.TENSOR, flags: int = 0) -> None:
        """GDMA DDR to local."""
        self.gdma(opcode, Direction.LOAD, result, source, flags=flags)

    def store(self, result: Global, source: Local, opcode: Opcode = Opcode.TENSOR, flags: int = 0) -> None:
        """GDMA local to DDR."""
        self.gdma(opcode, Direction.STORE, result, source, flags=flags)

    def gdma(
        self, opcode: Opcode, direction: Direction, result: Operand, *operands: Operand, flags: int = 0
    ) -> None:
        """Any GDMA instruction."""
        self.stream.append(
            opcode,
            result,
            operands,
            op=self.op_index,
            wait=self._waits[0],
            direction=direction,
            flags=flags | self._pending,
            step=self.step,
            history=self.history,
            core=self.core,
        )
        self._pending = 0

    def tiu(
        self,
        opcode: Opcode,
        result: Local,
        *operands: Operand,
        rounding: Rounding = Rounding.HALF_EVEN,
        flags: int = 0,
        kernel: tuple[int, int] = (0, 0),
    ) -> None:
        """Any TIU instruction."""
        self.stream.append(
            opcode,
            result,
            operands,
            op=self.op_index,
            wait=self._waits[1],
            rounding=rounding,
            flags=flags | self._pending,
            kernel=kernel,
            step=self.step,
            history=self.history,
            core=self.core,
        )
        self._pending = 0

    def program(self) -> np.ndarray:
        """The instructions emitted so far."""
        return self.stream.program()


def constant(value: float, dtype: str = "f32") -> Constant:
    """An immediate operand."""
    return Constant(value, dtype)
