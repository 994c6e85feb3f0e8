"""Why a layer group is as it is: where it begins and ends, which slicings were tried, what the cuts would cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from app import units
from app.widgets.documents import short_location
from app.widgets.inspector import Inspector
from app.widgets.lines import Line, Span
from app.widgets.lmem_canvas import first_fit
from app.widgets.lmem_facts import DIMS, kib
from engine.passes.layer_group.plan import Alternative, Attempt, Explanation, GroupPlan, Secs

LABEL = 9
"""Cells of the labels at the left."""


def labelled(label: str, line: Line) -> list[Span]:
    """A line with a label in front."""
    return [(f"{label:<{LABEL}}", "muted"), *line]


def wrapped(label: str, text: str, width: int, role: str = "") -> list[list[Span]]:
    """A text in lines of at most `width` cells behind a label."""
    room = max(12, width - LABEL - 2)
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [labelled("" if number else label, [(line, role)]) for number, line in enumerate(lines)]


def why_lines(explanation: Explanation | None, plan: GroupPlan, width: int) -> list[list[Span]]:
    """The explanation in lines of at most `width` cells."""
    if explanation is None:
        return wrapped("", "The pass left no explanation for this group.", width, "muted")
    lines = wrapped("begins", _shortened(explanation.begins), width)
    lines += wrapped("ends", _shortened(explanation.ends), width)
    if explanation.attempts:
        lines += [
            [],
            [("slicings tried", "heading bold"), ("  bytes per lane", "faint")],
        ]
        for attempt in explanation.attempts:
            lines += attempt_lines(attempt, attempt.secs == plan.secs, width)
    if explanation.alternatives:
        lines += [[], [("cuts compared", "heading bold")]]
        for alternative in explanation.alternatives:
            lines += alternative_lines(alternative, width)
    return lines


def _shortened(text: str) -> str:
    """A sentence with its places in the model as `short_location` writes them."""
    return " ".join(map(short_location, text.split(" ")))


def short_secs(secs: Secs) -> str:
    """`c2`, `n2 c4`, or `whole`."""
    cut = [f"{dim}{number}" for dim, number in zip(DIMS, secs.as_tuple(), strict=True) if number > 1]
    return " ".join(cut) or "whole"


def attempt_lines(attempt: Attempt, taken: bool, width: int) -> list[list[Span]]:
    """A slicing: how much of local memory it takes, as a bar that is full at what there is, and what came of it."""
    fits = attempt.cycles is not None
    role = "good" if taken and fits else "muted" if fits else "bad"
    mark = "✓" if taken and fits else "·" if fits else "✗"
    line: list[Span] = [(f"{mark} ", f"{role} bold"), (f"{short_secs(attempt.secs):<{LABEL - 2}}", "heading")]
    cost = f"  {units.cycles(attempt.cycles or 0)}" if fits else ""
    need = ""
    if attempt.needed_bytes:
        needed, available = kib(attempt.needed_bytes), kib(attempt.available_bytes)
        fitting = width - LABEL - len(cost)
        need = first_fit([f" {needed} of {available} KiB", f" {needed} KiB"], fitting)
    room = min(16, width - LABEL - len(need) - len(cost) - 2)
    if need and room >= 3:
        line += _need_bar(attempt, room, role)
    line += [(need, role), (cost, "heading" if taken else "muted")]
    lines = [line]
    if attempt.reason:
        lines += wrapped("", _reason(attempt), width, "bad" if not fits else "muted")
    return lines


def _need_bar(attempt: Attempt, room: int, role: str) -> list[Span]:
    """`room` cells: what there is ends at the line, what is missing goes on behind it, lighter."""
    full = max(attempt.needed_bytes, attempt.available_bytes, 1)
    limit = max(1, round((room - 1) * attempt.available_bytes / full))
    needed = max(1, round((room - 1) * attempt.needed_bytes / full))
    if needed > limit:
        return [("█" * limit, role), ("▒" * (needed - limit), role), (" " * (room - needed), "")]
    free = limit - needed
    return [("█" * needed, role), ("·" * free, "faint"), ("▏", "heading"), (" " * (room - 1 - limit), "")]


_REASONS = {
    "memory": "memory: {over:,} B more are live in one step than there are",
    "fragmentation": "fragmentation: it would fit in sum, but not in one piece; {over:,} B over the end",
    "bank rule": "bank rule: buffers that both engines touch in one step, or that one op reads and writes, would have "
    "to share a bank; apart they take {over:,} B too many",
}
"""What the search's reasons mean."""


def _reason(attempt: Attempt) -> str:
    over = max(0, attempt.needed_bytes - attempt.available_bytes)
    found = _REASONS.get(attempt.reason)
    return attempt.reason if found is None else found.format(over=over)


def alternative_lines(alternative: Alternative, width: int) -> list[list[Span]]:
    """A cut that was compared: what both ways cost and which is cheaper."""
    lines = wrapped("•", _shortened(alternative.description), width)
    apart = units.cycles(alternative.split_cycles)
    if alternative.joined_cycles is None:
        return [*lines, labelled("", [("cannot be joined", "bad"), (f", apart {apart}", "muted")])]
    saved = alternative.joined_cycles - alternative.split_cycles
    verdict = (
        "the same" if not saved else f"{units.cycles(abs(saved))} less {'apart' if saved > 0 else 'joined'}"
    )
    joined = units.cycles(alternative.joined_cycles)
    return [*lines, labelled("", [(f"joined {joined}, apart {apart}: ", "muted"), (verdict, "good")])]


class WhyPanel(Inspector):
    """The explanation of the group on the map."""

    HELP = """
Why the search left this group as it is. **begins** and **ends** name the op at each end that could not join, or would
have made the group dearer. Below are the slicings that were tried, from coarse to fine: a full bar is all of local
memory, what does not fit reaches beyond it in red. Last come the cuts that were compared, with the cycles of the ops
joined in one group and apart.
"""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "why this group?"
        self._about: tuple[Explanation | None, GroupPlan] | None = None

    def explain(self, explanation: Explanation | None, plan: GroupPlan | None, title: str) -> None:
        """Show another group's explanation."""
        self._about = None if plan is None else (explanation, plan)
        self.show(title, self._text())

    def _text(self) -> Sequence[Line]:
        if self._about is None:
            return []
        explanation, plan = self._about
        return why_lines(explanation, plan, self.inner_width)

    def on_resize(self) -> None:
        """Wrap anew."""
        if self._about is not None:
            self.show(str(self.border_title), self._text())
