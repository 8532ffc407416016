"""Convolutions on a GPU: every way that kernels read images, whole graphs; against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import regraft

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    torch.compiler.reset()
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    made = torch.randn(sizes, device="cuda", dtype=dtype)
    return made.to(memory_format=torch.channels_last) if len(sizes) == 4 and sizes[1] > 1 else made


def near(found: torch.Tensor, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """Assert that a result is as near to float64 as eager's, in the mean."""
    eager, exact = function(*inputs), function(*(x.double() for x in inputs))
    assert (found.shape, found.stride(), found.dtype) == (eager.shape, eager.stride(), eager.dtype)
    ours, theirs = (float((x.double() - exact).norm() / exact.norm()) for x in (found, eager))
    assert ours <= 1.5 * theirs + 1e-6


def templates(cov: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for graph in cov.graphs:
        for code in graph.code:
            for name, count in code.templates.items():
                counts[name] = counts.get(name, 0) + count
    return counts


# image, weight, options of the convolution
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "boxes": ((8, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "odd": ((3, 40, 13, 9), (72, 40, 3, 3), {"padding": 1}),
    "strided": ((4, 64, 29, 29), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
    "dilated": ((2, 64, 16, 16), (64, 64, 3, 3), {"padding": 2, "dilation": 2}),
    "stem": ((4, 3, 64, 64), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    "groups": ((4, 64, 14, 14), (64, 32, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((4, 96, 28, 28), (96, 1, 7, 7), {"padding": 3, "groups": 96}),
    "depthwise_twice": ((4, 64, 28, 28), (128, 1, 7, 7), {"padding": 3, "stride": 2, "groups": 64}),
    "depthwise_few": ((4, 64, 14, 14), (64, 4, 3, 3), {"padding": 1, "groups": 16}),
    "depthwise_strided": ((4, 40, 15, 15), (40, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 40}),
}


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, dtype: torch.dtype) -> None:
    image, weight, options = CASES[name]

    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(torch.relu(F.conv2d(x, w, b, **options)), v, padding=1)

    scale = (weight[1] * weight[2] * weight[3]) ** -0.5
    inputs = [random(*image, dtype=dtype), random(*weight, dtype=dtype) * scale, random(weight[0], dtype=dtype)]
    inputs.append(random(32, weight[0], 3, 3, dtype=dtype) * (9 * weight[0]) ** -0.5)
    run = torch.compile(block, backend="regraft", options={"profit": "always", "rules": ()})
    with torch.no_grad(), regraft.coverage() as cov:
        for _ in range(2):
            found = run(*inputs)
    near(found, block, *inputs)
    assert sum(templates(cov).values()) == 2, [m for graph in cov.graphs for m in graph.near_misses]
    assert ("depthwise" in templates(cov)) == name.startswith("depthwise")
    assert cov.fallbacks == []


def test_images_that_are_not_aligned() -> None:
    def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(torch.relu(F.conv2d(x, w, padding=1)), v)

    run = torch.compile(block, backend="regraft", options={"profit": "always", "rules": ()})
    memory, w, v = random(2 * 64 * 14 * 14 + 8), random(64, 64, 3, 3) / 24, random(16, 64, 1, 1) / 8
    with torch.no_grad():
        for start in (0, 1, 8):
            x = memory[start : start + 2 * 64 * 14 * 14].view(2, 14, 14, 64).permute(0, 3, 1, 2)
            near(run(x, w, v), block, x, w, v)


# sizes of the images, of the window, options of the convolution
SINGLE: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "wide": ((4, 96, 28, 28), 7, {"padding": 3}),
    "narrow": ((3, 40, 15, 13), 3, {"padding": 1}),
    "strided": ((4, 64, 15, 15), 3, {"padding": 1, "stride": 2}),
    "dilated": ((2, 17, 16, 16), 3, {"padding": 2, "dilation": 2}),
}


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", SINGLE)
def test_gradients_of_single_channels(name: str, dtype: torch.dtype) -> None:
    image, kernel, options = SINGLE[name]
    x, w = random(*image, dtype=dtype), random(image[1], 1, kernel, kernel, dtype=dtype) / kernel

    def gradient(at: int) -> Callable[..., torch.Tensor]:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            made = run(x, w) if x.dtype == dtype and ours else block(x, w)
            return torch.autograd.grad(made, (x, w), torch.ones_like(made))[at]

        return function

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.conv2d(x, w, groups=image[1], **options))

    run = torch.compile(block, backend="regraft", options={"profit": "always", "rules": ()})
    for at in range(2):
        ours = True
        with regraft.coverage() as cov:
            for _ in range(2):
                found = gradient(at)(x, w)
        ours = False
        near(found, gradient(at), x, w)
        assert cov.fallbacks == []
        if at == 0:
            assert "depthwise_weight" in templates(cov)
