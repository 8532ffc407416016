"""Losses against eager, forward and backward."""

from __future__ import annotations

import pytest
import torch
from support.lowering import agree, agree_on_call, run, trace
from support.thorough import one_row_in, takes_turns

from regraft.compiler.lowering import lower

aten = torch.ops.aten
REDUCTIONS = [0, 1, 2]
IGNORED = -100
PLAIN = [
    ("mse_loss", ()), ("smooth_l1_loss", (0.7,)), ("smooth_l1_loss", (0.0,)), ("huber_loss", (0.7,)),
    ("soft_margin_loss", ()),
]  # fmt: skip


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def incoming(reduction, *shape):
    return numbers(*(shape if reduction == 0 else ()), seed=7)


def pair():
    """Operands that agree in places, and that hold a NaN and an infinity."""
    x, y = numbers(4, 5), numbers(4, 5, seed=1)
    y[0] = x[0]
    x[1, 1], x[2, 2] = float("nan"), float("inf")
    return x, y


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "more"), PLAIN)
def test_elementwise_losses(name, more, reduction):
    x, y = pair()
    agree(lambda x, y: getattr(aten, name)(x, y, reduction, *more), x, y)
    agree(lambda x, y: getattr(aten, name)(x, y, reduction, *more), x[:1], y[:1].clone())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "more"), PLAIN)
def test_elementwise_losses_backward(name, more, reduction):
    x, y = pair()
    grad = incoming(reduction, 4, 5)
    agree(lambda g, x, y: getattr(aten, f"{name}_backward")(g, x, y, reduction, *more), grad, x, y)


def test_losses_broadcast():
    agree(lambda x, y: aten.mse_loss(x, y), numbers(4, 5), numbers(4, 1))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_nothing(reduction):
    agree(lambda x, y: aten.mse_loss(x, y, reduction), torch.empty(0, 3), torch.empty(0, 3))


def test_losses_of_halves_and_symbolic_sizes():
    x, y = numbers(4, 5), numbers(4, 5, seed=1)
    agree(lambda x, y: aten.mse_loss(x, y), x.bfloat16(), y.bfloat16(), rtol=2e-2, atol=2e-2)
    agree(lambda x, y: (aten.mse_loss(x, y), aten.huber_loss(x, y, 2, 0.5)), x, y, dynamic=True)


# -- binary cross entropy ----------------------------------------------------------------------------------------------


def chances():
    x, y = numbers(4, 5).sigmoid(), numbers(4, 5, seed=1).sigmoid()
    x[0, 0], x[0, 1], y[1, 0], y[1, 1] = 0, 1, 0, 1
    return x, y, numbers(4, 5, seed=2)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(reduction):
    x, y, weight = chances()
    agree(lambda x, y: aten.binary_cross_entropy(x, y, None, reduction), x, y)
    agree(lambda x, y, w: aten.binary_cross_entropy(x, y, w, reduction), x, y, weight[:, :1])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy_backward(reduction):
    x, y, weight = chances()
    grad = incoming(reduction, 4, 5)
    agree(lambda g, x, y, w: aten.binary_cross_entropy_backward(g, x, y, w, reduction), grad, x, y, weight)
    agree(lambda g, x, y: aten.binary_cross_entropy_backward(g, x, y, None, reduction), grad, x, y)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("positives", [True, False])
def test_binary_cross_entropy_with_logits(reduction, weighted, positives):
    _, y, weight = chances()
    args = [numbers(4, 5) * 50, y, weight if weighted else None, weight[0].clone() if positives else None, reduction]
    operator = aten.binary_cross_entropy_with_logits.default
    agree_on_call(operator, args, operator(*args))


# -- negative log likelihood -------------------------------------------------------------------------------------------


def classes(*shape, ignored=True):
    target = torch.randint(0, 6, shape, generator=torch.Generator().manual_seed(3))
    if ignored and shape:
        target[0] = IGNORED
    return target


CASES = {
    "batch": ((4, 6), classes(4)),
    "one": ((6,), classes()),
    "one, ignored": ((6,), torch.tensor(IGNORED)),
    "all ignored": ((4, 6), torch.full((4,), IGNORED)),
    "nothing": ((0, 6), classes(0, ignored=False)),
    "images": ((2, 6, 3, 2), classes(2, 3, 2)),
}


@takes_turns("weighted")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_nll(case, weighted, reduction):
    shape, target = CASES[case]
    forward = aten.nll_loss2d_forward if len(shape) == 4 else aten.nll_loss_forward
    weight = [numbers(6, seed=4).abs()] if weighted else []
    agree(lambda x, t, *w: forward(x, t, *(w or [None]), reduction, IGNORED), numbers(*shape), target, *weight)


@one_row_in(4)
@takes_turns("reduction")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("total", [3.5, 0.0])
def test_nll_backward(case, weighted, reduction, total):
    shape, target = CASES[case]
    backward = aten.nll_loss2d_backward if len(shape) == 4 else aten.nll_loss_backward
    weight = [numbers(6, seed=4).abs()] if weighted else []
    grad = incoming(reduction, *target.shape)

    def function(g, x, t, n, *w):
        return backward(g, x, t, *(w or [None]), reduction, IGNORED, n)

    agree(function, grad, numbers(*shape), target, torch.tensor(total), *weight)


@pytest.mark.parametrize("target", [6, -1])
def test_targets_out_of_range_raise(target):
    x, t = numbers(4, 6), torch.full((4,), target)
    module = trace(lambda x, t: aten.nll_loss_forward(x, t, None, 1, IGNORED)[0], x, t)
    with pytest.raises(IndexError):
        run(module, lower(module), [x, t])


def test_cross_entropy_of_symbolic_sizes_and_halves():
    def function(x, t):
        return torch.nn.functional.cross_entropy(x, t)

    agree(function, numbers(4, 6), classes(4), dynamic=True)
    agree(function, numbers(4, 6).bfloat16(), classes(4), rtol=2e-2, atol=2e-2)


def test_the_gradient_scatters_nothing():
    made = agree(
        lambda g, x, t, n: aten.nll_loss_backward(g, x, t, None, 1, IGNORED, n),
        torch.tensor(1.0), numbers(4, 6), classes(4), torch.tensor(3.0),
    )  # fmt: skip
    (item,) = made.program.items
    assert [store.mode for store in item.stores] == [None]
