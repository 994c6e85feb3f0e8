"""Drawing of local memory, without Textual: rows of addresses, columns of time steps, rectangles and labels."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lmem_cases import INDEX, OPS, PLAN, with_buffer

from app.widgets.lines import plain
from app.widgets.lmem_axis import GUTTER, MIN_STEP, Zoom, axis, bank_axis, columns, used_axis, whole_axis
from app.widgets.lmem_canvas import Canvas, View, draw, label_lines, legend, shades
from app.widgets.lmem_facts import GroupFacts, parts_of
from engine.passes.layer_group.plan import GroupPlan
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
FACTS = GroupFacts(PLAN, OPS, CHIP)


def drawn(
    zoom: Zoom = Zoom.USED,
    width: int = 80,
    height: int = 24,
    view: View | None = None,
    plan: GroupPlan = PLAN,
) -> Canvas:
    facts = GroupFacts(plan, OPS, CHIP)
    return draw(facts, axis(facts, zoom, height, 0), width, view or View())


def texts(canvas: Canvas) -> list[str]:
    return [plain(row) for row in canvas.rows]


def roles_at(canvas: Canvas, row: int, x: int) -> str:
    at = 0
    for text, roles in canvas.rows[row]:
        if at <= x < at + len(text):
            return roles
        at += len(text)
    raise AssertionError(f"row {row} has no cell {x}")


class TestAxis:
    @pytest.mark.parametrize("zoom", [Zoom.WHOLE, Zoom.USED])
    @pytest.mark.parametrize("height", [5, 9, 16, 25, 50])
    def test_rows_cover_local_memory_without_gaps(self, zoom: Zoom, height: int) -> None:
        rows = axis(FACTS, zoom, height, 0)
        assert rows[0].start == 0
        assert rows[-1].end == CHIP.lmem_bytes
        assert all(a.end == b.start for a, b in pairwise(rows))
        assert all(row.start <= row.middle <= row.end for row in rows)

    def test_to_scale_every_half_row_is_the_same_share_of_a_bank(self) -> None:
        rows = whole_axis(FACTS, 25)
        assert len(rows) == 24
        assert {round((row.middle - row.start) / CHIP.bank_bytes, 3) for row in rows} == {0.333}

    def test_used_rows_fill_the_height_and_free_ranges_are_folded(self) -> None:
        rows = used_axis(FACTS, 30)
        assert len(rows) == 30
        folded = [row for row in rows if row.folded]
        assert [(row.end - row.start) // 1024 for row in folded] == [8, 3, 4, 4, 77]

    def test_more_buffers_than_rows_scroll(self) -> None:
        rows = used_axis(FACTS, 3)
        assert len(rows) > 3
        # every buffer still has a half row of its own
        canvas = draw(FACTS, rows, 80, View())
        assert all(canvas.buffer_rows(buffer) is not None for buffer in INDEX.values())

    def test_one_bank_in_powers_of_two(self) -> None:
        rows = bank_axis(FACTS, 5, 20)
        assert (rows[0].start, rows[-1].end) == (5 * CHIP.bank_bytes, 6 * CHIP.bank_bytes)
        assert {row.end - row.start for row in rows} == {1024}

    @given(st.integers(1, 40), st.integers(20, 300))
    def test_columns_share_the_width(self, steps: int, width: int) -> None:
        edges = columns(steps, width)
        widths = [b - a for a, b in pairwise(edges)]
        assert edges[0] == GUTTER
        assert min(widths) >= MIN_STEP
        assert max(widths) - min(widths) <= 1
        assert edges[-1] == max(width, GUTTER + MIN_STEP * steps)


class TestCanvas:
    @pytest.mark.parametrize("zoom", list(Zoom))
    @pytest.mark.parametrize(("width", "height"), [(60, 8), (80, 12), (120, 30), (190, 50)])
    def test_every_row_fills_the_width(self, zoom: Zoom, width: int, height: int) -> None:
        canvas = drawn(zoom, width, height)
        assert {len(text) for text in texts(canvas)} == {width}

    def test_a_buffer_is_drawn_at_its_addresses_and_in_its_steps_only(self) -> None:
        # GIVEN the map with a row per range
        canvas = drawn(height=30)
        residual = PLAN.buffers[INDEX["residual"]]
        for row, owners in zip(canvas.axis, canvas.owners, strict=True):
            inside = residual.address <= row.start and row.end <= residual.address + residual.nbytes
            for step in range(3):
                # THEN each cell in the middle of a step belongs to it just where it is live
                middle = (canvas.edges[step] + canvas.edges[step + 1]) // 2
                assert (owners[middle] == INDEX["residual"]) == (inside and step in (1, 2))

    def test_labels_name_value_and_size(self) -> None:
        everything = "\n".join(texts(drawn()))
        for text in (
            "%13 o_proj 72 KiB held",
            "%32 attention_residual · Add 12 KiB",
            "scratch RMSNorm",
            "48.2 KiB",
        ):
            assert text in everything

    def test_held_buffers_are_hatched_and_wrapped_ones_marked(self) -> None:
        lines = texts(drawn())
        assert any("╱╱╱" in line for line in lines)
        wrapped = next(line for line in lines if "%30" in line)
        assert wrapped[GUTTER] == "◂"
        assert wrapped.rstrip().endswith("▸")

    def test_colours_tell_kinds_and_the_selection_apart(self) -> None:
        canvas = drawn(view=View(selected=INDEX["residual"], step=1))
        rows = {name: canvas.buffer_rows(INDEX[name]) for name in INDEX}
        x = (canvas.edges[1] + canvas.edges[2]) // 2
        weight, residual = rows["o_proj weight"], rows["residual"]
        assert weight is not None
        assert residual is not None
        assert "bg:weights." in roles_at(canvas, weight[0], x)
        assert "bg:activations.s" in roles_at(canvas, residual[0], x)
        assert " column" in roles_at(canvas, residual[1] + 1, x)

    def test_misplaced_buffers_are_red(self) -> None:
        canvas = drawn(plan=with_buffer("norm", address=255 * 1024), height=30)
        rows = canvas.buffer_rows(INDEX["norm"])
        assert rows is not None
        assert "bg:bad." in roles_at(canvas, rows[0], GUTTER + 3)
        assert any(line.startswith("over") for line in texts(canvas))
        assert any("╳" in line for line in texts(canvas))
        assert any(
            "misplaced" in text for text, _ in legend(GroupFacts(with_buffer("norm", address=-1), OPS, CHIP))
        )

    def test_what_a_pipeline_step_does_not_use_is_only_outlined(self) -> None:
        # GIVEN the last pipeline step, in which only the last result is stored
        canvas = drawn(view=View(pipeline_step=3))
        rows = canvas.buffer_rows(INDEX["o_proj weight"])
        assert rows is not None
        # THEN the weight has no fill any more, and the stored part says whose slice it is
        assert "bg:" not in roles_at(canvas, rows[0], GUTTER + 3)
        assert "slice 1" in next(line for line in texts(canvas) if "%33" in line)

    def test_free_ranges_say_how_large_they_are(self) -> None:
        assert any("77 KiB free" in line for line in texts(drawn()))

    def test_touching_buffers_of_a_kind_have_different_shades(self) -> None:
        plan = with_buffer("input", address=98304 + 12288)
        facts = GroupFacts(plan, OPS, CHIP)
        found = shades(facts)
        assert found[INDEX["input"]] != found[INDEX["o_proj"]]


@given(st.integers(0, 60), st.integers(0, 6), st.sampled_from(sorted(INDEX.values())))
def test_labels_never_exceed_their_room(width: int, height: int, buffer: int) -> None:
    part = parts_of(buffer, PLAN.buffers[buffer], 3)[0]
    lines = label_lines(FACTS, part, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
