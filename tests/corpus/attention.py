"""Program 2045."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': True,
 'grad': True,
 'mode': '',
 'autocast': '',
 'capture': True,
 'options': {'rng': 'eager', 'profit': 'always'}}

def given(call):
    torch.manual_seed(2045 + call)
    a = (33, 1, 17)[call]
    b = (4, 8, 7)[call]
    c = (17, 1, 3)[call]
    d = 3
    e = (2, 1, 1)[call]
    g = (6, 5, 8)[call]
    f0 = -0.5
    x0 = torch.randint(-5, 6, (c, 8, b, a,)).to(torch.int32).transpose(0, -1)
    x1 = torch.randn((b, 3,)).masked_fill(torch.rand((b, 3,)) < 0.2, float("-inf")).requires_grad_()
    x2 = torch.randn((1, 3,)).expand(d, 3)
    x3 = torch.randn((1, e, a, g,)).to(torch.bfloat16).requires_grad_()
    x4 = torch.randn(7, 4).to(torch.bfloat16).requires_grad_()
    x5 = torch.randint(0, 7, (1, 5))
    return [x0, x1, x2, x3, x4, x5, f0]


def program(x0, x1, x2, x3, x4, x5, f0):
    v0 = torch.logspace(0, 1, 4, device=DEVICE)
    v1 = x0
    with torch.enable_grad():
        v2 = x3.aminmax()[1]
        v4 = v0.dim()
        v5 = torch.remainder(x3, x3)
        v1 = v5
    v6 = v0.reshape(-1, v0.shape[-1])
    v7 = v0
    for _ in range(2):
        v10 = v0.to(torch.bfloat16)
        v0.fill_(-1)
        v7 = v10
    v11 = v6.flip(0)
    v12 = x4[x5]
    v13 = v12 @ x4.t()
    v14 = -v13.log_softmax(-1).gather(-1, x5[..., None]).mean()
    v12.register_hook(lambda g: g * (g > 0))
    v15 = F.one_hot(x5.long() % 5, 5)
    v16 = v6.clone()
    v18 = v16.erf()
    return v18, v11
