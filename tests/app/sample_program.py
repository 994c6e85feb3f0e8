"""A compiled program written by hand, so that screens are tested on data that no change of the compiler alters.

Three layers, hidden size 64, no history stage and no decode variants: seven modules, each with four snapshots (import,
lowered, addressed, code).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tiny import write_tiny

from app.workspace import Workspace
from engine.compiler import Compilation, open_model
from engine.snapshot import ModuleSnapshots, OpRecord, Snapshot, TensorType, is_computation
from engine.stages import Kind, ModuleSpec, Stage, plan
from engine.tpu.isa import Arena, Direction, Global, Local, Opcode, Stream
from engine.worker import ModuleFinished, PassFinished

PASSES = ("import", "top-canonicalize", "convert-top-to-tpu", "address-assign", "codegen")
SECONDS = (0.012, 0.0004, 0.031, 0.007, 0.019)
HIDDEN, HEADS, WIDE, ROWS = 64, 2, 128, 64
BLOCK = "model.layers.{i}."


@dataclass
class Builder:
    """Op records in order, with value numbers."""

    dtype: str
    ops: list[OpRecord] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)

    def add(
        self,
        name: str,
        origins: Sequence[str],
        operands: Sequence[str] = (),
        shape: tuple[int, ...] = (),
        dtype: str = "",
        history: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """Add an op with one result (none for `func.return`) and return its value."""
        value = f"%{len(self.types)}"
        type_ = TensorType(shape, dtype or self.dtype)
        results = () if name == "func.return" else (value,)
        self.ops.append(
            OpRecord(
                name,
                tuple(operands),
                tuple(self.types.get(v, type_) for v in operands),
                results,
                (type_,) if results else (),
                attributes,
                tuple(origins),
                tuple(history),
                len(self.ops) + 2,
            )
        )
        if results:
            self.types[value] = type_
        return value

    def weight(self, tensor: str, shape: tuple[int, ...], dtype: str = "", *transforms: str) -> str:
        """Add a weight."""
        return self.add(
            "top.Weight", [tensor], (), shape, dtype, tensors=[tensor], transforms=list(transforms)
        )


def _linear(
    b: Builder, x: str, place: str, k: int, n: int, rows: int, tpu: bool, more: tuple[str, ...]
) -> str:
    tensor = f"{place}.weight"
    origins = (*more, place)
    if not tpu:
        w = b.weight(tensor, (k, n), "", "transpose")
        return b.add("top.MatMul", origins, [x, w], (1, rows, n), right_transpose=False)
    quantized = "quantize(w4,g64,asymmetric)"
    w = b.weight(tensor, (n, k // 2), "ui8", "transpose", f"{quantized}.weight")
    scale = b.weight(tensor, (n, k // 64), "bf16", "transpose", f"{quantized}.scale")
    zero = b.weight(tensor, (n, k // 64), "ui8", "transpose", f"{quantized}.zero_point")
    operands = [x, w, scale, zero]
    return b.add("tpu.A16MatMul", origins, operands, (1, rows, n), weight_bits=4, q_group_size=64)


def _block(spec: ModuleSpec, tpu: bool) -> list[OpRecord]:
    b = Builder("bf16" if tpu else "f32")
    dialect = "tpu" if tpu else "top"
    rows, cache = spec.rows, spec.cache
    inputs = {t.name: b.add("top.Input", [t.name], ["%arg"], t.type.shape, t.type.dtype) for t in spec.inputs}
    x = inputs["input_states"]
    gain = b.weight(f"{BLOCK}input_layernorm.weight", (1, 1, HIDDEN))
    h = b.add(f"{dialect}.RMSNorm", [f"{BLOCK}input_layernorm"], [x, gain], (1, rows, HIDDEN), eps=1e-5)
    q = _linear(b, h, f"{BLOCK}self_attn.q_proj", HIDDEN, HIDDEN, rows, tpu, ())
    k = _linear(b, h, f"{BLOCK}self_attn.k_proj", HIDDEN, HIDDEN, rows, tpu, ())
    v = _linear(b, h, f"{BLOCK}self_attn.v_proj", HIDDEN, HIDDEN, rows, tpu, ())
    heads = (1, rows, HEADS, HIDDEN // HEADS)
    k_new = b.add(f"{dialect}.Reshape", [f"{BLOCK}self_attn.k_proj.heads"], [k], heads)
    v_new = b.add(f"{dialect}.Reshape", [f"{BLOCK}self_attn.v_proj.heads"], [v], heads)
    keys, values = k_new, v_new
    if cache:
        joined = (1, cache + rows, HEADS, HIDDEN // HEADS)
        keys = b.add(
            f"{dialect}.Concat",
            [f"{BLOCK}self_attn.keys"],
            [inputs["history_k"], k_new],
            joined,
            axis=1,
            only_merge=True,
        )
        values = b.add(
            f"{dialect}.Concat",
            [f"{BLOCK}self_attn.values"],
            [inputs["history_v"], v_new],
            joined,
            axis=1,
            only_merge=True,
        )
    a = b.add(
        f"{dialect}.FAttention",
        [f"{BLOCK}self_attn.attention"],
        [q, keys, values],
        (1, rows, HIDDEN),
        mq=rows,
        mk=cache + rows,
    )
    o = _linear(b, a, f"{BLOCK}self_attn.o_proj", HIDDEN, HIDDEN, rows, tpu, ())
    r = b.add(f"{dialect}.Add", [f"{BLOCK}attention_residual"], [x, o], (1, rows, HIDDEN))
    m = _mlp(b, r, rows, tpu)
    out = b.add(f"{dialect}.Add", [f"{BLOCK}mlp_residual"], [r, m], (1, rows, HIDDEN))
    b.add("func.return", [], [out, k_new, v_new])
    return b.ops


def _mlp(b: Builder, x: str, rows: int, tpu: bool) -> str:
    mlp = f"{BLOCK}mlp"
    if not tpu:
        gate = b.weight(f"{mlp}.gate_proj.weight", (HIDDEN, WIDE), "", "transpose")
        up = b.weight(f"{mlp}.up_proj.weight", (HIDDEN, WIDE), "", "transpose")
        down = b.weight(f"{mlp}.down_proj.weight", (WIDE, HIDDEN), "", "transpose")
        return b.add("top.MLP", [mlp], [x, gate, up, down], (1, rows, HIDDEN), activation="SILU")
    g = _linear(b, x, f"{mlp}.gate_proj", HIDDEN, WIDE, rows, tpu, (mlp,))
    s = b.add("tpu.Active", [mlp, f"{mlp}.act"], [g], (1, rows, WIDE), mode="SILU")
    u = _linear(b, x, f"{mlp}.up_proj", HIDDEN, WIDE, rows, tpu, (mlp,))
    p = b.add("tpu.Mul", [mlp, f"{mlp}.mul"], [s, u], (1, rows, WIDE))
    return _linear(b, p, f"{mlp}.down_proj", WIDE, HIDDEN, rows, tpu, (mlp,))


def _other(spec: ModuleSpec, tpu: bool) -> list[OpRecord]:
    b = Builder("bf16" if tpu else "f32")
    dialect = "tpu" if tpu else "top"
    (given,) = spec.inputs
    x = b.add("top.Input", [given.name], ["%arg"], given.type.shape, given.type.dtype)
    w = b.weight("model.embed_tokens.weight", (320, HIDDEN))
    if spec.kind is Kind.EMBEDDING:
        y = b.add(f"{dialect}.Gather", ["model.embed_tokens"], [w, x], spec.outputs[0].type.shape)
    else:
        logits = b.add(f"{dialect}.MatMul", ["lm_head"], [w, x], (320, 1))
        y = b.add(f"{dialect}.TopK", ["lm_head.token"], [logits], (1, 1), "si32", k=1)
    b.add("func.return", [], [y])
    return b.ops


# -- addresses, text, code -------------------------------------------------------------------------------------------

BASE, STEP = 0x1_0000_0000, 4096


def _aligned(size: int) -> int:
    return -(-size // STEP) * STEP


def _addressed(
    ops: Sequence[OpRecord], spec: ModuleSpec, region_rows: int
) -> tuple[list[OpRecord], dict[str, int]]:
    """Every tensor with an address: weights, then KV regions, inputs and results, then activations without reuse."""
    row = HIDDEN * 2
    size = {"coeff": 0, "io": 0, "neuron": 0}
    offset: dict[str, tuple[str, int]] = {}
    returned = dict(zip((t.name for t in spec.outputs), ops[-1].operands, strict=True))
    kept = {name: value for name, value in returned.items() if name in ("k_cache", "v_cache")}
    if kept:
        size["io"] = 2 * _aligned(region_rows * row)
        for number, name in enumerate(("k_cache", "v_cache")):
            offset[kept[name]] = ("io", number * _aligned(region_rows * row) + spec.cache * row)
    for op in ops:
        for value, type_ in zip(op.results, op.result_types, strict=True):
            if value in offset:
                continue
            arena = "coeff" if op.name == "top.Weight" else "neuron"
            if op.name == "top.Input" or value in returned.values():
                arena = "io"
            if op.location in ("history_k", "history_v"):
                offset[value] = ("io", (op.location == "history_v") * _aligned(region_rows * row))
                continue
            if op.kind in ("Reshape", "Concat") and op.operands[0] in offset:
                offset[value] = offset[op.operands[0]]
                continue
            offset[value] = (arena, size[arena])
            size[arena] = _aligned(size[arena] + type_.nbytes)
    for op in ops:
        if op.kind == "Reshape" and op.results[0] in kept.values():
            offset[op.operands[0]] = offset[op.results[0]]
    base = {"coeff": BASE, "io": BASE + size["coeff"], "neuron": BASE + size["coeff"] + size["io"]}

    def at(value: str, type_: TensorType) -> TensorType:
        if value not in offset:
            return type_
        arena, where = offset[value]
        return replace(type_, address=base[arena] + where)

    moved = [
        replace(
            op,
            operand_types=tuple(map(at, op.operands, op.operand_types)),
            result_types=tuple(map(at, op.results, op.result_types)),
        )
        for op in ops
    ]
    attributes = {f"{name}_addr": base[name] for name in base} | {f"{name}_size": size[name] for name in size}
    return moved, attributes


def _text(spec: ModuleSpec, ops: Sequence[OpRecord]) -> str:
    lines = [f'module @{spec.name} attributes {{module.chip = "bm1684x"}} {{', "  func.func @main() {"]
    for number, op in enumerate(ops):
        result = f"{op.results[0]} = " if op.results else ""
        types = ", ".join(map(str, op.operand_types))
        made = ", ".join(map(str, op.result_types)) or "()"
        attributes = "".join(f"{name} = {value}, " for name, value in op.attributes.items())[:-2]
        lines.append(
            f'    {result}"{op.name}"({", ".join(op.operands)}) {{{attributes}}} : ({types}) -> {made} '
            f"loc(#loc{number})"
        )
    return "\n".join([*lines, "  }", "}", '#loc0 = loc("input_states")', ""])


def _program(ops: Sequence[OpRecord], attributes: Mapping[str, int]) -> np.ndarray:
    """Each op loads its operands, computes once and stores its result."""
    stream = Stream()
    bases = {arena: attributes[f"{arena.name.lower()}_addr"] for arena in Arena}
    sizes = {arena: attributes[f"{arena.name.lower()}_size"] for arena in Arena}

    def ddr(type_: TensorType) -> Global:
        arena = next(a for a in Arena if bases[a] <= (type_.address or 0) < bases[a] + sizes[a])
        dtype = "bf16" if type_.dtype in ("bf16", "f32") else "ui8"
        width = max(1, type_.nbytes // (2 if dtype == "bf16" else 1) // 64)
        return Global(
            arena,
            (type_.address or 0) - bases[arena],
            dtype,
            (1, 64, 1, width),
            (64 * width, width, width, 1),
        )

    for index, op in enumerate(ops):
        if not is_computation(op) or op.kind in ("Reshape", "TopK"):
            continue
        local = Local(0, "bf16", (1, 64, 1, 64), (64, 64, 64, 1))
        for type_ in op.operand_types:
            if not type_.is_none:
                stream.append(Opcode.TENSOR, local, (ddr(type_),), op=index, wait=0, direction=Direction.LOAD)
        stream.append(Opcode.MUL, local, (local, local), op=index, wait=stream.last[0][1])
        result = ddr(op.result_types[0])
        stream.append(
            Opcode.TENSOR, result, (local,), op=index, wait=stream.last[0][0], direction=Direction.STORE
        )
    return stream.program()


def _snapshots(spec: ModuleSpec, region_rows: int) -> Iterator[Snapshot]:
    make = _block if spec.kind is Kind.BLOCK else _other
    top, tpu = make(spec, False), make(spec, True)
    placed, attributes = _addressed(tpu, spec, region_rows)
    states: list[tuple[Sequence[OpRecord], Mapping[str, int], Any, tuple[str, ...]]] = [
        (top, {}, None, ()),
        (top, {}, None, ()),
        (tpu, {}, None, ("MLP became 5 ops",) if spec.kind is Kind.BLOCK else ()),
        (placed, attributes, None, (f"neuron {attributes['neuron_size']} B",)),
        (placed, attributes, _program(placed, attributes), ("code for one core",)),
    ]
    before: Sequence[OpRecord] = ()
    for name, seconds, (ops, values, report, notes) in zip(PASSES, SECONDS, states, strict=True):
        changed = ops is not before
        yield Snapshot(spec.name, name, _text(spec, ops), tuple(ops), values, changed, seconds, notes, report)
        before = ops


def sample_compilation(folder: Any) -> Compilation:
    """The program. folder: where a config may be written."""
    path = write_tiny(folder / "sample", "llama", layers=3)
    model = open_model(path)
    options = model.resolve(
        seq_length=ROWS, history=False, max_input_length=16, decode_chunks=(), quantize="w4bf16"
    )
    shape = replace(model.shape, layers=3, hidden=HIDDEN, kv_heads=HEADS, head_dim=HIDDEN // HEADS, vocab=320)
    specs = plan(shape, options)
    compilation = Compilation(model.config, options, specs)
    for spec in specs:
        for snapshot in _snapshots(spec, ROWS + 16):
            compilation.add(PassFinished(spec.name, snapshot))
        compilation.add(ModuleFinished(spec.name))
    return compilation


def sample_workspace(folder: Any) -> Workspace:
    """The program, looked at for the first time."""
    return Workspace(sample_compilation(folder), "sample-3l", seconds=1.25)


def unfinished_workspace(folder: Any) -> Workspace:
    """The program while it is being compiled: one module done, one in its third pass, one failed."""
    from engine.worker import ModuleFailed

    whole = sample_compilation(folder)
    compilation = Compilation(whole.config, whole.options, whole.specs)
    work = Workspace(compilation, "sample-3l", running=True, finished={"embedding"})
    compilation.modules["embedding"] = whole.modules["embedding"]
    part = next(spec for spec in whole.specs if spec.kind is Kind.BLOCK and spec.stage is Stage.DECODE)
    compilation.modules[part.name] = ModuleSnapshots(part.name, whole.modules[part.name].snapshots[:2])
    work.current[part.name] = PASSES[2]
    compilation.add(
        ModuleFailed("block_0", "convert-top-to-tpu", "pass convert-top-to-tpu aborted (signal 6)")
    )
    return work
