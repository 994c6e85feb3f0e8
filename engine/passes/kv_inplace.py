"""kv-inplace."""

from __future__ import annotations

from dataclasses import dataclass

from engine import mlir
from engine.errors import CompileError
from engine.passes.base import Pass, PassContext, PassReport


@dataclass(frozen=True)
class KvInplace(Pass):
    """Turns the concatenation of KV history and new rows into one that moves nothing (`only_merge`): the new rows are
    written right behind the history that the module reads. Checks what this rests on: the history is an input, the new
    rows are an output, and they follow each other along the first axis that is not 1."""

    name = "kv-inplace"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        returned = mlir.body_operations(module)[-1]
        merged = 0
        for operation in mlir.body_operations(module):
            if operation.name != "tpu.Concat" or len(operation.operands) != 2:
                continue
            history, new = operation.operands
            source = mlir.defining(history)
            if source is None or source.name != "top.Input":
                continue
            if new not in list(returned.operands):
                raise CompileError(
                    f"the rows appended to {mlir.origins(source.location)[0][0]} are not an output of the module; "
                    "in-place append needs them to be"
                )
            shape, axis = mlir.from_mlir_type(history.type).shape, mlir.attributes_of(operation)["axis"]
            if any(size != 1 for size in shape[:axis]):
                raise CompileError(f"cannot append in place along axis {axis} of shape {list(shape)}")
            mlir.set_attribute(operation, "only_merge", True)
            merged += 1
        return PassReport((f"{merged} appends in place",) if merged else ())
