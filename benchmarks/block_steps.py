"""Losses, steps of optimizers, graphs and data: a third of what `operators.py --table blocks` runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from block_programs import P, W
from operator_programs import I, Program, R


def focal(x, y):
    """Focal loss of classes."""
    p = x.log_softmax(-1)
    t = p.gather(1, y[:, None]).squeeze(1)
    return (-0.25 * (1 - t.exp()) ** 2 * t).mean()


def dice(x, y):
    """Dice loss of classes of pixels."""
    p, t = x.softmax(1), F.one_hot(y, 21).permute(0, 3, 1, 2)
    return 1 - (2 * (p * t).sum((0, 2, 3)) / ((p + t).sum((0, 2, 3)) + 1e-6)).mean()


def clip_loss(x, y, t):
    """Contrastive loss in both directions."""
    s = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t() * t.exp()
    at = torch.arange(x.shape[0])
    return (F.cross_entropy(s, at) + F.cross_entropy(s.t(), at)) / 2


def supervised(x, y):
    """Supervised contrastive loss."""
    s = F.normalize(x, dim=-1)
    s = (s @ s.t() / 0.1).masked_fill(torch.eye(x.shape[0], dtype=torch.bool), -1e9)
    same = (y[:, None] == y[None]) & ~torch.eye(x.shape[0], dtype=torch.bool)
    return -(s.log_softmax(-1) * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


def barlow(x, y):
    """Barlow Twins."""
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
    c = x.t() @ y / x.shape[0]
    return ((c.diagonal() - 1) ** 2).sum() + 0.005 * (c**2).fill_diagonal_(0).sum()


def giou(a, b):
    """Generalized intersection over union of boxes in pairs."""
    low, high = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    union = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1) - inner
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(-1)
    return (1 - inner / union + (hull - union) / hull).mean()


def reinforce(p, old, a, r):
    """PPO's clipped objective with an entropy."""
    p = p.log_softmax(-1)
    ratio = (p.gather(1, a[:, None]).squeeze(1) - old).exp()
    best = torch.min(ratio * r, ratio.clamp(0.8, 1.2) * r)
    return -best.mean() + 0.01 * (p.exp() * p).sum(-1).mean()


def preference(c, r, a, b):
    """DPO's loss of log probabilities."""
    return -F.logsigmoid(0.1 * ((c - r) - (a - b))).mean()


def pinball(x, y):
    """A loss of three quantiles."""
    d = y[..., None] - x
    return torch.maximum(d * torch.tensor([0.1, 0.5, 0.9]), d * torch.tensor([-0.9, -0.5, -0.1])).mean()


def adam(p, g, m, v):
    """A step of Adam with decoupled decay."""
    m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
    return p * (1 - 1e-4) - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8), m, v


def adams(*all):
    """A step of Adam of many tensors."""
    return [t for i in range(0, len(all), 4) for t in adam(*all[i : i + 4])]


def lion(p, g, m):
    """A step of Lion."""
    return p * 0.999 - 1e-4 * (m * 0.9 + g * 0.1).sign(), m * 0.99 + g * 0.01


def adafactor(p, g, r, c):
    """A step of Adafactor."""
    s = g * g + 1e-30
    r, c = r * 0.99 + s.mean(-1) * 0.01, c * 0.99 + s.mean(-2) * 0.01
    u = g * (r / r.mean()).rsqrt()[:, None] * c.rsqrt()[None]
    return p - 1e-2 * u / (u.square().mean().sqrt()).clamp(min=1), r, c


def muon(g):
    """Muon's orthogonalization: five products of a Newton-Schulz iteration."""
    x = g / (g.norm() + 1e-7)
    for _ in range(3):
        a = x @ x.t()
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def clip(*grads):
    """Gradients scaled to a norm."""
    total = torch.stack([g.norm() for g in grads]).norm()
    return [g * (1.0 / (total + 1e-6)).clamp(max=1) for g in grads]


def attend(x, s, d, a, b):
    """A graph attention layer: softmax over the edges of a node."""
    e = F.leaky_relu((x @ a)[s] + (x @ b)[d], 0.2)
    top = torch.full((x.shape[0],), -1e9, dtype=x.dtype).scatter_reduce(0, d, e, "amax")
    w = (e - top[d]).exp()
    total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, d, w)
    return torch.zeros_like(x).index_add(0, d, x[s] * (w / total[d])[:, None])


def gcn(x, s, d, w):
    """A graph convolution, normalized by degrees."""
    n = (
        torch.zeros(x.shape[0], dtype=x.dtype)
        .index_add(0, d, torch.ones(s.shape[0], dtype=x.dtype))
        .clamp(min=1)
        .rsqrt()
    )
    return F.relu(torch.zeros_like(x).index_add(0, d, x[s] * (n[s] * n[d])[:, None]) @ w)


def schnet(x, pos, s, d, w):
    """A continuous-filter convolution: distances into Gaussians into weights."""
    r = (pos[s] - pos[d]).square().sum(-1).sqrt()
    f = torch.exp(-10 * (r[:, None] - torch.linspace(0, 5, 32, dtype=x.dtype)).square())
    return torch.zeros_like(x).index_add(0, d, x[s] * (F.softplus(f @ w) - 0.6931))


def dlrm(x, *tables):
    """DLRM's products of features, the lower triangle."""
    t = torch.stack([x, *tables], 1)
    z = t @ t.transpose(1, 2)
    i, j = torch.tril_indices(t.shape[1], t.shape[1], -1)
    return torch.cat([x, z[:, i, j]], 1)


def factorization(x):
    """A factorization machine's second order."""
    return 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(-1)


def crossing(x, w, b):
    """Three layers of a cross network."""
    y = x
    for i in range(3):
        y = x * (F.linear(y, w[i]) + b[i]) + y
    return y


def points(x, a, b):
    """PointNet: a network for each point, then the largest."""
    return F.relu(F.linear(F.relu(F.linear(x, a)), b)).amax(1)


def neighbours(x):
    """The 8 nearest of each point, and edges to them."""
    d = (x[:, :, None] - x[:, None]).square().sum(-1)
    i = d.topk(8, largest=False)[1]
    return (
        torch.gather(x[:, None].expand(-1, x.shape[1], -1, -1), 2, i[..., None].expand(-1, -1, -1, 3)) - x[:, :, None]
    )


def render(sigma, colour, t):
    """NeRF's volume rendering."""
    d = t.diff(dim=-1)
    a = 1 - (-F.relu(sigma[:, :-1]) * d).exp()
    w = a * torch.cumprod(1 - a + 1e-10, -1) / (1 - a + 1e-10)
    return (w[..., None] * colour[:, :-1].sigmoid()).sum(1)


def quantize(x, book):
    """The nearest code of a book, gradient straight through."""
    d = x.square().sum(-1, keepdim=True) - 2 * x @ book.t() + book.square().sum(-1)
    y = F.embedding(d.argmin(-1), book)
    return x + (y - x).detach(), ((y.detach() - x) ** 2).mean()


def fake_quantized(x, w):
    """A linear layer of weights rounded to 8 bits a row."""
    s = w.abs().amax(1, keepdim=True) / 127
    return F.linear(x, (w / s).round().clamp(-128, 127) * s)


def bytes_of(*sizes):
    return (I(255, *sizes) - 127).to(torch.int8)


def static(x, w, s, b):
    q = torch.clamp(torch.round(x.float() / 0.05) + 3, 0, 255).to(torch.uint8)
    y = F.relu(F.linear((q.float() - 3) * 0.05, w.float() * s.float()[:, None], b.float()))
    return torch.clamp(torch.round(y / 0.1), 0, 255).to(torch.uint8)


def dynamic(x, w, s, b):
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    q = (x / step).round().clamp(-128, 127).to(torch.int8)
    return F.gelu(torch._int_mm(q, w.t()).to(x.dtype) * step * s + b)


def hashed(table, i):
    return table[(i[..., 0] ^ (i[..., 1] * 2654435761) ^ (i[..., 2] * 805459861)) % table.shape[0]].sum(1)


def corners(v, i):
    x, y, z = i.unbind(-1)
    return sum(v[x + a, y + b, z + c] for a in (0, 1) for b in (0, 1) for c in (0, 1)) / 8


def normalize(x):
    """Bytes of images to what a network takes."""
    y = x.permute(0, 3, 1, 2).float() / 255
    return (y - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def jitter(x, b, c, s):
    """Brightness, contrast, saturation."""
    x = (x * b[:, None, None, None]).clamp(0, 1)
    gray = (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    x = (x - gray.mean((2, 3), keepdim=True)) * c[:, None, None, None] + gray.mean((2, 3), keepdim=True)
    return (x * s[:, None, None, None] + gray * (1 - s[:, None, None, None])).clamp(0, 1)


def hue(x):
    """Hue, saturation and value of colours."""
    r, g, b = x.unbind(1)
    top, low = x.amax(1), x.amin(1)
    d = top - low + 1e-8
    h = torch.where(top == r, (g - b) / d % 6, torch.where(top == g, (b - r) / d + 2, (r - g) / d + 4)) / 6
    return torch.stack([h, d / (top + 1e-8), top], 1)


def erase(x, at):
    """A square of each image set to 0."""
    n = torch.arange(x.shape[-1])
    inside = lambda i: (n >= at[:, i, None]) & (n < at[:, i, None] + 32)  # noqa: E731
    return x.masked_fill((inside(0)[:, :, None] & inside(1)[:, None])[:, None], 0.0)


def layers(count: int, n: int, *sizes: int) -> list[torch.Tensor]:
    """`count` groups of `n` tensors, the last of each not negative."""
    return [t for _ in range(count) for t in [*[R(*sizes) for _ in range(n - 1)], P(*sizes)]]


PROGRAMS: dict[str, dict[str, Program]] = {
    "losses of blocks": {
        "smoothed labels": (
            lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
            lambda: [R(128, 1000), I(1000, 128)],
        ),
        "ignored labels": (
            lambda x, y: F.cross_entropy(x, torch.where(y < 9, -100, y), weight=torch.ones(50, dtype=x.dtype)),
            lambda: [R(2048, 50), I(50, 2048)],
        ),
        "focal": (focal, lambda: [R(2048, 100), I(100, 2048)]),
        "dice": (dice, lambda: [R(2, 21, 64, 64), I(21, 2, 64, 64)]),
        "both directions": (clip_loss, lambda: [R(128, 256), R(128, 256), R(1)]),
        "supervised contrastive": (supervised, lambda: [R(256, 128), I(10, 256)]),
        "Barlow": (barlow, lambda: [R(128, 256), R(128, 256)]),
        "distillation": (
            lambda s, t: F.kl_div((s / 4).log_softmax(-1), (t / 4).softmax(-1), reduction="batchmean") * 16,
            lambda: [R(128, 1000), R(128, 1000)],
        ),
        "variational": (
            lambda m, s, x, y: (
                F.binary_cross_entropy_with_logits(x, y, reduction="sum") - 0.5 * (1 + s - m**2 - s.exp()).sum()
            ),
            lambda: [R(128, 64), R(128, 64), R(128, 784), torch.rand(128, 784)],
        ),
        "generalized overlap": (giou, lambda: [torch.rand(4096, 4).cumsum(1), torch.rand(4096, 4).cumsum(1)]),
        "policy": (reinforce, lambda: [R(4096, 18), -P(4096), I(18, 4096), R(4096)]),
        "preference": (preference, lambda: [R(4096), R(4096), R(4096), R(4096)]),
        "hinge": (
            lambda x, y: F.relu(1 - x).mean() + F.relu(1 + y).mean(),
            lambda: [R(16, 1, 62, 62), R(16, 1, 62, 62)],
        ),
        "Huber": (lambda x, y: F.huber_loss(x, y, delta=0.5), lambda: [R(256, 512), R(256, 512)]),
        "quantiles": (pinball, lambda: [R(64, 96, 3), R(64, 96)]),
        "spectral": (
            lambda x, y: (
                (
                    torch.stft(x, 512, 128, return_complex=True).abs()
                    - torch.stft(y, 512, 128, return_complex=True).abs()
                )
                .abs()
                .mean()
            ),
            lambda: [R(4, 8192), R(4, 8192)],
        ),
    },
    "steps": {
        "Adam": (adam, lambda: [R(512, 512), R(512, 512), R(512, 512), P(512, 512)]),
        "Adam of 24": (adams, lambda: layers(24, 4, 64, 64)),
        "RMSprop": (
            lambda p, g, v: (p - 1e-3 * g / ((v * 0.99 + g * g * 0.01).sqrt() + 1e-8), v * 0.99 + g * g * 0.01),
            lambda: [R(512, 512), R(512, 512), P(512, 512)],
        ),
        "Lion": (lion, lambda: [R(512, 512), R(512, 512), R(512, 512)]),
        "Adafactor": (adafactor, lambda: [R(256, 512), R(256, 512), P(256), P(512)]),
        "Muon": (muon, lambda: [R(128, 256)]),
        "moving averages": (
            lambda *t: [a * 0.999 + b * 0.001 for a, b in zip(t[::2], t[1::2], strict=True)],
            lambda: layers(16, 2, 128, 128),
        ),
        "clipping": (clip, lambda: layers(8, 2, 128, 128)),
        "spectral norm": (
            lambda w, u: w / (F.normalize(w @ (v := F.normalize(w.t() @ u, dim=0)), dim=0) @ (w @ v)),
            lambda: [R(256, 512), R(256)],
        ),
    },
    "graphs and tables": {
        "graph attention": (attend, lambda: [R(2000, 64), I(2000, 10000), I(2000, 10000), R(64), R(64)]),
        "graph convolution": (gcn, lambda: [R(2000, 64), I(2000, 10000), I(2000, 10000), W(64, 64)]),
        "continuous filters": (schnet, lambda: [R(500, 64), R(500, 3), I(500, 5000), I(500, 5000), W(32, 64)]),
        "means of segments": (
            lambda x, i: (
                torch.zeros(256, 64, dtype=x.dtype).index_add(0, i, x)
                / torch.bincount(i, minlength=256).clamp(min=1)[:, None]
            ),
            lambda: [R(8192, 64), I(256, 8192)],
        ),
        "largest of segments": (
            lambda x, i: torch.full((256, 64), -1e9, dtype=x.dtype).scatter_reduce(
                0, i[:, None].expand_as(x), x, "amax"
            ),
            lambda: [R(8192, 64), I(256, 8192).sort()[0]],
        ),
        "products of features": (dlrm, lambda: [R(256, 32) for _ in range(12)]),
        "factorization machine": (factorization, lambda: [R(1024, 26, 16)]),
        "cross network": (crossing, lambda: [R(256, 128), W(3, 128, 128), R(3, 128)]),
        "bags": (
            lambda w, i: F.embedding_bag(i, w, mode="mean"),
            lambda: [R(10000, 32), I(10000, 1024, 10)],
        ),
        "bag of bags": (
            lambda w, i, p: (F.embedding(i, w) * p[..., None]).sum(1),
            lambda: [R(10000, 32), I(10000, 1024, 10), P(1024, 10)],
        ),
        "hash encoding": (hashed, lambda: [R(16384, 2), I(1000, 4096, 8, 3)]),
        "corners of cells": (corners, lambda: [R(32, 32, 32), I(31, 10000, 3)]),
        "static int8 layer": (static, lambda: [R(128, 768), bytes_of(3072, 768), P(3072), R(3072)]),
        "dynamic int8 layer": (dynamic, lambda: [R(128, 768), bytes_of(3072, 768), P(3072), R(3072)]),
        "product of int32": (lambda x, w: x.int() @ w.int().t(), lambda: [bytes_of(128, 768), bytes_of(3072, 768)]),
        "packed int8 weight": (
            torch.ops.aten._weight_int8pack_mm,
            lambda: [R(128, 768), bytes_of(3072, 768), P(3072)],
        ),
        "points": (points, lambda: [R(4, 512, 3), W(64, 3), W(256, 64)]),
        "nearest points": (neighbours, lambda: [R(2, 256, 3)]),
        "rendering": (render, lambda: [R(1024, 64), R(1024, 64, 3), torch.rand(1024, 64).cumsum(-1)]),
        "codes of a book": (quantize, lambda: [R(1024, 64), R(512, 64)]),
        "rounded weights": (fake_quantized, lambda: [R(64, 256), W(512, 256)]),
        "bytes of weights": (
            lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
            lambda: [R(8, 512), I(127, 1024, 512).to(torch.int8), P(1024) / 100],
        ),
        "kernel of Gauss": (
            lambda x, y: (-torch.cdist(x, y).square() / 2).exp().mean(),
            lambda: [R(256, 32), R(256, 32)],
        ),
    },
    "data": {
        "bytes to numbers": (normalize, lambda: [I(255, 4, 224, 224, 3).to(torch.uint8)]),
        "numbers to bytes": (
            lambda x: ((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous(),
            lambda: [R(4, 3, 224, 224)],
        ),
        "jitter": (jitter, lambda: [torch.rand(4, 3, 160, 160), P(4), P(4), P(4)]),
        "hue": (hue, lambda: [torch.rand(4, 3, 160, 160)]),
        "erased": (erase, lambda: [R(8, 3, 160, 160), I(128, 8, 2)]),
        "mixed": (lambda x, a, i: x * a + x[i] * (1 - a), lambda: [R(16, 3, 96, 96), torch.rand(1), I(16, 16)]),
        "mirrored": (
            lambda x, m: torch.where(m[:, None, None, None], x.flip(-1), x),
            lambda: [R(16, 3, 128, 128), R(16) > 0],
        ),
        "cropped and resized": (
            lambda x: F.interpolate(x[..., 16:-16, 16:-16], size=(112, 112), mode="bilinear", antialias=False),
            lambda: [R(4, 3, 224, 224)],
        ),
        "affine": (
            lambda x, t: F.grid_sample(x, F.affine_grid(t, list(x.shape), align_corners=False), align_corners=False),
            lambda: [R(4, 3, 96, 96), torch.eye(2, 3).expand(4, 2, 3) + R(4, 2, 3) * 0.1],
        ),
        "gray and edges": (
            lambda x, k: F.conv2d(x.mean(1, keepdim=True), k, padding=1).square().sum(1).sqrt(),
            lambda: [R(4, 3, 160, 160), R(2, 1, 3, 3)],
        ),
        "quantile": (
            lambda x: torch.quantile(x, torch.tensor([0.1, 0.5, 0.9], dtype=x.dtype), dim=-1),
            lambda: [R(128, 512)],
        ),
        "clipped at percentiles": (
            lambda x: x.clamp(x.quantile(0.01, -1, keepdim=True), x.quantile(0.99, -1, keepdim=True)),
            lambda: [R(64, 1024)],
        ),
        "histogram": (lambda x: torch.histc(x, 64, -3, 3), lambda: [R(65536)]),
        "soft histogram": (
            lambda x: torch.exp(-((x[:, None] - torch.linspace(-3, 3, 32)) ** 2) * 20).mean(0),
            lambda: [R(8192)],
        ),
        "counts of pairs": (
            lambda a, b: torch.bincount(a * 21 + b, minlength=441).view(21, 21),
            lambda: [I(21, 65536), I(21, 65536)],
        ),
        "ranks": (lambda x: x.argsort(-1).argsort(-1), lambda: [R(128, 256)]),
        "standardized": (lambda x: (x - x.mean(0)) / (x.std(0) + 1e-6), lambda: [R(4096, 64)]),
        "running median": (lambda x: x.unfold(-1, 5, 1).median(-1)[0], lambda: [R(16, 1024)]),
        "lengths to mask": (
            lambda n, x: x.masked_fill(torch.arange(512)[None] >= n[:, None], 0.0).sum(-1),
            lambda: [I(512, 64), R(64, 512)],
        ),
        "tokens of pieces": (
            lambda x: torch.where((x > 100) & (x < 900), x, 3).eq(3).cumsum(-1),
            lambda: [I(1000, 64, 512)],
        ),
    },
}
