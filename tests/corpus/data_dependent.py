"""Program 2034."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': True,
 'grad': True,
 'mode': '',
 'autocast': '',
 'capture': False,
 'options': {'rng': 'eager', 'profit': 'always'}}

def given(call):
    torch.manual_seed(2034 + call)
    k0 = False
    x0 = torch.randn((3, 1,)).to(torch.bfloat16).requires_grad_()
    return [x0, k0]


class Program(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0, k0):
        v0 = x0.mean()
        v1 = x0[x0 > 0].softmax(0)
        v2 = x0.movedim(0, -1)
        v3 = 0 ** 2
        v4 = F.smooth_l1_loss(v0, v1, beta=abs(1.5) + 0.1)
        v5 = v2 / v4
        v6 = -3 / 3
        v5 /= 2
        return v5, v3, v0, k0
