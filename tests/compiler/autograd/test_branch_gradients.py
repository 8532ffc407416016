"""Gradients of the branches of `cond` may be expanded, transposed or missing, each in its own way."""

from __future__ import annotations

import functools

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft


def summed(x, w, cond=torch.cond):
    """Gradients are an expanded row in one branch."""
    return cond(x.sum() > 0, lambda x, w: x.sum(0, keepdim=True) * w, lambda x, w: x * w * 1.5, (x, w))


def counted(x, w, cond=torch.cond):
    """The same, of one number."""
    return cond(x.sum() > 0, lambda x, w: x.sum() + w, lambda x, w: x.sin() * w, (x, w))


def turned(x, w, cond=torch.cond):
    """Gradients of a transposed tensor, and of an operand that one branch does not read."""
    return cond(x.sum() > 0, lambda x, w: x.t().contiguous().exp().sum(0), lambda x, w: (x * w).sum(1), (x, w))


def turned_operand(x, w, cond=torch.cond):
    return cond(x.sum() > 0, lambda x, w: x.sum(1) * 2, lambda x, w: (x.sum(0) + w).sum(1), (x, w.t().contiguous().t()))


def nested(x, w, cond=torch.cond):
    def inner(x, w):
        return cond(w.sum() > 0, lambda x, w: x.sum(0) * w, lambda x, w: x.cos() + w, (x, w))

    return cond(x.sum() > 0, inner, lambda x, w: x * w, (x, w))


def counts(x, w, cond=torch.cond):
    """Operands without gradients, and one that both branches close over."""
    n, scale = torch.arange(x.shape[1]), w.exp()
    return cond(x.sum() > 0, lambda x, n: x.mean(1, True) * n * scale, lambda x, n: x + n + scale, (x, n))


def either(condition, first, second, operands):
    return first(*operands) if condition else second(*operands)


PROGRAMS = [summed, counted, turned, turned_operand, nested, counts]


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients(program, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    with regraft.coverage() as found:
        for sign, rows in ((1, 4), (-1, 4), (1, 5))[: 2 + dynamic]:
            seen = []
            for call in (compiled, functools.partial(program, cond=either)):
                x = (torch.linspace(0.5, 3, rows * 6).reshape(rows, 6) * sign).requires_grad_()
                w = torch.linspace(-2, 3, rows * 6).reshape(rows, 6).requires_grad_()
                result = call(x, w)
                result.sum().backward()
                seen.append([result.detach(), *(torch.zeros_like(y) if y.grad is None else y.grad for y in (x, w))])
            torch.testing.assert_close(*seen)
    assert not found.faults and not found.fallbacks
