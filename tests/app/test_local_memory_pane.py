"""The local-memory pane: cursor, slices, zoom, groups, explanation; how it looks at three sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from driving import settled
from lmem_cases import EXPLANATION, INDEX, OPS, PLAN, REPORT, with_buffer
from textual.app import App, ComposeResult

from app.theme import THEMES
from app.widgets.group_panel import BufferPanel, GroupList, LocalMemoryPane, buffer_lines
from app.widgets.lines import plain
from app.widgets.lmem_axis import Zoom, columns
from app.widgets.lmem_canvas import View
from app.widgets.lmem_facts import GroupFacts
from app.widgets.lmem_map import LmemMap
from app.widgets.step_lanes import StepLanes, lane_lines
from app.widgets.why import WhyPanel, attempt_lines, why_lines
from engine.group_cores import price_items
from engine.passes.layer_group.plan import Attempt, LayerGroupReport, Secs
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
SIZES = [(80, 22), (120, 38), (200, 58)]


class PaneApp(App[None]):
    """The pane alone, as large as the screen leaves it."""

    def __init__(self, report: LayerGroupReport = REPORT, theme: str = THEMES[0].name) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self.theme = theme
        self.report = report
        self.asked: list[LocalMemoryPane.OpAsked] = []
        self.shown: list[int] = []

    def compose(self) -> ComposeResult:
        yield LocalMemoryPane(self.report, OPS, CHIP, module="block_0")

    def on_mount(self) -> None:
        self.query_one(LmemMap).focus()

    def on_local_memory_pane_op_asked(self, event: LocalMemoryPane.OpAsked) -> None:
        self.asked.append(event)

    def on_local_memory_pane_group_selected(self, event: LocalMemoryPane.GroupSelected) -> None:
        self.shown.append(event.number)


TWO_GROUPS = LayerGroupReport((PLAN, replace(PLAN, secs=Secs(c=2), cycles=1)), (EXPLANATION,), {4: 100})


class TestCursor:
    async def test_arrows_move_by_step_and_by_buffer(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot)
            view = app.query_one(LmemMap)
            assert (view.selected, view.step) == (INDEX["o_proj weight"], 0)
            # WHEN down THEN the next buffer by address that is live in the step
            await settled(pilot, "down")
            assert view.selected == INDEX["attention"]
            await settled(pilot, "down")
            assert view.selected == INDEX["o_proj"]
            # WHEN right to a step where it is dead THEN the nearest buffer there
            await settled(pilot, "right", "right")
            assert view.step == 2
            assert view.selected == INDEX["scratch"]
            # AND the ends hold
            await settled(pilot, "right", "right", "end")
            assert view.step == 2
            await settled(pilot, "home")
            assert view.step == 0

    async def test_the_side_panel_and_the_lanes_follow(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "right", "down", "down", "down", "down")
            panel, lanes = app.query_one(BufferPanel), app.query_one(StepLanes)
            assert str(panel.border_title) == "activation %32 · attention_residual"
            assert lanes.view.step == 1

    async def test_lanes_move_the_maps_step(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot)
            app.query_one(StepLanes).focus()
            await settled(pilot, "right", "right")
            assert app.query_one(LmemMap).step == 2

    async def test_a_click_takes_the_buffer_under_the_mouse_and_a_second_opens_it(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot)
            view = app.query_one(LmemMap)
            canvas = view.canvas()
            assert canvas is not None
            rows = canvas.buffer_rows(INDEX["residual"])
            assert rows is not None
            spot = (canvas.edges[2] + 4, rows[0] + len(view.pinned()) + 1)
            await pilot.click(LmemMap, offset=spot)
            assert (view.selected, view.step) == (INDEX["residual"], 2)
            await pilot.click(LmemMap, offset=spot)
            await pilot.pause()
            assert [event.op.name for event in app.asked] == ["tpu.Add"]

    async def test_a_click_on_the_map_takes_what_is_there_and_no_line_of_a_list(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot)
            view = app.query_one(LmemMap)
            canvas = view.canvas()
            assert canvas is not None
            # GIVEN rows whose number is that of another buffer than the one that lies there
            x = canvas.edges[1] + 4
            rows = [y for y in range(len(PLAN.buffers)) if canvas.owners[y][x] not in (y, -1)]
            assert rows
            for y in rows:
                # WHEN such a row is clicked THEN the cursor is on the buffer under the mouse
                await pilot.click(LmemMap, offset=(x, y + len(view.pinned()) + 1))
                await pilot.pause()
                assert (view.selected, view.step) == (canvas.owners[y][x], 1)

    async def test_a_click_on_the_lanes_takes_the_step_and_no_lane(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot)
            lanes, view = app.query_one(StepLanes), app.query_one(LmemMap)
            canvas = view.canvas()
            assert canvas is not None
            for y in (1, 2, 3):
                await pilot.click(StepLanes, offset=(canvas.edges[2] + 4, y))
                await pilot.pause()
                assert (view.step, lanes.cursor) == (2, 0)

    async def test_search_and_go_to(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot)
            view = app.query_one(LmemMap)
            assert view.seek("gamma") == INDEX["gamma"]
            assert view.selected == INDEX["gamma"]
            assert view.locate("%33") == INDEX["norm"]
            view.locate("2")
            assert view.step == 1
            assert view.seek("nothing like it") is None

    async def test_op_in_ir_names_the_maker(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "o")
            assert [(event.record, event.op.name) for event in app.asked] == [(3, "top.Weight")]


class TestScalesAndSlices:
    async def test_zoom_from_all_banks_to_one(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot)
            view = app.query_one(LmemMap)
            assert view.zoom is Zoom.USED
            await settled(pilot, "minus", "minus")
            assert view.zoom is Zoom.WHOLE
            await settled(pilot, "plus", "plus", "plus")
            assert view.zoom is Zoom.BANK
            # WHEN another buffer is chosen THEN its bank is shown; PgDn goes on
            await settled(pilot, "down")
            assert view.bank == 5
            await settled(pilot, "pagedown")
            assert view.bank == 6

    async def test_pipeline_steps_and_back_to_the_loop(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "greater_than_sign", "greater_than_sign")
            view = app.query_one(LmemMap)
            assert view.pipeline_step == 1
            assert "loads 1, computes 0" in str(view.border_title)
            assert app.query_one(StepLanes).view.pipeline_step == 1
            await settled(pilot, *["greater_than_sign"] * 5)
            assert view.pipeline_step == 3
            await settled(pilot, *["less_than_sign"] * 6)
            assert view.pipeline_step is None


class TestGroups:
    async def test_g_goes_around_and_the_list_follows(self) -> None:
        app = PaneApp(TWO_GROUPS)
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "g")
            assert app.query_one(GroupList).key == 1
            await settled(pilot, "g", "G", "G")
            assert app.query_one(LocalMemoryPane).number == 0
            assert app.shown == [0, 1, 0, 1, 0]

    async def test_the_list_chooses_a_group(self) -> None:
        app = PaneApp(TWO_GROUPS)
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "L", "down")
            assert app.query_one(LocalMemoryPane).number == 1
            await settled(pilot, "enter")
            assert app.query_one(LmemMap).has_focus

    async def test_why_on_and_off_at_80_columns(self) -> None:
        app = PaneApp()
        async with app.run_test(size=(80, 22)) as pilot:
            await settled(pilot)
            why, buffer = app.query_one(WhyPanel), app.query_one(BufferPanel)
            assert buffer.display
            assert not why.display
            await settled(pilot, "x")
            assert why.has_focus
            assert not buffer.display
            await settled(pilot, "x")
            assert app.query_one(LmemMap).has_focus
            assert buffer.display

    async def test_a_module_without_groups(self) -> None:
        app = PaneApp(LayerGroupReport((), (), {}))
        async with app.run_test(size=(120, 38)) as pilot:
            await settled(pilot, "right", "down", "plus", "greater_than_sign", "g", "x", "x", "o", "y")
            assert app.query_one(LmemMap).selected == -1
            assert "no layer group" in app.export_screenshot().replace("&#160;", " ")


class TestTexts:
    def test_the_buffer_panel_names_everything(self) -> None:
        facts = GroupFacts(PLAN, OPS, CHIP)
        text = "\n".join(map(plain, buffer_lines(facts, View(INDEX["residual"], 2, 1), 80)))
        for part in (
            "tpu.Add %32",
            "model.layers.{i}.attention_residual",
            "147,456 · bank 9",
            "12,288 per lane = 12 KiB",
            "step 2 → 3 of 3",
            "0 of 2: c 0..255 of 512, h 0..1535",
            "Add %32, step 2",
            "RMSNorm %33, step 3",
            "store to DDR, step 3",
        ):
            assert part in text

    def test_a_weights_panel_names_the_checkpoint_tensor_and_that_it_is_held(self) -> None:
        facts = GroupFacts(PLAN, OPS, CHIP)
        text = "\n".join(map(plain, buffer_lines(facts, View(INDEX["o_proj weight"], 0), 80)))
        assert "model.layers.{i}.self_attn.o_proj.weight" in text
        assert "loaded once for all slices" in text

    def test_problems_come_first(self) -> None:
        facts = GroupFacts(with_buffer("norm", address=255 * 1024), OPS, CHIP)
        lines = buffer_lines(facts, View(INDEX["norm"], 2), 80)
        assert plain(lines[0]).startswith("problem  ends 11,264 B behind")

    def test_the_explanation_names_bytes_needed_and_available(self) -> None:
        text = "\n".join(map(plain, why_lines(EXPLANATION, PLAN, 90)))
        for part in (
            "FAttention before it has no kernel",
            "295.5 of 256 KiB",
            "39.5 KiB (40,448 bytes) more are live in one step",
            "179 of 256 KiB  322 kc",
            "joined 322 kc, apart 357 kc: 35.3 kc less joined",
            "cannot be joined, apart 331 kc",
        ):
            assert part in text

    @pytest.mark.parametrize("width", [30, 38, 60, 120])
    def test_the_explanation_keeps_to_its_width(self, width: int) -> None:
        for attempt in EXPLANATION.attempts:
            assert all(len(plain(line)) <= width for line in attempt_lines(attempt, True, width))

    def test_a_slicing_without_bytes_has_no_bar(self) -> None:
        attempt = Attempt(Secs(h=3), "time step: two ops read other slices", 0, CHIP.lmem_bytes, None)
        first, second = attempt_lines(attempt, False, 80)
        assert plain(first).strip() == "✗ hsecs 3"
        assert "time step" in plain(second)

    def test_lanes_give_cycles_bound_and_moves(self) -> None:
        facts = GroupFacts(PLAN, OPS, CHIP, pricer=lambda: price_items(PLAN, OPS, CHIP))
        edges = columns(3, 110)
        loop = [plain(line) for line in lane_lines(facts, edges, View())]
        assert {len(line) for line in loop} == {110}
        assert "34.0 kc" in loop[0]
        assert "TIU, DMA waits 39.8 kc" in loop[2]
        assert "159.2 KiB" in loop[3]
        assert "↓%1 ↓%14 ↑%33" in loop[5]
        # WHEN the pipeline is in its last step THEN only the last store is left
        last = [plain(line) for line in lane_lines(facts, edges, View(pipeline_step=3))]
        assert last[5].split()[1:] == ["↑%33"]
        assert not last[1].replace("TIU", "").strip()


class TestLooks:
    @pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
    def test_the_loop(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(PaneApp(), terminal_size=size, press=["right", "down"])

    @pytest.mark.parametrize("size", SIZES[:2], ids=lambda size: f"{size[0]}x{size[1]}")
    def test_a_pipeline_step(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(PaneApp(), terminal_size=size, press=["greater_than_sign", "greater_than_sign"])

    @pytest.mark.parametrize("size", SIZES[:2], ids=lambda size: f"{size[0]}x{size[1]}")
    def test_all_banks_to_scale(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(PaneApp(), terminal_size=size, press=["minus"])

    def test_why_at_80_columns(self, snap_compare: Any) -> None:
        assert snap_compare(PaneApp(), terminal_size=SIZES[0], press=["x"])

    def test_light(self, snap_compare: Any) -> None:
        assert snap_compare(PaneApp(theme=THEMES[1].name), terminal_size=SIZES[1])

    def test_misplaced_buffers(self, snap_compare: Any) -> None:
        report = replace(REPORT, groups=(with_buffer("norm", address=255 * 1024),))
        assert snap_compare(PaneApp(report), terminal_size=SIZES[1])
