"""Program 2000."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': None,
 'grad': False,
 'mode': 'no_grad',
 'autocast': '',
 'capture': False,
 'options': {'rng': 'eager', 'profit': 'never', 'freezing': True}}

def given(call):
    torch.manual_seed(2000 + call)
    a = (6, 7, 17)[call]
    b = (12, 1, 1)[call]
    n0 = -3
    n1 = (5, 1, 0)[call]
    x0 = torch.randn((2, a,))
    x1 = torch.randn(()).to(torch.bfloat16)
    x2 = x0[1:]
    x3 = torch.randn((b, a, a,)).to(torch.bfloat16).transpose(0, -1)
    return [x0, x1, x2, x3, n0, n1]


def program(x0, x1, x2, x3, n0, n1):
    v0 = x0 @ x0.mT
    x1.view(-1)[0] = 1.0
    v1 = v0
    v2 = x3[max(5, 0) :]
    return v2, n0
