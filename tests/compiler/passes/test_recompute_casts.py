"""What a norm casts to single precision is kept as the 16 bits that it was cast from."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from regraft.compiler.passes.recompute_casts import recompute_casts

from ...support.joint_pass import JointPass

X, W = torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(8, 8, dtype=torch.bfloat16)


def layer(x, w):
    return F.layer_norm((x @ w).float(), (8,)).bfloat16() @ w


def group(x, w):
    return F.group_norm((x @ w).float().view(2, 4, 6), 2)


def gradients(function, *given):
    given = [t.detach().clone().requires_grad_() for t in given]
    result = function(*given)
    return result, torch.autograd.grad(result.float().square().mean(), given)


def compared(function, *given):
    kept = JointPass(recompute_casts)
    ours = gradients(torch.compile(function, backend=kept, fullgraph=True), *given)
    torch.testing.assert_close(ours, gradients(function, *given))
    return kept


@pytest.mark.parametrize("function", [layer, group])
def test_gradients_are_eagers_and_16_bits_are_kept(function):
    kept = compared(function, X, W)
    assert kept.count == 1
    assert ("torch.float32", X.numel()) not in kept.kept()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_any_narrower_dtype(dtype):
    kept = compared(lambda x, w: F.layer_norm((x @ w).to(torch.float64), (8,)).sum(), X.to(dtype), W.to(dtype))
    assert kept.count == 1


def test_a_cast_that_a_product_reads_stays():
    assert compared(lambda x, w: (x + 1).float() @ w.float(), X, W).count == 0


def test_checkpoints_and_results_stay():
    def checkpointed(x, w):
        return checkpoint(layer, x, w, use_reentrant=False)

    def returned(x, w):
        y = (x @ w).float()
        return F.layer_norm(y, (8,)) + y, y

    assert compared(checkpointed, X, W).count == 0
    kept = JointPass(recompute_casts)
    torch.compile(returned, backend=kept)(X.clone().requires_grad_(), W)
    assert kept.count == 0


def test_a_cast_to_fewer_bits_stays():
    assert compared(lambda x, w: F.layer_norm((x * w[0]).bfloat16(), (8,)).exp(), X.float(), W.float()).count == 0
