"""Programs that are compiled for any sizes, some of which are equal."""

import torch


def cell(gates, c):
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def rotated(x, cos, sin):
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def modulated(x, condition):
    shift, scale = condition.chunk(2, 1)
    return x * (1 + scale[:, :, None]) + shift[:, :, None]


def windows(x):
    b, h, w, c = x.shape
    parts = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    moved = torch.roll(
        parts.softmax(1).view(b, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(b, h, w, c), (1, 2), (1, 2)
    )
    return moved + x


PROGRAMS = {
    "cell": (cell, [(6, 3), (8, 5), (4, 1)], lambda n, k: (torch.randn(n, 4 * k), torch.randn(n, k))),
    "rotated": (
        rotated, [(6, 3), (8, 5), (4, 2)],
        lambda n, k: (torch.randn(2, n, 2 * k), torch.randn(n, k), torch.randn(n, k)),
    ),
    "modulated": (modulated, [(6, 3), (8, 5), (3, 2)], lambda n, k: (torch.randn(n, k, 7), torch.randn(n, 2 * k))),
    "windows": (windows, [(2, 3), (3, 2), (4, 5)], lambda n, k: (torch.randn(2, 4 * n, 4 * k, 3),)),
}  # fmt: skip
