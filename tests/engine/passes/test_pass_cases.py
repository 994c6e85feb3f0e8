"""Every pass against a small module: the IR before it and the IR that it must make of it.

A case is `cases/<pass>--<what>.mlir`: the module before, a line `// after`, the module after (locations left out). A
first line `// options: chip_name=bm1688 cores=2` compiles for other options than the default ones.
`TPUSCOPE_UPDATE_CASES=1` writes the second half anew; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tiny import write_tiny

from engine import mlir
from engine.compiler import Model, open_model
from engine.passes import PASSES, load
from engine.passes.base import PassContext
from engine.stages import find, plan

CASES = sorted((Path(__file__).parent / "cases").glob("*.mlir"))
SEPARATOR = "// after\n"
OPTIONS = "// options: "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(write_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama"))


def context_of(case: str, model: Model) -> PassContext:
    """A decode block of a tiny llama, w4bf16: cases use its shapes where a pass looks at the interface."""
    first = case.partition("\n")[0]
    given = first.removeprefix(OPTIONS).split() if first.startswith(OPTIONS) else []
    named = dict(item.split("=") for item in given)
    chosen = {name: int(value) if value.isdigit() else value for name, value in named.items()}
    options = model.resolve(seq_length=64, quantize="w4bf16", **chosen)
    spec, _ = find(plan(model.shape, options), "block_cache_0")
    return PassContext(spec, model.config, options)


def without_locations(text: str) -> str:
    text = re.sub(r" loc\((?:[^()]|\([^()]*\))*\)", "", text)
    return "\n".join(line for line in text.split("\n") if not line.startswith("#")).strip() + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_pass_turns_before_into_after(case: Path, model: Model) -> None:
    # GIVEN the module before the pass
    before, _, expected = case.read_text().partition(SEPARATOR)
    with mlir.using(mlir.new_context()):
        module = mlir.parse(before, case.name)
        # WHEN the pass runs
        load(case.stem.partition("--")[0])().run(module, context_of(before, model))
        mlir.verify(module)
        text = without_locations(mlir.print_module(module))
    # THEN it is the module after
    if os.environ.get("TPUSCOPE_UPDATE_CASES"):
        case.write_text(before + SEPARATOR + text)
    assert text == expected


def test_every_pass_has_a_case() -> None:
    covered = {case.stem.partition("--")[0] for case in CASES}
    assert covered >= PASSES.keys()
