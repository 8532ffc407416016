"""Operands that the product's kernel computes as it reads them: found, interpreted against eager, compiled, decided on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.triton_gemm import SMALL, near, on_gpu, run
from torch.nn import functional as F

from regraft.compiler.templates.gemm_match import FoundProduct, is_product, match_gemm
from regraft.compiler.templates.gemm_triton_tiles import GemmTile

BF16, F16 = torch.bfloat16, torch.float16
SPLIT = GemmTile(16, 32, 32, 4, 2, splits=3)
TILES = pytest.mark.parametrize("tile", [SMALL, SPLIT], ids=str)


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -128, 128, sizes, generator=generator).to(dtype)
    return torch.randn(sizes, generator=generator).to(dtype)


def agrees(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, reads: list[str], sides: str = "ab", **options: Any
) -> tuple[FoundProduct, str]:
    """Assert that a kernel with prologues reads these inputs, and computes the function as exactly as eager does."""
    (result,), found, source = run(function, inputs, sides=sides, **options)
    assert [node.name.removesuffix("_1") for node in found.inputs] == reads
    near(result, function, inputs, 1.5, source)
    return found, source.text


def dequantized(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w.to(x.dtype) * s)


# -- weights of fewer bytes -------------------------------------------------------------------------------------------


@TILES
@pytest.mark.parametrize("sizes", [(1, 40, 170), (5, 33, 97), (16, 64, 256), (33, 70, 130), (1, 1, 100)])
def test_dequantized_weights(sizes: tuple[int, int, int], tile: GemmTile) -> None:
    m, n, k = sizes
    x, w, s = random(m, k), random(n, k, dtype=torch.int8), random(n, 1) * 0.01
    agrees(dequantized, x, w, s, reads=["x", "w", "s"], tile=tile)
