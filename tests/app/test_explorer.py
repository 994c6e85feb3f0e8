"""The explorer driven by keys, on plain data: every screen, every key, and what each shows."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import driving
import pytest
from sample_program import sample_workspace, unfinished_workspace
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from app.actions import ACTIONS, SCREENS, of_scopes
from app.explorer import Explorer
from app.screens.base import WorkScreen
from app.screens.explore import ExploreScreen
from app.screens.generate import GenerateScreen
from app.screens.help import HelpScreen
from app.screens.memory import MemoryScreen
from app.screens.simulate import SimulateScreen
from app.theme import THEMES
from app.widgets.bars import KeyBar
from app.widgets.inspector import Inspector
from app.widgets.lines import LineView, plain
from app.widgets.lists import PassList
from app.widgets.memory_view import MemoryMap, MemoryTable
from app.widgets.module_tree import ModuleTree
from app.widgets.table import TableView
from app.workspace import Workspace
from engine.stages import Stage
from engine.tables import ir_text
from engine.tpu.isa import Arena

SIZE = (120, 40)
SMALL = (80, 24)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that write files write them here."""
    monkeypatch.chdir(tmp_path)


def shown(view: LineView) -> list[str]:
    """The text of all lines of a view."""
    return [plain(view.line(i)) for i in range(view.line_count())]


def explore(pilot: Pilot[None]) -> ExploreScreen:
    screen = pilot.app.screen
    assert isinstance(screen, ExploreScreen)
    return screen


async def settle(pilot: Pilot[None]) -> None:
    """Let jobs of the engine's thread come back."""
    for _ in range(3):
        await pilot.pause(0.02)


class TestExplore:
    async def test_first_screen_shows_the_decode_block_after_import(self, work: Workspace) -> None:
        # GIVEN a compiled program WHEN the explorer opens
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            # THEN modules stand by stage, and the IR of the decode block is shown
            modules = shown(explore(pilot).query_one(ModuleTree))
            assert next(m for m in modules if "▾" in m).split()[1] == "prefill"
            assert any("block_cache_0" in m and "×2" in m for m in modules)
            assert "block_cache_0 after import" in str(explore(pilot).ir.border_title)
            assert any("top.RMSNorm" in line for line in shown(explore(pilot).ir))

    async def test_brackets_step_through_the_passes(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            # WHEN stepping on three times and back once
            await pilot.press("right_square_bracket", "right_square_bracket", "right_square_bracket")
            assert work.pass_name == "address-assign"
            await pilot.press("left_square_bracket")
            # THEN pass list and IR follow
            assert work.pass_name == "convert-top-to-tpu"
            assert explore(pilot).query_one(PassList).key == "convert-top-to-tpu"
            assert any("tpu.A16MatMul" in line for line in shown(explore(pilot).ir))

    async def test_stepping_keeps_the_cursor_on_the_op(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            ir = explore(pilot).ir
            ir.move_to(ir.locate("FAttention") or 0)
            # WHEN the next pass that changes everything is shown
            await pilot.press("right_square_bracket", "right_square_bracket")
            # THEN the cursor is still on the attention
            here = ir.op()
            assert here is not None
            assert here[1].name == "tpu.FAttention"

    async def test_braces_step_through_the_modules_and_points_through_layers(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            # WHEN the next layer is chosen THEN the shared module shows that layer's names
            await pilot.press("full_stop")
            assert (work.module, work.layer) == ("block_cache_0", 1)
            assert "model.layers.1.input_layernorm.weight" in "\n".join(
                shown(explore(pilot).query_one(Inspector))
            )
            # AND the layer behind the last of a shared module is the last layer's own module
            await pilot.press("full_stop")
            assert (work.module, work.layer) == ("block_cache_2", 2)
            await pilot.press("right_curly_bracket")
            assert work.module == "lm_head"
            await pilot.press("left_curly_bracket", "left_curly_bracket")
            assert work.module == "block_cache_0"

    async def test_diff_aligns_ops_unified_and_side_by_side(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("right_square_bracket", "right_square_bracket", "d")
            lines = shown(explore(pilot).ir)
            # THEN the one MLP stands before the five ops that it became
            gone = next(i for i, line in enumerate(lines) if "top.MLP" in line)
            assert lines[gone].lstrip().startswith("−")
            came = [line for line in lines[gone + 1 : gone + 6] if line.lstrip().startswith("+")]
            assert len(came) == 5
            assert "+" in str(explore(pilot).ir.border_subtitle)
            # AND side by side a MatMul stands beside its A16MatMul
            await pilot.press("D")
            assert any("top.MatMul" in line and "tpu.A16MatMul" in line for line in shown(explore(pilot).ir))

    async def test_context_of_the_diff_grows_and_shrinks(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            # GIVEN the diff of a pass that changed nothing: everything is folded
            await pilot.press("right_square_bracket", "d", "minus", "minus", "minus")
            assert len(shown(explore(pilot).ir)) == 1
            assert "equal ops" in shown(explore(pilot).ir)[0]
            # WHEN the context is as large as it gets THEN all ops are shown
            await pilot.press(*["plus"] * 7)
            assert len(shown(explore(pilot).ir)) > 20

    async def test_a_marked_pass_starts_the_diff(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("m", *["right_square_bracket"] * 3, "d")
            assert "import → address-assign" in str(explore(pilot).ir.border_title)

    async def test_c_leaves_out_passes_that_changed_nothing(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("c")
            keys = [row.key for row in explore(pilot).query_one(PassList).rows]
            assert "top-canonicalize" not in keys
            assert "convert-top-to-tpu" in keys

    async def test_text_is_that_of_the_layer_in_the_title(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            # GIVEN layer 1 chosen on the KV screen, and the last pass
            await pilot.press("4")
            await settle(pilot)
            await pilot.press("j", "1")
            await settle(pilot)
            await pilot.press(*["right_square_bracket"] * 4)
            screen = explore(pilot)
            title = "block_cache_1 after codegen"
            # WHEN it is read folded THEN the head, what is copied and what a search finds are layer 1's
            assert title in str(screen.ir.border_title)
            assert "module @block_cache_1 " in shown(screen.ir)[0]
            copied = [screen.ir.copy_text(i) for i in range(screen.ir.line_count())]
            wanted = ir_text(work.compilation, "block_cache_1", "codegen").splitlines()
            assert {line.strip() for line in copied} <= {line.strip() for line in wanted}
            assert screen.ir.find("model.layers.1.mlp.act", 0, 1) is not None
            # AND the exact text is that which `ir` prints
            await pilot.press("r")
            assert title in str(screen.ir.border_title)
            assert [line[5:] for line in shown(screen.ir)] == wanted
            # AND so is it of another layer, and of the module of the last one
            await pilot.press("full_stop")
            wanted = ir_text(work.compilation, "block_cache_2", "codegen").splitlines()
            assert [line[5:] for line in shown(screen.ir)] == wanted
            # AND a diff copies the layer's lines, and none of the shared module's
            await pilot.press("comma", "left_square_bracket", "d")
            copied = [screen.ir.copy_text(i) for i in range(screen.ir.line_count())]
            assert any("model.layers.1." in line for line in copied)
            assert not any("{i}" in line for line in copied)

    async def test_an_op_of_the_module_that_is_shown_already_is_jumped_to(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            screen = explore(pilot)
            snapshot = work.snapshot()
            assert snapshot is not None
            op = next(op for op in snapshot.ops if op.name == "top.MLP")
            # WHEN another screen asks for an op of the very text THEN the cursor goes there
            screen.show_op(work.module, work.pass_name, op)
            here = screen.ir.op()
            assert here is not None
            assert here[1] is op

    async def test_a_layer_that_was_read_is_not_read_anew(
        self, work: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # GIVEN a snapshot that was read as layers 0 and 1
        work.select_module("block_cache_0")
        work.pass_name = "codegen"
        snapshot = work.snapshot()
        assert snapshot is not None
        first = work.reading(snapshot)
        work.layer = 1
        second = work.reading(snapshot)
        assert "@block_cache_0 " in first.text
        assert "@block_cache_1 " in second.text
        # WHEN layer 0 is chosen again THEN no text is made
        monkeypatch.setattr("engine.tables.ir_text", None)
        work.layer = 0
        assert work.reading(snapshot) is first

    async def test_addresses_are_called_provisional_while_modules_are_missing(self, tmp_path: Path) -> None:
        work = unfinished_workspace(tmp_path)
        whole = sample_workspace(tmp_path / "whole").compilation
        work.compilation.modules["block_cache_0"] = whole.modules["block_cache_0"]
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            screen = explore(pilot)
            work.pass_name = "import"
            screen.sync()
            assert "provisional" not in str(screen.ir.border_title)
            work.pass_name = "codegen"
            screen.sync()
            assert str(screen.ir.border_title).endswith("after codegen · addresses provisional")

    @pytest.mark.parametrize("panel", ["ir", "modules", "passes"])
    async def test_colon_goes_to_a_module_and_layer(self, work: Workspace, panel: str) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            screen = explore(pilot)
            screen.query_one(f"#{panel}").focus()
            # WHEN a module is asked for by the name of a layer that it serves
            await pilot.press("colon", *"block_1", "enter")
            # THEN module and layer are chosen, the tree follows and the focus stays
            assert (work.module, work.layer) == ("block_0", 1)
            assert screen.query_one(ModuleTree).module == "block_0"
            assert "block_1 after import" in str(screen.ir.border_title)
            assert screen.focused is screen.query_one(f"#{panel}")
            # AND backspace comes back
            screen.ir.focus()
            await pilot.press("backspace")
            assert (work.module, work.layer) == ("block_cache_0", 0)
            # AND a layer that there is not, is not found
            await pilot.press("colon", *"block_9", "enter")
            assert (work.module, work.layer) == ("block_cache_0", 0)

    async def test_raw_text_is_that_of_ir_line_by_line(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("r")
            text = ir_text(work.compilation, "block_cache_0", "import")
            assert [line[5:] for line in shown(explore(pilot).ir)] == text.splitlines()

    async def test_o_follows_an_op_to_its_top_op_and_backspace_returns(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            # GIVEN a gate projection after code generation
            await pilot.press(*["right_square_bracket"] * 4)
            ir = explore(pilot).ir
            ir.move_to(ir.locate("mlp.gate_proj") or 0)
            gate = next(
                i
                for i in range(ir.line_count())
                if "A16MatMul" in shown(ir)[i] and "gate" in ir.search_text(i)
            )
            ir.move_to(gate)
            # WHEN it is followed THEN the cursor is on the MLP that it came from
            await pilot.press("o")
            here = ir.op()
            assert here is not None
            assert here[1].name == "top.MLP"
            # AND the inspector names the checkpoint tensors
            about = "\n".join(shown(explore(pilot).query_one(Inspector)))
            assert "model.layers.0.mlp.gate_proj.weight" in about
            # AND forward it goes to what it became, and back the way it came
            await pilot.press("O")
            here = ir.op()
            assert here is not None
            assert here[1].dialect == "tpu"
            await pilot.press("backspace", "backspace")
            assert work.pass_name == "codegen"
            here = ir.op()
            assert here is not None
            assert here[1].name == "tpu.A16MatMul"

    async def test_inspector_says_what_an_op_costs(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press(*["right_square_bracket"] * 4)
            ir = explore(pilot).ir
            ir.move_to(ir.locate("FAttention") or 0)
            await pilot.pause()
            about = "\n".join(shown(explore(pilot).query_one(Inspector)))
            assert "1 TIU + 4 GDMA instructions" in about
            assert "bound by" in about
            assert "= neuron+0x" in about

    async def test_focus_decides_what_the_inspector_is_about(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            screen = explore(pilot)
            screen.query_one(PassList).focus()
            await pilot.pause()
            assert "family builds it" in "\n".join(shown(screen.query_one(Inspector)))
            screen.query_one(ModuleTree).focus()
            await pilot.pause()
            assert "reads 64 rows of history" in "\n".join(shown(screen.query_one(Inspector)))


class TestSearchAndGoTo:
    async def test_search_marks_and_steps_through_matches(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            ir = explore(pilot).ir
            await pilot.press("g", "slash", *"matmul", "enter")
            first = ir.cursor
            assert "MatMul" in shown(ir)[first]
            await pilot.press("n")
            assert ir.cursor > first
            await pilot.press("N")
            assert ir.cursor == first
            # AND esc forgets the search
            await pilot.press("escape")
            assert ir.sought == ""

    async def test_dropped_search_returns_to_where_it_began(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            ir = explore(pilot).ir
            before = ir.cursor
            await pilot.press("slash", *"mlp_residual")
            assert ir.cursor != before
            await pilot.press("escape")
            assert ir.cursor == before

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [("3", "%0"), ("%8", "%8 = "), ("FAttention", "FAttention"), ("mlp_residual", "Add")],
    )
    async def test_go_to_takes_lines_values_ops_and_places(
        self, work: Workspace, wanted: str, found: str
    ) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("colon")
            pilot.app.screen.query_one("#ask-input", Input).value = wanted
            await pilot.press("enter")
            ir = explore(pilot).ir
            assert found in shown(ir)[ir.cursor]

    async def test_go_to_nothing_says_so(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("colon", *"%999", "enter")
            assert any("%999" in n.message for n in pilot.app._notifications)

    async def test_copy_gives_the_mlir_line(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            ir = explore(pilot).ir
            ir.move_to(ir.locate("RMSNorm") or 0)
            await pilot.press("y")
            assert pilot.app.clipboard.startswith("%")
            assert '"top.RMSNorm"' in pilot.app.clipboard


class TestMemory:
    async def test_table_lists_arenas_with_addresses(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("2")
            await settle(pilot)
            table = pilot.app.screen.query_one(MemoryTable)
            lines = shown(table)
            assert [line.split()[1] for line in lines if "▾" in line] == ["neuron", "io", "coeff"]
            assert any("history_k" in line for line in lines)
            # AND one arena alone
            await pilot.press("a")
            assert [line.split()[1] for line in shown(table) if "▾" in line] == ["neuron"]

    async def test_map_and_table_share_the_tensor(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("2")
            await settle(pilot)
            screen = pilot.app.screen
            assert isinstance(screen, MemoryScreen)
            await pilot.press("down", "down")
            before = screen.place
            await pilot.press("t")
            assert screen.query_one(MemoryMap).display
            assert screen.place == before
            # WHEN moving in time THEN the tensor that is used next is marked
            await pilot.press("right")
            assert before is not None
            assert screen.place is not None
            assert screen.place.first >= before.first
            moved = screen.place
            await pilot.press("t")
            assert screen.query_one(MemoryTable).key == moved.value

    async def test_addresses_are_those_of_the_layer(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("2")
            await settle(pilot)
            screen = pilot.app.screen
            assert isinstance(screen, MemoryScreen)
            assert screen.memory is not None
            first = screen.memory.shifts[Arena.COEFF]
            await pilot.press("full_stop")
            assert screen.memory.shifts[Arena.COEFF] > first


class TestSimulate:
    async def test_stages_variants_and_orders(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("3")
            await settle(pilot)
            screen = pilot.app.screen
            assert isinstance(screen, SimulateScreen)
            await _until(pilot, lambda: screen.cost is not None)
            table = screen.query_one("#ops", TableView)
            assert screen.cost is not None
            assert sum(op.cycles for op in screen.cost.ops) == screen.cost.cycles
            # WHEN sorted by bytes read THEN the first row reads most
            await pilot.press("s")
            await pilot.press("g")
            assert screen.op is not None
            assert screen.op.read == max(op.read for op in screen.cost.ops)
            # AND the other stage is there
            await pilot.press("right_square_bracket")
            assert screen.stage is Stage.PREFILL
            assert table.rows
            await pilot.press("v")

    async def test_lengths_are_simulated_and_wrong_ones_explained(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("3")
            screen = pilot.app.screen
            assert isinstance(screen, SimulateScreen)
            await _until(pilot, lambda: work.simulation is not None)
            await pilot.press("p", *"8 4", "enter")
            await _until(pilot, lambda: screen.lengths == (8, 4))
            assert work.simulation is not None
            assert work.simulation.decode.tokens == 3, "the prefill gives the first of the four"
            await pilot.press("p")
            pilot.app.screen.query_one("#ask-input", Input).value = "9999 1"
            await pilot.press("enter")
            await _until(pilot, lambda: any("9999" in n.message for n in pilot.app._notifications))

    async def test_an_op_opens_in_the_explorer(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("3")
            screen = pilot.app.screen
            assert isinstance(screen, SimulateScreen)
            await _until(pilot, lambda: screen.op is not None)
            wanted = screen.op
            assert wanted is not None
            await pilot.press("enter")
            await settle(pilot)
            here = explore(pilot).ir.op()
            assert here is not None
            assert here[1] == wanted.record


class TestKv:
    async def test_every_layer_has_its_regions_and_slots(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("4")
            await settle(pilot)
            table = pilot.app.screen.query_one("#layers", TableView)
            assert len(table.rows) == 3
            assert all("✓" in line for line in shown(table))
            await pilot.press("down", "down")
            assert work.module == "block_cache_2"
            about = shown(pilot.app.screen.query_one(Inspector))
            assert any("block_cache_2" in line and "writes row 64" in line for line in about)


class TestWithoutAProgram:
    async def test_screens_say_what_they_wait_for(self, tmp_path: Path) -> None:
        # GIVEN a program that is still being compiled, one module failed
        work = unfinished_workspace(tmp_path)
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            modules = "\n".join(shown(explore(pilot).query_one(ModuleTree)))
            assert "✗ block_0" in modules
            assert "✓ embedding" in modules
            passes = shown(explore(pilot).query_one(PassList))
            assert any("▸ convert-top-to-tpu" in line for line in passes), passes
            for number in "2345":
                await pilot.press(number)
                await settle(pilot)
                assert any(view.empty for view in pilot.app.screen.query(LineView)), number

    async def test_a_failure_is_explained_where_it_happened(self, tmp_path: Path) -> None:
        work = unfinished_workspace(tmp_path)
        work.select_module("block_0")
        work.pass_name = "convert-top-to-tpu"
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            assert "aborted (signal 6)" in "\n".join(shown(explore(pilot).query_one(Inspector)))

    async def test_nothing_is_generated_without_a_model(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("5", "i", "enter")
            await settle(pilot)
            assert isinstance(pilot.app.screen, GenerateScreen)
            assert any("without a model" in n.message for n in pilot.app._notifications)


class TestEverywhere:
    async def test_help_shows_the_focused_panels_text_and_keys(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("question_mark")
            await settle(pilot)
            assert isinstance(pilot.app.screen, HelpScreen)
            text = "\n".join(shown(pilot.app.screen.query_one("#help", LineView)))
            assert "Every op stands on one line" in text
            for action in of_scopes(["explore", "list", "app"]):
                assert action.about in text
            await pilot.press("escape")
            assert isinstance(pilot.app.screen, ExploreScreen)

    async def test_jump_mode_goes_to_the_panel_of_the_letter(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("J", "a")
            assert isinstance(pilot.app.focused, ModuleTree)
            await pilot.press("J", "escape")
            assert isinstance(pilot.app.focused, ModuleTree)

    async def test_maximise_and_back(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("z")
            assert explore(pilot).zoomed is explore(pilot).ir
            await pilot.press("escape")
            assert explore(pilot).zoomed is None

    async def test_themes_change_every_line(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            for theme in (*THEMES[1:], THEMES[0]):
                await pilot.press("ctrl+t")
                await pilot.pause()
                assert pilot.app.theme == theme.name

    async def test_palette_finds_actions_of_other_screens(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("ctrl+p")
            await pilot.pause(0.2)
            await pilot.press(*"lifetimes over the program")
            await pilot.pause(0.5)
            await pilot.press("enter")
            await _until(pilot, lambda: isinstance(pilot.app.screen, MemoryScreen))
            await _until(pilot, lambda: pilot.app.screen.has_class("-map"))

    async def test_export_writes_the_ir(self, work: Workspace, tmp_path: Path) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("e", "down", "enter")
            target = tmp_path / "out.mlir"
            pilot.app.screen.query_one(Input).value = str(target)
            await pilot.press("enter")
            await _until(pilot, target.exists)
            assert target.read_text() == ir_text(work.compilation, "block_cache_0", "import")

    async def test_export_into_nowhere_is_explained(self, work: Workspace, tmp_path: Path) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("e", "down", "enter")
            pilot.app.screen.query_one(Input).value = str(tmp_path / "missing" / "out.mlir")
            await pilot.press("enter")
            await _until(pilot, lambda: any("missing" in n.message for n in pilot.app._notifications))

    async def test_clicks_on_the_key_bar_do_what_it_says(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            # the screens stand before help and quit
            line = plain(pilot.app.screen.query_one(KeyBar).spans())
            await pilot.click("KeyBar", offset=(line.index("5 run"), 0))
            await settle(pilot)
            assert isinstance(pilot.app.screen, GenerateScreen)

    async def test_quit_ends_the_app(self, work: Workspace) -> None:
        app = Explorer(work)
        async with app.run_test(size=SIZE) as pilot:
            await settle(pilot)
            await pilot.press("q")
        assert app._exit


class TestEveryKey:
    """No key leads to a traceback: run_test raises what an app raised."""

    @pytest.mark.parametrize("name", SCREENS)
    async def test_every_key_in_every_panel(self, work: Workspace, name: str) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            app = await _on_screen(pilot, name)
            for number in range(len(app.screen.focus_chain)):
                await _home(pilot, app, name, number)
                # keys of the whole app do the same in every panel
                scopes = (name, "module", "app") if not number else (name,)
                for key in _keys(*scopes, *panel_scopes(app)):
                    await _home(pilot, app, name, number)
                    await strike(pilot, key)
            await _home(pilot, app, name, 0)

    @pytest.mark.parametrize("name", SCREENS)
    async def test_every_key_in_a_small_terminal(self, work: Workspace, name: str) -> None:
        async with Explorer(work).run_test(size=SMALL) as pilot:
            app = await _on_screen(pilot, name)
            for key in _keys(name, "module", "app", *panel_scopes(app)):
                await _home(pilot, app, name, 0)
                await strike(pilot, key)

    @pytest.mark.parametrize("seed", range(4))
    async def test_random_walks(self, work: Workspace, seed: int) -> None:
        generator = random.Random(seed)
        keys = [
            *_keys(*{action.scope for action in ACTIONS}),
            "tab",
            "shift+tab",
            "escape",
            "enter",
            "a",
            "5",
            "x",
        ]
        async with Explorer(work).run_test(size=generator.choice([SIZE, SMALL, (60, 16)])) as pilot:
            await settle(pilot)
            for _ in range(100):
                await strike(pilot, generator.choice(sorted(keys)))

    async def test_a_very_small_terminal(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=(24, 8)) as pilot:
            await settle(pilot)
            for number in "123451":
                await pilot.press(number, "down", "z", "escape")
                await settle(pilot)

    async def test_resizing_while_open(self, work: Workspace) -> None:
        async with Explorer(work).run_test(size=SIZE) as pilot:
            await settle(pilot)
            for number in "12345":
                await pilot.press(number)
                for size in ((200, 60), (50, 14), (100, 30)):
                    await pilot.resize_terminal(*size)
                    await pilot.pause()


def _keys(*scopes: str) -> list[str]:
    """All keys of the scopes, but the one that quits."""
    actions = of_scopes(dict.fromkeys(scopes))
    return [key for action in actions for key in action.keys if action.name != "quit"]


def panel_scopes(app: Explorer) -> tuple[str, ...]:
    """Scopes of the focused panel."""
    return app.focused.SCOPES if isinstance(app.focused, LineView) else ()


async def _on_screen(pilot: Pilot[None], name: str) -> Explorer:
    await settle(pilot)
    app = pilot.app
    assert isinstance(app, Explorer)
    app.action_show_screen(name)
    await settle(pilot)
    return app


async def strike(pilot: Pilot[None], key: str) -> None:
    """Press a key and let everything that it starts in the app's thread happen; faster than `pilot.press`."""
    pilot.app.simulate_key(key)
    await pilot.pause(0)


async def _home(pilot: Pilot[None], app: Explorer, name: str, panel: int) -> None:
    """Back to a screen and one of its panels, whatever a key opened."""
    while not isinstance(app.screen, WorkScreen):
        await _until(pilot, lambda: app.screen.is_mounted)
        await app.pop_screen()
    if app.work_screen(name) is not app.screen:
        app.action_show_screen(name)
    await _until(pilot, lambda: app.work_screen(name).ready)
    app.work_screen(name).unzoom()
    chain = app.screen.focus_chain
    wanted = chain[panel % len(chain)]
    if app.focused is not wanted:
        wanted.focus()
        await pilot.pause(0)


_until = partial(driving.until, seconds=10)


def test_every_action_of_the_registry_is_somebodys() -> None:
    # GIVEN all classes that have actions
    import app.screens.generate
    import app.screens.kv
    import app.screens.memory
    import app.screens.simulate  # noqa: F401

    owners = [Explorer, *_below(Widget)]
    # THEN the registry names no method that none of them has
    names = {action.name.partition("(")[0] for action in ACTIONS}
    assert [n for n in names if not any(hasattr(owner, f"action_{n}") for owner in owners)] == []
    # AND no key has two meanings in one scope
    for scope in {action.scope for action in ACTIONS}:
        keys = [key for action in of_scopes([scope]) for key in action.keys]
        assert len(keys) == len(set(keys)), scope


def _below(cls: type) -> list[type]:
    return [sub for direct in cls.__subclasses__() for sub in (direct, *_below(direct))]
