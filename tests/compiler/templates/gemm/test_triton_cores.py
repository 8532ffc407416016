"""Weights of bytes that tensor cores multiply as lanes hold them: exact, of one kind, in one layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in, takes_turns
from support.triton_gemm import found_in, interpreted, on_gpu
from support.triton_kernels import compiled, spilled
from support.versions import OLD_TRITON
from torch.nn import functional as F

from regraft.compiler.codegen.triton import KernelSource
from regraft.compiler.codegen.triton.compile_worker import check_layouts
from regraft.compiler.gpu import AMPERE, HOPPER
from regraft.compiler.templates.gemm.description import Product
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles
from regraft.compiler.templates.gemm.triton_fuse import gemm_kernel
from regraft.compiler.templates.gemm.triton_joint import JointProduct, joint_triton
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_tiles import GemmTile, fits

BF16, F16, U8, I8 = torch.bfloat16, torch.float16, torch.uint8, torch.int8
Dequantize = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
TILE = GemmTile(4, 2, 256, 1, 2, cores=True)


def halves_of(w: torch.Tensor) -> torch.Tensor:
    return torch.stack([w & 0xF, w >> 4], -1).view(w.shape[0], -1)


BYTES: dict[str, tuple[torch.dtype, Dequantize, tuple[torch.dtype, ...]]] = {
    "signed": (I8, lambda w, x: w.to(x), (BF16, F16)),
    "without a sign, moved": (U8, lambda w, x: w.to(x) - 128, (BF16, F16)),
    "low bits": (U8, lambda w, x: (w & 7).to(x) - 3, (BF16, F16)),
    "high bits": (U8, lambda w, x: (w >> 3).to(x) - 16, (BF16, F16)),
    "halves": (U8, lambda w, x: halves_of(w).to(x) - 8, (BF16, F16)),
    # bfloat16 has no room for these beside what makes them floats.
    "without a sign": (U8, lambda w, x: w.to(x), (F16,)),
    "signed, moved": (I8, lambda w, x: w.to(x) + 100, (F16,)),
}


def layer(
    dequantize: Dequantize, w: torch.Tensor, rows: int, dtype: torch.dtype
) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """A linear layer with a scale for each column, and its inputs."""
    made = torch.Generator().manual_seed(rows)
    depth = dequantize(w, dtype).shape[1]
    x, scale = torch.randn(rows, depth, generator=made), torch.rand(len(w), 1, generator=made) + 0.5

    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.linear(x, dequantize(w, x.dtype) * scale)

    return function, [x.to(dtype), w, scale.to(dtype)]


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", BYTES)
def test_every_byte_is_exact(name: str, dtype: torch.dtype) -> None:
    of, dequantize, held = BYTES[name]
    w = torch.arange(256, dtype=torch.int16).to(of).view(64, 4)
    exact = dequantize(w, dtype).float()
    x = torch.eye(exact.shape[1], dtype=dtype)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, dequantize(w, x.dtype)).float()

    found = found_in(on_gpu(function, x[:4], w), sides="b")
    assert fits(found.product, TILE, HOPPER) == (dtype in held)
    if dtype not in held:
        return
    for columns in range(0, exact.shape[1], 4):
        (result,), source = interpreted(found, (x[columns : columns + 4].contiguous(), w), TILE, 3)
        assert "mma.sync" in source.text
        assert torch.equal(result, exact.t()[columns : columns + 4])


@pytest.mark.parametrize(
    ("name", "rows", "depth", "tile"),
    [
        ("signed", 3, 300, GemmTile(4, 2, 256, 1, 1, cores=True)),
        ("signed", 1, 516, GemmTile(1, 4, 128, 1, 2, splits=3, cores=True)),
        ("halves", 2, 300, GemmTile(2, 4, 256, 1, 4, cores=True)),
        ("halves", 1, 1000, GemmTile(1, 2, 512, 2, 1, cores=True)),
    ],
)
def test_rows_tails_and_parts(name: str, rows: int, depth: int, tile: GemmTile) -> None:
    of, dequantize, _ = BYTES[name]
    w = torch.randint(0, 256, (6, depth), generator=torch.Generator().manual_seed(0)).to(of)
    function, inputs = layer(dequantize, w, rows, BF16)
    found = found_in(on_gpu(function, *inputs), sides="b")
    assert fits(found.product, tile, HOPPER)
    (result,), _ = interpreted(found, inputs, tile, 3)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    exact, eager = function(*wide), function(*inputs)
    assert (result - exact).norm() <= 1.05 * (eager - exact).norm()


def product_of(kind: str, columns: int, depth: int, dtype: torch.dtype = BF16) -> Product:
    of, dequantize, _ = BYTES[kind]
    w = torch.empty(columns, depth // 2 if kind == "halves" else depth, dtype=of)
    function, inputs = layer(dequantize, w, 1, dtype)
    return found_in(on_gpu(function, *inputs), sides="b").product


def checked(source: KernelSource, capability: int) -> None:
    """Machine code that holds everything in registers, in the layout that it has to have."""
    (made,) = compiled(source, capability)
    check_layouts(made.asm["ttgir"])
    assert "mma.sync" in made.asm["ptx"] and not spilled(made)
    assert made.asm["ptx"].count("st.shared") <= (8 if OLD_TRITON else 4)  # sums of warps


@one_row_in(2)
@pytest.mark.parametrize("kind", ["signed", "halves"])
@pytest.mark.parametrize(
    ("columns", "depth", "tile", "capability"),
    [(8192, 2048, (4, 512, 2, 4), 90), (2048, 8192, (2, 1024, 4, 8), 80), (1536, 8960, (2, 2048, 8, 5), 90)],
)
def test_compiles_for_gpus_in_its_layout(
    kind: str, columns: int, depth: int, tile: tuple[int, ...], capability: int
) -> None:
    known = GemmTile(1, *tile, cores=True)
    product = product_of(kind, columns, depth)
    assert fits(product, known, HOPPER if capability == 90 else AMPERE)
    checked(gemm_triton(product, known, 132), capability)


def test_tensor_cores_are_asked_about_last() -> None:
    few, many = (gemm_tiles(product_of("halves", 8192, 2048), HOPPER, count) for count in (6, 24))
    assert not any(tile.cores for tile in few)
    assert any(tile.cores for tile in many)
    assert not any(tile.cores for tile in gemm_tiles(product_of("signed", 8192, 2048), HOPPER, 6))


def test_several_products_share_a_launch() -> None:
    product = product_of("signed", 1024, 2048, F16)
    tile = GemmTile(1, 2, 1024, 4, 2, cores=True)
    members = [JointProduct(product, (0, 1, 2, 5)), JointProduct(product, (0, 3, 4, 6))]
    checked(joint_triton(members, tile), 90)


def test_tensors_that_are_not_aligned_have_the_other_kernel() -> None:
    product = product_of("signed", 1024, 2048)
    kernel = gemm_kernel(product, GemmTile(1, 2, 1024, 4, 2, cores=True), "", 0, HOPPER)
    assert "mma.sync" in kernel.source.text and "mma.sync" not in kernel.plain.text


def test_another_layout_is_refused() -> None:
    product = product_of("signed", 64, 512)
    source = gemm_triton(product, GemmTile(1, 8, 128, 1, 1, cores=True), 132)
    # Nothing says that neighbours lie at multiples of four bytes: each lane has one.
    (made,) = compiled(source, 90, aligned=False)
    with pytest.raises(ValueError, match="layout"):
        check_layouts(made.asm["ttgir"])


def test_what_does_not_fit() -> None:
    tile = GemmTile(1, 2, 256, 1, 2, cores=True)
    assert fits(product_of("signed", 16, 512), tile, HOPPER)
    assert not fits(product_of("signed", 16, 510), tile, HOPPER)  # columns begin anywhere
    assert not fits(product_of("signed", 16, 512, torch.float32), tile, HOPPER)
    assert not fits(product_of("signed", 16, 512), GemmTile(1, 2, 256, 4, 2, cores=True), HOPPER)  # two bytes a lane
    assert not fits(product_of("signed", 16, 512), GemmTile(16, 32, 64, 4, 2, cores=True), HOPPER)

    def by_groups(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.linear(x, (w.to(x.dtype).view(16, 4, 128) * scale).view(16, 512))

    inputs = torch.empty(1, 512, dtype=BF16), torch.empty(16, 512, dtype=I8), torch.empty(16, 4, 1, dtype=BF16)
    assert not fits(found_in(on_gpu(by_groups, *inputs), sides="b").product, tile, HOPPER)
