"""Layer groups of ours beside the reference compiler's, for the same architectures; nothing is run, only compiled.

    python benchmarks/layer_groups.py [REFERENCE] [--only REGEX] [--opt 1|2|3]

REFERENCE is a folder of the reference's outputs or its compact copy (default: benchmarks/data/layer_groups.json). Each
cell is ours/reference. same: groups with the same ops and the same slices. kcycles: of all groups. moved: MB that loads
and stores of groups move. memory: MB of inputs, outputs and activations in DDR. Reshapes are not counted as ops.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reference_groups import DATA, Reference, ReferenceGroup, ReferenceModule, load  # noqa: E402

from engine import mlir  # noqa: E402
from engine.compiler import Model, open_model  # noqa: E402
from engine.errors import UserError  # noqa: E402
from engine.options import CompileOptions  # noqa: E402
from engine.passes import PASSES  # noqa: E402
from engine.passes import load as load_pass  # noqa: E402
from engine.passes.base import PassContext  # noqa: E402
from engine.passes.layer_group.plan import GroupPlan, ItemKind  # noqa: E402
from engine.snapshot import BITS, OpRecord  # noqa: E402
from engine.stages import find, plan  # noqa: E402
from engine.top.families import build_module  # noqa: E402

LAST_PASS = "address-assign"
ONE_CORE_ONLY = ("bm1688",)
"""Chips of which the reference has the transfers and cycles of the first of two cores only: not in the sums."""


@dataclass(frozen=True)
class OurModule:
    """What this compiler made of a module. seconds: of the layer-group pass."""

    groups: list[ReferenceGroup]
    moved: int
    memory: int
    seconds: float


def compile_module(model: Model, options: CompileOptions, name: str) -> OurModule:
    """Run the passes up to addresses over one module."""
    spec, _ = find(plan(model.shape, options), name)
    context = PassContext(spec, model.config, options)
    with mlir.using(mlir.new_context()):
        module = build_module(spec, model.config, options)
        for pass_name in list(PASSES)[: list(PASSES).index(LAST_PASS) + 1]:
            if pass_name == "layer-group":
                records = mlir.records(module)
            start = time.process_time()
            report = load_pass(pass_name)().run(module, context)
            if pass_name == "layer-group":
                seconds, groups = time.process_time() - start, report.data.groups
        attributes = mlir.module_attributes(module)
    return OurModule(
        [_as_reference(group, records) for group in groups],
        sum(moved_bytes(group, records) for group in groups),
        attributes["io_size"] + attributes["neuron_size"],
        seconds,
    )


def _as_reference(group: GroupPlan, records: Sequence[OpRecord]) -> ReferenceGroup:
    kinds = [records[index].kind for index in group.records]
    return ReferenceGroup(
        [kind for kind in kinds if kind != "Reshape"],
        list(group.secs.as_tuple()),
        group.cycles,
        group.peak_bytes,
    )


def moved_bytes(group: GroupPlan, records: Sequence[OpRecord]) -> int:
    """Bytes that the group's loads and stores move, over all slices."""
    types = {
        value: type_
        for record in records
        for value, type_ in zip(
            (*record.operands, *record.results), (*record.operand_types, *record.result_types), strict=True
        )
    }
    total = 0
    for item in group.items:
        if item.kind is ItemKind.COMPUTE:
            continue
        # the slices cover the tensor once; dimensions that are not cut are moved again for every slice
        whole = prod(sum(lengths) for lengths in item.slices.lengths)
        own = prod(len(lengths) for lengths in item.slices.lengths)
        again = 1 if item.held else group.secs.slices // own
        total += whole * again * BITS[types[item.value].dtype] // 8
    return total


def options_for(model: Model, module: ReferenceModule, opt: int) -> CompileOptions:
    """The options that give the reference's module."""
    given: dict[str, Any] = {
        "quantize": module.quantize,
        "seq_length": module.length,
        "chip_name": module.chip,
        "history": module.variant == "kv",
        "opt": opt,
    }
    if module.variant == "g128":
        given["q_group_size"] = 128
    if module.variant != "kv":
        given["prefill_mask"] = "full"
    return model.resolve(**given)


def same_groups(ours: Sequence[ReferenceGroup], theirs: Sequence[ReferenceGroup]) -> int:
    """How many of the reference's groups we have, with the same ops and slices."""
    counted = [Counter((tuple(g.kinds), tuple(g.secs)) for g in groups) for groups in (ours, theirs)]
    return (counted[0] & counted[1]).total()


def describe(group: ReferenceGroup) -> str:
    """A group on one line."""
    cuts = " ".join(f"{axis}{n}" for axis, n in zip("ncdhw", group.secs, strict=True) if n > 1) or "1 slice"
    return f"{{{' '.join(group.kinds)}}} {cuts}, {group.cycles} cycles, {group.peak} bytes"


HEADER = (
    f"{'module':<52}{'groups':>9}{'ops':>9}{'same':>6}{'kcycles':>17}{'peak KiB':>11}{'moved MB':>15}"
    f"{'memory MB':>15}{'ms':>6}"
)


def row(label: str, ours: OurModule, theirs: ReferenceModule) -> str:
    """One line of the table."""

    def pair(a: float, b: float, digits: int = 0) -> str:
        return f"{a:.{digits}f}/{b:.{digits}f}"

    def cycles(groups: Sequence[ReferenceGroup]) -> float:
        return sum(group.cycles or 0 for group in groups) / 1e3

    def peak(groups: Sequence[ReferenceGroup]) -> float:
        return max((group.peak for group in groups), default=0) / 1024

    ops = [sum(len(group.kinds) for group in groups) for groups in (ours.groups, theirs.groups)]
    return (
        f"{label:<52}{pair(len(ours.groups), len(theirs.groups)):>9}{pair(*ops):>9}"
        f"{same_groups(ours.groups, theirs.groups):>6}{pair(cycles(ours.groups), cycles(theirs.groups), 1):>17}"
        f"{pair(peak(ours.groups), peak(theirs.groups)):>11}{pair(ours.moved / 1e6, theirs.moved / 1e6, 2):>15}"
        f"{pair(ours.memory / 1e6, theirs.memory / 1e6, 2):>15}{ours.seconds * 1e3:>6.0f}"
    )


def differences(ours: OurModule, theirs: ReferenceModule) -> Iterator[str]:
    """Lines for the groups that only one side has."""
    for name, mine, others in (
        ("ours", ours.groups, theirs.groups),
        ("reference", theirs.groups, ours.groups),
    ):
        known = Counter((tuple(g.kinds), tuple(g.secs)) for g in others)
        for group in mine:
            key = (tuple(group.kinds), tuple(group.secs))
            known[key] -= 1
            if known[key] < 0:
                yield f"    only {name}: {describe(group)}"


def compare(reference: Reference, only: str, opt: int) -> Iterator[tuple[ReferenceModule, OurModule]]:
    """Compile every module of the reference whose label matches."""
    with tempfile.TemporaryDirectory() as folder:
        for module in reference.modules:
            if not re.search(only, module.label):
                continue
            path = Path(folder) / f"{module.shape}.json"
            path.write_text(json.dumps(reference.configs[module.shape]))
            try:
                model = open_model(path)
                yield module, compile_module(model, options_for(model, module, opt), module.module)
            except UserError as error:
                print(f"{module.label}: left out: {error}")


def main() -> None:
    """Print the table and its sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("reference", nargs="?", default=DATA, type=Path)
    parser.add_argument("--only", default="", help="a regular expression on the module's name")
    parser.add_argument("--opt", type=int, default=2)
    arguments = parser.parse_args()
    sums: dict[str, Counter[str]] = {}
    print(HEADER)
    for theirs, ours in compare(load(arguments.reference), arguments.only, arguments.opt):
        print(row(theirs.label, ours, theirs))
        for line in differences(ours, theirs):
            print(line)
        kind = "W4/W8" if theirs.quantize[0] == "w" else "bf16"
        total = sums.setdefault(kind, Counter())
        total["groups"] += len(theirs.groups)
        total["same"] += same_groups(ours.groups, theirs.groups)
        if theirs.chip not in ONE_CORE_ONLY:
            total["moved"] += ours.moved
            total["moved there"] += theirs.moved
        total["memory"] += ours.memory
        total["memory there"] += theirs.memory
    for kind, total in sums.items():
        print(
            f"\n{kind}: {total['same']} of {total['groups']} groups the same "
            f"({100 * total['same'] / max(1, total['groups']):.1f} %); moved {total['moved'] / 1e6:.1f} MB "
            f"(reference {total['moved there'] / 1e6:.1f}); memory {total['memory'] / 1e6:.1f} MB "
            f"(reference {total['memory there'] / 1e6:.1f})"
        )


if __name__ == "__main__":
    main()
