"""The explorer: the Textual app that owns the screens, the compilation's events and the engine's thread.

It computes nothing: the session and the engine do, in other processes and in one thread; results come back as calls
in the app's thread and change the workspace, and the visible screen shows it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import on
from textual.app import App
from textual.notifications import Notify, SeverityLevel
from textual.widget import Widget

from app.actions import SCREENS, Action, bindings
from app.jobs import Jobs
from app.palette import Actions
from app.printable import printable
from app.screens.base import WorkScreen
from app.screens.explore import ExploreScreen
from app.theme import THEMES
from app.widgets.lines import LineView
from app.workspace import Workspace

if TYPE_CHECKING:
    from app.session import Session, SessionEvent

_TICK = 0.1
"""Seconds between two looks at what the workers have done."""


def start_fork_server() -> None:
    """Start the server that worker processes are forked from.

    It has to run before the app does: Textual then puts an object without a file descriptor in the place of stderr,
    which a new process cannot inherit. What a worker writes there when it aborts would spoil the screen, so the server
    starts with its stderr closed off; the explorer says which pass aborted.
    """
    from multiprocessing import forkserver

    from engine.compiler import worker_context

    worker_context()
    own, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        forkserver.ensure_running()
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)


_OUTDATED: Mapping[SeverityLevel, tuple[SeverityLevel, ...]] = {
    "information": ("warning", "error"),
    "warning": ("warning",),
    "error": (),
}
"""Severity of a toast -> those of the earlier ones that it makes obsolete."""


class Explorer(App[None]):
    """The app.

    workspace: what is open; None asks for a model first. theme: a theme's name; empty for the default. remember: keep
    theme and opened models in the user's settings.
    """

    TITLE = "tpuscope"
    BINDINGS = bindings("app")
    ENABLE_COMMAND_PALETTE = True

    COMMANDS = {Actions}

    def __init__(
        self, workspace: Workspace | None = None, *, theme: str = "", remember: bool = False
    ) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self.theme = theme if theme in self.available_themes else THEMES[0].name
        self.remember = remember
        self.work = workspace
        self.jobs = Jobs(self)
        self._serial = 1
        start_fork_server()
        self._work_screens: dict[str, WorkScreen] = {}

    # -- opening ------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """The first screen, and the compilation if it is still to be done."""
        self.set_interval(_TICK, self._tick)
        if self.work is None:
            self.action_open_model()
        else:
            self.show_workspace(self.work)

    def show_workspace(self, workspace: Workspace) -> None:
        """Look at a workspace from now on."""
        self.work = workspace
        for screen in self._work_screens.values():
            screen.attach(workspace)
        self.action_show_screen("explore")
        if workspace.session is not None:
            workspace.running = _compile_next(workspace, workspace.first_wanted())
        for spec in workspace.specs:
            if workspace.state(spec.name) == "done":
                self._time(workspace, spec.name)

    def open_path(
        self,
        path: Path | str,
        options: Mapping[str, Any],
        done: Callable[[object], object] = lambda _: None,
        failed: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        """Open a model in the engine's thread and show it, or call `failed`."""
        from app.session import Session

        def opened(session: Session) -> None:
            if self.work is not None and self.work.session is not None:
                self.work.session.cancel()
            done(session)
            self.show_workspace(Workspace.of(session))
            self._remember(path, options)

        self.jobs.submit(lambda: Session.open(path, options), opened, failed)

    def _remember(self, path: Path | str, options: Mapping[str, Any]) -> None:
        """Keep the model among the recent ones."""
        if self.remember:
            from app.settings import Settings

            Settings.load().opened(path, dict(options)).save()

    def action_open_model(self) -> None:
        """The open screen."""
        from app.screens.open_model import OpenScreen, recent_choices

        if not isinstance(self.screen, OpenScreen):
            session = self.work.session if self.work is not None else None
            self.push_screen(OpenScreen(recent_choices() if self.remember else (), session))

    # -- events of the compilation ------------------------------------------------------------------------------

    def _tick(self) -> None:
        work = self.work
        if work is None or work.session is None or not (work.running or work.session.running):
            return
        if not self.is_running:
            # the screens are being put away
            return
        events = work.session.drain()
        for event in events:
            self._take(work, event)
        if isinstance(self.screen, WorkScreen):
            self.screen.progressed(bool(events))

    def _take(self, work: Workspace, event: SessionEvent) -> None:
        from app.session import Stopped
        from engine.errors import UserError
        from engine.worker import ModuleFailed, ModuleFinished

        if isinstance(event, Stopped):
            whole = event.error is None and not work.compilation.cancelled
            work.running = whole and _compile_next(work, None)
            work.seconds = work.session.seconds if work.session else event.seconds
            if event.error is not None:
                kind = "" if isinstance(event.error, UserError) else f"{type(event.error).__name__}: "
                work.problem = f"{kind}{event.error}"
                self.notify(str(event.error), title="the compilation ended", severity="error", timeout=12)
            return
        work.take(event)
        if isinstance(event, ModuleFinished):
            self._time(work, event.module)
        elif isinstance(event, ModuleFailed):
            self.notify(event.message.splitlines()[0][:300], title=f"{event.module} failed", severity="error")

    def _time(self, work: Workspace, module: str) -> None:
        """Price a module's program in the engine's thread."""
        spec = work.spec(module)

        def done(timing: Any) -> None:
            work.timings[module] = timing
            if work is self.work and self.is_running and isinstance(self.screen, WorkScreen):
                self.screen.progressed(True)

        self.jobs.submit(lambda: work.simulator.timing(spec), done, lambda error: None)

    def action_cancel(self) -> None:
        """Stop compiling."""
        session = self.work.session if self.work else None
        if session is not None and session.running:
            session.cancel()
            self.notify("cancelling; what is compiled stays, R compiles the rest")
        else:
            self.notify("nothing is being compiled")

    def action_compile(self) -> None:
        """Compile what a cancelled or ended compilation has left."""
        work, session = self.work, self.work.session if self.work else None
        if work is None or session is None:
            self.notify("open a model first")
        elif session.running:
            self.notify("still cancelling; try again soon" if session.cancelling else "it is being compiled")
        elif not work.compile_missing():
            self.notify("nothing is left to compile")
        elif isinstance(self.screen, WorkScreen):
            self.screen.progressed(True)

    # -- toasts -------------------------------------------------------------------------------------------------

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Tell the user something. It is shown as it is, never read as markup: it may name files and tensors."""
        shown = printable(message, keep="\n")
        super().notify(shown, title=printable(title), severity=severity, timeout=timeout, markup=False)

    @on(Notify)
    def outdate_toasts(self, event: Notify) -> None:
        """A toast replaces the one that says the same and warnings before it; a success replaces errors, too."""
        new = event.notification
        for old in list(self._notifications):
            same = (old.message, old.title) == (new.message, new.title)
            if same or old.severity in _OUTDATED[new.severity]:
                self._unnotify(old, refresh=False)

    @on(LineView.Moved)
    def forget_warnings(self) -> None:
        """What was wrong with the last key matters no longer."""
        for old in list(self._notifications):
            if old.severity == "warning":
                self._unnotify(old)

    # -- screens ------------------------------------------------------------------------------------------------

    def work_screen(self, name: str) -> WorkScreen:
        """A screen by name, made when it is first wanted."""
        assert self.work is not None
        if name not in self._work_screens:
            screen = _make_screen(name, self.work)
            self._work_screens[name] = screen
            self.install_screen(screen, name)
        return self._work_screens[name]

    def action_show_screen(self, name: str) -> Awaitable[Any] | None:
        """Another screen; what is returned can be waited for."""
        if self.work is None:
            self.notify("open a model first")
            return None
        screen = self.work_screen(name)
        if self.screen is screen:
            return None
        while len(self.screen_stack) > 2:
            self.pop_screen()
        if len(self.screen_stack) > 1:
            return self.switch_screen(name)
        return self.push_screen(name)

    async def run_registered(self, action: Action) -> None:
        """Run an action of the registry from anywhere: on its screen, in a panel that has it."""
        if action.scope in SCREENS:
            if self.work is None:
                self.notify("open a model first")
                return
            shown = self.action_show_screen(action.scope)
            if shown is not None:
                await shown
        name = action.name.partition("(")[0]
        focused = self.screen.focused
        for node in (focused, self.screen, self):
            if node is not None and hasattr(node, f"action_{name}"):
                await self.run_action(action.name, node)
                return
        self.notify(f"{action.about}: select a panel that can do this first")

    def action_help(self) -> None:
        """Help for the focused panel."""
        from app.screens.help import HelpScreen

        focused, screen = self.screen.focused, self.screen
        scopes = [screen.NAME, *screen.SCOPES] if isinstance(screen, WorkScreen) else ["app"]
        text, title = "", screen.NAME if isinstance(screen, WorkScreen) else "tpuscope"
        if isinstance(focused, LineView):
            text, title = focused.HELP, str(focused.border_title or title)
            scopes = [scopes[0], *focused.SCOPES, *scopes[1:]]
        self.push_screen(HelpScreen(title, text, scopes))

    def action_export(self) -> None:
        """The export menu."""
        if self.work is None:
            self.notify("open a model first")
            return
        from app.screen_data import Subject
        from app.screens.export import ExportScreen, exports

        screen = self.screen
        subject = screen.subject() if isinstance(screen, WorkScreen) else Subject("tpuscope")
        self.push_screen(ExportScreen(exports(self.work, self.export_screenshot, subject), self.work))

    def action_jump(self) -> None:
        """Letters over the panels."""
        from app.screens.jump import JumpScreen

        panels = [widget for widget in self.screen.focus_chain if widget.region.width]

        def go(panel: Widget | None) -> None:
            if panel is not None:
                panel.focus()

        self.push_screen(JumpScreen(panels), go)

    def action_next_theme(self) -> None:
        """Dark, light, ANSI."""
        names = [theme.name for theme in THEMES]
        at = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(at + 1) % len(names)]

    def watch_theme(self, theme: str) -> None:
        """What was drawn is drawn anew, and the choice is kept."""
        for panel in self.screen.query(LineView) if self.is_running and self.screen_stack else ():
            panel.repaint()
        if self.is_running and self.remember:
            from app.settings import Settings

            replace(Settings.load(), theme=theme).save()

    def action_screenshot_svg(self) -> None:
        """This screen as an SVG file in the working folder."""
        path = self.save_screenshot(f"tpuscope-{self._serial:02}.svg", path=".")
        self._serial += 1
        self.notify(path, title="saved")

    async def action_quit(self) -> None:
        """Stop everything and leave."""
        if self.work is not None and self.work.session is not None:
            self.work.session.cancel()
        self.jobs.close()
        self.exit()


def _compile_next(work: Workspace, names: Sequence[str] | None) -> bool:
    """Compile modules by name, then (None) the others; False when nothing is left."""
    session = work.session
    if session is None or session.running:
        return session is not None
    return session.start(names) or session.start()


def _make_screen(name: str, workspace: Workspace) -> WorkScreen:
    """Screens import what they need when they are first opened."""
    if name == "explore":
        return ExploreScreen(workspace)
    if name == "memory":
        from app.screens.memory import MemoryScreen

        return MemoryScreen(workspace)
    if name == "simulate":
        from app.screens.simulate import SimulateScreen

        return SimulateScreen(workspace)
    if name == "kv":
        from app.screens.kv import KvScreen

        return KvScreen(workspace)
    assert name == "run"
    from app.screens.generate import GenerateScreen

    return GenerateScreen(workspace)


def run(session: Session | None = None) -> None:
    """Open the explorer on a session; without one it asks for a model."""
    from app.settings import Settings

    workspace = Workspace.of(session) if session is not None else None
    Explorer(workspace, theme=Settings.load().theme, remember=True).run()
