"""What all screens share: the bars, the question line, the selection of module and layer, and Esc."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.events import DescendantFocus, Resize
from textual.screen import Screen
from textual.widget import Widget

from app.actions import bindings
from app.screen_data import Subject
from app.widgets.ask import AskBar
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.lines import LineView
from app.workspace import Workspace
from engine.snapshot import OpRecord

if TYPE_CHECKING:
    from app.explorer import Explorer


class WorkScreen(Screen[None]):
    """A screen about the workspace. Subclasses compose a body and fill it in `sync`."""

    NAME: ClassVar[str] = ""
    SCOPES: ClassVar[tuple[str, ...]] = ("module", "app")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (150, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-tall")]
    BINDINGS = [*bindings("module"), ("escape", "back_out", "Back")]
    DEFAULT_CSS = """
    WorkScreen {
        layout: vertical; background: $background;
        & > Container { height: 1fr; }
        & .-behind { display: none !important; }
        & .-zoomed {
            display: block !important;
            width: 100% !important; min-width: 0 !important; max-width: 100% !important;
            height: 100% !important; min-height: 0 !important; max-height: 100% !important;
        }
    }
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self.work = workspace
        self._asker: LineView | None = None
        self._ask_from = 0
        self.zoomed: LineView | None = None
        """The panel that fills the body alone."""
        self.ready = False
        """The panels are there: keys may come before."""

    def compose(self) -> ComposeResult:
        yield TitleBar(self.work)
        with Container(id="body"):
            yield from self.compose_body()
        yield AskBar()
        yield KeyBar(self.NAME, (self.NAME, *self.SCOPES))

    def compose_body(self) -> Iterator[Widget]:
        """The panels."""
        raise NotImplementedError

    def sync(self) -> None:
        """Show the workspace as it is now."""
        raise NotImplementedError

    def subject(self) -> Subject:
        """What of the screen the user looks at, for exports."""
        return Subject(self.NAME)

    def progressed(self, changed: bool) -> None:
        """The compilation went on; `changed` when there is something new besides the clock."""
        if not self.ready:
            return
        self.query_one(TitleBar).refresh()
        if changed:
            self.query_one(KeyBar).refresh()
            self.sync()

    def attach(self, workspace: Workspace) -> None:
        """Show another workspace."""
        self.work = workspace
        if self.ready:
            self.query_one(TitleBar).show(workspace)
            self.sync()

    def on_mount(self) -> None:
        """First contents, once sizes are known."""
        self.ready = True
        self.call_after_refresh(self.sync)

    def on_resize(self, event: Resize) -> None:
        """A very tall terminal is tall as well, and has a class of its own."""
        self.set_class(event.size.height >= 45, "-high")

    def on_screen_resume(self) -> None:
        """The selection may have changed on another screen."""
        if self.ready:
            self.sync()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No action before the panels are there."""
        return self.ready

    @on(DescendantFocus)
    def follow_focus(self, event: DescendantFocus) -> None:
        """The key bar names the keys of the focused panel; a panel behind the zoomed one comes back with the others."""
        if event.widget.has_class("-behind") or any(
            node.has_class("-behind") for node in event.widget.ancestors
        ):
            self.unzoom()
        self.query_one(KeyBar).refresh()

    @on(KeyBar.Pressed)
    async def run_pressed(self, event: KeyBar.Pressed) -> None:
        """A key in the bar was clicked."""
        for node in (self.focused, self, self.app):
            name = event.action.partition("(")[0]
            if node is not None and hasattr(node, f"action_{name}"):
                await self.app.run_action(event.action, node)
                return

    # -- zoom ---------------------------------------------------------------------------------------------------

    @on(LineView.ZoomAsked)
    def zoom(self, event: LineView.ZoomAsked) -> None:
        """Let a panel fill the body between the bars, or put it back."""
        again = self.zoomed is event.view
        self.unzoom()
        if not again:
            self._zoom(event.view)

    def _zoom(self, panel: LineView) -> None:
        body = self.query_one("#body")
        if body not in panel.ancestors:
            return
        self.zoomed = panel
        node: Widget = panel
        while node is not body:
            node.add_class("-zoomed")
            holder = cast(Widget, node.parent)
            for other in holder.children:
                other.set_class(other is not node, "-behind")
            node = holder
        self.query_one(KeyBar).refresh()

    def unzoom(self) -> bool:
        """Show all panels again; False when none was zoomed."""
        if self.zoomed is None:
            return False
        self.zoomed = None
        self.query(".-zoomed").remove_class("-zoomed")
        self.query(".-behind").remove_class("-behind")
        self.query_one(KeyBar).refresh()
        return True

    # -- module and layer ---------------------------------------------------------------------------------------

    def action_module(self, step: int) -> None:
        """Next or previous module."""
        if self.work.step_module(step):
            self.sync()

    def action_layer(self, step: int) -> None:
        """Next or previous layer."""
        if self.work.select_layer(self.work.layer + step):
            self.sync()
        else:
            self.notify(f"{self.work.layer_name} has no {'next' if step > 0 else 'previous'} layer")

    # -- questions ----------------------------------------------------------------------------------------------

    @on(LineView.Asked)
    def ask(self, event: LineView.Asked) -> None:
        """Open the question line for a panel."""
        self._asker = event.view
        self._ask_from = event.view.cursor
        hint = "enter keeps · n N next, previous" if event.kind == "search" else event.view.GO_TO_HINT
        self.query_one(AskBar).ask(event.kind, hint, event.view.sought if event.kind == "search" else "")

    @on(AskBar.Changed)
    def answer(self, event: AskBar.Changed) -> None:
        """Search while typing; go when done."""
        view = self._asker
        if event.kind not in ("search", "go to") or view is None:
            return
        if event.kind == "search":
            found = view.seek(event.text, self._ask_from)
            if event.done and event.text and found is None:
                self.notify(f"no match for {event.text!r}", severity="warning")
        elif event.done and event.text.strip() and not self.go_to(view, event.text.strip()):
            self.notify(f"nothing here is called {event.text.strip()!r}", severity="warning")
        if event.done:
            self._close_ask()

    def go_to(self, view: LineView, wanted: str) -> bool:
        """Put a panel's cursor on what was asked for; False when there is nothing of that name."""
        found = view.locate(wanted)
        if found is not None:
            view.move_to(found)
        return found is not None

    @on(AskBar.Dropped)
    def drop(self, event: AskBar.Dropped) -> None:
        """Forget the question; a search goes back to where it began."""
        if event.kind == "search" and self._asker is not None:
            self._asker.seek("")
            self._asker.move_to(self._ask_from)
        self._close_ask()

    def _close_ask(self) -> None:
        self.query_one(AskBar).close()
        if self._asker is not None:
            self._asker.focus()
        self._asker = None

    # -- back ---------------------------------------------------------------------------------------------------

    def action_back_out(self) -> None:
        """Esc: out of the zoom, the search marks, the screen."""
        if self.unzoom():
            return
        focused = self.focused
        if isinstance(focused, LineView) and focused.sought:
            focused.sought = ""
            focused.repaint()
            return
        self.leave()

    def leave(self) -> None:
        """Nothing is left to close: back to the explorer."""
        if self.NAME != "explore":
            self.app.call_later(self.app.run_action, "show_screen('explore')")

    def show_op_in_ir(self, module: str, pass_name: str, op: OpRecord) -> None:
        """Go to an op in the explore screen."""
        from app.screens.explore import ExploreScreen

        app = cast("Explorer", self.app)
        screen = app.work_screen("explore")
        app.action_show_screen("explore")
        assert isinstance(screen, ExploreScreen)
        self.app.call_later(cast(Callable[..., object], screen.show_op), module, pass_name, op)
