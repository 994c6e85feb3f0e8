"""The one list of passes, in pipeline order. Importing it loads no pass: `load` does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from engine.passes.base import Pass

IMPORT = "import"
"""Name of the snapshot before any pass: the module as the family builds it."""

PASSES = {
    "top-canonicalize": "top_canonicalize:TopCanonicalize",
    "processor-assign": "processor_assign:ProcessorAssign",
    "convert-top-to-tpu": "convert_top_to_tpu:ConvertTopToTpu",
    "tpu-canonicalize": "tpu_canonicalize:TpuCanonicalize",
    "weight-reorder": "weight_reorder:WeightReorder",
    "kv-inplace": "kv_inplace:KvInplace",
    "op-reorder": "op_reorder:OpReorder",
    "layer-group": "layer_group:LayerGroup",
    "core-parallel": "core_parallel:CoreParallel",
    "address-assign": "address_assign:AddressAssign",
    "codegen": "codegen:Codegen",
}
"""Pass name -> module:class in this package."""

PASS_NAMES = (IMPORT, *PASSES)


def load(name: str) -> type[Pass]:
    """The class of a pass. Raises KeyError for an unknown name."""
    module, _, class_name = PASSES[name].partition(":")
    return cast("type[Pass]", getattr(import_module(f"{__name__}.{module}"), class_name))
