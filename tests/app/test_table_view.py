"""Columns that fit, text that wraps, numbers that people read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from app import units
from app.screens.open_model import completions
from app.widgets.lines import plain
from app.widgets.table import Column, Row, TableView, fitted, width_of
from app.widgets.text_flow import wrap


class OneTable(App[None]):
    """An app with nothing but a table."""

    CSS = "TableView { border: none; }"

    def __init__(self, table: TableView) -> None:
        super().__init__()
        self.table = table

    def compose(self) -> ComposeResult:
        yield self.table


class TestTable:
    async def test_columns_align_and_the_least_important_go_first(self) -> None:
        # GIVEN a table of three columns, one of which may go
        table = TableView((Column("name"), Column("bytes", right=True), Column("about", rank=1)))
        rows = [Row(("a", "1", "first of all"), "a"), Row(("bcd", "22,000", "second"), "b")]
        async with OneTable(table).run_test(size=(60, 10)) as pilot:
            table.show(rows)
            await pilot.pause()
            assert plain(table.line(0)).startswith(" a          1  first")
            assert plain(table.line(1)).startswith(" bcd   22,000  second")
            # WHEN there is no room for all THEN the unimportant one goes
            await pilot.resize_terminal(20, 10)
            await pilot.pause()
            assert plain(table.line(1)).strip() == "bcd   22,000"

    async def test_the_cursor_stays_on_its_row_and_jumps_over_heads(self) -> None:
        table = TableView((Column("name"),))
        async with OneTable(table).run_test(size=(30, 10)) as pilot:
            table.show([Row(("group",), head=True), Row(("a",), "a"), Row(("b",), "b")])
            await pilot.pause()
            assert table.key == "a"
            table.move_by(1)
            table.show([Row(("group",), head=True), Row(("x",), "x"), Row(("a",), "a"), Row(("b",), "b")])
            assert table.key == "b"
            table.move_by(-10)
            assert table.key == "x"


@given(st.text(alphabet="abc ü漢", max_size=30), st.integers(1, 40), st.booleans())
def test_fitted_lines_have_the_width(text: str, width: int, right: bool) -> None:
    found = width_of(fitted([(text, "")], width, right))
    # a wide character that would be cut in half leaves its cell empty
    assert width - 1 <= found <= width


@given(st.lists(st.text(alphabet="ab \n漢", max_size=12), max_size=8), st.integers(8, 30))
def test_wrapping_keeps_every_letter_and_the_width(parts: list[str], width: int) -> None:
    pieces = [(part, "x") for part in parts]
    lines = wrap(pieces, width)
    assert all(width_of(line) <= width for line in lines)
    written = "".join(plain(line) for line in lines)
    assert written == "".join(parts).replace("\n", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.size(0), "0 B"),
        (units.size(999), "999 B"),
        (units.size(2_108_416), "2.11 MB"),
        (units.size(129_400_000, 4), "129.4 MB"),
        (units.cycles(75_703), "75.7 kc"),
        (units.duration(0.00365), "3.65 ms"),
        (units.duration(12.34), "12.3 s"),
        (units.duration(75), "1 min 15 s"),
        (units.address(0x1_0000_1000), "0x1_0000_1000"),
        (units.share(1, 4), "25.0 %"),
        (units.bar(1, 1000, 10), "▏"),
        (units.bar(5, 10, 10), "█████"),
        (units.bar(0, 10, 10), ""),
    ],
)
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_completions_list_models_before_anything_is_opened(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "plain").mkdir()
    (folder / "m.tpuscope").write_bytes(b"x")
    (folder / "notes.txt").write_text("x")
    found = {choice.title: (choice.kind, choice.about) for choice in completions(f"{folder}/")}
    assert found == {
        "m.tpuscope": ("model", "compiled file"),
        "model/": ("model", "architecture without weights"),
        "plain/": ("folder", ""),
    }
    assert [choice.title for choice in completions(f"{folder}/mod")] == ["model/"]
    assert completions(f"{folder}/missing/x") == []
