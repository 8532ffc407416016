"""Operators on lists of tensors, and whole steps of optimizers."""

from __future__ import annotations

import pytest
import torch
from support.lowering import agree
from torch.optim.sgd import sgd


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator) + 0.5 for shape in ((3, 4), (5,), ())]


def on_lists(function):
    return lambda *args: list(function(args[:3], args[3:6], args[6:9]))


INPUTS = [*tensors(0), *tensors(1), *tensors(2)]
CASES = {
    "scalar": lambda a, b, c: torch._foreach_add(a, 2),
    "list": lambda a, b, c: torch._foreach_add(a, b, alpha=0.5),
    "scalars": lambda a, b, c: torch._foreach_mul(a, [1.0, 2.0, 3.0]),
    "tensor": lambda a, b, c: torch._foreach_mul(a, c[2]),
    "sub": lambda a, b, c: torch._foreach_sub(a, b),
    "div": lambda a, b, c: torch._foreach_div(a, b),
    "pow": lambda a, b, c: torch._foreach_pow(a, 2),
    "maximum": lambda a, b, c: torch._foreach_maximum(a, b),
    "clamp": lambda a, b, c: torch._foreach_clamp_min(a, 0.7),
    "sqrt": lambda a, b, c: torch._foreach_sqrt(a),
    "neg": lambda a, b, c: torch._foreach_neg(a),
    "round": lambda a, b, c: torch._foreach_round(a),
    "lerp": lambda a, b, c: torch._foreach_lerp(a, b, 0.1),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.3),
    "addcdiv": lambda a, b, c: torch._foreach_addcdiv(a, b, c, [0.3, 0.2, 0.1]),
}


@pytest.mark.parametrize("name", CASES)
def test_lists(name):
    made = agree(on_lists(CASES[name]), *INPUTS)
    assert len(made.program.items) == 3


def test_sgd_with_momentum():
    def step(p, g, m):
        sgd(
            [p],
            [g],
            [m],
            foreach=True,
            weight_decay=0.1,
            momentum=0.9,
            lr=0.1,
            dampening=0.1,
            nesterov=True,
            maximize=False,
        )
        return p

    p, g, m = torch.randn(3, 4, 4).unbind()
    agree(step, p.clone(), g.clone(), m.clone())


def test_adam():
    """The moments and the parameter, as eager's formula has them."""

    def step(p, g, m, v):
        m2 = torch._foreach_lerp([m], [g], 0.1)[0]
        v2 = torch._foreach_addcmul(torch._foreach_mul([v], 0.99), [g], [g], 0.01)[0]
        d = torch._foreach_add(torch._foreach_div(torch._foreach_sqrt([v2]), 0.3), 1e-8)
        p.copy_(torch._foreach_addcdiv([p], [m2], d, -0.01)[0])
        m.copy_(m2)
        v.copy_(v2)

    p, g, m, v = torch.rand(4, 3, 5).unbind()
    agree(step, p.clone(), g.clone(), m.clone(), v.clone())
