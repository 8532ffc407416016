"""Program 2004."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': None,
 'grad': False,
 'mode': '',
 'autocast': '',
 'capture': True,
 'options': {'rng': 'eager', 'profit': 'measured'}}

def given(call):
    torch.manual_seed(2004 + call)
    a = 17
    b = 2
    c = 5
    n0 = 100
    n1 = 1
    x0 = torch.randn((a, a, 4,))
    x1 = torch.randint(-5, 6, (b,)).to(torch.int32)
    x2 = torch.randn(c, 4)
    x3 = torch.randn(3, 4)
    return [x0, x1, x2, x3, n0, n1]


def program(x0, x1, x2, x3, n0, n1):
    x0.zero_()
    v0 = x1.shape[0] if True else n0
    v1 = x1.roll(1, 0)
    v2 = x1
    v3 = F.linear(x2, x3).argmax(-1)
    v4 = torch.zeros_like(x2)
    for expert in range(3):
        rows = torch.where(v3 == expert)[0]
        v4 = v4.index_add(0, rows, x2[rows] * x3[expert])
    v5 = F.mish(x2)
    return v5, v3, x3
