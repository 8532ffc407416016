"""Numbers of 8 bits become wider ones exactly, in kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.rewriting import compiled

ALL = torch.arange(256, dtype=torch.uint8)
WIDER = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_number_is_exact(kind: torch.dtype) -> None:
    """Zeros with their signs, the smallest numbers, infinities and NaN among them."""

    def widened(x: Any) -> Any:
        return tuple(x.to(wider) * 1 for wider in WIDER), x.t().float()

    made, found = compiled(widened)
    x = ALL.view(kind).reshape(16, 16)
    with torch.no_grad(), found:
        (*ours, last), (*eager, wanted) = made(x), widened(x)
    for one, other in zip((*ours[0], last), (*eager[0], wanted), strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(nan=0.5), other.nan_to_num(nan=0.5))
        assert torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())
    assert not found.fallbacks


@pytest.mark.parametrize("rows", [1, 5])
def test_weights_of_eight_bits(rows: int) -> None:
    """As layers with such weights write them: scaled afterwards, or before."""

    def layer(x: Any, w: Any, v: Any, s: Any) -> Any:
        return F.linear(x, w.to(x.dtype)) * s + F.linear(x, v.float() * s[:, None])

    w = ALL.view(torch.float8_e4m3fn)[:64].repeat(1024).reshape(128, 512)
    inputs = torch.randn(rows, 512), w, w.clone(), torch.rand(128)
    made, found = compiled(layer)
    with torch.no_grad(), found:
        ours = made(*inputs)
    read = [match.nodes for match in found.applied if match.rule == "linear-template"]
    assert rows > 1 or (len(read) == 2 and all(len(nodes) > 8 for nodes in read)), "a kernel read a widened weight"
    exact = layer(inputs[0].double(), w.double(), w.double(), inputs[3].double())
    assert (ours - exact).norm() <= 2 * (layer(*inputs) - exact).norm() + 1e-6 * exact.norm()
    assert not found.fallbacks
