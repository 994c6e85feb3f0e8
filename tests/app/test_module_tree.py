"""The module tree: folding stages and blocks, the cursor on a stage, and what else moves the cursor."""

from __future__ import annotations

import pytest
from compiled import tiny_compilation
from textual.pilot import Pilot
from textual.widgets import Input

from app import units
from app.explorer import Explorer
from app.screens.explore import ExploreScreen
from app.widgets.inspector import Inspector
from app.widgets.lines import plain
from app.widgets.lists import PassList
from app.widgets.module_tree import ModuleTree
from app.workspace import Workspace
from engine.stages import Stage
from engine.worker import ModuleFailed

SIZE = (120, 40)


@pytest.fixture
def variants() -> Workspace:
    """A program of three layers with decode blocks for caches of 64, 32 and 16 rows."""
    return Workspace(tiny_compilation(), "tiny", seconds=1.0)


async def tree_of(pilot: Pilot[None], timed: bool = True) -> ModuleTree:
    """The tree, with the focus, once modules are priced."""
    assert isinstance(pilot.app, Explorer)
    assert pilot.app.work is not None
    while timed and len(pilot.app.work.timings) < len(pilot.app.work.specs):
        await pilot.pause(0.02)
    await pilot.pause()
    tree = pilot.app.screen.query_one(ModuleTree)
    tree.focus()
    await pilot.pause()
    return tree


def shown(tree: ModuleTree | Inspector) -> list[str]:
    return [" ".join(plain(tree.line(i)).split()) for i in range(tree.line_count())]


def keys(tree: ModuleTree) -> list[object]:
    return [row.key for row in tree.rows]


async def on_stage(pilot: Pilot[None], tree: ModuleTree, stage: Stage) -> None:
    tree.move_to_key(stage, announce=True)
    await pilot.pause()


class TestRows:
    async def test_stages_and_modules_with_layers_and_cycles(self, variants: Workspace) -> None:
        # GIVEN a program whose modules are priced WHEN its tree is shown
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            # THEN each module has its layers and cycles, each stage the sum over all layers, variants are folded
            cycles = {name: timing.total_cycles for name, timing in variants.timings.items()}
            assert f"✓ block_0 ×2 {units.cycles(cycles['block_0'])}" in shown(tree)
            assert f"▸ block_cache_0 ×2 {units.cycles(cycles['block_cache_0'])}" in shown(tree)
            total = cycles["embedding"] + 2 * cycles["block_0"] + cycles["block_2"]
            assert shown(tree)[0] == f"▾ prefill {units.cycles(total)}"
            assert "block_cache_0_1" not in keys(tree)

    async def test_no_cycles_while_nothing_is_priced(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            variants.timings.clear()
            tree.sync(variants)
            assert "✓ block_0 ×2" in shown(tree)
            assert shown(tree)[0] == "▾ prefill"

    async def test_variants_stand_below_their_block(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            # GIVEN the cursor on the decode block WHEN it is unfolded
            assert tree.module == "block_cache_0"
            await pilot.press("right")
            at = tree.cursor
            # THEN its variants follow, with the rows that their cache holds
            assert keys(tree)[at + 1 : at + 4] == ["block_cache_0_1", "block_cache_0_2", "block_cache_2"]
            assert shown(tree)[at + 1].startswith("✓ _1 ≤ 32 rows")
            # AND {, } and the tree agree on the order
            assert [k for k in variants.modules_in_order() if "cache_0" in k or "cache_2" in k] == [
                *("block_cache_0", "block_cache_0_1", "block_cache_0_2"),
                *("block_cache_2", "block_cache_2_1", "block_cache_2_2"),
            ]

    @pytest.mark.parametrize("stage", list(Stage))
    async def test_the_columns_fit_at_80_columns(self, variants: Workspace, stage: Stage) -> None:
        async with Explorer(variants).run_test(size=(80, 24)) as pilot:
            tree = await tree_of(pilot)
            await pilot.press("right")
            for spec in variants.specs:
                if spec.stage is stage and spec.name in keys(tree):
                    row = shown(tree)[keys(tree).index(spec.name)]
                    assert row.endswith(units.cycles(variants.timings[spec.name].total_cycles)), row


class TestFolding:
    @pytest.mark.parametrize("key", ["space", "enter", "left", "h"])
    async def test_a_stage_folds_and_keeps_its_cycles(self, variants: Workspace, key: str) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            await on_stage(pilot, tree, Stage.DECODE)
            await pilot.press(key)
            # THEN only the stage is left, with the number of modules below, and the cursor on it
            assert tree.stage is Stage.DECODE
            assert not any("cache" in str(k) for k in keys(tree))
            row = shown(tree)[tree.cursor]
            assert row.startswith("▸ decode (7) ")
            assert row.endswith(units.cycles(variants.stage_cycles(Stage.DECODE) or 0))
            # AND the same key, or the one in the other direction, brings them back
            await pilot.press({"left": "right", "h": "l"}.get(key, key))
            assert "block_cache_0" in keys(tree)

    async def test_left_goes_up_and_right_goes_down(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            await pilot.press("right", "right", "down")
            assert variants.module == "block_cache_0_2"
            # WHEN going left from a variant THEN to its block, which folds next, then to the stage, which folds
            await pilot.press("left")
            assert variants.module == "block_cache_0"
            await pilot.press("left")
            assert "block_cache_0_1" not in keys(tree)
            await pilot.press("left")
            assert tree.stage is Stage.DECODE
            await pilot.press("left", "left")
            assert not tree.is_open(Stage.DECODE)

    async def test_a_click_on_a_stage_or_on_a_blocks_mark_folds(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            row = keys(tree).index("block_cache_0")
            await pilot.click(ModuleTree, offset=(2, row + 1))
            assert "block_cache_0_1" in keys(tree)
            await pilot.click(ModuleTree, offset=(8, keys(tree).index(Stage.DECODE) + 1))
            assert "block_cache_0" not in keys(tree)
            # AND on a name it only moves the cursor
            await pilot.click(ModuleTree, offset=(8, keys(tree).index("block_0") + 1))
            assert variants.module == "block_0"

    async def test_what_is_folded_does_not_hide_a_failure(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            variants.compilation.failures["block_cache_0_1"] = ModuleFailed(
                "block_cache_0_1", "codegen", "broken"
            )
            try:
                tree.sync(variants)
                assert any(row.startswith("▸ block_cache_0 ×2 ✗") for row in shown(tree))
                await on_stage(pilot, tree, Stage.DECODE)
                await pilot.press("space")
                assert shown(tree)[tree.cursor].startswith("▸ decode (7) ✗")
            finally:
                variants.compilation.failures.clear()


class TestCursor:
    async def test_on_a_stage_the_module_stays_and_the_inspector_sums_up(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            await on_stage(pilot, tree, Stage.DECODE)
            screen = pilot.app.screen
            assert isinstance(screen, ExploreScreen)
            # THEN IR and passes are still about the last module
            assert variants.module == "block_cache_0"
            assert "block_cache_0" in str(screen.ir.border_title)
            assert screen.query_one(PassList).rows
            # AND the inspector is about the stage: cycles of all layers, by module and by cache
            inspector = screen.query_one(Inspector)
            assert inspector.border_title == "stage: decode · 7 modules"
            about = "\n".join(shown(inspector))
            assert f"costs {units.cycles(variants.stage_cycles(Stage.DECODE) or 0)} = " in about
            assert "reading up to 64 rows of history" in about
            each = 2 * variants.timings["block_cache_0"].total_cycles
            assert units.cycles(each) in about
            assert f"_2 up to 16 rows {units.cycles(variants.stage_cycles(Stage.DECODE, 2) or 0)}" in about

    async def test_it_stays_on_a_stage_while_the_compilation_goes_on(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            await on_stage(pilot, tree, Stage.PREFILL)
            screen = pilot.app.screen
            assert isinstance(screen, ExploreScreen)
            screen.progressed(True)
            screen.progressed(False)
            assert tree.stage is Stage.PREFILL

    async def test_braces_unfold_what_they_go_to(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            # GIVEN everything folded
            for stage in Stage:
                tree.set_open(stage, False)
            assert keys(tree) == [Stage.PREFILL, Stage.PREFILL_KV, Stage.DECODE, Stage.BOTH]
            # WHEN the next module is a variant of the selected block
            await pilot.press("right_curly_bracket")
            # THEN its stage and its block unfold, the others do not
            assert (variants.module, tree.module) == ("block_cache_0_1", "block_cache_0_1")
            assert keys(tree)[:2] == [Stage.PREFILL, Stage.PREFILL_KV]
            await pilot.press(*["left_curly_bracket"] * 3)
            assert tree.module == "block_kv_2"
            assert not tree.is_open(Stage.PREFILL)

    async def test_a_variant_selected_elsewhere_is_shown(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            variants.select_module("block_cache_2_1")
            tree.sync(variants)
            assert tree.module == "block_cache_2_1"


class TestSearch:
    async def test_what_is_folded_is_found_and_unfolded(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            await pilot.press("slash", *"cache_2_2", "enter")
            assert tree.module == "block_cache_2_2"
            assert "block_cache_0_1" not in keys(tree)

    async def test_next_goes_through_folded_rows_in_order_both_ways(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            await pilot.press("g", "slash", *"cache_0", "enter")
            found = [tree.key]
            for _ in range(3):
                await pilot.press("n")
                found.append(tree.key)
            assert found == ["block_cache_0", "block_cache_0_1", "block_cache_0_2", "block_cache_0"]
            tree.set_open("block_cache_0", False)
            await pilot.press("N")
            assert tree.key == "block_cache_0_2"

    async def test_a_dropped_search_folds_again(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            before = keys(tree)
            await pilot.press("slash", *"cache_2_2", "escape")
            assert keys(tree) == before
            assert tree.module == "block_cache_0"

    async def test_go_to_by_name(self, variants: Workspace) -> None:
        async with Explorer(variants).run_test(size=SIZE) as pilot:
            tree = await tree_of(pilot)
            await pilot.press("colon")
            pilot.app.screen.query_one("#ask-input", Input).value = "block_cache_0_2"
            await pilot.press("enter")
            await pilot.pause()
            assert tree.module == variants.module == "block_cache_0_2"
