"""The command line: every screen's headless twin.

Thin: a command opens a `Session`, asks the engine for data and prints it as a table or as JSON. Data goes to stdout,
messages to stderr. Exit codes: 0 ok, 1 found what was looked for (a difference, a failed check), 2 the user's mistake,
3 a compile failure.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from app import streams
from app.shared_options import integers, with_model_options
from engine.errors import CompileError, UserError

if TYPE_CHECKING:
    from app.session import Session
    from engine.compiler import Compilation

FOUND, MISTAKE, FAILURE, INTERRUPTED = 1, 2, 3, 130
"""Exit codes."""

SIMILAR = 0.75
"""How much of a mistyped command must be right for the right one to be offered."""

_USAGE_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""What typer raises for a malformed command line; it exports only subclasses."""

EXPLORE = "explore"


class _OutputClosedError(Exception):
    """The reader of stdout has gone."""


class _Commands(TyperGroup):
    """A first argument that is no command is a model for the explorer."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        if not args or (args[0] not in self.commands and args[0] not in own):
            if args and not args[0].startswith("-"):
                _require_model(args[0])
            args = [EXPLORE, *args]
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An interrupt and a closed pipe are not typer's to answer: it would say nothing, or 1."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None
        except BrokenPipeError:
            raise _OutputClosedError from None


app = typer.Typer(
    name="tpuscope",
    cls=_Commands,
    help="Explorer and debugger for compiling large language models to TPU-class accelerators.\n\n"
    "`tpuscope MODEL` opens the explorer; without MODEL, on a bundled demo. MODEL is a checkpoint folder, a "
    "config.json or a compiled file.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
export_app = typer.Typer(help="Write diagrams, traces and reports to files.", no_args_is_help=True)
config_app = typer.Typer(help="Where settings live.", no_args_is_help=True)
app.add_typer(export_app, name="export")
app.add_typer(config_app, name="config")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Checkpoint folder, config.json or compiled file.", show_default=False
    ),
]
Module = Annotated[
    str, typer.Option("--module", "-m", metavar="NAME", help="Such as block_cache_0; any layer's name works.")
]
Group = Annotated[
    int | None,
    typer.Option("--group", "-g", metavar="K", min=0, help="Only layer group K, counted from 0."),
]
Core = Annotated[
    int | None,
    typer.Option(
        "--core", metavar="N", min=0, help="Layer groups as core N runs them; maps without it are core 0's."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit; user errors and failures are messages, never tracebacks."""
    streams.prepare()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        given = None if arguments is None else list(arguments)
        code = app(args=given, prog_name="tpuscope", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _fail(str(error), MISTAKE)
    except CompileError as error:
        return _fail(str(error), FAILURE)
    except _USAGE_ERROR as error:
        error.show()
        return MISTAKE
    except typer.Abort:
        return _fail("interrupted", INTERRUPTED)
    except (BrokenPipeError, _OutputClosedError):
        return _output_closed()
    except SystemExit as error:
        # Rich answers a closed pipe by itself where typer prints help
        if isinstance(error.__context__, BrokenPipeError):
            return _output_closed()
        raise
    except OSError as error:
        streams.discard_output()
        name = streams.name_of(error)
        return _fail(f"{name}: {error.strerror}" if name else str(error), MISTAKE)


def _output_closed() -> int:
    """The reader of our output has seen enough."""
    streams.discard_output()
    return 0


def _fail(message: str, code: int) -> int:
    from rich.text import Text

    from app.console import messages

    messages().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    return code


# -- opening and compiling -------------------------------------------------------------------------------------------


def _open(model: str, options: dict[str, Any]) -> Session:
    from app.session import Session

    _require_model(model)
    session = Session.open(model, options)
    _note_unused(session, options)
    return session


def _note_unused(session: Session, options: Mapping[str, Any]) -> None:
    """Say which of the given options change nothing."""
    from app.console import messages

    given = {"q_group_size": "--q-group-size", "symmetric": "--symmetric"}
    unused = [flag for name, flag in given.items() if options.get(name)]
    if unused and not session.options.mode.weight_bits:
        what = f"{' and '.join(unused)} {'have' if len(unused) > 1 else 'has'} no effect"
        messages().print(
            f"⚠ {what}: with {session.options.quantize} no weight is quantised",
            style="yellow",
            soft_wrap=True,
        )


def _require_model(model: str) -> None:
    """Raise UserError, with the command that may have been meant, unless the path exists."""
    if not model:
        raise UserError("MODEL is empty; give a checkpoint folder, a config.json or a compiled file")
    if Path(model).expanduser().exists():
        return
    from difflib import get_close_matches

    names = [str(info.name or getattr(info.callback, "__name__", "")) for info in app.registered_commands]
    names += [str(info.name) for info in app.registered_groups]
    close = [] if "/" in model else get_close_matches(model, names, 1, SIMILAR)
    hint = (
        f"did you mean `tpuscope {close[0]}`?"
        if close
        else "give a checkpoint folder, a config.json or a compiled file"
    )
    raise UserError(f"{model}: no such file or folder; {hint}")


def _compile(session: Session, modules: Sequence[str] | None = None) -> Compilation:
    """Compile what is needed, all modules for None, with a progress bar on a terminal."""
    from app.console import compile_progress

    missing = session.missing(modules)
    if missing:
        with compile_progress(len(missing)) as listener:
            session.compile(modules, listener)
    _note_uncompiled_demands(session)
    return session.compilation


def _note_uncompiled_demands(session: Session) -> None:
    """Say which demanded groups are of modules that the command does not compile: nothing has checked them."""
    from app.console import messages

    for text in dict.fromkeys(session.options.force_group):
        module = text.partition(":")[0]
        if session.missing([module]):
            messages().print(
                f"⚠ --force-group {text} is not checked: this command does not compile {module}",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )


def _compile_view(session: Session, module: str) -> Compilation:
    """Compile what it takes to show a module: itself, or all when it is meant as one of several layers."""
    spec, _ = session.compilation.find(module)
    return _compile(session, [module] if spec.name == module else None)


def _raise_failures(compilation: Compilation, module: str | None = None) -> None:
    """Raise CompileError for the first failed module, or for one of them; UserError where the options are to blame."""
    wanted = None if module is None else compilation.find(module)[0].name
    for name, failure in compilation.failures.items():
        if wanted in (None, name):
            if failure.mistake:
                raise UserError(failure.message)
            saved = f"\nthe IR before the pass was saved to {failure.saved_ir}" if failure.saved_ir else ""
            raise CompileError(failure.message + saved, name, failure.pass_name, failure.saved_ir)


# -- the explorer ------------------------------------------------------------------------------------------------------


@app.command(EXPLORE)
@with_model_options
def explore(
    options: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Checkpoint folder, config.json or compiled file.", show_default=False
        ),
    ] = None,
) -> None:
    """Open the explorer (also `tpuscope MODEL`); without MODEL, on the bundled demo."""
    if model is not None:
        _require_model(model)
    if not _is_terminal():
        raise UserError("the explorer needs a terminal; see `tpuscope --help` for commands that print")
    from app import explorer

    session = _open(model or str(_demo()), options)
    if model is not None:
        _remember(model, options)
    explorer.run(session)


def _is_terminal() -> bool:
    """The explorer reads keys from stdin, draws on stderr and asks stdout for the terminal's size."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _remember(model: str, options: dict[str, Any]) -> None:
    """Put a model at the head of the recent ones."""
    from app.settings import Settings

    Settings.load().opened(model, options).save()


def _demo() -> Path:
    from app.settings import cache_path
    from engine.top.demo import demo_models

    return demo_models(cache_path())[0].path


# -- commands on a model -----------------------------------------------------------------------------------------------


@app.command("compile")
@with_model_options
def compile_command(
    model: Model,
    options: dict[str, Any],
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Deployable file to write (NAME.tpuscope)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile every module and write the deployable file."""
    from app.console import byte_progress, emit, output
    from app.render import compile_tables

    session = _open(model, options)
    if file is not None:
        session.require_savable()
    compilation = _compile(session)
    _raise_failures(compilation)
    summary = None
    if file is not None:
        with byte_progress("writing") as progress:
            summary = session.save(file, progress)
    if as_json:
        emit(_compile_json(session, summary))
        return
    for item in compile_tables(session, summary):
        output().print(item)


def _compile_json(session: Session, summary: Any) -> dict[str, Any]:
    written = None
    if summary is not None:
        written = {
            "path": str(summary.path),
            "bytes": summary.nbytes,
            "weight_bytes": summary.weight_nbytes,
            "program_bytes": summary.program_nbytes,
            "snapshot_bytes": summary.snapshot_nbytes,
            "weights": summary.weights,
            "weight_uses": summary.weight_uses,
            "seconds": summary.seconds,
        }
    options = session.options
    return {
        "model": session.title,
        "chip": options.chip_name,
        "quantize": options.quantize,
        "seq_length": options.seq_length,
        "modules": len(session.compilation.specs),
        "seconds": session.seconds,
        "file": written,
    }


@app.command()
@with_model_options
def modules(model: Model, options: dict[str, Any], as_json: Json = False) -> None:
    """List the modules: stage, layers served, shapes, parameters and weight bytes by kind."""
    from app.console import emit, output
    from app.render import modules_tables
    from engine.tables import modules_table

    compilation = _compile(_open(model, options))
    rows = modules_table(compilation)
    if as_json:
        emit(rows)
    else:
        for item in modules_tables(rows):
            output().print(item)
    _raise_failures(compilation)


@app.command()
@with_model_options
def passes(model: Model, module: Module, options: dict[str, Any], as_json: Json = False) -> None:
    """List the passes over a module: changed or not, ops before and after, time, notes."""
    from app.console import emit, output
    from app.render import passes_view
    from engine.tables import passes_table

    compilation = _compile(_open(model, options), [module])
    rows = passes_table(compilation, module)
    if as_json:
        emit(rows)
    else:
        output().print(passes_view(rows))
    _raise_failures(compilation, module)


@app.command()
@with_model_options
def ir(
    model: Model,
    module: Module,
    options: dict[str, Any],
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="PASS", help="Pass whose result to print (default: the last)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the IR of a module after a pass.

    With the names and addresses of the layer that the module's name says: block_0 and block_7 are one module, read as
    layer 0 and as layer 7. Addresses are those of the whole program in a compiled file.
    """
    from app.console import emit
    from engine.tables import ir_text, is_provisional, snapshot_after

    compilation = _compile_view(_open(model, options), module)
    pass_name = after or _last_pass(compilation, module)
    text = ir_text(compilation, module, pass_name)
    provisional = is_provisional(compilation, snapshot_after(compilation, module, pass_name))
    if as_json:
        emit({"module": module, "pass": pass_name, "provisional": provisional, "ir": text})
    else:
        sys.stdout.write(text)
    if provisional:
        _note_provisional(module)


def _note_provisional(module: str) -> None:
    from app.console import messages

    messages().print(
        f"addresses are provisional: {module} was compiled alone, and merge places it when all modules are compiled "
        "(tpuscope compile MODEL -o FILE, then this command on FILE)",
        style="yellow",
        markup=False,
    )


def _last_pass(compilation: Compilation, module: str) -> str:
    _raise_failures(compilation, module)
    return compilation.snapshots(module).snapshots[-1].pass_name


@app.command()
@with_model_options
def diff(
    model: Model,
    module: Module,
    options: dict[str, Any],
    before: Annotated[str, typer.Option("--from", metavar="PASS", help="The earlier pass.")],
    after: Annotated[
        str | None,
        typer.Option("--to", metavar="PASS", help="The later pass (default: the one behind --from)."),
    ] = None,
    context: Annotated[
        int, typer.Option("--context", "-c", min=0, help="Equal ops shown beside a change.")
    ] = 1,
    side_by_side: Annotated[
        bool, typer.Option("--side-by-side", "-s", help="Before and after in two columns.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what became of each op between two passes, aligned by where ops come from; exit code 1 if anything did."""
    from app.console import emit, output
    from app.render import diff_json, side_by_side_view, unified_view
    from engine import diff as differ
    from engine.tables import ir_text, is_provisional, pass_behind, snapshot_after

    compilation = _compile_view(_open(model, options), module)
    later = after or pass_behind(compilation, module, before)
    snapshots = [snapshot_after(compilation, module, name) for name in (before, later)]
    texts = [ir_text(compilation, module, name) for name in (before, later)]
    found = differ.diff(*snapshots)
    if as_json:
        emit(diff_json(module, before, later, found, texts))
    else:
        heading = f"{module} · {before} → {later}   {found.summary()}"
        lines = (differ.side_by_side if side_by_side else differ.unified)(found, texts[0], texts[1], context)
        view = side_by_side_view(lines) if side_by_side else unified_view(lines)  # type: ignore[arg-type]
        output().print(heading, style="bold", markup=False)
        output().print(view, soft_wrap=not side_by_side)
    if any(is_provisional(compilation, snapshot) for snapshot in snapshots):
        _note_provisional(module)
    if found.counts().any:
        raise typer.Exit(FOUND)


@app.command()
@with_model_options
def memory(
    model: Model,
    options: dict[str, Any],
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", metavar="NAME", help="Only this module; any layer's name works."),
    ] = None,
    group: Group = None,
    core: Core = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Draw the group's map, or the DDR map, as SVG."),
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="The same as PNG.")] = None,
    as_json: Json = False,
) -> None:
    """Show DDR of the whole program, arena by arena and layer by layer.

    Of a module: layer groups with their maps of local memory, DDR tensors with lifetimes, and KV slots. Exit code 1 if
    a check of the module fails.
    """
    from app.console import emit, messages
    from engine.tables import known_group, memory_problems, memory_table

    pictures = [path for path in (svg, png) if path is not None]
    if module is None:
        _require_module(group=group, core=core, svg=svg, png=png)
        _program_memory(_compile(_open(model, options)), as_json)
        return
    _require_suffixes(svg=svg, png=png)
    if pictures and core is not None and group is None:
        raise UserError(
            "--core is about layer groups, the picture without --group about DDR: give --group K too"
        )
    compilation = _compile(_open(model, options))
    _raise_failures(compilation, module)
    found = memory_table(compilation, module, core)
    if group is not None:
        found["groups"] = [known_group(found["groups"], module, group)]
        found["lmem"] = [row for row in found["lmem"] if row["group"] == group]
    problems = memory_problems(compilation, module)
    for path in pictures:
        _draw_memory(compilation, module, path, group, core or 0)
    if as_json:
        emit(found)
    elif not pictures:
        _print_memory(compilation, module, found, group, core or 0)
    for problem in problems:
        messages().print(f"✗ {problem}", style="red", markup=False)
    if problems:
        raise typer.Exit(FOUND)
    if not as_json and not pictures:
        messages().print(
            "✓ no overlap, alignment kept, K and V where every module expects them", style="green"
        )


def _require_module(**given: object) -> None:
    """Raise UserError for an option that is about one module where none is named."""
    for name, value in given.items():
        if value is not None:
            raise UserError(f"--{name} is about one module: give --module NAME too")


def _program_memory(compilation: Compilation, as_json: bool) -> None:
    from app.console import emit, output
    from app.render_program_memory import program_memory_views
    from engine.program_memory import program_memory

    _raise_failures(compilation)
    found = program_memory(compilation)
    if as_json:
        emit(found)
        return
    for item in program_memory_views(found):
        output().print(item)


def _print_memory(
    compilation: Compilation, module: str, found: Mapping[str, Any], group: int | None, core: int
) -> None:
    """The tables for people, groups as a core runs them; of one group, only what is about it."""
    from app.console import output
    from app.render import memory_views
    from app.render_groups import MAP_WIDTH, local_memory_views

    console = output()
    for item in local_memory_views(compilation, module, group, min(console.width, MAP_WIDTH), core):
        console.print(item)
    if group is None:
        for item in memory_views(compilation, module, found):
            console.print(item)


def _require_suffixes(**paths: Path | None) -> None:
    """Raise UserError for an option --svg or --png whose file is called otherwise."""
    for suffix, path in paths.items():
        if path is not None and path.suffix.lower() != f".{suffix}":
            raise UserError(f"--{suffix} {path}: the file's name must end in .{suffix}")


def _draw_memory(compilation: Compilation, module: str, path: Path, group: int | None, core: int) -> None:
    """A picture of a group as a core runs it, or of the module's DDR."""
    from engine.tables import memory_table
    from engine.trace.memory_map import write_memory_map

    chip = compilation.options.chip
    title = f"{module} in DDR" if group is None else f"{module}, group {group}"
    found = memory_table(compilation, module, core)
    write_memory_map(found, path, title=title, group=group, bank_bytes=chip.bank_bytes, banks=chip.banks)
    _wrote(path)


@app.command()
@with_model_options
def explain(
    model: Model, module: Module, options: dict[str, Any], group: Group = None, as_json: Json = False
) -> None:
    """Say why the layer groups of a module are as they are.

    Why each begins and ends where it does, which slicings were tried and why they failed, what the cuts that were
    compared cost, and why other ops are in no group.
    """
    from app.console import emit, output
    from app.render_groups import explain_views
    from engine.tables import explain_table

    compilation = _compile(_open(model, options), [module])
    _raise_failures(compilation, module)
    found = explain_table(compilation, module, group)
    if as_json:
        emit(found)
        return
    for item in explain_views(found):
        output().print(item)


@app.command()
@with_model_options
def check(model: Model, options: dict[str, Any], as_json: Json = False) -> None:
    """Check every invariant of the compiled program; exit code 1 with the list where one does not hold."""
    from app.console import emit, messages, output
    from app.render import check_view
    from engine.check import check as find_problems
    from engine.check import report

    compilation = _compile(_open(model, options))
    problems = find_problems(compilation)
    found = report(compilation, problems)
    if as_json:
        emit(found)
    else:
        output().print(check_view(found))
    for problem in () if as_json else problems:
        messages().print(f"✗ {problem}", style="red", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(FOUND)


@app.command()
@with_model_options
def simulate(
    model: Model,
    options: dict[str, Any],
    prompt_length: Annotated[
        int | None,
        typer.Option(
            "--prompt-length", metavar="P", min=1, help="Tokens of the prompt (default: L, then S rows)."
        ),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate",
            metavar="N",
            min=1,
            help="New tokens, the first of which the prefill gives (default: as many as fit).",
        ),
    ] = None,
    ops: Annotated[int, typer.Option("--ops", min=0, help="Ops listed for each stage.")] = 8,
    timeline: Annotated[
        bool,
        typer.Option("--timeline", help="With --module: the two engines, instruction by instruction."),
    ] = False,
    module: Annotated[
        str | None,
        typer.Option(
            "--module", "-m", metavar="NAME", help="Module of the timeline; any layer's name works."
        ),
    ] = None,
    history_length: Annotated[
        int | None,
        typer.Option(
            "--history-length",
            metavar="N",
            min=0,
            help="With --timeline: rows of history that a prefill_kv module reads.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Cycles, DDR traffic and bounds of modules and ops; time to first token and decode tokens/s.

    With --timeline of one module: when each instruction runs, on which engine, what it moves and what it waits for.
    """
    if timeline or module is not None or history_length is not None:
        lengths = {"--prompt-length": prompt_length, "--generate": generate}
        _require_timeline(timeline, module, lengths)
        _print_timeline(_open(model, options), module or "", history_length, as_json)
        return
    from app.console import emit, output
    from app.render import simulation_views

    session = _open(model, options)
    _raise_failures(_compile(session))
    found = session.simulate(prompt_length, generate).to_json()
    if as_json:
        emit(found)
        return
    cores = session.compilation.options.cores
    for item in simulation_views(found, ops, prompted=prompt_length is not None, cores=cores):
        output().print(item)


def _require_timeline(timeline: bool, module: str | None, lengths: Mapping[str, int | None]) -> None:
    """Raise UserError for options of a timeline without the others, or with those of the whole program."""
    if module is None:
        raise UserError(
            "--timeline is about one module: give --module NAME too" if timeline else _NO_TIMELINE
        )
    if not timeline:
        raise UserError(_NO_TIMELINE)
    for name, value in lengths.items():
        if value is not None:
            raise UserError(f"{name} is about the whole program, --timeline about one run of a module")


_NO_TIMELINE = "--module and --history-length are about the timeline: give --timeline too"


def _print_timeline(session: Session, module: str, history_length: int | None, as_json: bool) -> None:
    from app.console import emit, output
    from app.render_timeline import instruction_lines, timeline_views
    from engine.lanes import module_lanes

    compilation = _compile(session, [module])
    _raise_failures(compilation, module)
    found = module_lanes(compilation, module, history_length).to_json()
    if as_json:
        emit(found)
        return
    for item in timeline_views(found):
        output().print(item)
        output().print()
    sys.stdout.writelines(instruction_lines(found["instructions"]))


@app.command("run")
@with_model_options
def run_command(
    model: Model,
    options: dict[str, Any],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="Text to continue.")
    ] = None,
    prompt_ids: Annotated[
        str | None,
        typer.Option("--prompt-ids", metavar="IDS", help="Token ids instead of text, such as 1,22,7."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")
    ] = False,
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "-n", metavar="N", min=1, help="Stop after that many new tokens."),
    ] = 64,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Sample, the flatter the higher; 0 is greedy.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Sample from the k most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample from the likeliest tokens that reach probability p."),
    ] = None,
    penalty: Annotated[
        float | None, typer.Option("--penalty", help="Repetition penalty, 1 for none.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampling.")] = 0,
    machine: Annotated[
        bool,
        typer.Option("--machine", help="Run the instructions on a simulated memory (for small models)."),
    ] = False,
    checks: Annotated[
        bool,
        typer.Option(
            "--checks",
            help="With --machine: report reads of bytes never written, writes over live data, races, banks that both "
            "engines use against the plan, and accesses out of bounds.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Generate text, computed by the compiled program. Greedy unless a sampling option is given.

    Exit code 1 if --checks found something.
    """
    from app.generation import generate_text

    wanted = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "penalty": penalty}
    sampling = {name: value for name, value in wanted.items() if value is not None}
    if (prompt is None) == (prompt_ids is None):
        raise UserError("give --prompt TEXT or --prompt-ids IDS, one of them")
    if chat and prompt is None:
        raise UserError("--chat needs --prompt TEXT")
    if checks and not machine:
        raise UserError("--checks needs --machine: the interpreter has no memory that could be misused")
    session = _open_to_run(model, options, bool(sampling))
    ids = None if prompt_ids is None else integers("--prompt-ids", prompt_ids)
    tokens = ids if ids is not None else session.encode(_prompt_text(prompt or ""), chat=chat)
    _raise_failures(_compile(session))
    chosen = {**sampling, "seed": seed} if sampling else None
    if generate_text(session, tokens, max_new_tokens, chosen, as_json, machine=machine, checks=checks):
        raise typer.Exit(FOUND)


def _prompt_text(argument: str) -> str:
    try:
        return streams.text_of_argument(argument)
    except ValueError:
        raise UserError("--prompt is not UTF-8 text; give --prompt-ids for other bytes") from None


def _open_to_run(model: str, options: dict[str, Any], sampled: bool) -> Session:
    """A session with weights; a checkpoint that is to be sampled from is compiled with the sampling heads."""
    from app.session import is_compiled

    if sampled and not is_compiled(Path(model).expanduser()):
        options = {**options, "sample": True}
    session = _open(model, options)
    session.require_numbers()
    return session


# -- exports -----------------------------------------------------------------------------------------------------------


@export_app.command("graph")
@with_model_options
def export_graph(
    model: Model,
    options: dict[str, Any],
    path: Output,
    what: Annotated[str, typer.Option("--what", help="module, pipeline, runtime or kv.")] = "module",
    module: Annotated[
        str,
        typer.Option("--module", "-m", metavar="NAME", help="Module to draw (default: the decode block)."),
    ] = "",
    after: Annotated[
        str, typer.Option("--after", metavar="PASS", help="Pass whose result to draw (default: the last).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Draw a module after a pass, the pipeline, the runtime loop or the KV regions: .dot, .svg or .png."""
    from engine.trace.graph import FORMATS, WHATS, write_graph
    from engine.trace.output import suffix_of

    suffix_of(path, FORMATS)
    if what not in WHATS:
        raise UserError(f"--what {what!r} is unknown; accepted: {', '.join(WHATS)}")
    session = _open(model, options)
    name = module or _decode_block(session)
    compilation = _compile_view(session, name) if what == "module" else _compile(session)
    _raise_failures(compilation, name if what == "module" else None)
    write_graph(compilation, what, path, module=name if what == "module" else module, pass_name=after)
    _wrote(path, as_json)


@export_app.command("trace")
@with_model_options
def export_trace(
    model: Model,
    options: dict[str, Any],
    path: Output,
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", metavar="NAME", help="Module to trace (default: one decoded token)."),
    ] = None,
    history_length: Annotated[
        int | None,
        typer.Option(
            "--history-length", metavar="N", min=0, help="Rows of history that a prefill_kv module reads."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a Perfetto trace of the two engines, to open at ui.perfetto.dev."""
    from engine.trace.output import suffix_of
    from engine.trace.perfetto import FORMATS, write_trace

    suffix_of(path, FORMATS)
    session = _open(model, options)
    compilation = _compile(session, None if module is None else [module])
    _raise_failures(compilation, module)
    write_trace(compilation, path, module=module, history=history_length)
    _wrote(path, as_json)


@export_app.command("report")
@with_model_options
def export_report(model: Model, options: dict[str, Any], path: Output, as_json: Json = False) -> None:
    """Write one self-contained HTML file: modules, passes, memory, simulation and diagrams."""
    session = _open(model, options)
    compilation = _compile(session)
    _raise_failures(compilation)
    from engine.trace.report import write_report

    write_report(compilation, path)
    _wrote(path, as_json)


def _decode_block(session: Session) -> str:
    """The module that most people look at first."""
    from engine.stages import Kind, Stage

    specs = session.compilation.specs
    return next(s.name for s in specs if s.kind is Kind.BLOCK and s.stage is Stage.DECODE)


def _wrote(path: Path, as_json: bool = False) -> None:
    from app import units
    from app.console import emit, messages

    size = path.stat().st_size
    if as_json:
        emit({"path": str(path), "bytes": size})
    else:
        messages().print(f"wrote {path} ({units.size(size)})", markup=False, soft_wrap=True)


# -- commands without a model ------------------------------------------------------------------------------------------


@app.command()
def chips(as_json: Json = False) -> None:
    """Show the chips that can be compiled for, with the source of every figure."""
    from app.console import emit, output
    from app.render import chips_views
    from engine.tpu.chip_sources import chips_table

    rows = chips_table()
    if as_json:
        emit(rows)
        return
    for item in chips_views(rows):
        output().print(item)


@config_app.command("path")
def config_path(as_json: Json = False) -> None:
    """Print where settings and the bundled demo live."""
    from app.console import emit, output
    from app.settings import cache_path, settings_path

    if as_json:
        emit({"settings": str(settings_path()), "cache": str(cache_path())})
        return
    output().print(f"settings  {settings_path()}\ncache     {cache_path()}", markup=False, soft_wrap=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from engine.version import version

        sys.stdout.write(f"tpuscope {version()}\n")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Explorer and debugger for compiling large language models to TPU-class accelerators."""
