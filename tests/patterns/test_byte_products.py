"""Products of bytes, as quantized layers are written, are computed in bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.rewriting import compiled, rewritten
from support.thorough import one_row_in

from regraft.compiler.tools.check import refusals
from regraft.patterns.byte_products import byte_product

M, N, K = 12, 24, 40


def byte(*sizes: int, kind: torch.dtype = torch.int8) -> torch.Tensor:
    """Bytes of the whole range."""
    limits = torch.iinfo(kind)
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randint(limits.min, limits.max + 1, sizes, generator=generator).to(kind)


def unsigned(*sizes: int) -> torch.Tensor:
    return byte(*sizes, kind=torch.uint8)


W, SCALES, BIAS = byte(N, K), torch.rand(N) + 0.01, torch.randn(N)


def lowered(function: Any, inputs: Any) -> Any:
    return rewritten(function, inputs, stage="lowered")


def dynamic(x: Any, w: Any, s: Any, b: Any) -> Any:
    """Per-token scales, as int8 dynamic linear layers emulate them."""
    step = x.abs().amax(-1, keepdim=True) / 127
    q = (x / step).round().clamp(-128, 127).to(torch.int8)
    return F.linear(q.to(x.dtype) * step, w.to(x.dtype) * s[:, None], b)


def static(x: Any, w: Any, s: Any, b: Any) -> Any:
    q = torch.clamp(torch.round(x / 0.05) + 3, 0, 255).to(torch.uint8)
    return F.relu(F.linear((q.float() - 3) * 0.05, w.float() * s.reshape(-1, 1), b))


SPELLINGS = {
    "dynamic": (dynamic, (torch.randn(M, K), W, SCALES, BIAS)),
    "static": (static, (torch.randn(2, M, K), W, SCALES, BIAS)),
    "columns": (lambda x, w, s: (x.float() - 128) @ (w.float() * s), (unsigned(M, K), byte(K, N), SCALES)),
    "integers": (lambda x, w: x.int() @ w.int().t(), (byte(M, K), W)),
    "integers with a zero point": (lambda x, w: (x.long() - 7) @ w.long().t(), (unsigned(M, K), W)),
    "both unsigned": (
        lambda x, w, s: F.linear((x.float() - 120) * 0.1, (w.float() - 131) * s[:, None]),
        (unsigned(M, K), unsigned(N, K), SCALES),
    ),
    "scales of float64": (
        lambda x, w, wz, s: F.linear((x.float() - 3) * 0.05, ((w - wz[:, None]) * s[:, None].double()).float()),
        (unsigned(M, K), W, torch.arange(N) - 9, SCALES),
    ),
    "zero points by rows": (
        lambda x, z, w, wz, s: F.linear((x.float() - z), (w - wz[:, None]) * s[:, None]),
        (unsigned(M, K), torch.randint(0, 255, (M, 1)).int(), W, torch.randint(-9, 9, (N,)), SCALES),
    ),
}


@one_row_in(2)
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_are_found_and_right(name: str) -> None:
    function, inputs = SPELLINGS[name]
    made, found = compiled(function)
    with torch.no_grad(), found:
        ours, eager = made(*inputs), function(*inputs)
    assert found.count("byte_product") == 1
    assert ours.dtype == eager.dtype
    if not eager.is_floating_point():
        assert torch.equal(ours, eager)
        return
    exact = _exact(function, inputs)
    assert (ours.double() - exact).norm() <= 2 * (eager.double() - exact).norm() + 1e-6 * exact.norm()


def _exact(function: Any, inputs: Any) -> torch.Tensor:
    """The result in float64, of the same bytes."""
    if function not in (dynamic, static):
        with _Doubles():
            return function(*[x.double() if x.is_floating_point() else x for x in inputs])
    return function(*inputs).double()


class _Doubles:
    """`x.float()` gives float64."""

    def __enter__(self) -> None:
        self._float, torch.Tensor.float = torch.Tensor.float, torch.Tensor.double  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        torch.Tensor.float = self._float  # type: ignore[method-assign]


NEAR_MISSES = {
    "wrapped": lambda x, w: (x.to(torch.uint8).float()) @ w.float().t(),
    "narrow": lambda x, w: (x - 100).float() @ w.float().t(),
    "groups": lambda x, w: F.linear(x.float(), (w.float().reshape(N, 4, -1) * torch.rand(N, 4, 1)).reshape(N, K)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_bytes_that_change_first_are_left_or_right(name: str) -> None:
    inputs = (byte(M, K), W)
    torch.manual_seed(0)
    found = lowered(NEAR_MISSES[name], inputs)
    torch.manual_seed(0)
    if "groups" in name:
        assert not found.count("byte_product")
        return
    torch.testing.assert_close(found.run(*inputs), NEAR_MISSES[name](*inputs), rtol=1e-5, atol=1e-2)


def test_a_depth_of_one_is_refused() -> None:
    """Torch's operator is wrong there."""
    inputs = (byte(M, 1), byte(N, 1))
    assert not lowered(lambda x, w: x.float() @ w.float().t(), inputs).count("byte_product")


def test_a_broadcast_weight_is_refused() -> None:
    inputs = (byte(1, K), byte(1, K).expand(N, K))
    assert not lowered(lambda x, w: x.float() @ w.float().t(), inputs).count("byte_product")


@pytest.mark.parametrize("sample", [s for s in byte_product.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample: Any) -> None:
    assert sample.refused in refusals(byte_product, sample)


def test_rows_that_several_products_read_stay_bytes() -> None:
    """Queries, keys and values of one quantized input, whose rows are merged, and a product before an activation."""

    def layers(x: Any, w: Any, s: Any, b: Any) -> Any:
        q = torch.clamp(torch.round(x / 0.05) + 3, 0, 255).to(torch.uint8)
        rows = ((q.float() - 3) * 0.05).reshape(-1, K)
        heads = [F.linear(rows, w.float() * (s * n)[:, None], b) for n in (1, 2, 3)]
        return heads[0] * heads[1] + F.gelu(heads[2])

    inputs = (torch.randn(2, M, K), W, SCALES, BIAS)
    made, found = compiled(layers)
    with torch.no_grad(), found:
        ours, eager = made(*inputs), layers(*inputs)
    assert found.count("byte_product") == 3
    assert not found.count("linear")
    exact = _exact(layers, inputs)
    assert (ours.double() - exact).norm() <= 2 * (eager.double() - exact).norm() + 1e-5 * exact.norm()
