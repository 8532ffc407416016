"""Convolutions whose groups, stride and padding are numbers of the call."""

import torch
import torch.nn.functional as F

HOW = {"dynamic": True, "grad": True, "options": {"rng": "eager", "profit": "always"}}


def given(call):
    torch.manual_seed(call)
    return [torch.randn((1, 1, 2)[call], (3, 4, 4)[call], 4, 5), (1, 2, 2)[call]]


def program(x0, n0):
    channels = x0.shape[1]
    w = torch.ones(2 * channels, 1, 3, 3)
    v0 = F.conv2d(x0, w, padding=1, groups=channels).relu()
    v1 = F.conv2d(x0, w, stride=n0, padding=n0, groups=channels)
    return v0, v1
