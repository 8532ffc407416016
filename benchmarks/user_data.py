"""Models of sounds, words, tables and graphs as their users write them; see `user_images`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from training_models import Built, model, of
from user_images import convs

Tensor = torch.Tensor


class Tabular(nn.Module):
    """Tokens of features, missing ones among them, and a small transformer."""

    def __init__(self, width: int, kinds: list[int], numbers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(k, width) for k in kinds)
        self.weight, self.bias = nn.Parameter(torch.randn(numbers, width)), nn.Parameter(torch.zeros(numbers, width))
        self.missing, self.head = nn.Parameter(torch.zeros(numbers, width)), nn.Linear(width, 1)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, numbers: Tensor, kinds: Tensor, labels: Tensor | None = None) -> Tensor:
        """One number a row, or the loss."""
        lost = torch.isnan(numbers)
        filled = torch.nan_to_num(numbers)[..., None] * self.weight + self.bias
        tokens = torch.where(lost[..., None], self.missing.to(filled.dtype), filled)
        looked = torch.stack([table(kinds[:, k]) for k, table in enumerate(self.tables)], 1).to(filled.dtype)
        whole = torch.cat([self.first.to(filled.dtype).expand(len(numbers), -1, -1), tokens, looked], 1)
        out = self.head(self.body(whole)[:, 0])[:, 0]
        return out if labels is None else F.binary_cross_entropy_with_logits(out.float(), labels)


@model
def user_tabular(size: str) -> Built:
    """Many small tables, missing numbers, torch's own encoder."""
    n, kinds = of(size, 4, 1024, 4096), [3 + 7 * k for k in range(of(size, 3, 20, 20))]
    numbers = torch.randn(n, of(size, 4, 20, 20))
    numbers[torch.rand_like(numbers) < 0.1] = float("nan")
    codes = torch.stack([torch.randint(0, k, (n,)) for k in kinds], 1)
    inputs = {"numbers": numbers, "kinds": codes, "labels": (torch.rand(n) < 0.5).float()}
    return Tabular(of(size, 16, 192, 192), kinds, numbers.shape[1]), inputs


class Reader(nn.Module):
    """Text in images: convolutions, recurrent layers, and the loss of alignments."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = convs([3, width // 2, width, width])
        self.rnn = nn.LSTM(width * 4, width, 1, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, 37)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Log probabilities, or the loss."""
        h = self.body(x)
        h, _ = self.rnn(h.permute(0, 3, 1, 2).flatten(2))
        found = F.log_softmax(self.head(h).float(), -1)
        if labels is None:
            return found
        steps = torch.full((x.shape[0],), found.shape[1], dtype=torch.long)
        lengths = torch.full((x.shape[0],), labels.shape[1], dtype=torch.long)
        return F.ctc_loss(found.transpose(0, 1), labels, steps, lengths, zero_infinity=True)


@model
def user_reader(size: str) -> Built:
    """cuDNN's LSTM, a loss whose lengths are on the CPU."""
    n = of(size, 2, 32, 64)
    x = torch.randn(n, 3, 32, of(size, 64, 256, 256))
    return Reader(of(size, 16, 256, 256)), {"x": x, "labels": torch.randint(1, 37, (n, of(size, 3, 12, 12)))}


class Tagger(nn.Module):
    """Tags of words by a chain of conditional probabilities."""

    def __init__(self, width: int, tags: int) -> None:
        super().__init__()
        self.words, self.rnn = (
            nn.Embedding(20000, width),
            nn.GRU(width, width // 2, bidirectional=True, batch_first=True),
        )
        self.head, self.moves = nn.Linear(width, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores, or the loss."""
        mask = ids != 0
        scores = self.head(self.rnn(self.words(ids))[0]).float()
        if labels is None:
            return scores
        alpha = scores[:, 0]
        for k in range(1, ids.shape[1]):
            new = torch.logsumexp(alpha[:, :, None] + self.moves + scores[:, k, None], 1)
            alpha = torch.where(mask[:, k, None], new, alpha)
        own = scores.gather(2, labels[..., None])[..., 0]
        moved = self.moves[labels[:, :-1], labels[:, 1:]]
        path = (own * mask).sum(1) + (moved * mask[:, 1:]).sum(1)
        return (torch.logsumexp(alpha, 1) - path).mean()


@model
def user_tagger(size: str) -> Built:
    """A loop over words in the loss."""
    n, words = of(size, 2, 64, 128), of(size, 8, 48, 48)
    ids = torch.randint(1, 20000, (n, words))
    ids[:, words // 2 :][torch.rand(n, words - words // 2) < 0.5] = 0
    return Tagger(of(size, 16, 256, 256), 20), {"ids": ids, "labels": torch.randint(0, 20, (n, words))}


class Policy(nn.Module):
    """Proximal policy optimization: actions of a normal distribution, values, entropy."""

    def __init__(self, seen: int, actions: int, width: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.mean, self.value = nn.Linear(width, actions), nn.Linear(width, 1)
        self.scale = nn.Parameter(torch.zeros(1, actions))

    def forward(self, seen: Tensor, did: Tensor, before: Tensor, labels: Tensor | None = None) -> Tensor:
        """Log probabilities, or the loss."""
        mean = self.mean(self.actor(seen)).float()
        chance = torch.distributions.Normal(mean, self.scale.float().exp().expand_as(mean))
        log = chance.log_prob(did.float()).sum(-1)
        value = self.value(self.critic(seen)).float()[:, 0]
        if labels is None:
            return log + value
        gain = labels - value.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        ratio = (log - before).exp()
        policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return policy + 0.5 * F.huber_loss(value, labels) - 0.01 * chance.entropy().sum(-1).mean()


@model
def user_policy(size: str) -> Built:
    """A small step, bound by the host."""
    n = of(size, 8, 4096, 16384)
    inputs = {"seen": torch.randn(n, 60), "did": torch.randn(n, 8), "before": -torch.rand(n), "labels": torch.randn(n)}
    return Policy(60, 8, of(size, 16, 256, 512)), inputs


class Listener(nn.Module):
    """Sound to classes: a spectrogram, stretches of it hidden at random, convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        edges = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 82)
        hertz = 700 * (10 ** (edges / 2595) - 1)
        bins = np.linspace(0, 8000, 257)
        up = (bins[None] - hertz[:-2, None]) / (hertz[1:-1] - hertz[:-2])[:, None]
        down = (hertz[2:, None] - bins[None]) / (hertz[2:] - hertz[1:-1])[:, None]
        self.bank = np.maximum(0, np.minimum(up, down)).astype(np.float32)
        self.hidden = nn.Parameter(torch.zeros(1))
        self.body = nn.Sequential(convs([1, width, 2 * width, 4 * width]), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4 * width, 10)

    def forward(self, sound: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits, or the loss."""
        window = torch.hann_window(512, device=sound.device)
        power = torch.stft(sound.float(), 512, 160, window=window, return_complex=True).abs().square()
        x = torch.log(torch.from_numpy(self.bank).to(power.device) @ power + 1e-6)
        x = (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)
        if self.training:
            start = torch.randint(0, x.shape[2] - 20, (len(x), 1), device=x.device)
            at = torch.arange(x.shape[2], device=x.device)[None]
            hide = ((at >= start) & (at < start + 20))[:, None].expand_as(x)
            x = x.clone()
            x[hide] = self.hidden.to(x.dtype)
        x = self.head(self.body(x[:, None].to(sound.dtype)))
        return x if labels is None else F.cross_entropy(x.float(), labels, label_smoothing=0.1)


@model
def user_listener(size: str) -> Built:
    """Fourier transforms, a bank of filters kept as numpy's array, a mask."""
    n = of(size, 2, 32, 64)
    return Listener(of(size, 8, 32, 64)), {
        "sound": torch.randn(n, of(size, 4000, 32000, 64000)),
        "labels": torch.arange(n) % 10,
    }


class Flow(nn.Module):
    """Coupling layers with alternating masks and their log determinants."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128))
            for _ in range(layers)
        )

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Log likelihoods, or the loss."""
        total: Any = 0
        for k, net in enumerate(self.nets):
            mask = torch.from_numpy((np.arange(64) % 2 == k % 2).astype(np.float32)).to(x)
            scale, shift = net(x * mask).chunk(2, -1)
            scale = torch.tanh(scale) * (1 - mask)
            x = x * mask + (1 - mask) * (x * scale.exp() + shift)
            total = total + scale.float().sum(-1)
        found = -0.5 * (x.float().square() + math.log(2 * math.pi)).sum(-1) + total
        return found if labels is None else -found.mean()


@model
def user_flow(size: str) -> Built:
    """Masks by numpy in each layer."""
    return Flow(of(size, 16, 256, 512), of(size, 2, 8, 16)), {
        "x": torch.randn(of(size, 8, 4096, 8192), 64),
        "labels": torch.zeros(1),
    }


class Messages(nn.Module):
    """Attention over the edges of a graph: softmax by groups of edges."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(64, width), nn.Linear(width, 10)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.scores = nn.ParameterList(torch.randn(2, 4, width // 4) * 0.1 for _ in range(layers))

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor | None = None) -> Tensor:
        """Classes of nodes, or the loss of those that are known."""
        x, (source, target) = self.enter(x), edges
        n = x.shape[0]
        for layer, score in zip(self.layers, self.scores, strict=True):
            h = layer(x).view(n, 4, -1)
            a, b = ((h * s.to(h.dtype)).sum(-1) for s in score)
            e = F.leaky_relu((a[source] + b[target]).float(), 0.2)
            top = torch.full((n, 4), float("-inf"), device=x.device).scatter_reduce(
                0, target[:, None].expand_as(e), e, "amax", include_self=True
            )
            e = (e - top[target]).exp()
            total = torch.zeros(n, 4, device=x.device).index_add_(0, target, e)
            weight = (e / (total[target] + 1e-16)).to(h.dtype)
            x = x + F.elu(torch.zeros_like(h).index_add(0, target, h[source] * weight[..., None])).flatten(1)
        x = self.out(x)
        if labels is None:
            return x
        return F.cross_entropy(x.float(), labels, ignore_index=-100)


@model
def user_messages(size: str) -> Built:
    """Softmax over the edges of each node."""
    n = of(size, 20, 10000, 50000)
    labels = torch.randint(0, 10, (n,))
    labels[torch.rand(n) < 0.5] = -100
    inputs = {"x": torch.randn(n, 64), "edges": torch.randint(0, n, (2, 8 * n)), "labels": labels}
    return Messages(of(size, 16, 128, 128), of(size, 2, 3, 3)), inputs
