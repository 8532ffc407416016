"""Program 2039."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': True,
 'grad': False,
 'mode': '',
 'autocast': '',
 'capture': False,
 'options': {'rng': 'eager', 'profit': 'measured'}}

def given(call):
    torch.manual_seed(2039 + call)
    a = (5, 0, 33)[call]
    b = (1, 3, 4)[call]
    c = (3, 1, 7)[call]
    d = 5
    x0 = torch.randn((2, a, 2 * b,)).to(torch.float16)[..., ::2]
    x1 = torch.randn(c, d, 8).to(torch.float64)
    x2 = torch.randn(8).to(torch.float64)
    x3 = torch.randn(8).to(torch.float64)
    return [x0, x1, x2, x3]


def program(x0, x1, x2, x3):
    v1 = abs(0.1)
    v2 = x0.max(0).indices
    v3 = x0
    for part in v2.flatten()[:2].tolist():
        v4 = v3.slice_scatter(v3[1:], 0, 1)
        v3 = v4
    v5 = v3
    if v3.numel() == -1:
        v6 = v5.sigmoid()
        v7 = v2 + -3
        v5 = v6
    else:
        v5 = x0
    v8 = (x1 - x1.mean(-1, True)) / torch.sqrt(x1.var(-1, unbiased=False, keepdim=True) + 1e-5) * x2 + x3
    v9, v10 = x3.split([2, x3.shape[0] - 2])
    v14 = v2
    for part in v5.unbind(0)[:3]:
        v15 = x2.frac()
        v14 = v15
    v16 = torch.arange(13, 0, -3, device=DEVICE)
    return v16
