"""The backward reads the mask of a ReLU, one byte an element, where it needs nothing else of the result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regraft.compiler.passes.relu_masks import keep_relu_masks

from ...support.joint_pass import JointPass

X, W = torch.randn(6, 8), torch.randn(8, 5)


def gradients(function, *given):
    given = [t.detach().clone().requires_grad_() for t in given]
    result = function(*given)
    return result, torch.autograd.grad(result.sum(), given)


def compared(function, *given):
    kept = JointPass(keep_relu_masks)
    ours = gradients(torch.compile(function, backend=kept, fullgraph=True), *given)
    torch.testing.assert_close(ours, gradients(function, *given), rtol=0, atol=0, equal_nan=True)
    return kept


def added(x, w):
    return F.relu(x @ w) + 1


def viewed(x, w):
    return F.relu(x @ w).view(-1) + 1


def threshold(x, w):
    return F.threshold(x @ w, 0.5, 0.25) + 1


@pytest.mark.parametrize("function", [added, viewed, threshold])
def test_one_byte_an_element_is_kept(function):
    kept = compared(function, X, W)
    assert kept.count == 1
    assert ("torch.bool", 30) in kept.kept()
    assert ("torch.float32", 30) not in kept.kept()


def test_numbers_that_are_none_have_eagers_gradients():
    compared(
        added, torch.tensor([[float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1, -1, 2]]).T, torch.ones(1, 1)
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.relu(x @ w) @ w.T,  # the gradient of the weight reads the result
        lambda x, w: (y := F.relu(x @ w)).exp() * y,
        lambda x, w: F.relu(x @ w),  # a result of the program
        lambda x, w: F.relu(x @ w).view(3, 10) @ w.view(10, 4),
    ],
)
def test_results_that_are_kept_anyway_are_left_alone(function):
    assert compared(function, X, W).count == 0
