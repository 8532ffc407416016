"""Estimates of products against what an H200 took, and what follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from regraft.compiler.gpu import HOPPER
from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.program import Buffer
from regraft.compiler.ir.value import Load, Op
from regraft.compiler.templates.gemm.description import ELEMENT, Matrix, Product, Prologue
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles, promises
from regraft.compiler.templates.gemm.triton_cost import apart, estimate, library, moved, work
from regraft.compiler.templates.gemm.triton_tiles import GemmTile

BF16, CUDA = torch.bfloat16, torch.device("cuda", 0)


def product(m: int, k: int, n: int, held: Any = None) -> Product:
    """x (m, k) times the transpose of a weight (n, k), which may be held in another dtype."""
    a, b, out = (Buffer(name, BF16, sizes, (sizes[1], 1), CUDA) for name, sizes in
                 (("a", (m, k)), ("b", (n, k)), ("out", (m, n))))  # fmt: skip
    g, i, j, step = Var("g", 1), Var("i", m), Var("j", n), Var("k", k)
    place = i.index() * n + j.index()
    made = Product(g, i, j, k, Matrix(a, m * k, k, 1), Matrix(b, n * k, 1, k), out, place, ELEMENT, step=step)
    if held is None:
        return made
    b = replace(b, dtype=held)
    scale = Buffer("s", BF16, (n, 1), (1, 1), CUDA)
    weight = Op("cast", (Load("b", (j.index(), step.index()), held),), torch.float32)
    value = Op("mul", (weight, Load("s", (j.index(), 0), torch.float32)), torch.float32)
    return replace(made, b=Matrix(b, n * k, 1, k), buffers=(scale,), right=Prologue(value, BF16, (b, scale)))


# Microseconds of a H200, weights in memory: rows, depth, columns; dtype of the weights; tiles.
MEASURED: list[tuple[tuple[int, int, int], Any, dict[GemmTile, float]]] = [
    ((16, 4096, 4096), None, {
        GemmTile(16, 32, 256, 4, 4): 11.6, GemmTile(16, 32, 128, 4, 5): 12.1,
        GemmTile(16, 128, 128, 4, 4, splits=4): 12.8, GemmTile(16, 64, 128, 4, 4, splits=4): 12.5,
        GemmTile(16, 64, 128, 4, 4): 14.5,
    }),
    ((16, 4096, 14336), None, {
        GemmTile(16, 64, 128, 4, 4): 30.9, GemmTile(16, 128, 128, 4, 4): 30.8, GemmTile(16, 32, 128, 4, 5): 34.2,
        GemmTile(16, 64, 128, 4, 4, splits=2): 39.3, GemmTile(16, 32, 256, 4, 4): 40.6,
    }),
    ((16, 14336, 4096), None, {
        GemmTile(16, 128, 128, 4, 4, splits=4): 32.8, GemmTile(16, 64, 128, 4, 4, splits=4): 32.9,
        GemmTile(16, 32, 256, 4, 4): 33.6, GemmTile(16, 32, 128, 4, 5): 35.9, GemmTile(16, 64, 128, 4, 4): 43.8,
    }),
    ((16, 4096, 1024), None, {
        GemmTile(16, 32, 256, 4, 4, splits=4): 6.6, GemmTile(16, 64, 128, 4, 4, splits=4): 7.2,
        GemmTile(16, 32, 256, 4, 4): 8.6, GemmTile(16, 64, 128, 4, 4): 12.4,
    }),
    ((16, 4096, 14336), torch.int8, {
        GemmTile(16, 64, 128, 4, 4): 27.6, GemmTile(16, 32, 128, 4, 5): 29.7, GemmTile(16, 128, 128, 4, 4): 46.2,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "held", "times"), MEASURED)
def test_what_is_taken_unmeasured_is_near_the_best(sizes: Any, held: Any, times: dict[GemmTile, float]) -> None:
    chosen = gemm_tiles(product(*sizes, held), HOPPER, 1)[0]
    assert times[chosen] <= 1.06 * min(times.values())


@pytest.mark.parametrize(("sizes", "held", "times"), MEASURED)
def test_what_is_much_slower_is_estimated_to_be_slower(sizes: Any, held: Any, times: dict[GemmTile, float]) -> None:
    estimates = {tile: estimate(product(*sizes, held), tile, HOPPER) for tile in times}
    best = min(times, key=lambda tile: times[tile])
    for tile, time in times.items():
        if time > 1.2 * times[best]:
            assert estimates[tile] > estimates[best], tile


def test_what_is_moved_and_computed() -> None:
    plain, bytes_of = product(16, 4096, 4096), product(16, 4096, 4096, torch.int8)
    assert moved(plain) == 2 * (16 * 4096 + 4096 * 4096 + 16 * 4096)
    assert moved(bytes_of) == moved(plain) - 4096 * 4096 + 2 * 4096
    assert library(bytes_of, HOPPER) < 0.6 * library(plain, HOPPER)
    assert work(None) == 0
    assert 2 < work(bytes_of.right) < 6
    assert apart(plain, HOPPER) == 0
    assert apart(bytes_of, HOPPER) > 4096 * 4096 * 3 / (16 * HOPPER.processors)


def test_prologues_that_may_pay() -> None:
    for rows in (1, 4, 16):
        assert promises(product(rows, 4096, 4096, torch.int8), product(rows, 4096, 4096), HOPPER)
    assert not promises(product(16384, 4096, 4096, torch.int8), product(16384, 4096, 4096), HOPPER)


# Microseconds of a H200, one row, weights from memory: depth, columns; by tile.
ONE_ROW = [
    ((2048, 512), {"1x1x2048_4w4s": 4.6, "1x2x1024_4w4s": 4.6, "1x4x1024_8w4s": 4.9, "1x8x512_8w4s": 5.4}),
    # One column in one step is as fast alone (6.1), and slower where launches follow each other: it is not asked about.
    ((2048, 2048), {"1x2x1024_4w4s": 6.3, "1x2x512_2w4s": 6.3, "1x4x1024_8w4s": 6.9}),
    ((2048, 8192), {"1x2x1024_4w4s": 11.6, "1x2x512_2w4s": 11.9, "1x1x2048_4w4s": 13.4, "1x4x1024_8w4s": 14.2}),
    ((8192, 2048), {"1x2x512_2w4s": 12.9, "1x1x2048_4w4s": 13.0, "1x2x1024_4w4s": 15.3}),
]


@pytest.mark.parametrize(("sizes", "times"), ONE_ROW)
def test_the_fastest_tiles_for_one_row_are_measured(sizes: tuple[int, int], times: dict[str, float]) -> None:
    asked = [str(tile) for tile in gemm_tiles(product(1, *sizes), HOPPER, 6)]
    assert min(times, key=lambda tile: times[tile]) in asked
    assert sum(tile.startswith("16x") for tile in asked) == 2  # and some with tensor cores
