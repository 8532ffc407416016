"""Equal calls whose results have sizes of their own, of which one is made."""

import torch

HOW = {"dynamic": None, "mode": "inference", "capture": True, "options": {"rng": "eager", "profit": "always"}}


def given(call):
    torch.manual_seed(1271 + call)
    n0 = 3
    n1 = (-3, 2, 4)[call]
    x2 = torch.randn(3, 4)
    return [x2, n0, n1]


def program(x2, n0, n1):
    for step in range(2):
        v4 = x2[x2 > 0].softmax(0)
    return torch.arange(n0, n0 - 3, -1)
