"""Batch norms folded into the layers before them."""

from __future__ import annotations

import copy

import pytest
import torch
from support.freezing import counts, disturbed, frozen
from torch import nn

LAYERS = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (2, 4, 9)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), (2, 4, 9, 9)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6)), (2, 4, 5, 5, 5)),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), (2, 4, 9, 9)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, dilation=2), nn.BatchNorm2d(8)), (2, 4, 9, 9)),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), (2, 4, 9, 9)),
    "eps": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=0.5)), (2, 4, 9, 9)),
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (5, 4)),
    "linear, no bias": (lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6)), (5, 4)),
}


def error(model: nn.Module, run, x: torch.Tensor) -> tuple[float, float]:
    """Relative errors of the compiled program and of eager against float64."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        return tuple(((f(x).double() - exact).norm() / exact.norm()).item() for f in (run, model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", LAYERS)
def test_accuracy(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model, x = disturbed(make()).to(dtype), torch.randn(shape).to(dtype)
    run, cov = frozen(model)
    with cov:
        ours, eager = error(model, run, x)
    assert counts(cov)["batch_norms"] == 1
    assert ours <= 2 * eager + 4 * torch.finfo(dtype).eps


class Branching(nn.Module):
    """The convolution's result is used beside the batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) + y


def not_folded(model: nn.Module, x: torch.Tensor) -> None:
    run, cov = frozen(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert counts(cov)["batch_norms"] == 0


def test_value_used_elsewhere() -> None:
    not_folded(disturbed(Branching()), torch.randn(2, 4, 6, 6))


def test_transposed_convolution() -> None:
    model = disturbed(nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6)))
    not_folded(model, torch.randn(2, 4, 6, 6))


def test_norm_alone_and_before_the_layer() -> None:
    not_folded(disturbed(nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3))), torch.randn(2, 4, 6, 6))


def test_norm_that_uses_the_batch() -> None:
    """Under no_grad but in training mode: statistics are those of the batch, and the running ones are written."""
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).train()
    twin, x = copy.deepcopy(model), torch.randn(2, 4, 6, 6)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), twin(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
    assert counts(cov)["batch_norms"] == 0


def test_one_convolution_two_norms() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.a, self.b = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.conv(self.a(self.conv(x))))

    model, x = disturbed(Shared()), torch.randn(2, 4, 5, 5)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert counts(cov)["batch_norms"] == 2
