"""Local memory on the memory screen: keys that come early, the way back, layout of panels that were hidden."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import settled
from lmem_cases import EXPLANATION, INDEX, OPS, PLAN, REPORT
from textual.app import App, ComposeResult

from app.explorer import Explorer
from app.screens.memory import BEFORE_GROUPS, GROUPED, MemoryScreen
from app.theme import THEMES
from app.widgets.group_panel import BufferPanel, GroupList, LocalMemoryPane, buffer_lines
from app.widgets.lines import plain
from app.widgets.lmem_axis import columns
from app.widgets.lmem_canvas import View
from app.widgets.lmem_facts import GroupFacts, facts_of
from app.widgets.lmem_map import LmemMap, map_title
from app.widgets.step_lanes import StepLanes, lane_lines, lanes_title
from app.widgets.why import Gain, WhyPanel, why_lines
from app.workspace import Workspace
from engine.group_cores import CoreShare
from engine.passes.layer_group.plan import LayerGroupReport, Secs
from engine.snapshot import Snapshot
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
FACTS = GroupFacts(PLAN, OPS, CHIP, module="block_cache_0")
TWO_GROUPS = LayerGroupReport((PLAN, replace(PLAN, secs=Secs(c=2), cycles=1)), (EXPLANATION,), {4: 100})


class PaneApp(App[None]):
    """The pane, hidden at first as on the memory screen."""

    def __init__(self, report: LayerGroupReport = REPORT, shown: bool = True) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self.theme = THEMES[0].name
        self.report, self.shown = report, shown

    def compose(self) -> ComposeResult:
        pane = LocalMemoryPane()
        pane.display = self.shown
        yield pane

    def on_mount(self) -> None:
        self.query_one(LocalMemoryPane).show_report(self.report, OPS, CHIP, "block_0")
        self.query_one(LmemMap).focus()


# -- layout --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40)])
async def test_panels_are_laid_out_for_the_room_that_they_have(size: tuple[int, int]) -> None:
    # GIVEN a pane that was filled while it was hidden
    app = PaneApp(shown=False)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        pane, details, lanes = (
            app.query_one(LocalMemoryPane),
            app.query_one(BufferPanel),
            app.query_one(StepLanes),
        )
        for panel in pane.query("*"):
            panel.refresh()
        await pilot.pause()
        # WHEN it is shown, and something asks for a size before the next layout, which then sends no resize
        pane.display = True
        assert min(details.inner_width, lanes.inner_width) > 0
        await pilot.pause()
        await pilot.pause()
        # THEN every text is wrapped for the panel as it is
        assert pane.has_class("-narrow") == (size[0] < 100)
        assert (
            lanes.line(0) == lane_lines(FACTS, columns(3, app.query_one(LmemMap).inner_width), View(1, 0))[0]
        )
        if size[0] >= 100:
            wide = buffer_lines(FACTS, View(1, 0), details.inner_width)
            assert [plain(details.line(i)).strip() for i in range(details.line_count())] == [
                plain(line).strip() for line in wide
            ]
            why = app.query_one(WhyPanel)
            longest = max(len(plain(why.line(i))) for i in range(why.line_count()))
            assert longest > why.inner_width // 2


# -- words ---------------------------------------------------------------------------------------------------------


def test_the_verdict_comes_first_and_bytes_are_in_kib() -> None:
    told = replace(EXPLANATION, ends="with 1 slice it needs 598016 of 262144 bytes a lane")
    lines = [plain(line) for line in why_lines(told, PLAN, 90, Gain(3, 171_026, 205_657))]
    assert lines[0] == "one group of 3 ops takes 171 kc; run one by one 206 kc: gains 17 %"
    assert lines[1].startswith("gains    34,631 of the 205,657 cycles")
    assert any("584 KiB of 256 KiB (598,016 of 262,144 bytes)" in line for line in lines)
    narrow = " ".join(" ".join(map(plain, why_lines(told, PLAN, 40, None))).split())
    assert "needs 584 KiB of 256 KiB a lane" in narrow
    assert "598" not in narrow


async def test_the_panel_shows_what_the_group_gains() -> None:
    app = PaneApp()
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot)
        why = app.query_one(WhyPanel)
        assert plain(why.line(0)).strip().startswith("one group of 3 ops takes 322 kc; run one by one ")


@pytest.mark.parametrize("width", range(40, 120, 7))
def test_a_title_keeps_the_highest_address_and_the_core(width: int) -> None:
    shares = ((CoreShare(0, 2, 2, 3, ((0, 1),)), CoreShare(1, 2, 2, 3, ((1, 1),))),)
    shared = facts_of(REPORT, OPS, CHIP, "block_cache_0", shares, 1)[0]
    for facts in (FACTS, shared):
        title = map_title(facts, None, width)
        assert len(title) <= width
        assert "179" in title
        assert ("core 1 of 2" in title) == (facts is shared)


def test_a_title_cuts_the_ops_first() -> None:
    assert map_title(FACTS, None, 110).endswith("highest address 179 of 256 KiB · MatMul + Add + RMSNorm")
    assert map_title(FACTS, None, 95).endswith("highest address 179 of 256 KiB · MatMul + 2 more")
    assert map_title(FACTS, None, 52) == "block_cache_0 · group 0 · csecs 2 · highest 179 KiB"


@pytest.mark.parametrize("width", range(20, 100, 9))
def test_the_lanes_title_is_never_cut(width: int) -> None:
    title = lanes_title(FACTS, None, width)
    assert len(title) <= width
    assert "322 kc" in title


def test_live_bytes_have_their_unit_however_narrow_the_step() -> None:
    for width in range(30, 130):
        lane = lane_lines(FACTS, columns(3, width), View())[3]
        label, *cells = plain(lane).split()
        assert (label, cells[0]) == ("bytes", "live")
        for number, unit in zip(cells[1:], [*cells[2:], ""], strict=True):
            assert not number.replace(".", "").isdigit() or unit.startswith("KiB")


async def test_the_list_keeps_the_highest_address_and_names_slices_as_the_map_does() -> None:
    app = PaneApp(TWO_GROUPS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        groups = app.query_one(GroupList)
        assert "highest" in plain(groups.pinned()[0])
        assert all(plain(groups.line(row)).endswith("179.0 KiB") for row in (0, 1))
        assert "csecs 2" in plain(groups.line(0))
        assert "csecs 2" in str(app.query_one(LmemMap).border_title)
        assert any("csecs 2" in plain(line) for line in why_lines(EXPLANATION, PLAN, 40))


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", ["", "x", "L"])
async def test_g_is_the_next_group_in_every_panel(panel: str) -> None:
    app = PaneApp(TWO_GROUPS)
    async with app.run_test(size=(120, 40)) as pilot:
        pane = app.query_one(LocalMemoryPane)
        await settled(pilot, *panel, "g")
        assert pane.number == 1
        assert str(app.query_one(WhyPanel).border_title) == "why group 1?"
        await settled(pilot, "G")
        assert pane.number == 0


async def test_home_and_end_stay_the_first_and_the_last_row() -> None:
    app = PaneApp(TWO_GROUPS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot, "L", "end")
        assert app.query_one(GroupList).key == 1
        await settled(pilot, "home")
        assert app.query_one(GroupList).key == 0


def grouped(work: Workspace, monkeypatch: pytest.MonkeyPatch, ready: list[bool]) -> None:
    """Give the selected module two layer groups once `ready` says so."""

    def snapshot(self: Workspace, name: str = "") -> Snapshot | None:
        if name == GROUPED:
            return Snapshot("m", name, "", OPS, {}, True, 0.0, (), TWO_GROUPS) if ready[0] else None
        if name == BEFORE_GROUPS:
            return Snapshot("m", name, "", OPS, {}, True, 0.0, (), None) if ready[0] else None
        return original(self, name)

    original = Workspace.snapshot
    monkeypatch.setattr(Workspace, "snapshot", snapshot)


async def test_esc_goes_to_the_map_then_to_ddr_then_to_the_explorer(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped(work, monkeypatch, [True])
    app = Explorer(work)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot, "2", "m")
        screen = app.screen
        assert isinstance(screen, MemoryScreen)
        for key in "xL":
            await settled(pilot, key)
            assert not screen.query_one(LmemMap).has_focus
            await settled(pilot, "escape")
            assert screen.query_one(LmemMap).has_focus
        await settled(pilot, "escape")
        assert app.screen is screen
        assert not screen.has_class("-local")
        await settled(pilot, "escape")
        assert app.screen is not screen


async def test_local_memory_comes_as_soon_as_the_groups_are_there(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a module that has not come to its groups yet
    ready = [False]
    grouped(work, monkeypatch, ready)
    work.running, work.finished = True, set()
    app = Explorer(work)
    async with app.run_test(size=(100, 30)) as pilot:
        # WHEN both keys come at once
        app.simulate_key("2")
        app.simulate_key("m")
        await settled(pilot)
        screen = app.screen
        assert isinstance(screen, MemoryScreen)
        # THEN the second is not lost, and does not say that there are no groups
        assert not screen.has_class("-local")
        assert any("when it has layer groups" in note.message for note in app._notifications)
        ready[0] = True
        screen.progressed(True)
        await settled(pilot)
        assert screen.has_class("-local")
        assert screen.query_one(LmemMap).has_focus
        assert screen.query_one(LmemMap).selected == INDEX["o_proj weight"]


async def test_a_wish_for_local_memory_ends_with_the_screen(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = [False]
    grouped(work, monkeypatch, ready)
    work.running, work.finished = True, set()
    app = Explorer(work)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot, "2", "m", "escape")
        ready[0] = True
        await settled(pilot, "2")
        assert not app.screen.has_class("-local")
