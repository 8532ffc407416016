"""Products with few rows on a GPU: a depth in parts, weights that are computed as they are read; against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import regraft
from regraft.compiler.templates.gemm import triton_fuse as gemm_triton_fuse
from regraft.compiler.templates.gemm.triton_tiles import GemmTile

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BF16 = torch.bfloat16
MODES = pytest.mark.parametrize("mode", ["default", "reduce-overhead"])


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    torch.compiler.reset()
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, sizes, device="cuda", dtype=dtype)
    return torch.randn(sizes, device="cuda", dtype=dtype) * sizes[-1] ** -0.25


def runs(function: Callable[..., torch.Tensor], mode: str, calls: list[list[torch.Tensor]], templates: int = 1) -> None:
    """Assert that the compiled function has template kernels, and is as near to float64 as eager."""
    compiled = torch.compile(function, backend="regraft", options={"profit": "always", "mode": mode, "rules": ()})
    with torch.no_grad(), regraft.coverage() as cov:
        results = [compiled(*inputs).clone() for inputs in calls * 2]
    for inputs, result, again in zip(calls, results, results[len(calls) :], strict=False):
        exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
        eager = function(*inputs)
        assert (result.shape, result.stride(), result.dtype) == (eager.shape, eager.stride(), eager.dtype)
        error, allowed = ((x.double() - exact).norm() / exact.norm() for x in (result, eager))
        assert float(error) <= 1.5 * float(allowed) + 1e-6
        assert torch.equal(result, again)  # parts are added in the same order in every run
    assert sum(code.templates.get("gemm", 0) for graph in cov.graphs for code in graph.code) == templates
    assert cov.fallbacks == []


@MODES
@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize("sizes", [(1, 256, 2048), (16, 1000, 4104), (70, 136, 1032)])
def test_depth_in_parts(
    sizes: tuple[int, int, int], descriptors: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = sizes
    descriptors = descriptors and m > 1 and torch.cuda.get_device_capability()[0] >= 9
    tile = GemmTile(16 if m <= 16 else 64, 64, 64, 4, 3, descriptors, splits=4)
    monkeypatch.setattr(gemm_triton_fuse, "gemm_tiles", lambda *_: [tile])
    weights = random(n, k), random(n)
    runs(lambda x, w, b: F.gelu(F.linear(x, w, b)), mode, [[random(m, k), *weights] for _ in range(2)])


@MODES
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_layers_one_after_the_other(rows: int, dtype: torch.dtype, mode: str) -> None:
    def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = F.silu(F.linear(x, w)) + x
        return x

    weights = [random(1024, 1024, dtype=dtype) for _ in range(4)]
    runs(
        layers,
        mode,
        [[random(rows, 1024, dtype=dtype), *weights] for _ in range(2)],
        4 if rows < 16 or dtype.itemsize == 2 else 0,
    )


def test_weights_that_change_between_calls() -> None:
    x, w, v = random(1, 1024), random(1024, 1024), random(1024, 1024)
    compiled = torch.compile(
        lambda x, w, v: F.linear(F.linear(x, w).relu(), v), backend="regraft", options={"profit": "always"}
    )
    with torch.no_grad():
        for _ in range(50):
            w.add_(1 / 64)
            v.mul_(-1)
            eager = F.linear(F.linear(x, w).relu(), v)
            error = (compiled(x, w, v) - eager).norm()
            assert float(error) <= 0.02 * float(eager.norm())  # all are 0 where x adds up to a negative number


def test_tensors_that_are_not_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_triton_fuse, "gemm_tiles", lambda *_: [GemmTile(16, 64, 64, 4, 3, splits=4)])
    memory, w = random(8 * 1024 + 8), random(96, 1024)
    runs(F.linear, "default", [[memory[start : start + 8 * 1024].view(8, 1024), w] for start in (0, 1, 8)])


def dequantized(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w.to(x.dtype) * s)


@MODES
@pytest.mark.parametrize("sizes", [(1, 512, 1024), (13, 200, 520), (64, 512, 1024)])
def test_weights_of_bytes(sizes: tuple[int, int, int], mode: str) -> None:
    m, n, k = sizes
    weights = random(n, k, dtype=torch.int8), random(n, 1).abs() * 0.01
    runs(dequantized, mode, [[random(m, k), *weights] for _ in range(2)])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_8_bit_floats(dtype: torch.dtype) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no conversions from these")
    runs(dequantized, "default", [[random(9, 512), random(200, 512).to(dtype), random(1)[0]]])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_groups_with_zeros(dtype: torch.dtype) -> None:
    def grouped(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        parts = (w.view(w.shape[0], -1, 64).to(x.dtype) - z.unsqueeze(-1)) * s.unsqueeze(-1)
        return F.linear(x, parts.view(w.shape))

    w = torch.randint(0, 128, (256, 512), device="cuda", dtype=dtype)
    runs(grouped, "default", [[random(5, 512), w, random(256, 8).abs() * 0.01, random(256, 8)]])


def test_gates_and_casts_before_a_layer() -> None:
    def gated(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.silu(x) * y, w.to(x.dtype))

    runs(gated, "default", [[random(40, 300), random(40, 300), random(130, 300, dtype=torch.float32)]])


def test_decisions_are_measured() -> None:
    inputs = [random(16, 4096), random(4096, 4096, dtype=torch.int8), random(4096, 1).abs() * 0.01]
    compiled = torch.compile(dequantized, backend="regraft")
    with torch.no_grad(), regraft.coverage() as cov:
        compiled(*inputs)
    matches = [m for graph in cov.graphs for m in (*graph.applied, *graph.declined) if m.rule == "linear-template"]
    assert matches
    assert all(match.evidence is not None and "original" in match.evidence.times for match in matches)
    assert matches[0].candidate  # a third of the bytes: no measurement is that wrong
