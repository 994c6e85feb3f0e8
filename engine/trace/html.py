"""Pieces of an HTML page: tables that sort, tiles, figures, pictures put into the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from engine.trace.palette import themed


@dataclass(frozen=True)
class Cell:
    """A table cell. html: what it shows. value: what it sorts by and, being a number, is aligned for."""

    html: str
    value: float | None = None


def words_cell(text: str) -> Cell:
    """Plain words."""
    return Cell(escape(text))


def code_cell(text: str) -> Cell:
    """A name from the program."""
    return Cell(f"<code>{escape(text)}</code>")


def number_cell(value: float, shown: str) -> Cell:
    """A number, shown with its unit."""
    return Cell(escape(shown), value)


def share_cell(part: float, whole: float, largest: float, role: str) -> Cell:
    """A share of a whole: a percentage, and a bar as long as its part of the column's largest."""
    share = part / whole if whole else 0.0
    bar = f'<i style="width:{100 * part / largest if largest else 0:.1f}%;background:var(--{role})"></i>'
    return Cell(f'{100 * share:.1f} %<span class="bar">{bar}</span>', share)


def table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], *, sortable: bool = True, narrow: bool = False
) -> str:
    """A table; columns of numbers stand right."""
    lines = [list(row) for row in rows]
    numeric = [bool(lines) and lines[0][index].value is not None for index in range(len(head))]
    sort = " data-sort" if sortable else ""
    top = "".join(
        f"<th{sort}{_side(number)}>{escape(word)}</th>" for word, number in zip(head, numeric, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell, number) for cell, number in zip(line, numeric, strict=True)) + "</tr>"
        for line in lines
    )
    width = ' class="narrow"' if narrow else ""
    return (
        f'<div class="scroll"><table{width}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _side(number: bool) -> str:
    return ' class="n"' if number else ""


def _cell(cell: Cell, number: bool) -> str:
    value = "" if cell.value is None else f' data-v="{cell.value:g}"'
    return f"<td{_side(number)}{value}>{cell.html}</td>"


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Large figures: (figure, what it is)."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(figure)}</b><span>{escape(what)}</span></div>'
            for figure, what in facts
        )
        + "</div>"
    )


def figure(svg: str, caption: str = "", *, framed: bool = False) -> str:
    """A picture in the page's colours."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    box = ' class="framed"' if framed else ""
    return f"<figure><div{box}>{inline(svg)}</div>{below}</figure>"


def folded(title: str, note: str, content: str, *, opened: bool = False) -> str:
    """Content behind a line to click on."""
    state = " open" if opened else ""
    return f"<details{state}><summary>{escape(title)}<span>{escape(note)}</span></summary>{content}</details>"


_PROLOGUE = re.compile(r"^.*?(?=<svg\b)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NUMBERED_ID = re.compile(r' id="(?:graph|node|edge|clust|a_node|a_edge)[^"]*"')


def inline(svg: str) -> str:
    """SVG text as part of a page: no prologue, no ids that another picture also uses, the page's colours."""
    body = _COMMENT.sub("", _PROLOGUE.sub("", svg, count=1))
    return themed(_NUMBERED_ID.sub("", body))
