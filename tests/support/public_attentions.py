"""Attention as public code spells it: models, reference implementations and courses, cut down to the attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .attentions import INF, KEEP, LOWEST, SCALE, B, D, H, S, T, additive, keeps, merged, normal, qkv

TRIANGLE = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()


def gpt_neox(q, k, v, keep):
    b, h, s, d = q.shape
    t = k.shape[2]
    scores = torch.zeros(b * h, s, t, dtype=q.dtype)
    scores = torch.baddbmm(scores, q.view(b * h, s, d), k.view(b * h, t, d).mT, beta=1.0, alpha=1 / math.sqrt(d))
    scores = torch.where(keep, scores.view(b, h, s, t), torch.tensor(LOWEST))
    return F.softmax(scores, -1) @ v


def gpt_j(q, k, v, triangle):
    w = q @ k.mT
    w = torch.where(triangle[:, :, k.shape[2] - q.shape[2] : k.shape[2], : k.shape[2]], w, torch.tensor(LOWEST))
    w = w / torch.sqrt(torch.tensor(D, dtype=torch.float32))
    return F.softmax(w, -1).to(v.dtype) @ v


def informer(q, k, v):
    scores = torch.einsum("blhe,bshe->bhls", q, k)
    scores.masked_fill_(torch.triu(torch.ones([B, 1, S, S], dtype=torch.bool), diagonal=1), -INF)
    return torch.einsum("bhls,bshd->blhd", torch.softmax(1.0 / math.sqrt(D) * scores, -1), v)


def widened(x):
    return x.float() if x.dtype.itemsize == 2 else x


def chatglm(q, k, v, drop):
    s, b, h, d = q.shape
    t, coefficient = k.shape[0], 3.0
    q, k = q.view(s, b * h, -1), k.view(t, b * h, -1)
    empty = torch.zeros(1, 1, 1, dtype=q.dtype)
    scores = torch.baddbmm(empty, (q / (math.sqrt(d) * coefficient)).transpose(0, 1), k.permute(1, 2, 0), beta=0.0)
    scores = (widened(scores.view(b, h, s, t)) * coefficient).masked_fill(drop, -10000.0)
    weights = F.softmax(scores, -1).type_as(v).view(b * h, s, t)
    return (
        torch.bmm(weights, v.view(t, b * h, -1).transpose(0, 1)).view(b, h, s, d).permute(2, 0, 1, 3).reshape(s, b, -1)
    )


def transformer_xl(q, k, v, u, w, r, drop):
    scores = (torch.einsum("ibnd,jbnd->ijbn", q + u, k) + torch.einsum("ibnd,jnd->ijbn", q + w, r)) * SCALE
    scores = widened(scores).masked_fill(drop[:, :, None, None], -1e30).type_as(scores)
    return torch.einsum("ijbn,jbnd->ibnd", F.softmax(scores, dim=1), v)


def relative_key_query(q, k, v, r):
    by_query = torch.einsum("bhld,lrd->bhlr", q, r)
    by_key = torch.einsum("bhrd,lrd->bhlr", k, r)
    return ((q @ k.mT + by_query + by_key) / math.sqrt(D)).softmax(-1) @ v


def gpt_oss(q, k, v, sinks):
    scores = torch.einsum("qhmd,khmd->hmqk", q, k[:, :, None].expand(-1, -1, 2, -1)) * SCALE
    scores = scores + torch.triu(scores.new_full((S, S), -INF), 1)[None, None]
    scores = torch.cat([scores, sinks.reshape(2, 2, 1, 1).expand(-1, -1, S, -1)], -1)
    return torch.einsum("hmqk,khmd->qhmd", torch.softmax(scores, -1)[..., :-1], v[:, :, None].expand(-1, -1, 2, -1))


def dive_into(q, k, v, lengths):
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    rows = scores.reshape(-1, scores.shape[-1]).clone()
    rows[~(torch.arange(rows.shape[1])[None, :] < torch.repeat_interleave(lengths, q.shape[1])[:, None])] = -1e6
    return torch.bmm(F.softmax(rows.reshape(scores.shape), -1), v)


def written(q, k, v, drop):
    scores = q @ k.mT * SCALE
    scores[drop.expand_as(scores)] = -INF
    return torch.softmax(scores, -1) @ v


def triangle_like(q, k, v):
    scores = q @ k.mT * SCALE
    return torch.softmax(scores + torch.full_like(scores, -INF).triu(1), -1) @ v


def base_two(q, k, v):
    scores = q @ k.mT * (SCALE * math.log2(math.e))
    e = torch.exp2(scores - scores.amax(-1, True))
    return e @ v / e.sum(-1, True)


def summed_by_einsum(q, k, v):
    scores = q @ k.mT * SCALE
    e = torch.exp(scores - scores.amax(-1, True))
    return torch.einsum("bhst,bhtd->bhsd", e, v) / torch.einsum("bhst->bhs", e)[..., None]


def every_product_in_memory(q, k, v):
    weights = torch.softmax((q[:, :, :, None] * k[:, :, None]).sum(-1) / math.sqrt(D), -1)
    return (weights[..., None] * v[:, :, None]).sum(-2)


def window(q, k, v):
    i, j = torch.arange(S).view(-1, 1), torch.arange(S)
    return torch.softmax(q @ k.mT * SCALE + ((j > i) | (i - j >= 3)).float() * -1e9, -1) @ v


def prefix(q, k, v, lengths):
    at = torch.arange(S)
    keep = (at[None, :] <= at[:, None])[None] | (at[None, None, :] < lengths[:, None, None])
    return torch.softmax((q @ k.mT * SCALE).masked_fill(keep[:, None].logical_not(), -INF), -1) @ v


def swin_2(q, k, v, scale, bias):
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * torch.clamp(scale, max=math.log(100.0)).exp()
    return (scores + 16 * torch.sigmoid(bias)).softmax(-1) @ v


def triangular(q, k, v, gate, bias, keep):
    scores = (q * SCALE) @ k.mT + (1e9 * (keep - 1))[..., None, None, :] + bias.permute(2, 0, 1).unsqueeze(0)
    out = (torch.softmax(scores, -1) @ v).transpose(-2, -3)
    return (out * torch.sigmoid(gate)).flatten(-2)


def latent(qc, qr, c, kr, up):
    k, v = (torch.einsum("btc,hdc->bhtd", c, w) for w in up.unbind(0))
    scores = (torch.einsum("bshd,bhtd->bsht", qc, k) + torch.einsum("bshr,btr->bsht", qr, kr)) * SCALE
    return torch.einsum("bsht,bhtd->bshd", scores.softmax(-1, dtype=torch.float32).type_as(qc), v)


def lengthwise(*seeds: int) -> tuple[torch.Tensor, ...]:
    """(length, batch, heads, size) tensors."""
    return tuple(normal(n, B, H, D, seed=n) for n in seeds)


def three_rows(seed: int) -> torch.Tensor:
    return normal(B, 3, H, S, D, seed=seed)


PUBLIC: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "GPT-NeoX": (gpt_neox, (*qkv(), TRIANGLE[:, :, :S, :T])),
    "GPT-J": (gpt_j, (*qkv(), TRIANGLE)),
    "Informer": (informer, tuple(x.transpose(1, 2).contiguous() for x in qkv(S, S))),
    "ChatGLM": (chatglm, (*lengthwise(S, T), normal(T, B, H, D), ~keeps(B, 1, S, T))),
    "Transformer-XL": (
        transformer_xl,
        (*lengthwise(S, T), normal(T, B, H, D), normal(H, D), normal(H, D, seed=1), normal(T, H, D), ~keeps(S, T)),
    ),
    "BERT, relative key and query": (relative_key_query, (*qkv(S, S), normal(S, S, D))),
    "gpt-oss": (gpt_oss, (normal(S, 2, 2, D), normal(S, 2, D), normal(S, 2, D, seed=1), normal(H))),
    "Dive into Deep Learning": (dive_into, (*(x[:, 0] for x in qkv()), torch.tensor([3, 7]))),
    "Swin 2": (swin_2, (*qkv(S, S), normal(H, 1, 1), normal(H, S, S))),
    "AlphaFold": (
        triangular,
        (*map(three_rows, range(3)), normal(B, 3, S, H, D), normal(S, S, H), keeps(B, 3, S) * 1),
    ),
    "DeepSeek": (
        latent,
        (normal(B, S, H, D), normal(B, S, H, 4), normal(B, T, 5), normal(B, T, 4), normal(2, H, D, 5)),
    ),
    "sliding window": (window, qkv(S, S)),
    "prefix LM": (prefix, (*qkv(S, S), torch.tensor([2, 4]))),
    "mask written": (written, (*qkv(), ~KEEP)),
    "mask like scores": (triangle_like, qkv(S, S)),
    "powers of two": (base_two, qkv()),
    "sum by einsum": (summed_by_einsum, qkv()),
    "every product in memory": (every_product_in_memory, qkv()),
    "temperature per head": (lambda q, k, v, t: torch.softmax(q @ k.mT / t, -1) @ v, (*qkv(), normal(H, 1, 1).exp())),
    "zero beside": (lambda q, k, v: torch.softmax(F.pad(q @ k.mT * SCALE, (0, 1)), -1)[..., :-1] @ v, qkv()),
    "addcmul": (
        lambda q, k, v, m: torch.softmax(torch.addcmul(q @ k.mT * SCALE, m, torch.tensor(-1e9)), -1) @ v,
        (*qkv(), (~KEEP).float()),
    ),
    "addmm": (
        lambda q, k, v, m: torch.softmax(torch.addmm(m, q, k.t(), alpha=SCALE), -1).mm(v),
        (*(x[0, 0] for x in qkv()), normal(S, T)),
    ),
    "inner": (lambda q, k, v: torch.softmax(torch.inner(q, k).multiply(SCALE), 1).mm(v), tuple(x[0, 0] for x in qkv())),
    "tensordot": (
        lambda q, k, v: torch.softmax(torch.tensordot(q, k, dims=([1], [1])) * SCALE, -1).mm(v),
        tuple(x[0, 0] for x in qkv()),
    ),
    "bilinear": (
        lambda q, k, v, w: torch.softmax(torch.einsum("bqd,de,bke->bqk", q, w, k), -1) @ v,
        (*(merged(x) for x in qkv()), normal(D, D)),
    ),
    "output by einsum": (
        lambda q, k, v, w: torch.einsum("bhqk,bkhd,hdo->bqo", torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1), v, w),
        (*(x.transpose(1, 2).contiguous() for x in qkv()), normal(H, D, 7)),
    ),
    "scale after mask": (
        lambda q, k, v, m, a: torch.softmax((q @ k.mT).masked_fill(m, -INF) / math.sqrt(D) + a, -1) @ v,
        (*qkv(), ~KEEP, additive(KEEP, -5.0)),
    ),
}  # fmt: skip
