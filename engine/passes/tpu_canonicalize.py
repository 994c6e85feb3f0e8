"""tpu-canonicalize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine import mlir
from engine.passes.base import Pass, PassContext, PassReport
from engine.passes.top_canonicalize import PURE, fold_reshapes, merge_equal, remove_unused
from engine.snapshot import TensorType


@dataclass(frozen=True)
class TpuCanonicalize(Pass):
    """Removes what lowering left over: casts at inputs and outputs that the module's interface has in the chip's type
    already, casts there and back again, doubled weights, unused ops. A MatMul of one row without a bias takes the
    residual that is added to its result as its bias, where the chip's kernel can: the sum costs no op of its own."""

    name = "tpu-canonicalize"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        stripped = self._strip_inputs(module, context) + self._strip_outputs(module, context)
        folded = self._fold_casts(module)
        fold_reshapes(module, "tpu.Reshape")
        fused = self._fuse_residuals(module, context.options.chip.residual_bias)
        merge_equal(module, PURE)
        remove_unused(module, keep={"top.Input"})
        mlir.update_function_type(module)
        notes = []
        if stripped:
            notes.append(f"{stripped} casts at inputs and outputs stripped")
        if folded:
            notes.append(f"{folded} casts folded")
        if fused:
            notes.append(f"{fused} residuals became biases")
        return PassReport(tuple(notes))

    def _strip_inputs(self, module: mlir.Module, context: PassContext) -> int:
        """An input whose interface type is the half type takes it, and its cast goes."""
        stripped = 0
        types = {tensor.name: tensor.type for tensor in context.spec.inputs}
        for operation in mlir.body_operations(module):
            if operation.name != "top.Input":
                continue
            wanted = types[mlir.origins(operation.location)[0][0]]
            result = operation.results[0]
            if mlir.from_mlir_type(result.type) == wanted:
                continue
            casts, others = [], []
            for user, number in mlir.uses(result):
                if user.name == "tpu.Cast" and mlir.from_mlir_type(user.results[0].type) == wanted:
                    casts.append(user)
                else:
                    others.append((user, number))
            mlir.retype(result, wanted)
            mlir.retype(operation.operands[0], wanted)
            for cast in casts:
                mlir.replace(cast, [result])
            stripped += len(casts)
            if others:
                self._widen(operation, TensorType(wanted.shape, "f32"), others)
        return stripped

    def _widen(
        self, source: mlir.Operation, wide: TensorType, users: list[tuple[mlir.Operation, int]]
    ) -> None:
        """Give `users` the narrow input in f32."""
        with mlir.after(source):
            location = mlir.derived_location(self.name, source.location)
            cast = mlir.build("tpu.Cast", [source.results[0]], [wide], location=location)
        for user, number in users:
            user.operands[number] = cast.results[0]

    def _strip_outputs(self, module: mlir.Module, context: PassContext) -> int:
        stripped = 0
        returned = mlir.body_operations(module)[-1]
        for index, tensor in enumerate(context.spec.outputs):
            producer = mlir.defining(returned.operands[index])
            if producer is None or producer.name != "tpu.Cast":
                continue
            if mlir.from_mlir_type(producer.operands[0].type).dtype == tensor.type.dtype:
                returned.operands[index] = producer.operands[0]
                stripped += 1
        return stripped

    def _fold_casts(self, module: mlir.Module) -> int:
        """Narrow to wide and back to the same narrow type loses nothing: use the first value."""
        folded = 0
        for operation in mlir.body_operations(module):
            if operation.name != "tpu.Cast":
                continue
            inner = mlir.defining(operation.operands[0])
            if inner is None or inner.name != "tpu.Cast":
                continue
            source = inner.operands[0]
            widened = mlir.from_mlir_type(inner.results[0].type).dtype == "f32"
            if widened and source.type == operation.results[0].type:
                mlir.replace(operation, [source])
                folded += 1
        return folded

    def _fuse_residuals(self, module: mlir.Module, dtypes: Sequence[str]) -> int:
        """Products of these dtypes with the residual as bias, in the place of the sum; returns how many."""
        fused = 0
        for operation in mlir.body_operations(module):
            if operation.name != "tpu.Add":
                continue
            number = next((n for n in (0, 1) if _takes_residual(operation.operands[n], dtypes)), None)
            if number is not None:
                self._fuse(operation, number)
                fused += 1
        return fused

    def _fuse(self, add: mlir.Operation, number: int) -> None:
        """Replace a sum by the product that is its operand `number`. The new op comes from both, and has a name of its
        own: neither the product's alone, whose value it is not, nor the sum's."""
        product = mlir.defining(add.operands[number])
        assert product is not None
        name = mlir.origins(product.location)[0][-1]
        location = mlir.derived_location(self.name, product.location, add.location, detail=f"{name}.add")
        operands = [product.operands[0], product.operands[1], add.operands[1 - number]]
        type_ = mlir.from_mlir_type(add.results[0].type)
        with mlir.before(add):
            made = mlir.build(product.name, operands, [type_], mlir.attributes_of(product), location=location)
        mlir.replace(add, list(made.results))
        mlir.erase(product)


def _takes_residual(value: mlir.Value, dtypes: Sequence[str]) -> bool:
    """Whether a summand is a product of one row without a bias, which nothing but the sum reads."""
    product, type_ = mlir.defining(value), mlir.from_mlir_type(value.type)
    if product is None or product.name != "tpu.MatMul" or type_.dtype not in dtypes:
        return False
    absent = mlir.from_mlir_type(product.operands[2].type).is_none
    one_row = type_.elements == type_.shape[-1]
    plain = not mlir.attribute(product, "right_transpose")
    return absent and one_row and plain and len(mlir.uses(value)) == 1
