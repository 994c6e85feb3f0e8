"""top.MLP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.op import TopOp, require, same_shape
from engine.snapshot import OpRecord
from engine.top.ops.silu import silu


class MLP(TopOp):
    """The gated feed-forward of a Transformer block, kept as one op until it is lowered by chip:
    output = (silu(input x gate) * (input x up)) x down.

    input [..., H]; gate, up [H, I]; down [I, H]; biases [I], [I], [H] -> [..., H].
    """

    operands = ("input", "gate", "up", "down", "gate_bias?", "up_bias?", "down_bias?")
    attributes = {"activation": str}

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        x, gate, up, down = op.operand_types[:4]
        hidden, inner = x.shape[-1], gate.shape[-1]
        same_shape("gate", gate, (hidden, inner))
        same_shape("up", up, (hidden, inner))
        same_shape("down", down, (inner, hidden))
        same_shape("output", op.result_types[0], x.shape)
        for name, type_, size in zip(
            ("gate", "up", "down"), op.operand_types[4:], (inner, inner, hidden), strict=True
        ):
            require(
                type_.is_none or type_.elements == size,
                f"{name} bias has {type_.elements} elements, expected {size}",
            )
        require(
            op.attributes["activation"] == "SILU", f"activation {op.attributes['activation']!r} is not SILU"
        )

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        x, gate, up, down, *biases = inputs

        def linear(left: np.ndarray, right: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
            product = left @ right
            return np.asarray(product if bias is None else product + bias.reshape(-1))

        assert x is not None
        return (linear(silu(linear(x, gate, biases[0])) * linear(x, up, biases[1]), down, biases[2]),)
