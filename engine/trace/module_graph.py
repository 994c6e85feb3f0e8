"""A module after a pass as a graph: ops as nodes coloured by kind, values as edges, weights inside their readers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import graphviz

from engine.snapshot import OpRecord, Snapshot, TensorType
from engine.trace import words
from engine.trace.dot import cluster, label, new_graph, text
from engine.trace.palette import LIGHT

CATEGORY: Mapping[str, str] = {
    **dict.fromkeys(("MatMul", "A16MatMul", "MLP"), "matmul"),
    **dict.fromkeys(("FAttention",), "attention"),
    **dict.fromkeys(("RMSNorm",), "norm"),
    **dict.fromkeys(("Add", "Mul", "Active", "SiLU", "Cast"), "elementwise"),
    **dict.fromkeys(("Rope",), "rope"),
    **dict.fromkeys(("Gather",), "lookup"),
    **dict.fromkeys(("Load", "Store"), "transfer"),
    **dict.fromkeys(("TopK", "Sample"), "sampling"),
}
"""Op kind -> family of colours; other kinds are drawn as `layout` (reshapes and the like)."""

_HIDDEN = {"top.None", "top.Weight", "top.Input", "func.return", "tpu.Yield"}
_SHOWN_ATTRIBUTES = {
    "weight_bits": "bits",
    "q_group_size": "group",
    "mode": "mode",
    "activation": "activation",
    "scale": "scale",
    "eps": "eps",
    "axis": "axis",
    "K": "K",
}
"""Attributes that a node shows, and the word for each."""


def module_graph(
    snapshot: Snapshot, *, title: str, subtitle: str, layer: int | None = None, outputs: Sequence[str] = ()
) -> graphviz.Digraph:
    """A snapshot as a graph. layer: fills in the layer placeholder. outputs: names of the returned values, in order."""
    return _ModuleGraph(snapshot, layer, outputs).build(title, subtitle)


def shape_text(type_: TensorType) -> str:
    """`1x128x576 bf16`."""
    return f"{'x'.join(map(str, type_.shape)) or 'scalar'} {type_.dtype}"


class _ModuleGraph:
    """One graph being built."""

    def __init__(self, snapshot: Snapshot, layer: int | None, outputs: Sequence[str]) -> None:
        self.ops = snapshot.ops
        self.layer = layer
        self.outputs = outputs
        self.weights = {op.results[0]: op for op in self.ops if op.name == "top.Weight"}
        self.types = {
            value: type_ for op in self.ops for value, type_ in zip(op.results, op.result_types, strict=True)
        }
        self.maker = self._makers()

    def _makers(self) -> dict[str, str]:
        """Value -> name of the node that makes it; a group's results are made by what its terminator returns."""
        found: dict[str, str] = {}
        for index, op in enumerate(self.ops):
            if op.name in ("top.None", "top.Weight") or op.kind == "Group":
                continue
            found.update(dict.fromkeys(op.results, f"op{index}"))
        for op in self.ops:
            if op.name == "tpu.Yield" and op.parent is not None:
                for outer, inner in zip(self.ops[op.parent].results, op.operands, strict=False):
                    found[outer] = found.get(inner, "")
        return {value: node for value, node in found.items() if node}

    def build(self, title: str, subtitle: str) -> graphviz.Digraph:
        graph = new_graph("module", title, subtitle)
        self._inputs(graph)
        members: dict[int, list[int]] = {}
        for index, op in enumerate(self.ops):
            if op.parent is None:
                self._node(graph, index)
            else:
                members.setdefault(op.parent, []).append(index)
        for number, (group, children) in enumerate(members.items()):
            with cluster(graph, f"group{group}", self._group_title(number, group)) as frame:
                for index in children:
                    self._node(frame, index)
        self._outputs(graph)
        for index, op in enumerate(self.ops):
            self._edges(graph, index, op)
        return graph

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _inputs(self, graph: graphviz.Digraph) -> None:
        for index, op in enumerate(self.ops):
            if op.name == "top.Input":
                _terminal(graph, f"op{index}", op.location, op.result_types[0])

    def _outputs(self, graph: graphviz.Digraph) -> None:
        last = self.ops[-1]
        with graph.subgraph(graph_attr={"rank": "max"}) as bottom:
            for number, (value, type_) in enumerate(zip(last.operands, last.operand_types, strict=True)):
                name = self.outputs[number] if number < len(self.outputs) else f"output {number}"
                _terminal(bottom, f"out{number}", name, type_)
                if value in self.maker:
                    graph.edge(self.maker[value], f"out{number}")

    def _node(self, graph: graphviz.Digraph, index: int) -> None:
        op = self.ops[index]
        if op.name in _HIDDEN or op.kind == "Group":
            return
        fill = LIGHT[f"fill-{CATEGORY.get(op.kind, 'layout')}"]
        lines = [text(op.kind, bold=True)]
        lines += [text(words.short_name(op.location, self.layer), role="muted", size=10)]
        lines += [text(detail, role="muted", size=9.5) for detail in _details(op)]
        lines += [text(line, role="weights", size=9.5) for line in self._weight_lines(op)]
        graph.node(f"op{index}", label(lines), fillcolor=fill, tooltip=self._tooltip(op))

    def _weight_lines(self, op: OpRecord) -> Iterator[str]:
        for value in op.operands:
            weight = self.weights.get(value)
            if weight is not None:
                yield f"{self._weight_name(op, weight)}  {shape_text(weight.result_types[0])}"

    def _weight_name(self, op: OpRecord, weight: OpRecord) -> str:
        """What a weight is to its reader: `scale`, `gate_proj.weight`, `rope.cos`."""
        part = str(weight.attributes.get("path", "")).rpartition(".")[2]
        if part and part != "weight":
            return part
        name = words.short_name(weight.location.removeprefix("@"), self.layer)
        own = words.short_name(op.location, self.layer)
        return name.removeprefix(f"{own}.") if name != own else name

    def _group_title(self, number: int, index: int) -> str:
        ginfo = self.ops[index].attributes
        secs = [f"{dim}secs {ginfo[f'{dim}secs']}" for dim in "ncdhw" if int(ginfo.get(f"{dim}secs", 1)) > 1]
        return " · ".join([f"group {number}", *secs])

    def _tooltip(self, op: OpRecord) -> str:
        lines = [op.name, f"from {words.in_layer(op.location, self.layer)}"]
        lines += [f"{key} = {value}" for key, value in op.attributes.items() if key not in ("ginfo",)]
        lines += [f"{value}: {type_}" for value, type_ in zip(op.results, op.result_types, strict=True)]
        return "\n".join(lines)

    # -- edges ----------------------------------------------------------------------------------------------------

    def _edges(self, graph: graphviz.Digraph, index: int, op: OpRecord) -> None:
        if op.name in _HIDDEN or op.kind == "Group":
            return
        for value in dict.fromkeys(op.operands):
            if value in self.maker:
                graph.edge(self.maker[value], f"op{index}", label=f" {shape_text(self.types[value])} ")


_KV = re.compile(r"^(history_[kv]|[kv]_cache)$")


def _terminal(graph: graphviz.Digraph, node: str, name: str, type_: TensorType) -> None:
    """An input or an output of the module."""
    role, fill = ("kv", "fill-kv") if _KV.match(name) else ("activations", "fill-input")
    lines = [text(name, bold=True, size=11), text(shape_text(type_), role="muted", size=9.5)]
    where = shape_text(type_) if type_.address is None else f"DDR address {type_.address}"
    graph.node(
        node,
        label(lines, align="center"),
        fillcolor=LIGHT[fill],
        color=LIGHT[role],
        tooltip=f"{name}: {where}",
    )


def _details(op: OpRecord) -> Iterator[str]:
    """The attributes that tell ops of a kind apart, on one line."""
    given = op.attributes
    shown = [
        f"{word} {_value(given[key])}"
        for key, word in _SHOWN_ATTRIBUTES.items()
        if given.get(key) is not None
    ]
    if given.get("only_merge"):
        shown.append("in place")
    if op.kind == "Cast" and op.operand_types:
        shown.append(f"{op.operand_types[0].dtype} to {op.result_types[0].dtype}")
    if shown:
        yield " · ".join(shown)
    place = given.get("ginfo")
    if place:
        yield f"LMEM {int(place['out_addr']) / 1024:g} KiB · {int(place['out_size']) / 1024:.3g} KiB"


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
