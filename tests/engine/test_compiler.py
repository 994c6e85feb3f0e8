"""Compiling in worker processes: sharing, failures, cancelling."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from aborting import AbortingOptions
from tiny import write_tiny

from engine.compiler import Model, compile_model, open_model
from engine.errors import CompileError, UserError
from engine.passes import PASS_NAMES
from engine.tpu.memory import check_addresses
from engine.worker import PassFinished


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(write_tiny(tmp_path_factory.mktemp("m") / "llama", "llama", layers=3))


def test_equal_layers_are_compiled_once_and_the_last_apart(model: Model) -> None:
    compilation = compile_model(model, model.resolve(seq_length=64))
    assert compilation.complete
    names = [spec.name for spec in compilation.specs]
    assert names.count("block_0") == 1
    assert "block_1" not in names
    spec, layer = compilation.find("block_1")
    assert (spec.name, layer) == ("block_0", 1)
    last = compilation.snapshots("block_2").after("import")
    assert sum(op.name == "top.RMSNorm" for op in last.ops) == 3


def test_every_module_honours_the_address_contract(model: Model) -> None:
    compilation = compile_model(
        model, model.resolve(seq_length=48, decode_chunks=[7, 13], max_input_length=5)
    )
    for spec in compilation.specs:
        snapshot = compilation.modules[spec.name].after("address-assign")
        assert check_addresses(snapshot.ops, snapshot.attributes, spec, compilation.options) == []


def test_merge_gives_each_layer_its_own_memory_and_its_modules_the_same(model: Model) -> None:
    compilation = compile_model(model, model.resolve(seq_length=64))
    merged = compilation.merged
    decode = [spec for spec in compilation.specs if spec.name.startswith("block_cache")]
    for layer in range(3):
        served = [spec for spec in decode if layer in spec.layers]
        addresses = {merged.kv_addresses(spec.name, layer) for spec in served}
        assert len(addresses) == 1
    everything = {merged.kv_addresses("block_cache_0", layer)[0] for layer in (0, 1)}
    assert len(everything) == 2
    assert len({bases.neuron for bases in merged.bases.values()}) == 1


def test_a_pass_that_aborts_is_reported_and_the_rest_stands(model: Model) -> None:
    # GIVEN options under which lowering kills the process
    options = AbortingOptions(**model.resolve(seq_length=64).to_dict(), parent=os.getpid())
    # WHEN the model is compiled
    compilation = compile_model(model, options, only=["block_0", "block_cache_0"])
    # THEN both failures name module and pass, and the IR before the pass is saved
    assert set(compilation.failures) == {"block_0", "block_cache_0"}
    failure = compilation.failures["block_0"]
    assert failure.pass_name == "processor-assign"
    assert "aborted on module block_0" in failure.message
    saved = Path(failure.saved_ir).read_text()
    Path(failure.saved_ir).unlink()
    assert saved == compilation.modules["block_0"].snapshots[-1].text
    with pytest.raises(CompileError, match="processor-assign"):
        compilation.require_complete()


def test_cancel_stops_at_once_and_keeps_what_was_finished(model: Model) -> None:
    cancel = threading.Event()
    seen = []

    def on_event(event: object) -> None:
        seen.append(event)
        if isinstance(event, PassFinished):
            cancel.set()

    compilation = compile_model(model, model.resolve(seq_length=64), on_event, cancel)
    assert compilation.cancelled
    assert not compilation.complete
    assert sum(isinstance(event, PassFinished) for event in seen) < len(PASS_NAMES) * 2
    with pytest.raises(CompileError, match="cancelled"):
        compilation.require_complete()


def test_unknown_module_is_refused_with_the_list(model: Model) -> None:
    compilation = compile_model(model, model.resolve(seq_length=64), only=["lm_head"])
    with pytest.raises(UserError, match=r"unknown module 'block_9'.*block_0 \(x2\)"):
        compilation.find("block_9")
