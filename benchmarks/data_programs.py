"""Operations on data between the layers of models: the other half of the programs of `operators.py --table models`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from model_programs import LAST, B, H, P, images
from operator_programs import I, Program, R


def rotary(x, cos, sin):
    """A rotary embedding by halves."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def scan(x, a):
    """A gated scan in logarithms."""
    total = a.cumsum(1)
    return (x * (-total).exp()).cumsum(1) * total.exp()


def gate(x):
    """Half of the columns, let through by the other half."""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


PROGRAMS: dict[str, dict[str, Program]] = {
    "indexing": {
        "embedding": (lambda w, i: F.embedding(i, w), lambda: [R(30522, 768), I(30522, 16, 128)]),
        "embedding of bf16": (lambda w, i: F.embedding(i, w), lambda: [B(30522, 768), I(30522, 16, 128)]),
        "three embeddings": (
            lambda w, u, v, i, j: F.embedding(i, w) + F.embedding(j, u) + v[None, :128],
            lambda: [R(30522, 768), R(2, 768), R(512, 768), I(30522, 16, 128), I(2, 16, 128)],
        ),
        "embedding of 16 wide": (lambda w, i: F.embedding(i, w), lambda: [R(100000, 16), I(100000, 4096, 26)]),
        "embedding bag, mean": (
            lambda w, i: F.embedding_bag(i, w, mode="mean"),
            lambda: [R(100000, 64), I(100000, 2048, 20)],
        ),
        "embedding bag, offsets": (
            lambda w, i, o: F.embedding_bag(i, w, o, mode="sum"),
            lambda: [R(100000, 64), I(100000, 40960), torch.arange(0, 40960, 20)],
        ),
        "gather of tokens": (
            lambda x, i: x.gather(1, i[..., None].expand(-1, -1, 768)),
            lambda: [R(16, 197, 768), I(197, 16, 49)],
        ),
        "gather of a last dim": (lambda x, i: x.gather(-1, i), lambda: [R(1024, 1024), I(1024, 1024, 512)]),
        "log probabilities of labels": (
            lambda x, i: x.log_softmax(-1).gather(-1, i[..., None]).squeeze(-1),
            lambda: [R(256, 30522), I(30522, 256)],
        ),
        "neighbours": (lambda x, s, d: x[s] - x[d], lambda: [R(10000, 64), I(10000, 100000), I(10000, 100000)]),
        "messages": (
            lambda x, s, d: torch.zeros_like(x).index_add(0, d, x[s]),
            lambda: [R(10000, 64), I(10000, 50000), I(10000, 50000)],
        ),
        "means of messages": (
            lambda x, i: torch.zeros(10000, 64).scatter_reduce(0, i[:, None].expand(-1, 64), x, "mean"),
            lambda: [R(50000, 64), I(10000, 50000)],
        ),
        "largest messages": (
            lambda x, i: torch.full((10000, 64), -1e9).scatter_reduce(0, i[:, None].expand(-1, 64), x, "amax"),
            lambda: [R(50000, 64), I(10000, 50000)],
        ),
        "one hot": (lambda i: F.one_hot(i, 64).float(), lambda: [I(64, 4096)]),
        "one hot by comparing": (lambda i: (i[..., None] == torch.arange(64)).float(), lambda: [I(64, 16384)]),
        "scatter of ones": (
            lambda i: torch.zeros(4096, 512).scatter(1, i, 1.0),
            lambda: [I(512, 4096, 8)],
        ),
        "cache": (lambda c, i, x: c.index_copy(2, i, x), lambda: [R(4, 12, 512, 64), I(512, 1), R(4, 12, 1, 64)]),
        "relative positions": (
            lambda t, i: t[i.view(-1)].view(49, 49, 12).permute(2, 0, 1)[None],
            lambda: [R(169, 12), I(169, 49, 49)],
        ),
        "codes of rows": (lambda x, i: x[:, i], lambda: [R(512, 1024), I(1024, 2048)]),
        "masked": (lambda x, m: torch.where(m[..., None], x, 0.0), lambda: [R(16, 512, 768), R(16, 512) > 0]),
        "top 2 of experts": (lambda x: torch.topk(x.softmax(-1), 2), lambda: [R(8192, 8)]),
        "top 50": (lambda x: torch.topk(x, 50), lambda: [R(64, 32000)]),
        "sort": (lambda x: x.sort(-1)[0], lambda: [R(256, 2048)]),
        "sort of a first dim": (lambda x: x.sort(0)[0], lambda: [R(2048, 256)]),
        "argsort of ints": (lambda x: x.argsort(-1), lambda: [I(10000, 64, 4096)]),
        "buckets": (torch.bucketize, lambda: [R(512, 2048), torch.linspace(-3, 3, 128)]),
        "lookup of lookup": (lambda a, b, i: a[b[i]], lambda: [R(4096), I(4096, 8192), I(8192, 500000)]),
    },
    "scans": {
        "cumsum of rows": (lambda x: x.cumsum(-1), lambda: [R(1024, 1024)]),
        "cumsum of steps": (lambda x: x.cumsum(1), lambda: [R(8, 512, 512)]),
        "cumsum of ints": (lambda x: (x != 0).long().cumsum(1), lambda: [I(2, 512, 512)]),
        "cumsum of bf16": (lambda x: x.cumsum(-1), lambda: [B(1024, 1024)]),
        "cumprod": (lambda x: x.sigmoid().cumprod(-1), lambda: [R(4096, 64)]),
        "logcumsumexp": (lambda x: x.logcumsumexp(-1), lambda: [R(1024, 512)]),
        "logcumsumexp of steps": (lambda x: x.logcumsumexp(1), lambda: [R(8, 256, 256)]),
        "cummax": (lambda x: x.cummax(-1)[0], lambda: [R(1024, 512)]),
        "gated scan": (scan, lambda: [R(8, 256, 256), P(8, 256, 256) * 0.01]),
        "positions of a mask": (
            lambda m: (m.cumsum(1) * m + 1).long(),
            lambda: [(R(64, 4096) > 0).int()],
        ),
        "reversed cumsum": (lambda x: x.flip(-1).cumsum(-1).flip(-1), lambda: [R(1024, 1024)]),
    },
    "movement": {
        "cat of heads": (lambda x, y: torch.cat([x, y], 2), lambda: [R(4, 12, 512, 64), R(4, 12, 16, 64)]),
        "cat of channels": (lambda x, y: torch.cat([x, y], 1), lambda: [images(), images()]),
        "cat of channels, last": (
            lambda x, y: torch.cat([x, y], 1),
            lambda: [images().to(memory_format=LAST), images().to(memory_format=LAST)],
        ),
        "cat of 26 features": (lambda *x: torch.cat(x, 1), lambda: [R(4096, 16) for _ in range(26)]),
        "stack of 4": (lambda *x: torch.stack(x, -1), lambda: [R(512, 512) for _ in range(4)]),
        "stack of 2, first": (lambda x, y: torch.stack([x, y], 1), lambda: [images(), images()]),
        "split and add": (lambda x: sum(x.split(192, -1)), lambda: [R(2048, 768)]),
        "chunk gate": (gate, lambda: [R(1024, 4096)]),
        "heads": (
            lambda x: x.view(16, 128, 12, 64).transpose(1, 2).contiguous(),
            lambda: [R(16, 128, 768)],
        ),
        "heads back": (
            lambda x: x.transpose(1, 2).reshape(16, 128, 768).clone(),
            lambda: [R(16, 12, 128, 64)],
        ),
        "transpose": (lambda x: x.transpose(1, 2).contiguous(), lambda: [R(16, 512, 256)]),
        "transpose of bf16": (lambda x: x.transpose(1, 2).contiguous(), lambda: [B(16, 512, 256)]),
        "transpose of int64": (lambda x: x.t().contiguous(), lambda: [I(9, 1024, 1024)]),
        "transpose of bool": (lambda x: (x > 0).t().contiguous(), lambda: [R(2048, 1024)]),
        "to channels last": (lambda x: (x * 2).contiguous(memory_format=LAST), lambda: [images()]),
        "to channels first": (lambda x: (x * 2).contiguous(), lambda: [images().to(memory_format=LAST)]),
        "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda: [R(4, 256, 28, 28)]),
        "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), lambda: [images()]),
        "channel shuffle": (
            lambda x: x.view(8, 2, 32, 56, 56).transpose(1, 2).reshape(8, 64, 56, 56) + 0,
            lambda: [images()],
        ),
        "patches": (
            lambda x: x.reshape(8, 3, 14, 16, 14, 16).permute(0, 2, 4, 3, 5, 1).reshape(8, 196, 768),
            lambda: [R(8, 3, 224, 224)],
        ),
        "windows": (
            lambda x: x.view(4, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96) + 0,
            lambda: [R(4, 56, 56, 96)],
        ),
        "shifted windows": (
            lambda x: (
                torch.roll(x, (-3, -3), (1, 2)).view(4, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96)
            ),
            lambda: [R(4, 56, 56, 96)],
        ),
        "merged patches": (
            lambda x: torch.cat([x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]], -1),
            lambda: [R(4, 56, 56, 96)],
        ),
        "padding": (lambda x: F.pad(x, (1, 1, 1, 1)), lambda: [images()]),
        "padding by reflection": (lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), lambda: [images()]),
        "padding by edges": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), lambda: [images()]),
        "circular padding": (lambda x: F.pad(x, (2, 2, 2, 2), mode="circular"), lambda: [images()]),
        "padding of steps": (lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1], lambda: [R(16, 512, 768)]),
        "token shift": (
            lambda x, m: x * m + F.pad(x, (0, 0, 1, -1)) * (1 - m),
            lambda: [R(8, 512, 768), R(768)],
        ),
        "roll": (lambda x: torch.roll(x, 1, 1), lambda: [R(16, 512, 768)]),
        "flip of images": (lambda x: x.flip(-1), lambda: [images()]),
        "flip of steps": (lambda x: x.flip(1), lambda: [R(16, 512, 256)]),
        "rotary": (rotary, lambda: [R(4, 12, 512, 64), R(512, 64), R(512, 64)]),
        "rotary of bf16": (rotary, lambda: [B(4, 12, 512, 64), B(512, 64), B(512, 64)]),
        "interleaved rotary": (
            lambda x, c, s: torch.stack(
                [x[..., ::2] * c - x[..., 1::2] * s, x[..., ::2] * s + x[..., 1::2] * c], -1
            ).flatten(-2),
            lambda: [R(4, 12, 512, 64), R(512, 32), R(512, 32)],
        ),
        "repeated heads": (
            lambda x: x[:, :, None].expand(4, 4, 3, 512, 64).reshape(4, 12, 512, 64),
            lambda: [R(4, 4, 512, 64)],
        ),
        "repeat interleave": (lambda x: x.repeat_interleave(3, 1), lambda: [R(4, 4, 512, 64)]),
        "frames": (lambda x: x.unfold(-1, 400, 160) * 2, lambda: [R(4, 32000)]),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), lambda: [R(4, 64, 56, 56)]),
        "fold": (lambda x: F.fold(x, (56, 56), 2, stride=2), lambda: [R(4, 256, 784)]),
        "tril mask": (lambda x: x.masked_fill(torch.ones(512, 512).triu(1).bool(), -1e9), lambda: [R(12, 512, 512)]),
        "diagonals": (
            lambda x: F.pad(x, (0, 1)).flatten(-2)[..., :-512].view(12, 512, 512) * 2,
            lambda: [R(12, 512, 512)],
        ),
        "complex rotary": (
            lambda x, f: torch.view_as_real(torch.view_as_complex(x.view(4, 512, 12, 32, 2)) * f).flatten(3),
            lambda: [R(4, 512, 12, 64), torch.polar(torch.ones(512, 1, 32), R(512, 1, 32))],
        ),
    },
    "elementwise": {
        "GELU": (F.gelu, lambda: [R(1024, 3072)]),
        "GELU by tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda: [R(1024, 3072)]),
        "GELU of bf16": (F.gelu, lambda: [B(1024, 3072)]),
        "GELU by tanh of bf16": (lambda x: F.gelu(x, approximate="tanh"), lambda: [B(1024, 3072)]),
        "SiLU of bf16": (F.silu, lambda: [B(1024, 3072)]),
        "gate of bf16": (lambda x, y: F.silu(x) * y, lambda: [B(1024, 3072), B(1024, 3072)]),
        "gate of half": (lambda x, y: F.silu(x) * y, lambda: [H(1024, 3072), H(1024, 3072)]),
        "residual of bf16": (lambda x, y: x + y, lambda: [B(2048, 768), B(2048, 768)]),
        "GELU of half": (F.gelu, lambda: [H(1024, 3072)]),
        "to bf16": (torch.Tensor.bfloat16, lambda: [R(1024, 3072)]),
        "from bf16": (lambda x: x.float(), lambda: [B(1024, 3072)]),
        "mish": (F.mish, lambda: [images()]),
        "hard swish": (F.hardswish, lambda: [images()]),
        "softplus": (F.softplus, lambda: [R(8, 512, 768)]),
        "ELU": (F.elu, lambda: [images()]),
        "SELU": (F.selu, lambda: [images()]),
        "leaky": (lambda x: F.leaky_relu(x, 0.2), lambda: [images()]),
        "PReLU": (F.prelu, lambda: [images(), R(64)]),
        "snake": (lambda x, a: x + (a * x).sin().pow(2) / a, lambda: [R(8, 64, 4096), P(64, 1)]),
        "squared ReLU": (lambda x: F.relu(x).square(), lambda: [R(1024, 3072)]),
        "clipped": (lambda x: x.clamp(0, 6) / 6, lambda: [images()]),
        "log1p, exp": (lambda x: torch.log1p(x.exp()), lambda: [R(1024, 1024)]),
        "sin and cos": (lambda x: torch.cat([x.sin(), x.cos()], -1), lambda: [R(4096, 128)]),
        "power of 0.7": (lambda x: x**0.7, lambda: [P(1024, 512)]),
        "lgamma": (torch.lgamma, lambda: [P(512, 512) * 3]),
        "digamma": (torch.digamma, lambda: [P(512, 512) * 3]),
        "erfc": (torch.erfc, lambda: [R(512, 512)]),
        "atan2": (torch.atan2, lambda: [R(512, 512), R(512, 512)]),
        "i0": (torch.i0, lambda: [R(512, 512)]),
        "logit": (lambda x: torch.logit(x, 1e-6), lambda: [torch.rand(512, 512)]),
        "dequantized": (lambda x, s: x.float() * s, lambda: [(R(4096, 1024) * 30).to(torch.int8), P(4096, 1)]),
        "dequantized to bf16": (
            lambda x, s: x.bfloat16() * s,
            lambda: [(R(4096, 1024) * 30).to(torch.int8), P(4096, 1).bfloat16()],
        ),
        "quantized": (
            lambda x: (x * 20).round().clamp(-128, 127).to(torch.int8),
            lambda: [R(2048, 1024)],
        ),
        "quantized by rows": (
            lambda x: (x / (x.abs().amax(-1, keepdim=True) / 127)).round().to(torch.int8),
            lambda: [R(2048, 1024)],
        ),
        "nibbles": (
            lambda x: torch.stack([x & 15, x >> 4], -1).flatten(-2).float() - 8,
            lambda: [I(255, 2048, 512).to(torch.uint8)],
        ),
        "pixels": (lambda x: (x.float() / 255 - 0.45) / 0.22, lambda: [I(255, 4, 3, 224, 224).to(torch.uint8)]),
        "bits": (lambda x: ((x >> 3) ^ x) & 0xFF, lambda: [I(1 << 30, 1024, 1024)]),
        "hash": (lambda x: (x * 2654435761 + 12345) % 100000, lambda: [I(1 << 30, 512, 1024)]),
        "remainder of ints": (lambda x: x % 7 + x // 7, lambda: [I(1 << 20, 512, 512)]),
        "int32": (lambda x, y: x * 3 + y.clamp(0, 9), lambda: [I(99, 1024, 1024).int(), I(99, 1024, 1024).int()]),
        "masks": (
            lambda a, b: ((a != 0) & (b[:, None] == 1)).float().masked_fill(a == 3, -1e4),
            lambda: [I(5, 64, 128, 128), I(2, 64, 128)],
        ),
        "attention mask": (
            lambda m: (1.0 - m[:, None, None, :].float()).expand(-1, 1, 512, 512) * -1e9,
            lambda: [I(2, 8, 512)],
        ),
        "ALiBi": (
            lambda s: s[:, None, None] * (torch.arange(512)[None, :] - torch.arange(512)[:, None]).abs().neg(),
            lambda: [R(12)],
        ),
        "chosen": (torch.where, lambda: [R(512, 2048) > 0, R(512, 2048), R(512, 2048)]),
        "lerp": (torch.lerp, lambda: [R(8, 512, 512), R(8, 512, 512), R(8, 1, 512)]),
        "broadcast of distances": (
            lambda x, y: (x[:, None] - y[None]).square().sum(-1),
            lambda: [R(512, 16), R(512, 16)],
        ),
        "Gaussians": (lambda d, c: torch.exp(-10 * (d[..., None] - c) ** 2), lambda: [P(20000), R(50)]),
        "quotients of int and float": (lambda x, y: x / y, lambda: [I(99, 512, 512), P(512, 512)]),
        "float64": (lambda x: (x * 2).tanh() + 1, lambda: [R(512, 512).double()]),
    },
    "random": {
        "dropout": (lambda x: F.dropout(x, 0.1, True), lambda: [R(2048, 768)]),
        "dropout of bf16": (lambda x: F.dropout(x, 0.1, True), lambda: [B(2048, 768)]),
        "dropout of channels": (lambda x: F.dropout2d(x, 0.1, True), lambda: [images()]),
        "rand": (torch.rand_like, lambda: [R(1024, 1024)]),
        "randn": (torch.randn_like, lambda: [R(1024, 1024)]),
        "noise": (lambda x: x + 0.1 * torch.randn_like(x), lambda: [R(8, 512, 512)]),
        "noise of bf16": (lambda x: x + torch.randn_like(x), lambda: [B(8, 512, 512)]),
        "reparametrized": (lambda m, v: m + (0.5 * v).exp() * torch.randn_like(v), lambda: [R(4096, 64), R(4096, 64)]),
        "integers": (lambda x: torch.randint_like(x, 0, 100), lambda: [I(9, 512, 1024)]),
        "bernoulli": (torch.bernoulli, lambda: [torch.rand(512, 1024)]),
        "Gumbel": (lambda x: (x - torch.empty_like(x).exponential_().log()).softmax(-1), lambda: [R(1024, 512)]),
        "drop path": (
            lambda x: x * (torch.rand(16, 1, 1) < 0.9) / 0.9,
            lambda: [R(16, 197, 768)],
        ),
    },
    "gradients of lookups": {
        "2 rows, 4096 times, 768 columns": (
            lambda w, i: F.embedding(i, w).sin().sum(),
            lambda: [R(2, 768), I(2, 8, 512)],
        ),
        "8 rows, 4096 times, 64 columns": (lambda w, i: F.embedding(i, w).sin().sum(), lambda: [R(8, 64), I(8, 4096)]),
        "32 rows, 262144 times, 8 columns": (
            lambda w, i: F.embedding(i, w).sin().sum(),
            lambda: [R(32, 8), I(32, 512, 512)],
        ),
        "32 rows, 2048 times, 64 columns": (
            lambda w, i: F.embedding(i, w).sin().sum(),
            lambda: [R(32, 64), I(32, 2048)],
        ),
        "64 rows, 65536 times, 64 columns": (
            lambda w, i: F.embedding(i, w).sin().sum(),
            lambda: [R(64, 64), I(64, 65536)],
        ),
        "64 rows, 4096 times, 768 columns": (
            lambda w, i: F.embedding(i, w).sin().sum(),
            lambda: [R(64, 768), I(64, 4096)],
        ),
    },
}
