"""Program 2023."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': False,
 'grad': False,
 'mode': 'no_grad',
 'autocast': '',
 'capture': False,
 'options': {'rng': 'eager', 'profit': 'always'}}

def given(call):
    torch.manual_seed(2023 + call)
    a = (4, 3, 0)[call]
    b = (16, 12, 33)[call]
    f0 = 3.0
    x0 = torch.randn((a, a, b,))
    x1 = torch.randint(-5, 6, ()).to(torch.int32)
    x2 = torch.randn((a,))
    return [x0, x1, x2, f0]


def program(x0, x1, x2, f0):
    x0.zero_()
    v0 = x1
    for _ in range(3):
        v1 = F.hardshrink(x0, 0.5)
        v3 = torch.maximum(x0, x0)
        v5 = torch.atleast_2d(v3)
        v0 = v5
    return [v0, x1]
