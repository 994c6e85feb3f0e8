"""The simulate screen: what its head, table and details say at every width; lengths; the speed plot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import driving
import pytest
from compiled import compile_here, tiny_compilation
from textual.pilot import Pilot
from textual.widgets import Input
from tiny import write_tiny

from app import units
from app.explorer import Explorer
from app.screens.simulate import OpTable, SimulateScreen, lengths_of
from app.widgets.ask import AskBar
from app.widgets.inspector import Inspector
from app.widgets.lines import plain
from app.widgets.simulation_view import (
    StageHead,
    engines_line,
    fitting,
    op_details,
    op_rows,
    run_line,
    speed_line,
    stage_cost,
    tabs_line,
    traffic_line,
    variants,
)
from app.widgets.speed_plot import SpeedPlot, row_label, x_ticks, y_scale
from app.workspace import Workspace
from engine.compiler import Compilation
from engine.errors import UserError
from engine.sim.throughput import simulate
from engine.sim.timing import time_module
from engine.stages import Stage


@pytest.fixture(scope="module")
def one_core() -> Compilation:
    return tiny_compilation("llama", "w4bf16")


@pytest.fixture(scope="module")
def two_cores(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    path = write_tiny(tmp_path_factory.mktemp("cores") / "m", "llama", layers=2)
    return compile_here(path, chip_name="bm1688", cores=2, seq_length=64, quantize="w4bf16", decode_chunks=())


until = partial(driving.until, seconds=10)


@asynccontextmanager
async def simulated(
    compilation: Compilation, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[None], SimulateScreen]]:
    """The simulate screen with its table filled."""
    async with Explorer(Workspace(compilation, "tiny")).run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, SimulateScreen)
        await until(pilot, lambda: screen.cost is not None)
        await pilot.pause()
        yield pilot, screen


def head_text(screen: SimulateScreen) -> list[str]:
    head = screen.query_one(StageHead)
    return [head.render_line(y).text.rstrip() for y in range(head.size.height)]


# -- several cores -------------------------------------------------------------------------------------------------


def test_engines_of_several_cores_are_busy_all_of_the_time_at_most(two_cores: Compilation) -> None:
    # GIVEN a program for two cores
    simulation = simulate(two_cores)
    for stage in (Stage.PREFILL, Stage.PREFILL_KV, Stage.DECODE):
        cost = stage_cost(two_cores, simulation, stage)
        assert cost.cores == 2
        # THEN both engines together work longer than the stage takes, but no share is above 100 %
        assert sum(cost.busy) > cost.cycles
        text = plain(engines_line(cost, 120))
        assert text.startswith("  2 cores  TIU ")
        shares = [
            float(word) for word, unit in zip(text.split(), text.split()[1:], strict=False) if unit == "%"
        ]
        assert shares == [pytest.approx(50 * busy / cost.cycles, abs=0.05) for busy in cost.busy]
        assert max(shares) <= 100


def test_an_op_of_another_core_has_its_part_of_the_time(two_cores: Compilation) -> None:
    # GIVEN products that run on different cores at the same time
    cost = stage_cost(two_cores, simulate(two_cores), Stage.DECODE)
    products = {op.label: op for op in cost.ops if op.name == "A16MatMul"}
    program = two_cores.snapshots("block_cache_0").after("codegen").report
    records = two_cores.snapshots("block_cache_0").after("codegen").ops
    cores = {
        label: set(program["core"][program["op"] == op.index].tolist())
        for label, op in products.items()
        if records[op.index] is op.record
    }
    assert cores["mlp.gate_proj"] != cores["mlp.up_proj"]
    # THEN none of them costs nothing, and equal ones cost the same
    assert all(op.cycles for op in products.values())
    assert products["mlp.gate_proj"].cycles == pytest.approx(products["mlp.up_proj"].cycles, abs=2)
    # AND all ops still add up to the stage, at no more than the peak
    assert sum(op.cycles for op in cost.ops) == cost.cycles
    options = two_cores.options
    peak = options.ddr_bandwidth / options.chip.clock_hz
    assert all((op.read + op.write) / op.cycles <= peak for op in products.values())


async def test_the_screen_says_that_cores_do_not_wait_for_each_other(two_cores: Compilation) -> None:
    for size in ((80, 24), (120, 40)):
        async with simulated(two_cores, size) as (_, screen):
            assert "contention for DDR is not modelled" in str(screen.query_one(OpTable).border_subtitle)
            assert "2 cores" in head_text(screen)[3]


# -- hidden ops ----------------------------------------------------------------------------------------------------


def test_hidden_ops_say_so_and_what_hides_them(one_core: Compilation) -> None:
    # GIVEN a stage some ops of which run in the time of others
    cost = stage_cost(one_core, simulate(one_core), Stage.DECODE)
    hidden = [op for op in cost.ops if not op.cycles]
    assert hidden
    rows = {row.key: row for row in op_rows(cost, "cycles", cost.ops)}
    for op in hidden:
        # THEN the table says hidden in place of 0
        assert rows[op.module, op.index].cells[3:5] == (("hidden", "muted"), ("-", "faint"))
        # AND the details name an op of the same module that the module waits for
        timing = time_module(one_core.snapshots(op.module).after("codegen").report, one_core.options.chip)
        row = next(row for row in timing.ops if row.op == op.index)
        text = [plain(line) for line in op_details(op, cost, row, one_core.options, 200)]
        kind, label = op.under.split(" ", 1)
        other = next(o for o in cost.ops if (o.name, o.label) == (kind, label))
        assert other.cycles
        assert text[0].startswith("cost    hidden")
        assert text[0].endswith(op.under)
    shown = [op for op in cost.ops if op.cycles]
    assert not any(op.hidden for op in shown)


# -- the head ------------------------------------------------------------------------------------------------------


def test_bytes_of_a_token_are_those_of_a_run_and_of_its_new_rows(one_core: Compilation) -> None:
    simulation = simulate(one_core)
    cost = stage_cost(one_core, simulation, Stage.DECODE)
    decode = simulation.decode
    assert decode.ddr_bytes_per_token == cost.read + cost.write + decode.moved_rows_bytes
    assert " + new rows " in plain(run_line(cost, simulation, one_core.options, 120))
    # the share of the peak stands once, on the line with the speed
    head = plain(speed_line(Stage.DECODE, simulation, None, one_core.options, 120))
    assert "of 64 GB/s" in head
    assert "GB/s" not in plain(run_line(cost, simulation, one_core.options, 120))


def test_speeds_are_readable_at_every_size() -> None:
    assert [units.rate(n) for n in (25_236.4, 1000, 273.44, 64, 0.65)] == [
        "25,236",
        "1,000",
        "273.4",
        "64",
        "0.65",
    ]


def test_numbers_of_thousands_are_separated(one_core: Compilation) -> None:
    simulation = simulate(one_core)
    assert simulation.decode.tokens_per_s > 1_000
    text = plain(speed_line(Stage.DECODE, simulation, None, one_core.options, 120))
    assert f"{simulation.decode.tokens_per_s:,.0f} tokens/s" in text


@pytest.mark.parametrize("width", range(60, 130))
def test_parts_of_the_head_are_whole_or_not_there(one_core: Compilation, width: int) -> None:
    simulation = simulate(one_core, prompt_length=8, generate=4)
    cost, options = stage_cost(one_core, simulation, Stage.DECODE), one_core.options
    choices = variants(one_core.specs)
    stages = (Stage.PREFILL, Stage.PREFILL_KV, Stage.DECODE)
    lines = [
        tabs_line(stages, Stage.DECODE, choices, 0, simulation.decode, width),
        speed_line(Stage.DECODE, simulation, (8, 4), options, width),
        run_line(cost, simulation, options, width),
        traffic_line(
            {"weights": 60.1e6, "lm_head": 57e6, "kv_cache": 11.8e6, "activations": 5e5, "other": 128}, width
        ),
    ]
    texts = [plain(line) for line in lines]
    assert all(len(text) <= width for text in texts)
    # THEN what is left has its unit behind its number, and the traffic adds up
    assert texts[3].split()[-1] in ("B", "kB", "MB")
    assert "tokens/s" in texts[1]
    assert ("tables 128 B" in texts[3]) != (" rest " in texts[3])
    assert not texts[0].rstrip().endswith("next")


def test_a_prompt_that_gives_the_only_token_shows_the_next_one(one_core: Compilation) -> None:
    simulation = simulate(one_core, prompt_length=8, generate=1)
    assert simulation.decode.tokens == 0
    text = plain(speed_line(Stage.DECODE, simulation, (8, 1), one_core.options, 120))
    assert "for the token behind 8 rows" in text


def test_the_least_important_part_goes_first() -> None:
    parts = [(0, [("speed", "")]), (2, [(" where", "")]), (1, [(" size", "")])]
    assert plain(fitting(parts, 16)) == "speed where size"
    assert plain(fitting(parts, 15)) == "speed size"
    assert plain(fitting(parts, 9)) == "speed"


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40), (200, 60)])
async def test_details_and_columns_are_readable(one_core: Compilation, size: tuple[int, int]) -> None:
    async with simulated(one_core, size) as (_, screen):
        panel, table = screen.query_one(Inspector), screen.query_one(OpTable)
        assert max(len(plain(panel.line(i))) for i in range(panel.line_count())) <= panel.inner_width
        # AND the table has its bytes and its bound
        titles = plain(table.pinned()[0]).split()
        assert {"read", "write", "bound", "cycles"} <= set(titles)


# -- lengths -------------------------------------------------------------------------------------------------------


def test_lengths_are_two_whole_numbers_or_nothing() -> None:
    assert lengths_of("300 100") == lengths_of(" 300,100 ") == lengths_of("300 , 100") == (300, 100)
    assert lengths_of("") is lengths_of("  ") is None
    for text in ("abc", "-", "-3 4", "3 -4", "3", "3 4 5", "3.5 4", "1,000 20 3", "3x4"):
        with pytest.raises(UserError, match="accepted: two whole numbers"):
            lengths_of(text)


@pytest.mark.parametrize("text", ["abc", "-", "-3 4"])
async def test_other_lengths_are_refused_in_words(one_core: Compilation, text: str) -> None:
    async with simulated(one_core) as (pilot, screen):
        await pilot.press("p")
        screen.query_one("#ask-input", Input).value = text
        await pilot.press("enter")
        await pilot.pause()
        # THEN the reason is on the screen, the text is still there to be corrected, and nothing was simulated
        messages = [note.message for note in pilot.app._notifications]
        assert any(repr(text) in message and "accepted" in message for message in messages)
        assert screen.query_one(AskBar).is_open
        assert screen.lengths is None


async def test_the_table_shows_the_variant_that_the_lengths_ran_in(one_core: Compilation) -> None:
    async with simulated(one_core) as (pilot, screen):
        assert screen.variant == 0
        await pilot.press("p", *"4 6", "enter")
        await until(pilot, lambda: screen.lengths == (4, 6))
        await pilot.pause()
        # THEN the table and the speed are of the same run
        choices = variants(one_core.specs)
        assert screen.variant == len(choices) - 1
        assert screen.cost is not None
        simulation = screen.work.simulation
        assert simulation is not None
        cycles = screen.cost.cycles + simulation.decode.moved_rows_cycles
        clock = one_core.options.chip.clock_hz
        assert simulation.decode.tokens_per_s == pytest.approx(clock / cycles)
        assert (
            f"{choices[-1].name}: cache of {choices[-1].cache} rows, all {simulation.decode.tokens} tokens"
            in head_text(screen)[0]
        )
        assert f"for {simulation.decode.tokens} tokens behind a prompt of 4" in head_text(screen)[1]
        # AND another variant says that it is not what ran
        await pilot.press("v")
        assert f"not used: {choices[-1].name} ran" in head_text(screen)[0]


# -- the plot ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 3, 4, 7, 8, 9, 20])
@pytest.mark.parametrize("ends", [(10_363.0, 10_363.0), (230.0, 311.2), (3.0, 900.0), (0.4, 0.7)])
def test_ticks_are_whole_rows_apart_and_the_curve_fills_the_plot(
    rows: int, ends: tuple[float, float]
) -> None:
    scale = y_scale(*ends, rows)
    per_row = (scale.top - scale.bottom) / (rows - 1)
    at = [(tick - scale.bottom) / per_row for tick in scale.ticks]
    assert all(place == pytest.approx(round(place), abs=1e-6) for place in at)
    gaps = {round(b) - round(a) for a, b in pairwise(at)}
    assert len(gaps) <= 1
    assert scale.bottom <= ends[0]
    assert ends[1] <= scale.top
    assert ends[1] - scale.bottom > 0.4 * (scale.top - scale.bottom)


def test_rows_of_context_are_labelled_in_short() -> None:
    assert x_ticks(512) == [0, 128, 256, 384, 512]
    assert x_ticks(1) == [0, 1]
    assert [row_label(n) for n in x_ticks(2048)] == ["0", "512", "1k", "1.5k", "2k"]


async def test_labels_of_the_plot_stand_in_equal_distances(one_core: Compilation) -> None:
    async with simulated(one_core) as (_, screen):
        plot = screen.query_one(SpeedPlot)
        lines = plot.render().plain.splitlines()
        labelled = [
            y for y, line in enumerate(lines) if line.split("┤")[0].strip().replace(",", "").isdigit()
        ]
        assert len(labelled) >= 3
        assert len({b - a for a, b in pairwise(labelled)}) == 1


@pytest.mark.parametrize(("presses", "name"), [(0, "dark"), (1, "light"), (2, "ansi")])
async def test_the_plot_has_the_colours_of_its_panel(one_core: Compilation, presses: int, name: str) -> None:
    async with simulated(one_core) as (pilot, screen):
        await pilot.press(*["ctrl+t"] * presses)
        await pilot.pause()
        assert name in pilot.app.theme
        plot = screen.query_one(SpeedPlot)
        spans = plot.render().spans
        # THEN nothing has a ground of its own, and the curve has the theme's colour
        styles = [span.style for span in spans if not isinstance(span.style, str)]
        assert styles
        assert all(style.bgcolor is None or style.bgcolor.is_default for style in styles)
        colors = {style.color for style in styles if style.color is not None}
        assert plot.line_color in {color.triplet or color.number for color in colors}
