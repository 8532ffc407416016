"""Steps of optimizers, cells, interactions of features, integers and gated convolutions: the last of table "fields"."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from field_programs import P
from odd_programs import LAST, M
from operator_programs import I, Program, R


def lamb(p, g, m, v):
    """A step of LAMB."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    u = m / 0.1 / ((v / 0.001).sqrt() + 1e-6) + 0.01 * p
    return p - 0.01 * (p.norm() / u.norm().clamp(min=1e-6)).clamp(max=10) * u, m, v


def shampoo(g, left, right, a, b):
    """Statistics of a gradient, and a preconditioned step."""
    return 0.95 * left + 0.05 * g @ g.t(), 0.95 * right + 0.05 * g.t() @ g, a @ g @ b


def adan(p, g, before, m, d, n):
    """A step of Adan."""
    diff = g - before
    m, d = 0.98 * m + 0.02 * g, 0.92 * d + 0.08 * diff
    n = 0.99 * n + 0.01 * (g + 0.92 * diff).square()
    return (p - 0.001 * (m + 0.92 * d) / (n.sqrt() + 1e-8)) / 1.00002, m, d, n


def sharpness(p, g):
    """Weights moved to where the loss is highest nearby."""
    norm = torch.stack([x.square().sum() for x in g]).sum().sqrt()
    return [x + 0.05 / (norm + 1e-12) * y for x, y in zip(p, g, strict=True)]


def bytes_of_moments(g, q, s):
    """A moment kept as bytes with a scale for 256."""
    m = 0.9 * (q.float() * s[:, None]) + 0.1 * g
    s = m.abs().amax(1) / 127
    return (m / s[:, None]).round().to(torch.int8), s


def mlstm(c, n, m, q, k, v, i, f):
    """A step of a matrix memory."""
    top = torch.maximum(f + m, i)
    fa, ia = (f + m - top).exp()[..., None], (i - top).exp()[..., None]
    c = fa[..., None] * c + ia[..., None] * (v[..., None] * k[..., None, :])
    n = fa * n + ia * k
    down = (n * q).sum(-1, keepdim=True).abs().clamp(min=1)
    return (c @ q[..., None])[..., 0] / down, c, n, top


def simple_unit(x, c, w, b):
    """Eight steps of a simple recurrent unit."""
    out = []
    y, f, r = (x @ w + b).chunk(3, -1)
    f, r = f.sigmoid(), r.sigmoid()
    for t in range(8):
        c = f[:, t] * c + (1 - f[:, t]) * y[:, t]
        out.append(r[:, t] * c.tanh() + (1 - r[:, t]) * x[:, t])
    return torch.stack(out, 1)


def chunk_scan(x, a, b, c):
    """A chunk of a state space in its dual form."""
    s = a.cumsum(-1)
    decay = (s[..., None] - s[..., None, :]).tril().exp().tril()
    return torch.einsum("bln,bsn,bhls,bshp->blhp", c, b, decay, x)


def receptance(x, last, mk, mv, mr, wk, wv, wr):
    """The channel mix of RWKV."""
    before = torch.cat([last[:, None], x[:, :-1]], 1)
    k, r = torch.lerp(before, x, mk) @ wk, torch.lerp(before, x, mr) @ wr
    return r.sigmoid() * (F.relu(k).square() @ wv) + 0 * mv


def vandermonde(re, im, c, d):
    """The kernel of a diagonal state space."""
    t = torch.arange(257.0)
    return ((re.exp().neg()[..., None] * t).exp() * (c[..., None] * (im[..., None] * t).cos() - d[..., None])).sum(1)


def delta_rule(s, q, k, v, beta):
    """A step of the delta rule."""
    k = F.normalize(k, dim=-1)
    s = s + (beta * (v - (s @ k[..., None])[..., 0]))[..., None] * k[..., None, :]
    return (s @ q[..., None])[..., 0], s


def hyena(x, k, w):
    """Gates around a long convolution."""
    u, v, z = F.conv1d(F.pad(x, (2, 0)), w, groups=x.shape[1]).chunk(3, 1)
    y = torch.fft.irfft(torch.fft.rfft(u * v, n=514) * torch.fft.rfft(k, n=514), n=514)[..., :257]
    return y * z


def interest(q, h, m, w, b, u):
    """Attention of a candidate to a history."""
    e = q[:, None].expand_as(h)
    s = F.silu(torch.cat([e, h, e - h, e * h], -1) @ w + b) @ u
    return (s.masked_fill(~m, 0.0)[..., None] * h).sum(1)


def low_rank_cross(x, u, v, b):
    """Three cross layers of low rank."""
    y = x
    for i in range(3):
        y = x * (y @ v[i] @ u[i] + b[i]) + y
    return y


def field_aware(e):
    """Products of embeddings, one for each pair of fields."""
    p = (e * e.transpose(1, 2)).sum(-1)
    return p.triu(1).sum((1, 2))


def compressed(x, y, w):
    """A layer of compressed interactions."""
    z = (x[:, :, None] * y[:, None]).flatten(1, 2)
    return F.relu(torch.einsum("bzd,zo->bod", z, w)).sum(-1)


def gates(x, w, v):
    """Experts mixed by the gates of three tasks."""
    e = F.relu(torch.einsum("bi,nio->bno", x, w))
    return torch.einsum("tbn,bno->tbo", torch.einsum("bi,tin->tbn", x, v).softmax(-1), e)


def pairwise(u, i, j, w, t):
    """Losses of an item beside those that were not chosen."""
    a, b, c = F.embedding(u, w), F.embedding(i, t), F.embedding(j, t)
    return -F.logsigmoid((a * b).sum(-1)[:, None] - (a[:, None] * c).sum(-1)).mean()


def popcount(x):
    """Numbers of bits that differ, for all pairs of codes."""
    v = x[:, None] ^ x
    v = v - ((v >> 1) & 0x55555555)
    v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
    return (((v + (v >> 4)) & 0x0F0F0F0F) * 0x01010101 & 0xFFFFFFFF) >> 24


def mixed(x):
    """Rounds of a hash."""
    for _ in range(2):
        x = ((x >> 16) ^ x) * 0x45D9F3B & 0xFFFFFFFF
    return ((x >> 16) ^ x) % 1009


def morton(x):
    """Bits of three numbers taken in turns."""
    for shift, kept in ((16, 0x30000FF), (8, 0x300F00F), (4, 0x30C30C3), (2, 0x9249249)):
        x = (x | (x << shift)) & kept
    return x[:, 0] | (x[:, 1] << 1) | (x[:, 2] << 2)


def two_of_four(x):
    """The larger two of each four weights."""
    y = x.unflatten(1, (-1, 4))
    at = y.abs().topk(2, -1).indices
    return (y * torch.zeros_like(y).scatter(-1, at, 1.0)).flatten(1)


def bloom(bits, x):
    """Members of a filter of bits."""
    at = torch.stack([(x * k + 7) % 65521 for k in (31, 131, 1031)])
    return (((bits[at >> 3] >> (at & 7)) & 1) == 1).all(0)


def linear_counts(x, y):
    """Counts of pairs of classes, and the shares that are right."""
    n = torch.bincount(x * 19 + y, minlength=361).view(19, 19)
    hit = n.diagonal()
    return n, hit / (n.sum(0) + n.sum(1) - hit).clamp(min=1)


def attended(x, w, v, k):
    """Gates of channels, then of places."""
    pooled = torch.stack([x.mean((2, 3)), x.amax((2, 3))])
    x = x * (F.relu(pooled @ w) @ v).sum(0).sigmoid()[:, :, None, None]
    places = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
    return x * F.conv2d(places, k, padding=3).sigmoid()


def gated_skip(x, g, a, b, c):
    """A skip gated by what lies below it."""
    s = F.relu(F.conv2d(x, a, stride=2) + F.conv2d(g, b))
    s = F.conv2d(s, c).sigmoid()
    return x * F.interpolate(s, scale_factor=2.0, mode="bilinear", align_corners=False)


def coordinates(x, w, a, b):
    """Gates of rows and of columns."""
    h = x.shape[2]
    y = F.hardswish(F.conv2d(torch.cat([x.mean(3), x.mean(2)], 2)[..., None], w))
    return x * F.conv2d(y[:, :, :h], a).sigmoid() * F.conv2d(y[:, :, h:], b).sigmoid().transpose(2, 3)


def selective(x, a, b, w, v):
    """Two sizes of windows, chosen for each channel."""
    p, q = F.conv2d(x, a, padding=1, groups=8), F.conv2d(x, b, padding=2, dilation=2, groups=8)
    s = ((p + q).mean((2, 3)) @ w).relu() @ v
    s = s.unflatten(1, (2, -1)).softmax(1)[..., None, None]
    return s[:, 0] * p + s[:, 1] * q


def ghost(x, w, d):
    """Half of the channels made from the others."""
    y = F.relu(F.conv2d(x, w))
    return torch.cat([y, F.relu(F.conv2d(y, d, padding=1, groups=y.shape[1]))], 1)


def split_scales(x, w):
    """Windows over channels that were convolved before."""
    a, b, c, d = x.chunk(4, 1)
    y = F.relu(F.conv2d(b, w[0], padding=1))
    z = F.relu(F.conv2d(c + y, w[1], padding=1))
    return torch.cat([a, y, z, F.relu(F.conv2d(d + z, w[2], padding=1))], 1)


def pools_in_turn(x, w, v):
    """Largest values of windows of three sizes."""
    x = F.silu(F.conv2d(x, w))
    y = F.max_pool2d(x, 5, 1, 2)
    z = F.max_pool2d(y, 5, 1, 2)
    return F.silu(F.conv2d(torch.cat([x, y, z, F.max_pool2d(z, 5, 1, 2)], 1), v))


def context(x, k, w, v):
    """The context of all places, added to each."""
    a = F.conv2d(x, k).flatten(2).softmax(-1)
    c = (x.flatten(2) @ a.transpose(1, 2))[..., 0]
    return x + (F.relu(F.layer_norm(c @ w, (w.shape[1],))) @ v)[:, :, None, None]


def weighted_levels(x, y, z, w):
    """Levels of a pyramid, weighted and added."""
    w = F.relu(w)
    w = w / (w.sum() + 1e-4)
    return F.silu(w[0] * x + w[1] * F.interpolate(y, scale_factor=2.0) + w[2] * F.max_pool2d(z, 3, 2, 1))


def last(*sizes):
    """Images whose channels lie side by side."""
    return R(*sizes).to(memory_format=LAST)


PROGRAMS: dict[str, dict[str, Program]] = {
    "optimizers": {
        "LAMB": (lamb, lambda: [R(257, 513), R(257, 513), R(257, 513), P(257, 513)]),
        "Shampoo": (shampoo, lambda: [R(129, 257), R(129, 129), R(257, 257), R(129, 129), R(257, 257)]),
        "Adan": (adan, lambda: [*(R(257, 513) for _ in range(5)), P(257, 513)]),
        "sharpness": (
            lambda *t: sharpness(t[:8], t[8:]),
            lambda: [R(*s) for s in [(257, 129), (129,), (129, 37), (37,)] * 4],
        ),
        "moments of bytes": (bytes_of_moments, lambda: [R(999, 256), I(255, 999, 256).sub(127).to(torch.int8), P(999)]),
        "signs by majority": (
            lambda g, e: ((g + e).sign(), (g + e) - (g + e).sign() * g.abs().mean()),
            lambda: [R(513, 257)] * 2,
        ),
    },
    "cells": {
        "matrix memory": (
            mlstm,
            lambda: [R(4, 4, 37, 37), R(4, 4, 37), R(4, 4), *(R(4, 4, 37) for _ in range(3)), R(4, 4), R(4, 4)],
        ),
        "simple recurrent unit": (simple_unit, lambda: [R(9, 8, 129), R(9, 129), R(129, 387), R(387)]),
        "chunk of a state space": (chunk_scan, lambda: [R(2, 64, 4, 32), -P(2, 4, 64), R(2, 64, 16), R(2, 64, 16)]),
        "channel mix": (
            receptance,
            lambda: [R(2, 65, 129), R(2, 129), P(129), P(129), P(129), R(129, 257), R(257, 129), R(129, 129)],
        ),
        "kernel of a state space": (vandermonde, lambda: [R(37, 16), R(37, 16), R(37, 16), R(37, 16)]),
        "delta rule": (
            delta_rule,
            lambda: [R(4, 4, 33, 37), *(R(4, 4, 37) for _ in range(2)), R(4, 4, 33), P(4, 4, 1)],
        ),
        "gates of a long convolution": (hyena, lambda: [R(2, 111, 257), R(37, 257), R(111, 1, 3)]),
        "exponents of time": (
            lambda x, a, b: x * (1 - (-F.softplus(a)).exp()) + b * (-F.softplus(a) * 0.1).exp(),
            lambda: [R(37, 1000), R(37, 1000), R(37, 1000)],
        ),
    },
    "recommended": {
        "interest": (
            interest,
            lambda: [R(65, 18), R(65, 37, 18), M(65, 37), R(72, 36), R(36), R(36)],
        ),
        "cross layers of low rank": (low_rank_cross, lambda: [R(257, 129), R(3, 9, 129), R(3, 129, 9), R(3, 129)]),
        "pairs of fields": (field_aware, lambda: [R(129, 17, 17, 8)]),
        "compressed interactions": (compressed, lambda: [R(33, 17, 16), R(33, 13, 16), R(221, 24)]),
        "gates of tasks": (gates, lambda: [R(129, 37), R(5, 37, 33), R(3, 37, 5)]),
        "chosen beside others": (
            pairwise,
            lambda: [I(999, 257), I(3001, 257), I(3001, 257, 5), R(999, 33), R(3001, 33)],
        ),
        "history by age": (
            lambda w, i, a: (
                (F.embedding(i, w) * (-a / 7).exp()[..., None]).sum(1) / (-a / 7).exp().sum(1, keepdim=True)
            ),
            lambda: [R(3001, 33), I(3001, 65, 50), P(65, 50) * 30],
        ),
    },
    "bits": {
        "bits that differ": (popcount, lambda: [I(1 << 31, 257)]),
        "rounds of a hash": (mixed, lambda: [I(1 << 31, 10007)]),
        "Morton": (morton, lambda: [I(1024, 10007, 3)]),
        "bits packed": (
            lambda x: ((x > 0).view(-1, 8) * 2 ** torch.arange(8)).sum(1).to(torch.uint8),
            lambda: [R(8 * 10007)],
        ),
        "two of four": (two_of_four, lambda: [R(129, 512)]),
        "deltas of zigzag": (lambda x: ((x >> 1) ^ -(x & 1)).cumsum(1), lambda: [I(1000, 37, 1000)]),
        "members of a filter": (bloom, lambda: [I(256, 8191).to(torch.uint8), I(1 << 30, 10007)]),
        "counts of classes": (linear_counts, lambda: [I(19, 20001), I(19, 20001)]),
        "Gray codes": (lambda x: (x ^ (x >> 1)).to(torch.int16), lambda: [I(1 << 15, 100003).to(torch.int32)]),
        "first of each": (lambda x: (x[:, :, None] == torch.arange(29)).int().argmax(1), lambda: [I(29, 37, 129)]),
    },
    "gated": {
        "channels, then places, last": (attended, lambda: [last(2, 48, 29, 31), R(48, 12), R(12, 48), R(1, 2, 7, 7)]),
        "channels, then places": (attended, lambda: [R(2, 48, 29, 31), R(48, 12), R(12, 48), R(1, 2, 7, 7)]),
        "gated skip, last": (
            gated_skip,
            lambda: [last(1, 32, 58, 62), last(1, 64, 29, 31), R(32, 32, 1, 1), R(32, 64, 1, 1), R(1, 32, 1, 1)],
        ),
        "rows and columns": (coordinates, lambda: [R(2, 32, 29, 31), R(8, 32, 1, 1), R(32, 8, 1, 1), R(32, 8, 1, 1)]),
        "windows chosen, last": (
            selective,
            lambda: [last(2, 64, 29, 31), R(64, 8, 3, 3), R(64, 8, 3, 3), R(64, 16), R(16, 128)],
        ),
        "ghosts": (ghost, lambda: [R(1, 40, 29, 31), R(60, 40, 1, 1), R(60, 1, 3, 3)]),
        "scales in turn, last": (split_scales, lambda: [last(1, 64, 29, 31), R(3, 16, 16, 3, 3)]),
        "pools in turn": (pools_in_turn, lambda: [R(1, 64, 19, 21), R(32, 64, 1, 1), R(64, 128, 1, 1)]),
        "context, last": (context, lambda: [last(2, 64, 29, 31), R(1, 64, 1, 1), R(64, 16), R(16, 64)]),
        "weighted levels": (weighted_levels, lambda: [R(1, 64, 30, 34), R(1, 64, 15, 17), R(1, 64, 60, 68), R(3)]),
    },
}
