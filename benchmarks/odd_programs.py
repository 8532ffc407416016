"""Programs of odd and small shapes, mixed dtypes and unusual layouts: what `operators.py --table odd` runs.

Sizes are no multiples of vectors, inputs lie permuted or channels-last, and integers of all widths occur.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from operator_programs import I, Program, R

LAST = torch.channels_last


def U(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Bytes."""
    return I(256, *sizes).to(torch.uint8)


def C(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Numbers from -127 to 127, of one byte each."""
    return (I(255, *sizes) - 127).to(torch.int8)


def M(*sizes: int) -> torch.Tensor:  # noqa: N802
    """A mask, mostly true."""
    return torch.rand(sizes) < 0.8


def boxes(n: int) -> torch.Tensor:
    """Boxes by their corners."""
    at = torch.rand(n, 2) * 100
    return torch.cat([at, at + torch.rand(n, 2) * 30 + 1], 1)


def overlaps(a, b):
    """Intersections of all pairs of boxes over their unions."""
    low, high = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    area = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])  # noqa: E731
    return inner / (area(a)[:, None] + area(b) - inner)


def matched(x, y):
    """Anchors assigned to the true boxes that they overlap most."""
    best, which = overlaps(x, y).max(1)
    return torch.where(best > 0.5, which, torch.where(best < 0.4, -1, -2)), y[which]


def encoded(a, b):
    """Regression targets of boxes beside their anchors."""
    size, other = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    middle = (b[:, :2] + other / 2 - a[:, :2] - size / 2) / size
    return torch.cat([middle, (other / size).log()], 1)


def top_p(x, noise):
    """Sampling from the smallest set of tokens with probability 0.9."""
    found, at = x.softmax(-1).topk(40, -1)
    found = found.masked_fill(found.cumsum(-1) - found > 0.9, 0.0)
    return at.gather(-1, (found / noise).argmax(-1, keepdim=True))


def min_p(x, noise):
    """Sampling from tokens at least a tenth as likely as the best."""
    p = x.softmax(-1)
    return (p.masked_fill(p < 0.1 * p.amax(-1, keepdim=True), 0.0) / noise).argmax(-1)


def beam_step(scores, logits, ended):
    """A step of beam search: ended beams go on with token 0 only."""
    step = logits.log_softmax(-1)
    step = step.masked_fill(ended[..., None], -1e9)
    total = (scores[..., None] + step).flatten(1)
    best, at = total.topk(5, -1)
    return best, at // logits.shape[-1], at % logits.shape[-1]


def mels(x, window, bank):
    """Logarithms of mel energies of frames."""
    spectrum = torch.stft(x, 400, 160, window=window, return_complex=True).abs().square()
    return (bank @ spectrum).clamp(min=1e-10).log10()


def pre_emphasis(x):
    """A difference filter and the energy of frames."""
    y = torch.cat([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], 1)
    return y.unfold(1, 400, 160).square().mean(-1).add(1e-6).log()


def deltas(x):
    """Slopes of features over five frames."""
    p = F.pad(x, (2, 2), mode="replicate")
    return (2 * (p[..., 4:] - p[..., :-4]) + p[..., 3:-1] - p[..., 1:-3]) / 10


def messages(x, w, at, to):
    """Messages along edges, summed, beside a node's own."""
    return torch.zeros_like(x).index_add(0, to, F.relu(x[at] * w)) + x


def edge_softmax(s, to):
    """A softmax over the edges into each node."""
    top = torch.full((331, s.shape[1]), -torch.inf, dtype=s.dtype).index_reduce(0, to, s, "amax")
    e = (s - top[to]).exp()
    return e / torch.zeros_like(top).index_add(0, to, e)[to]


def degree_norm(x, at, to):
    """A graph convolution with normalized degrees."""
    d = torch.zeros(331, dtype=x.dtype).index_add(0, to, torch.ones(to.shape[0], dtype=x.dtype)).clamp(min=1).rsqrt()
    return torch.zeros_like(x).index_add(0, to, x[at] * (d[at] * d[to])[:, None])


def bag(w, i, m):
    """Means of embeddings of items that a mask keeps."""
    e = F.embedding(i, w) * m[..., None]
    return e.sum(1) / m.sum(1, keepdim=True).clamp(min=1)


def two_towers(u, v, t):
    """Losses of users with their items, with others of the batch as negatives."""
    s = F.normalize(u, dim=-1) @ F.normalize(v, dim=-1).t() / t
    return F.cross_entropy(s, torch.arange(u.shape[0]))


def windows(x):
    """Standardized windows of a series."""
    w = x.unfold(1, 24, 7)
    return (w - w.mean(-1, keepdim=True)) / (w.std(-1, keepdim=True) + 1e-5)


def holes(x, m):
    """Series whose missing values take the last known one."""
    at = torch.where(m, torch.arange(x.shape[1]), 0).cummax(1)[0]
    return x.gather(1, at)


def posterize(x):
    """Fewer colors, inverted above a threshold."""
    y = x & 0xE0
    return torch.where(y > 128, 255 - y, y)


def contrast(x):
    """Contrast stretched to the range of each channel."""
    y = x.float()
    low, high = y.amin((2, 3), keepdim=True), y.amax((2, 3), keepdim=True)
    return ((y - low) * (255 / (high - low + 1e-3))).round().to(torch.uint8)


def attend(q, k, v, m):
    """Attention of small heads with a mask of keys, written out."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return s.masked_fill(~m[:, None, None], -1e9).softmax(-1) @ v


def clipped_norm(x, y, z):
    """Gradients clipped by their common norm."""
    norm = torch.stack([t.norm() for t in (x, y, z)]).norm()
    return [t * (1.0 / (norm + 1e-6)).clamp(max=1.0) for t in (x, y, z)]


def advantages(r, v, d):
    """Discounted differences of values, summed backwards."""
    delta = r + 0.99 * v[:, 1:] * ~d - v[:, :-1]
    return delta.flip(1).cumsum(1).flip(1)


def wing(x, y):
    """The wing loss of landmarks."""
    e = (x - y).abs()
    return torch.where(e < 10, 10 * (1 + e / 2).log(), e - 2.08).mean((1, 2))


def tversky(x, y):
    """The Tversky loss of masks."""
    p = x.sigmoid().flatten(1)
    t = y.flatten(1)
    return 1 - ((p * t).sum(1) + 1) / ((p * t).sum(1) + 0.3 * (p * ~t).sum(1) + 0.7 * ((1 - p) * t).sum(1) + 1)


PROGRAMS: dict[str, dict[str, Program]] = {
    "detection": {
        "overlaps of 211 by 67": (overlaps, lambda: [boxes(211), boxes(67)]),
        "anchors matched": (matched, lambda: [boxes(1023), boxes(19)]),
        "boxes encoded": (encoded, lambda: [boxes(1531), boxes(1531)]),
        "kept by order": (
            lambda o, s: (torch.triu(o[s.argsort(descending=True)][:, s.argsort(descending=True)], 1) > 0.5).any(0),
            lambda: [torch.rand(201, 201), R(201)],
        ),
        "heat map peaks": (
            lambda x: (x * (F.max_pool2d(x, 3, 1, 1) == x)).flatten(1).topk(50, -1),
            lambda: [torch.rand(2, 17, 61, 45)],
        ),
    },
    "sampling": {
        "top p": (top_p, lambda: [R(7, 5003), torch.rand(7, 40) + 0.01]),
        "min p": (min_p, lambda: [R(7, 5003), torch.rand(7, 5003) + 0.01]),
        "beam step": (beam_step, lambda: [R(3, 5), R(3, 5, 1009), R(3, 5) > 1]),
        "ranks of the true": (
            lambda x, y: 1.0 / (1 + (x > x.gather(1, y[:, None])).sum(1)),
            lambda: [R(53, 777), I(777, 53)],
        ),
    },
    "audio": {
        "mels": (mels, lambda: [R(2, 16000), torch.hann_window(400), torch.rand(41, 201)]),
        "pre-emphasis": (pre_emphasis, lambda: [R(3, 16000)]),
        "deltas": (deltas, lambda: [R(3, 41, 173)]),
        "mu law": (
            lambda x: ((x.sign() * (1 + 255 * x.abs()).log() / 5.545 + 1) * 127.5).to(torch.uint8),
            lambda: [torch.rand(3, 16001) * 2 - 1],
        ),
        "masks of time and frequency": (
            lambda x, m, n: x.masked_fill(m[:, None], 0.0).masked_fill(n[:, :, None], 0.0),
            lambda: [R(3, 41, 173), M(3, 173), M(3, 41)],
        ),
    },
    "graphs": {
        "messages": (messages, lambda: [R(331, 30), R(2003, 30), I(331, 2003), I(331, 2003)]),
        "softmax of edges": (edge_softmax, lambda: [R(2003, 5), I(331, 2003)]),
        "degrees": (degree_norm, lambda: [R(331, 30), I(331, 2003), I(331, 2003)]),
        "distances of edges": (
            lambda x, at, to: (-(x[at] - x[to]).square().sum(-1)).exp(),
            lambda: [R(331, 3), I(331, 2003), I(331, 2003)],
        ),
        "dense neighbours": (
            lambda a, x: (a.to(x.dtype) / a.sum(-1, keepdim=True).clamp(min=1)) @ x,
            lambda: [M(3, 37, 37), R(3, 37, 30)],
        ),
    },
    "items": {
        "masked bag": (bag, lambda: [R(5003, 18), I(5003, 57, 13), M(57, 13)]),
        "two towers": (two_towers, lambda: [R(61, 18), R(61, 18), torch.rand(1) + 0.1]),
        "hash of ids": (
            lambda i: torch.stack([(i * k + 12345) % 1009 for k in (31, 37, 41)], -1),
            lambda: [I(1 << 30, 57, 13)],
        ),
        "counts of codes": (
            lambda i: torch.zeros(57, 19, dtype=torch.int64).scatter_add(1, i, torch.ones_like(i)),
            lambda: [I(19, 57, 131)],
        ),
        "gates of experts": (
            lambda x, y, w: torch.einsum("be,bei,i->be", x.softmax(-1), y, w),
            lambda: [R(57, 5), R(57, 5, 18), R(18)],
        ),
    },
    "series": {
        "standardized windows": (windows, lambda: [R(11, 1003)]),
        "last known": (holes, lambda: [R(11, 1003), M(11, 1003)]),
        "moving deviation": (
            lambda x: F.avg_pool1d(x * x, 9, 1) - F.avg_pool1d(x, 9, 1).square(),
            lambda: [R(3, 11, 1003)],
        ),
        "returns": (lambda x: (x[:, 1:] / x[:, :-1]).log().cumsum(1), lambda: [torch.rand(11, 1003) + 0.5]),
        "deviations of columns": (lambda x: x.std(0), lambda: [R(1003, 43)]),
        "advantages": (advantages, lambda: [R(11, 203), R(11, 204), M(11, 203)]),
    },
    "images": {
        "posterized": (posterize, lambda: [U(3, 3, 61, 77)]),
        "contrast": (contrast, lambda: [U(3, 3, 61, 77)]),
        "norm over a permuted middle": (
            lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (30,), w, b).permute(0, 3, 1, 2),
            lambda: [R(3, 30, 13, 11), R(30), R(30)],
        ),
        "statistics, channels last": (
            lambda x: torch.cat([x.mean((2, 3)), x.std((2, 3)), x.amax((2, 3))], 1),
            lambda: [R(3, 30, 13, 11).to(memory_format=LAST)],
        ),
        "reflected and pooled": (
            lambda x: F.avg_pool2d(F.pad(x, (1, 2, 2, 1), mode="reflect"), 3, 2),
            lambda: [R(3, 30, 27, 23)],
        ),
        "rows and columns exchanged": (
            lambda x: x.permute(0, 2, 4, 1, 3).contiguous(),
            lambda: [R(3, 13, 7, 11, 19)],
        ),
        "dequantized": (
            lambda x, s, z: (x.float() - z[:, None, None]) * s[:, None, None],
            lambda: [C(3, 30, 27, 23), torch.rand(30), R(30)],
        ),
        "ones above": (lambda x: (x > 0).flip(-1).cumsum(-1).flip(-1).to(torch.int32), lambda: [R(57, 203)]),
    },
    "losses": {
        "wing": (wing, lambda: [R(57, 68, 2) * 20, R(57, 68, 2)]),
        "Tversky": (tversky, lambda: [R(5, 1, 61, 45), M(5, 1, 61, 45)]),
        "clipped": (clipped_norm, lambda: [R(31, 43), R(43), R(7, 31)]),
        "ordinal": (
            lambda x, y: F.binary_cross_entropy_with_logits(x, (torch.arange(9) < y[:, None]).to(x.dtype)),
            lambda: [R(203, 9), I(10, 203)],
        ),
        "margins of classes": (
            lambda x, y: (x - x.gather(1, y[:, None]) + 1).clamp(min=0).mean(1),
            lambda: [R(203, 43), I(43, 203)],
        ),
    },
    "small products": {
        "attention of small heads": (
            attend,
            lambda: [R(3, 5, 37, 12), R(3, 5, 41, 12), R(3, 5, 41, 12), M(3, 41)],
        ),
        "three operands": (
            lambda a, b, c: torch.einsum("bij,bjk,bk->bi", a, b, c),
            lambda: [R(57, 7, 11), R(57, 11, 13), R(57, 13)],
        ),
        "frames of points": (
            lambda r, t, x: torch.einsum("nij,nkj->nki", r, x) + t[:, None],
            lambda: [R(203, 3, 3), R(203, 3), R(203, 5, 3)],
        ),
        "outer products": (lambda x, y: (x[..., None] * y[..., None, :]).flatten(-2), lambda: [R(57, 13), R(57, 11)]),
        "quadratic forms": (
            lambda x, a: ((x @ a) * x).sum(-1),
            lambda: [R(203, 13), R(13, 13)],
        ),
    },
}
