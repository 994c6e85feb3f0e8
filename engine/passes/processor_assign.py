"""processor-assign."""

from __future__ import annotations

from dataclasses import dataclass

from engine import mlir
from engine.passes.base import Pass, PassContext, PassReport


@dataclass(frozen=True)
class ProcessorAssign(Pass):
    """Writes into the module which chip it is for and how it is quantised; the passes behind read it from there."""

    name = "processor-assign"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        options = context.options
        block = bool(context.spec.layers)
        mlir.set_module_attributes(
            module,
            {
                "chip": options.chip_name,
                "cores": options.cores,
                "mode": (options.quantize if block else options.mode.half).upper(),
                "q_group_size": options.q_group_size if block and options.mode.weight_bits else 0,
                "q_symmetric": options.symmetric,
                "addr_mode": "io_alone",
                "state": "TOP_F32",
            },
        )
        return None
