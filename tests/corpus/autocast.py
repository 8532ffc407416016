"""Program 2031."""

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
    torch.manual_seed(2031 + call)
    a = (9, 1, 4)[call]
    b = 4
    c = (0, 17, 4)[call]
    d = 1
    x0 = torch.randn((a, a,)).transpose(0, -1)
    x1 = torch.randint(-5, 6, (b,)).to(torch.int64)
    x2 = torch.randn((d, c, 2,)).to(torch.bfloat16).transpose(0, -1).requires_grad_()
    return [x0, x1, x2]


def program(x0, x1, x2):
    v0 = x0
    with torch.autocast(DEVICE, enabled=False):
        v1 = x1.flip(0)
        v0 /= 1
        v2 = v1.abs()
        v0 = v1
    v3 = 1 / 1
    x0.add_(0)
    v4 = x0[..., x0.shape[-1] // 2 :]
    return v4, x2, v3
