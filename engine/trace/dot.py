"""Graphviz: the look that all graphs share, their labels, and rendering: with `dot`, or graphviz-pure without one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path

import graphviz

from engine.errors import UserError
from engine.trace.output import to_png
from engine.trace.palette import LIGHT

FONT = "Helvetica"
PNG_DPI = 144
FALLBACKS = "Helvetica, Arial, 'Liberation Sans', Arimo, 'Nimbus Sans', 'DejaVu Sans Condensed', sans-serif"
SHRINK = 0.94


def new_graph(name: str, title: str, subtitle: str = "", *, rankdir: str = "TB") -> graphviz.Digraph:
    """An empty graph with a title above it."""
    head = [text(title, bold=True, size=15)]
    if subtitle:
        head.append(text(subtitle, role="muted", size=11))
    return graphviz.Digraph(
        name,
        graph_attr={
            "rankdir": rankdir,
            "label": label(head, align="center", padding=4),
            "labelloc": "t",
            "fontname": FONT,
            "nodesep": "0.28",
            "ranksep": "0.42",
            "pad": "0.25",
            "bgcolor": LIGHT["ground"],
        },
        node_attr={
            "shape": "box",
            "style": "rounded,filled",
            "fontname": FONT,
            "fontsize": "12",
            "fontcolor": LIGHT["ink"],
            "color": LIGHT["edge"],
            "fillcolor": LIGHT["panel"],
            "penwidth": "0.8",
            "margin": "0.14,0.07",
            "height": "0.3",
        },
        edge_attr={
            "fontname": FONT,
            "fontsize": "9",
            "fontcolor": LIGHT["muted"],
            "color": LIGHT["edge"],
            "arrowsize": "0.6",
            "penwidth": "0.9",
        },
    )


def text(value: str, *, role: str = "ink", bold: bool = False, size: float = 12) -> str:
    """A piece of an HTML-like label; line ends become line breaks."""
    body = escape(value, quote=False).replace("\n", "<BR/>")
    body = f"<B>{body}</B>" if bold else body
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{LIGHT[role]}">{body}</FONT>'


def label(lines: Iterable[str], *, align: str = "left", padding: int = 0) -> str:
    """An HTML-like label of lines made by `text`."""
    rows = "".join(f'<TR><TD ALIGN="{align.upper()}">{line}</TD></TR>' for line in lines)
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="{padding}">{rows}</TABLE>>'


def table(rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), aligns: str = "") -> str:
    """An HTML-like label of aligned columns. aligns: one of l, r, c for each column."""
    sides = {"l": "LEFT", "r": "RIGHT", "c": "CENTER"}
    columns = aligns or "l" * (len(rows[0]) if rows else len(header))

    def line(cells: Sequence[str]) -> str:
        made = (f'<TD ALIGN="{sides[side]}">{cell}</TD>' for cell, side in zip(cells, columns, strict=True))
        return f"<TR>{''.join(made)}</TR>"

    body = ([line(header)] if header else []) + [line(row) for row in rows]
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="3">{"".join(body)}</TABLE>>'


def cluster(graph: graphviz.Digraph, name: str, title: str) -> AbstractContextManager[graphviz.Digraph]:
    """A titled frame in a graph: what is drawn on the value of the `with` statement stands inside."""
    attributes = {
        "label": label([text(title, role="muted", bold=True, size=11)]),
        "labeljust": "l",
        "labelloc": "t",
        "style": "rounded,filled",
        "color": LIGHT["faint"],
        "fillcolor": LIGHT["fill-cluster"],
        "margin": "12",
    }
    frame: AbstractContextManager[graphviz.Digraph] = graph.subgraph(
        name=f"cluster_{name}", graph_attr=attributes
    )
    return frame


def render(source: str, suffix: str) -> bytes:
    """Dot source as .svg or .png. Raises UserError when there is no renderer or it refuses the graph."""
    found = _run(source, "svg") if suffix == ".svg" else _run(source, "png", f"-Gdpi={PNG_DPI}")
    if found is not None:
        return _with_room(found.decode()).encode() if suffix == ".svg" else found
    # a `dot` built without the PNG plugin still draws SVG
    drawing = _run(source, "svg") if suffix == ".png" else None
    if drawing is None:
        raise UserError(
            "Graphviz could not draw the graph; write .dot instead and look at it with another tool"
        )
    return to_png(_with_room(drawing.decode()))


_FAMILY = re.compile(rf'font-family="{FONT}[^"]*"')
_SIZE = re.compile(r'font-size="([0-9.]+)"')


def _with_room(svg: str) -> str:
    """Texts that stay in their boxes whatever fonts the viewer has: narrow ones first, smaller than laid out."""
    named = _FAMILY.sub(f'font-family="{FALLBACKS}"', svg)
    return _SIZE.sub(lambda found: f'font-size="{float(found[1]) * SHRINK:.2f}"', named)


def _run(source: str, kind: str, *options: str) -> bytes | None:
    found = subprocess.run(
        [renderer(), f"-T{kind}", *options], input=source.encode(), capture_output=True, check=False
    )
    return found.stdout if found.returncode == 0 and found.stdout else None


def renderer() -> str:
    """The program that draws graphs. Raises UserError when there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "graphviz-pure"
    found = shutil.which("dot") or shutil.which("graphviz-pure") or shutil.which(str(beside))
    if found is None:
        raise UserError(
            "no Graphviz renderer: install graphviz (`dot`) or graphviz-pure, or write .dot instead"
        )
    return found
