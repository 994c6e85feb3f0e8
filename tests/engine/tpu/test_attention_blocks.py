"""Attention's block sizes against the reference's, its key blocks and its local memory."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from engine.errors import UserError
from engine.tpu.attention_blocks import (
    AttentionBlocks,
    AttentionLayout,
    AttentionShape,
    KeyBlock,
    attention_blocks,
    key_blocks,
    reference_bytes,
)
from engine.tpu.chip import chip

CHIP = chip("bm1684x")


def test_block_sizes_are_those_of_the_reference(data: Path) -> None:
    # GIVEN attentions of the reference compiler, with the blocks that it logged
    with (data / "attention_sweep.csv").open() as file:
        rows = [{k: v for k, v in row.items() if k != "first_load_bytes"} for row in csv.DictReader(file)]
    sizes = [{name: int(value) for name, value in row.items()} for row in rows]

    for row in sizes:
        # WHEN ours are searched
        shape = AttentionShape(
            row["mq"],
            row["mk"],
            row["head_dim"],
            row["q_heads"],
            row["kv_heads"],
            row["mask_size"],
            mask_bytes=4 if row["mask_size"] else 2,
        )
        blocks = attention_blocks(CHIP, shape)

        # THEN they are the same
        found = (blocks.rows, blocks.keys, blocks.heads)
        assert found == (row["block_m"], row["block_k"], row["block_q_heads"]), row
    assert len(sizes) == 145


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # all heads of decode; a KV head's queries on lanes; whole prefill; small causal mask
        (AttentionShape(1, 1025, 128, 8, 8), AttentionBlocks(1, 256, 8, 8)),
        (AttentionShape(1, 2049, 64, 32, 8), AttentionBlocks(1, 1024, 4, 1, packed=True)),
        (AttentionShape(256, 256, 64, 4, 2), AttentionBlocks(256, 256, 2, 1)),
        (AttentionShape(512, 1024, 64, 4, 2, 128, mask_bytes=4), AttentionBlocks(64, 64, 4, 2)),
    ],
)
def test_the_smaller_chip_has_its_own_start_sizes(shape: AttentionShape, expected: AttentionBlocks) -> None:
    assert attention_blocks(chip("bm1688"), shape) == expected


def test_blocks_shrink_to_what_the_kernel_occupies_too() -> None:
    # GIVEN a shape that the reference's sum admits at a key block where our partial output does not fit
    shape = AttentionShape(1, 301, 192, 40, 40)
    small = chip("bm1688")
    assert reference_bytes(small, shape, AttentionBlocks(1, 16, 40, 40)) <= small.lmem_bytes
    assert AttentionLayout(small, shape, AttentionBlocks(1, 16, 40, 40)).size > small.lmem_bytes

    # WHEN blocks are searched
    blocks = attention_blocks(small, shape)

    # THEN fewer heads are taken
    assert blocks.heads == 20
    assert AttentionLayout(small, shape, blocks).size <= small.lmem_bytes


def test_a_head_too_large_for_local_memory_is_refused() -> None:
    with pytest.raises(UserError, match=r"head size 65536 .* bm1688; choose a chip"):
        attention_blocks(chip("bm1688"), AttentionShape(1, 1, 65536, 2, 1))


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("name", ["bm1684x", "bm1688"])
def test_buffers_do_not_overlap_and_start_on_a_lane_step(name: str, element_bytes: int) -> None:
    # GIVEN the layout of an attention
    shape = AttentionShape(100, 300, 80, 6, 2, chip(name).mask_size, element_bytes, 4)
    layout = AttentionLayout(chip(name), shape, attention_blocks(chip(name), shape))

    # WHEN its addresses are listed (f32 has four more buffers; in a half type those are empty)
    names = "output queries keys values mask maximum new_maximum total scaled_total correction table"
    if element_bytes == 4:
        names += " split_queries split_values split_scores split_output"
    addresses = [*layout.slots]
    for attribute in names.split():
        value = getattr(layout, attribute)
        addresses += value if isinstance(value, tuple) else [value]

    # THEN all differ, are aligned and lie inside
    assert len(set(addresses)) == len(addresses)
    assert all(address % chip(name).eu_bytes == 0 for address in addresses)
    assert max(addresses) < layout.size


def test_decode_cuts_all_keys_evenly_into_blocks() -> None:
    shape, blocks = AttentionShape(1, 201, 64, 2, 2), AttentionBlocks(1, 64, 2, 2)
    found = [(part.start, part.length) for part in key_blocks(shape, blocks, 0, 1)]
    assert found == [(0, 64), (64, 64), (128, 64), (192, 9)]


def test_causal_blocks_end_at_the_tile_and_only_the_diagonal_is_masked() -> None:
    # GIVEN 256 history rows, then 256 queries in tiles of 128
    shape, blocks = AttentionShape(256, 512, 64, 2, 2, 256), AttentionBlocks(128, 128, 2, 2)

    # WHEN the key blocks of the first tile are listed
    found = key_blocks(shape, blocks, 0, 128)

    # THEN the second half of the new rows is skipped and the last block takes the mask's corner
    assert found == (KeyBlock(0, 128), KeyBlock(128, 128), KeyBlock(256, 128, (0, 0)))


@pytest.mark.parametrize("first", [0, 128])
@pytest.mark.parametrize("past", [0, 1, 64, 100, 128, 300])
def test_every_part_of_the_small_mask_hides_exactly_the_later_keys(past: int, first: int) -> None:
    # GIVEN a history that need not be a multiple of the block
    shape, blocks = AttentionShape(200, past + 200, 64, 2, 2, 256), AttentionBlocks(128, 128, 2, 2)
    rows = min(128, 200 - first)

    for part in key_blocks(shape, blocks, first, rows):
        hidden = [
            (query, key)
            for query in range(rows)
            for key in range(part.length)
            if part.start + key > past + first + query
        ]
        # THEN a block without a part has nothing to hide
        if part.mask is None:
            assert not hidden
            continue
        # and a part lies inside the mask and hides (column > row) just those
        row, column = part.mask
        assert row + rows <= 256
        assert column + part.length <= 256
        assert hidden == [
            (query, key) for query in range(rows) for key in range(part.length) if column + key > row + query
        ]


def test_history_of_variable_length_shares_no_block_with_new_rows() -> None:
    # GIVEN 100 history rows whose count is data
    shape = AttentionShape(70, 170, 64, 2, 2, 128, split_history=True)

    # WHEN the key blocks of the second tile are listed
    found = key_blocks(shape, AttentionBlocks(64, 64, 2, 2), 64, 6)

    # THEN history blocks carry 1 + their first row and new ones nothing
    assert found == (
        KeyBlock(0, 64, history=1),
        KeyBlock(64, 36, history=65),
        KeyBlock(100, 64),
        KeyBlock(164, 6, (0, 0)),
    )
