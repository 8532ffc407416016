"""Results of norms that only activations' backwards read are computed again, not kept."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in, takes_turns
from torch import nn

import regraft
from regraft.compiler.passes.recompute_norms import recompute_norms

from ...support.joint_pass import JointPass


def kept(function, *args):
    """Shapes of what a compiled function keeps that is no parameter's, and its result."""
    found = []

    def pack(x):
        found.append((x.untyped_storage().data_ptr(), tuple(x.shape)))
        return x

    torch.compiler.reset()
    run = torch.compile(function, backend=regraft.backend, options={"profit": "never", "strict": True})
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = run(*args)
    return len({at for at, shape in found if len(shape) == 4}), result


def net(norm, activation):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm(), activation(), nn.Conv2d(8, 4, 3))


NORMS = {
    "batch": lambda: nn.BatchNorm2d(8),
    "plain batch": lambda: nn.BatchNorm2d(8, affine=False),
    "group": lambda: nn.GroupNorm(2, 8),
    "plain group": lambda: nn.GroupNorm(4, 8, affine=False),
}


@one_row_in(2)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_are_as_eagers_and_less_is_kept(norm, dtype):
    ours, eager = (net(NORMS[norm], nn.SiLU) for _ in range(2))
    x = torch.randn(2, 3, 9, 9)

    def loss(module, x):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            return module(x).float().square().mean()

    count, found = kept(lambda x: loss(ours, x), x)
    wanted = loss(eager, x)
    found.backward(), wanted.backward()
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)
    # The input, both weights, the norm's input, the activation's result, that of the net (in bfloat16 also as it was
    # before it was cast); not the norm's result.
    assert count == (6 if dtype == torch.float32 else 7)


def test_what_the_next_product_reads_is_kept():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv = nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 3)

        def forward(self, x):
            y = self.norm(x)
            return self.conv(y).sum() + torch.nn.functional.silu(y).sum()

    ours, x = Both(), torch.randn(2, 8, 9, 9, requires_grad=True)
    _, found = kept(lambda x: ours(x), x)
    (gradient,) = torch.autograd.grad(found, x)
    torch.testing.assert_close(gradient, torch.autograd.grad(ours(x), x)[0])


X = torch.randn(4, 6, 8)
F = torch.nn.functional
CHANNELS = {"weight": torch.rand(8), "bias": torch.randn(8)}
PROGRAMS = {
    "layer": lambda x: F.layer_norm(x.sin(), (8,), **CHANNELS).square(),
    "plain layer": lambda x: F.silu(F.layer_norm(x.sin(), (6, 8))),
    "RMS": lambda x: F.rms_norm(x.sin(), (8,), CHANNELS["weight"]).square(),
    "instance": lambda x: F.instance_norm(x.sin()).square(),
    "a view": lambda x: F.layer_norm(x.sin(), (8,)).view(-1, 4).square(),
    "an activation that is read": lambda x: F.silu(F.layer_norm(x.sin(), (8,))).exp() * x,
    "an activation that a sum and a product read": lambda x: (
        (y := F.silu(F.layer_norm(x.sin(), (8,)))) * y.mean(1, True)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_computed_again_from_statistics(name):
    function, kept = PROGRAMS[name], JointPass(recompute_norms)
    ours, eager = (X.clone().requires_grad_() for _ in range(2))
    torch.compile(function, backend=kept, fullgraph=True)(ours).sum().backward()
    function(eager).sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-5, atol=1e-5)
    assert kept.count == (name != "RMS")  # CPUs compute it by parts
    assert [size for _, size in kept.kept() if size >= X.numel()] == []


def test_a_result_that_a_product_reads_is_kept_with_what_follows():
    w = torch.randn(8, 8)
    kept = JointPass(recompute_norms)
    x = X.clone().requires_grad_()
    torch.compile(lambda x, w: F.silu(F.layer_norm(x, (8,))) @ w, backend=kept)(x, w.clone().requires_grad_())
    assert kept.count == 1  # the activation's backward reads the norm's result; the gradient of w, the activation's
    assert len([size for _, size in kept.kept() if size >= X.numel()]) == 1
