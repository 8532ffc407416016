"""Program 2021."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': False,
 'grad': False,
 'mode': '',
 'autocast': '',
 'capture': False,
 'options': {'rng': 'eager', 'profit': 'always'}}

def given(call):
    torch.manual_seed(2021 + call)
    a = 3
    b = (4, 17, 6)[call]
    c = (4, 4, 12)[call]
    d = (5, 2, 2)[call]
    x0 = torch.randn((a, a,)).mul(2).round().to(torch.float64).transpose(0, -1)
    x1 = torch.randn((c, c, b,)).transpose(0, -1)
    x2 = torch.randn(())
    x3 = torch.randn(d, 8)
    return [x0, x1, x2, x3]


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0 = nn.LayerNorm(8)

    def forward(self, x0, x1, x2, x3):
        v0 = x0.select(0, -1)
        v1 = v0.repeat(2, *[1] * v0.dim())
        v2 = torch.maximum(x1, x2)
        v3 = self.l0(x3) + x3
        v4 = v2.abs().log1p()
        v5 = v4
        for step in range(x3.dim()):
            v6 = F.mish(x0)
            v8 = v4.mean(1)
            v5 = v8
        v10 = v3.t()
        v11 = v10.cumsum(-2)
        return v11, x0
