"""address-assign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine import mlir
from engine.errors import CompileError
from engine.passes.base import Pass, PassContext, PassReport
from engine.tpu.cores import spans_of
from engine.tpu.emit import align_up
from engine.tpu.isa import Arena
from engine.tpu.memory import (
    Buffer,
    Placement,
    allocate,
    arena_size,
    check_addresses,
    kv_region,
    with_address,
)

LAST_WEIGHTS = ("@causal_mask",)
"""Weights that only some of a layer's modules have: behind all others, so that shared ones keep their offset."""


@dataclass(frozen=True)
class AddressAssign(Pass):
    """Gives every tensor a DDR address: weights in the coeff arena in program order (masks last, so that a layer's
    modules agree), inputs and outputs in the io arena behind the K and V regions that all of a layer's modules share,
    everything else in the neuron arena, where an address is used again once its tensor is dead. New K and V rows get
    the slot right behind the history that the module reads. Of a layer group only the results get addresses: what stays
    inside is in local memory. The result is proved before it leaves the pass."""

    name = "address-assign"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        alignment = context.options.chip.alignment
        operations = mlir.body_operations(module)
        values = _Values(operations)
        offsets = self._coeff(operations, alignment)
        coeff_size = self._size(offsets, values, alignment)
        io = self._io(operations, values, context)
        io_size = self._io_size(io, values, context)
        neuron = self._neuron(operations, values, {*offsets, *io}, alignment)
        coeff_base = context.options.chip.ddr_base
        io_base = coeff_base + coeff_size
        neuron_base = io_base + io_size
        for base, placed in ((coeff_base, offsets), (io_base, io)):
            for root, offset in placed.items():
                values.place(root, base + offset)
        for placement in neuron.values():
            values.place(int(placement.buffer.name), neuron_base + placement.offset)
        self._retype(operations, values)
        mlir.update_function_type(module)
        neuron_size = arena_size(neuron.values(), alignment)
        arenas = {
            Arena.COEFF: (coeff_base, coeff_size),
            Arena.IO: (io_base, io_size),
            Arena.NEURON: (neuron_base, neuron_size),
        }
        mlir.set_module_attributes(module, _arena_attributes(arenas))
        self._prove(module, context)
        return PassReport((self._note(neuron, neuron_size),))

    def _coeff(self, operations: Sequence[mlir.Operation], alignment: int) -> dict[int, int]:
        """Offset of each weight's value."""
        weights = [op for op in operations if op.name == "top.Weight"]
        late = [op for op in weights if mlir.attributes_of(op)["tensors"][0] in LAST_WEIGHTS]
        offset, offsets = 0, {}
        for operation in [op for op in weights if op not in late] + late:
            value = operation.results[0]
            offsets[hash(value)] = offset
            offset = align_up(offset + mlir.from_mlir_type(value.type).nbytes, alignment)
        return offsets

    def _io(
        self, operations: Sequence[mlir.Operation], values: _Values, context: PassContext
    ) -> dict[int, int]:
        """Offset of each input and output, the KV regions first."""
        region = kv_region(context.spec, context.options)
        alignment = context.options.chip.alignment
        fixed: dict[str, int] = {}
        if region is not None:
            append = context.spec.cache * region.row_bytes
            fixed = {
                "history_k": region.k_offset,
                "history_v": region.v_offset,
                "k_cache": region.k_offset + append,
                "v_cache": region.v_offset + append,
            }
        offset = region.nbytes if region is not None else 0
        offsets: dict[int, int] = {}
        inputs = {mlir.origins(op.location)[0][0]: op for op in operations if op.name == "top.Input"}
        named = [
            (t.name, values.root(inputs[t.name].results[0])) for t in context.spec.inputs if t.name in inputs
        ]
        returned = list(operations[-1].operands)
        named += [(t.name, values.root(v)) for t, v in zip(context.spec.outputs, returned, strict=True)]
        for name, root in named:
            if root in offsets:
                raise CompileError(f"output {name} is the same tensor as another input or output")
            offsets[root] = fixed.get(name, offset)
            if name not in fixed:
                offset = align_up(offset + values.nbytes(root), alignment)
        return offsets

    def _io_size(self, io: dict[int, int], values: _Values, context: PassContext) -> int:
        region = kv_region(context.spec, context.options)
        end = max((offset + values.nbytes(root) for root, offset in io.items()), default=0)
        return align_up(max(end, region.nbytes if region else 0), context.options.chip.alignment)

    def _size(self, offsets: dict[int, int], values: _Values, alignment: int) -> int:
        return align_up(max((o + values.nbytes(root) for root, o in offsets.items()), default=0), alignment)

    def _neuron(
        self, operations: Sequence[mlir.Operation], values: _Values, done: set[int], alignment: int
    ) -> dict[str, Placement]:
        """Placement of everything else by liveness."""
        buffers: dict[int, Buffer] = {}
        spans = spans_of([mlir.attribute(operation, "group_parallel") for operation in operations])
        for index, operation in enumerate(operations):
            for value in operation.results:
                root = values.root(value)
                if root in done or mlir.from_mlir_type(value.type).is_none:
                    continue
                users = [values.position(user) for user, _ in mlir.uses(value)]
                last = max(spans[position][1] for position in (index, *users))
                known = buffers.get(root)
                first = known.first if known else spans[index][0]
                last = max(last, known.last) if known else last
                buffers[root] = Buffer(str(root), values.nbytes(root), first, last)
        return allocate(buffers.values(), alignment)

    def _retype(self, operations: Sequence[mlir.Operation], values: _Values) -> None:
        for operation in operations:
            for value in operation.results:
                address = values.address(value)
                if address is not None:
                    mlir.retype(value, with_address(mlir.from_mlir_type(value.type), address))
            if operation.name == "tpu.Group":
                for stored, result in zip(mlir.yielded(operation), operation.results, strict=True):
                    mlir.retype(stored, mlir.from_mlir_type(result.type))
            if operation.name == "top.Input":
                mlir.retype(operation.operands[0], mlir.from_mlir_type(operation.results[0].type))

    def _prove(self, module: mlir.Module, context: PassContext) -> None:
        problems = check_addresses(
            mlir.records(module), mlir.module_attributes(module), context.spec, context.options
        )
        if problems:
            raise CompileError("addresses break the contract: " + "; ".join(problems))

    def _note(self, neuron: dict[str, Placement], neuron_size: int) -> str:
        total = sum(p.buffer.nbytes for p in neuron.values())
        reuse = f", reused {total / neuron_size:.1f}x" if total > neuron_size else ""
        size = f"{neuron_size / 1e3:.3g} kB" if neuron_size < 999.5e3 else f"{neuron_size / 1e6:.3g} MB"
        return f"neuron {size}{reuse}"


def _arena_attributes(arenas: dict[Arena, tuple[int, int]]) -> dict[str, int | str]:
    attributes: dict[str, int | str] = {"state": "TPU_ADDRESSED"}
    for arena, (base, size) in arenas.items():
        attributes[f"{arena.name.lower()}_addr"] = base
        attributes[f"{arena.name.lower()}_size"] = size
    return attributes


@dataclass
class _Values:
    """Which values share memory: reshapes and in-place concatenations lie at their first operand's address."""

    operations: Sequence[mlir.Operation]
    _addresses: dict[int, int] = field(default_factory=dict)
    _roots: dict[int, int] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _positions: dict[mlir.Operation, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, operation in enumerate(self.operations):
            self._positions[operation] = index
            for value in operation.results:
                key = hash(value)
                self._roots[key] = self.root(operation.operands[0]) if self._aliases(operation) else key
                self._bytes.setdefault(self._roots[key], mlir.from_mlir_type(value.type).nbytes)

    @staticmethod
    def _aliases(operation: mlir.Operation) -> bool:
        if operation.name in ("tpu.Reshape", "top.Reshape"):
            return True
        return operation.name == "tpu.Concat" and bool(mlir.attributes_of(operation).get("only_merge"))

    def root(self, value: mlir.Value) -> int:
        """Key of the value whose memory this one uses."""
        return self._roots[hash(value)]

    def nbytes(self, root: int) -> int:
        """Bytes of the value that owns the memory."""
        return self._bytes[root]

    def position(self, operation: mlir.Operation) -> int:
        """Index of an op in the program; what stands in a group runs where the group stands."""
        return self._positions[mlir.top_level(operation)]

    def place(self, root: int, address: int) -> None:
        """Record the address of an owner."""
        self._addresses[root] = address

    def address(self, value: mlir.Value) -> int | None:
        """Address of any value; None for absent ones."""
        return self._addresses.get(self._roots[hash(value)])
