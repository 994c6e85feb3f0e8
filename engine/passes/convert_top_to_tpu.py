"""convert-top-to-tpu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine import mlir
from engine.errors import CompileError
from engine.passes.base import Pass, PassContext, PassReport
from engine.snapshot import TensorType

Lower = Callable[["Lowering", mlir.Operation], list[mlir.Value]]


@dataclass(frozen=True)
class ConvertTopToTpu(Pass):
    """Lowers every TopOp to TpuOps of the chip in the types of the quantisation mode: activations in the half type,
    linears of a block with 4- or 8-bit weights as A16MatMul, embedding and lm_head in the half type. SiLU runs in f32
    between two casts. A weight that feeds a lowered op is stored in that op's type. On chips without a fused MLP op,
    top.MLP becomes three linears, an activation and a product."""

    name = "convert-top-to-tpu"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        lowering = Lowering(context, self.name)
        operations = mlir.body_operations(module)
        for operation in operations[:-1]:
            lowering.lower(operation)
        returned = operations[-1]
        for index, value in enumerate(list(returned.operands)):
            with mlir.before(returned):
                returned.operands[index] = lowering.as_output(value)
        weights = [operation for operation in operations if operation.name == "top.Weight"]
        lowered = [op for op in operations[:-1] if op.name not in ("top.Input", "top.Weight", "top.None")]
        for operation in reversed(lowered):
            mlir.erase(operation)
        for operation in weights:
            if not mlir.uses(operation.results[0]):
                mlir.erase(operation)
        mlir.update_function_type(module)
        mlir.set_module_attributes(module, {"state": "TPU_LOWERED"})
        return PassReport(tuple(lowering.notes))


@dataclass
class Lowering:
    """State of one lowering: what every Top value became."""

    context: PassContext
    pass_name: str
    notes: list[str] = field(default_factory=list)
    values: dict[mlir.Value, mlir.Value] = field(default_factory=dict)
    casts: dict[tuple[mlir.Value, str], mlir.Value] = field(default_factory=dict)
    weights: dict[tuple[mlir.Value, tuple[str, ...], str], mlir.Value] = field(default_factory=dict)

    @property
    def half(self) -> str:
        """The activations' type."""
        return self.context.options.mode.half

    @property
    def weight_bits(self) -> int:
        """Bits of a linear's weights in this module; 0 when they stay in the half type."""
        return self.context.options.mode.weight_bits if self.context.spec.layers else 0

    def lower(self, operation: mlir.Operation) -> None:
        """Build the TpuOps of one TopOp in front of it and remember its results."""
        if operation.name in ("top.Input", "top.Weight", "top.None"):
            return
        if operation.name not in LOWERINGS:
            raise CompileError(
                f"{operation.name} at {operation.location} has no lowering to {self.pass_name}"
            )
        with mlir.before(operation):
            results = LOWERINGS[operation.name](self, operation)
        self.values.update(zip(operation.results, results, strict=True))

    # -- operands --------------------------------------------------------------------------------------------------

    def get(self, value: mlir.Value, dtype: str | None = None) -> mlir.Value:
        """What a Top value became, in `dtype` (default: the half type for floats); absent and integer values as is."""
        value = self.values.get(value, value)
        type_ = mlir.from_mlir_type(value.type)
        wanted = dtype or self.half
        if type_.is_none or type_.dtype.startswith(("si", "ui")) or type_.dtype == wanted:
            return value
        source = mlir.defining(value)
        if source is not None and source.name == "top.Weight":
            return self.weight(value, (f"cast({wanted})",), TensorType(type_.shape, wanted))
        location = source.location if source is not None else mlir.named_location("argument")
        key = (value, wanted)
        if key not in self.casts:
            self.casts[key] = self.op("tpu.Cast", [value], TensorType(type_.shape, wanted), location)
        return self.casts[key]

    def as_output(self, value: mlir.Value) -> mlir.Value:
        """A returned value in the type that the TopOp module has: f32 for floats."""
        type_ = mlir.from_mlir_type(self.values.get(value, value).type)
        return self.get(value, type_.dtype if type_.dtype.startswith("si") else "f32")

    def weight(
        self, value: mlir.Value, transforms: Sequence[str], type_: TensorType, path: str = ""
    ) -> mlir.Value:
        """The weight `value` with further transforms, as a new reference (one for equal requests)."""
        key = (value, tuple(transforms), str(type_))
        if key not in self.weights:
            source = mlir.defining(value)
            assert source is not None
            attributes = mlir.attributes_of(source)
            attributes["transforms"] = [*attributes["transforms"], *transforms]
            if path:
                attributes["path"] = path
            with mlir.before(source):
                made = mlir.build(
                    "top.Weight",
                    [],
                    [type_],
                    attributes,
                    location=mlir.derived_location(self.pass_name, source.location),
                )
            self.weights[key] = made.results[0]
        return self.weights[key]

    def op(
        self,
        name: str,
        operands: Sequence[mlir.Value],
        output: TensorType,
        location: mlir.Location,
        attributes: dict[str, Any] | None = None,
        detail: str = "",
    ) -> mlir.Value:
        """Build one TpuOp located at what it came from."""
        derived = mlir.derived_location(self.pass_name, location, detail=detail)
        return mlir.build(name, operands, [output], attributes, location=derived).results[0]

    # -- linears ---------------------------------------------------------------------------------------------------

    def linear(
        self, x: mlir.Value, right: mlir.Value, bias: mlir.Value, location: mlir.Location, detail: str = ""
    ) -> mlir.Value:
        """x times the [K, N] weight `right` plus bias: A16MatMul where the mode says so and the weight allows it."""
        x = self.get(x)
        k, n = mlir.from_mlir_type(right.type).shape
        output = TensorType((*mlir.from_mlir_type(x.type).shape[:-1], n), self.half)
        if not self.weight_bits or not self._quantisable(k, location, detail):
            operands = [x, self.get(right), self.get(bias)]
            return self.op("tpu.MatMul", operands, output, location, {"right_transpose": False}, detail)
        options = self.context.options
        group, bits = options.q_group_size, self.weight_bits
        scheme = f"w{bits},g{group},{'symmetric' if options.symmetric else 'asymmetric'}"
        groups = -(-k // group)
        parts = {
            "weight": ((), TensorType((n, k * bits // 8), "ui8")),
            "scale": ((f"cast({self.half})",), TensorType((n, groups), self.half)),
            "zero_point": ((), TensorType((n, groups), "ui8")),
        }
        operands = [
            self.weight(right, (f"quantize({scheme}).{part}", *more), type_, f"tpu.A16MatMul.{part}")
            for part, (more, type_) in parts.items()
        ]
        attributes = {"q_group_size": group, "weight_bits": bits, "w_transpose": True}
        return self.op("tpu.A16MatMul", [x, *operands, self.get(bias)], output, location, attributes, detail)

    def _quantisable(self, k: int, location: mlir.Location, detail: str) -> bool:
        """4-bit weights are packed two to a byte along K: an odd K keeps the linear in the half type."""
        if self.weight_bits == 4 and k % 2:
            name = detail or mlir.origins(location)[0][0]
            self.notes.append(f"{name} stays in {self.half}: K = {k} is odd")
            return False
        return True


def _output(lowering: Lowering, operation: mlir.Operation, dtype: str | None = None) -> TensorType:
    type_ = mlir.from_mlir_type(operation.results[0].type)
    return TensorType(type_.shape, dtype or lowering.half)


def _same(name: str) -> Lower:
    """Lowering of an op that keeps its name, operands and attributes."""

    def lower(lowering: Lowering, operation: mlir.Operation) -> list[mlir.Value]:
        operands = [lowering.get(value) for value in operation.operands]
        attributes = mlir.attributes_of(operation)
        return [lowering.op(name, operands, _output(lowering, operation), operation.location, attributes)]

    return lower


def _matmul(lowering: Lowering, operation: mlir.Operation) -> list[mlir.Value]:
    left, right, bias = operation.operands
    if not mlir.attributes_of(operation)["right_transpose"]:
        return [lowering.linear(left, right, bias, operation.location)]
    operands = [lowering.get(value) for value in (left, right, bias)]
    attributes = {"right_transpose": True}
    return [lowering.op("tpu.MatMul", operands, _output(lowering, operation), operation.location, attributes)]


def _silu(lowering: Lowering, x: mlir.Value, location: mlir.Location, detail: str = "") -> mlir.Value:
    """SiLU in f32, back in the half type."""
    shape = mlir.from_mlir_type(x.type).shape
    wide = TensorType(shape, "f32")
    if lowering.half != "f32":
        x = lowering.op("tpu.Cast", [x], wide, location, detail=detail)
    x = lowering.op("tpu.Active", [x], wide, location, {"mode": "SILU"}, detail)
    if lowering.half != "f32":
        x = lowering.op("tpu.Cast", [x], TensorType(shape, lowering.half), location, detail=detail)
    return x


def _lower_silu(lowering: Lowering, operation: mlir.Operation) -> list[mlir.Value]:
    return [_silu(lowering, lowering.get(operation.operands[0]), operation.location)]


def _mlp(lowering: Lowering, operation: mlir.Operation) -> list[mlir.Value]:
    x, gate, up, down, gate_bias, up_bias, down_bias = operation.operands
    location = operation.location

    def name(weight: mlir.Value) -> str:
        source = mlir.defining(weight)
        assert source is not None
        return mlir.origins(source.location)[0][0].removesuffix(".weight")

    gated = lowering.linear(x, gate, gate_bias, location, name(gate))
    active = _silu(lowering, gated, location, name(gate).removesuffix("gate_proj") + "act")
    lifted = lowering.linear(x, up, up_bias, location, name(up))
    product_type = TensorType(mlir.from_mlir_type(lifted.type).shape, lowering.half)
    product = lowering.op(
        "tpu.Mul", [active, lifted], product_type, location, detail=name(up).removesuffix("up_proj") + "mul"
    )
    return [lowering.linear(product, down, down_bias, location, name(down))]


def _attention(lowering: Lowering, operation: mlir.Operation) -> list[mlir.Value]:
    q, k, v, mask, history = operation.operands
    attributes = mlir.attributes_of(operation)
    # the small causal mask is added to f32 scores and stays f32, as in TPU-MLIR
    mask_dtype = "f32" if attributes["mask_size"] else lowering.half
    operands = [*(lowering.get(x) for x in (q, k, v)), lowering.get(mask, mask_dtype), lowering.get(history)]
    return [
        lowering.op("tpu.FAttention", operands, _output(lowering, operation), operation.location, attributes)
    ]


def _top_k(lowering: Lowering, operation: mlir.Operation) -> list[mlir.Value]:
    logits = lowering.get(operation.operands[0], "f32")
    output = _output(lowering, operation, "si32")
    return [lowering.op("tpu.TopK", [logits], output, operation.location, mlir.attributes_of(operation))]


def _sample(lowering: Lowering, operation: mlir.Operation) -> list[mlir.Value]:
    operands = [lowering.get(value, "f32") for value in operation.operands]
    outputs = [mlir.from_mlir_type(result.type) for result in operation.results]
    location = mlir.derived_location(lowering.pass_name, operation.location)
    made = mlir.build("tpu.Sample", operands, outputs, mlir.attributes_of(operation), location=location)
    return list(made.results)


LOWERINGS: dict[str, Lower] = {
    "top.MatMul": _matmul,
    "top.RMSNorm": _same("tpu.RMSNorm"),
    "top.Gather": _same("tpu.Gather"),
    "top.Rope": _same("tpu.Rope"),
    "top.FAttention": _attention,
    "top.MLP": _mlp,
    "top.SiLU": _lower_silu,
    "top.Add": _same("tpu.Add"),
    "top.Mul": _same("tpu.Mul"),
    "top.Reshape": _same("tpu.Reshape"),
    "top.Concat": _same("tpu.Concat"),
    "top.TopK": _top_k,
    "top.Sample": _sample,
}
"""TopOp -> how it is lowered. A new op is one entry."""
