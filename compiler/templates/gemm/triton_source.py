"""The source of a product's kernel with a tile: by tensor cores, or by lanes; in one launch or in two."""

from __future__ import annotations

from ...codegen.triton import KernelSource
from .description import Product
from .triton_cores import CoresTriton
from .triton_lanes import LanesTriton
from .triton_matmul import GemmTriton, written
from .triton_split_k import sum_of_parts
from .triton_tiles import GemmTile


def gemm_triton(product: Product, tile: GemmTile, processors: int, label: str = "") -> KernelSource:
    """The kernel's source; equal products have the same, whatever their buffers are called.

    It takes the buffers of `Product.reads`, then those of `Product.results`, then the `workspaces`; no sizes.

    Args:
        product: what to compute; the devices of its buffers are not looked at.
        tile: one that `gemm.triton_tiles.fits`.
        processors: how many programs there are where programs take several tiles.
        label: what it computes, for its name.

    Raises:
        UnsupportedDtypeError: the epilogue computes with a dtype that Triton has no type for.
    """
    last = sum_of_parts(product, tile, processors) if tile.splits > 1 else None
    kind = CoresTriton if tile.cores else LanesTriton if tile.by_lanes else GemmTriton
    return written("gemm", label, kind(product, tile, processors), last)
