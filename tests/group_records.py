"""Records of small modules, written by hand: what the layer-group search reads, without MLIR."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.snapshot import OpRecord, TensorType

ABSENT = TensorType((), "none")


@dataclass
class Records:
    """Ops in program order; every method returns the SSA name of its result."""

    ops: list[OpRecord] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)

    def input(self, *shape: int, dtype: str = "bf16") -> str:
        return self._append("top.Input", (), TensorType(shape, dtype), {})

    def weight(self, *shape: int, dtype: str = "bf16") -> str:
        return self._append("top.Weight", (), TensorType(shape, dtype), {})

    def add(self, left: str, right: str) -> str:
        return self._append("tpu.Add", (left, right), self.types[left], {})

    def mul(self, left: str, right: str) -> str:
        return self._append("tpu.Mul", (left, right), self.types[left], {})

    def norm(self, x: str) -> str:
        gamma = self.weight(self.types[x].shape[-1], dtype=self.types[x].dtype)
        return self._append("tpu.RMSNorm", (x, gamma), self.types[x], {"eps": 1e-6})

    def cast(self, x: str, dtype: str) -> str:
        return self._append("tpu.Cast", (x,), TensorType(self.types[x].shape, dtype), {})

    def silu(self, x: str) -> str:
        return self._append("tpu.Active", (x,), self.types[x], {"mode": "SILU"})

    def matmul(
        self, x: str, columns: int, *, bias: bool = False, residual: str = "", transposed: bool = False
    ) -> str:
        type_ = self.types[x]
        shape = (columns, type_.shape[-1]) if transposed else (type_.shape[-1], columns)
        right = self.weight(*shape, dtype=type_.dtype)
        operands = (right, self.weight(columns, dtype=type_.dtype)) if bias else (right, residual)
        result = TensorType((*type_.shape[:-1], columns), type_.dtype)
        return self._append("tpu.MatMul", (x, *operands), result, {"right_transpose": transposed})

    def rope(self, x: str, sin: str, cos: str) -> str:
        attributes = {"rope_mode": "contiguous_halves"}
        return self._append("tpu.Rope", (x, sin, cos), self.types[x], attributes)

    def reshape(self, x: str, *shape: int) -> str:
        return self._append("tpu.Reshape", (x,), TensorType(shape, self.types[x].dtype), {})

    def attention(self, x: str) -> str:
        """An op that has no local kernel."""
        return self._append("tpu.FAttention", (x,), self.types[x], {})

    def done(self, *results: str) -> tuple[OpRecord, ...]:
        """All records, with the return."""
        types = tuple(self.types[value] for value in results)
        return (*self.ops, OpRecord("func.return", results, types, (), (), {}, ()))

    def _append(
        self, name: str, operands: tuple[str, ...], result: TensorType, attributes: dict[str, Any]
    ) -> str:
        value = f"%{len(self.ops)}"
        types = tuple(self.types.get(operand, ABSENT) for operand in operands)
        origin = f"{name.partition('.')[2].lower()}_{len(self.ops)}"
        self.ops.append(OpRecord(name, operands, types, (value,), (result,), attributes, (origin,)))
        self.types[value] = result
        return value


def norms(tokens: int = 512, hidden: int = 576) -> tuple[OpRecord, ...]:
    """Residual add and norm, both read afterwards, as behind attention."""
    module = Records()
    total = module.add(module.input(1, tokens, hidden), module.input(1, tokens, hidden))
    return module.done(total, module.norm(total))


def mlp(tokens: int = 256, hidden: int = 256, inner: int = 512) -> tuple[OpRecord, ...]:
    """Norm, gate, SiLU, up, product, down, residual: one chain of matrix products."""
    module = Records()
    x = module.input(1, tokens, hidden)
    normal = module.norm(x)
    wide = module.cast(module.matmul(normal, inner), "f32")
    gate = module.cast(module.silu(wide), "bf16")
    product = module.mul(gate, module.matmul(normal, inner))
    return module.done(module.add(x, module.matmul(product, hidden)))
