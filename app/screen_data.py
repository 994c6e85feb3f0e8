"""What a screen shows as data: the JSON that its command prints, and the rows of it that make a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.workspace import Workspace
from engine.errors import UserError
from engine.stages import Kind

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Subject:
    """What of a screen the user looks at.

    screen: its name. view: a part of it with data of its own (`modules`, `program`, `local`), or empty. group, core:
    the layer group on the map of local memory and the core that runs it.
    """

    screen: str
    view: str = ""
    group: int = 0
    core: int = 0


@dataclass(frozen=True)
class ScreenData:
    """The data of a screen.

    about: the command that prints it. file: what its files are called, behind the model's name. load: the JSON. rows:
    those of its rows that make a table. whole: needs all modules.
    """

    about: str
    file: str
    load: Callable[[], Any]
    rows: Callable[[Any], Rows] = lambda found: found
    whole: bool = True

    def write(self, path: Path) -> None:
        """Write the JSON, or the table of it as CSV. Raises UserError for a file of another kind."""
        from engine.trace.output import write_file

        if path.suffix not in (".csv", ".json"):
            raise UserError(f"{path}: a table's file must end in .csv or .json")
        found = self.load()
        write_file(
            path, _json_bytes(found) if path.suffix == ".json" else csv_text(self.rows(found)).encode()
        )


def screen_data(work: Workspace, subject: Subject) -> ScreenData | None:
    """The data of a screen about the selection; None for a screen without."""
    from engine.program_memory import program_memory
    from engine.tables import memory_table, modules_table, passes_table

    compilation, module, shared = work.compilation, work.layer_name, work.module
    match subject.screen, subject.view:
        case "explore", "modules":
            return ScreenData("modules", "modules", lambda: modules_table(compilation))
        case "explore", _:
            return ScreenData(
                f"passes -m {shared}",
                f"{shared}.passes",
                lambda: passes_table(compilation, shared),
                whole=False,
            )
        case "memory", "program":
            return ScreenData(
                "memory", "memory", lambda: program_memory(compilation), lambda found: found["arenas"]
            )
        case "memory", view:
            core = subject.core if compilation.options.cores > 1 and view == "local" else None
            kind = "lmem" if view == "local" else "ddr"
            return ScreenData(
                f"memory -m {module}, {'buffers' if view == 'local' else 'tensors'}",
                f"{module}.{kind}",
                lambda: memory_table(compilation, module, core),
                lambda found: found[kind],
                whole=module != shared,
            )
        case "simulate", _:
            return ScreenData("simulate, ops", "simulation", lambda: _simulation(work), _op_rows)
        case "kv", _:
            return ScreenData("KV slots of every module, as in memory -m", "kv", lambda: _kv_rows(work))
    return None


def _simulation(work: Workspace) -> Any:
    simulation = work.simulation or work.simulator.simulate()
    return simulation.to_json()


def _op_rows(found: Any) -> Rows:
    return [{"module": module["name"], **op} for module in found["modules"] for op in module["ops"]]


def _kv_rows(work: Workspace) -> Rows:
    from engine.tables import memory_table

    blocks = [spec.name for spec in work.specs if spec.kind is Kind.BLOCK]
    rows = [row for name in blocks for row in memory_table(work.compilation, name)["kv_cache"]]
    return sorted(rows, key=lambda row: int(row["layer"]))


def draw_memory(work: Workspace, path: Path, group: int | None, core: int = 0) -> None:
    """The picture of a layer group as a core runs it, or of the selected module's DDR, as `memory --svg` draws it."""
    from engine.tables import memory_table
    from engine.trace.memory_map import write_memory_map

    compilation, module = work.compilation, work.layer_name
    chip, cores = compilation.options.chip, compilation.options.cores
    title = f"{module} in DDR" if group is None else f"{module}, group {group}"
    found = memory_table(compilation, module, core if cores > 1 else None)
    write_memory_map(found, path, title=title, group=group, bank_bytes=chip.bank_bytes, banks=chip.banks)


# -- files -------------------------------------------------------------------------------------------------------------


def _json_bytes(found: Any) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def csv_text(rows: Rows) -> str:
    """Rows as CSV: a column for every name, those of nested values joined by dots, values of lists by blanks."""
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in row.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            found.append((prefix + name, " ".join(_cell(item) for item in value)))
        else:
            found.append((prefix + name, value))
    return found


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_cell(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return "x".join(_cell(item) for item in value)
    return str(value)
