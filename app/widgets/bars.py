"""The line on top (what is open, how far it is) and the line at the bottom (keys of the focused panel, screens)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from app import units
from app.actions import ALWAYS, SCREEN_SHORT, SCREEN_TITLES, SCREENS, footer
from app.printable import printable
from app.theme import Palette
from app.widgets.lines import Line, LineView, Span
from app.widgets.table import fitted, width_of
from app.workspace import Workspace


@dataclass(frozen=True)
class _Key:
    """Keys with the word beside them in the bar, and the action that a click runs."""

    keys: str
    label: str
    action: str

    @property
    def width(self) -> int:
        """Cells, with the gap behind it."""
        return cell_len(f"{self.keys} {self.label}") + 2


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
        cores = f" × {options.cores} cores" if options.cores > 1 else ""
        for text in (f"{options.chip_name}{cores}", options.quantize, f"S {options.seq_length}"):
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
        go_on: list[Span] = [("R", "key"), (" compiles the rest ", "muted")] if work.unfinished else []
        if work.problem:
            return [(f" ✗ {work.problem[:60]} ", "bad bold"), *go_on]
        if work.compilation.cancelled:
            return [(f" cancelled at {done}/{total} ", "changed"), *go_on]
        if failed:
            word = "module" if failed == 1 else "modules"
            return [(f" ✗ {failed} {word} failed ", "bad bold"), (f"{time} ", "muted")]
        return [("✓ ", "good bold"), (f"{total} modules ", "muted"), (f"{time} ", "muted")]


class KeyBar(Bar):
    """Keys of the focused panel, then those of the screen; the screens; help and quit, which are always there."""

    class Pressed(Message):
        """A key or a screen was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    KEYS_SHARE = 0.34
    """Part of the line that keys may claim before the names of the screens get shorter."""

    def __init__(self, screen_name: str, scopes: Sequence[str]) -> None:
        super().__init__()
        self.screen_name = screen_name
        self.scopes = tuple(scopes)
        self._spots: list[tuple[int, int, str]] = []

    def spans(self) -> Line:
        keys = self._keys()
        end = [_Key(action.keys_shown, action.label, action.name) for action in footer(("app",), ALWAYS)]
        end_width = sum(key.width for key in end)
        wanted = min(sum(key.width for key in keys), int(self.size.width * self.KEYS_SHARE))
        room, tabs = self._tabs(self.size.width - end_width - 1, wanted)
        line: list[Span] = [(" ", "")]
        self._spots = []
        for key in keys:
            if width_of(line) + key.width <= room:
                self._add(line, key)
        line.append((" " * (room + 1 - width_of(line)), ""))
        for text, roles, action in tabs:
            self._spot(line, text, action)
            line.append((text, roles))
        for key in end:
            self._add(line, key)
        return line

    def _keys(self) -> list[_Key]:
        """Keys of the focused panel, of the screen, of all lists, of the app, and of modules, in this order."""
        focused = self.screen.focused
        panel = focused.SCOPES if isinstance(focused, LineView) else ()
        own = [scope for scope in panel if scope != "list"]
        general = [scope for scope in panel if scope == "list"]
        zoomed = getattr(self.screen, "zoomed", None) is not None
        keys = [_Key("z", "back", "back_out")] if zoomed else []
        taken = {"z", *ALWAYS} if zoomed else {*ALWAYS}
        work = getattr(self.screen, "work", None)
        if work is not None and work.unfinished:
            keys.append(_Key("R", "compile", "compile"))
        for action in footer([*own, *self.scopes[:1], *general, *reversed(self.scopes[1:])]):
            if taken.isdisjoint((action.label, action.keys_shown)):
                taken |= {action.label, action.keys_shown}
                keys.append(_Key(action.keys_shown, action.label, action.name))
        return keys

    def _tabs(self, width: int, wanted: int) -> tuple[int, list[tuple[str, str, str]]]:
        """Cells left for keys, and (text, roles, action) of each screen: as much of the names as leaves `wanted`."""
        for names, gap in ((SCREEN_TITLES, "  "), (SCREEN_SHORT, " "), ({}, " ")):
            tabs = []
            for number, name in enumerate(SCREENS, 1):
                here = name == self.screen_name
                title = SCREEN_TITLES[name] if here else names.get(name, "")
                roles = "key bold" if here else "muted"
                tabs.append((f"{number} {title}".strip() + gap, roles, f"show_screen('{name}')"))
            room = width - sum(cell_len(text) for text, _, _ in tabs)
            if room >= wanted:
                break
        return room, tabs

    def _add(self, line: list[Span], key: _Key) -> None:
        self._spot(line, f"{key.keys} {key.label}", key.action)
        line += [(key.keys, "key"), (f" {key.label}  ", "muted")]

    def _spot(self, line: Line, text: str, action: str) -> None:
        """Where a click means an action."""
        at = width_of(line)
        self._spots.append((at, at + cell_len(text), action))

    def on_click(self, event: events.Click) -> None:
        """What is written can be clicked."""
        for start, end, action in self._spots:
            if start <= event.x < end:
                self.post_message(self.Pressed(action))
                return
