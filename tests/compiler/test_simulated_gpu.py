"""A whole model with the kernels of a GPU, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.simulated_gpu import SimulatedGpu
from support.thorough import thorough
from torch import nn


class Model(nn.Module):
    """Words, a bias by distance, a layer that drops nothing, a norm over channels, and sums into few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.distances = nn.Embedding(50, 16), nn.Embedding(8, 2)
        self.qkv, self.norm, self.out = nn.Linear(16, 48), nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(rows, steps) -> (rows, steps, 16)."""
        x = self.words(ids)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        steps = torch.arange(ids.shape[1])
        apart = (steps[None] - steps[:, None]).clamp(-4, 3) + 4
        scores = q @ k.transpose(-1, -2) / 8**0.5 + self.distances(apart).permute(2, 0, 1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return F.gelu(self.out(mixed)) + x


@pytest.mark.parametrize("how", [thorough("inference"), "training", "autocast"])
def test_a_model(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, ids = Model(), torch.randint(50, (2, 24))
    gpu = SimulatedGpu(monkeypatch, tmp_path)
    compiled = torch.compile(model, backend=gpu)
    with torch.set_grad_enabled(how != "inference"), torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        expected, found = model(ids), compiled(ids)
    tolerance = 3e-2 if how == "autocast" else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert gpu.launched and not any(record.fallbacks for record in gpu.records)
    if how == "inference":
        return
    wanted = list(model.parameters())
    theirs, ours = (torch.autograd.grad(x.float().square().mean(), wanted) for x in (expected, found))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_library_kernels(training: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With symbolic sizes, attention is a library's; rows without keys have uniform weights."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT * 0.25).masked_fill(~keep, torch.finfo(q.dtype).min)
        return scores.softmax(-1) @ v

    torch.manual_seed(0)
    given = [torch.randn(2, 3, 24, 16, dtype=torch.bfloat16, requires_grad=training) for _ in range(3)]
    keep = torch.rand(2, 1, 24, 24) > 0.3
    keep[0, :, 3] = False
    for x in (*given, keep):
        torch._dynamo.mark_dynamic(x, 2)
    torch._dynamo.mark_dynamic(keep, 3)
    gpu = SimulatedGpu(monkeypatch, tmp_path)
    expected, found = attend(*given, keep), torch.compile(attend, backend=gpu)(*given, keep)
    assert [match.candidate for record in gpu.records for match in record.applied if match.rule == "sdpa"] == ["cudnn"]
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)
    if training:
        theirs, ours = (torch.autograd.grad(x, given, torch.ones_like(x)) for x in (expected, found))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_convolution_that_lies_otherwise_than_told(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of channels last, a CPU's library makes channels last, where metadata says contiguous on a GPU."""
    torch.manual_seed(0)
    layer, norm = nn.Conv1d(64, 64, 1, groups=4), nn.LayerNorm(64)
    x = torch.randn(2, 40, 64)
    compute = lambda x: norm(layer(x.transpose(1, 2)).transpose(1, 2) + x)  # noqa: E731
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        expected = compute(x)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 1)
        found = torch.compile(compute, backend=SimulatedGpu(monkeypatch, tmp_path))(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, (0, 1), None], ids=str)
def test_equal_elements_do_not_deviate(dim: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eager's kernels give exactly 0 on a GPU, and gradients of 0: rounding alone would give any."""
    numbers = torch.tensor([0.3923, -430.7, 1e-12, 3e4, 1 / 3])[:, None, None]
    x = numbers.expand(5, 43, 3).movedim(0, -1).contiguous().requires_grad_()

    def deviations(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            (*torch.std_mean(x, dim), x.var(dim)) if dim is not None else (*torch.std_mean(x[..., 0]), x[..., 0].var())
        )

    gpu = SimulatedGpu(monkeypatch, tmp_path)
    std, mean, var = torch.compile(deviations, backend=gpu)(x)
    assert gpu.launched and not std.any() and not var.any()
    torch.testing.assert_close(mean, numbers[:, 0, 0].expand(mean.shape) if dim is not None else numbers[0, 0, 0])
    (std.sum() + var.sum()).backward()
    assert x.grad.abs().max() <= 1e-2  # of a variance, rounding of the means


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: (x.t().reshape(-1), x.t().ravel()),
        lambda x: (
            F.conv1d(x[None], x[None, :1, :2].expand(2, 6, 2)),
            F.conv1d(x[None], x[None, :1, :2].expand(2, 6, 2)),
        ),
        lambda x: (x.new_ones(3).scatter_reduce(0, (x[0] > 0).long(), x[0], "prod"), x.sort().values),
    ],
    ids=["copies", "convolutions", "what Triton cannot compute"],
)
def test_results_of_equal_calls_stay_apart_and_kernels_are_refused(
    compute: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a GPU: there, metadata says which tensors share memory, and some kernels have no machine code."""
    x = torch.randn(6, 8)
    found = torch.compile(compute, backend=SimulatedGpu(monkeypatch, tmp_path))(x)
    torch.testing.assert_close(found, compute(x), rtol=1e-2, atol=1e-2)  # convolutions may multiply in TF32
    assert len({result.untyped_storage().data_ptr() for result in found}) == 2
