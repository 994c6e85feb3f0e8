"""weight-reorder."""

from __future__ import annotations

from dataclasses import dataclass

from engine import mlir
from engine.passes.base import Pass, PassContext, PassReport
from engine.snapshot import TensorType


@dataclass(frozen=True)
class WeightReorder(Pass):
    """Stores the scales and zero points of quantised weights lane by lane, [N, G] to [lanes, N / lanes, G], so that one
    DMA of one row a lane brings them to the lanes that hold the weight's rows."""

    name = "weight-reorder"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        lanes = context.options.chip.lanes
        reordered = 0
        for operation in mlir.body_operations(module):
            if operation.name != "tpu.A16MatMul":
                continue
            for index in (2, 3):
                value = operation.operands[index]
                weight = mlir.defining(value)
                type_ = mlir.from_mlir_type(value.type)
                if weight is None or len(type_.shape) != 2:
                    continue
                rows, groups = type_.shape
                mlir.retype(value, TensorType((lanes, -(-rows // lanes), groups), type_.dtype))
                transforms = mlir.attributes_of(weight)["transforms"]
                mlir.set_attribute(weight, "transforms", [*transforms, f"lane-reorder({lanes})"])
                reordered += 1
        return PassReport((f"{reordered} scales and zero points by lane",) if reordered else ())
