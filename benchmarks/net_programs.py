"""Small whole models of many kinds: what `operators.py --table nets` runs, with `--train` a step with all gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from operator_programs import I, Program, R
from torch import nn


def conv(c: int, d: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(nn.Conv2d(c, d, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(d), nn.ReLU())


class Residual(nn.Module):
    """What is computed, added to what it was computed of."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x):
        return x + self.inner(x)


class Temporal(nn.Module):
    """A temporal convolutional network."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(c, c, 3, padding=2 * d, dilation=d) for d in (1, 2, 4, 8))

    def forward(self, x):
        for layer in self.convs:
            x = F.relu(x + layer(x)[..., : x.shape[-1]])
        return x.mean(-1)


class Wave(nn.Module):
    """WaveNet: gated, dilated, causal, with skips."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(c, 2 * c, 2, dilation=d) for d in (1, 2, 4, 8))
        self.mixes = nn.ModuleList(nn.Conv1d(c, 2 * c, 1) for _ in range(4))

    def forward(self, x):
        total = 0
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            a, b = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            y, skip = mix(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, total = x + y, total + skip
        return F.relu(total)


class UNet(nn.Module):
    """Two steps down, two up, with skips."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, c), conv(c, 2 * c), conv(2 * c, 4 * c)
        self.d, self.e, self.head = conv(6 * c, 2 * c), conv(3 * c, c), nn.Conv2d(c, 4, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        y = F.interpolate(self.c(F.max_pool2d(b, 2)), scale_factor=2, mode="bilinear")
        y = F.interpolate(self.d(torch.cat([b, y], 1)), scale_factor=2, mode="bilinear")
        return self.head(self.e(torch.cat([a, y], 1)))


class Mixer(nn.Module):
    """A block of MLP-Mixer."""

    def __init__(self, n: int, d: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tokens = nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
        self.channels = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.tokens(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.two(x))


class Excited(nn.Module):
    """An inverted residual with squeeze and excite."""

    def __init__(self, c: int, e: int) -> None:
        super().__init__()
        self.up, self.deep = conv(c, e, 1), conv(e, e, 3, 1, e)
        self.squeeze, self.excite = nn.Conv2d(e, c // 4, 1), nn.Conv2d(c // 4, e, 1)
        self.down = nn.Sequential(nn.Conv2d(e, c, 1, bias=False), nn.BatchNorm2d(c))

    def forward(self, x):
        y = self.deep(self.up(x))
        y = y * self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))).sigmoid()
        return x + self.down(y)


class Fire(nn.Module):
    """SqueezeNet's module."""

    def __init__(self, c: int, s: int, e: int) -> None:
        super().__init__()
        self.s, self.a, self.b = nn.Conv2d(c, s, 1), nn.Conv2d(s, e, 1), nn.Conv2d(s, e, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.s(x))
        return torch.cat([F.relu(self.a(x)), F.relu(self.b(x))], 1)


class Points(nn.Module):
    """PointNet."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU()
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.each(x).max(-1)[0]).log_softmax(-1)


class Graph(nn.Module):
    """Two layers of graph attention."""

    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.scores = nn.ModuleList(nn.Linear(2 * d, 1) for _ in range(2))

    def forward(self, x, s, d):
        for layer, score in zip(self.layers, self.scores, strict=True):
            y = layer(x)
            e = F.leaky_relu(score(torch.cat([y[s], y[d]], -1)), 0.2).clamp(-9, 9).exp()
            total = torch.zeros(x.shape[0], 1, dtype=x.dtype).index_add(0, d, e)
            x = F.elu(torch.zeros_like(y).index_add(0, d, y[s] * (e / total[d])))
        return x


class Clicks(nn.Module):
    """DLRM."""

    def __init__(self, tables: int = 8, d: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, d, mode="sum") for _ in range(tables))
        self.low = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, d), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(d + 36, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("at", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, x, i):
        x = self.low(x)
        t = torch.stack([x, *[table(i[k]) for k, table in enumerate(self.tables)]], 1)
        z = t @ t.transpose(1, 2)
        return self.top(torch.cat([x, z[:, self.at[0], self.at[1]]], 1)).sigmoid()


class Words(nn.Module):
    """A language model of an LSTM that is written out."""

    def __init__(self, v: int = 1000, d: int = 64) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(v, d), nn.LSTMCell(d, d), nn.Linear(d, v)

    def forward(self, i):
        x, out = self.words(i), []
        state = (x.new_zeros(x.shape[0], x.shape[2]), x.new_zeros(x.shape[0], x.shape[2]))
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            out.append(state[0])
        return F.cross_entropy(self.head(torch.stack(out[:-1], 1)).flatten(0, 1), i[:, 1:].flatten())


class Selective(nn.Module):
    """A layer of Mamba, its scan by cumulative sums."""

    def __init__(self, d: int = 64, n: int = 8) -> None:
        super().__init__()
        self.put, self.out, self.conv = (
            nn.Linear(d, 4 * d),
            nn.Linear(2 * d, d),
            nn.Conv1d(2 * d, 2 * d, 4, 1, 3, 1, 2 * d),
        )
        self.bc, self.dt, self.a = nn.Linear(2 * d, 2 * n), nn.Linear(2 * d, 2 * d), nn.Parameter(-torch.rand(2 * d, n))

    def forward(self, x):
        y, z = self.put(x).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        b, c = self.bc(y).chunk(2, -1)
        dt = F.softplus(self.dt(y))
        s = (dt[..., None] * self.a).cumsum(1).clamp(min=-20)
        h = ((dt * y)[..., None] * b[:, :, None] * (-s).exp()).cumsum(1) * s.exp()
        return self.out((h * c[:, :, None]).sum(-1) * F.silu(z))


class Field(nn.Module):
    """NeRF's network with its features of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(63, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.two = nn.Sequential(nn.Linear(191, 128), nn.ReLU(), nn.Linear(128, 4))

    def forward(self, x):
        f = torch.cat([x, *[g(x * 2**k) for k in range(10) for g in (torch.sin, torch.cos)]], -1)
        y = self.two(torch.cat([f, self.one(f)], -1))
        return torch.cat([y[:, :3].sigmoid(), F.relu(y[:, 3:])], -1)


class Variational(nn.Module):
    """A variational autoencoder and its loss; the noise is given."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.m, self.s = nn.Linear(784, 256), nn.Linear(256, 16), nn.Linear(256, 16)
        self.d = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x, noise):
        h = F.relu(self.e(x))
        m, s = self.m(h), self.s(h)
        y = self.d(m + (s / 2).exp() * noise)
        return F.binary_cross_entropy_with_logits(y, x.sigmoid()) - (1 + s - m**2 - s.exp()).mean() / 2


class Layer(nn.Module):
    """A layer of a Transformer, norms first; of other keys where they are given."""

    def __init__(self, d: int, h: int = 4) -> None:
        super().__init__()
        self.h, self.one, self.two = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, other=None):
        y = self.one(x)
        k, v = self.kv(y if other is None else other).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (self.q(y), k, v))
        a = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        x = x + self.o(a.transpose(1, 2).flatten(2))
        return x + self.mlp(self.two(x))


class Images(nn.Module):
    """A vision transformer of two layers."""

    def __init__(self, d: int = 96) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, d, 8, 8), nn.Parameter(torch.randn(65, d) / 9)
        self.first, self.layers, self.head = (
            nn.Parameter(torch.zeros(d)),
            nn.Sequential(Layer(d), Layer(d)),
            nn.Linear(d, 10),
        )

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], 1, -1), x], 1) + self.places
        return self.head(self.layers(x)[:, 0])


class Latents(nn.Module):
    """A Perceiver: latents that look at what is given, then at each other."""

    def __init__(self, d: int = 64) -> None:
        super().__init__()
        self.latents, self.look, self.think = nn.Parameter(torch.randn(32, d)), Layer(d), Layer(d)

    def forward(self, x):
        return self.think(self.look(self.latents.expand(x.shape[0], -1, -1), x)).mean(1)


def generator() -> nn.Sequential:
    """DCGAN's."""
    up = lambda c, d: nn.Sequential(nn.ConvTranspose2d(c, d, 4, 2, 1), nn.BatchNorm2d(d), nn.ReLU())  # noqa: E731
    return nn.Sequential(
        nn.ConvTranspose2d(32, 64, 4), up(64, 32), up(32, 16), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()
    )


def of(net: nn.Module, *more: nn.Module) -> nn.Module:
    """A model whose numbers are always the same, in evaluation."""
    return nn.Sequential(net, *more).eval() if more else net.eval()


torch.manual_seed(0)
PROGRAMS: dict[str, dict[str, Program]] = {
    "nets of images": {
        "U-Net": (of(UNet()), lambda: [R(1, 3, 64, 64)]),
        "MLP-Mixer": (of(Mixer(64, 96), Mixer(64, 96)), lambda: [R(2, 64, 96)]),
        "ConvMixer": (
            of(
                nn.Conv2d(3, 64, 4, 4),
                *[nn.Sequential(Residual(conv(64, 64, 5, 1, 64)), conv(64, 64, 1)) for _ in range(3)],
            ),
            lambda: [R(1, 3, 64, 64)],
        ),
        "EfficientNet": (of(conv(3, 16, 3, 2), *[Excited(16, 64) for _ in range(3)]), lambda: [R(1, 3, 64, 64)]),
        "SqueezeNet": (
            of(conv(3, 32, 3, 2), nn.MaxPool2d(3, 2), Fire(32, 16, 32), Fire(64, 16, 32), nn.AdaptiveAvgPool2d(1)),
            lambda: [R(1, 3, 96, 96)],
        ),
        "DCGAN": (of(generator()), lambda: [R(4, 32, 1, 1)]),
        "vision transformer": (of(Images()), lambda: [R(1, 3, 64, 64)]),
        "autoencoder": (of(Variational()), lambda: [R(64, 784), R(64, 16)]),
    },
    "nets of sequences": {
        "temporal": (of(Temporal()), lambda: [R(2, 32, 256)]),
        "WaveNet": (of(Wave()), lambda: [R(1, 32, 512)]),
        "LSTM": (of(Words()), lambda: [I(1000, 4, 16)]),
        "Mamba": (of(Selective(), Selective()), lambda: [R(1, 64, 64) / 4]),
        "Transformer": (of(Layer(128), Layer(128)), lambda: [R(1, 128, 128)]),
        "Perceiver": (of(Latents()), lambda: [R(2, 256, 64)]),
    },
    "nets of sets": {
        "PointNet": (of(Points()), lambda: [R(4, 3, 256)]),
        "graph attention": (of(Graph()), lambda: [R(500, 32), I(500, 3000), I(500, 3000)]),
        "DLRM": (of(Clicks()), lambda: [R(128, 13), I(1000, 8, 128, 4)]),
        "NeRF": (of(Field()), lambda: [R(1024, 3)]),
    },
}
