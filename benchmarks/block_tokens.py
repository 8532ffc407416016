"""Blocks of real models, rows of tokens: a third of what `operators.py --table blocks` runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from block_programs import P, W
from operator_programs import I, Program, R


def heads(x, n=8):
    """Heads before rows."""
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def alibi(q, k, v):
    """Attention with a bias that falls with distance, a slope a head."""
    n, s = q.shape[1], q.shape[2]
    at = torch.arange(s)
    slopes = 2.0 ** -torch.arange(1, n + 1)
    bias = -(at[:, None] - at[None]).abs()[None] * slopes[:, None, None]
    return ((q @ k.transpose(-1, -2)) / 8 + bias.to(q.dtype)).softmax(-1) @ v


def window(q, k, v):
    """Attention to the last 64 tokens."""
    at = torch.arange(q.shape[2])
    seen = (at[:, None] >= at[None]) & (at[:, None] - at[None] < 64)
    return (q @ k.transpose(-1, -2) / 8).masked_fill(~seen, -1e9).softmax(-1) @ v


def linear_attention(q, k, v):
    """Attention by a feature map."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    z = 1 / (q @ k.sum(2, keepdim=True).transpose(-1, -2) + 1e-6)
    return q @ (k.transpose(-1, -2) @ v) * z


def causal_linear(q, k, v):
    """Causal attention by a feature map, by cumulative sums of outer products."""
    q, k = F.relu(q), F.relu(k)
    s = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    return torch.einsum("bhnd,bhnde->bhne", q, s) / ((q * k.cumsum(2)).sum(-1, keepdim=True) + 1e-6)


def talking(q, k, v, a, b):
    """Attention whose heads are mixed before and after the softmax."""
    s = torch.einsum("bhqk,hg->bgqk", q @ k.transpose(-1, -2) / 8, a).softmax(-1)
    return torch.einsum("bhqk,hg->bgqk", s, b) @ v


def differential(q, k, v, scale):
    """The difference of two softmaxes."""
    a, b = (q @ k.transpose(-1, -2) / 8).softmax(-1).chunk(2, 1)
    return (a - scale * b) @ v


def cosine(q, k, v, t):
    """Attention by cosines."""
    s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
    return (s * t.clamp(max=4.6).exp()).softmax(-1) @ v


def channel_attention(x, q):
    """Attention among channels (XCiT)."""
    q, k, v = heads(F.linear(x, q)).transpose(-1, -2).chunk(3, 2)
    return (
        ((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)).softmax(-1) @ v)
        .permute(0, 3, 1, 2)
        .flatten(2)
    )


def additive(q, k, v, w):
    """Bahdanau's attention."""
    return ((q[:, :, None] + k[:, None]).tanh() @ w).softmax(-1) @ v


def rope_half(x, cos, sin):
    """A rotary embedding by halves."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def rope_pairs(x, cos, sin):
    """A rotary embedding of neighbours."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def rope_part(x, cos, sin):
    """A rotary embedding of the first half of each head."""
    a, b = x.chunk(2, -1)
    return torch.cat([rope_half(a, cos, sin), b], -1)


def rope_plane(x):
    """Two rotary embeddings, for rows and columns, with tables made here."""
    n, d = x.shape[-2], x.shape[-1] // 4
    at = torch.arange(n)
    f = 10000.0 ** (-torch.arange(d) / d)
    t = torch.cat([(at // 16)[:, None] * f, (at % 16)[:, None] * f], -1)
    return rope_pairs(x, t.cos().to(x.dtype), t.sin().to(x.dtype))


def sines(n=512, d=256):
    """A table of sines and cosines."""
    t = torch.arange(n)[:, None] * torch.exp(torch.arange(0, d, 2) * (-9.21 / d))
    return torch.stack([t.sin(), t.cos()], -1).flatten(1)


def time_embedding(t, w, u):
    """A diffusion model's embedding of time."""
    f = torch.exp(-9.21 * torch.arange(64) / 64)
    a = (t[:, None] * f[None]).to(w.dtype)
    return F.linear(F.silu(F.linear(torch.cat([a.cos(), a.sin()], -1), w)), u)


def windows(x, s=7):
    """Windows of an image."""
    b, h, w, c = x.shape
    return x.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)


def unwindow(y, b, h, s=7):
    """The image again."""
    return y.view(b, h // s, h // s, s, s, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, h, -1)


def shifted(x, w, b, q, table, index):
    """Swin's shifted windows, with relative positions."""
    y = windows(F.layer_norm(x, x.shape[-1:], w, b).roll((-3, -3), (1, 2)))
    q, k, v = F.linear(y, q).view(y.shape[0], 49, 3, 3, -1).permute(2, 0, 3, 1, 4)
    bias = table[index.view(-1)].view(49, 49, -1).permute(2, 0, 1)
    y = ((q * 0.18) @ k.transpose(-1, -2) + bias).softmax(-1) @ v
    return x + unwindow(y.transpose(1, 2).flatten(2), x.shape[0], x.shape[1]).roll((3, 3), (1, 2))


def merge(x, w, b, u):
    """Swin's merging of patches."""
    x = torch.cat([x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]], -1)
    return F.linear(F.layer_norm(x, x.shape[-1:], w, b), u)


def route(x, g, a, b):
    """Two experts of eight for each token, weighted, all computed."""
    p, i = F.linear(x, g).softmax(-1).topk(2, -1)
    gate = torch.zeros(x.shape[0], 8, dtype=x.dtype).scatter(1, i, p / p.sum(-1, keepdim=True))
    y = torch.einsum("ted,edf->tef", F.gelu(torch.einsum("td,edf->tef", x, a)), b.transpose(1, 2))
    return (y * gate[..., None]).sum(1)


def sorted_route(x, g):
    """The places of tokens: ranks within their expert, and how many each has."""
    i = F.linear(x, g).argmax(-1)
    hot = F.one_hot(i, 8)
    return (hot.cumsum(0) * hot).sum(-1) - 1, hot.sum(0)


def balance(x, g):
    """A loss that balances experts."""
    p = F.linear(x, g).softmax(-1)
    return (p.mean(0) * F.one_hot(p.argmax(-1), 8).to(p.dtype).mean(0)).sum() * 8


def select_scan(x, dt, a, b, c):
    """A selective scan, one step after the other."""
    h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        h = h * (dt[:, t, :, None] * a).exp() + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
        out.append((h * c[:, t, None]).sum(-1))
    return torch.stack(out, 1)


def cumulative_scan(x, a):
    """A gated scan by cumulative sums of logarithms."""
    s = F.logsigmoid(a).cumsum(1)
    return ((x * (-s).exp()).cumsum(1) * s.exp()).contiguous()


def lstm(x, w, u, b):
    """An LSTM, step by step."""
    h = c = torch.zeros(x.shape[0], u.shape[1], dtype=x.dtype)
    for t in range(x.shape[1]):
        i, f, g, o = (F.linear(x[:, t], w, b) + F.linear(h, u)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h


def gru(x, w, u, b):
    """A GRU, step by step."""
    h = torch.zeros(x.shape[0], u.shape[1], dtype=x.dtype)
    for t in range(x.shape[1]):
        a, r = F.linear(x[:, t], w, b).chunk(3, -1), F.linear(h, u).chunk(3, -1)
        z = (a[1] + r[1]).sigmoid()
        h = (1 - z) * ((a[0] + r[0]).sigmoid() * r[2] + a[2]).tanh() + z * h
    return h


def minimal(x, w, v):
    """A minimal GRU in parallel: gates without the state."""
    z = F.linear(x, w)
    k = F.linear(x, v)
    s = (-F.softplus(z)).cumsum(1)
    return (s + torch.logcumsumexp(F.logsigmoid(k) - s, 1)).exp()


def retention(q, k, v, d):
    """Retention: products decayed by distance."""
    at = torch.arange(q.shape[2])
    far = (at[:, None] - at[None]).clamp(min=0)
    decay = d[:, None, None] ** far * (at[:, None] >= at[None])
    y = (q @ k.transpose(-1, -2) * decay.to(q.dtype)) @ v
    return F.layer_norm(y, y.shape[-1:])


def mixer(x, a, b, c, d):
    """MLP-Mixer's block."""
    y = F.layer_norm(x, x.shape[-1:]).transpose(1, 2)
    x = x + F.linear(F.gelu(F.linear(y, a)), b).transpose(1, 2)
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[-1:]), c)), d)


def gmlp(x, u, w, v):
    """gMLP's gate of places."""
    a, b = F.gelu(F.linear(x, u)).chunk(2, -1)
    b = F.layer_norm(b, b.shape[-1:])
    return x + F.linear(a * (F.conv1d(b, w[..., None]) + 1), v)


def prenorm(x, w, b, q, o, u, d):
    """A layer of a Transformer, norms first."""
    y = F.layer_norm(x, x.shape[-1:], w, b)
    q, k, v = (heads(t, 4) for t in F.linear(y, q).chunk(3, -1))
    x = x + F.linear((q @ k.transpose(-1, -2) / 8).softmax(-1).matmul(v).transpose(1, 2).flatten(2), o)
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], w, b), u)), d)


def sparsemax(x):
    """Softmax's sparse sister."""
    z = x.sort(-1, descending=True)[0]
    s = z.cumsum(-1) - 1
    k = torch.arange(1, x.shape[-1] + 1)
    n = (z * k > s).sum(-1, keepdim=True)
    return (x - s.gather(-1, n - 1) / n).clamp(min=0)


def beams(s, total):
    """A step of beam search: the best 4 of 4 times the vocabulary, each with its parent."""
    p = (s.log_softmax(-1) + total[..., None]).flatten(1)
    best, i = p.topk(4, -1)
    return best, i // s.shape[-1], i % s.shape[-1]


def nucleus(x):
    """Top-p filtering."""
    s, i = x.sort(-1, descending=True)
    drop = s.softmax(-1).cumsum(-1) > 0.9
    drop = torch.cat([torch.zeros_like(drop[..., :1]), drop[..., :-1]], -1)
    return x.masked_fill(drop.scatter(-1, i, drop), -1e9)


def repetition(x, i):
    """Tokens that were said are less likely."""
    s = x.gather(1, i)
    return x.scatter(1, i, torch.where(s < 0, s * 1.2, s / 1.2))


def perceive(x, z, q, k):
    """Cross attention of latents."""
    q, kv = F.linear(z, q), F.linear(x, k)
    k, v = kv.chunk(2, -1)
    return z + (q @ k.transpose(-1, -2) / 11.3).softmax(-1) @ v


def A(b: int = 2, h: int = 8, s: int = 256, d: int = 64) -> list[torch.Tensor]:  # noqa: N802
    """Queries, keys, values."""
    return [R(b, h, s, d), R(b, h, s, d), R(b, h, s, d)]


PROGRAMS: dict[str, dict[str, Program]] = {
    "attentions": {
        "slopes": (alibi, A),
        "sliding window": (window, A),
        "cross": (
            lambda q, k, v: (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v,
            lambda: [R(2, 8, 64, 64), *A(2, 8, 300)[:2]],
        ),
        "linear": (linear_attention, A),
        "causal linear": (causal_linear, lambda: A(1, 4, 128, 32)),
        "talking heads": (talking, lambda: [*A(2, 8, 128), W(8, 8), W(8, 8)]),
        "differential": (differential, lambda: [R(2, 16, 128, 64), R(2, 16, 128, 64), R(2, 8, 128, 64), R(1)]),
        "cosine": (cosine, lambda: [*A(2, 8, 128), R(8, 1, 1)]),
        "among channels": (channel_attention, lambda: [R(2, 196, 192), W(576, 192)]),
        "additive": (additive, lambda: [R(8, 32, 128), R(8, 64, 128), R(8, 64, 128), R(128)]),
        "retention": (retention, lambda: [*A(2, 4, 128), torch.rand(4) * 0.1 + 0.9]),
        "latents": (perceive, lambda: [R(1, 1024, 128), R(1, 64, 128), W(128, 128), W(256, 128)]),
        "scores squared": (lambda q, k, v: F.relu(q @ k.transpose(-1, -2) / 64).square() @ v, lambda: A(2, 8, 128)),
        "soft cap": (
            lambda q, k, v: (30 * (q @ k.transpose(-1, -2) / 240).tanh()).softmax(-1) @ v,
            lambda: A(2, 8, 128),
        ),
        "grouped keys": (
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1), is_causal=True
            ),
            lambda: [R(2, 8, 256, 64), R(2, 2, 256, 64), R(2, 2, 256, 64)],
        ),
    },
    "positions": {
        "rotary halves": (rope_half, lambda: [R(2, 8, 256, 64), R(256, 64), R(256, 64)]),
        "rotary pairs": (rope_pairs, lambda: [R(2, 8, 256, 64), R(256, 32), R(256, 32)]),
        "rotary part": (rope_part, lambda: [R(2, 8, 256, 64), R(256, 32), R(256, 32)]),
        "rotary of a plane": (rope_plane, lambda: [R(2, 8, 256, 64)]),
        "rotary, heads last": (
            lambda x, c, s: rope_half(x.view(2, 256, 8, 64), c[:, None], s[:, None]).transpose(1, 2),
            lambda: [R(2, 256, 512), R(256, 64), R(256, 64)],
        ),
        "sines added": (lambda x: x * 16 + sines().to(x.dtype), lambda: [R(4, 512, 256)]),
        "time": (time_embedding, lambda: [torch.rand(64) * 999, W(256, 128), W(256, 256)]),
        "relative table": (
            lambda s, t, i: s + t[i].permute(2, 0, 1),
            lambda: [R(16, 12, 49, 49), R(169, 12), I(169, 49, 49)],
        ),
        "buckets": (
            lambda s, t: (
                s
                + F.embedding(
                    ((torch.arange(128)[None] - torch.arange(128)[:, None]).abs() + 1).log2().long(), t
                ).permute(2, 0, 1)
            ),
            lambda: [R(4, 8, 128, 128), R(8, 8)],
        ),
        "Fourier features": (
            lambda x: torch.cat([x, *[f(x * 2**k) for k in range(6) for f in (torch.sin, torch.cos)]], -1),
            lambda: [R(16384, 3)],
        ),
    },
    "token blocks": {
        "SwiGLU": (
            lambda x, a, b, c: F.linear(F.silu(F.linear(x, a)) * F.linear(x, b), c),
            lambda: [R(128, 256), W(684, 256), W(684, 256), W(256, 684)],
        ),
        "GEGLU": (
            lambda x, a, c: F.linear(F.gelu((y := F.linear(x, a).chunk(2, -1))[0]) * y[1], c),
            lambda: [R(128, 256), W(1024, 256), W(256, 512)],
        ),
        "ReLU squared": (
            lambda x, a, c: F.linear(F.relu(F.linear(x, a)).square(), c),
            lambda: [R(128, 256), W(1024, 256), W(256, 1024)],
        ),
        "norm and low rank": (
            lambda x, w, u, a, b: F.linear(F.rms_norm(x, (512,), w), u) + F.linear(F.linear(x, a), b) * 2,
            lambda: [R(64, 512), P(512), W(512, 512), W(8, 512), W(512, 8)],
        ),
        "experts by top 2": (route, lambda: [R(64, 128), W(8, 128), W(8, 128, 256), W(8, 128, 256)]),
        "ranks within experts": (sorted_route, lambda: [R(2048, 128), W(8, 128)]),
        "balance of experts": (balance, lambda: [R(2048, 128), W(8, 128)]),
        "windows": (lambda x: windows(x) * 2, lambda: [R(4, 56, 56, 96)]),
        "windows reversed": (lambda y: unwindow(y, 4, 56) + 1, lambda: [R(256, 49, 96)]),
        "shifted windows": (
            shifted,
            lambda: [R(1, 28, 28, 96), P(96), R(96), W(288, 96), R(169, 3), I(169, 49, 49)],
        ),
        "merging patches": (merge, lambda: [R(2, 28, 28, 96), P(384), R(384), W(192, 384)]),
        "patches": (
            lambda x, w, p: F.conv2d(x, w, stride=16).flatten(2).transpose(1, 2) + p,
            lambda: [R(2, 3, 224, 224), W(192, 3, 16, 16), R(196, 192)],
        ),
        "pixels to patches": (
            lambda x: x.view(4, 3, 14, 16, 14, 16).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2),
            lambda: [R(4, 3, 224, 224)],
        ),
        "MLP-Mixer": (mixer, lambda: [R(2, 196, 128), W(98, 196), W(196, 98), W(512, 128), W(128, 512)]),
        "gate of places": (gmlp, lambda: [R(2, 128, 128), W(512, 128), W(128, 128), W(128, 256)]),
        "Transformer layer": (
            prenorm,
            lambda: [R(1, 128, 256), P(256), R(256), W(768, 256), W(256, 256), W(1024, 256), W(256, 1024)],
        ),
        "adaptive norm": (
            lambda x, c, w: (
                (m := F.linear(F.silu(c), w)[:, None].chunk(3, -1))[2] * (F.layer_norm(x, (192,)) * (1 + m[0]) + m[1])
            ),
            lambda: [R(4, 196, 192), R(4, 192), W(576, 192)],
        ),
        "pooled by attention": (
            lambda x, w: (x * F.linear(x, w).softmax(1)).sum(1),
            lambda: [R(16, 128, 256), W(1, 256)],
        ),
        "masked mean": (
            lambda x, m: F.normalize((x * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1), dim=-1),
            lambda: [R(16, 128, 256), (R(16, 128) > -1).float()],
        ),
        "tied logits": (lambda x, w: F.linear(x, w).log_softmax(-1), lambda: [R(32, 128), R(8000, 128)]),
    },
    "recurrences": {
        "LSTM": (lstm, lambda: [R(8, 16, 64), W(512, 64), W(512, 128), R(512)]),
        "GRU": (gru, lambda: [R(8, 16, 64), W(384, 64), W(384, 128), R(384)]),
        "selective scan": (
            select_scan,
            lambda: [R(2, 24, 64), torch.rand(2, 24, 64) * 0.1, -P(64, 16), R(2, 24, 16), R(2, 24, 16)],
        ),
        "scan of logarithms": (cumulative_scan, lambda: [R(4, 64, 256), R(4, 64, 256) + 3]),
        "minimal GRU": (minimal, lambda: [R(4, 128, 128), W(128, 128), W(128, 128)]),
        "exponential mean": (
            lambda x: (
                x
                @ (0.1 * 0.9 ** (torch.arange(128)[:, None] - torch.arange(128)[None]).clamp(min=0))
                .tril()
                .T.to(x.dtype)
            ),
            lambda: [R(256, 128)],
        ),
        "token shift": (
            lambda x, m: x * m + F.pad(x, (0, 0, 1, -1)) * (1 - m),
            lambda: [R(4, 256, 256), torch.rand(256)],
        ),
    },
    "decoding": {
        "sparsemax": (sparsemax, lambda: [R(256, 128)]),
        "beams": (beams, lambda: [R(4, 4, 8000), R(4, 4)]),
        "nucleus": (nucleus, lambda: [R(4, 8000)]),
        "repetition": (repetition, lambda: [R(4, 32000), I(32000, 4, 128)]),
        "temperature and top 50": (
            lambda x: torch.where(x / 0.7 < x.div(0.7).topk(50)[0][..., -1:], -1e9, x / 0.7).softmax(-1),
            lambda: [R(4, 32000)],
        ),
        "one query": (
            lambda q, k, v: (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v,
            lambda: [R(4, 8, 1, 64), R(4, 8, 512, 64), R(4, 8, 512, 64)],
        ),
        "hard Gumbel": (
            lambda x, u: (y := (x - (-u.log()).log()).softmax(-1)) + (F.one_hot(y.argmax(-1), 64) - y).detach(),
            lambda: [R(4096, 64), P(4096, 64) / 2],
        ),
        "cache grown": (lambda c, x: torch.cat([c, x], 2) * 1, lambda: [R(4, 8, 511, 64), R(4, 8, 1, 64)]),
    },
}
