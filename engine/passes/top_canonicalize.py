"""top-canonicalize."""

from __future__ import annotations

from dataclasses import dataclass

from engine import mlir
from engine.passes.base import Pass, PassContext, PassReport

PURE = {"top.Weight", "top.None"}


@dataclass(frozen=True)
class TopCanonicalize(Pass):
    """Simplifies the imported module without changing what it computes: merges equal weight references and absent
    operands, folds a reshape of a reshape and a reshape that changes nothing, and removes what nobody uses."""

    name = "top-canonicalize"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        merged = merge_equal(module, PURE)
        folded = fold_reshapes(module, "top.Reshape")
        removed = remove_unused(module, keep={"top.Input"})
        notes = [
            f"{count} {what}"
            for count, what in ((merged, "merged"), (folded, "reshapes folded"), (removed, "unused removed"))
            if count
        ]
        return PassReport(tuple(notes))


def merge_equal(module: mlir.Module, names: set[str]) -> int:
    """Replace every later op of `names` by the first with the same attributes and type; returns how many."""
    seen: dict[tuple[str, ...], mlir.Operation] = {}
    merged = 0
    for operation in mlir.body_operations(module):
        if operation.name not in names:
            continue
        key = (operation.name, str(mlir.attributes_of(operation)), str(operation.results[0].type))
        first = seen.setdefault(key, operation)
        if first is not operation:
            mlir.replace(operation, list(first.results))
            merged += 1
    return merged


def fold_reshapes(module: mlir.Module, name: str) -> int:
    """Skip the inner of two reshapes in a row and drop reshapes to the same shape; returns how many."""
    folded = 0
    for operation in mlir.body_operations(module):
        if operation.name != name:
            continue
        source = mlir.defining(operation.operands[0])
        if source is not None and source.name == name:
            operation.operands[0] = source.operands[0]
            folded += 1
        if operation.operands[0].type == operation.results[0].type:
            mlir.replace(operation, [operation.operands[0]])
            folded += 1
    return folded


def remove_unused(module: mlir.Module, keep: set[str]) -> int:
    """Erase ops whose results nobody uses, last first; returns how many."""
    removed = 0
    for operation in reversed(mlir.body_operations(module)[:-1]):
        if operation.name not in keep and not any(mlir.uses(result) for result in operation.results):
            mlir.erase(operation)
            removed += 1
    return removed
