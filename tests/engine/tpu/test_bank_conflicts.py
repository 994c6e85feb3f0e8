"""Both engines in one bank: only where nothing keeps them apart in time, by lane and by bank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sim.machine import Machine
from engine.tpu.bank_conflicts import bank_conflicts
from engine.tpu.chip import chip
from engine.tpu.isa import Arena, Constant, Direction, Global, Local, Opcode, Stream

CHIP = chip("bm1688")
BANK = CHIP.bank_bytes


def local(address: int, lane: int = 0, channels: int = 4) -> Local:
    return Local(address, "f32", (1, channels, 1, 4), (4, 4, 4, 1), lane)


@dataclass(frozen=True)
class Use:
    """A load into local memory, or a fill of it. wait: how many commands of the other engine must have ended."""

    loads: bool
    tensor: Local
    wait: int = 0
    core: int = 0
    history: int = 0


def program(*uses: Use) -> np.ndarray:
    stream = Stream()
    for use in uses:
        opcode = Opcode.TENSOR if use.loads else Opcode.COPY
        shape = use.tensor.shape
        source = Global(Arena.IO, 0, "f32", shape, (64, 4, 4, 1)) if use.loads else Constant(0.0)
        stream.append(
            opcode, use.tensor, (source,), op=0, wait=use.wait, core=use.core, history=use.history,
            direction=Direction.LOAD,
        )  # fmt: skip
    return stream.program()


def pairs(*uses: Use) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in bank_conflicts(program(*uses), CHIP).tolist()]


def test_a_load_beside_a_fill_of_the_same_bank() -> None:
    found = pairs(Use(True, local(BANK)), Use(False, local(2 * BANK - 64)))
    assert found == [(1, 0, 1)]


@pytest.mark.parametrize(
    "other",
    [
        Use(False, local(2 * BANK)),
        Use(False, local(BANK + 512, lane=4)),
        Use(False, local(BANK + 512), wait=1),
        Use(False, local(BANK + 512), core=1),
        Use(True, local(BANK + 512)),
    ],
    ids=["another bank", "other lanes", "waits", "another core", "the same engine"],
)
def test_what_keeps_them_apart(other: Use) -> None:
    assert pairs(Use(True, local(BANK)), other) == []


def test_channels_behind_the_last_lane_go_on_in_the_first() -> None:
    assert pairs(Use(True, local(0, lane=30)), Use(False, local(64, lane=0, channels=1))) == [(1, 0, 0)]


def test_a_wait_holds_for_all_that_follow_on_the_queue() -> None:
    # GIVEN a fill that waits for a load, and one behind it that says no more than that it waits for nothing
    found = pairs(Use(True, local(0)), Use(False, local(BANK), wait=1), Use(False, local(64)))
    assert found == []


def test_buffers_of_one_number_may_meet_and_those_of_none() -> None:
    uses = (Use(True, local(0)), Use(False, local(64)))
    owners = np.zeros((2, 5), np.int64)
    for numbers, expected in (((0, 0), 0), ((3, 3), 0), ((3, 4), 1), ((3, 0), 1)):
        owners[:, 0] = numbers
        assert len(bank_conflicts(program(*uses), CHIP, owners=owners)) == expected


def test_what_does_not_run_holds_up_nobody() -> None:
    uses = (Use(True, local(0)), Use(False, local(64)))
    assert len(bank_conflicts(program(*uses), CHIP, runs=np.array([False, True]))) == 0


def test_machine_counts_instructions_of_each_op() -> None:
    # GIVEN two fills beside a load of the same bank, and a fill elsewhere
    made = program(
        Use(True, local(0)), Use(False, local(64)), Use(False, local(128)), Use(False, local(BANK))
    ).copy()
    made["op"] = [3, 5, 5, 5]
    # WHEN the program has run, with checks or without
    machine = Machine(CHIP, {Arena.IO: np.zeros(1 << 16, np.uint8)})
    assert machine.bank_conflicts == {}
    machine.run(made)
    # THEN those that may meet are counted
    assert machine.bank_conflicts == {3: 1, 5: 2}


uses = st.builds(
    Use,
    st.booleans(),
    st.builds(local, st.sampled_from([0, 64, BANK - 64, BANK, 3 * BANK]), st.sampled_from([0, 2, 30])),
    st.integers(0, 3),
    st.integers(0, 1),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(uses, max_size=9))
def test_pairs_are_those_that_a_count_one_by_one_gives(listed: list[Use]) -> None:
    # GIVEN a program whose waits name commands issued before
    made = program(*listed).copy()
    ended, ids, expected = {}, {}, []
    for at, use in enumerate(listed):
        queue, other = (use.core, use.loads), (use.core, not use.loads)
        made["wait"][at] = min(use.wait, ids.get(other, 0))
        ids[queue] = ids.get(queue, 0) + 1
        ended[queue] = max(ended.get(queue, 0), int(made["wait"][at]))
        for before in range(at):
            one = listed[before]
            apart = one.core != use.core or one.loads == use.loads or made["id"][before] <= ended[queue]
            if not apart and lanes(one) & lanes(use) and banks(one) & banks(use):
                expected.append((at, before, min(banks(one) & banks(use))))
    # WHEN counted at once THEN they are the same
    assert [tuple(row) for row in bank_conflicts(made, CHIP).tolist()] == expected


def lanes(use: Use) -> set[int]:
    """All lanes where a tensor goes on behind the last one."""
    last = use.tensor.lane + use.tensor.shape[1]
    return set(range(CHIP.lanes)) if last > CHIP.lanes else set(range(use.tensor.lane, last))


def banks(use: Use) -> set[int]:
    blocks = -(-(use.tensor.lane + use.tensor.shape[1]) // CHIP.lanes)
    end = use.tensor.address + 16 * blocks
    return set(range(use.tensor.address // BANK, -(-end // BANK)))


def test_many_pairs_are_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN ten loads beside ten fills, none of which waits
    listed = [Use(at < 10, local(64 * at)) for at in range(20)]
    found = pairs(*listed)
    assert len(found) == 100
    # WHEN few pairs are looked at at once THEN they are the same
    monkeypatch.setattr("engine.tpu.bank_conflicts._PAIRS_AT_ONCE", 7)
    assert pairs(*listed) == found
