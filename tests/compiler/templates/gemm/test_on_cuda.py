"""Products with epilogues on a GPU: every way that kernels read operands, graphs, training; against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    return torch.randn(sizes, device="cuda", dtype=dtype) * sizes[-1] ** -0.25


def near(found: Any, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Assert that results are as near to float64 as eager's, in the mean."""
    pairs = zip(*(_leaves(x) for x in (found, function(*inputs), function(*(x.double() for x in inputs)))), strict=True)
    for ours, eager, exact in pairs:
        assert (ours.shape, ours.stride(), ours.dtype) == (eager.shape, eager.stride(), eager.dtype)
        scale = exact.norm()
        assert (
            float((ours.double() - exact).norm() / scale) <= 1.5 * float((eager.double() - exact).norm() / scale) + 1e-6
        )


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    yield from value if isinstance(value, tuple) else (value,)


def templates(cov: Any) -> int:
    return sum(code.templates.get("gemm", 0) for graph in cov.graphs for code in graph.code)


def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("sizes", [(256, 512, 128), (300, 200, 72), (1000, 3072, 768), (64, 77, 33), (5, 16, 8)])
def test_products(sizes: tuple[int, int, int], dtype: torch.dtype, mode: str) -> None:
    m, n, k = sizes
    inputs = [random(m, k, dtype=dtype), random(n, k, dtype=dtype), random(n, dtype=dtype)]
    run = torch.compile(gelu, backend="regraft", options={"profit": "always", "mode": mode, "rules": ()})
    with torch.no_grad(), regraft.coverage() as cov:
        for _ in range(3):
            found = run(*inputs)
    near(found, gelu, *inputs)
    assert templates(cov) == 1
    assert cov.fallbacks == []


def test_operands_that_are_not_aligned() -> None:
    def part(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return gelu(x, w, b)

    run = torch.compile(part, backend="regraft", options={"profit": "always", "rules": ()})
    memory, w, b = random(200 * 64 + 8), random(96, 64), random(96)
    with torch.no_grad():
        for start in (0, 1, 2, 8):
            x = memory[start : start + 200 * 64].view(200, 64)
            near(run(x, w, b), gelu, x, w, b)


def test_batches_and_turned_operands() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.transpose(1, 2), y.transpose(1, 2)) * 0.5

    inputs = random(3, 40, 130), random(3, 72, 40)
    run = torch.compile(both, backend="regraft", options={"profit": "always", "rules": ()})
    with torch.no_grad():
        near(run(*inputs), both, *inputs)


def test_training_is_eagers() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    x = torch.randn(384, 256, device="cuda")
    run = torch.compile(model, backend="regraft", options={"profit": "always", "rules": ()})
    found = []
    for function in (run, model):
        model.zero_grad()
        with torch.autocast("cuda", BF16), regraft.coverage() as cov:
            function(x).float().square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        if function is run:
            assert templates(cov) >= 3
            assert cov.fallbacks == []
    for ours, eager in zip(*found, strict=True):
        assert float((ours - eager).norm() / eager.norm()) < 0.02


def test_measured_decisions_are_kept_with_their_evidence() -> None:
    inputs = random(4096, 512), random(2048, 512), random(2048)
    for source in ("measured", "cache"):
        torch.compiler.reset()
        run = torch.compile(gelu, backend="regraft", options={"debug": True})
        with torch.no_grad(), regraft.coverage() as cov:
            near(run(*inputs), gelu, *inputs)
        matches = [m for graph in cov.graphs for m in (*graph.applied, *graph.declined) if m.rule == "linear-template"]
        (evidence,) = (match.evidence for match in matches)
        assert evidence is not None
        assert evidence.source == source
        assert len(evidence.times) == 2  # the original and one tile: compiling takes seconds
