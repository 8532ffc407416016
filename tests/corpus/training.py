"""Program 2005."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {'dynamic': None,
 'grad': True,
 'mode': '',
 'autocast': '',
 'capture': False,
 'options': {'rng': 'eager', 'profit': 'never'}}

def given(call):
    torch.manual_seed(2005 + call)
    a = 0
    b = (7, 4, 8)[call]
    c = (6, 4, 0)[call]
    d = 3
    x0 = torch.randn((1 + 1, a,))[1:].requires_grad_()
    x1 = torch.randn((4, a, b,)).requires_grad_()
    x2 = torch.randn((8, c, a, 2 * d,)).to(torch.float16)[..., ::2].requires_grad_()
    return [x0, x1, x2]


def program(x0, x1, x2):
    v0 = x0[x0 > 0]
    v1 = torch.tril_indices(3, 3, device=DEVICE)
    v2 = x2.std(-1, unbiased=False, keepdim=True)
    return v2, x0, x1
