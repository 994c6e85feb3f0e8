"""op-reorder."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from engine import mlir
from engine.passes.base import Pass, PassContext, PassReport

FIXED = {"top.Input", "top.Weight", "top.None", "func.return"}


@dataclass(frozen=True)
class OpReorder(Pass):
    """Moves all weights to the front and every reshape right behind the op that makes its input, and puts the smaller
    of consecutive matrix products of one tensor first, so that ops that can share local memory stand together and
    tensors die early."""

    name = "op-reorder"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        operations = mlir.body_operations(module)
        order = self._order(operations)
        moved = sum(a is not b for a, b in zip(operations, order, strict=True))
        for operation in order[:-1]:
            mlir.move_before(operation, operations[-1])
        return PassReport((f"{moved} ops moved",) if moved else ())

    def _order(self, operations: list[mlir.Operation]) -> list[mlir.Operation]:
        front = [
            op for name in ("top.None", "top.Input", "top.Weight") for op in operations if op.name == name
        ]
        reshapes: dict[int, list[mlir.Operation]] = {}
        rest: list[mlir.Operation] = []
        position = {self._key(result): i for i, op in enumerate(operations) for result in op.results}
        for operation in operations:
            if operation.name in ("top.None", "top.Input", "top.Weight"):
                continue
            maker = (
                position.get(self._key(operation.operands[0])) if operation.name == "tpu.Reshape" else None
            )
            if maker is not None and operations[maker].name not in FIXED:
                reshapes.setdefault(maker, []).append(operation)
            else:
                rest.append(operation)
        index = {id(op): i for i, op in enumerate(operations)}
        ordered: list[mlir.Operation] = []

        def place(operation: mlir.Operation) -> None:
            ordered.append(operation)
            for reshape in reshapes.get(index[id(operation)], ()):
                place(reshape)

        for operation in self._smaller_products_first(rest):
            place(operation)
        return front + ordered

    def _smaller_products_first(self, operations: list[mlir.Operation]) -> list[mlir.Operation]:
        """Small weights fit local memory beside the tensor that they multiply, so they stand next to its maker."""
        ordered: list[mlir.Operation] = []
        for (source, _), run in groupby(operations, self._product_of):
            products = list(run)
            ordered += sorted(products, key=self._columns) if source else products
        return ordered

    def _product_of(self, operation: mlir.Operation) -> tuple[int, int]:
        """What a matrix product multiplies; a key of its own for every other op."""
        if operation.name != "tpu.MatMul":
            return (0, id(operation))
        return (self._key(operation.operands[0]), 0)

    @staticmethod
    def _columns(operation: mlir.Operation) -> int:
        return mlir.from_mlir_type(operation.results[0].type).shape[-1]

    @staticmethod
    def _key(value: mlir.Value) -> int:
        return hash(value)
