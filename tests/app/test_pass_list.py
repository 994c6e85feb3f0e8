"""The pass list: what came of each pass in a word, and where its remarks stand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from sample_program import sample_compilation
from textual.pilot import Pilot

from app.explorer import Explorer
from app.screens.explore import ExploreScreen
from app.widgets.lines import plain
from app.widgets.lists import PassList
from app.workspace import Workspace
from engine.compiler import Compilation


@pytest.fixture
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The hand-written program with a pass that makes four layer groups, and remarks."""
    compilation = sample_compilation(tmp_path_factory.mktemp("grouped"))
    _add_groups(compilation)
    return Workspace(compilation, "sample-3l", seconds=1.25)


def _add_groups(compilation: Compilation) -> None:
    for name, module in list(compilation.modules.items()):
        *first, addressed, code = module.snapshots
        groups = replace(
            first[-1],
            pass_name="layer-group",
            seconds=1.26,
            notes=("4 groups of 10 ops, 28 ops global",),
            report=SimpleNamespace(groups=(1, 2, 3, 4)),
        )
        compilation.modules[name] = replace(module, snapshots=(*first, groups, addressed, code))


async def passes(pilot: Pilot[None]) -> PassList:
    await pilot.pause()
    return pilot.app.screen.query_one(PassList)


def shown(view: PassList) -> list[str]:
    return [plain(view.line(i)).rstrip() for i in range(view.line_count())]


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40), (200, 60)])
async def test_groups_arena_and_instructions_stand_beside_their_passes(
    grouped: Workspace, size: tuple[int, int]
) -> None:
    async with Explorer(grouped).run_test(size=size) as pilot:
        view = await passes(pilot)
        lines = {str(row.key): line for row, line in zip(view.rows, shown(view), strict=True)}
        last = grouped.snapshots().snapshots[-1]
        tiu = int((last.report["engine"] == 0).sum())
        assert "4 groups" in lines["layer-group"]
        assert "kB" in lines["address-assign"]
        assert f"{tiu}+{len(last.report) - tiu} instr" in lines["codegen"]
        # AND no line is cut, and from 100 columns on times are there
        assert not any("…" in line for line in lines.values())
        assert ("1.3s" in lines["layer-group"]) == (size[0] >= 100)


async def test_codegen_that_emits_is_not_shown_as_unchanged(grouped: Workspace) -> None:
    async with Explorer(grouped).run_test(size=(120, 40)) as pilot:
        view = await passes(pilot)
        assert view.passes["codegen"].mark[0] == "+"
        assert view.passes["codegen"].name[1] == ""
        # AND it stays where only passes are listed that did something
        await pilot.press("c")
        assert "codegen" in view.passes


async def test_remarks_stand_below_where_there_is_room(grouped: Workspace) -> None:
    async with Explorer(grouped).run_test(size=(200, 60)) as pilot:
        view = await passes(pilot)
        lines = shown(view)
        assert any("4 groups of 10 ops, 28 ops global" in line for line in lines)
        # AND neither cursor nor brackets stop at them
        view.focus()
        await pilot.press(*["right_square_bracket"] * 10)
        assert grouped.pass_name == "codegen"
        await pilot.press("g", *["down"] * 3)
        assert view.key == "layer-group"


async def test_the_diff_counts_ops_as_the_list_does(grouped: Workspace) -> None:
    async with Explorer(grouped).run_test(size=(120, 40)) as pilot:
        await passes(pilot)
        await pilot.press("right_square_bracket", "right_square_bracket", "d")
        screen = pilot.app.screen
        assert isinstance(screen, ExploreScreen)
        before, after = grouped.before(), grouped.snapshot()
        assert before is not None
        assert after is not None
        # THEN what came minus what went is the difference of the numbers in the list
        ops = str(screen.ir.border_subtitle).split(" ops")[0].split()
        assert int(ops[0]) + int(ops[1].replace("−", "-")) == after.op_count - before.op_count
