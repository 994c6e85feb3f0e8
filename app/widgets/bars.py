"""The line on top (what is open, how far it is) and the line at the bottom (keys of the focused panel, screens)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from app import units
from app.actions import SCREEN_TITLES, SCREENS, footer
from app.printable import printable
from app.theme import Palette
from app.widgets.lines import Line, LineView, Span
from app.widgets.table import fitted, width_of
from app.workspace import Workspace


class Picture(Widget):
    """A few lines of spans that nobody moves in."""

    DEFAULT_CSS = """
    Picture { background: $background; color: $foreground; }
    """

    def lines(self, width: int) -> Sequence[Line]:
        """What to show in a width."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        """One line, cut to the width."""
        palette = Palette.of(self.app)
        width, base = self.size.width, self.rich_style
        lines = self.lines(width)
        line = fitted(lines[y], width) if y < len(lines) else []
        strip = Strip([Segment(printable(text), palette.style(roles)) for text, roles in line])
        return strip.crop_extend(0, width, base).apply_style(base)


class Bar(Picture):
    """One line on a ground of its own."""

    DEFAULT_CSS = """
    Bar { height: 1; background: $panel; }
    """

    def lines(self, width: int) -> Sequence[Line]:
        """The line."""
        return [self.spans()]

    def spans(self) -> Line:
        """What the line says."""
        raise NotImplementedError


class TitleBar(Bar):
    """Name, chip, quantisation and length at the left; progress at the right."""

    def __init__(self, workspace: Workspace | None = None) -> None:
        super().__init__()
        self.workspace = workspace

    def show(self, workspace: Workspace | None) -> None:
        """Show another state."""
        self.workspace = workspace
        self.refresh()

    def spans(self) -> Line:
        left: list[Span] = [(" tpuscope ", "key bold")]
        work = self.workspace
        if work is None:
            return left
        options = work.compilation.options
        left += [(" ", ""), (work.title, "heading bold")]
        for text in (options.chip_name, options.quantize, f"S {options.seq_length}"):
            left += [(" · ", "faint"), (text, "muted")]
        right = list(self._progress(work))
        room = self.size.width - width_of(right)
        return [*fitted(left, max(10, room)), *right]

    def _progress(self, work: Workspace) -> Sequence[Span]:
        total, done = len(work.specs), work.done_count()
        failed = len(work.compilation.failures)
        time = units.duration(work.elapsed) if work.elapsed else ""
        if work.running:
            filled = units.bar(done, total, 10)
            track = "·" * (10 - cell_len(filled))
            return [
                (f" compiling {done}/{total} ", "muted"),
                ("▕", "faint"),
                (filled, "key"),
                (track, "faint"),
                ("▏ ", "faint"),
                (time, "muted"),
                (" ^x cancel ", "faint") if self.size.width >= 110 else (" ", ""),
            ]
        if work.problem:
            return [(f" ✗ {work.problem[:60]} ", "bad bold")]
        if work.compilation.cancelled:
            return [(f" cancelled at {done}/{total} ", "changed")]
        if failed:
            word = "module" if failed == 1 else "modules"
            return [(f" ✗ {failed} {word} failed ", "bad bold"), (f"{time} ", "muted")]
        return [("✓ ", "good bold"), (f"{total} modules ", "muted"), (f"{time} ", "muted")]


class KeyBar(Bar):
    """Keys of the focused panel, those of the screen, and the screens."""

    class Pressed(Message):
        """A key or a screen was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self, screen_name: str, scopes: Sequence[str]) -> None:
        super().__init__()
        self.screen_name = screen_name
        self.scopes = tuple(scopes)
        self._spots: list[tuple[int, int, str]] = []

    def _tabs(self, wide: bool) -> list[tuple[str, str, str]]:
        """(text, roles, action) of each screen."""
        found = []
        for number, name in enumerate(SCREENS, 1):
            here = name == self.screen_name
            title = f"{number} {SCREEN_TITLES[name]}" if wide or here else str(number)
            found.append((title, "key bold" if here else "muted", f"show_screen('{name}')"))
        return found

    def spans(self) -> Line:
        width = self.size.width
        self._spots = []
        tabs = self._tabs(width >= 110)
        tab_width = sum(cell_len(text) + 2 for text, _, _ in tabs)
        focused = self.screen.focused
        scopes = list(self.scopes)
        if isinstance(focused, LineView):
            own = [scope for scope in focused.SCOPES if scope != "list"]
            scopes = [*own, *self.scopes[:1], *focused.SCOPES, *self.scopes[1:]]
        left: list[Span] = [(" ", "")]
        at = 1
        seen = set()
        for action in footer(scopes):
            if action.label in seen:
                continue
            text = f"{action.keys_shown} {action.label}"
            length = cell_len(text) + 2
            if at + length > width - tab_width - 1:
                break
            seen.add(action.label)
            left += [(action.keys_shown, "key"), (f" {action.label}  ", "muted")]
            self._spots.append((at, at + length - 2, action.name))
            at += length
        line = fitted(left, width - tab_width)
        at = width - tab_width
        for text, roles, action_name in tabs:
            line += [(f" {text} ", roles)]
            self._spots.append((at, at + cell_len(text) + 2, action_name))
            at += cell_len(text) + 2
        return line

    def on_click(self, event: events.Click) -> None:
        """What is written can be clicked."""
        for start, end, action in self._spots:
            if start <= event.x < end:
                self.post_message(self.Pressed(action))
                return
