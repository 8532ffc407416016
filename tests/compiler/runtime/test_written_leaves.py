"""Inputs with gradients that are written behind autograd's back: leaves, their views and computed tensors in turn."""

import itertools

import pytest
import torch
from support.thorough import one_row_in


def data(x, y):
    x.data.mul_(2)
    return y * x


def detached(x, y):
    part = x.detach()[1:]
    part.add_(1).mul_(y[1:].detach())
    return y * 3, x + 1


def without_gradients(x, y):
    with torch.no_grad():
        x.mul_(2)
    return y * x


GIVEN = {
    "leaf": lambda w: w,
    "computed": lambda w: w * 1.5,
    "view of a leaf": lambda w: w.view(3),
    "view of computed": lambda w: (w * 1.5).view(3),
    "parameter": lambda w: torch.nn.Parameter(w.detach()),
}


def outcome(program, given):
    w, y = (torch.linspace(-1, 2, 3).mul(k).requires_grad_() for k in (1, 3))
    x = GIVEN[given](w)
    results = program(x, y)
    results = results if isinstance(results, tuple) else (results,)
    gradients = torch.autograd.grad(sum(r.square().sum() for r in results), (y, w), allow_unused=True)
    return [torch.zeros(3) if t is None else t.detach() for t in (x, w, *results, *gradients)]


@one_row_in(3)
@pytest.mark.parametrize("pair", itertools.permutations(GIVEN, 2), ids="-".join)
@pytest.mark.parametrize("program", [data, detached, without_gradients])
def test_what_is_written_and_wants_gradients(program, pair):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft")
    for given in (*pair, pair[0]):
        torch.testing.assert_close(outcome(compiled, given), outcome(program, given), rtol=0, atol=0)
