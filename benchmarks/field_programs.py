"""Programs of many fields outside of neural networks' layers: what `operators.py --table fields` runs first.

Images before and after models, audio, tables, graphs, series, geometry, physics and statistics, as their users write
them, at odd sizes of 1 KB to 20 MB.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from odd_programs import M, U
from operator_programs import I, Program, R


def P(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Numbers between 0 and 1."""
    return torch.rand(sizes)


def D(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Normal random numbers of double precision."""
    return torch.randn(sizes, dtype=torch.float64)


def resized(x):
    """Bytes of an image resized without aliases, cropped and normalized."""
    y = F.interpolate(x.float() / 255, size=(97, 129), mode="bilinear", antialias=True)[..., 8:88, 16:112]
    return (y - 0.45) / 0.225


def chroma(x):
    """Luma and chroma of colors, chroma at half the size."""
    r, g, b = x.unbind(1)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    c = torch.stack([(b - y) * 0.564 + 0.5, (r - y) * 0.713 + 0.5], 1)
    return y, F.avg_pool2d(c, 2)


def hue(x):
    """Hue, saturation and value."""
    top, which = x.max(1)
    low = x.amin(1)
    delta = top - low
    r, g, b = x.unbind(1)
    safe = torch.where(delta == 0, 1.0, delta)
    h = torch.stack([((g - b) / safe) % 6, (b - r) / safe + 2, (r - g) / safe + 4], 1)
    return torch.stack([h.gather(1, which[:, None])[:, 0] / 6, delta / (top + 1e-8), top], 1)


def lab(x, m):
    """CIE Lab of sRGB."""
    linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055) ** 2.4, x / 12.92)
    xyz = torch.einsum("ij,bjhw->bihw", m, linear)
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-6) ** (1 / 3), 7.787 * xyz + 0.1379)
    return torch.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def pyramid(x, k):
    """A level of a Laplacian pyramid."""
    low = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), k.expand(3, 1, 5, 5), stride=2, groups=3)
    return low, x - F.interpolate(low, size=x.shape[-2:], mode="bilinear", align_corners=False)


def equalized(x):
    """Histograms made flat, for each channel."""
    flat = x.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], 256).scatter_add(2, flat, torch.ones(flat.shape))
    levels = counts.cumsum(2) / flat.shape[2] * 255
    return levels.gather(2, flat).view(x.shape).to(torch.uint8)


def median(x):
    """Medians of 3 by 3 pixels."""
    windows = F.pad(x, (1, 1, 1, 1), mode="replicate").unfold(2, 3, 1).unfold(3, 3, 1)
    return windows.flatten(-2).median(-1).values


def bilateral(x):
    """A bilateral filter of 5 by 5."""
    w = F.pad(x, (2, 2, 2, 2), mode="reflect").unfold(2, 5, 1).unfold(3, 5, 1)
    weight = (-(w - x[..., None, None]).square() / 0.02).exp()
    return (w * weight).sum((-1, -2)) / weight.sum((-1, -2))


def mask_boxes(m):
    """Boxes around masks."""
    rows, columns = m.any(2), m.any(1)
    i, j = torch.arange(m.shape[1]), torch.arange(m.shape[2])
    far = 10_000
    low = [torch.where(columns, j, far).amin(1), torch.where(rows, i, far).amin(1)]
    return torch.stack([*low, torch.where(columns, j, -1).amax(1), torch.where(rows, i, -1).amax(1)], 1)


def pasted(m, b):
    """Masks of boxes pasted into an image."""
    x, y = torch.arange(131.0) + 0.5, torch.arange(97.0) + 0.5
    x = (x - b[:, :1]) / (b[:, 2:3] - b[:, :1]) * 2 - 1
    y = (y - b[:, 1:2]) / (b[:, 3:] - b[:, 1:2]) * 2 - 1
    grid = torch.stack([x[:, None].expand(-1, 97, -1), y[:, :, None].expand(-1, -1, 131)], 3)
    return F.grid_sample(m, grid, align_corners=False) > 0.5


def mosaic(x):
    """Colors of a Bayer pattern."""
    r, b = x[:, ::2, ::2], x[:, 1::2, 1::2]
    return torch.stack([r, (x[:, ::2, 1::2] + x[:, 1::2, ::2]) / 2, b], 1)


def cepstrum(x, window, bank, dct):
    """Mel cepstra of frames."""
    power = torch.fft.rfft(x.unfold(-1, 400, 160) * window, n=512).abs().square()
    return (power @ bank).clamp(min=1e-10).log() @ dct


def overlap_add(s, window):
    """Frames of spectra back to a signal."""
    frames = torch.fft.irfft(s, n=400) * window
    out = F.fold(frames.transpose(1, 2), (1, 160 * (s.shape[1] - 1) + 400), (1, 400), stride=(1, 160))
    return out[:, 0, 0]


def one_pole(x):
    """A recursive filter of one pole, by sums of 32 steps and their carries."""
    t = torch.arange(32.0)
    scale = 0.9**t
    y = (x.unflatten(1, (-1, 32)) / scale).cumsum(-1) * scale
    ends = F.pad(y[..., -1], (1, 0))[:, :-1]
    return (y + ends[..., None] * 0.9 * scale).flatten(1)


def polyphase(x, k):
    """A signal resampled by 3 / 2."""
    return F.conv1d(x[:, None], k, stride=2, padding=8).transpose(1, 2).flatten(1)


def pitch(x):
    """The best lag of each frame."""
    frames = x.unfold(1, 640, 320)
    r = torch.fft.irfft(torch.fft.rfft(frames - frames.mean(-1, keepdim=True), n=1280).abs().square())
    r = r[..., 32:400] / (r[..., :1] + 1e-6)
    return r.max(-1)


def loudness(x):
    """Loudness gated at -70 dB."""
    energy = x.unfold(-1, 1600, 400).square().mean(-1).sum(1)
    kept = -0.691 + 10 * (energy + 1e-12).log10() > -70
    return -0.691 + 10 * ((energy * kept).sum(-1) / kept.sum(-1).clamp(min=1)).log10()


def quantile_bins(x):
    """Bins of equally many numbers, for each column."""
    edges = torch.quantile(x, torch.linspace(0, 1, 17)[1:-1], dim=0)
    return torch.searchsorted(edges.t().contiguous(), x.t().contiguous())


def target_encoding(c, y):
    """Means of a target for each category, drawn to the mean of all."""
    sums = torch.zeros(129).index_add(0, c, y)
    counts = torch.zeros(129).index_add(0, c, torch.ones_like(y))
    return ((sums + 10 * y.mean()) / (counts + 10))[c]


def trees(x, at, cut, leaves):
    """Oblivious trees: bits of comparisons choose the leaf."""
    bits = x[:, at] > cut
    leaf = (bits * 2 ** torch.arange(6)).sum(-1)
    return leaves.t().gather(0, leaf).sum(-1)


def soft_trees(x, w, b, leaves):
    """Soft trees of depth 5: products of probabilities along paths."""
    p = torch.sigmoid(torch.einsum("bf,tdf->btd", x, w) + b)
    path = torch.ones(*p.shape[:2], 1)
    for depth in range(5):
        path = torch.stack([path * p[..., depth, None], path * (1 - p[..., depth, None])], -1).flatten(-2)
    return (path * leaves).sum((1, 2))


def pieces(x, edges):
    """Numbers as shares of the bins that they fill."""
    return ((x[..., None] - edges[:, :-1]) / (edges[:, 1:] - edges[:, :-1])).clamp(0, 1).flatten(1)


def filled(x, m):
    """Missing numbers replaced by the means of their columns, and marked."""
    missing = ~m
    x = torch.where(missing, math.nan, x)
    return torch.cat([torch.where(missing, x.nanmean(0), x), missing.float()], 1)


def runs(x):
    """Lengths of runs of equal numbers, at each place."""
    new = F.pad(x[:, 1:] != x[:, :-1], (1, 0), value=True)
    run = new.cumsum(1) - 1
    return torch.zeros_like(x).scatter_add(1, run, torch.ones_like(x)).gather(1, run)


def edge_attention(x, w, at, to):
    """Attention of nodes to their neighbours in four heads."""
    h = (x @ w).unflatten(1, (4, 16))
    score = F.leaky_relu((h[at] + h[to]), 0.2).sum(-1)
    top = torch.full((513, 4), -1e9).scatter_reduce(0, to[:, None].expand(-1, 4), score, "amax")
    e = (score - top[to]).exp()
    total = torch.zeros(513, 4).index_add(0, to, e)
    return torch.zeros(513, 4, 16).index_add(0, to, h[at] * (e / (total[to] + 1e-9))[..., None]).flatten(1)


def aggregated(x, at, to):
    """Mean, extremes and deviation of neighbours."""
    m, where = x[at], to[:, None].expand(-1, x.shape[1])
    zero = torch.zeros_like(x)
    count = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, to, torch.ones_like(m[:, 0])).clamp(min=1)[:, None]
    mean, square = zero.index_add(0, to, m) / count, zero.index_add(0, to, m * m) / count
    ends = [zero.scatter_reduce(0, where, m, r, include_self=False) for r in ("amax", "amin")]
    return torch.cat([mean, *ends, (square - mean * mean).clamp(min=0).sqrt()], 1)


def page_rank(v, at, to):
    """Five steps of a random walk."""
    degree = torch.zeros_like(v).index_add(0, at, torch.ones(at.shape)).clamp(min=1)
    for _ in range(5):
        v = 0.15 / v.shape[0] + 0.85 * torch.zeros_like(v).index_add(0, to, (v / degree)[at])
    return v


def edge_conv(x, w):
    """Edge convolution over nearest neighbours."""
    near = torch.cdist(x, x).topk(8, largest=False).indices
    n = x[torch.arange(x.shape[0])[:, None, None], near]
    me = x[:, :, None].expand_as(n)
    return F.relu(torch.cat([me, n - me], -1) @ w).amax(2)


def adjacency(at, to):
    """A normalized adjacency matrix from edges."""
    a = torch.zeros(257, 257).index_put((at, to), torch.ones(at.shape), accumulate=True)
    a = (a + a.t()).clamp(max=1) + torch.eye(257)
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d


def angles(x, i, j, k):
    """Angles of triples of atoms."""
    u, v = x[i] - x[j], x[k] - x[j]
    return torch.atan2(torch.linalg.cross(u, v).norm(dim=-1), (u * v).sum(-1))


def rolling(x):
    """Mean and deviation of the last 20 steps, by sums."""
    total, square = F.pad(x.cumsum(1), (1, 0)), F.pad((x * x).cumsum(1), (1, 0))
    mean = (total[:, 20:] - total[:, :-20]) / 20
    return mean, ((square[:, 20:] - square[:, :-20]) / 20 - mean * mean).clamp(min=0).sqrt()


def smoothed(x, a):
    """Exponential smoothing as a product with powers."""
    t = torch.arange(x.shape[1])
    k = torch.where(t[:, None] >= t, a * (1 - a) ** (t[:, None] - t).clamp(min=0), 0.0)
    return x @ k.t()


def autocorrelation(x):
    """Autocorrelation at 32 lags."""
    y = x - x.mean(1, keepdim=True)
    lagged = F.pad(y, (31, 0)).unfold(1, 32, 1)
    return torch.einsum("bt,btk->bk", y, lagged).flip(1) / y.square().sum(1, keepdim=True)


def decomposed(x):
    """Trend, season of 24 steps, and what is left."""
    trend = F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, 1)
    rest = x - trend
    season = rest.unflatten(2, (-1, 24)).mean(2).repeat(1, 1, x.shape[2] // 24)
    return trend, season, rest - season


def profile(x):
    """Distances of all standardized windows of a series."""
    w = x.unfold(0, 32, 1)
    z = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-6)
    d = (2 * 32 * (1 - (z @ z.t()) / 32)).clamp(min=0).sqrt()
    far = (torch.arange(d.shape[0])[:, None] - torch.arange(d.shape[0])).abs() > 16
    return torch.where(far, d, torch.inf).min(1)


def drawdown(x):
    """The largest fall from the highest price so far."""
    price = x.cumsum(1).exp()
    return (price / price.cummax(1).values - 1).amin(1)


def crps(x, y):
    """Scores of samples of a forecast."""
    return (x - y).abs().mean(0) - 0.5 * (x[:, None] - x[None]).abs().mean((0, 1))


def reversible(x, w, b, a, c):
    """A linear forecast of normalized series."""
    mean, std = x.mean(1, keepdim=True), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    y = ((x - mean) / std * a + c).transpose(1, 2) @ w + b
    return (y.transpose(1, 2) - c) / (a + 1e-5) * std + mean


def quaternion_points(q, x):
    """Points turned by quaternions."""
    q = F.normalize(q, dim=-1)
    v = q[:, None, 1:].expand_as(x)
    t = 2 * torch.linalg.cross(v, x)
    return x + q[:, None, :1] * t + torch.linalg.cross(v, t)


def rodrigues(w, t):
    """Rigid motions of twists."""
    angle = w.norm(dim=-1).clamp(min=1e-6)[:, None, None]
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    k = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(-1, 3, 3)
    kk = k @ k
    eye = torch.eye(3, dtype=w.dtype)
    r = eye + angle.sin() / angle * k + (1 - angle.cos()) / angle**2 * kk
    v = eye + (1 - angle.cos()) / angle**2 * k + (angle - angle.sin()) / angle**3 * kk
    return torch.cat([r, v @ t[..., None]], -1)


def chamfer(x, y):
    """Distances of two clouds of points."""
    d = torch.cdist(x, y)
    return d.amin(1).mean(-1) + d.amin(2).mean(-1)


def interpolated(x, y, f):
    """Features of the three nearest points, weighted by distance."""
    d, at = torch.cdist(x, y).topk(3, dim=-1, largest=False)
    w = 1 / (d + 1e-4)
    return (f[at] * (w / w.sum(-1, keepdim=True))[..., None]).sum(1)


def slabs(o, d, low, high):
    """The intersections of rays and boxes."""
    a, b = (low - o[:, None]) / d[:, None], (high - o[:, None]) / d[:, None]
    near, far = torch.minimum(a, b).amax(-1), torch.maximum(a, b).amin(-1)
    return torch.where((near <= far) & (far > 0), near.clamp(min=0), torch.inf).min(1)


def triangles(o, d, a, b, c):
    """The intersections of rays and triangles."""
    u, v = b - a, c - a
    h = torch.linalg.cross(d[:, None].expand(-1, a.shape[0], -1), v[None].expand(d.shape[0], -1, -1))
    det = (u * h).sum(-1)
    s = (o[:, None] - a) / det[..., None]
    q = torch.linalg.cross(s, u[None].expand_as(s))
    at, to, far = (s * h).sum(-1), (d[:, None] * q).sum(-1), (v * q).sum(-1)
    return torch.where((at >= 0) & (to >= 0) & (at + to <= 1) & (far > 1e-6), far, torch.inf).amin(1)


def voxels(x, f):
    """Mean features of the points in each cell."""
    cell = ((x + 1) * 8).floor().long().clamp(0, 15)
    at = (cell * torch.tensor([256, 16, 1])).sum(-1)
    total = torch.zeros(4096, f.shape[1]).index_add(0, at, f)
    return total / torch.zeros(4096).index_add(0, at, torch.ones(at.shape))[:, None].clamp(min=1)


def projected(x, r, t, k):
    """Points of a camera, and which of them are seen."""
    y = torch.einsum("bij,nj->bni", r, x) + t[:, None]
    uv = torch.einsum("bij,bnj->bni", k, y)
    uv = uv[..., :2] / uv[..., 2:].clamp(min=1e-3)
    return uv, (y[..., 2] > 0) & (uv.abs() < 1).all(-1)


def harmonics(d):
    """Spherical harmonics of 16 terms."""
    x, y, z = F.normalize(d, dim=-1).unbind(-1)
    xx, yy, zz = x * x, y * y, z * z
    second = [x * y, y * z, 3 * zz - 1, x * z, xx - yy]
    third = [y * (3 * xx - yy), x * y * z, y * (5 * zz - 1), z * (5 * zz - 3), x * (5 * zz - 1), z * (xx - yy)]
    return torch.stack([torch.ones_like(x), y, z, x, *second, *third, x * (xx - 3 * yy)], -1)


def orthonormal(x):
    """Rotations from two vectors each."""
    a, b = F.normalize(x[..., :3], dim=-1), x[..., 3:]
    b = F.normalize(b - (a * b).sum(-1, keepdim=True) * a, dim=-1)
    return torch.stack([a, b, torch.linalg.cross(a, b)], -1)


PROGRAMS: dict[str, dict[str, Program]] = {
    "pictures": {
        "bicubic, antialiased": (
            lambda x: F.interpolate(x, size=(61, 83), mode="bicubic", antialias=True),
            lambda: [R(2, 3, 129, 171)],
        ),
        "bytes resized and cropped": (resized, lambda: [U(2, 3, 160, 213)]),
        "luma and chroma": (chroma, lambda: [P(2, 3, 130, 258)]),
        "hue and value": (hue, lambda: [P(2, 3, 129, 131)]),
        "Lab": (lab, lambda: [P(2, 3, 129, 131), P(3, 3)]),
        "Laplacian pyramid": (pyramid, lambda: [P(2, 3, 129, 171), P(1, 1, 5, 5) / 12.5]),
        "equalized": (equalized, lambda: [U(2, 3, 97, 131)]),
        "median of pixels": (median, lambda: [P(1, 3, 97, 131)]),
        "bilateral": (bilateral, lambda: [P(1, 3, 97, 131)]),
        "dilated less eroded": (
            lambda x: F.max_pool2d(x, 5, 1, 2) + F.max_pool2d(-x, 5, 1, 2),
            lambda: [P(2, 3, 129, 131)],
        ),
        "boxes of masks": (mask_boxes, lambda: [P(37, 129, 131) > 0.999]),
        "masks pasted": (pasted, lambda: [P(7, 1, 28, 28), P(7, 4) * 40 + torch.tensor([0.0, 0.0, 60.0, 50.0])]),
        "Bayer mosaic": (mosaic, lambda: [P(3, 258, 386)]),
    },
    "sounds": {
        "mel cepstra": (cepstrum, lambda: [R(2, 16000), torch.hann_window(400), P(257, 40), R(40, 13)]),
        "frames added up": (overlap_add, lambda: [torch.randn(2, 98, 201, dtype=torch.cfloat), P(400)]),
        "one pole": (one_pole, lambda: [R(3, 16000)]),
        "polyphase": (polyphase, lambda: [R(3, 16001), R(3, 1, 17)]),
        "pitch": (pitch, lambda: [R(1, 16000)]),
        "phases kept": (
            lambda m, a: torch.polar(m, a.angle()) * 0.99 + a * 0.01,
            lambda: [P(2, 201, 129), torch.randn(2, 201, 129, dtype=torch.cfloat)],
        ),
        "reverberation": (
            lambda x, k: torch.fft.irfft(torch.fft.rfft(x, n=24000) * torch.fft.rfft(k, n=24000))[..., :16000],
            lambda: [R(3, 16000), R(8000)],
        ),
        "loudness": (loudness, lambda: [R(2, 2, 48000)]),
        "chroma of notes": (
            lambda s, at: F.normalize(torch.zeros(2, 12, 129).index_add(1, at, s.square()), dim=1),
            lambda: [R(2, 201, 129), I(12, 201)],
        ),
    },
    "tables": {
        "bins of quantiles": (quantile_bins, lambda: [R(1000, 19)]),
        "target encoding": (target_encoding, lambda: [I(129, 20000), P(20000)]),
        "one-hot beside numbers": (
            lambda x, i: torch.cat([(x - x.mean(0)) / x.std(0), F.one_hot(i, 23).to(x.dtype).flatten(1)], 1),
            lambda: [R(3000, 11), I(23, 3000, 3)],
        ),
        "oblivious trees": (trees, lambda: [R(1000, 37), I(37, 51, 6), R(51, 6), R(51, 64)]),
        "soft trees": (soft_trees, lambda: [R(257, 37), R(17, 5, 37), R(17, 5), R(17, 32)]),
        "pieces of bins": (pieces, lambda: [R(1000, 19), torch.linspace(-2, 2, 17).repeat(19, 1)]),
        "missing filled": (filled, lambda: [R(3000, 37), M(3000, 37)]),
        "lengths of runs": (runs, lambda: [I(2, 37, 1000)]),
        "means by key of two": (
            lambda x, i, j: torch.zeros(31, 37).index_put((i, j), x, accumulate=True),
            lambda: [R(10000), I(31, 10000), I(37, 10000)],
        ),
    },
    "networks": {
        "attention of edges": (edge_attention, lambda: [R(513, 37), R(37, 64), I(513, 4001), I(513, 4001)]),
        "aggregated four ways": (aggregated, lambda: [R(513, 37), I(513, 4001), I(513, 4001)]),
        "page rank": (page_rank, lambda: [P(1000), I(1000, 9001), I(1000, 9001)]),
        "edge convolution": (edge_conv, lambda: [R(2, 257, 9), R(18, 33)]),
        "adjacency normalized": (adjacency, lambda: [I(257, 3001), I(257, 3001)]),
        "angles of triples": (angles, lambda: [R(513, 3), I(171, 9001), I(171, 9001) + 171, I(171, 9001) + 342]),
        "segments of equal length": (
            lambda x, n: torch.segment_reduce(x, "mean", lengths=n),
            lambda: [R(3700, 37), torch.full((370,), 10)],
        ),
    },
    "forecasts": {
        "rolling": (rolling, lambda: [R(37, 1000)]),
        "smoothed by powers": (smoothed, lambda: [R(37, 365), P(1)]),
        "autocorrelation": (autocorrelation, lambda: [R(37, 1000)]),
        "trend and season": (decomposed, lambda: [R(3, 37, 720)]),
        "profile of windows": (profile, lambda: [R(1000)]),
        "drawdown": (drawdown, lambda: [R(37, 1000) / 100]),
        "scores of samples": (crps, lambda: [R(50, 999), R(999)]),
        "reversible norm": (reversible, lambda: [R(9, 96, 37), R(96, 24), R(24), R(37), R(37)]),
        "lags beside each other": (
            lambda x: torch.stack([x[:, 28 - k : x.shape[1] - k] for k in (0, 1, 2, 3, 7, 14, 28)], 2),
            lambda: [R(129, 393)],
        ),
    },
    "spaces": {
        "points turned by quaternions": (quaternion_points, lambda: [R(37, 4), R(37, 129, 3)]),
        "motions of twists": (rodrigues, lambda: [R(1000, 3), R(1000, 3)]),
        "motions of twists, double": (rodrigues, lambda: [D(1000, 3), D(1000, 3)]),
        "chamfer": (chamfer, lambda: [R(2, 513, 3), R(2, 385, 3)]),
        "nearest three": (interpolated, lambda: [R(1000, 3), R(129, 3), R(129, 37)]),
        "rays and boxes": (slabs, lambda: [R(1000, 3), R(1000, 3), P(37, 3) - 1, P(37, 3)]),
        "rays and triangles": (triangles, lambda: [R(257, 3), R(257, 3), R(129, 3), R(129, 3), R(129, 3)]),
        "means of voxels": (voxels, lambda: [P(9001, 3) * 2 - 1, R(9001, 7)]),
        "projected": (projected, lambda: [R(2001, 3), R(7, 3, 3), R(7, 3), R(7, 3, 3)]),
        "spherical harmonics": (harmonics, lambda: [R(10007, 3)]),
        "rotations of two vectors": (orthonormal, lambda: [R(37, 24, 6)]),
    },
}
