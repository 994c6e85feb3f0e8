"""layer-group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.passes.base import Pass, PassContext, PassReport

if TYPE_CHECKING:
    from engine import mlir
    from engine.passes.layer_group.plan import LayerGroupReport


@dataclass(frozen=True)
class LayerGroup(Pass):
    """Puts consecutive ops into groups that keep their tensors in local memory, so that what one makes and the next
    reads never goes to DDR. A group runs slice by slice, loads and stores beside its computations, with an address in
    local memory and a time step for everything. `--no-layer-group` leaves all ops global; `--opt` sets the search;
    `--fuse-weights` lets groups hold quantised products, their weights streamed tile by tile."""

    name = "layer-group"

    def run(self, module: mlir.Module, context: PassContext) -> PassReport | None:
        # whoever only reads plans does without the bindings
        from engine import mlir
        from engine.passes.layer_group.apply import apply_plans, mark_bank_conflicts
        from engine.passes.layer_group.search import plan_groups
        from engine.passes.layer_group.stream.search import plan_fused

        options = context.options
        if not options.layer_group:
            return PassReport(("off",))
        records = mlir.records(module)
        forced = options.forced_groups(context.spec.names)
        search = plan_fused if options.fuse_weights else plan_groups
        report = search(records, options.chip, opt=options.opt, forced=forced, module=context.spec.name)
        apply_plans(module, records, report.groups)
        mark_bank_conflicts(module, options.chip)
        return PassReport((_note(report),), report)


def _note(report: LayerGroupReport) -> str:
    ops = sum(len(group.records) for group in report.groups)
    return f"{len(report.groups)} groups of {ops} ops, {len(report.global_cycles)} ops global"
