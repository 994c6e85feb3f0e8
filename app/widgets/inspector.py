"""What the cursor is on, in words and numbers: an op with its way through the compilation, a pass, or a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from app import units
from app.widgets.documents import (
    layout_of,
    op_label,
    place,
    readable_attributes,
    short_location,
    value_roles,
)
from app.widgets.lines import Line, LineView, Span
from app.widgets.table import width_of
from app.workspace import OpCost, Workspace
from engine.passes import IMPORT, PASSES
from engine.snapshot import OpRecord, Snapshot, TensorType, is_computation

CODEGEN = "codegen"
LABEL = 8
"""Cells of the labels at the left."""


class Inspector(LineView):
    """Lines about what the cursor of another panel is on."""

    HELP = """
What the cursor is on. For an op: **from** names the checkpoint tensors that it reads and the TopOp that it was, **via**
the passes that changed it, **to** the instructions that it became with their cost. Addresses are shown as arena plus
offset and in hex, as seen by the selected layer. For a pass: what it does and what it did here. For a module: inputs,
outputs, weights.
"""
    DEFAULT_CSS = """
    Inspector { min-width: 24; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, title="op")
        self._lines: list[Line] = []
        self.show_cursor = False

    def show(self, title: str, lines: Sequence[Line]) -> None:
        """Show lines under a title."""
        self.border_title = title
        if list(lines) != self._lines:
            self._lines = list(lines)
            self.scroll_to(y=0, animate=False, immediate=True)
            self.reload(0)

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, index: int) -> Line:
        return [(" ", ""), *self._lines[index]]

    def line_width(self) -> int:
        return max((width_of(line) for line in self._lines), default=0) + 2

    def move_by(self, amount: int) -> None:
        """There is no cursor: the text itself moves."""
        self.scroll_to(y=self.scroll_offset.y + amount, animate=False, immediate=True)


def labelled(label: str, line: Line) -> list[Span]:
    """A line with a label in front."""
    return [(f"{label:<{LABEL}}", "muted"), *line]


def wrapped(label: str, text: str, width: int, role: str = "") -> list[list[Span]]:
    """A text in lines of at most `width` cells behind a label."""
    lines: list[list[Span]] = []
    current = ""
    for word in text.split():
        if current and len(current) + 1 + len(word) > max(20, width - LABEL - 2):
            lines.append(labelled("" if lines else label, [(current, role)]))
            current = word
        else:
            current = f"{current} {word}".strip()
    return [*lines, labelled("" if lines else label, [(current, role)])] if current else lines


# -- op ------------------------------------------------------------------------------------------------------------


def op_title(op: OpRecord) -> str:
    """Title of an op's panel."""
    value = f" {op.results[0]}" if op.results else ""
    label = op_label(op)
    return f"{op.name}{value}" + (f" · {label}" if label else "")


def op_lines(work: Workspace, snapshot: Snapshot, op: OpRecord, width: int) -> list[list[Span]]:
    """Everything about an op, most wanted first."""
    lines = _from_lines(work, op, width)
    lines += _to_lines(work, op)
    lines += _type_lines(work, snapshot, op)
    if op.attributes and op.name != "top.Weight":
        text = " · ".join(f"{name} {value}" for name, value in readable_attributes(op))
        lines += wrapped("attrs", text, width, "changed")
    return [*lines, *_code_lines(snapshot, op)]


def _code_lines(snapshot: Snapshot, op: OpRecord) -> Iterator[list[Span]]:
    """The op's instructions, after code generation."""
    if snapshot.pass_name != CODEGEN or snapshot.report is None or not is_computation(op):
        return
    from app.widgets.code_lines import instruction_lines

    index = next((i for i, other in enumerate(snapshot.ops) if other is op), -1)
    for number, line in enumerate(instruction_lines(snapshot.report, index)):
        yield labelled("" if number else "code", line)


def _from_lines(work: Workspace, op: OpRecord, width: int) -> list[list[Span]]:
    lines: list[list[Span]] = []
    if op.name == "top.Weight":
        for name in op.attributes.get("tensors") or ():
            role = "weights" if not str(name).startswith("@") else "muted"
            note = "checkpoint tensor" if role == "weights" else "computed from the config"
            lines.append(
                labelled(
                    "" if lines else "from", [(work.layer_text(str(name)), role), (f"  {note}", "muted")]
                )
            )
        steps = " → ".join(map(str, op.attributes.get("transforms") or ())) or "as stored"
        lines += wrapped("makes", steps, width)
        readers = work.readers(op)
        if readers:
            lines += wrapped("used", ", ".join(readers), width)
        return lines
    way = work.provenance(op)
    if way is None:
        return [labelled("from", [(op_label(op) or "the module itself", "muted")])]
    for tensor in way.tensors:
        computed = tensor.name.startswith("@")
        note = " computed" if computed else ""
        lines.append(
            labelled(
                "" if lines else "from",
                [
                    (work.layer_text(tensor.name), "muted" if computed else "weights"),
                    (f"  {units.shape(tensor.shape)}{note}", "muted"),
                ],
            )
        )
    top = ", ".join(f"{o.name} {o.results[0] if o.results else ''}".strip() for _, o in way.top_ops)
    if top:
        note = f"  {work.layer_text(short_location(way.key))}"
        lines.append(labelled("" if lines else "from", [(top, "heading"), (note, "muted")]))
    lines += wrapped("via", " → ".join(way.via), width, "muted")
    return lines


def _to_lines(work: Workspace, op: OpRecord) -> list[list[Span]]:
    way = work.provenance(op) if is_computation(op) else None
    if way is None or not (way.tiu or way.gdma or way.tpu_ops):
        return []
    became = [o for _, o in way.tpu_ops if o.dialect == "tpu"]
    lines: list[list[Span]] = []
    if op.dialect == "top" and became:
        names = ", ".join(dict.fromkeys(f"{o.name}" for o in became))
        lines.append(
            labelled("to", [(f"{len(became)} ops: " if len(became) > 1 else "", "muted"), (names, "")])
        )
    cost = work.op_cost(op)
    return lines if cost is None else [*lines, *_cost_lines(cost, not lines)]


def _cost_lines(cost: OpCost, first: bool) -> Iterator[list[Span]]:
    yield labelled(
        "to" if first else "",
        [
            (f"{cost.tiu} TIU", "compute"),
            (" + ", "muted"),
            (f"{cost.gdma} GDMA", "dma"),
            (" instructions", "muted"),
        ],
    )
    if cost.rows is not None:
        yield labelled(
            "costs",
            [
                (units.cycles(cost.total("cycles")), "bold"),
                (" · ", "muted"),
                (f"bound by {cost.bound}", f"{cost.bound}-bound"),
            ],
        )
        read, written = (units.size(cost.total(f"ddr_{way}_bytes")) for way in ("read", "write"))
        yield labelled("moves", [(f"{read} read, {written} written", "")])


def _type_lines(work: Workspace, snapshot: Snapshot, op: OpRecord) -> list[list[Span]]:
    roles = value_roles(snapshot)
    rows: list[tuple[str, str, str, TensorType]] = []
    for sign, values, types in (
        ("in", op.operands, op.operand_types),
        ("out", op.results, op.result_types),
    ):
        for value, type_ in zip(values, types, strict=True):
            if not type_.is_none:
                rows.append((sign, value, roles.get(value, "activations"), type_))
    if not rows:
        return []
    layout = layout_of(snapshot)
    shapes = [plain_type(type_) for *_, type_ in rows]
    names = max(len(value) for _, value, _, _ in rows)
    kinds = max(len(role) for _, _, role, _ in rows)
    wide = max(map(len, shapes))
    lines = []
    last = ""
    for (sign, value, role, type_), text in zip(rows, shapes, strict=True):
        spans: list[Span] = [
            (f"{value:<{names}}  ", role),
            (f"{text:<{wide}}  ", ""),
            (f"{units.size(type_.nbytes):>8}  ", ""),
            (f"{role:<{kinds}}", role),
        ]
        if type_.address is not None:
            spans.append((f"  {units.address(work.layer_address(snapshot, type_.address))}", ""))
            spans.append((f" = {place(type_.address, layout)}", "muted"))
        lines.append(labelled("" if sign == last else sign, spans))
        last = sign
    return lines


def plain_type(type_: TensorType) -> str:
    """Shape and dtype."""
    return f"{units.shape(type_.shape)} {type_.dtype}"


# -- pass ----------------------------------------------------------------------------------------------------------


@cache
def pass_description(name: str) -> str:
    """What a pass does: its class's docstring, read from the source so that no pass is loaded here."""
    if name == IMPORT:
        return "The module as the model's family builds it from config and tensor names, before any pass."
    if name not in PASSES:
        return ""
    file, _, class_name = PASSES[name].partition(":")
    found = find_spec(f"engine.passes.{file}")
    if found is None or not found.origin:
        return ""
    tree = ast.parse(Path(found.origin).read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return " ".join((ast.get_docstring(node) or "").split())
    return ""


def pass_lines(work: Workspace, name: str, width: int) -> list[list[Span]]:
    """What a pass is for and what it did to the selected module."""
    lines = wrapped("does", pass_description(name), width)
    snapshot = work.snapshot(name)
    failure = work.compilation.failures.get(work.module)
    if failure is not None and failure.pass_name == name:
        lines += wrapped("failed", failure.message, width, "bad")
        if failure.saved_ir:
            lines += wrapped("IR", f"before the pass: {failure.saved_ir}", width, "muted")
        return lines
    if snapshot is None:
        return [*lines, labelled("here", [("has not run yet" if work.running else "did not run", "muted")])]
    before = work.before(name)
    text = "changed the module" if snapshot.changed else "changed nothing"
    if before is not None and before.op_count != snapshot.op_count:
        text += f": {before.op_count} ops became {snapshot.op_count}"
    lines += wrapped("here", f"{text}, in {units.duration(snapshot.seconds)}", width)
    for note in snapshot.notes:
        lines += wrapped("note", note, width, "kv")
    return lines


# -- module --------------------------------------------------------------------------------------------------------


def module_title(work: Workspace) -> str:
    """Title of a module's panel."""
    spec = work.selected_spec
    if spec is None:
        return "module"
    if len(spec.layers) > 1:
        return f"{spec.name} ×{len(spec.layers)}, shown as layer {work.layer}"
    return spec.name


def module_lines(work: Workspace, width: int) -> list[list[Span]]:
    """What a module is: stage, layers, inputs, outputs, weights."""
    spec = work.selected_spec
    if spec is None:
        return []
    lines: list[list[Span]] = []
    failure = work.compilation.failures.get(spec.name)
    if failure is not None:
        lines += wrapped("failed", failure.message, width, "bad")
    lines.append(labelled("stage", [(_stage_text(work), "")]))
    both = (*spec.inputs, *spec.outputs)
    names = max((len(t.name) for t in both), default=0)
    wide = max((len(plain_type(t.type)) for t in both), default=0)
    for label, tensors in (("in", spec.inputs), ("out", spec.outputs)):
        for index, tensor in enumerate(tensors):
            role = "kv" if tensor.name in ("history_k", "history_v", "k_cache", "v_cache") else "activations"
            lines.append(
                labelled(
                    label if not index else "",
                    [
                        (f"{tensor.name:<{names}}  ", role),
                        (f"{plain_type(tensor.type):<{wide}}  ", ""),
                        (f"{units.size(tensor.type.nbytes):>8}", "muted"),
                    ],
                )
            )
    weights = work.weight_bytes()
    if weights:
        total = units.size(sum(weights.values()))
        parts = " · ".join(f"{kind} {units.size(n)}" for kind, n in weights.items())
        lines.append(labelled("weights", [(total, "weights bold"), (f"  {parts}", "muted")]))
    return lines


def _stage_text(work: Workspace) -> str:
    spec = work.selected_spec
    assert spec is not None
    stage = {"both": "prefill and decode"}.get(str(spec.stage), str(spec.stage))
    text = f"{stage}, {spec.rows} new row{'s' if spec.rows != 1 else ''}"
    if spec.cache:
        text += f", reads {spec.cache} rows of history"
    if spec.layers:
        first, last = spec.layers[0], spec.layers[-1]
        text += f", layer{'s' if first != last else ''} {first}" + (f" to {last}" if first != last else "")
    return text + (", ends with the final norm" if spec.last else "")
