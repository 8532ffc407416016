"""Bytes as floats without tensor cores: every byte exact, nothing through shared memory, much on its way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in
from support.triton_gemm import found_in, interpreted, on_gpu
from support.triton_kernels import compiled, spilled
from support.versions import OLD_TRITON
from torch.nn import functional as F

from regraft.compiler.gpu import HOPPER
from regraft.compiler.ir.value import Const, Load, Op, Value
from regraft.compiler.templates.gemm.description import Product
from regraft.compiler.templates.gemm.triton_bytes import as_bytes
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_tiles import GemmTile

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8


def halves_of(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 0xF, packed >> 4], -1).view(packed.shape[0], -1)


BYTES: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], torch.Tensor]]] = {
    "signed": (torch.int8, lambda w: w.to(BF16)),
    "signed, moved": (torch.int8, lambda w: w.to(BF16) + 100),
    "unsigned": (U8, lambda w: w.to(BF16)),
    "unsigned, moved": (U8, lambda w: w.to(BF16) - 128),
    "low bits": (U8, lambda w: (w & 7).to(BF16) - 3),
    "high bits": (U8, lambda w: (w >> 3).to(BF16) - 16),
    "halves": (U8, lambda w: halves_of(w).to(BF16) - 8),
}


@one_row_in(2)
@pytest.mark.parametrize("name", BYTES)
def test_every_byte_is_exact(name: str) -> None:
    dtype, dequantize = BYTES[name]
    w = torch.arange(256, dtype=torch.int16).to(dtype).view(64, 4)
    exact = dequantize(w).float()
    for column in range(exact.shape[1]):
        x = torch.eye(exact.shape[1], dtype=BF16)[column : column + 1]

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return F.linear(x, dequantize(w)).float()

        found = found_in(on_gpu(function, x, w), sides="b")
        assert found.before
        (result,), source = interpreted(found, (x, w), GemmTile(1, 4, 16, 1, 2), 3)
        assert "bytes_to_floats" in source.text
        assert torch.equal(result.view(-1), exact[:, column])


def test_what_is_no_byte_is_left_alone() -> None:
    def called(name: str, dtype: torch.dtype, *args: Value) -> Op:
        return Op(name, args, dtype)

    byte, whole = Load("w", (0,), U8), Load("w", (0,), torch.int32)
    floats = called("cast", F32, byte)
    found = as_bytes(called("sub", F32, floats, Const(8.0, F32)))
    assert found is not None and found.less == 8
    assert as_bytes(floats) is not None and as_bytes(called("cast", F32, Load("w", (0,), torch.int8))) is not None
    assert as_bytes(called("cast", F32, whole)) is None
    assert as_bytes(called("cast", torch.float64, byte)) is None
    assert as_bytes(called("sub", F32, floats, Const(0.5, F32))) is None
    assert as_bytes(called("sub", F32, floats, Const(float("nan"), F32))) is None
    assert as_bytes(called("sub", F32, floats, Const(1e30, F32))) is None
    assert as_bytes(called("cast", F32, called("lshift", U8, byte, Const(1, U8)))) is None


def product_of(kind: str, columns: int, depth: int) -> Product:
    """A layer of one row, its weights of bytes, or of two in a byte."""
    width, dtype = (depth // 2, U8) if kind == "halves" else (depth, torch.int8)
    x, w, s = torch.empty(1, depth, dtype=BF16), torch.empty(columns, width, dtype=dtype), torch.empty(columns, 1)

    def function(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        whole = halves_of(w).to(x.dtype) - 8 if kind == "halves" else w.to(x.dtype)
        return F.linear(x, whole * s)

    return found_in(on_gpu(function, x, w, s.to(BF16)), sides="b").product


@pytest.mark.parametrize("kind", ["bytes", "halves"])
def test_weights_do_not_go_through_shared_memory(kind: str) -> None:
    product = product_of(kind, 8192, 2048)
    for tile in [tile for tile in gemm_tiles(product, HOPPER, 12) if tile.by_lanes and not tile.cores][:2]:
        (made,) = compiled(gemm_triton(product, tile, 132), 90)
        # Sums of lanes do, once.
        assert made.asm["ptx"].count("st.shared") <= tile.columns * (2 if OLD_TRITON else 1) and not spilled(made)
        assert made.asm["ptx"].count("prmt.b32") >= tile.columns * tile.depth // (32 * tile.warps)


@pytest.mark.parametrize("kind", ["bytes", "halves"])
@pytest.mark.parametrize(("columns", "depth"), [(8192, 2048), (2048, 8192), (2048, 2048), (128256, 2048), (4096, 4096)])
def test_everything_is_on_its_way_and_all_are_busy(kind: str, columns: int, depth: int) -> None:
    product = product_of(kind, columns, depth)
    lanes = [tile for tile in gemm_tiles(product, HOPPER, 6) if tile.by_lanes]
    assert len(lanes) >= 4
    for tile in lanes:
        assert tile.stages * tile.depth >= depth
        assert tile.count(product) * tile.warps >= 12 * HOPPER.processors


def test_small_layers_have_tiles_as_well() -> None:
    assert gemm_tiles(product_of("bytes", 256, 1024), HOPPER, 3)
    assert gemm_tiles(product_of("halves", 24, 90), HOPPER, 3)
