"""What the IR view shows: a snapshot folded for reading, its exact text, or a diff; made line by line when visible."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from app import units
from app.widgets.lines import Line, Span
from app.widgets.table import fitted, width_of
from engine.diff import Diff, DiffLine, SideLine, diff, side_by_side, unified
from engine.snapshot import OpRecord, Snapshot, TensorType
from engine.tpu.memory import ArenaLayout

GUTTER = 5
"""Cells of the line number and its space."""

# -- one op as spans -----------------------------------------------------------------------------------------------


def short_location(origin: str) -> str:
    """An origin without the parts that all of a block's ops share (`self_attn.q_proj`)."""
    for prefix in ("model.layers.{i}.", "model."):
        if origin.startswith(prefix):
            return origin.removeprefix(prefix)
    return origin


def op_label(op: OpRecord) -> str:
    """What people call an op: its most specific origin, shortened."""
    return short_location(op.origins[-1]) if op.origins and op.name != "top.None" else ""


def line_label(op: OpRecord) -> str:
    """The label of an op's line; a weight's line names its tensors already."""
    return "" if op.name == "top.Weight" else op_label(op)


KV_INPUTS = ("history_k", "history_v")
_KV_ORIGINS = (".keys", ".values")
_SAME_DATA = ("Load", "Store", "Reshape")
"""Kinds of ops whose result is the operand's data."""


def value_roles(snapshot: Snapshot) -> dict[str, str]:
    """The role of every value: weights, kv, activations, or muted for absent ones."""
    roles: dict[str, str] = {}
    for op in snapshot.ops:
        role = "activations"
        if op.name == "top.Weight":
            role = "weights"
        elif op.name == "top.None":
            role = "faint"
        elif op.location in KV_INPUTS or op.location.endswith(_KV_ORIGINS):
            role = "kv"
        elif op.kind in _SAME_DATA and op.operands:
            role = roles.get(op.operands[0], role)
        for value in op.results:
            roles[value] = role
    for value in _new_rows(snapshot):
        roles[value] = "kv"
    return roles


def _new_rows(snapshot: Snapshot) -> Iterator[str]:
    """Values that a block returns beside its output states: new K and V rows, and what they are reshaped from."""
    last = snapshot.ops[-1] if snapshot.ops else None
    if last is None or last.name != "func.return" or len(last.operands) != 3:
        return
    reshaped = {op.results[0]: op.operands[0] for op in snapshot.ops if op.kind == "Reshape"}
    for value in last.operands[1:]:
        yield value
        if value in reshaped:
            yield reshaped[value]


def type_spans(type_: TensorType, layout: ArenaLayout | None) -> list[Span]:
    """A type as people read it: shape, dtype, and where it lies (`neuron+0x1000`)."""
    if type_.is_none:
        return [("none", "faint")]
    spans: list[Span] = [(units.shape(type_.shape), ""), (f" {type_.dtype}", "muted")]
    if type_.address is not None:
        spans.append((f" @{place(type_.address, layout)}", "faint"))
    return spans


def place(address: int, layout: ArenaLayout | None) -> str:
    """An address as arena and offset, or in hex outside of all arenas."""
    if layout is not None:
        for arena, base in layout.base.items():
            if base <= address < base + layout.size[arena]:
                return f"{arena.name.lower()}+{address - base:#x}"
    return units.address(address)


def attribute_text(value: Any) -> str:
    """An attribute's value as people read it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(attribute_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} {attribute_text(item)}' for name, item in value.items())}}}"
    return str(value)


def layout_of(snapshot: Snapshot) -> ArenaLayout | None:
    """Arenas of an addressed snapshot; None before address-assign."""
    return ArenaLayout.of(snapshot.attributes) if "coeff_addr" in snapshot.attributes else None


def op_spans(
    op: OpRecord, roles: Mapping[str, str], layout: ArenaLayout | None, align: int = 0
) -> list[Span]:
    """An op on one line: results (right-aligned in `align` cells), name, operands, attributes, result types."""
    spans: list[Span] = [(" " * (align - len(", ".join(op.results))), "")] if op.results else []
    for index, value in enumerate(op.results):
        spans += [(", ", "muted")] if index else []
        spans.append((value, roles.get(value, "")))
    if op.results:
        spans.append((" = ", "muted"))
    spans += [(f"{op.dialect}.", "muted"), (op.kind, "heading bold")]
    if op.name == "top.Weight":
        spans += _weight_spans(op)
    elif op.name != "top.None":
        spans += _operand_spans(op, roles)
    if op.result_types and op.name != "top.None":
        spans.append((" → ", "muted"))
        for index, type_ in enumerate(op.result_types):
            spans += [(", ", "muted")] if index else []
            spans += type_spans(type_, layout)
    # attributes can be long: behind the types, so that those stay in sight
    return spans if op.name == "top.Weight" else [*spans, *_attribute_spans(op)]


def _weight_spans(op: OpRecord) -> list[Span]:
    tensors = op.attributes.get("tensors") or ()
    names = " + ".join(short_location(str(name)) for name in tensors)
    spans: list[Span] = [(f" {names}", "weights")]
    transforms = op.attributes.get("transforms") or ()
    if transforms:
        spans.append((f" | {' | '.join(map(str, transforms))}", "muted"))
    return spans


def _operand_spans(op: OpRecord, roles: Mapping[str, str]) -> list[Span]:
    operands = list(zip(op.operands, op.operand_types, strict=True))
    while operands and operands[-1][1].is_none:
        operands.pop()
    spans: list[Span] = [("(", "muted")]
    for index, (value, type_) in enumerate(operands):
        spans += [(", ", "muted")] if index else []
        spans.append(("·", "faint") if type_.is_none else (value, roles.get(value, "")))
    return [*spans, (")", "muted")]


def _attribute_spans(op: OpRecord) -> list[Span]:
    if not op.attributes:
        return []
    spans: list[Span] = [("  {", "muted")]
    for index, (name, value) in enumerate(readable_attributes(op)):
        spans += [(", ", "muted")] if index else []
        spans += [(name, "muted"), (" ", ""), (value, "changed")]
    return [*spans, ("}", "muted")]


def readable_attributes(op: OpRecord) -> Iterator[tuple[str, str]]:
    """Names and values; where an op's result lies in local memory (`ginfo`) comes taken apart."""
    for name, value in op.attributes.items():
        if name == "ginfo" and isinstance(value, Mapping):
            yield from _local_memory(value)
        else:
            yield name, attribute_text(value)


def _local_memory(ginfo: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "lmem", f"{ginfo.get('out_addr', 0):#x}+{ginfo.get('out_size', 0)}"
    if ginfo.get("buffer_size"):
        yield "buffer", f"{ginfo['buffer_addr']:#x}+{ginfo['buffer_size']}"
    yield "stage", str(ginfo.get("stage", 0))
    for axis in "ncdhw":
        slices = ginfo.get(f"{axis}_slice") or ()
        if len(slices) > 1:
            yield axis, "|".join(map(str, slices))


# -- documents -----------------------------------------------------------------------------------------------------


class Document(ABC):
    """Numbered lines, each about an op or about none."""

    layer = 0
    """The layer by whose names a search finds ops."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of lines."""

    @abstractmethod
    def line(self, index: int, width: int) -> Line:
        """Spans of a line for a panel of `width` cells."""

    def op(self, index: int) -> tuple[Snapshot, OpRecord] | None:
        """The op of a line and the snapshot that it stands in."""
        return None

    def ground(self, index: int) -> str:
        """Role of the line's ground."""
        return ""

    def copy_text(self, index: int) -> str:
        """The line's MLIR."""
        return ""

    def search_text(self, index: int) -> str:
        """What a search looks at: the line's MLIR and where its op came from."""
        found = self.op(index)
        origins = " ".join(found[1].origins).replace("{i}", str(self.layer)) if found else ""
        return f"{self.copy_text(index)} {origins}"

    def width(self) -> int:
        """Cells of the widest line; 0 when lines fit the panel."""
        return 0

    def numbered(self, number: int) -> int:
        """The line that carries a number, or the next one that is shown."""
        return min(max(number - 1, 0), max(self.count - 1, 0))

    def find_op(self, origins: Sequence[str], name: str = "", value: str = "") -> int | None:
        """The line of the op that is most like the one described: same origins, then same name and value."""
        best, found = 0, None
        for index in range(self.count):
            here = self.op(index)
            if here is None:
                continue
            op = here[1]
            shared = set(op.origins) & set(origins)
            if not shared:
                continue
            score = 1 + 4 * (tuple(op.origins) == tuple(origins)) + 2 * len(shared)
            score += 2 * (op.kind == name.partition(".")[2]) + (value in op.results)
            if score > best:
                best, found = score, index
        return found


GIVEN = frozenset({"top.Weight", "top.None", "top.Input"})
"""Ops that name what a module is given; they can be left out."""


class SnapshotDocument(Document):
    """A snapshot for reading: operand types and location aliases folded, each op with its place of origin.

    without: names of ops to leave out.
    """

    def __init__(self, snapshot: Snapshot, without: frozenset[str] = frozenset()) -> None:
        self.snapshot = snapshot
        self.text = snapshot.text.splitlines()
        self.by_line = {op.line: op for op in snapshot.ops}
        hidden = {op.line for op in snapshot.ops if op.name in without}
        self.lines = [
            i
            for i, line in enumerate(self.text)
            if line.strip() and not line.startswith("#loc") and i not in hidden
        ]
        self.layout = layout_of(snapshot)
        self.align = max((len(op.results[0]) for op in snapshot.ops if op.results), default=0)

    @cached_property
    def roles(self) -> dict[str, str]:
        """Role of every value."""
        return value_roles(self.snapshot)

    @cached_property
    def groups(self) -> dict[int, int]:
        """Number of each layer group by the line of its op."""
        lines = (op.line for op in self.snapshot.ops if op.name == GROUP)
        return {line: number for number, line in enumerate(lines)}

    @property
    def count(self) -> int:
        return len(self.lines)

    def line(self, index: int, width: int) -> Line:
        number = self.lines[index]
        text = self.text[number]
        indent = text[: len(text) - len(text.lstrip())]
        op = self.by_line.get(number)
        spans: list[Span] = [(f"{number + 1:>{GUTTER - 1}} ", "faint"), *_indent_spans(op, indent[2:], text)]
        if op is None:
            return [*spans, *_frame_spans(text.strip())]
        label = f"group {self.groups[number]}" if number in self.groups else line_label(op)
        return with_label([*spans, *op_spans(op, self.roles, self.layout, self.align)], label, width)

    def numbered(self, number: int) -> int:
        return min(bisect_left(self.lines, number - 1), max(self.count - 1, 0))

    def op(self, index: int) -> tuple[Snapshot, OpRecord] | None:
        op = self.by_line.get(self.lines[index])
        return (self.snapshot, op) if op else None

    def copy_text(self, index: int) -> str:
        return self.text[self.lines[index]].strip()

    @cached_property
    def _width(self) -> int:
        if self.count > 3000:
            return 40 + max(map(len, self.text), default=0)
        return max((width_of(self.line(i, 0)) for i in range(self.count)), default=0) + 2

    def width(self) -> int:
        return self._width


def with_label(line: list[Span], label: str, width: int) -> list[Span]:
    """The line with a label at the right edge where there is room, else behind the edge."""
    if not label:
        return line
    used = width_of(line)
    gap = width - used - len(label) - 1
    if gap < 2:
        # a label cut in half says nothing: it begins where the panel ends
        gap = max(3, width - used)
    return [*line, (" " * gap, ""), (label, "faint italic")]


GROUP = "tpu.Group"


def _indent_spans(op: OpRecord | None, indent: str, text: str) -> list[Span]:
    """The indentation of a line, with the frame of the layer group that the line is in."""
    if op is not None and op.name == GROUP:
        frame = "╭─"
    elif op is not None and op.parent is not None:
        frame = "│"
    elif op is None and len(indent) > 1 and text.lstrip().startswith("}"):
        frame = "╰─"
    else:
        return [(indent, "")]
    return [(frame, "heading"), (indent[len(frame) :], "")]


def _frame_spans(text: str) -> list[Span]:
    """A line that is no op: module and function heads, brackets."""
    head = "}" if text.startswith("}") else text
    if head.startswith("module"):
        name = head.partition(" attributes")[0]
        return [
            ("module ", "muted"),
            (name.removeprefix("module ").strip(" {"), "heading bold"),
            (" {", "muted"),
        ]
    if head.startswith("func.func"):
        return [("func ", "muted"), ("@main", "heading bold"), (" {", "muted")]
    return [(head, "muted")]


class RawDocument(Document):
    """The exact MLIR text with syntax colours."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.text = snapshot.text.splitlines()
        self.by_line = {op.line: op for op in snapshot.ops}

    @property
    def count(self) -> int:
        return len(self.text)

    def line(self, index: int, width: int) -> Line:
        return [(f"{index + 1:>{GUTTER - 1}} ", "faint"), *mlir_spans(self.text[index])]

    def op(self, index: int) -> tuple[Snapshot, OpRecord] | None:
        op = self.by_line.get(index)
        return (self.snapshot, op) if op else None

    def copy_text(self, index: int) -> str:
        return self.text[index]

    @cached_property
    def _width(self) -> int:
        return GUTTER + max(map(len, self.text), default=0) + 1

    def width(self) -> int:
        return self._width


_TOKEN_ROLES = (
    ("Token.Name.Variable", "activations"),
    ("Token.Name.Attribute", "faint"),
    ("Token.Keyword.Type", "dma"),
    ("Token.Literal.Number", "changed"),
    ("Token.Literal.String", "weights"),
    ("Token.Name.Namespace", "muted"),
    ("Token.Name.Function", "heading bold"),
    ("Token.Punctuation", "muted"),
    ("Token.Comment", "faint"),
)


def mlir_spans(text: str) -> list[Span]:
    """A line of MLIR with the roles of its tokens."""
    return [
        (value, next((role for name, role in _TOKEN_ROLES if str(kind).startswith(name)), ""))
        for kind, value in _lexer().get_tokens(text)
        if value != "\n"
    ]


def _lexer() -> Any:
    global _mlir_lexer
    if _mlir_lexer is None:
        from mlir_pygments import MLIRLexer

        _mlir_lexer = MLIRLexer(ensurenl=False, stripnl=False)
    return _mlir_lexer


_mlir_lexer: Any = None


# -- diffs ---------------------------------------------------------------------------------------------------------

_SIGNS = {"added": "+", "removed": "−", "moved": "↕", "changed": "±", "equal": " "}
_SIGN_ROLES = {
    "added": "added bold",
    "removed": "removed bold",
    "moved": "changed",
    "changed": "changed bold",
}


AnyLine = TypeVar("AnyLine", DiffLine, SideLine)


class Comparison:
    """Two snapshots and how they align, shared by the diff's views."""

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self.before = SnapshotDocument(before)
        self.after = SnapshotDocument(after)
        self.difference: Diff = diff(before, after)

    def names(self, before_line: int | None, after_line: int | None) -> set[str]:
        """Names of the ops on a line of each side."""
        found = (self.before.by_line.get(before_line or -1), self.after.by_line.get(after_line or -1))
        return {op.name for op in found if op is not None}

    def lines(
        self,
        drawn: Callable[[Diff, str, str, int | None], list[AnyLine]],
        context: int,
        without: frozenset[str],
    ) -> list[AnyLine]:
        """Lines of the diff with so much context, but for those of the ops whose names are left out."""
        found = drawn(
            self.difference, self.before.snapshot.text, self.after.snapshot.text, context_lines(context)
        )
        return [line for line in found if not self.names(line.before_line, line.after_line) & without]

    def spans(self, side: SnapshotDocument, line: int | None) -> list[Span]:
        """The op on a line of one side."""
        op = side.by_line.get(line) if line is not None else None
        return op_spans(op, side.roles, side.layout, side.align) if op else []


def context_lines(context: int) -> int | None:
    """Context of a diff as the engine wants it: more than 30 shows everything."""
    return None if context > 30 else context


class UnifiedDocument(Document):
    """A diff in one column: what is gone, then what came."""

    def __init__(self, pair: Comparison, context: int, without: frozenset[str] = frozenset()) -> None:
        self.pair = pair
        self.lines = pair.lines(unified, context, without)

    @property
    def count(self) -> int:
        return len(self.lines)

    def _side(self, line: DiffLine) -> tuple[SnapshotDocument, int | None]:
        if line.after_line is not None:
            return self.pair.after, line.after_line
        return self.pair.before, line.before_line

    def line(self, index: int, width: int) -> Line:
        entry = self.lines[index]
        if entry.kind == "gap":
            return [("    ", ""), (entry.text, "faint italic")]
        side, number = self._side(entry)
        op = side.by_line.get(number) if number is not None else None
        spans: list[Span] = [
            (f" {_SIGNS[entry.kind]} ", _SIGN_ROLES.get(entry.kind, "")),
            *self.pair.spans(side, number),
        ]
        return with_label(spans, line_label(op) if op else "", width)

    def op(self, index: int) -> tuple[Snapshot, OpRecord] | None:
        side, number = self._side(self.lines[index])
        op = side.by_line.get(number) if number is not None else None
        return (side.snapshot, op) if op else None

    def ground(self, index: int) -> str:
        kind = self.lines[index].kind
        return f"{kind}-wash" if kind in ("added", "removed") else ""

    def copy_text(self, index: int) -> str:
        return self.lines[index].text

    @cached_property
    def _width(self) -> int:
        return max((width_of(self.line(i, 0)) for i in range(min(self.count, 3000))), default=0) + 2

    def width(self) -> int:
        return self._width


class SideBySideDocument(Document):
    """A diff in two columns: what an op was beside what it became."""

    def __init__(self, pair: Comparison, context: int, without: frozenset[str] = frozenset()) -> None:
        self.pair = pair
        self.lines = pair.lines(side_by_side, context, without)

    @property
    def count(self) -> int:
        return len(self.lines)

    def line(self, index: int, width: int) -> Line:
        entry = self.lines[index]
        if entry.kind == "gap":
            return [("    ", ""), (entry.before or "", "faint italic")]
        half = max(8, (width - 7) // 2)
        sign = f" {_SIGNS[entry.kind]} "
        left = fitted(self.pair.spans(self.pair.before, entry.before_line), half)
        right = fitted(self.pair.spans(self.pair.after, entry.after_line), half)
        if entry.kind == "changed":
            left, right = _over(left, "removed-wash"), _over(right, "added-wash")
        elif entry.kind in ("added", "removed"):
            wash = f"{entry.kind}-wash"
            left, right = (left, _over(right, wash)) if entry.kind == "added" else (_over(left, wash), right)
        return [(" ", ""), *left, (sign, _SIGN_ROLES.get(entry.kind, "")), *right]

    def op(self, index: int) -> tuple[Snapshot, OpRecord] | None:
        entry = self.lines[index]
        for side, number in ((self.pair.after, entry.after_line), (self.pair.before, entry.before_line)):
            if number is not None and (op := side.by_line.get(number)):
                return side.snapshot, op
        return None

    def copy_text(self, index: int) -> str:
        entry = self.lines[index]
        return entry.after or entry.before or ""


def _over(line: Sequence[Span], ground: str) -> list[Span]:
    return [(text, f"{roles} {ground}") for text, roles in line]
