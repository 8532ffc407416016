"""Program 2007."""

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
    torch.manual_seed(2007 + call)
    a = (1, 1, 16)[call]
    b = (8, 16, 3)[call]
    k0 = True
    x0 = torch.randn((a,)).mul(2).round()
    x1 = x0[::2]
    x2 = torch.randint(-5, 6, (b, b, a, a,)).to(torch.int64).to(memory_format=torch.channels_last)
    return [x0, x1, x2, k0]


def program(x0, x1, x2, k0):
    v0 = torch.bernoulli(x0.sigmoid())
    v1 = x1.index_add(0, torch.zeros(x1.shape[0], dtype=torch.long, device=DEVICE), x1)
    return v1, x0, x2
