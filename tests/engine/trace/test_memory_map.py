"""Memory maps: boxes lie where addresses and lifetimes say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from compiled import tiny_compilation

from engine.errors import UserError
from engine.tables import memory_table
from engine.trace.memory_map import ddr_map, lmem_map, write_memory_map
from engine.trace.palette import LIGHT

SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> dict[str, dict[str, Any]]:
    """Tooltip's first line -> the numbers of its box."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and rect is not None:
            numbers = {key: float(rect.get(key, "0")) for key in ("x", "y", "width", "height")}
            found.setdefault((title.text or "").splitlines()[0], []).append(
                {**numbers, "stroke": rect.get("stroke"), "hatched": len(group.findall(f"{SVG}rect")) > 1}
            )
    return found


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


def ddr_row(
    tensor: str, address: int, nbytes: int, first: int, last: int, arena: str = "neuron"
) -> dict[str, Any]:
    return {
        "arena": arena,
        "tensor": tensor,
        "address": address,
        "bytes": nbytes,
        "first_use": first,
        "last_use": last,
    }


def test_lifetimes_run_right_and_addresses_down() -> None:
    # GIVEN two tensors one after the other in time and one below both
    rows = [ddr_row("a", 4096, 1000, 3, 4), ddr_row("b", 4096, 1000, 5, 6), ddr_row("c", 5096, 2000, 3, 6)]
    found = {name: box[0] for name, box in boxes(ddr_map({"ddr": rows}, title="m")).items() if name in "abc"}
    a, b, c = (found[name] for name in "abc")
    # THEN neighbours in time touch, the longer-lived one is twice as wide, twice the bytes are twice as high
    assert a["x"] + a["width"] + 1 == pytest.approx(b["x"], abs=0.1)
    assert c["width"] + 1 == pytest.approx(2 * (a["width"] + 1), abs=0.1)
    assert c["height"] == pytest.approx(2 * a["height"], abs=0.1)
    assert c["y"] == pytest.approx(a["y"] + a["height"], abs=0.1)


def test_parts_of_a_quantised_weight_are_one_bar() -> None:
    rows = [
        ddr_row("model.layers.{i}.mlp.up_proj.weight", 0, 900, 0, 9, "coeff"),
        ddr_row("model.layers.{i}.mlp.up_proj.weight.scale", 4096, 100, 0, 9, "coeff"),
    ]
    svg = ddr_map({"ddr": rows}, title="m")
    assert "mlp.up_proj: 1.00 kB" in boxes(svg)
    assert words(svg).count("mlp.up_proj") == 1


def test_a_compiled_module_is_drawn(tmp_path: Path) -> None:
    memory = memory_table(tiny_compilation(), "block_cache_0")
    svg = ddr_map(memory, title="block_cache_0")
    drawn = boxes(svg)
    for row in memory["ddr"]:
        if row["arena"] == "neuron":
            assert row["tensor"] in drawn
    assert "history_k" in words(svg)
    write_memory_map(memory, tmp_path / "m.png", title="m")
    write_memory_map(memory, tmp_path / "m.svg", title="m")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "m.svg").read_text().startswith("<svg")


def lmem_row(buffer: str, address: int, nbytes: int, first: int, last: int, **more: Any) -> dict[str, Any]:
    return {
        "group": 2,
        "buffer": buffer,
        "kind": "weight",
        "address": address,
        "bytes": nbytes,
        "first_step": first,
        "last_step": last,
        "banks": [0],
        **more,
    }


def lmem(*rows: dict[str, Any]) -> str:
    memory = {
        "lmem": list(rows),
        "groups": [{"group": 2, "ops": [], "secs": [1, 4, 1, 1, 1], "cycles": 12_000, "peak_bytes": 0}],
    }
    return lmem_map(memory, 2, title="g", bank_bytes=1024, banks=16)


def test_buffers_lie_at_their_banks_and_steps() -> None:
    svg = lmem(lmem_row("w", 0, 2048, 0, 2, held=True), lmem_row("x", 3072, 1024, 1, 1, kind="activation"))
    w, x = (boxes(svg)[name][0] for name in ("w (weight)", "x (activation)"))
    assert (w["hatched"], x["hatched"]) == (True, False)
    assert x["stroke"] == LIGHT["activations"]
    assert w["width"] + 3 == pytest.approx(3 * (x["width"] + 3), abs=0.1)
    assert x["y"] - w["y"] == pytest.approx(1.5 * (w["height"] + 1.5), abs=0.1)
    assert {"step 1", "step 2", "step 3"} <= set(words(svg))
    assert "2 buffers · highest address 4 of 16 KiB a lane · csecs 4 · 12.0 kc" in words(svg)


def test_a_lifetime_around_the_loop_is_two_boxes() -> None:
    svg = lmem(lmem_row("w", 0, 1024, 0, 2), lmem_row("x", 1024, 1024, 2, 0))
    first, second = sorted(boxes(svg)["x (weight)"], key=lambda box: -box["x"])
    (whole,) = boxes(svg)["w (weight)"]
    assert second["x"] == whole["x"]
    assert first["x"] + first["width"] == pytest.approx(whole["x"] + whole["width"], abs=0.1)


def test_what_does_not_fit_is_red() -> None:
    fits = lmem(lmem_row("w", 0, 1024, 1, 1))
    over = lmem(lmem_row("w", 0, 17 * 1024, 1, 1, failed=True))
    assert boxes(over)["w (weight)"][0]["stroke"] == LIGHT["bad"]
    line = re.compile(rf'<line [^>]*stroke="{LIGHT["bad"]}"')
    assert line.search(over)
    assert not line.search(fits)


def test_an_unknown_group_is_named_with_those_there_are() -> None:
    rows = {"lmem": [lmem_row("w", 0, 1, 1, 1)], "groups": []}
    with pytest.raises(UserError, match="no layer group 7; this module has: 2"):
        lmem_map(rows, 7, title="", bank_bytes=1024, banks=16)
    with pytest.raises(UserError, match="this module has none"):
        lmem_map({"lmem": [], "groups": []}, 7, title="", bank_bytes=1024, banks=16)


def test_a_low_box_has_its_label_below_where_nothing_else_lies() -> None:
    alone = lmem(lmem_row("tiny", 0, 64, 0, 0))
    above = lmem(lmem_row("tiny", 0, 64, 0, 0), lmem_row("big", 64, 4096, 0, 0))
    earlier = lmem(lmem_row("tiny", 0, 64, 1, 1), lmem_row("big", 64, 4096, 0, 0))
    assert [any(word.startswith("tiny") for word in words(svg)) for svg in (alone, above, earlier)] == [
        True,
        False,
        True,
    ]
