"""Why a layer group is as it is: where it begins and ends, which slicings were tried, what the cuts would cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.strip import Strip

from app import units
from app.actions import bindings
from app.widgets.documents import short_location
from app.widgets.inspector import Inspector
from app.widgets.lines import Line, Span
from app.widgets.lmem_canvas import first_fit
from app.widgets.lmem_words import gain_text, kib, readable_bytes, secs_text, verdict_text
from engine.passes.layer_group.plan import Alternative, Attempt, Explanation, GroupPlan

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


EXACT = 60
"""Width from which exact numbers of bytes stand behind the rounded ones."""


@dataclass(frozen=True)
class Gain:
    """What a group saves on one core. ops: that compute; cycles: of the group; alone: of its ops one by one from DDR.

    cores: of the program.
    """

    ops: int
    cycles: int
    alone: int
    cores: int = 1


def why_lines(
    explanation: Explanation | None, plan: GroupPlan, width: int, gain: Gain | None = None
) -> list[list[Span]]:
    """The verdict and the explanation in lines of at most `width` cells."""
    lines: list[list[Span]] = []
    if gain is not None:
        role = "good bold" if gain.alone > gain.cycles else "changed bold"
        lines += flowing(verdict_text(gain.ops, gain.cycles, gain.alone, gain.cores), width, role)
        lines += wrapped("gains", gain_text(gain.cycles, gain.alone), width)
    if explanation is None:
        return [*lines, *wrapped("", "The pass left no explanation for this group.", width, "muted")]
    lines += wrapped("begins", _told(explanation.begins, width), width)
    lines += wrapped("ends", _told(explanation.ends, width), width)
    if explanation.attempts:
        lines += [
            [],
            [("slicings tried", "heading bold"), (f"  {first_fit(_OF_SLICINGS, width - 18)}", "muted")],
        ]
        label = max(len(secs_text(attempt.secs.as_tuple())) for attempt in explanation.attempts) + 1
        for attempt in explanation.attempts:
            lines += attempt_lines(attempt, attempt.secs == plan.secs, width, label)
    if explanation.alternatives:
        lines += [[], [("cuts compared", "heading bold")]]
        for alternative in explanation.alternatives:
            lines += alternative_lines(alternative, width)
    return lines


_OF_SLICINGS = ("highest address per lane", "highest address")
"""What the bytes of a slicing are, as long as it fits."""


def _told(text: str, width: int) -> str:
    """A sentence with its places in the model as `short_location` writes them, and its bytes in KiB."""
    return readable_bytes(" ".join(map(short_location, text.split(" "))), width >= EXACT)


def flowing(text: str, width: int, role: str) -> list[list[Span]]:
    """A text in lines of at most `width` cells, from the left edge on."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(f"{lines[-1]} {word}") <= width - 2:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [[(line, role)] for line in lines]


def attempt_lines(attempt: Attempt, taken: bool, width: int, label: int = 8) -> list[list[Span]]:
    """A slicing: how much of local memory it takes, as a bar that is full at what there is, and what came of it.

    label: cells of the slicing's name.
    """
    fits = attempt.cycles is not None
    role = "good" if taken and fits else "muted" if fits else "bad"
    mark = "✓" if taken and fits else "·" if fits else "✗"
    name = f"{secs_text(attempt.secs.as_tuple()):<{label}}"
    line: list[Span] = [(f"{mark} ", f"{role} bold"), (name, "heading")]
    used = 2 + len(name)
    cost = f"  {units.cycles(attempt.cycles or 0)}" if fits else ""
    need = ""
    if attempt.needed_bytes:
        needed, available = kib(attempt.needed_bytes), kib(attempt.available_bytes)
        fitting = width - used - len(cost)
        need = first_fit([f" {needed} of {available} KiB", f" {needed} KiB"], fitting)
    room = min(16, width - used - len(need) - len(cost) - 2)
    if need and room >= 3:
        line += _need_bar(attempt, room, role)
    line += [(need, role), (cost, "heading" if taken else "muted")]
    lines = [line]
    if attempt.reason:
        lines += wrapped("", _reason(attempt, width >= EXACT), width, "bad" if not fits else "muted")
    return lines


def _need_bar(attempt: Attempt, room: int, role: str) -> list[Span]:
    """`room` cells: what there is ends at the line, what is missing goes on behind it, lighter."""
    full = max(attempt.needed_bytes, attempt.available_bytes, 1)
    limit = max(1, round((room - 1) * attempt.available_bytes / full))
    needed = max(1, round((room - 1) * attempt.needed_bytes / full))
    if needed > limit:
        return [("█" * limit, role), ("▒" * (needed - limit), role), (" " * (room - needed), "")]
    free = limit - needed
    return [("█" * needed, role), ("·" * free, "rule"), ("▏", "heading"), (" " * (room - 1 - limit), "")]


_REASONS = {
    "memory": "memory: {over} more are live in one step than there are",
    "fragmentation": "fragmentation: it would fit in sum, but not in one piece; {over} over the end",
    "bank rule": "bank rule: buffers that both engines touch in one step, or that one op reads and writes, would have "
    "to share a bank; apart they take {over} too many",
}
"""What the search's reasons mean."""


def _reason(attempt: Attempt, exact: bool) -> str:
    nbytes = max(0, attempt.needed_bytes - attempt.available_bytes)
    found = _REASONS.get(attempt.reason)
    if found is None:
        return readable_bytes(attempt.reason, exact)
    return found.format(over=f"{kib(nbytes)} KiB" + (f" ({nbytes:,} bytes)" if exact else ""))


def alternative_lines(alternative: Alternative, width: int) -> list[list[Span]]:
    """A cut that was compared: what both ways cost and which is cheaper."""
    lines = wrapped("•", _told(alternative.description, width), width)
    apart = units.cycles(alternative.split_cycles)
    if alternative.joined_cycles is None:
        return [*lines, labelled("", [("cannot be joined", "bad"), (f", apart {apart}", "muted")])]
    saved = alternative.joined_cycles - alternative.split_cycles
    verdict = (
        "the same" if not saved else f"{units.cycles(abs(saved))} less {'apart' if saved > 0 else 'joined'}"
    )
    joined = units.cycles(alternative.joined_cycles)
    return [*lines, labelled("", [(f"joined {joined}, apart {apart}: ", "muted"), (verdict, "good")])]


class WrappedPanel(Inspector):
    """Lines that are wrapped to the panel's width, again whenever that has changed.

    Textual does not always say so: a panel that is asked for its size between being shown and the next layout gets no
    resize event. What is drawn therefore looks at the width itself.
    """

    SCOPES = ("lmem", "list")
    BINDINGS = bindings("lmem")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._build: Callable[[int], Sequence[Line]] | None = None
        self._fitted = 0

    def tell(self, title: str, build: Callable[[int], Sequence[Line]]) -> None:
        """Show the lines that `build` makes for a width."""
        self.border_title, self._build = title, build
        self._fit()

    def _fit(self) -> None:
        if self._build is not None:
            self._fitted = self.inner_width
            self.show(str(self.border_title), self._build(self._fitted))

    def on_resize(self) -> None:
        """Wrap anew."""
        self._fit()

    def render_line(self, y: int) -> Strip:
        """One visible line; wrapped anew for the next drawing where the width has changed."""
        if self._build is not None and self._fitted != self.inner_width:
            self._fitted = self.inner_width
            self.call_later(self._fit)
        return super().render_line(y)


class WhyPanel(WrappedPanel):
    """The explanation of the group on the map."""

    HELP = """
Why the search left this group as it is. On top stands whether it pays: the cycles of the group, and those of its ops
run one by one from DDR. **begins** and **ends** name the op at each end that could not join, or would have made the
group dearer. Below are the slicings that were tried, from coarse to fine: a full bar is all of local memory, what does
not fit reaches beyond it in red. Last come the cuts that were compared, with the cycles of the ops joined in one group
and apart. **g** and **G** explain the next and the previous group, **home** and **end** go to the first and the last
line, **x** and **esc** back to the map.
"""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "why this group?"

    def on_focus(self) -> None:
        """Say how to go on from here."""
        self.border_subtitle = "g G other groups · esc map"

    def on_blur(self) -> None:
        """The keys of another panel hold."""
        self.border_subtitle = ""

    def explain(
        self, explanation: Explanation | None, plan: GroupPlan | None, title: str, gain: Gain | None = None
    ) -> None:
        """Show another group's explanation."""
        if plan is None:
            self.tell(title, lambda width: [])
        else:
            self.tell(title, lambda width: why_lines(explanation, plan, width, gain))
