"""The report: one file, complete, loading nothing, with the figures of the tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from compiled import compile_here, tiny_compilation
from core_cases import SMALL

from engine.compiler import Compilation
from engine.errors import CompileError, UserError
from engine.sim.throughput import simulate
from engine.tables import memory_table
from engine.trace import report
from engine.trace.html import inline
from engine.trace.memory_map import shares_of
from engine.trace.report import report_html, write_report

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Checks that tags nest and keeps what tests look for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = dict(attributes)
        if "id" in given:
            self.ids[given["id"] or ""] += 1
        if tag == "a":
            self.links.append(given.get("href") or given.get("xlink:href") or "")
        self.loads += [value for name in ("src", "data", "srcset") if (value := given.get(name))]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return tiny_compilation()


@pytest.fixture(scope="module")
def text(compilation: Compilation) -> str:
    return report_html(compilation)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_loads_nothing_from_elsewhere(text: str, page: Page) -> None:
    assert page.loads == []
    assert page.tags["link"] == 0
    assert "@import" not in text
    assert "url(http" not in text
    addresses = set(re.findall(r"https?://[^\"' <]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_ids_are_unique_and_links_lead_to_them(page: Page) -> None:
    assert {name: count for name, count in page.ids.items() if count > 1 and name != "hatch"} == {}
    targets = {link.removeprefix("#") for link in page.links if link.startswith("#")}
    assert targets == {"speed", "modules", "passes", "memory", "kv", "ops", "diagrams"}
    assert targets <= set(page.ids)


def test_every_module_pass_and_picture_is_there(compilation: Compilation, text: str, page: Page) -> None:
    words = " ".join(page.words)
    for spec in compilation.specs:
        assert spec.name in words
    for snapshot in compilation.snapshots("block_0").snapshots:
        assert snapshot.pass_name in words
    # traffic, speed, the whole DDR, three blocks in DDR, KV, loop, pipeline, three module graphs, every layer group
    blocks = ("block_0", "block_kv_0", "block_cache_0")
    groups = sum(len(memory_table(compilation, name)["groups"]) for name in blocks)
    assert groups > 0
    assert page.tags["svg"] == 12 + groups
    assert "$" not in re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)


def test_figures_are_the_simulations(compilation: Compilation, text: str) -> None:
    found = simulate(compilation).to_json()
    assert f"<b>{found['decode']['tokens_per_s']:,.0f}</b>" in text
    cycles = Counter[str]()
    for module in found["modules"]:
        if module["stage"] == "decode" and not re.search(r"_\d+_\d+$", module["name"]):
            for op in module["ops"]:
                if op["location"].endswith("q_proj"):
                    cycles["q_proj"] += op["cycles"] * len(module["layers"])
    assert f"{cycles['q_proj']:,}" in text


def test_given_figures_are_taken_as_they_are(compilation: Compilation) -> None:
    found = simulate(compilation).to_json()
    found["decode"]["tokens_per_s"] = 1234.4
    text = report_html(compilation, simulation=found, speeds=[(0, 7), (10, 5)])
    assert "<b>1,234</b>" in text
    assert "10 rows of history: 5 tokens/s" in text


def test_pictures_follow_the_readers_colour_scheme(text: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert all("var(--" in picture for picture in pictures)
    assert not any(re.search(r'(?:fill|stroke)="#', picture) for picture in pictures)
    assert "@media (prefers-color-scheme: dark)" in text


def test_graphviz_output_is_cut_to_its_picture() -> None:
    svg = '<?xml version="1.0"?>\n<!DOCTYPE svg>\n<!-- made -->\n<svg><!-- a --><g id="node1" class="node"/></svg>'
    assert inline(svg) == '<svg><g class="node"/></svg>'


def test_local_memory_of_groups_is_drawn(compilation: Compilation, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a module whose memory table has a layer group
    def with_group(compilation: Compilation, module: str) -> dict[str, Any]:
        row = {"group": 0, "buffer": "model.layers.{i}.mlp.act", "kind": "activation", "address": 0}
        group = {"group": 0, "ops": ["tpu.Add"], "secs": [1, 2, 1, 1, 1], "cycles": 1000, "peak_bytes": 4096}
        lmem = [{**row, "bytes": 4096, "first_step": 0, "last_step": 1, "banks": [0]}]
        return {**memory_table(compilation, module), "groups": [group], "lmem": lmem}

    monkeypatch.setattr(report, "memory_table", with_group)
    words = " ".join(Page(report_html(compilation)).words)
    assert "block_kv_0, layer group 0" in words
    assert "mlp.act · 4 KiB" in words


def test_names_are_escaped(compilation: Compilation) -> None:
    from dataclasses import replace

    named = replace(compilation.config, name="a<script>&b")
    other = Compilation(named, compilation.options, compilation.specs, compilation.modules, {}, False)
    other._finished |= {spec.name for spec in compilation.specs}
    text = report_html(other)
    assert "a<script>" not in text
    assert "<h1>a&lt;script&gt;&amp;b</h1>" in text


def test_files_and_what_is_missing(compilation: Compilation, tmp_path: Path) -> None:
    write_report(compilation, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UserError, match=r"ends in '.pdf'; accepted: .html"):
        write_report(compilation, tmp_path / "r.pdf")
    half = Compilation(compilation.config, compilation.options, compilation.specs)
    with pytest.raises(CompileError):
        write_report(half, tmp_path / "half.html")
    assert not (tmp_path / "half.html").exists()


def test_a_group_of_several_cores_is_drawn_for_one_with_a_note(tmp_path: Path) -> None:
    # GIVEN a block for two cores, whose last group both run
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    options = {"quantize": "bf16", "seq_length": 1024, "history": False, "chip_name": "bm1688", "cores": 2}
    compilation = compile_here(path, ("block_0",), **options)
    spec, _ = compilation.find("block_0")
    memory = memory_table(compilation, "block_0")
    numbers = {row["group"]: [bool(core["slices"]) for core in row["cores"]] for row in memory["groups"]}
    # WHEN its maps are drawn THEN each is that of one core, with its pipeline, and says what the others do
    text = report._group_maps(compilation, spec, memory)
    assert "2 cores:" not in text
    assert text.count("<figcaption>") == len(numbers)
    shared = next(number for number, runs in numbers.items() if all(runs))
    share, other = (shares_of(memory["groups"][shared])[core] for core in (0, 1))
    assert f"core 0 of 2 · {share.slices_text}" in text
    assert (
        f"Core 0 is drawn, which runs {share.slices_text}; in the same places run core 1 {other.slices_text}."
        in text
    )
    assert "the other cores run nothing of this group" in text
    first = other.parts[0][0]
    assert "compute slice 0<" in text
    assert f"compute slice {first}<" not in text
