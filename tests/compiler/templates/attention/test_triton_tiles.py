"""Tiles of the Triton attention kernels: what fits, and what comes first."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from support.thorough import one_row_in
from support.triton_attention import found_in

from regraft.compiler.gpu import AMPERE, HOPPER, SMALLER
from regraft.compiler.templates.attention.description import Attention
from regraft.compiler.templates.attention.triton_tiles import (
    BackwardTile,
    Tile,
    backward_tiles,
    fits,
    parts,
    programs,
    tiles,
    turned,
)

from .test_triton_forward import BF16, F32, masked, plain


def attention(b: int, h: int, m: int, n: int, d: int, dtype: torch.dtype = BF16) -> Attention:
    q, k, v = (torch.empty(b, h, size, d, dtype=dtype) for size in (m, n, n))
    return found_in(masked, [q, k, v, torch.empty(m, n, dtype=dtype)])[0].attention


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(1, [(0, 16)]), (24, [(0, 32)]), (64, [(0, 64)]), (80, [(0, 64), (64, 16)]), (112, [(0, 128)]),
     (160, [(0, 128), (128, 32)])],
)  # fmt: skip
def test_parts_of_columns(columns: int, expected: list[tuple[int, int]]) -> None:
    assert parts(columns) == expected


@one_row_in(3)
@pytest.mark.parametrize("gpu", [HOPPER, AMPERE, SMALLER])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("depth", [16, 64, 80, 128, 256])
def test_every_tile_fits(depth: int, dtype: torch.dtype, gpu: object) -> None:
    found = attention(4, 8, 512, 512, depth, dtype)
    assert tiles(found, gpu)
    assert backward_tiles(found, gpu)
    assert all(fits(tile, found, gpu) for tile in tiles(found, gpu))


def test_tiles_are_no_larger_than_the_scores() -> None:
    assert all(tile.queries <= 64 and tile.keys <= 32 for tile in tiles(attention(4, 8, 49, 20, 32), HOPPER))
    assert {tile.queries for tile in tiles(attention(4, 8, 1, 512, 64), HOPPER)} == {16}


def test_few_heads_get_smaller_blocks_of_queries() -> None:
    few, many = attention(1, 4, 512, 512, 64), attention(16, 16, 512, 512, 64)
    assert tiles(few, HOPPER)[0].queries == 64
    assert tiles(many, HOPPER)[0].queries == 128
    assert programs(Tile(128, 64, 4, 2), many) == 16 * 16 * 4


def test_tiles_for_keys_hold_as_much_and_leave_registers_for_two_gradients() -> None:
    narrow, wide = attention(4, 8, 512, 512, 64), attention(4, 8, 512, 512, 128)
    assert turned(Tile(128, 64, 8, 2), narrow) == Tile(64, 128, 8, 2)
    assert turned(Tile(128, 64, 8, 2), wide) == Tile(32, 128, 8, 2)
    assert turned(Tile(128, 64, 8, 2), attention(4, 8, 20, 40, 64)) == Tile(32, 64, 8, 1)
    assert turned(BackwardTile(128, 64, 8, 2, Tile(64, 64, 4, 3)), wide) == Tile(64, 64, 4, 3)
    short = attention(4, 8, 20, 512, 64)
    assert all(turned(tile, short).queries <= 32 for tile in backward_tiles(short, HOPPER))


def test_biases_leave_fewer_registers_to_gradients() -> None:
    q = torch.empty(4, 8, 512, 128, dtype=BF16)
    without = found_in(plain, [q, q, q])[0].attention
    assert turned(backward_tiles(without, HOPPER)[0], without) == Tile(64, 64, 4, 2)
    biased = attention(4, 8, 512, 512, 128)
    assert turned(backward_tiles(biased, HOPPER)[0], biased) == Tile(32, 64, 4, 3)


def test_widths_beyond_all_tables_have_a_tile() -> None:
    assert tiles(attention(1, 1, 64, 64, 500), HOPPER) == [Tile(16, 16, 4, 1)]
