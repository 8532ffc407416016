"""A hook on what was written in place."""

import torch

HOW = {
    "dynamic": False,
    "grad": True,
    "mode": "",
    "autocast": "bfloat16",
    "capture": True,
    "options": {"rng": "eager", "profit": "always"},
}
CALLS = 1


def given(call):
    torch.manual_seed(1268 + call)
    x3 = torch.randn((3, 4, 5)).to(torch.bfloat16).requires_grad_()
    return [x3]


def program(x3):
    v3 = torch.bmm(x3, x3.mT)
    v5 = v3.clamp(max=v3)
    v5.add_(x3.sum())
    v5.register_hook(lambda g: g.clamp(-1, 1))
    return v3
