"""Kernels whose reads and writes are not one row after the other: strided, interleaved, folded across rows, shifted.

Each runs at a size that the second cache holds, and "large" at one that no cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from odd_programs import LAST
from operator_programs import I, Program, R


def haar(x):
    """One level of a Haar wavelet."""
    a, b = x[..., ::2], x[..., 1::2]
    return (a + b) * 0.70710678, (a - b) * 0.70710678


def haar_back(a, d):
    """A Haar wavelet undone."""
    return torch.stack([(a + d) * 0.70710678, (a - d) * 0.70710678], -1).flatten(-2)


def haar_images(x):
    """One level of a Haar wavelet over rows and columns."""
    a, b, c, d = x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]
    return torch.cat([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d], 1) * 0.5


def levels(x):
    """All levels of a Haar wavelet."""
    out = []
    while x.shape[-1] > 1:
        x, d = haar(x)
        out.append(d)
    return [*out, x]


def hadamard(x):
    """A fast Walsh-Hadamard transform of rows."""
    n, h = x.shape[-1], 1
    while h < n:
        y = x.view(*x.shape[:-1], n // (2 * h), 2, h)
        x = torch.stack([y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]], -2).flatten(-3)
        h *= 2
    return x


def butterflies(x, w):
    """Butterflies of learned pairs, neighbours first."""
    n = x.shape[-1]
    for k in range(w.shape[0]):
        h = 1 << k
        y = x.view(-1, n // (2 * h), 2, h)
        a, b = y[:, :, 0], y[:, :, 1]
        v = w[k].view(4, n // (2 * h), h)
        x = torch.stack([v[0] * a + v[1] * b, v[2] * a + v[3] * b], 2).flatten(1)
    return x


def rotary_pairs(x, cos, sin):
    """Rotary positions of interleaved pairs."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def rotary_turned(x, cos, sin):
    """The same, by pairs turned by a quarter."""
    y = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + y * sin


def products(x, y):
    """Products of complex numbers given as pairs."""
    (a, b), (c, d) = x.unbind(-1), y.unbind(-1)
    return torch.stack([a * c - b * d, a * d + b * c], -1)


def attention_of_edges(h, a, b, s, t):
    """Weights of edges: a softmax over those into each node."""
    e = F.leaky_relu(a[s] + b[t], 0.2)
    top = torch.full_like(a, -1e30).scatter_reduce(0, t[:, None].expand_as(e), e, "amax")
    w = (e - top[t]).exp()
    z = torch.zeros_like(a).index_add(0, t, w)
    w = w / (z[t] + 1e-9)
    return torch.zeros_like(h).index_add(0, t, h[s] * w[:, :, None])


def mean_and_max_of_edges(x, s, t):
    """Two folds over the same edges."""
    y = x[s]
    at = t[:, None].expand_as(y)
    return torch.zeros_like(x).scatter_reduce(0, at, y, "amax"), torch.zeros_like(x).index_add(0, t, y)


def statistics(x):
    """Means and variances of channels, as batch normalization takes them."""
    v, m = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
    return (x - m) * torch.rsqrt(v + 1e-5)


def last(*sizes):
    """Images whose channels lie side by side."""
    return R(*sizes).to(memory_format=LAST)


def normalized(x):
    """Bytes of colors side by side, as numbers of planes."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((x.float() / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


def normalized_planes(x):
    """Bytes of planes of colors, as numbers."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x.float() / 255 - mean[:, None, None]) / std[:, None, None]


def boxes(x):
    """Corners from centers and sizes."""
    c, s = x[..., :2], x[..., 2:]
    return torch.cat([c - s / 2, c + s / 2], -1)


def areas(x):
    """Areas of boxes."""
    return (x[..., 2] - x[..., 0]) * (x[..., 3] - x[..., 1])


def shifts(x):
    """A row's part of channels, shifted back and forth."""
    n = x.shape[1] // 8
    a, b, c = x[:, :n], x[:, n : 2 * n], x[:, 2 * n :]
    return torch.cat([F.pad(a[..., 1:], (0, 1)), F.pad(b[..., :-1], (1, 0)), c], 1)


def quats(q):
    """Matrices of quaternions."""
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)]
    rows += [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)]
    rows += [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


Inputs = Callable[[int], list[Any]]


def _both(
    name: str, function: Callable[..., Any], inputs: Inputs, sizes: Sequence[int] = (1, 64)
) -> dict[str, Program]:
    """A program at two sizes."""
    small, large = sizes
    return {name: (function, lambda: inputs(small)), f"{name}, large": (function, lambda: inputs(large))}


PROGRAMS: dict[str, dict[str, Program]] = {
    "interleaved": {
        **_both("Haar", haar, lambda k: [R(128 * k, 1024)]),
        **_both("Haar, one column", lambda x: x[..., ::2] + x[..., 1::2], lambda k: [R(128 * k, 1024)]),
        **_both("Haar back", haar_back, lambda k: [R(128 * k, 512), R(128 * k, 512)]),
        **_both("Haar of images", haar_images, lambda k: [R(k, 32, 64, 64)]),
        **_both("levels of short Haar", levels, lambda k: [R(4096 * k, 16)], (1, 16)),
        **_both("short butterflies", butterflies, lambda k: [R(4096 * k, 16), R(4, 4, 8)], (1, 16)),
        **_both("levels of Haar", levels, lambda k: [R(128 * k, 256)], (1, 32)),
        **_both("Hadamard", hadamard, lambda k: [R(128 * k, 256)], (1, 32)),
        **_both("butterflies", butterflies, lambda k: [R(128 * k, 256), R(8, 4, 128)], (1, 32)),
        **_both("rotary pairs", rotary_pairs, lambda k: [R(k, 8, 128, 64), R(128, 32), R(128, 32)]),
        **_both("rotary turned", rotary_turned, lambda k: [R(k, 8, 128, 64), R(128, 64), R(128, 64)]),
        **_both("complex products", products, lambda k: [R(64 * k, 512, 2), R(64 * k, 512, 2)]),
        **_both(
            "complex size", lambda x: (x[..., 0].square() + x[..., 1].square()).sqrt(), lambda k: [R(64 * k, 512, 2)]
        ),
        **_both("pixel shuffle", lambda x: F.relu(F.pixel_shuffle(x, 2)), lambda k: [R(k, 64, 32, 32)]),
        **_both("pixel shuffle of 3", lambda x: F.relu(F.pixel_shuffle(x, 3)), lambda k: [R(k, 72, 32, 32)]),
        **_both("pixel unshuffle", lambda x: F.relu(F.pixel_unshuffle(x, 2)), lambda k: [R(k, 16, 64, 64)]),
        **_both("pixel unshuffle of 4", lambda x: F.relu(F.pixel_unshuffle(x, 4)), lambda k: [R(k, 4, 128, 128)]),
        **_both(
            "patches merged",
            lambda x: torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1) * 2,
            lambda k: [R(k, 32, 32, 96)],
        ),
        **_both(
            "luma", lambda x: 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2], lambda k: [R(64 * k, 512, 3)]
        ),
        **_both("boxes", boxes, lambda k: [R(16384 * k, 4)]),
        **_both("areas", areas, lambda k: [R(16384 * k, 4)]),
        **_both("gated pairs", lambda x: F.silu(x[..., ::2]) * x[..., 1::2], lambda k: [R(128 * k, 1024)]),
        **_both("quaternions", quats, lambda k: [R(8192 * k, 4)]),
        **_both("every second row", lambda x: (x[:, ::2] + x[:, 1::2]) * 0.5, lambda k: [R(k, 256, 512)]),
        **_both("every eighth", lambda x: x[:, ::8] * 2 + 1, lambda k: [R(128 * k, 1024)]),
        **_both("five columns", lambda x: x[..., 0] * x[..., 3] + x[..., 4], lambda k: [R(16384 * k, 5)]),
    },
    "edges": {
        **_both(
            "attention of edges",
            attention_of_edges,
            lambda k: [R(500 * k, 4, 16), R(500 * k, 4), R(500 * k, 4), I(500 * k, 4000 * k), I(500 * k, 4000 * k)],
            (1, 16),
        ),
        **_both(
            "mean and max of edges",
            mean_and_max_of_edges,
            lambda k: [R(500 * k, 64), I(500 * k, 4000 * k), I(500 * k, 4000 * k)],
            (1, 16),
        ),
        **_both(
            "distances of edges",
            lambda x, s, t: (x[s] - x[t]).square().sum(-1).sqrt(),
            lambda k: [R(1000 * k, 3), I(1000 * k, 8000 * k), I(1000 * k, 8000 * k)],
            (1, 16),
        ),
        **_both(
            "dots of edges",
            lambda x, s, t: (x[s] * x[t]).sum(-1),
            lambda k: [R(1000 * k, 64), I(1000 * k, 4000 * k), I(1000 * k, 4000 * k)],
            (1, 16),
        ),
        **_both(
            "softmax of edges, one head",
            lambda e, t: (e - torch.full((500,), -1e30).scatter_reduce(0, t, e, "amax")[t]).exp(),
            lambda k: [R(8000 * k), I(500, 8000 * k)],
            (1, 16),
        ),
        **_both(
            "counts of edges",
            lambda t: torch.zeros(500).index_add(0, t, torch.ones(t.shape[0])),
            lambda k: [I(500, 8000 * k)],
            (1, 16),
        ),
        **_both(
            "weights of edges",
            lambda w, v, t: torch.zeros(500).index_add(0, t, w * v + 1),
            lambda k: [R(8000 * k), R(8000 * k), I(500, 8000 * k)],
            (1, 16),
        ),
        **_both(
            "histogram of edges",
            lambda x: torch.zeros(64).index_add(0, ((x + 3) * 10).clamp(0, 63).long(), x),
            lambda k: [R(8000 * k)],
            (1, 16),
        ),
        **_both(
            "least of edges",
            lambda x, t: torch.zeros(500, 1).expand(500, 16).scatter_reduce(0, t[:, None].expand_as(x), x, "amin"),
            lambda k: [R(1000 * k, 16), I(500, 1000 * k)],
            (1, 16),
        ),
        **_both("bag", lambda w, i: w[i].mean(1), lambda k: [R(3000 * k, 64), I(3000 * k, 200 * k, 20)], (1, 16)),
    },
    "columns": {
        **_both("sum over 0", lambda x: (x * 2).sum(0), lambda k: [R(256 * k, 512)]),
        **_both("sum over the middle", lambda x: (x * 2).sum(1), lambda k: [R(8 * k, 64, 256)]),
        **_both("max over the middle", lambda x: x.amax(1), lambda k: [R(8 * k, 64, 256)]),
        **_both("argmax over the middle", lambda x: x.argmax(1), lambda k: [R(8 * k, 64, 256)]),
        **_both("max with places over the middle", lambda x: x.max(1), lambda k: [R(8 * k, 64, 256)]),
        **_both("var over the middle", lambda x: x.var(1), lambda k: [R(8 * k, 64, 256)]),
        **_both("softmax over 0", lambda x: x.softmax(0), lambda k: [R(256, 512 * k)]),
        **_both("softmax over the middle", lambda x: x.softmax(1), lambda k: [R(8 * k, 64, 256)]),
        **_both("log softmax of classes", lambda x: x.log_softmax(1), lambda k: [R(k, 21, 64, 64)]),
        **_both("logsumexp over the middle", lambda x: x.logsumexp(1), lambda k: [R(8 * k, 64, 256)]),
        **_both("cumsum over 0", lambda x: x.cumsum(0), lambda k: [R(256 * k, 512)]),
        **_both("cumsum over the middle", lambda x: x.cumsum(1), lambda k: [R(8 * k, 64, 256)]),
        **_both(
            "layer norm over the middle",
            lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt(),
            lambda k: [R(8 * k, 64, 256)],
        ),
        **_both("statistics", statistics, lambda k: [R(2 * k, 64, 32, 32)]),
        **_both("statistics, last", statistics, lambda k: [last(2 * k, 64, 32, 32)]),
        **_both("group norm, last", lambda x: F.group_norm(x, 8), lambda k: [last(2 * k, 64, 32, 32)]),
        **_both("mean of places, last", lambda x: x.mean((2, 3)), lambda k: [last(2 * k, 64, 32, 32)]),
        **_both(
            "two sums over 0", lambda x, y: ((x * y).sum(0), y.sum(0)), lambda k: [R(256 * k, 256), R(256 * k, 256)]
        ),
        **_both("norm of columns", lambda x: x / x.norm(dim=0), lambda k: [R(256 * k, 512)]),
    },
    "turned": {
        **_both("transposed", lambda x: x.t().contiguous() * 2, lambda k: [R(256, 512 * k)]),
        **_both("transposed and added", lambda x, y: x.t() + y, lambda k: [R(256, 512 * k), R(512 * k, 256)]),
        **_both(
            "heads apart",
            lambda x: x.view(x.shape[0], 128, 3, 8, 64).permute(2, 0, 3, 1, 4).contiguous() * 0.5,
            lambda k: [R(k, 128, 1536)],
        ),
        **_both("channels last", lambda x: F.relu(x).contiguous(memory_format=LAST), lambda k: [R(2 * k, 64, 32, 32)]),
        **_both("channels first", lambda x: F.relu(x).contiguous(), lambda k: [last(2 * k, 64, 32, 32)]),
        **_both("symmetric", lambda x: (x + x.transpose(1, 2)) * 0.5, lambda k: [R(k, 360, 360)]),
        **_both("keys transposed", lambda x: x.transpose(2, 3).contiguous() * 2, lambda k: [R(k, 8, 128, 64)]),
        **_both("flipped", lambda x: x.flip(-1) * 2, lambda k: [R(128 * k, 1000)]),
        **_both("rows flipped", lambda x: x.flip(0) * 2, lambda k: [R(128 * k, 1000)]),
        **_both("images flipped", lambda x: x.flip((2, 3)) * 2, lambda k: [R(k, 3, 200, 200)]),
    },
    "narrow": {
        **{
            name: program
            for n in (3, 4, 5, 7, 10)
            for name, program in {
                **_both(f"softmax of {n}", lambda x: x.softmax(-1), lambda k, n=n: [R(100000 // n * k, n)]),
                **_both(f"sum of {n}", lambda x: (x * x).sum(-1), lambda k, n=n: [R(100000 // n * k, n)]),
                **_both(
                    f"affine of {n}",
                    lambda x, w, b: F.relu(x * w + b),
                    lambda k, n=n: [R(100000 // n * k, n), R(n), R(n)],
                ),
            }.items()
        },
        **_both("argmax of 10", lambda x: x.argmax(-1), lambda k: [R(10000 * k, 10)]),
        **_both("norm of 3", lambda x: F.normalize(x, dim=-1), lambda k: [R(30000 * k, 3)]),
        **_both("cross products", torch.linalg.cross, lambda k: [R(30000 * k, 3), R(30000 * k, 3)]),
        **_both("layer norm of 7", lambda x: F.layer_norm(x, (7,)), lambda k: [R(14000 * k, 7)]),
        **_both(
            "windows of 7",
            lambda x: x.view(-1, 8, 7, 8, 7, 16).permute(0, 1, 3, 2, 4, 5).contiguous() * 2,
            lambda k: [R(2 * k, 56, 56, 16)],
        ),
    },
    "shifted": {
        **_both("padded", lambda x: F.pad(x, (1, 1, 1, 1)) * 2, lambda k: [R(k, 32, 62, 62)]),
        **_both("reflected", lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect") * 2, lambda k: [R(k, 32, 60, 60)]),
        **_both("rolled", lambda x: x.roll((3, 3), (1, 2)) * 2, lambda k: [R(k, 56, 56, 32)]),
        **_both("rolled along rows", lambda x: x.roll(1, -1) + x, lambda k: [R(128 * k, 1000)]),
        **_both("differences", lambda x: x[:, 1:] - x[:, :-1], lambda k: [R(128 * k, 1001)]),
        **_both(
            "stencil",
            lambda x: x[:, 1:-1, 1:-1] * -4 + x[:, :-2, 1:-1] + x[:, 2:, 1:-1] + x[:, 1:-1, :-2] + x[:, 1:-1, 2:],
            lambda k: [R(k, 362, 362)],
        ),
        **_both("shifted channels", shifts, lambda k: [R(16 * k, 64, 128)]),
        **_both(
            "token shift", lambda x, w: torch.lerp(F.pad(x, (0, 0, 1, -1)), x, w), lambda k: [R(k, 256, 512), R(512)]
        ),
        **_both("max pool", lambda x: F.max_pool2d(x, 2), lambda k: [R(k, 32, 64, 64)]),
        **_both("average pool", lambda x: F.avg_pool2d(x, 2), lambda k: [R(k, 32, 64, 64)]),
        **_both("upsampled", lambda x: F.interpolate(x, scale_factor=2.0), lambda k: [R(k, 32, 32, 32)]),
        **_both(
            "causal mask",
            lambda x: x.masked_fill(torch.ones(256, 256).triu(1).bool(), -1e9).softmax(-1),
            lambda k: [R(2 * k, 256, 256)],
        ),
    },
    "bytes": {
        **_both("colors of bytes", normalized, lambda k: [I(256, k, 200, 200, 3).to(torch.uint8)]),
        **_both("planes of bytes", normalized_planes, lambda k: [I(256, k, 3, 200, 200).to(torch.uint8)]),
        **_both(
            "bytes of numbers", lambda x: (x * 255).round().clamp(0, 255).to(torch.uint8), lambda k: [R(128 * k, 1000)]
        ),
        **_both("index arithmetic", lambda i: (i // 64) * 128 + i % 64, lambda k: [I(1 << 20, 64 * k, 1000)]),
        **_both("masks as numbers", lambda m, x: m.float() * x, lambda k: [R(128 * k, 1000) > 0, R(128 * k, 1000)]),
        **_both("masks counted", lambda m: m.sum(-1), lambda k: [R(512 * k, 1000) > 0]),
        **_both(
            "masks of places",
            lambda n, x: x * (torch.arange(512) < n[:, None]),
            lambda k: [I(512, 256 * k), R(256 * k, 512)],
        ),
        **_both(
            "softmax of lengths",
            lambda x, n: x.masked_fill(torch.arange(512) >= n[:, None, None], -1e9).softmax(-1),
            lambda k: [R(4 * k, 64, 512), I(512, 4 * k)],
        ),
        **_both("one hot", lambda i: F.one_hot(i, 10).float(), lambda k: [I(10, 10000 * k)]),
        **_both(
            "both masks", lambda m, n: (m[:, None, :] & n[:, :, None]).float(), lambda k: [R(k, 360) > 0, R(k, 360) > 0]
        ),
        **_both(
            "scaled bytes",
            lambda q, s: (q.float() - 128) * s[:, None],
            lambda k: [I(256, 128 * k, 1000).to(torch.uint8), R(128 * k)],
        ),
    },
}
