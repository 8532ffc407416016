"""Which tiles a product on a GPU may have, and which are worth measuring."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.triton_kernels import compile_for

from regraft.compiler.gpu import AMPERE, HOPPER, SMALLER, Gpu
from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.program import Buffer
from regraft.compiler.templates.gemm.description import ELEMENT, ExtraOutput, Matrix, Product
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles, neighbours
from regraft.compiler.templates.gemm.triton_cost import estimate, fused_gain
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_tiles import GemmTile, can_describe, described, fits, is_aligned

BF16 = torch.bfloat16


def buffer(name: str, *sizes: int) -> Buffer:
    return Buffer(name, BF16, sizes, (sizes[1], 1), torch.device("cuda", 0))


def product(m: int, n: int, k: int, batch: int = 1) -> Product:
    a, b, out = buffer("a", m, k), buffer("b", k, n), buffer("out", m, n)
    loops = Var("g", batch), Var("i", m), Var("j", n)
    place = loops[1].index() * n + loops[2].index()
    return Product(*loops, k, Matrix(a, m * k, k, 1), Matrix(b, k * n, n, 1), out, place, ELEMENT)


BERT = product(8192, 3072, 768)


@pytest.mark.parametrize("gpu", [HOPPER, AMPERE, SMALLER])
@pytest.mark.parametrize("sizes", [(8192, 3072, 768), (128, 3072, 768), (1, 1, 1), (4096, 50257, 768), (17, 100, 33)])
def test_chosen_tiles_fit(sizes: tuple[int, int, int], gpu: Gpu) -> None:
    for count in (2, 4, 12):
        tiles = gemm_tiles(product(*sizes), gpu, count)
        assert 0 < len(tiles) <= count
        assert len(set(tiles)) == len(tiles)
        for tile in tiles:
            assert fits(product(*sizes), tile, gpu)
            assert tile.shared(2) < gpu.shared_bytes


def test_both_ways_to_read_operands_are_measured_where_there_are_two() -> None:
    for sizes in ((8192, 3072, 768), (128, 3072, 768), (4096, 768, 3072)):
        kinds = [tile.descriptors for tile in gemm_tiles(product(*sizes), HOPPER, 4)]
        assert sum(kinds) == 2
    assert not any(tile.descriptors for tile in gemm_tiles(BERT, AMPERE, 4))


def test_large_products_have_large_tiles_and_small_ones_small() -> None:
    assert gemm_tiles(BERT, HOPPER, 1)[0].rows >= 128
    assert gemm_tiles(product(128, 3072, 768), HOPPER, 1)[0].rows <= 64


def test_estimates_are_near_what_is_known_of_a_h200() -> None:
    best = min(estimate(BERT, tile, HOPPER) for tile in gemm_tiles(BERT, HOPPER, 4))
    assert 0.04 < best / 1.75e6 < 0.1  # ms at its clock; the library takes 0.057


def test_operands_that_can_be_described() -> None:
    assert described(Matrix(buffer("x", 32, 64), 0, 64, 1), 32, 64) == (64, False)
    assert described(Matrix(buffer("x", 64, 32), 0, 1, 32), 32, 64) == (32, True)
    assert described(Matrix(buffer("x", 64, 33), 0, 33, 1), 64, 33) is None
    assert described(Matrix(buffer("x", 32, 64), 0, 0, 1), 32, 64) is None
    assert can_describe(BERT, HOPPER)
    assert not can_describe(BERT, AMPERE)
    assert not can_describe(product(64, 64, 64, batch=2), HOPPER)


def test_neighbours_differ_in_one_thing_and_fit() -> None:
    tile = GemmTile(128, 128, 64, 8, 3)
    found = neighbours(BERT, tile, HOPPER)
    assert len(found) > 5
    for other in found:
        assert fits(BERT, other, HOPPER)
        names = ("rows", "columns", "depth", "warps", "stages", "descriptors", "splits")
        assert sum(getattr(tile, name) != getattr(other, name) for name in names) == 1


def test_what_an_epilogue_saves() -> None:
    assert fused_gain(BERT, HOPPER) > 0.3
    assert fused_gain(product(8192, 3072, 16384), HOPPER) < 0.05
    kept = replace(BERT, more=(ExtraOutput(BERT.out, BERT.place, ELEMENT),))
    assert fused_gain(kept, HOPPER) < fused_gain(BERT, HOPPER)
    assert fused_gain(BERT, HOPPER, lost=1) < fused_gain(BERT, HOPPER)


def test_alignment() -> None:
    assert is_aligned(BERT)
    assert not is_aligned(product(4096, 50257, 768))
    assert not is_aligned(product(4096, 512, 77))


def test_tma_where_it_is_asked_for():
    """Below Hopper the same kernels without it; where operands do not allow it, the others."""
    for gpu in (HOPPER, AMPERE):
        always, never = replace(gpu, tma="always"), replace(gpu, tma="never")
        assert all(tile.descriptors for tile in gemm_tiles(BERT, always, 4))
        assert not any(tile.descriptors for tile in gemm_tiles(BERT, never, 4))
        batched = gemm_tiles(product(64, 64, 64, batch=2), always, 4)
        assert batched and not any(tile.descriptors for tile in batched)
        assert all(tile.descriptors for tile in neighbours(BERT, gemm_tiles(BERT, always, 1)[0], always))


def test_kernels_of_copied_tiles_compile_where_no_unit_copies_them():
    gpu = replace(AMPERE, tma="always")
    tile = gemm_tiles(BERT, gpu, 1)[0]
    source = gemm_triton(BERT, tile, gpu.processors, "")
    assert "make_tensor_descriptor" in source.text and all(compile_for(source, 80))
