"""Inputs and spellings of scaled dot-product attention that several tests share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

B, H, S, T, D = 2, 4, 6, 10, 8
SCALE = 1 / math.sqrt(D)
LOWEST = torch.finfo(torch.float32).min
INF = float("inf")


def normal(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal numbers that depend on the sizes and the seed only."""
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


def qkv(rows: int = S, columns: int = T, dtype: torch.dtype = torch.float32, heads: int = H) -> tuple[Tensor, ...]:
    """query, key and value with (batch, heads, rows or columns, head size)."""
    sizes = ((B, heads, rows, D), (B, heads, columns, D), (B, heads, columns, D))
    return tuple(normal(*s, dtype=dtype, seed=i) for i, s in enumerate(sizes))


def keeps(*sizes: int) -> Tensor:
    """A boolean mask that leaves something in every row."""
    generator = torch.Generator().manual_seed(7)
    mask = torch.rand(sizes, generator=generator) > 0.4
    mask[..., 0] = True
    return mask


def additive(keep: Tensor, fill: float = -INF, dtype: torch.dtype = torch.float32) -> Tensor:
    """A boolean mask as one to add."""
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, fill)


def attend(scores: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(scores, -1) @ v


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q @ k.transpose(-2, -1) / math.sqrt(D), v)


def by_hand(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def merged(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


def _repeated(x: Tensor, n: int = 2) -> Tensor:
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, n, s, d).reshape(b, h * n, s, d)


def _in_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
    """Blocks of three keys, one after the other, with a running maximum and a running sum."""
    largest, total, out = q.new_full((B, H, S, 1), -1e30), q.new_zeros(B, H, S, 1), torch.zeros_like(q)
    for i in range(0, T, 3):
        scores = (q @ k[:, :, i : i + 3].mT) * SCALE
        if keep is not None:
            scores = scores.masked_fill(~keep[..., i : i + 3], -1e9)
        larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, before = torch.exp(scores - larger), torch.exp(largest - larger)
        total, out = total * before + weights.sum(-1, keepdim=True), out * before + weights @ v[:, :, i : i + 3]
        largest = larger
    return out / total


def _by_their_sums(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keepdim: bool, gate: bool = False
) -> torch.Tensor:
    """Two attentions, weighted by the sums of their exponents."""
    parts = [(q @ key.mT * SCALE, value) for key, value in zip(k.split(4, 2), v.split(4, 2), strict=True)]
    (a, u), (b, w) = parts[0], (torch.cat([s for s, _ in parts[1:]], -1), v[:, :, 4:])
    first, second = a.logsumexp(-1, keepdim), b.logsumexp(-1, keepdim)
    both = torch.logaddexp(first, second)
    weights = torch.exp(first - both), torch.exp(second - both)
    if gate:
        weights = 1 - torch.sigmoid(second - first), torch.sigmoid(second - first)
    c, d = weights if keepdim else (x[..., None] for x in weights)
    return a.softmax(-1) @ u * c + b.softmax(-1) @ w * d


def _projected(x: Tensor) -> Tensor:
    """(batch, length, heads * size) as heads."""
    return x.view(x.shape[0], x.shape[1], H, D).transpose(1, 2)


def _slopes(s: int, t: int) -> Tensor:
    slopes = 2.0 ** -torch.arange(1, H + 1).float()
    distance = torch.arange(t)[None, :] - torch.arange(s)[:, None]
    return slopes[:, None, None] * distance


def _bool_bias(m: Tensor) -> Tensor:
    return torch.zeros(m.shape).masked_fill(m.logical_not(), -INF)


BIAS = additive(keeps(B, 1, S, T))
KEEP = keeps(B, 1, S, T)
SQUARE = keeps(S, T)

# name -> (function, inputs); all are one attention
SPELLINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plain": (plain, qkv()),
    "scale on query": (lambda q, k, v: attend((q * SCALE) @ k.mT, v), qkv()),
    "scale on key": (lambda q, k, v: attend(q @ (k * SCALE).transpose(-2, -1), v), qkv()),
    "no scale": (lambda q, k, v: attend(q @ k.mT, v), qkv()),
    "einsum": (
        lambda q, k, v: torch.einsum("bhst,bhtd->bhsd", (torch.einsum("bhsd,bhtd->bhst", q, k) * SCALE).softmax(-1), v),
        qkv(),
    ),
    "einsum without its result": (
        lambda q, k, v: torch.einsum("...st,...td", (torch.einsum("...sd,...td", q, k) * SCALE).softmax(-1), v), qkv(),
    ),
    "einsum, heads third": (
        lambda q, k, v: torch.einsum("bhqk,bkhd->bqhd", (torch.einsum("bqhd,bkhd->bhqk", q, k) * SCALE).softmax(-1), v),
        tuple(x.transpose(1, 2).contiguous() for x in qkv()),
    ),
    "log_softmax and exp": (lambda q, k, v: (q @ k.mT * SCALE).log_softmax(-1).exp() @ v, qkv()),
    "exp and sum by hand": (lambda q, k, v: by_hand(q @ k.mT * SCALE) @ v, qkv()),
    "exp and sum by hand, nothing to divide by": (
        lambda q, k, v: (e := torch.exp((s := q @ k.mT * SCALE) - s.amax(-1, True))) / (e.sum(-1, True) + 1e-9) @ v,
        qkv(),
    ),
    "exp and sum by hand, and a number": (
        lambda q, k, v: (e := torch.exp(q @ k.mT * SCALE)) / (e.sum(-1, True) + 1e-6) @ v,
        qkv(),
    ),
    "exponents computed twice": (
        lambda q, k, v: (s := (s := q @ k.mT * SCALE) - s.amax(-1, True)).exp() / s.exp().sum(-1, True) @ v,
        qkv(),
    ),
    "powers of two": (
        lambda q, k, v: (e := torch.pow(2.0, (s := q @ k.mT * SCALE) - s.amax(-1, True))) / e.sum(-1, True) @ v,
        qkv(),
    ),
    "exponents and their sum by one product": (
        lambda q, k, v: (
            (o := (q @ k.mT * SCALE).exp() @ torch.cat([v, torch.ones(B, H, T, 1)], -1))[..., :-1] / o[..., -1:]
        ),
        qkv(),
    ),
    "exponents divided by their norm": (
        lambda q, k, v: F.normalize(((s := q @ k.mT * SCALE) - s.amax(-1, True)).exp(), p=1.0, dim=-1) @ v, qkv(),
    ),
    "exponents divided by their norm, their maximum detached": (
        lambda q, k, v: F.normalize(((s := q @ k.mT * SCALE) - s.detach().amax(-1, True)).exp(), p=1.0, dim=-1) @ v,
        qkv(),
    ),
    "exponents times a mask": (
        lambda q, k, v, m: (e := ((s := q @ k.mT * SCALE) - s.amax(-1, True)).exp() * m) / e.sum(-1, True) @ v,
        (*qkv(), KEEP),
    ),
    "exponents filled with zeros": (
        lambda q, k, v, m: (e := (q @ k.mT * SCALE).exp().masked_fill(~m, 0.0)) / e.sum(-1, keepdim=True) @ v,
        (*qkv(), KEEP),
    ),
    "weights times a mask, divided by their sum": (
        lambda q, k, v, m: (w := (q @ k.mT * SCALE).softmax(-1) * m.float()) / w.sum(-1, keepdim=True) @ v,
        (*qkv(), KEEP),
    ),
    "additive mask after scale": (lambda q, k, v, m: attend((q @ k.mT) * SCALE + m, v), (*qkv(), BIAS)),
    "additive mask after div": (lambda q, k, v, m: attend((q @ k.mT) / math.sqrt(D) + m, v), (*qkv(), BIAS)),
    "additive mask first": (lambda q, k, v, m: attend(m + (q * SCALE) @ k.mT, v), (*qkv(), BIAS)),
    "additive mask in place": (lambda q, k, v, m: attend((q @ k.mT).mul_(SCALE).add_(m), v), (*qkv(), BIAS)),
    "additive finite mask": (
        lambda q, k, v, m: attend(q @ k.mT * SCALE + (1.0 - m.float()) * LOWEST, v),
        (*qkv(), KEEP),
    ),
    "masked_fill (S, T)": (lambda q, k, v, m: attend((q @ k.mT * SCALE).masked_fill(~m, -INF), v), (*qkv(), SQUARE)),
    "masked_fill in place": (
        lambda q, k, v, m: attend((q @ k.mT * SCALE).masked_fill_(m == 0, -INF), v),
        (*qkv(), SQUARE.long()),
    ),
    "where (S, T)": (lambda q, k, v, m: attend(torch.where(m, q @ k.mT * SCALE, -INF), v), (*qkv(), SQUARE)),
    "where tensor": (
        lambda q, k, v, m: attend(torch.where(m, q @ k.mT * SCALE, torch.tensor(-INF)), v),
        (*qkv(), KEEP),
    ),
    "where lowest": (lambda q, k, v, m: attend(torch.where(m, q @ k.mT * SCALE, LOWEST), v), (*qkv(), KEEP)),
    "where added": (
        lambda q, k, v, m: attend(q @ k.mT * SCALE + torch.where(m, 0.0, -INF), v),
        (*qkv(), KEEP),
    ),
    "bias from flags": (lambda q, k, v, m: attend(q @ k.mT * SCALE + _bool_bias(m), v), (*qkv(), KEEP)),
    "two masks": (
        lambda q, k, v, a, b: attend((q @ k.mT * SCALE + a).masked_fill(~b, -INF), v),
        (*qkv(), additive(keeps(B, 1, 1, T)), SQUARE),
    ),
    "ALiBi": (lambda q, k, v: attend(q @ k.mT * SCALE + _slopes(q.shape[2], k.shape[2]), v), qkv()),
    "ALiBi given": (lambda q, k, v, m: attend(q @ k.mT * SCALE + m, v), (*qkv(), _slopes(S, T))),
    "3-D bmm": (
        lambda q, k, v: torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)) * SCALE, dim=-1), v),
        tuple(merged(x) for x in qkv()),
    ),
    "3-D bmm of heads": (
        lambda q, k, v: torch.bmm(F.softmax(torch.bmm(merged(q) * SCALE, merged(k).mT), -1), merged(v)).view(q.shape),
        qkv(),
    ),
    "baddbmm with mask": (
        lambda q, k, v, m: torch.bmm(torch.baddbmm(m, q, k.transpose(1, 2), alpha=SCALE).softmax(-1), v),
        (*(merged(x) for x in qkv()), normal(B * H, S, T)),
    ),
    "baddbmm with mask, beta": (
        lambda q, k, v, m: torch.bmm(torch.baddbmm(m, q, k.transpose(1, 2), beta=0.5, alpha=SCALE).softmax(-1), v),
        (*(merged(x) for x in qkv()), normal(B * H, 1, T)),
    ),
    "0-d tensor": (lambda q, k, v: attend(q @ k.mT * torch.tensor(SCALE), v), qkv()),
    "0-d tensor given": (lambda q, k, v, s: attend(q @ k.mT * s, v), (*qkv(), torch.tensor(SCALE))),
    "0-d divisor given": (lambda q, k, v, s: attend(q @ k.mT / s, v), (*qkv(), torch.tensor(1 / SCALE))),
    "one entry given": (lambda q, k, v, s: attend(q @ k.mT * s, v), (*qkv(), torch.tensor([SCALE]))),
    "scale per head": (lambda q, k, v, s: attend(q @ k.mT * s, v), (*qkv(), normal(H, 1, 1).abs())),
    "temperature per row and scale": (
        lambda q, k, v, s: attend(q @ k.mT * SCALE * s, v), (*qkv(), normal(B, 1, S, 1).abs()),
    ),
    "scale after temperature per head": (
        lambda q, k, v, s: attend((q @ k.mT * s) / math.sqrt(D), v), (*qkv(), normal(H, 1, 1).abs()),
    ),
    "two temperatures": (
        lambda q, k, v, s, t: attend(q @ k.mT * s * t, v), (*qkv(), normal(H, 1, 1).abs(), normal(B, 1, 1, 1).abs()),
    ),
    "squared distances": (
        lambda q, k, v: attend(
            -SCALE * ((q**2).sum(-1, keepdim=True) - 2 * q @ k.mT + (k**2).sum(-1)[..., None, :]), v
        ),
        qkv(),
    ),
    "positions in two dims, added one after the other": (
        lambda q, k, v, a, b: attend(
            ((q @ k.mT * SCALE).unflatten(-1, (2, 5)) + (q @ a.mT)[..., None] + (q @ b.mT)[..., None, :]).flatten(-2),
            v,
        ),
        (*qkv(), normal(2, D, seed=3), normal(5, D, seed=4)),
    ),
    "bias minus scores": (lambda q, k, v, m: attend(m - q @ k.mT * SCALE, v), (*qkv(), BIAS)),
    "all-zero mask": (lambda q, k, v: attend(q @ k.mT * SCALE + torch.zeros(S, T), v), qkv()),
    "scores transposed": (lambda q, k, v: attend((k @ q.mT).mT * SCALE, v), qkv()),
    "softmax transposed": (lambda q, k, v: (k @ q.mT * SCALE).softmax(-2).mT @ v, qkv()),
    "result transposed": (lambda q, k, v: (v.mT @ (q @ k.mT * SCALE).softmax(-1).mT).mT, qkv()),
    "softmax in float32": (
        lambda q, k, v: F.softmax(q @ k.mT * SCALE, dim=-1, dtype=torch.float32).to(q.dtype) @ v,
        qkv(),
    ),
    "contiguous and clone": (
        lambda q, k, v: attend((q.contiguous() @ k.mT.contiguous()).clone() * SCALE, v.clone()),
        qkv(),
    ),
    "projections": (
        lambda q, k, v: plain(_projected(q), _projected(k), _projected(v)).transpose(1, 2).reshape(B, S, H * D),
        (normal(B, S, H * D), normal(B, T, H * D, seed=1), normal(B, T, H * D, seed=2)),
    ),
    "heads merged, mask over heads": (
        lambda q, k, v, m: torch.bmm(
            ((merged(q) @ merged(k).mT * SCALE).view(B, H, S, T) + m).view(B * H, S, T).softmax(-1), merged(v)
        ),
        (*qkv(), BIAS),
    ),
    "2-D": (plain, (normal(S, D), normal(T, D, seed=1), normal(T, D, seed=2))),
    "5-D": (
        lambda q, k, v: plain(q.unflatten(0, (1, B)), k.unflatten(0, (1, B)), v.unflatten(0, (1, B))),
        qkv(),
    ),
    "GQA repeat_interleave": (
        lambda q, k, v: plain(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)),
        (qkv()[0], *qkv(heads=H // 2)[1:]),
    ),
    "GQA expand": (lambda q, k, v: plain(q, _repeated(k), _repeated(v)), (qkv()[0], *qkv(heads=H // 2)[1:])),
    "GQA grouped": (
        lambda q, k, v: plain(q.unflatten(1, (H // 2, 2)), k.unsqueeze(2), v.unsqueeze(2)).flatten(1, 2),
        (qkv()[0], *qkv(heads=H // 2)[1:]),
    ),
    "MQA broadcast": (plain, (qkv()[0], *qkv(heads=1)[1:])),
    "MQA einsum": (
        lambda q, k, v: torch.einsum(
            "bhst,btd->bshd", (torch.einsum("bshd,btd->bhst", q, k) * SCALE).softmax(-1), v
        ),
        (normal(B, S, H, D), normal(B, T, D, seed=1), normal(B, T, D, seed=2)),
    ),
    "rows of heads that share keys": (
        lambda q, k, v, m: (
            torch.bmm(
                ((q.flatten(1, 2) @ k.mT).view(*q.shape[:3], -1) * SCALE + m).softmax(-1).flatten(1, 2), v
            ).view(q.shape)
        ),
        (qkv()[0], normal(B, T, D, seed=1), normal(B, T, D, seed=2), BIAS),
    ),
    "heads of rows that share keys": (
        lambda q, k, v, m: (
            torch.bmm(
                torch.where(m, (q.flatten(1, 2) @ k.mT).view(*q.shape[:3], -1), LOWEST).softmax(-1).flatten(1, 2), v
            ).view(q.shape)
        ),
        (normal(B, S, H, D), normal(B, T, D, seed=1), normal(B, T, D, seed=2), keeps(B, S, 1, T)),
    ),
    "queries that the batch shares": (
        lambda q, k, v: torch.einsum("bst,btd->bsd", (torch.einsum("sd,btd->bst", q, k) * SCALE).softmax(-1), v),
        (normal(S, D), normal(B, T, D, seed=1), normal(B, T, D, seed=2)),
    ),
    "one query of each head that the batch shares": (
        lambda q, k, v: torch.einsum("bht,bthd->bhd", (torch.einsum("hd,bthd->bht", q, k) * SCALE).softmax(-1), v),
        (normal(H, D), normal(B, T, H, D, seed=1), normal(B, T, H, D, seed=2)),
    ),
    "queries that are a layer's weight": (
        lambda x, w, b, m: F.linear(torch.tanh(x), w, b).masked_fill(~m[..., None], -1e9).softmax(1).mT @ x,
        (normal(B, T, D), normal(S, D, seed=1), normal(S, seed=2), keeps(B, T)),
    ),
    "values that are a layer's weight": (
        lambda x, k, v, b: F.linear(F.linear(x, k).softmax(-1), v.T, b),
        (normal(B, T, D), normal(S, D, seed=1), normal(S, D, seed=2), normal(D, seed=3)),
    ),
    "weights that are a layer's weight": (
        lambda q, k, v: F.linear(v.T, (q @ k.T * SCALE).softmax(-1)),
        (normal(S, D), normal(T, D, seed=1), normal(T, D, seed=2)),
    ),
    "query that is a vector, masked": (
        lambda q, k, v, m: (torch.where(m, torch.tanh(k) @ q, -1e9).softmax(-1)[..., None] * v).sum(1),
        (normal(D), normal(B, T, D, seed=1), normal(B, T, D, seed=2), keeps(B, T)),
    ),
    "query on the right": (
        lambda q, k, v, m: (torch.bmm(k, q[..., None]) * SCALE + m[..., None]).softmax(1).mT.bmm(v)[:, 0],
        (normal(B, D), normal(B, T, D, seed=1), normal(B, T, D, seed=2), additive(keeps(B, T))),
    ),
    "one row": (plain, qkv(rows=1)),
    "one column": (plain, qkv(columns=1)),
    "one row, masked": (
        lambda q, k, v, m: attend(q @ k.mT * SCALE + m, v),
        (*qkv(rows=1), additive(keeps(B, 1, 1, T))),
    ),
    "one query, by products and sums": (
        lambda q, k, v: (((q * k).sum(-1, keepdim=True) * SCALE).softmax(2) * v).sum(2), qkv(rows=1),
    ),
    "one query without its dim, by products and sums": (
        lambda q, k, v: (((q[:, :, None] * k).sum(-1) * SCALE).softmax(-1)[..., None] * v).sum(-2),
        (normal(B, H, D), *qkv()[1:]),
    ),
    "queries and keys of images": (
        lambda q, k, v: torch.einsum(
            "bhwij,bcij->bchw",
            (torch.einsum("bchw,bcij->bhwij", q, k) * SCALE).flatten(3).softmax(-1).unflatten(-1, (2, 5)), v,
        ),
        (normal(B, D, 3, 2), normal(B, D, 2, 5, seed=1), normal(B, D, 2, 5, seed=2)),
    ),
    "cap by sigmoid": (
        lambda q, k, v: attend(5 * (2 * torch.sigmoid(q @ k.mT * SCALE * (2 / 5)) - 1), v), qkv(),
    ),
    "corrected for a sink afterwards": (
        lambda q, k, v, s: attend(w := q @ k.mT * SCALE, v) * torch.sigmoid(w.logsumexp(-1, True) - s[:, None, None]),
        (*qkv(), normal(H)),
    ),
    "weights corrected for a sink": (
        lambda q, k, v, s: (w := q @ k.mT).softmax(-1) * torch.sigmoid(w.logsumexp(-1)[..., None] - s) @ v,
        (*qkv(), normal(1, H, 1, 1)),
    ),
    "blocks of keys, one after the other": (_in_blocks, qkv()),
    "blocks of keys, masked": (_in_blocks, (*qkv(), KEEP)),
    "two attentions by their sums": (lambda q, k, v: _by_their_sums(q, k, v, keepdim=True), qkv()),
    "two attentions by the logarithms of their sums": (lambda q, k, v: _by_their_sums(q, k, v, keepdim=False), qkv()),
    "two attentions by a gate of their sums": (lambda q, k, v: _by_their_sums(q, k, v, keepdim=True, gate=True), qkv()),
    "sink added to the logarithm of the sum": (
        lambda q, k, v, s: ((w := q @ k.mT) - torch.logaddexp(w.logsumexp(-1, True), s)).exp() @ v,
        (*qkv(), normal(1, H, 1, 1)),
    ),
    "sink beside the scores of the logarithm": (
        lambda q, k, v, s: ((w := q @ k.mT) - torch.cat([w, s.expand(B, H, S, 1)], -1).logsumexp(-1, True)).exp() @ v,
        (*qkv(), normal(1, H, 1, 1)),
    ),
    "product of several": (
        lambda q, k, v: torch.linalg.multi_dot([(q @ k.T * SCALE).softmax(-1), v]),
        (normal(S, D), normal(T, D, seed=1), normal(T, D, seed=2)),
    ),
    "dropout in eval": (lambda q, k, v: F.dropout((q @ k.mT * SCALE).softmax(-1), 0.5, False) @ v, qkv()),
    "dropout of 0": (lambda q, k, v: F.dropout((q @ k.mT * SCALE).softmax(-1), 0.0, True) @ v, qkv()),
    "value of another width": (plain, (*qkv()[:2], normal(B, H, T, D + 4))),
}  # fmt: skip
