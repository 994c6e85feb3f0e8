"""Builds TopOp modules: one method an op, so that a family's file reads like the model's definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import mlir
from engine.snapshot import TensorType
from engine.stages import ModuleSpec

LAYER = "model.layers.{i}."
"""Prefix of a layer's tensors; `{i}` stands for the layer."""


class TopBuilder:
    """Builds the module of `spec`. Inputs are `top.Input` ops, created at once and found by name in `inputs`."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec
        self.module, self._block = mlir.new_module(spec.name, [(t.name, t.top_type) for t in spec.inputs])
        self.none = self._build("top.None", [], TensorType((), "none"), "none")
        self.inputs = {
            tensor.name: self._build("top.Input", [argument], tensor.top_type, tensor.name)
            for tensor, argument in zip(spec.inputs, self._block.arguments, strict=True)
        }

    def finish(self, results: Sequence[mlir.Value]) -> mlir.Module:
        """Return `results` from the module and hand it over."""
        mlir.finish(self.module, results)
        return self.module

    def weight(self, tensor: str, shape: Sequence[int], transforms: Sequence[str] = ()) -> mlir.Value:
        """A reference to a checkpoint tensor, or to a computed one (`@...`), in its shape after `transforms`."""
        return self._build(
            "top.Weight",
            [],
            TensorType(tuple(shape), "f32"),
            tensor,
            {"tensors": [tensor], "transforms": list(transforms)},
        )

    def linear(self, x: mlir.Value, name: str, columns: int, *, bias: bool) -> mlir.Value:
        """x [..., K] times the stored [N, K] weight of `name`, transposed, plus its bias if it has one."""
        shape = self.shape(x)
        weight = self.weight(f"{name}.weight", (shape[-1], columns), ("transpose",))
        bias_value = self.weight(f"{name}.bias", (columns,)) if bias else self.none
        return self.matmul(x, weight, bias_value, name)

    def matmul(
        self,
        left: mlir.Value,
        right: mlir.Value,
        bias: mlir.Value,
        name: str,
        *,
        right_transpose: bool = False,
    ) -> mlir.Value:
        """top.MatMul."""
        columns = self.shape(right)[0 if right_transpose else 1]
        output = TensorType((*self.shape(left)[:-1], columns), "f32")
        return self._build(
            "top.MatMul", [left, right, bias], output, name, {"right_transpose": right_transpose}
        )

    def rms_norm(self, x: mlir.Value, name: str, eps: float) -> mlir.Value:
        """top.RMSNorm over the last axis with the weight of `name`."""
        shape = self.shape(x)
        ones = (1,) * (len(shape) - 1)
        gamma_shape = (*ones, shape[-1])
        gamma = self.weight(f"{name}.weight", gamma_shape, (f"reshape({','.join(map(str, gamma_shape))})",))
        return self._build("top.RMSNorm", [x, gamma], TensorType(shape, "f32"), name, {"eps": float(eps)})

    def reshape(self, x: mlir.Value, shape: Sequence[int], name: str) -> mlir.Value:
        """top.Reshape."""
        return self._build("top.Reshape", [x], TensorType(tuple(shape), "f32"), name)

    def gather(self, table: mlir.Value, indices: mlir.Value, name: str) -> mlir.Value:
        """top.Gather of rows."""
        shape = (*self.shape(indices), *self.shape(table)[1:])
        return self._build("top.Gather", [table, indices], TensorType(shape, "f32"), name)

    def rope(self, x: mlir.Value, sin: mlir.Value, cos: mlir.Value, name: str) -> mlir.Value:
        """top.Rope on contiguous halves."""
        attributes = {"rope_mode": "contiguous_halves"}
        return self._build("top.Rope", [x, sin, cos], TensorType(self.shape(x), "f32"), name, attributes)

    def concat(self, parts: Sequence[mlir.Value], axis: int, name: str) -> mlir.Value:
        """top.Concat."""
        shape = list(self.shape(parts[0]))
        shape[axis] = sum(self.shape(part)[axis] for part in parts)
        return self._build("top.Concat", list(parts), TensorType(tuple(shape), "f32"), name, {"axis": axis})

    def attention(
        self,
        q: mlir.Value,
        k: mlir.Value,
        v: mlir.Value,
        mask: mlir.Value,
        history_length: mlir.Value,
        name: str,
        *,
        scale: float,
        mask_size: int,
    ) -> mlir.Value:
        """top.FAttention; q [B, mq, heads, d], k and v [B, mk, kv_heads, d]."""
        batch, mq, heads, d = self.shape(q)
        _, mk, kv_heads, _ = self.shape(k)
        attributes = {
            "batch": batch,
            "dim": d,
            "kv_head": kv_heads,
            "mask_size": mask_size,
            "mk": mk,
            "mq": mq,
            "q_head": heads,
            "scale": float(scale),
        }
        output = TensorType((batch, mq, heads * d), "f32")
        return self._build("top.FAttention", [q, k, v, mask, history_length], output, name, attributes)

    def mlp(self, x: mlir.Value, name: str, inner: int, *, bias: bool) -> mlir.Value:
        """top.MLP with the weights of `name`.gate_proj, .up_proj and .down_proj."""
        hidden = self.shape(x)[-1]
        sizes = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
        weights = [self.weight(f"{name}.{part}.weight", s, ("transpose",)) for part, s in sizes.items()]
        biases = [
            self.weight(f"{name}.{part}.bias", (s[1],)) if bias else self.none for part, s in sizes.items()
        ]
        output = TensorType(self.shape(x), "f32")
        return self._build("top.MLP", [x, *weights, *biases], output, name, {"activation": "SILU"})

    def add(self, left: mlir.Value, right: mlir.Value, name: str) -> mlir.Value:
        """top.Add."""
        return self._build("top.Add", [left, right], TensorType(self.shape(left), "f32"), name)

    def top_k(self, logits: mlir.Value, count: int, name: str) -> mlir.Value:
        """top.TopK; indices [1, count] si32."""
        output = TensorType((*self.shape(logits)[:-1], count), "si32")
        return self._build("top.TopK", [logits], output, name, {"K": count})

    def sample(
        self, operands: Sequence[mlir.Value], outputs: Sequence[TensorType], name: str
    ) -> list[mlir.Value]:
        """top.Sample."""
        operation = self._operation("top.Sample", operands, outputs, name, {})
        return list(operation.results)

    def shape(self, value: mlir.Value) -> tuple[int, ...]:
        """Shape of a value."""
        return mlir.from_mlir_type(value.type).shape

    def _build(
        self,
        op: str,
        operands: Sequence[mlir.Value],
        output: TensorType,
        name: str,
        attributes: dict[str, Any] | None = None,
    ) -> mlir.Value:
        return self._operation(op, operands, [output], name, attributes or {}).results[0]

    def _operation(
        self,
        op: str,
        operands: Sequence[mlir.Value],
        outputs: Sequence[TensorType],
        name: str,
        attributes: dict[str, Any],
    ) -> mlir.Operation:
        with mlir.at_end(self._block):
            return mlir.build(op, operands, outputs, attributes, location=mlir.named_location(name))
