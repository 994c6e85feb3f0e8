"""`export graph`: a module after any pass, the pipeline, the runtime loop and the KV regions, drawn with Graphviz."""

from __future__ import annotations

from pathlib import Path

from engine.compiler import Compilation
from engine.errors import CompileError, UserError
from engine.stages import Kind, Stage
from engine.tables import snapshot_after
from engine.trace import dot
from engine.trace.module_graph import module_graph
from engine.trace.output import suffix_of, write_file

WHATS = ("module", "pipeline", "runtime", "kv")
"""What can be drawn."""

FORMATS = (".dot", ".svg", ".png")


def write_graph(
    compilation: Compilation, what: str, path: Path | str, *, module: str = "", pass_name: str = ""
) -> None:
    """Draw a graph into a file whose suffix (FORMATS) is the format.

    module, pass_name: for `module`; defaults: the decode block, its last pass. Raises UserError for an unknown
    suffix, `what`, module or pass, CompileError when what is drawn has not been compiled.
    """
    suffix = suffix_of(path, FORMATS)
    source = graph_text(compilation, what, module=module, pass_name=pass_name)
    write_file(path, source.encode() if suffix == ".dot" else dot.render(source, suffix))


def graph_svg(compilation: Compilation, what: str, *, module: str = "", pass_name: str = "") -> str:
    """A graph as SVG text."""
    return dot.render(graph_text(compilation, what, module=module, pass_name=pass_name), ".svg").decode()


def graph_text(compilation: Compilation, what: str, *, module: str = "", pass_name: str = "") -> str:
    """A graph as dot source; arguments and errors as in `write_graph`. Only `module` looks at module and pass_name."""
    if what not in WHATS:
        raise UserError(f"there is no graph of {what!r}; accepted: {', '.join(WHATS)}")
    if what != "module":
        from engine.trace import program_graphs

        return str(getattr(program_graphs, f"{what}_graph")(compilation).source)
    return _module_text(compilation, module or _default_module(compilation), pass_name)


def _default_module(compilation: Compilation) -> str:
    """The decode block of the longest cache; the first module of a model without blocks."""
    specs = compilation.specs
    decode = (spec.name for spec in specs if spec.kind is Kind.BLOCK and spec.stage is Stage.DECODE)
    return next(decode, specs[0].name)


def _module_text(compilation: Compilation, module: str, pass_name: str) -> str:
    spec, layer = compilation.find(module)
    snapshots = compilation.snapshots(module)
    if not snapshots.snapshots:
        raise CompileError(snapshots.error or f"module {module} was not compiled", spec.name)
    snapshot = snapshot_after(compilation, module, pass_name or snapshots.snapshots[-1].pass_name)
    shared = spec.name == module and len(spec.layers) > 1
    served = f" x{len(spec.layers)}" if shared else ""
    graph = module_graph(
        snapshot,
        title=f"{module}{served} after {snapshot.pass_name}",
        subtitle=f"{compilation.config.name} · {spec.stage} · {snapshot.op_count} ops",
        layer=None if shared else layer,
        outputs=[tensor.name for tensor in spec.outputs],
    )
    return str(graph.source)
