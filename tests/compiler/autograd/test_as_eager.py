"""Losses that torch traces to something else than eager computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns

import regraft


def hold(function, *args):
    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True)
    with regraft.coverage() as report:
        for size in (5, 3):
            given = [a[:size] for a in args]
            x, y = (given[0].detach().clone().requires_grad_() for _ in range(2))
            got, want = compiled(x, *given[1:]), function(y, *given[1:])
            torch.testing.assert_close(got, want)
            assert [r.stride() for r in got] == [r.stride() for r in want]
            torch.autograd.backward([r.sum() for r in got]), torch.autograd.backward([r.sum() for r in want])
            torch.testing.assert_close(x.grad, y.grad)
    assert not report.faults


def test_margins_of_several_labels():
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3], [2, 2, -1, -1], [1, -1, 0, 0]])

    def reduced(x, t):
        return [F.multilabel_margin_loss(x, t, reduction=reduction) for reduction in ("none", "mean", "sum")]

    hold(reduced, scores, labels)
    hold(lambda x, t: [F.multilabel_margin_loss(x[0], t[0])], scores, labels)


@pytest.mark.parametrize("product", [
    torch.prod, lambda x: x.prod(-1), lambda x: x.prod(0, keepdim=True), lambda x: x.prod(1, dtype=torch.float64),
    lambda x: x[0, 0].prod(),
])  # fmt: skip
def test_gradients_of_products(product):
    torch.compiler.reset()
    compiled = torch.compile(product, backend="regraft", options={"strict": True})
    inf, nan = torch.inf, torch.nan
    rows = ([2, inf, 3], [0, inf, 3], [0, 0, inf], [1, 2, 3], [0, 2, nan], [-0.0, 2, 3])
    for given in (*([row, row] for row in rows), *([row, [1, 2, 4]] for row in rows)):
        x, y = (torch.tensor(given, dtype=torch.float32, requires_grad=True) for _ in range(2))
        got, want = compiled(x), product(y)
        torch.testing.assert_close(got, want, equal_nan=True)
        got.sum().backward(), want.sum().backward()
        torch.testing.assert_close(x.grad, y.grad, equal_nan=True)


def test_labels_out_of_range():
    compiled = torch.compile(F.multilabel_margin_loss, backend="regraft")
    with pytest.raises((RuntimeError, IndexError)):
        compiled(torch.randn(1, 4), torch.tensor([[0, 9, -1, -1]]))


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_no_probability(dtype, grad):
    def program(x, y):
        return F.binary_cross_entropy(x, y) * 2

    torch.compiler.reset()
    compiled, y = torch.compile(program, backend="regraft"), torch.tensor([0.0, 1.0, 1.0], dtype=dtype)
    fine = torch.tensor([0.0, 1.0, 0.5], dtype=dtype, requires_grad=grad)
    torch.testing.assert_close(compiled(fine, y), program(fine, y))
    calls = {"eager": program, "ours": compiled}
    refused = {name: _refused(call, fine.detach(), y * 2) for name, call in calls.items()}
    assert refused["ours"] == refused["eager"]  # of targets not in each version of torch
    for wrong in (1.5, -0.25, torch.nan):
        x = torch.tensor([0.0, wrong, 0.5], dtype=dtype, requires_grad=grad)
        for call in (program, compiled):
            with pytest.raises(RuntimeError, match="between 0 and 1"):
                call(x, y)


def test_a_loss_of_one_sample_has_no_dims():
    torch.compiler.reset()
    x = torch.randn(5, requires_grad=True)
    for reduction in ("none", "mean", "sum"):
        got = torch.compile(F.multi_margin_loss, backend="regraft")(x, torch.tensor(2), reduction=reduction)
        torch.testing.assert_close(got, F.multi_margin_loss(x, torch.tensor(2), reduction=reduction))


LOSSES = {
    "labels": lambda x, r: F.multilabel_margin_loss(x, torch.tensor([[1, -1, 0, 0], [2, 0, -1, 1]]), reduction=r),
    "label": lambda x, r: F.multi_margin_loss(x, torch.tensor([1, 2]), reduction=r),
    "true": lambda x, r: F.multi_margin_loss(x, torch.tensor([1, 2]), margin=True, reduction=r),
    "weighed": lambda x, r: F.multi_margin_loss(x, torch.tensor([1, 2]), 2, 0.5, x.detach()[1].exp(), reduction=r),
}


@takes_turns("reduction")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradients_where_no_margin_is_active(name, reduction):
    torch.compiler.reset()
    call, found = LOSSES[name], []
    for function in (call, torch.compile(call, backend="regraft")):
        x = torch.tensor([[0.0, 9.0, 0.0, 0.0], [0.5, 0.1, 0.2, 0.3]], requires_grad=True)
        loss = function(x, reduction)
        given = (1.0, -torch.inf, torch.nan)
        gradients = [torch.autograd.grad(loss, x, torch.full_like(loss, g), retain_graph=True)[0] for g in given]
        found.append([loss.detach(), *gradients])
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


def _refused(call, *args):
    try:
        call(*args)
    except RuntimeError as error:
        return str(error)
    return ""


def test_shrinking_of_symbolic_sizes():
    """Torch has no metadata for its backward."""
    x = torch.linspace(-1, 1, 20).reshape(5, 4)
    hold(lambda x: [F.hardshrink(x, 0.3), F.softshrink(x).t(), F.hardshrink(x.t() * 2)], x)
