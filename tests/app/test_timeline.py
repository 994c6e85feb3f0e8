"""The timeline on the simulate screen: opening, cursor, zoom, search, the way to the op; the filter of the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import driving
import pytest
from compiled import compile_here
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from tiny import write_tiny

from app.explorer import Explorer
from app.screens.base import WorkScreen
from app.screens.explore import ExploreScreen
from app.screens.simulate import OpTable, SimulateScreen
from app.theme import THEMES
from app.widgets.ask import AskBar
from app.widgets.lines import plain
from app.widgets.timeline import TimelineView, plan_rows
from app.widgets.timeline_facts import TimelineFacts, cycle_of, name_parts
from app.workspace import Workspace
from engine.compiler import Compilation
from engine.lanes import module_lanes
from engine.stages import Stage
from engine.tpu.isa import Engine

SIZES = [(80, 24), (100, 30), (120, 40), (200, 60)]
BLOCK = "block_cache_0"


until = partial(driving.until, seconds=10)


@asynccontextmanager
async def simulated(
    work: Workspace, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[None], SimulateScreen]]:
    """The simulate screen with its table filled and the cursor on the attention of the decode block."""
    async with Explorer(work).run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, SimulateScreen)
        await until(pilot, lambda: screen.cost is not None)
        assert screen.cost is not None
        op = next(op for op in screen.cost.ops if op.module == BLOCK and op.name == "FAttention")
        screen.query_one(OpTable).move_to_key((op.module, op.index), announce=True)
        await pilot.pause()
        yield pilot, screen


@asynccontextmanager
async def timed(
    work: Workspace, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[None], TimelineView, TimelineFacts]]:
    """The timeline of the decode block."""
    async with simulated(work, size) as (pilot, screen):
        await pilot.press("t")
        view = screen.query_one(TimelineView)
        await until(pilot, lambda: view.facts is not None)
        assert view.facts is not None
        await pilot.pause()
        yield pilot, view, view.facts


def text_of(view: TimelineView) -> str:
    return "\n".join(view.render_line(y).text for y in range(view.size.height))


class TestOpening:
    @pytest.mark.parametrize("size", SIZES, ids=str)
    async def test_t_shows_the_module_of_the_op_with_the_cursor_on_it(
        self, work: Workspace, size: tuple[int, int]
    ) -> None:
        async with timed(work, size) as (_, view, facts):
            lanes = facts.lanes
            assert view.has_focus
            assert lanes.name == BLOCK
            assert lanes.records[int(lanes.op[view.cursor])].kind == "FAttention"
            assert (view.start, view.end) == (0, lanes.cycles)
            text = text_of(view)
            for word in ("GDMA", "TIU", "op ", "view", "cycles", "waits", "B/c", "self_attn.attention"):
                assert word in text, word
            # nothing is cut off at the right but lines that say so
            assert len(text.splitlines()[-1]) == view.inner_width
            # the table stays where there is room for both
            assert view.screen.query_one(OpTable).display == (size[1] >= 45)

    async def test_t_and_esc_go_back_to_the_table(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, _):
            table = view.screen.query_one(OpTable)
            for key in ("t", "escape"):
                await pilot.press(key)
                await pilot.pause()
                assert table.has_focus
                assert not view.display
                await pilot.press("t")
                await pilot.pause()
                assert view.has_focus

    async def test_the_timeline_maximises_and_esc_puts_it_back_first(self, work: Workspace) -> None:
        async with timed(work, (200, 60)) as (pilot, view, _):
            await pilot.press("z")
            await pilot.pause()
            assert isinstance(view.screen, WorkScreen)
            assert view.screen.zoomed is view
            await pilot.press("escape")
            assert view.screen.zoomed is None
            assert view.display

    async def test_the_table_beside_it_chooses_what_is_shown(self, work: Workspace) -> None:
        async with timed(work, (200, 60)) as (pilot, view, _):
            table = view.screen.query_one(OpTable)
            table.focus()
            table.move_to(next(i for i, row in enumerate(table.rows) if row.key[0] == "lm_head"))  # type: ignore[index]
            await until(pilot, lambda: view.facts is not None and view.facts.lanes.name == "lm_head")

    async def test_stages_and_modules_are_followed(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, _):
            screen = view.screen
            assert isinstance(screen, SimulateScreen)
            await pilot.press("right_curly_bracket")
            await until(pilot, lambda: view.facts is not None and view.facts.lanes.name != BLOCK)
            await pilot.press("right_square_bracket")
            assert screen.stage is Stage.PREFILL
            stages = {spec.name for spec, _ in screen.cost.modules} if screen.cost else set()
            await until(pilot, lambda: view.facts is not None and view.facts.lanes.name in stages)

    async def test_another_program_closes_it(self, work: Workspace, sample: Compilation) -> None:
        async with timed(work) as (pilot, view, _):
            screen = view.screen
            assert isinstance(screen, SimulateScreen)
            screen.attach(Workspace(sample, "again", seconds=1.0))
            await pilot.pause()
            assert not screen.has_class("-timeline")

    async def test_what_cannot_be_computed_is_said(
        self, work: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> None:
            raise ValueError("no such luck")

        monkeypatch.setattr("engine.lanes.module_lanes", fails)
        async with simulated(work) as (pilot, screen):
            await pilot.press("t")
            view = screen.query_one(TimelineView)
            await until(pilot, lambda: "no such luck" in view.empty)
            # AND keys have nothing to do
            await pilot.press(
                "l", "L", "j", "plus", "minus", "equals_sign", "x", "w", "b", "g", "G", "y", "pagedown"
            )
            await pilot.press("slash", *"abc", "enter", "colon", *"3", "enter")


class TestCursor:
    async def test_by_instruction_by_op_and_to_the_ends(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            lanes = facts.lanes
            await pilot.press("g")
            loads = lanes.rows(0, Engine.GDMA).tolist()
            assert view.cursor == loads[0]
            await pilot.press("right", "l", "left")
            assert view.cursor == loads[1]
            await pilot.press("L")
            first = next(i for i in loads if lanes.op[i] != lanes.op[loads[0]])
            assert view.cursor == first
            await pilot.press("shift+right", "H")
            assert view.cursor == first
            await pilot.press("shift+left")
            assert view.cursor == loads[0]
            await pilot.press("end")
            assert view.cursor == loads[-1]
            await pilot.press("right")
            assert view.cursor == loads[-1]

    async def test_up_and_down_stay_at_the_time(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            lanes = facts.lanes
            index = next(i for i in range(len(lanes)) if lanes.engine[i] == Engine.TIU and lanes.idle[i])
            view.move_to(index)
            await pilot.press("k")
            assert lanes.engine[view.cursor] == Engine.GDMA
            middle = (lanes.start[index] + lanes.end[index]) / 2
            running = [i for i in lanes.rows(0, Engine.GDMA) if lanes.start[i] <= middle < lanes.end[i]]
            assert not running or view.cursor in running
            await pilot.press("up")
            assert lanes.engine[view.cursor] == Engine.GDMA
            await pilot.press("down")
            assert lanes.engine[view.cursor] == Engine.TIU

    async def test_what_was_waited_for_and_the_longest_wait(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            lanes = facts.lanes
            tiu = lanes.rows(0, Engine.TIU)
            view.move_to(int(tiu[-1]))
            await pilot.press("b")
            # after the last wait: the longest of all
            assert lanes.idle[view.cursor] == lanes.idle[tiu].max()
            assert "cycles idle" in text_of(view)
            needs = int(lanes.needs[view.cursor])
            await pilot.press("w")
            assert view.cursor == needs

    async def test_details_say_everything(self, work: Workspace) -> None:
        async with timed(work) as (_, view, facts):
            lanes = facts.lanes
            index = next(i for i in range(len(lanes)) if "q_proj.weight" in facts.tensor_label(i))
            view.move_to(index)
            lines = [plain(line) for line in facts.details(index)]
            assert lines[0].startswith("GDMA    TENSOR load")
            assert "tpu.A16MatMul" in lines[1]
            assert "self_attn.q_proj" in lines[1]
            assert f"self_attn.q_proj.weight  {lanes.moved(index).value}" in lines[2]  # type: ignore[union-attr]
            assert f"{int(lanes.nbytes[index]):,} bytes" in lines[2]
            assert f"{int(lanes.start[index]):,} .. {int(lanes.end[index]):,}" in lines[3]
            assert f"{float(lanes.rate[index]):.1f} B/c" in lines[3]
            assert all(line in text_of(view) for line in lines)

    async def test_copy(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            await pilot.press("y")
            assert pilot.app.clipboard == "\n".join(
                plain(line).rstrip() for line in facts.details(view.cursor)
            )

    @pytest.mark.parametrize("key", ["o", "enter"])
    async def test_the_op_opens_in_the_explorer(self, work: Workspace, key: str) -> None:
        async with timed(work) as (pilot, view, facts):
            await pilot.press("g", "L")
            record = facts.lanes.records[int(facts.lanes.op[view.cursor])]
            await pilot.press(key)
            await until(pilot, lambda: isinstance(pilot.app.screen, ExploreScreen))
            await pilot.pause()
            screen = pilot.app.screen
            assert isinstance(screen, ExploreScreen)
            here = screen.ir.op()
            assert here is not None
            assert here[1] == record


class TestWindow:
    async def test_zoom_keeps_the_cursor_where_it_is(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            lanes = facts.lanes
            for _ in range(4):
                middle = (int(lanes.start[view.cursor]) + int(lanes.end[view.cursor])) / 2
                before = view.window
                await pilot.press("plus")
                assert view.end - view.start == pytest.approx((before.end - before.start) / 2)
                if view.start > 0 and view.end < lanes.cycles:
                    assert view.window.column(middle) == pytest.approx(before.column(middle), abs=0.01)
            await pilot.press("minus")
            await pilot.press("equals_sign")
            assert (view.start, view.end) == (0, lanes.cycles)
            # as close as it gets, and as far
            await pilot.press(*["plus"] * 40)
            assert view.end - view.start == pytest.approx(16)
            await pilot.press(*["minus"] * 40)
            assert (view.start, view.end) == (0, lanes.cycles)

    async def test_the_window_follows_the_cursor(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            await pilot.press("g", *["plus"] * 5)
            for keys in (["G"], ["g"], ["L"], ["j"], ["pagedown"], ["ctrl+d"], ["pageup"], ["ctrl+u"]):
                await pilot.press(*keys)
                start, end = facts.lanes.start[view.cursor], facts.lanes.end[view.cursor]
                assert start < view.end, keys
                assert end > view.start, keys
                assert 0 <= view.start < view.end <= facts.lanes.cycles

    async def test_fit_op(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            await pilot.press("x")
            first, last = facts.op_window(view.cursor)
            assert view.start <= first
            assert last <= view.end
            assert view.end - view.start <= max(16, 1.2 * (last - first))

    async def test_mouse(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            lanes = facts.lanes
            rows = lanes.rows(0, Engine.GDMA)
            index = int(rows[lanes.length[rows].argmax()])
            column = view.window.column((int(lanes.start[index]) + int(lanes.end[index])) / 2)
            plan = view.plan()
            spot = (1 + view.names_width + int(column), 1 + plan.groups + 1)
            await pilot.click(TimelineView, offset=spot)
            assert view.cursor == index
            await pilot.click(TimelineView, offset=spot)
            await until(pilot, lambda: isinstance(pilot.app.screen, ExploreScreen))


class TestSearch:
    async def test_by_op_and_by_tensor(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            await pilot.press("g", "slash", *"gate_proj", "enter")
            assert "gate_proj" in facts.op_label(int(facts.lanes.op[view.cursor]))
            found = facts.matches("gate_proj").tolist()
            assert view.cursor == found[0]
            await pilot.press("n")
            assert view.cursor == found[1]
            await pilot.press("N", "N")
            assert view.cursor == found[-1]
            assert view.sought == "gate_proj"
            # esc forgets the marks, and then leaves
            await pilot.press("escape")
            assert (view.sought, view.display) == ("", True)
            await pilot.press("slash", *"history_k", "enter")
            assert view.facts is not None

    async def test_without_a_match_the_cursor_stays(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, _):
            before = view.cursor
            await pilot.press("slash", *"zzz", "enter")
            assert view.cursor == before

    async def test_go_to_a_cycle(self, work: Workspace) -> None:
        async with timed(work) as (pilot, view, facts):
            lanes = facts.lanes
            rows = lanes.rows(0, Engine.GDMA)
            wanted = int(rows[len(rows) // 2])
            await pilot.press("g", "colon", *str(int(lanes.start[wanted])), "enter")
            assert view.cursor == wanted

    def test_cycles_as_people_write_them(self) -> None:
        assert [cycle_of(text) for text in ("352100", "352,100", "352k", "1.2 Mc", "12 c")] == [
            352_100,
            352_100,
            352_000,
            1_200_000,
            12,
        ]
        assert [cycle_of(text) for text in ("gate", "", "1e999", "k")] == [None] * 4


class TestFilter:
    async def test_ops_with_a_text_are_kept(self, work: Workspace) -> None:
        async with simulated(work) as (pilot, screen):
            table = screen.query_one(OpTable)
            every = len(table.rows)
            await pilot.press("f", *"mlp")
            await pilot.pause()
            # while it is typed
            kept = len(table.rows)
            assert 0 < kept < every
            await pilot.press("enter")
            await pilot.pause()
            title = str(table.border_title)
            assert title.startswith(f"{kept} of {every} ops with 'mlp' by cycles")
            assert screen.cost is not None
            cycles = sum(op.cycles for op in screen.cost.ops if "mlp" in f"{op.label} {op.record.location}")
            assert f"{100 * cycles / screen.cost.cycles:.1f} % of the stage" in title
            assert table.has_focus
            # WHEN sorted THEN the filter stays; esc in the question changes nothing; an empty one shows all
            await pilot.press("s", "f", "x", "escape")
            await pilot.pause()
            assert len(table.rows) == kept
            screen.query_one(AskBar)
            await pilot.press("f", *["backspace"] * 5, "enter")
            await pilot.pause()
            assert len(table.rows) == every

    async def test_nothing_left(self, work: Workspace) -> None:
        async with simulated(work) as (pilot, screen):
            await pilot.press("f", *"zzz", "enter")
            await pilot.pause()
            table = screen.query_one(OpTable)
            assert not table.rows
            assert "'zzz'" in table.empty
            await pilot.press("t")
            assert not screen.has_class("-timeline")

    async def test_c_shows_the_curve(self, work: Workspace) -> None:
        async with simulated(work, (80, 24)) as (pilot, screen):
            plot = screen.query_one("#plot")
            assert not plot.display
            await pilot.press("c")
            await pilot.pause()
            assert plot.display


class TestRows:
    @pytest.mark.parametrize("cores", [1, 2, 8])
    @pytest.mark.parametrize("height", range(6, 60))
    @pytest.mark.parametrize("groups", [False, True])
    def test_rows_fit_the_height(self, height: int, cores: int, groups: bool) -> None:
        plan = plan_rows(height, cores, groups)
        used = plan.groups + 1 + plan.cores * (2 * plan.lane + plan.gap) + 2 + plan.rate
        used += plan.details + (1 if plan.details else 0) + plan.table
        assert used <= height
        assert 1 <= plan.cores <= cores

    def test_names_get_shorter(self) -> None:
        assert name_parts("self_attn.q_proj.weight") == ["self_attn.q_proj.weight", "q_proj"]
        assert name_parts("self_attn.q_proj.weight.scale")[-2:] == ["q_proj.scale", "scale"]
        assert name_parts("lm_head") == ["lm_head"]


class TimelineApp(App[None]):
    """The timeline alone."""

    def __init__(self, facts: TimelineFacts) -> None:
        super().__init__()
        for known in THEMES:
            self.register_theme(known)
        self.theme = THEMES[0].name
        self.facts = facts

    def compose(self) -> ComposeResult:
        yield TimelineView()

    def on_mount(self) -> None:
        view = self.query_one(TimelineView)
        view.styles.height = "1fr"
        view.show(self.facts)
        view.focus()


class TestCores:
    @pytest.fixture(scope="class")
    def facts(self, tmp_path_factory: pytest.TempPathFactory) -> TimelineFacts:
        path = write_tiny(tmp_path_factory.mktemp("cores") / "m", "llama", layers=1)
        options = {
            "chip_name": "bm1690",
            "cores": 8,
            "seq_length": 64,
            "quantize": "bf16",
            "decode_chunks": (),
        }
        return TimelineFacts(module_lanes(compile_here(path, ["block_0"], **options), "block_0"))

    async def test_every_core_has_two_lanes_and_the_cursors_is_in_view(self, facts: TimelineFacts) -> None:
        async with TimelineApp(facts).run_test(size=(80, 24)) as pilot:
            view = pilot.app.query_one(TimelineView)
            await pilot.pause()
            assert "GDMA 0" in text_of(view)
            seen = set()
            for _ in range(2 * facts.lanes.cores):
                name = facts.lane_name(facts.queue(view.cursor))
                assert f" {name} " in text_of(view)
                seen.add(name)
                await pilot.press("down")
            assert {"GDMA 7", "TIU 7"} <= seen
