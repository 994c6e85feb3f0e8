"""The export menu: what can be written to a file, where to, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app import units
from app.screen_data import Subject, draw_memory, screen_data
from app.widgets.lines import LineView
from app.widgets.table import Column, Row, TableView
from app.workspace import Workspace
from engine.errors import CompileError, UserError

if TYPE_CHECKING:
    from app.explorer import Explorer


@dataclass(frozen=True)
class Export:
    """One thing that can be written.

    file: what its file is called behind the model's name. write: takes the path; runs in the engine's thread. whole:
    needs all modules.
    """

    title: str
    about: str
    file: str
    write: Callable[[Path], None]
    whole: bool = True


def exports(work: Workspace, picture: Callable[[], str], subject: Subject) -> list[Export]:
    """What can be written about a workspace. picture: the screen as SVG. subject: what the user looks at on it."""
    module, pass_name, compilation = work.layer_name, work.pass_name, work.compilation

    def graph(what: str) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            from engine.trace.graph import write_graph

            of_module = what == "module"
            write_graph(
                compilation,
                what,
                path,
                module=module if of_module else "",
                pass_name=pass_name if of_module else "",
            )

        return write

    def ir(path: Path) -> None:
        from engine.tables import ir_text
        from engine.trace.output import write_file

        write_file(path, ir_text(compilation, module, pass_name).encode())

    def trace(of_module: str | None) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            from engine.trace.perfetto import write_trace

            write_trace(compilation, path, module=of_module)

        return write

    def report(path: Path) -> None:
        from engine.trace.report import write_report

        write_report(compilation, path)

    def screen(path: Path) -> None:
        from engine.trace.output import write_svg

        write_svg(svg, path)

    svg = picture()
    return [
        Export("this screen", "as a picture, .svg .png", f"{subject.screen}.svg", screen, whole=False),
        Export("IR", f"{module} after {pass_name}, MLIR text", f"{module}.{pass_name}.mlir", ir, whole=False),
        *_tables(work, subject),
        *_maps(work, subject),
        Export(
            "graph of the module",
            f"{module} after {pass_name}, .svg .png .dot",
            f"{module}.svg",
            graph("module"),
            whole=False,
        ),
        Export(
            "graph of the pipeline", "checkpoint to file, .svg .png .dot", "pipeline.svg", graph("pipeline")
        ),
        Export(
            "graph of the runtime", "the generation loop, .svg .png .dot", "runtime.svg", graph("runtime")
        ),
        Export("graph of the KV cache", "regions and slots, .svg .png .dot", "kv.svg", graph("kv")),
        Export("trace of one token", "Perfetto, for ui.perfetto.dev", "pftrace", trace(None)),
        Export(
            "trace of the module", f"{work.module}, Perfetto", f"{work.module}.pftrace", trace(work.module)
        ),
        Export("report", "one self-contained HTML file", "html", report),
        Export("compiled file", "program, weights and snapshots", "tpuscope", _save(work)),
    ]


def _tables(work: Workspace, subject: Subject) -> Iterator[Export]:
    """The data of the screen, where it has any."""
    data = screen_data(work, subject)
    if data is not None:
        yield Export("table", f"{data.about}, .csv .json", f"{data.file}.csv", data.write, data.whole)


def _maps(work: Workspace, subject: Subject) -> Iterator[Export]:
    """Maps of local memory and of DDR, where the module has come so far."""
    module, whole = work.layer_name, work.layer_name != work.module
    if work.snapshot("address-assign") is None:
        return
    grouped = work.snapshot("layer-group")
    if grouped is not None and grouped.report is not None and grouped.report.groups:
        group, core = subject.group, subject.core
        where = f"group {group}" + (f", core {core}" if work.compilation.options.cores > 1 else "")
        yield Export(
            "map of local memory",
            f"{module}, {where}, .svg .png",
            f"{module}.group{group}.svg",
            lambda path: draw_memory(work, path, group, core),
            whole,
        )
    yield Export(
        "map of DDR",
        f"{module}, lifetimes, .svg .png",
        f"{module}.ddr.svg",
        lambda path: draw_memory(work, path, None),
        whole,
    )


def _save(work: Workspace) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        if work.session is None:
            raise UserError("there is no model behind this data: nothing to write")
        work.session.require_savable()
        work.session.save(path)

    return write


class ExportScreen(ModalScreen[None]):
    """A list of exports and the file to write."""

    BINDINGS = [("escape", "leave", "Close")]
    DEFAULT_CSS = """
    ExportScreen {
        align: center middle;
        & #box { width: 84; max-width: 96%; height: 22; max-height: 96%; border: round $primary; background: $surface; }
        & TableView { border: none; background: $surface; height: 1fr; }
        & TableView:focus { border: none; }
        & Input { height: 1; border: none; background: $panel; padding: 0 1; }
        & Input:focus { border: none; }
        & Static { height: 1; color: $text-muted; padding: 0 1; }
    }
    """

    def __init__(self, choices: list[Export], work: Workspace) -> None:
        super().__init__()
        self.choices = choices
        self.work = work

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "export"
            yield TableView((Column("what"), Column("about", stretch=True)), id="exports", head=False)
            yield Static("enter chooses, then mend the file's name and press enter")
            yield Input(id="file", select_on_focus=False)

    def on_mount(self) -> None:
        """All exports; those that need the whole program are marked while it is not there."""
        whole = self.work.compilation.complete
        rows = [
            Row(
                (
                    (choice.title, "heading" if whole or not choice.whole else "faint"),
                    (choice.about if whole or not choice.whole else "needs the whole program", "muted"),
                ),
                index,
            )
            for index, choice in enumerate(self.choices)
        ]
        table = self.query_one(TableView)
        table.show(rows)
        table.focus()
        self.name_file()

    @property
    def choice(self) -> Export:
        """The export under the cursor."""
        return self.choices[self.query_one(TableView).cursor]

    @on(LineView.Moved, "#exports")
    def name_file(self) -> None:
        """A name that fits."""
        self.query_one(Input).value = f"{self.work.title}.{self.choice.file}".replace("/", "-")

    @on(LineView.Chosen, "#exports")
    def choose(self) -> None:
        """On to the file's name."""
        entry = self.query_one(Input)
        entry.focus()
        entry.cursor_position = len(entry.value)

    @on(Input.Submitted)
    def write(self) -> None:
        """Write it in the engine's thread."""
        path = Path(self.query_one(Input).value.strip()).expanduser()
        choice = self.choice
        if not path.name:
            self.notify("give the file a name", severity="warning")
            return
        app = cast("Explorer", self.app)
        app.notify(f"writing {path} …", timeout=2)
        app.jobs.submit(
            lambda: choice.write(path),
            lambda _: app.notify(f"{path.absolute()}  {units.size(path.stat().st_size)}", title="written"),
            lambda error: app.notify(_message(error), title="not written", severity="error", timeout=10),
        )
        self.dismiss()

    def action_leave(self) -> None:
        """Back to the list, then out."""
        if isinstance(self.focused, Input):
            self.query_one(TableView).focus()
        else:
            self.dismiss()


def _message(error: Exception) -> str:
    known = isinstance(error, (UserError, CompileError, OSError))
    return str(error) if known else f"{type(error).__name__}: {error}"
