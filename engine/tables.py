"""What the commands print and the screens show: modules, passes, memory and KV regions, as plain data.

Tables are lists and dicts ready for JSON (units: bytes, cycles; addresses are DDR bytes). All of it is read from the
snapshots; nothing here runs a pass or reads a weight.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engine.compiler import Compilation
from engine.errors import CompileError, UserError
from engine.group_cores import core_shares
from engine.group_tables import ModuleGroups
from engine.merge import ADDRESSED, layout_of
from engine.passes.layer_group.plan import LayerGroupReport
from engine.snapshot import ModuleSnapshots, OpRecord, Snapshot, TensorType
from engine.stages import Kind, ModuleSpec, Stage, TensorSpec
from engine.tpu.isa import Arena
from engine.tpu.memory import KvRegion, TensorPlace, check_addresses, kv_region, tensor_places

Table = list[dict[str, Any]]

GROUPED, SHARED = "layer-group", "core-parallel"
"""The pass that puts ops into layer groups."""

# -- modules and passes --------------------------------------------------------------------------------------------


def modules_table(compilation: Compilation) -> Table:
    """Every distinct module: stage, kind, layers served, inputs, outputs, parameters and weight bytes of one layer."""
    return [_module_row(spec, compilation.modules.get(spec.name)) for spec in compilation.specs]


def _module_row(spec: ModuleSpec, module: ModuleSnapshots | None) -> dict[str, Any]:
    snapshots = module.snapshots if module else ()
    return {
        "name": spec.name,
        "stage": str(spec.stage),
        "kind": str(spec.kind),
        "layers": list(spec.layers),
        "inputs": [_tensor_row(tensor) for tensor in spec.inputs],
        "outputs": [_tensor_row(tensor) for tensor in spec.outputs],
        "parameters": _parameters(snapshots[0]) if snapshots else 0,
        "weight_bytes": _weight_bytes(snapshots[-1]) if snapshots else {},
    }


def _tensor_row(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.type.shape), "dtype": tensor.type.dtype}


def weight_ops(snapshot: Snapshot) -> list[OpRecord]:
    """The `top.Weight` records of a snapshot."""
    return [op for op in snapshot.ops if op.name == "top.Weight"]


def weight_tensors(weight: OpRecord) -> tuple[str, ...]:
    """The checkpoint tensors (or computed ones, `@...`) that a `top.Weight` names."""
    return tuple(weight.attributes.get("tensors") or ())


def _parameters(first: Snapshot) -> int:
    """Numbers of the model in the module: each checkpoint tensor once, no computed tables."""
    sizes = {weight_tensors(op): op.result_types[0].elements for op in weight_ops(first)}
    return sum(size for names, size in sizes.items() if not any(name.startswith("@") for name in names))


WEIGHT_KINDS = (
    "linear",
    "scale",
    "zero_point",
    "bias",
    "norm",
    "embedding",
    "lm_head",
    "rope",
    "mask",
    "other",
)
"""Kinds by which weight bytes are summed."""


def weight_kind(weight: OpRecord) -> str:
    """Which of WEIGHT_KINDS a `top.Weight` is, from its tensor's name and the part of a quantised weight it holds."""
    part = str(weight.attributes.get("path", "")).rpartition(".")[2]
    if part in ("scale", "zero_point"):
        return part
    name = weight_tensors(weight)[0] if weight_tensors(weight) else weight.location
    if name.startswith("@"):
        return "rope" if name.startswith("@rope") else "mask" if name.endswith("mask") else "other"
    for ending, kind in (
        (".bias", "bias"),
        ("norm.weight", "norm"),
        ("embed_tokens.weight", "embedding"),
        ("lm_head.weight", "lm_head"),
        (".weight", "linear"),
    ):
        if name.endswith(ending):
            return kind
    return "other"


def _weight_bytes(last: Snapshot) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for weight in weight_ops(last):
        found[weight_kind(weight)] += weight.result_types[0].nbytes
    return {kind: found[kind] for kind in WEIGHT_KINDS if kind in found}


def passes_table(compilation: Compilation, module: str) -> Table:
    """The passes that ran over a module: changed or not, computing ops before and after, wall time, notes."""
    snapshots = compilation.snapshots(module).snapshots
    before = [0, *(snapshot.op_count for snapshot in snapshots)]
    return [
        {
            "pass": snapshot.pass_name,
            "changed": snapshot.changed,
            "ops_before": ops,
            "ops_after": snapshot.op_count,
            "ms": round(snapshot.seconds * 1e3, 3),
            "notes": list(snapshot.notes),
        }
        for snapshot, ops in zip(snapshots, before, strict=False)
    ]


# -- a module as one of its layers sees it ---------------------------------------------------------------------------


def snapshot_after(compilation: Compilation, module: str, pass_name: str) -> Snapshot:
    """A module's snapshot after a pass. Raises UserError with the passes there are for an unknown one, and CompileError
    with the cause for one that the module did not reach."""
    found = compilation.snapshots(module)
    for snapshot in found.snapshots:
        if snapshot.pass_name == pass_name:
            return snapshot
    known = ", ".join(s.pass_name for s in found.snapshots)
    if found.error:
        raise CompileError(found.error, found.name, pass_name)
    raise UserError(f"module {module} has no pass {pass_name!r}; it has: {known}")


def pass_behind(compilation: Compilation, module: str, pass_name: str) -> str:
    """The pass that ran after another. Raises UserError for an unknown one and for the last."""
    snapshot_after(compilation, module, pass_name)
    names = [snapshot.pass_name for snapshot in compilation.snapshots(module).snapshots]
    following = names[names.index(pass_name) + 1 :]
    if not following:
        raise UserError(f"{pass_name} is the last pass of module {module}; name an earlier one")
    return following[0]


@dataclass(frozen=True)
class LayerView:
    """How names and addresses of a shared module read in one of its layers.

    shifts: arena -> what to add to the module's own addresses (bytes).
    """

    layer: int
    shifts: Mapping[Arena, int]
    bases: Mapping[Arena, tuple[int, int]]

    def base(self, arena: Arena) -> int:
        """Where the layer's arena starts."""
        return self.bases[arena][0] + self.shifts[arena]

    def address(self, address: int) -> int:
        """The layer's address of one of the module's own."""
        for arena, (start, size) in self.bases.items():
            if start <= address < start + size:
                return address + self.shifts[arena]
        return address

    def name(self, text: str) -> str:
        """Tensor names with the layer in place of its placeholder."""
        return text.replace("{i}", str(self.layer))


def layer_view(compilation: Compilation, module: str) -> LayerView:
    """The view of the layer that `module` names (`block_7` has layer 7's; `block_0` layer 0's).

    Addresses are those of the whole program where everything was compiled, else the module's own.
    """
    spec, layer = compilation.find(module)
    layout = layout_of(snapshot_after(compilation, module, ADDRESSED))
    own = layout.spans()
    if not compilation.complete:
        return LayerView(layer, dict.fromkeys(Arena, 0), own)
    bases = compilation.merged.bases[spec.name, layer]
    return LayerView(layer, {arena: bases.of(arena) - own[arena][0] for arena in Arena}, own)


_ENCODED_ADDRESS = re.compile(r", (\d+) : i64>")
_ARENA_ADDRESS = re.compile(r"(module\.(coeff|io|neuron)_addr = )\d+")


def ir_text(compilation: Compilation, module: str, pass_name: str) -> str:
    """The IR after a pass as the layer that `module` names has it: module name, tensors and addresses.

    `block_7` reads as layer 7, `block_0` as layer 0. Addresses are those of the whole program, unless they are
    provisional (see `is_provisional`): then arenas start at the chip's DDR base.
    """
    snapshot = snapshot_after(compilation, module, pass_name)
    spec, layer = compilation.find(module)
    text = snapshot.text.replace(f"@{spec.name} ", f"@{spec.name_for(layer)} ").replace("{i}", str(layer))
    if not _has_addresses(snapshot) or not compilation.complete:
        return text
    view = layer_view(compilation, module)
    text = _ARENA_ADDRESS.sub(lambda m: f"{m[1]}{view.base(Arena[m[2].upper()])}", text)
    return _ENCODED_ADDRESS.sub(lambda m: f", {view.address(int(m[1]))} : i64>", text)


def is_provisional(compilation: Compilation, snapshot: Snapshot) -> bool:
    """Whether a snapshot has addresses and merge has not placed them, because other modules are not compiled."""
    return _has_addresses(snapshot) and not compilation.complete


def _has_addresses(snapshot: Snapshot) -> bool:
    return "coeff_addr" in snapshot.attributes


# -- memory ----------------------------------------------------------------------------------------------------------


def memory_table(compilation: Compilation, module: str, core: int | None = None) -> dict[str, Any]:
    """DDR tensors of a module with lifetimes, and the KV slots of every layer that it serves, at merged addresses.

    Several ops of one origin make tensors of one name; `value`, the SSA name in the IR, is a tensor's own.

    `groups` and `lmem` describe local memory (bytes per lane, time steps from 0) as all cores have it, or as one `core`
    has it; `state` recurrent state; modules without them leave the lists empty. Raises UserError for a core that the
    program does not have.
    """
    spec, _ = compilation.find(module)
    _require_core(compilation, core)
    view = layer_view(compilation, module)
    places = module_places(compilation, module)
    snapshot = snapshot_after(compilation, module, ADDRESSED)
    names = _value_names(snapshot, spec)
    makers = {value: op.name for op in snapshot.ops for value in op.results}
    local = module_groups(compilation, module)
    return {
        "groups": local.groups(core) if local else [],
        "lmem": local.lmem(core) if local else [],
        "ddr": [_place_row(place, view, names, makers[place.value]) for place in places],
        "kv_cache": _kv_rows(compilation, spec),
        "state": [],
    }


def _require_core(compilation: Compilation, core: int | None) -> None:
    count = compilation.options.cores
    if core is not None and not 0 <= core < count:
        known = f"cores 0 to {count - 1}" if count > 1 else "core 0 alone"
        raise UserError(
            f"there is no core {core}: this program is compiled for {known}; --cores sets how many"
        )


def module_groups(compilation: Compilation, module: str) -> ModuleGroups | None:
    """The layer groups of a module, as the layer that `module` names sees them; None when none were searched for.

    Raises CompileError when the module did not come that far.
    """
    report = snapshot_after(compilation, module, GROUPED).report
    if not isinstance(report, LayerGroupReport):
        return None
    snapshots = compilation.snapshots(module).snapshots
    before = next(one for one, two in pairwise(snapshots) if two.pass_name == GROUPED)
    _, layer = compilation.find(module)
    cores = compilation.options.cores
    return ModuleGroups(
        report,
        before.ops,
        compilation.options.chip,
        lambda text: text.replace("{i}", str(layer)),
        core_shares(report, snapshot_after(compilation, module, SHARED).ops, cores) if cores > 1 else (),
    )


def explain_table(compilation: Compilation, module: str, group: int | None = None) -> dict[str, Any]:
    """Why the layer groups of a module are as they are, or one of them, and which ops are in none.

    Raises UserError for an unknown group.
    """
    local = module_groups(compilation, module)
    groups = local.explanations() if local else []
    return {
        "module": module,
        "chip": compilation.options.chip_name,
        "cores": compilation.options.cores,
        "lmem_bytes": compilation.options.chip.lmem_bytes,
        "searched": local is not None,
        "groups": groups if group is None else [known_group(groups, module, group)],
        "global": local.global_ops() if local and group is None else [],
    }


def known_group(groups: Table, module: str, number: int) -> dict[str, Any]:
    """The row of a group. Raises UserError with the groups there are."""
    found = next((row for row in groups if row["group"] == number), None)
    if found is None:
        count = len(groups)
        known = (
            f"it has groups 0 to {count - 1}" if count > 1 else "it has group 0" if count else "it has none"
        )
        raise UserError(f"module {module} has no layer group {number}; {known}")
    return found


def module_places(compilation: Compilation, module: str) -> tuple[TensorPlace, ...]:
    """Every tensor of a module in DDR, at the module's own addresses, by arena and address."""
    snapshot = snapshot_after(compilation, module, ADDRESSED)
    places = tensor_places(snapshot.ops, layout_of(snapshot))
    return tuple(sorted(places, key=lambda place: (place.arena, place.address, place.first)))


def arena_sizes(compilation: Compilation, module: str) -> dict[str, int]:
    """Bytes of each DDR arena of a module."""
    layout = layout_of(snapshot_after(compilation, module, ADDRESSED))
    return {arena.name.lower(): layout.size[arena] for arena in Arena}


def _value_names(snapshot: Snapshot, spec: ModuleSpec) -> dict[int, str]:
    """Address -> name, of tensors that are better known by another name than their op's: outputs, parts of weights."""
    names = {
        type_.address: tensor.name
        for tensor, type_ in zip(spec.outputs, snapshot.ops[-1].operand_types, strict=True)
        if type_.address is not None
    }
    for weight in weight_ops(snapshot):
        part, address = weight_kind(weight), weight.result_types[0].address
        if part in ("scale", "zero_point") and address is not None:
            names[address] = f"{weight.location}.{part}"
    return names


def _place_row(place: TensorPlace, view: LayerView, names: Mapping[int, str], maker: str) -> dict[str, Any]:
    name = place.name if place.arena is Arena.NEURON else names.get(place.address, place.name)
    return {
        "arena": place.arena.name.lower(),
        "tensor": view.name(name),
        "value": place.value,
        "op": maker,
        "address": view.address(place.address),
        "bytes": place.nbytes,
        "first_use": place.first,
        "last_use": place.last,
    }


def memory_problems(compilation: Compilation, module: str) -> list[str]:
    """Every way in which a module's addresses break the contract, as sentences."""
    snapshot = snapshot_after(compilation, module, ADDRESSED)
    spec, _ = compilation.find(module)
    return check_addresses(snapshot.ops, snapshot.attributes, spec, compilation.options)


@dataclass(frozen=True)
class KvSlots:
    """Where one layer's K and V lie for one module, read from the module's IR (DDR bytes).

    rows: C, the rows of history that the module reads; its new rows are written at the append addresses.
    """

    layer: int
    module: str
    k_address: int
    v_address: int
    k_append_address: int
    v_append_address: int
    row_bytes: int
    rows: int

    @property
    def is_at_slot(self) -> bool:
        """The new rows follow the history directly, for K and V."""
        step = self.rows * self.row_bytes
        return (self.k_append_address, self.v_append_address) == (
            self.k_address + step,
            self.v_address + step,
        )


def kv_slots(compilation: Compilation, spec: ModuleSpec) -> list[KvSlots]:
    """The slots of every layer that a block serves; none for other modules.

    Reads the addresses of the history inputs and of the returned new rows; a module without history inputs (prefill)
    writes at the start of the regions.
    """
    region = kv_region(spec, compilation.options)
    if region is None or not compilation.complete:
        return []
    snapshot = snapshot_after(compilation, spec.name, ADDRESSED)
    inputs = {op.location: op.result_types[0] for op in snapshot.ops if op.name == "top.Input"}
    outputs = dict(zip((t.name for t in spec.outputs), snapshot.ops[-1].operand_types, strict=True))
    k_new, v_new = _address(outputs["k_cache"]), _address(outputs["v_cache"])
    k = _address(inputs["history_k"]) if "history_k" in inputs else k_new
    v = _address(inputs["history_v"]) if "history_v" in inputs else v_new
    row_bytes = outputs["k_cache"].nbytes // outputs["k_cache"].shape[1]
    rows = inputs["history_k"].shape[1] if "history_k" in inputs else 0
    base = layout_of(snapshot).base[Arena.IO]
    found = []
    for layer in spec.layers:
        shift = compilation.merged.bases[spec.name, layer].io - base
        name = spec.name_for(layer)
        found.append(
            KvSlots(layer, name, k + shift, v + shift, k_new + shift, v_new + shift, row_bytes, rows)
        )
    return found


def _address(type_: TensorType) -> int:
    if type_.address is None:
        raise CompileError(f"a KV tensor of type {type_} has no address")
    return type_.address


def _kv_rows(compilation: Compilation, spec: ModuleSpec) -> Table:
    return [
        {
            "layer": slots.layer,
            "module": slots.module,
            "k_address": slots.k_address,
            "v_address": slots.v_address,
            "k_append_address": slots.k_append_address,
            "v_append_address": slots.v_append_address,
            "row_bytes": slots.row_bytes,
            "rows": slots.rows,
        }
        for slots in kv_slots(compilation, spec)
    ]


# -- KV regions of the whole program -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class KvLayer:
    """One layer's regions: K and V address, and what is wrong with them (nothing, as sentences)."""

    layer: int
    k_address: int
    v_address: int
    append: Mapping[int, int]
    """cache length C -> bytes from a region's start to the slot of the new rows."""
    problems: tuple[str, ...]


@dataclass(frozen=True)
class KvTable:
    """The KV cache of the whole program.

    rows: rows of one region (S + the largest append). cache_lengths: C of the decode modules, largest first. row_bytes:
    one row of K (and of V). layers: by layer.
    """

    rows: int
    history_rows: int
    row_bytes: int
    cache_lengths: tuple[int, ...]
    layers: tuple[KvLayer, ...]

    @property
    def history_bytes(self) -> int:
        """Bytes of all layers' K and V rows 0..S-1."""
        return 2 * len(self.layers) * self.history_rows * self.row_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes that one token adds."""
        return 2 * len(self.layers) * self.row_bytes

    def variant(self, filled: int) -> int | None:
        """The shortest cache length that holds `filled` rows; None when none does."""
        return min((length for length in self.cache_lengths if filled <= length), default=None)


def kv_table(compilation: Compilation) -> KvTable:
    """KV regions layer by layer, checked over all modules. Raises CompileError unless everything was compiled."""
    compilation.require_complete()
    blocks = [spec for spec in compilation.specs if spec.kind is Kind.BLOCK]
    region = next((r for spec in blocks if (r := kv_region(spec, compilation.options))), None)
    if region is None:
        raise UserError("this model has no KV cache")
    by_layer: dict[int, list[KvSlots]] = defaultdict(list)
    for spec in blocks:
        for slots in kv_slots(compilation, spec):
            by_layer[slots.layer].append(slots)
    size = region.v_offset - region.k_offset
    owners = sorted((slots[0].k_address, layer) for layer, slots in by_layer.items())
    next_start = {layer: after[0] for (_, layer), after in pairwise(owners)}
    decode = sorted({spec.cache for spec in blocks if spec.stage is Stage.DECODE}, reverse=True)
    layers = tuple(
        _kv_layer(layer, slots, region, size, next_start.get(layer))
        for layer, slots in sorted(by_layer.items())
    )
    return KvTable(region.rows, compilation.options.seq_length, region.row_bytes, tuple(decode), layers)


def _kv_layer(
    layer: int, slots: Sequence[KvSlots], region: KvRegion, size: int, following: int | None
) -> KvLayer:
    first = slots[0]
    problems = []
    for other in slots:
        if (other.k_address, other.v_address) != (first.k_address, first.v_address):
            problems.append(f"{other.module} reads K and V elsewhere than {first.module}")
        if not other.is_at_slot:
            problems.append(f"{other.module} does not append behind row {other.rows - 1}")
    if first.v_address != first.k_address + size:
        problems.append("V does not follow K")
    if following is not None and first.v_address + size > following:
        problems.append("V runs into the next layer")
    append = {slot.rows: slot.k_append_address - slot.k_address for slot in slots}
    return KvLayer(layer, first.k_address, first.v_address, append, tuple(problems))
