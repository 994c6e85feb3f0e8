"""A list of lines of which only the visible ones are made: the base of every list, table and text in the explorer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.actions import bindings
from app.printable import printable, wrapped
from app.theme import Palette

Span = tuple[str, str]
"""Text and its roles (`app.theme`)."""

Line = Sequence[Span]


def plain(line: Line) -> str:
    """A line's text."""
    return "".join(text for text, _ in line)


class LineView(ScrollView, can_focus=True):
    """A virtual list with a cursor; subclasses say how many lines there are and what each shows."""

    DEFAULT_CSS = """
    LineView {
        border: round $border-blurred;
        border-title-color: $text-muted;
        border-subtitle-color: $text-muted;
        background: $background;
        scrollbar-size: 0 1;
        min-width: 12;
        &:focus { border: round $primary; border-title-color: $primary; border-title-style: bold; }
    }
    """
    BINDINGS = bindings("list")
    ALLOW_SELECT = False
    SCOPES: ClassVar[tuple[str, ...]] = ("list",)
    HELP: ClassVar[str] = ""
    """What the panel shows and how to read it; `?` shows it."""
    EMPTY: ClassVar[str] = ""
    """What to say when there is nothing to show, unless `empty` says something better."""
    GO_TO_HINT: ClassVar[str] = "line, %value or op"
    """What `:` takes."""

    cursor: reactive[int] = reactive(0, repaint=False)
    show_cursor: reactive[bool] = reactive(True)

    class Moved(Message):
        """The cursor stands on another line."""

        def __init__(self, view: LineView, index: int) -> None:
            super().__init__()
            self.view = view
            self.index = index

        @property
        def control(self) -> LineView:
            """The view."""
            return self.view

    class Chosen(Moved):
        """Enter or a click on the line that the cursor is on."""

    class Asked(Message):
        """The view wants a line of text from the user; kind is `search` or `go to`."""

        def __init__(self, view: LineView, kind: str) -> None:
            super().__init__()
            self.view = view
            self.kind = kind

    class ZoomAsked(Message):
        """The view wants all of the screen between the bars, or its place back."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

    def __init__(self, *, id: str | None = None, classes: str | None = None, title: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = title
        self.sought = ""
        self.empty = self.EMPTY
        self._strips: dict[int, Strip] = {}
        self._painted = ("", 0)

    # -- what subclasses say ------------------------------------------------------------------------------------

    def line_count(self) -> int:
        """Number of lines, the pinned ones not included."""
        return 0

    def line(self, index: int) -> Line:
        """The spans of a line."""
        raise NotImplementedError

    def line_width(self) -> int:
        """Cells of the widest line; 0 when lines fit themselves to the panel."""
        return 0

    def pinned(self) -> Sequence[Line]:
        """Lines that stay on top, such as a table's head."""
        return ()

    def selectable(self, index: int) -> bool:
        """Whether the cursor may stand on a line."""
        return True

    def search_text(self, index: int) -> str:
        """What a search looks at."""
        return plain(self.line(index))

    def copy_text(self, index: int) -> str:
        """What `y` copies."""
        return plain(self.line(index)).strip()

    def ground(self, index: int) -> str:
        """Role that colours the whole line's ground."""
        return ""

    def locate(self, wanted: str) -> int | None:
        """The line that `:` goes to: a line number (from 1), or the first line with the text."""
        if wanted.isdigit():
            return min(max(int(wanted) - 1, 0), self.line_count() - 1) if self.line_count() else None
        return self.find(wanted, 0, 1)

    # -- contents -----------------------------------------------------------------------------------------------

    @property
    def inner_width(self) -> int:
        """Cells of one visible line."""
        return max(1, self.scrollable_content_region.width)

    def reload(self, cursor: int | None = None) -> None:
        """Show new contents; `cursor` is where to put the cursor (default: leave it, clamped)."""
        self._strips.clear()
        count = self.line_count()
        self.virtual_size = Size(self.line_width(), count + len(self.pinned()))
        wanted = self.cursor if cursor is None else cursor
        self.move_to(self._near(min(max(wanted, 0), max(count - 1, 0))), announce=False)
        self.refresh()

    def repaint(self) -> None:
        """Draw the same contents again, because what they are made of changed."""
        self._strips.clear()
        self.refresh()

    def _near(self, index: int) -> int:
        """The selectable line nearest to an index."""
        count = self.line_count()
        for distance in range(count):
            for candidate in (index + distance, index - distance):
                if 0 <= candidate < count and self.selectable(candidate):
                    return candidate
        return index

    # -- drawing ------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One visible line."""
        palette = Palette.of(self.app)
        width = self.inner_width
        if self._painted != (palette.theme, width):
            self._painted = (palette.theme, width)
            self._strips.clear()
        pinned = self.pinned()
        base = self.rich_style
        if y < len(pinned):
            return self._strip(pinned[y], palette, "", "").crop_extend(0, width, base).apply_style(base)
        index = y - len(pinned) + self.scroll_offset.y
        if not self.line_count():
            empty = self._empty_line(y - len(pinned), width, palette)
            return empty.crop_extend(0, width, base).apply_style(base)
        if index >= self.line_count():
            return Strip.blank(width, base)
        on = self.show_cursor and index == self.cursor and self.selectable(index)
        mark = ("cursor" if self.has_focus else "cursor-idle") if on else self.ground(index)
        strip = None if on else self._strips.get(index)
        if strip is None:
            strip = self._strip(self.line(index), palette, self.sought, mark)
            if not on:
                if len(self._strips) > 2000:
                    self._strips.clear()
                self._strips[index] = strip
        fill = base + palette.style(mark)
        left = self.scroll_offset.x
        return strip.crop_extend(left, left + width, fill).apply_style(fill)

    def _empty_line(self, y: int, width: int, palette: Palette) -> Strip:
        """A line of what is said when there is nothing to show, wrapped and in the middle of the upper part."""
        lines = wrapped(self.empty, width - 2) if self.empty else []
        start = min(self.size.height // 3, max(0, self.page_height - len(lines)))
        text = lines[y - start] if 0 <= y - start < len(lines) else ""
        return self._strip([(" " * ((width - cell_len(text)) // 2), ""), (text, "muted")], palette, "", "")

    def _strip(self, line: Line, palette: Palette, sought: str, mark: str) -> Strip:
        line = [(printable(text), roles) for text, roles in line]
        segments = []
        for text, roles in marked(line, sought) if sought else line:
            segments.append(Segment(text, palette.style(roles)))
        if mark.startswith("cursor"):
            # the cursor's ground lies over that of a changed line, but not over what was found
            segments = [
                Segment(text, palette.style(_without_wash(roles)))
                for text, roles in (marked(line, sought) if sought else line)
            ]
        if mark:
            ground = palette.style(mark)
            reverse = bool(ground.reverse)
            # a reversed cursor keeps one pair of colours, or every role would flip on its own
            segments = [Segment(s.text, ground if reverse else ground + s.style) for s in segments if s.text]
        return Strip(segments)

    # -- cursor -------------------------------------------------------------------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        """Draw both lines again."""
        head = len(self.pinned())
        for index in (old, new):
            y = index - self.scroll_offset.y + head
            if 0 <= y < self.size.height:
                self.refresh(Region(0, y, self.size.width, 1))

    def on_resize(self) -> None:
        """The cursor stays in view."""
        self._reveal(self.cursor)

    def on_focus(self) -> None:
        """The cursor looks different in the focused panel."""
        self.refresh()

    def on_blur(self) -> None:
        """The cursor looks different in the other panels."""
        self.refresh()

    def move_to(self, index: int, announce: bool = True) -> None:
        """Put the cursor on a line and show it."""
        before = self.cursor
        self.cursor = index
        self._reveal(index)
        if announce and before != index:
            self.post_message(self.Moved(self, index))

    def _reveal(self, index: int) -> None:
        height = self.scrollable_content_region.height - len(self.pinned())
        if height <= 0:
            return
        top = self.scroll_offset.y
        if index < top:
            self.scroll_to(y=self._top_for(index), animate=False, immediate=True)
        elif index >= top + height:
            self.scroll_to(y=index - height + 1, animate=False, immediate=True)

    def _top_for(self, index: int) -> int:
        """Show the heads of a group above its first line."""
        return 0 if all(not self.selectable(i) for i in range(min(index, 3))) and index <= 3 else index

    def move_by(self, amount: int) -> None:
        """Move the cursor, past lines that it may not stand on."""
        count = self.line_count()
        if not count:
            return
        index = min(max(self.cursor + amount, 0), count - 1)
        step = 1 if amount > 0 else -1
        while 0 <= index < count and not self.selectable(index):
            index += step
        if 0 <= index < count:
            self.move_to(index)
            return
        # only heads are left in that direction: the last line before them, and the heads in view
        self.move_to(self._near(0 if step < 0 else count - 1))
        self._reveal(0 if step < 0 else count - 1)

    @property
    def page_height(self) -> int:
        """Lines that are visible at once."""
        return max(1, self.scrollable_content_region.height - len(self.pinned()))

    def action_cursor_down(self) -> None:
        """Next row."""
        self.move_by(1)

    def action_cursor_up(self) -> None:
        """Previous row."""
        self.move_by(-1)

    def action_page(self, pages: int) -> None:
        """Whole pages down or up."""
        self.move_by(pages * self.page_height)

    def action_half_page(self, pages: int) -> None:
        """Half pages down or up."""
        self.move_by(pages * max(1, self.page_height // 2))

    def action_first(self) -> None:
        """First row."""
        if self.line_count():
            self.move_to(self._near(0))

    def action_last(self) -> None:
        """Last row."""
        if self.line_count():
            self.move_to(self._near(self.line_count() - 1))

    def action_scroll_sideways(self, cells: int) -> None:
        """Scroll right or left."""
        self.scroll_to(x=max(0, self.scroll_offset.x + cells), animate=False, immediate=True)

    def action_choose(self) -> None:
        """Open the line."""
        if self.line_count():
            self.post_message(self.Chosen(self, self.cursor))

    def action_copy(self) -> None:
        """Copy the line."""
        if self.line_count():
            text = self.copy_text(self.cursor)
            self.app.copy_to_clipboard(text)
            self.notify(text if len(text) < 120 else f"{text[:117]}…", title="copied")

    def action_maximise(self) -> None:
        """This panel alone on the screen, or back."""
        self.post_message(self.ZoomAsked(self))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; on the cursor's line a click opens it."""
        index = event.get_content_offset_capture(self).y - len(self.pinned()) + self.scroll_offset.y
        if not (0 <= index < self.line_count()) or not self.selectable(index):
            return
        if index == self.cursor:
            self.post_message(self.Chosen(self, index))
        else:
            self.move_to(index)

    # -- search -------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Ask for a text to search."""
        self.post_message(self.Asked(self, "search"))

    def action_go_to(self) -> None:
        """Ask where to go."""
        self.post_message(self.Asked(self, "go to"))

    def action_search_next(self, direction: int) -> None:
        """Next or previous match."""
        if not self.sought:
            self.action_search()
            return
        found = self.find(self.sought, self.cursor + direction, direction)
        if found is None:
            self.notify(f"no match for {self.sought!r}", severity="warning")
        else:
            self.move_to(found)

    def seek(self, text: str, start: int | None = None) -> int | None:
        """Search from a line on, mark all matches, and move to the first; None without a match."""
        self.sought = text
        self.repaint()
        if not text:
            return None
        found = self.find(text, self.cursor if start is None else start, 1)
        if found is not None:
            self.move_to(found)
        return found

    def find(self, text: str, start: int, direction: int) -> int | None:
        """The first line with the text from `start` on, going around."""
        wanted = text.lower()
        count = self.line_count()
        for offset in range(count):
            index = (start + direction * offset) % count
            if self.selectable(index) and wanted in self.search_text(index).lower():
                return index
        return None


def _without_wash(roles: str) -> str:
    return " ".join(role for role in roles.split() if not role.endswith("-wash"))


def marked(line: Line, sought: str) -> Iterable[Span]:
    """The line with every occurrence of a text marked, also across spans."""
    text = plain(line).lower()
    wanted = sought.lower()
    spots: set[int] = set()
    at = text.find(wanted)
    while wanted and at >= 0:
        spots.update(range(at, at + len(wanted)))
        at = text.find(wanted, at + 1)
    position = 0
    for part, roles in line:
        start = 0
        for end in range(1, len(part) + 1):
            here = position + start in spots
            if end == len(part) or (position + end in spots) != here:
                yield part[start:end], f"{roles} match" if here else roles
                start = end
        position += len(part)
