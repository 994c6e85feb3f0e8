"""Addresses: nothing that is live at the same time overlaps, banks are kept apart where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.passes.layer_group.allocation import (
    BANK_RULE,
    FRAGMENTATION,
    MEMORY,
    Failure,
    Request,
    allocate,
    peak,
    share_a_bank_badly,
)
from engine.passes.layer_group.plan import BufferKind
from engine.tpu.chip import chip

CHIP = chip("bm1684x")
BANK = CHIP.bank_bytes
ROWS = 5


def request(nbytes: int, rows: int, computed: int = 0, moved: int = 0, ops: Sequence[int] = ()) -> Request:
    first = (rows & -rows).bit_length() - 1
    return Request("v", BufferKind.ACTIVATION, nbytes, rows, computed, moved, frozenset(ops), first)


MASK = st.integers(0, (1 << ROWS) - 1)
SHAPE = st.tuples(
    st.integers(0, ROWS - 1),
    st.integers(1, ROWS),
    st.integers(1, 3 * BANK),
    MASK,
    MASK,
    st.frozensets(st.integers(0, 5), max_size=2),
    st.sampled_from(list(BufferKind)),
)


def requests() -> st.SearchStrategy[list[Request]]:
    """Buffers with lifetimes that may go around the loop."""

    def build(shapes: list[tuple[int, int, int, int, int, frozenset[int], BufferKind]]) -> list[Request]:
        found = []
        for number, (first, length, nbytes, computed, moved, ops, kind) in enumerate(shapes):
            rows = sum(1 << (first + i) % ROWS for i in range(length))
            found.append(Request(str(number), kind, nbytes, rows, computed & rows, moved & rows, ops, first))
        return found

    return st.lists(SHAPE, min_size=1, max_size=12).map(build)


def banks(address: int, item: Request) -> set[int]:
    return set(range(address // BANK, (address + item.nbytes - 1) // BANK + 1))


@settings(max_examples=150, deadline=None)
@given(requests())
def test_live_buffers_never_overlap(items: list[Request]) -> None:
    # WHEN addresses are found
    found = allocate(items, ROWS, CHIP)
    if isinstance(found, Failure):
        assert found.needed > CHIP.lmem_bytes
        assert (found.reason == MEMORY) == (peak(items, ROWS) > CHIP.lmem_bytes)
        return
    # THEN every buffer is inside, aligned, and apart from all that live with it, cyclic lifetimes included
    for address, item in zip(found, items, strict=True):
        assert address % CHIP.eu_bytes == 0
        assert address + item.nbytes <= CHIP.lmem_bytes
    for (at, a), (other, b) in combinations(zip(found, items, strict=True), 2):
        if a.rows & b.rows:
            assert at + a.nbytes <= other or other + b.nbytes <= at


@settings(max_examples=150, deadline=None)
@given(requests())
def test_banks_are_kept_apart_where_there_is_room(items: list[Request]) -> None:
    # GIVEN buffers that fit even if each had whole banks of its own
    small = [replace(item, nbytes=min(item.nbytes, BANK)) for item in items]
    found = allocate(small, ROWS, CHIP)
    assert not isinstance(found, Failure)
    # THEN none shares a bank with one that it holds up
    for (at, a), (other, b) in combinations(zip(found, small, strict=True), 2):
        if a.rows & b.rows and share_a_bank_badly(a, b):
            assert not banks(at, a) & banks(other, b)


def test_banks_are_shared_where_nothing_else_fits() -> None:
    # GIVEN two operands of one op, of eight banks and seven and a half, of sixteen
    items = [
        request(7 * BANK + BANK // 2, 1, computed=1, ops=[0]),
        request(8 * BANK + 64, 1, computed=1, ops=[0]),
    ]
    # WHEN they are placed
    found = allocate(items, 1, CHIP)
    # THEN they meet in a bank
    assert not isinstance(found, Failure)
    assert banks(found[0], items[0]) & banks(found[1], items[1])


def test_a_failure_of_the_bank_rule_is_told_from_fragmentation() -> None:
    # GIVEN three operands of one op, each a little over five banks: the first two leave half-empty banks behind
    items = [request(5 * BANK + 64, 1, computed=1, ops=[0]) for _ in range(3)]
    # THEN they fit only if banks are shared from the start
    assert allocate(items, 1, CHIP) == Failure(CHIP.lmem_bytes + 128, BANK_RULE)
    assert allocate(items, 1, CHIP, spread=False) == (0, 5 * BANK + 64, 10 * BANK + 128)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [([CHIP.lmem_bytes // 2 + 64] * 2, MEMORY), ([CHIP.lmem_bytes + 64], MEMORY)],
)
def test_too_much_at_once_is_said_with_the_bytes(sizes: list[int], reason: str) -> None:
    items = [request(size, 1, computed=1) for size in sizes]
    assert allocate(items, 1, CHIP) == Failure(sum(sizes), reason)


def test_what_fits_in_sum_but_not_in_place_is_fragmentation() -> None:
    # GIVEN three buffers of half the memory, two of which are live in each of three rows of a loop
    half = CHIP.lmem_bytes // 2
    items = [request(half, rows, computed=rows) for rows in (0b011, 0b110, 0b101)]
    assert peak(items, 3) == CHIP.lmem_bytes
    # THEN the third meets both others
    assert allocate(items, 3, CHIP) == Failure(3 * half, FRAGMENTATION)


def test_held_buffers_and_short_ones_do_not_mix() -> None:
    # GIVEN a weight that is held, and two activations in different rows
    held = replace(request(BANK, 0b11), held=True)
    first, second = request(BANK, 0b01), request(BANK, 0b10)
    found = allocate([held, first, second], 2, CHIP)
    # THEN the activations share a place, not the weight's
    assert not isinstance(found, Failure)
    assert found[1] == found[2] != found[0]
