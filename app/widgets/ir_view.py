"""The IR of a module after a pass, or a diff, as a virtual text with a cursor that stands on ops."""

from __future__ import annotations

import re

from app.widgets.documents import Document
from app.widgets.lines import Line, LineView
from engine.snapshot import OpRecord, Snapshot


class IrView(LineView):
    """Shows a document; the cursor keeps its op when another document comes."""

    HELP = """
The module after the selected pass. Every op stands on one line: results, name, operands, attributes, result types and,
at the right edge, the part of the model that it came from. Operand types and location aliases are folded; **r** shows
the exact MLIR text, **w** leaves out weights and inputs.

Colours: `weights`, `KV` and `activations` as everywhere. **d** shows what the pass did, aligned by op: a removed op
stands beside those that it became, equal ones are folded (**+** and **-** show more or fewer). **D** puts both sides
next to each other. **m** marks a pass, and the diff then starts there.

Names and addresses are those of the selected layer; the title says when addresses are provisional, because modules are
still to be compiled. **:** with a module's name (`block_cache_7`) goes to that module and layer.

**o** follows the op to where it came from (a TpuOp to its TopOp, a TopOp to its checkpoint tensors), **O** to what it
became, **backspace** goes back.
"""
    EMPTY = "nothing here yet"
    GO_TO_HINT = "line, %value, op, or a module such as block_7"
    DEFAULT_CSS = """
    IrView { min-width: 24; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, title="IR")
        self.document: Document | None = None

    def show(self, document: Document | None, keep: OpRecord | None = None) -> None:
        """Show a document with the cursor on the op that is most like `keep`."""
        self.document = document
        cursor = None
        if document is not None and keep is not None:
            cursor = document.find_op(keep.origins, keep.name, keep.results[0] if keep.results else "")
        if document is not None and cursor is None:
            cursor = next((i for i in range(min(document.count, 400)) if _computes(document, i)), 0)
        top = self.scroll_offset.y
        row = self.cursor - top
        self.reload(cursor)
        if cursor is not None and row >= 0:
            # the op stays at the same height, so that stepping passes does not make the eye jump
            self.scroll_to(x=0, y=max(0, cursor - row), animate=False, immediate=True)
            self._reveal(cursor)

    def op(self) -> tuple[Snapshot, OpRecord] | None:
        """The op under the cursor and the snapshot that it stands in."""
        if self.document is None or self.cursor >= self.document.count:
            return None
        return self.document.op(self.cursor)

    def line_count(self) -> int:
        return self.document.count if self.document else 0

    def line(self, index: int) -> Line:
        assert self.document is not None
        return self.document.line(index, self.inner_width)

    def line_width(self) -> int:
        return self.document.width() if self.document else 0

    def ground(self, index: int) -> str:
        return self.document.ground(index) if self.document else ""

    def search_text(self, index: int) -> str:
        return self.document.search_text(index) if self.document else ""

    def copy_text(self, index: int) -> str:
        return self.document.copy_text(index) if self.document else ""

    def on_resize(self) -> None:
        """Labels at the right edge move with it."""
        self.repaint()

    def locate(self, wanted: str) -> int | None:
        """A line number, a value (`%12`: the op that makes it), or an op or place by name."""
        if self.document is None:
            return None
        if re.fullmatch(r"%\w+", wanted):
            for index in range(self.document.count):
                here = self.document.op(index)
                if here and wanted in here[1].results:
                    return index
            return None
        if wanted.isdigit():
            return self.document.numbered(int(wanted)) if self.document.count else None
        for index in range(self.document.count):
            here = self.document.op(index)
            if here and wanted.lower() in (here[1].kind.lower(), here[1].name.lower()):
                return index
        return super().locate(wanted)


def _computes(document: Document, index: int) -> bool:
    here = document.op(index)
    return here is not None and here[1].name not in ("top.None", "top.Input", "top.Weight")
