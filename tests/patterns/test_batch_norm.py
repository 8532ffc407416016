"""Batch norms folded into the layers before them, with frozen weights and without."""

from __future__ import annotations

import copy

import pytest
import torch
from support.freezing import disturbed, frozen
from support.rewriting import assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in, takes_turns
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from regraft.compiler.tools.check import refusals
from regraft.patterns.batch_norm import batch_norm
from regraft.rewrites.binding import Binding


class ByHand(nn.Module):
    """A convolution and a norm whose four vectors are buffers, as `DetrFrozenBatchNorm2d` has them."""

    def __init__(self, form: str, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.form = layer, form
        for name in ("gamma", "beta", "mean", "variance", "other"):
            self.register_buffer(name, torch.rand(6) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.form.startswith("vectors"):
            return self._of_vectors(y)
        gamma, beta, mean, variance, other = (t.view(1, -1, 1, 1) for t in self.buffers())
        if self.form == "centered":
            return (y - mean) / torch.sqrt(variance + 1e-3) * gamma + beta
        scale = gamma * (variance + 1e-3).rsqrt()
        others = {
            "not affine": lambda: (y - mean) * torch.rsqrt(variance + 1e-3),
            "gamma alone": lambda: (y - mean) / torch.sqrt(variance + 1e-3) * gamma,
            "beta alone": lambda: beta + (y - mean) / torch.sqrt(variance + 1e-3),
            "eps outside": lambda: (y - mean) / (torch.sqrt(variance) + 1e-3) * gamma + beta,
            "scaled apart": lambda: y * scale - mean * scale + beta,
            "scaled apart by another scale": lambda: y * scale - mean * (other * scale) + beta,
        }
        if self.form in others:
            return others[self.form]()
        if self.form == "scale of centered":
            return beta + (gamma * torch.rsqrt(variance + 1e-3)) * (y - mean)
        if self.form == "scale":
            return y * scale + (beta - mean * scale)
        if self.form == "another scale":
            return y * scale + (beta - mean * (other * (variance + 1e-3).rsqrt()))
        return y * (gamma * (variance + other).rsqrt()) + beta  # computed eps, no mean

    def _of_vectors(self, y: torch.Tensor) -> torch.Tensor:
        """Scale and shift as vectors, reshaped at last; the shift by rows is that of another dim."""
        gamma, beta, mean, variance, other = self.buffers()
        scale = gamma * (variance + 1e-3).rsqrt()
        if self.form == "vectors, centered":
            return (y - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + beta.view(1, -1, 1, 1)
        if self.form == "vectors, negated shift":
            return y * scale[:, None, None] + (-mean * scale + beta)[:, None, None]
        if self.form == "vectors":
            return torch.addcmul((beta - mean * scale)[:, None, None], y, scale[:, None, None])
        if self.form == "vectors, shift along rows":
            return y * scale[:, None, None] + (beta - mean * scale)
        return y * scale[:, None, None] + (beta - mean * (other * (variance + 1e-3).rsqrt()))[:, None, None]


class Rows(nn.Module):
    """A linear layer and the norm of its features: LeViT merges the rows, others move features to the second dim."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        self.layer, self.norm, self.merged = nn.Linear(4, 6, bias=merged), nn.BatchNorm1d(6), merged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.norm(y.flatten(0, 1)).reshape_as(y) if self.merged else self.norm(y.transpose(1, 2)).relu()


LAYERS = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (2, 4, 9)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), (2, 4, 9, 9)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6)), (2, 4, 5, 5, 5)),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), (2, 4, 9, 9)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, dilation=2), nn.BatchNorm2d(8)), (2, 4, 9, 9)),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), (2, 4, 9, 9)),
    "eps": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=0.5)), (2, 4, 9, 9)),
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (5, 4)),
    **{
        f"by hand, {form}": (lambda form=form: ByHand(form, nn.Conv2d(4, 6, 3, bias=False)), (2, 4, 9, 9))
        for form in (
            "centered",
            "scale of centered",
            "scale",
            "vectors",
            "vectors, centered",
            "vectors, negated shift",
            "not affine",
            "gamma alone",
            "beta alone",
            "scaled apart",
        )
    },
    "merged rows": (lambda: Rows(merged=True), (2, 5, 4)),
    "transposed rows": (lambda: Rows(merged=False), (2, 5, 4)),
    "linear, no bias": (lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6)), (5, 4)),
}


def error(model: nn.Module, run, x: torch.Tensor) -> tuple[float, float]:
    """Relative errors of the compiled program and of eager against float64."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        return tuple(((f(x).double() - exact).norm() / exact.norm()).item() for f in (run, model))


@one_row_in(2)
@takes_turns("freezing")
@pytest.mark.parametrize("freezing", [True, False], ids=["frozen", "changing"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", LAYERS)
def test_accuracy(name: str, dtype: torch.dtype, freezing: bool) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model, x = disturbed(make()).to(dtype), torch.randn(shape).to(dtype)
    run, cov = frozen(model) if freezing else compiled(model)
    with cov:
        ours, eager = error(model, run, x)
    assert cov.matches["batch_norm"] == 1
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
    assert cov.count("batch_norm") == 0


def test_value_used_elsewhere() -> None:
    not_folded(disturbed(Branching()), torch.randn(2, 4, 6, 6))


@pytest.mark.parametrize(
    "form",
    [
        "another scale",
        "scaled apart by another scale",
        "computed eps",
        "vectors, another scale",
        "vectors, shift along rows",
    ],
)
def test_other_affine_functions(form: str) -> None:
    not_folded(ByHand(form, nn.Conv2d(4, 6, 3)), torch.randn(2, 4, 8, 8))


def test_eps_outside_of_the_root() -> None:
    model, x = ByHand("eps outside", nn.Conv2d(4, 6, 3)), torch.randn(2, 4, 8, 8)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    (miss,) = (m for m in cov.near_misses if m.family == "normalization")
    assert miss.rule == "batch_norm" and "outside of the root" in miss.message and cov.count("batch_norm") == 0


def test_by_hand_without_a_layer() -> None:
    not_folded(ByHand("scale", nn.ReLU()), torch.randn(2, 6, 5, 5))


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
    assert cov.count("batch_norm") == 0


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
    assert cov.matches["batch_norm"] == 2


@takes_turns("by_hand")
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("gamma", [False, True], ids=["gamma at rest", "gamma trained"])
def test_trained_through_a_norm_at_rest(gamma: bool, by_hand: bool) -> None:
    """Fine-tuning with the norms in evaluation: gradients are as precise as eager's, also that of gamma."""
    torch.manual_seed(0)

    def function(x, w, b, g, mean, variance):
        y = torch.conv2d(x, w)
        if not by_hand:
            return torch.batch_norm(y, g, b, mean, variance, False, 0.1, 1e-5, False).relu()
        scale = g * torch.rsqrt(variance + 1e-5)
        return (y * scale[:, None, None] + (b - mean * scale)[:, None, None]).relu()

    given = [torch.randn(2, 4, 9, 9) + 2, torch.randn(6, 4, 3, 3) + 1, torch.randn(6)]
    given += [torch.rand(6) + 0.5, torch.randn(6), torch.rand(6) + 0.5]
    given = trained(given, first=4 if gamma else 3)
    found = rewritten(function, given, rules=[batch_norm])
    assert found.count("batch_norm") == (not gamma) and ("gradient-less-precise" in found.codes) == gamma
    assert_agrees(function, found.run, given)


STATISTICS = (torch.zeros(6), torch.ones(6))


def refused(function, *inputs, code: str) -> None:
    found = rewritten(function, inputs, rules=[batch_norm], near_miss_depth=0)
    assert found.count("batch_norm") == 0 and code in found.codes, found.codes


def test_near_miss_batch_statistics() -> None:
    def function(x, w, mean, variance):
        return torch.batch_norm(torch.conv2d(x, w), None, None, mean, variance, True, 0.1, 1e-5, False)

    refused(function, torch.randn(2, 4, 5, 5), torch.randn(6, 4, 3, 3), *STATISTICS, code="batch-statistics")


def test_near_miss_transposed() -> None:
    def function(x, w, mean, variance):
        y = torch.convolution(x, w, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1)
        return torch.batch_norm(y, None, None, mean, variance, False, 0.1, 1e-5, False)

    refused(function, torch.randn(2, 4, 5, 5), torch.randn(4, 6, 3, 3), *STATISTICS, code="convolution-transposed")


def test_near_miss_dtype() -> None:
    """A complex convolution; no norm takes whole numbers."""

    def function(x, w, mean, variance):
        return torch.batch_norm(torch.conv2d(x, w), None, None, mean, variance, False, 0.1, 1e-5, False)

    x, w = torch.randn(2, 4, 5, 5, dtype=torch.complex64), torch.randn(6, 4, 3, 3, dtype=torch.complex64)
    refused(function, x, w, *STATISTICS, code="kernel-unavailable")


@pytest.mark.parametrize("sample", [s for s in batch_norm.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample) -> None:
    assert sample.refused in refusals(batch_norm, sample)


def test_frozen_weights_are_not_measured() -> None:
    """A result is passed over once less, and nothing is computed instead."""
    model, x = disturbed(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))), torch.randn(2, 4, 9, 9)
    run, cov = frozen(model, profit="measured")
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    (match,) = (m for m in cov.applied if m.rule == "batch_norm")
    assert match.candidate == "folded_frozen" and match.evidence.note == "never costs more"


@pytest.mark.parametrize(("device", "code"), [("cuda", "fused-anyway"), ("cpu", "weight-frozen")])
def test_weights_that_may_change_are_not_folded_on_gpus(device: str, code: str) -> None:
    """There the norm is part of the kernel that follows, and the fold would be computed at every call."""
    x = torch.fx.Graph().placeholder("x")
    with FakeTensorMode():
        x.meta["val"] = torch.empty(2, 4, 6, 6, device=device)
    (folded,) = (c for c in batch_norm.candidates if c.name == "folded")
    assert folded.applies(Binding({"x": x}), {}).code == code
