"""Local memory as one of several cores has it: the pane, its keys, and the command that prints and draws the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked, runner
from core_cases import SMALL
from driving import settled
from lmem_cases import OPS, PLAN, REPORT
from textual.app import App, ComposeResult

from app import cli
from app.session import Session
from app.theme import THEMES
from app.widgets.group_panel import BufferPanel, GroupList, LocalMemoryPane
from app.widgets.lines import plain
from app.widgets.lmem_axis import columns
from app.widgets.lmem_canvas import View
from app.widgets.lmem_facts import facts_of
from app.widgets.lmem_map import LmemMap
from app.widgets.step_lanes import StepLanes, lane_lines, pipeline_lines
from app.widgets.why import WhyPanel
from engine.group_cores import CoreShare
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
HALVES = ((CoreShare(0, 3, 2, 3, ((0, 1),)), CoreShare(1, 3, 2, 3, ((1, 1),)), CoreShare(2, 3, 2, 3, ())),)
"""The two slices of the group on two of three cores."""

SIZES = [(80, 22), (120, 38)]


class PaneApp(App[None]):
    """The pane alone."""

    def __init__(self, shares: Any = HALVES) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self.theme = THEMES[0].name
        self.shares = shares

    def compose(self) -> ComposeResult:
        yield LocalMemoryPane(REPORT, OPS, CHIP, module="block_0", shares=self.shares)

    def on_mount(self) -> None:
        self.query_one(LmemMap).focus()


class TestFacts:
    def test_a_core_computes_its_own_slices(self) -> None:
        # GIVEN both halves of a group
        first, second = (facts_of(REPORT, OPS, CHIP, "block_0", HALVES, core)[0] for core in (0, 1))
        # THEN each core has a pipeline of one slice, its own
        assert first.pipeline_steps == second.pipeline_steps == 3
        assert second.pipeline_text(1) == "pipeline step 2/3, slices: computes 1"
        # AND what it takes is less than the whole, more than half: both load the weights that are held
        assert PLAN.cycles // 2 < first.cycles == second.cycles < PLAN.cycles
        assert sum(second.pipeline_costs()) == second.cycles

    def test_lanes_and_pipeline_are_of_the_core(self) -> None:
        second = facts_of(REPORT, OPS, CHIP, "block_0", HALVES, 1)[0]
        lanes = [plain(line) for line in lane_lines(second, columns(3, 110), View(pipeline_step=2))]
        assert lanes[5].split()[1:] == ["↑%33"]
        head, *rows = (plain(line).split() for line in pipeline_lines(second, 110))
        assert head == ["pipeline", "1", "2", "3"]
        assert rows[1] == ["compute", "·", "slice", "1", "·"]

    def test_a_long_pipeline_is_cut(self) -> None:
        second = facts_of(REPORT, OPS, CHIP, "block_0", HALVES, 1)[0]
        assert plain(pipeline_lines(second, 30)[0]).split() == ["pipeline", "1", "…", "3", "in", "all"]


class TestPane:
    async def test_the_key_shows_the_next_core_around_the_ends(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            # GIVEN a cursor on some buffer and step of core 0
            await settled(pilot, "down", "right")
            view = app.query_one(LmemMap)
            assert "core 0 of 3 · slice 0 of 2" in str(view.border_title)
            before = (view.selected, view.step)
            # WHEN the next core is shown THEN the cursor stays, titles, lanes and list are of that core
            await settled(pilot, "C")
            assert "core 1 of 3 · slice 1 of 2" in str(view.border_title)
            assert (view.selected, view.step) == before
            assert "core 1" in str(app.query_one(GroupList).border_title)
            assert "for 1 slice" in str(app.query_one(StepLanes).border_title)
            await settled(pilot, "greater_than_sign", "greater_than_sign")
            assert "core 1 of 3 · pipeline step 2/3, slices: computes 1" in str(view.border_title)
            # AND behind the last core comes the first
            await settled(pilot, "C", "C")
            assert "core 0 of 3 · slice 0 of 2" in str(view.border_title)

    async def test_a_core_without_slices_says_so(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "C", "C")
            view, text = app.query_one(LmemMap), app.export_screenshot().replace("&#160;", " ")
            assert "core 2 of 3 · no slice" in str(view.border_title)
            assert "core 2 runs nothing of this group: its slices run on other cores" in text
            assert "free memory" in str(app.query_one(BufferPanel).border_title)
            # AND keys find nothing to move to, while the group is still explained
            await settled(pilot, "right", "down", "plus", "greater_than_sign", "o", "y", "home", "slash")
            assert view.selected == -1
            assert app.query_one(WhyPanel).line_count()

    async def test_one_core_has_no_other(self) -> None:
        app = PaneApp(())
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "C")
            assert "core" not in str(app.query_one(LmemMap).border_title)
            assert any("one core" in note.message for note in app._notifications)

    @pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
    def test_it_looks(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(PaneApp(), terminal_size=size, press=["C", "right", "down"])


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A block for two cores, its last group cut into slices."""
    path = tmp_path_factory.mktemp("cores") / "config.json"
    path.write_text(json.dumps(SMALL))
    options = {"quantize": "bf16", "seq_length": 1024, "history": False, "chip_name": "bm1688", "cores": 2}
    found = Session.open(path, options)
    found.compile()
    return found


@pytest.fixture
def opened(capsys: pytest.CaptureFixture[str], session: Session, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cli, "_open", lambda model, options: session)
    return runner(capsys)


def sliced_group(opened: Any) -> dict[str, Any]:
    """The row of the group that both cores run."""
    found = checked("memory", opened("memory", "MODEL", "-m", "block_0", "--json")[1])
    return next(row for row in found["groups"] if row["cores"][1]["slices"])


def test_json_of_a_core(opened: Any) -> None:
    group = sliced_group(opened)
    code, out, _ = opened("memory", "MODEL", "-m", "block_0", "--core", "1", "--json")
    found = checked("memory", out)
    row = found["groups"][group["group"]]
    assert (code, row["core"], row["cores"]) == (0, 1, group["cores"])
    assert {row["group"] for row in found["lmem"]} == {group["group"]}


@pytest.mark.parametrize("core", [0, 1])
def test_text_of_a_core(opened: Any, core: int) -> None:
    group = sliced_group(opened)
    given = ("--core", str(core)) if core else ()
    code, out, _ = opened("memory", "MODEL", "-m", "block_0", "-g", str(group["group"]), *given)
    (first, count), slices = group["cores"][core]["slices"][0], group["secs"][1]
    # THEN the title says whose map it is, the pipeline runs the core's slices, and both cores are listed
    assert code == 0
    assert f"core {core} of 2 · slices {first}..{first + count - 1} of {slices}" in out
    computed = next(line for line in out.splitlines() if line.startswith(" compute "))
    assert computed.replace("slice ", "").split()[1:] == ["·", *map(str, range(first, first + count)), "·"]
    assert "core 0: slices" in out
    assert "core 1: slices" in out


def test_text_of_an_idle_core(opened: Any) -> None:
    code, out, _ = opened("memory", "MODEL", "-m", "block_0", "-g", "0", "--core", "1")
    assert code == 0
    assert "core 1 of 2 · no slice · other cores run it" in " ".join(out.split())


@pytest.mark.parametrize("core", [0, 1])
def test_pictures_of_a_core(opened: Any, tmp_path: Path, core: int) -> None:
    group = sliced_group(opened)
    path = tmp_path / "group.svg"
    given = ("-g", str(group["group"]), "--core", str(core), "--svg", path, "--png", tmp_path / "group.png")
    code, _, _ = opened("memory", "MODEL", "-m", "block_0", *given)
    svg = path.read_text()
    (first, count), slices = group["cores"][core]["slices"][0], group["secs"][1]
    assert code == 0
    assert f"core {core} of 2 · slices {first}..{first + count - 1} of {slices}" in svg
    assert f"pipeline step 2: compute slice {first}" in svg
    assert f"compute slice {first - 1}<" not in svg
    assert f"compute slice {first + count}<" not in svg


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", "block_0", "--core", "2"), "there is no core 2: this program is compiled for cores 0 to 1"),
        (("--core", "1"), "--core is about one module: give --module NAME too"),
        (("-m", "block_0", "--core", "1", "--svg", "x.svg"), "give --group K too"),
        (
            ("-m", "block_0", "-g", "0", "--core", "1", "--svg", "x.svg"),
            "core 1 runs nothing of layer group 0: core 0 runs all of it",
        ),
    ],
)
def test_mistakes_about_cores(
    opened: Any, arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = opened("memory", "MODEL", *arguments)
    assert (code, out) == (cli.MISTAKE, "")
    assert message in " ".join(err.split())
    assert not list(tmp_path.glob("x.*"))
