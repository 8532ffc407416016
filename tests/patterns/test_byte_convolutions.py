"""Convolutions of bytes, as quantized networks are written, are computed in bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.rewriting import compiled
from support.thorough import one_row_in

from regraft.compiler.tools.check import refusals
from regraft.patterns.byte_convolutions import byte_convolution
from regraft.rewrites.compat.operators import multiplies_bytes


def byte(*sizes: int, kind: torch.dtype = torch.int8) -> torch.Tensor:
    """Bytes of the whole range."""
    limits, generator = torch.iinfo(kind), torch.Generator().manual_seed(sum(sizes))
    return torch.randint(limits.min, limits.max + 1, sizes, generator=generator).to(kind)


X, W, SCALES, BIAS = byte(2, 5, 9, 8, kind=torch.uint8), byte(6, 5, 3, 3), torch.rand(6) + 0.01, torch.randn(6)
ZEROS = torch.arange(6) - 3


def quantized(x: Any, w: Any, s: Any, b: Any, dtype: torch.dtype = torch.float32, **geometry: Any) -> Any:
    dims = [-1, *[1] * (x.dim() - 1)]
    function = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    return function((x.to(dtype) - 7) * 0.05, w.to(dtype) * s.to(dtype).reshape(dims), b.to(dtype), **geometry)


GEOMETRIES = {
    "plain": ((X, W), {}),
    "padded": ((X, W), {"padding": 1}),
    "strided": ((X, W), {"stride": 2, "padding": (1, 0)}),
    "dilated": ((X, W), {"dilation": (2, 1), "padding": 2}),
    "one pixel": ((X, byte(6, 5, 1, 1)), {}),
    "one pixel, strided": ((byte(1, 8, 7, 6), byte(6, 8, 1, 1)), {"stride": 2}),
    "lines": ((byte(2, 4, 11), byte(6, 4, 5)), {"padding": 2}),
    "volumes": ((byte(1, 4, 5, 4, 6), byte(6, 4, 3, 1, 2)), {"padding": 1, "stride": (1, 2, 1)}),
    "channels last": ((X.contiguous(memory_format=torch.channels_last), W), {"padding": 1}),
}


@one_row_in(3)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(name: str) -> None:
    (x, w), geometry = GEOMETRIES[name]
    made, found = compiled(lambda *given: quantized(*given, **geometry))
    with torch.no_grad(), found:
        ours = made(x, w, SCALES, BIAS)
    assert found.count("byte_convolution") == 1
    eager, exact = (quantized(x, w, SCALES, BIAS, dtype, **geometry) for dtype in (torch.float32, torch.float64))
    assert ours.stride() == eager.stride()
    assert (ours - exact).norm() <= 2 * (eager - exact).norm() + 1e-6 * exact.norm()


def block(x: Any, w: Any, s: Any, b: Any) -> Any:
    """As PT2E writes a residual block: bytes between convolutions, zero points of weights unknown."""

    def convolved(q: Any, w: Any) -> Any:
        weight = ((w - ZEROS.reshape(-1, 1, 1, 1)) * s.reshape(-1, 1, 1, 1).double()).float()
        return F.conv2d((q.float() - 3) * 0.05, weight, b, padding=1)

    def to_bytes(x: Any) -> Any:
        return torch.clamp(torch.round(x * 20.0) + 3, 0, 255).to(torch.uint8)

    q = to_bytes(x)
    middle = to_bytes(F.relu(convolved(q, w)) * 1e-3)
    return F.relu(convolved(middle, w.flip(0)) + (q.float() - 3) * 0.05)


def test_a_block_multiplies_bytes_twice() -> None:
    inputs = (torch.randn(2, 6, 7, 7), byte(6, 6, 3, 3), SCALES * 0.01, BIAS)
    made, found = compiled(block)
    with torch.no_grad(), found:
        ours, eager = made(*inputs), block(*inputs)
    assert found.count("byte_convolution") == 2
    assert (ours - eager).norm() <= 1e-3 * eager.norm()  # a byte between the convolutions may be the next one


@pytest.mark.parametrize(("channels", "found"), [(4, 0), (40, 1)])
def test_images_are_laid_out_anew_for_many_products(channels: int, found: int) -> None:
    if not multiplies_bytes():
        pytest.skip("this processor has no instruction for products of bytes")
    weight = byte(6, channels, 3, 3)
    made, coverage = compiled(quantized, profit="measured")
    with torch.no_grad(), coverage:
        made(byte(1, channels, 5, 5, kind=torch.uint8), weight, SCALES, BIAS)
    assert coverage.count("byte_convolution") == found
    assert ("products-few" in {miss.code for miss in coverage.near_misses}) == (not found)


REFUSED = {
    "groups": (lambda x, w: F.conv2d(x.float(), w.float(), groups=2), (byte(1, 4, 5, 5), byte(6, 2, 3, 3)), "groups"),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x.float(), w.float()), (byte(1, 4, 5, 5), byte(4, 6, 3, 3)),
        "convolution-transposed",
    ),
    "a zero point that is no byte": (
        lambda x, w: F.conv2d(x.float() - 0.5, w.float(), padding=1), (byte(1, 4, 5, 5), byte(6, 4, 3, 3)),
        "zero-unknown",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left(name: str) -> None:
    function, inputs, code = REFUSED[name]
    made, found = compiled(function)
    with torch.no_grad(), found:
        ours = made(*inputs)
    assert not found.count("byte_convolution")
    assert code in {miss.code for miss in found.near_misses if miss.rule == "byte_convolution"}
    torch.testing.assert_close(ours, function(*inputs), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("sample", [s for s in byte_convolution.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample: Any) -> None:
    assert sample.refused in refusals(byte_convolution, sample)
