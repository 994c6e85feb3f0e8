"""DDR memory: the allocator never overlaps what lives at the same time; the checker sees every broken rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import write_tiny

from engine.compiler import Compilation, compile_model, open_model
from engine.errors import CompileError
from engine.snapshot import OpRecord
from engine.tpu.memory import (
    ArenaLayout,
    Buffer,
    Placement,
    allocate,
    arena_size,
    check_addresses,
    check_no_overlap,
    tensor_places,
    value_names,
    with_address,
)

ALIGNMENT = 4096


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    found = []
    for index in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 30))
        found.append(
            Buffer(f"b{index}", draw(st.integers(0, 50_000)), first, first + draw(st.integers(0, 15)))
        )
    return found


@given(buffers())
def test_live_buffers_never_overlap_and_stay_inside_the_arena(found: list[Buffer]) -> None:
    placed = allocate(found, ALIGNMENT)
    assert set(placed) == {b.name for b in found}
    size = arena_size(placed.values(), ALIGNMENT)
    for one in placed.values():
        assert one.offset % ALIGNMENT == 0
        assert one.offset >= 0
        assert one.end <= size
        for other in placed.values():
            together = one.buffer.first <= other.buffer.last and other.buffer.first <= one.buffer.last
            if one is not other and together and one.buffer.nbytes and other.buffer.nbytes:
                assert one.end <= other.offset or other.end <= one.offset
    check_no_overlap(list(placed.values()))


def test_memory_is_used_again_once_a_buffer_is_dead() -> None:
    placed = allocate([Buffer("a", 4096, 0, 1), Buffer("b", 4096, 1, 2), Buffer("c", 4096, 2, 3)], ALIGNMENT)
    assert [placed[n].offset for n in "abc"] == [0, 4096, 0]


def test_overlap_of_live_buffers_is_a_hard_error_that_names_both() -> None:
    one = Placement(Buffer("first", 5000, 0, 4), 0)
    other = Placement(Buffer("second", 10, 4, 6), 4096)
    with pytest.raises(CompileError, match=r"first .*overlaps second"):
        check_no_overlap([one, other])


@pytest.fixture(scope="module")
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    model = open_model(write_tiny(tmp_path_factory.mktemp("m") / "llama", "llama"))
    return compile_model(model, model.resolve(seq_length=64), only=["block_cache_0", "block_kv_0"])


def moved(op: OpRecord, by: int) -> OpRecord:
    type_ = op.result_types[0]
    assert type_.address is not None
    return replace(op, result_types=(with_address(type_, type_.address + by), *op.result_types[1:]))


@pytest.mark.parametrize(
    ("name", "by", "message"),
    [
        ("tpu.RMSNorm", 64, "off the 4096-byte grid"),
        ("tpu.RMSNorm", 1 << 40, "lies in no arena"),
        ("tpu.A16MatMul", -4096, "overlaps"),
        ("history_k", 4096, "its region starts at"),
    ],
)
def test_the_checker_reports_a_moved_tensor(
    compilation: Compilation, name: str, by: int, message: str
) -> None:
    # GIVEN an addressed module in which one tensor is moved
    snapshot = compilation.modules["block_cache_0"].after("address-assign")
    spec, _ = compilation.find("block_cache_0")
    index = next(i for i, op in enumerate(snapshot.ops) if name in (op.name, op.location))
    ops = list(snapshot.ops)
    ops[index] = moved(ops[index], by)
    # WHEN it is checked THEN the broken rule is named
    try:
        problems = check_addresses(ops, snapshot.attributes, spec, compilation.options)
    except CompileError as error:
        problems = [str(error)]
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize("module", ["block_cache_0", "block_kv_0"])
def test_outputs_live_through_the_whole_module(compilation: Compilation, module: str) -> None:
    # GIVEN a module whose new V rows are a reshaped product and whose new K rows are not
    snapshot = compilation.modules[module].after("address-assign")
    # WHEN lifetimes are asked for THEN memory that belongs to the outside is never free, whatever op writes it
    places = tensor_places(snapshot.ops, ArenaLayout.of(snapshot.attributes))
    outputs = {type_.address for type_ in snapshot.ops[-1].operand_types}
    found = {place.address: (place.first, place.last) for place in places if place.address in outputs}
    assert found == dict.fromkeys(outputs, (0, len(snapshot.ops) - 1))


def test_each_result_of_a_group_is_called_as_the_op_inside_that_makes_it(compilation: Compilation) -> None:
    # GIVEN a module with a group of several results
    snapshot = compilation.modules["block_cache_0"].after("address-assign")
    groups = [op for op in snapshot.ops if op.name == "tpu.Group"]
    assert any(len(group.results) > 1 for group in groups)
    # WHEN its values and its tensors in DDR are named
    names = value_names(snapshot.ops)
    places = tensor_places(snapshot.ops, ArenaLayout.of(snapshot.attributes))
    # THEN a result has the name of what is stored at its address
    stores = {op.result_types[0].address: op.location for op in snapshot.ops if op.name == "tpu.Store"}
    for group in groups:
        expected = [stores[type_.address] for type_ in group.result_types]
        assert [names[value] for value in group.results] == expected
        assert len(set(expected)) == len(expected)
    results = {value for group in groups for value in group.results}
    named = {place.value: place.name for place in places if place.value in results}
    assert named == {value: names[value] for value in results}


def test_the_checker_reports_rows_appended_at_the_wrong_slot(compilation: Compilation) -> None:
    snapshot = compilation.modules["block_kv_0"].after("address-assign")
    spec, _ = compilation.find("block_kv_0")
    ops = list(snapshot.ops)
    last = ops[-1]
    k = last.operand_types[1]
    assert k.address is not None
    shifted = with_address(k, k.address + 64)
    ops[-1] = replace(last, operand_types=(last.operand_types[0], shifted, last.operand_types[2]))
    problems = check_addresses(ops, snapshot.attributes, spec, compilation.options)
    assert any("k_cache is written at" in problem for problem in problems)
