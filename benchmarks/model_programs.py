"""Layers of models, at the sizes they have there: half of what `operators.py --table models` runs.

1e5 to 1e7 elements, channels first and last, float32 and 16 bits, with and without gradients. Kinds whose name begins
with "gradients of" are timed with their backward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from operator_programs import I, Program, R

LAST = torch.channels_last


def B(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Normal random numbers in bfloat16."""
    return R(*sizes).bfloat16()


def H(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Normal random numbers in float16."""
    return R(*sizes).half()


def P(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Positive numbers that are not near 0."""
    return R(*sizes).abs() + 0.1


def images() -> torch.Tensor:
    """A batch of feature maps."""
    return R(8, 64, 56, 56)


def rms(x, w):
    """A root mean square norm, as Llama spells it."""
    y = x.float()
    return w * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def channels_norm(x, w, b):
    """A layer norm over the channels of images, as ConvNeXt spells it."""
    mean = x.mean(1, keepdim=True)
    var = (x - mean).pow(2).mean(1, keepdim=True)
    return w[:, None, None] * ((x - mean) / torch.sqrt(var + 1e-6)) + b[:, None, None]


def gru_cell(x, h, w, u, b, c):
    """A cell of a GRU."""
    return torch.gru_cell(x, h, w, u, b, c)


def blocks(x, w, b, m, v, g, c):
    """Convolution, batch norm, ReLU."""
    return F.relu(F.batch_norm(F.conv2d(x, w, b, padding=1), m, v, g, c))


def lstm_gates(g, c):
    """A cell of an LSTM after its products."""
    i, f, o, z = g.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * z.tanh()
    return o.sigmoid() * c.tanh(), c


PROGRAMS: dict[str, dict[str, Program]] = {
    "reductions": {
        "sum 0 of (64, 128, 768)": (lambda x: x.sum(0), lambda: [R(64, 128, 768)]),
        "sum 1 of (16, 512, 768)": (lambda x: (x * x).sum(1), lambda: [R(16, 512, 768)]),
        "mean (0, 1) of (16, 128, 768)": (lambda x: x.mean((0, 1)), lambda: [R(16, 128, 768)]),
        "mean (2, 3) of images": (lambda x: x.mean((2, 3)), lambda: [images()]),
        "mean (2, 3) of images, last": (lambda x: x.mean((2, 3)), lambda: [images().to(memory_format=LAST)]),
        "sum (0, 2, 3) of images": (lambda x: x.sum((0, 2, 3)), lambda: [images()]),
        "sum (0, 2, 3) of images, last": (lambda x: x.sum((0, 2, 3)), lambda: [images().to(memory_format=LAST)]),
        "sum 1 of images": (lambda x: (x * x).sum(1), lambda: [images()]),
        "amax 2 of (8, 64, 56, 56)": (lambda x: x.amax(2), lambda: [images()]),
        "mean of bf16": (lambda x: x.mean(-1), lambda: [B(2048, 768)]),
        "sum 0 of bf16": (lambda x: x.sum(0), lambda: [B(2048, 768)]),
        "var_mean (0, 2, 3)": (lambda x: torch.var_mean(x, (0, 2, 3)), lambda: [images()]),
        "argmax of (128, 30522)": (lambda x: x.argmax(-1), lambda: [R(128, 30522)]),
        "argmax 1 of (8, 21, 128, 128)": (lambda x: x.argmax(1), lambda: [R(8, 21, 128, 128)]),
        "max 1 of (16, 128, 768)": (lambda x: x.max(1), lambda: [R(16, 128, 768)]),
        "argmin of distances": (lambda x: x.argmin(-1), lambda: [R(4096, 64)]),
        "masked mean": (
            lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1e-9),
            lambda: [R(16, 128, 768), (R(16, 128) > 0).float()],
        ),
        "all of bool": (lambda x: (x > -9).all(1), lambda: [R(512, 2048)]),
        "sum of int32": (lambda x: x.sum(-1), lambda: [I(9, 512, 2048).int()]),
        "short rows": (lambda x: x.sum(-1), lambda: [R(200000, 8)]),
        "short columns": (lambda x: x.sum(0), lambda: [R(8, 200000)]),
        "middle of 4": (lambda x: x.sum(1), lambda: [R(4096, 4, 64)]),
        "norm of columns": (lambda x: x.norm(dim=0), lambda: [R(2048, 512)]),
        "logsumexp 1 of images": (lambda x: x.logsumexp(1), lambda: [R(8, 21, 128, 128)]),
        "median": (lambda x: x.median(-1)[0], lambda: [R(512, 256)]),
        "prod of 3": (lambda x: x.prod(-1), lambda: [R(100000, 3)]),
    },
    "softmax": {
        "softmax 1 of images": (lambda x: x.softmax(1), lambda: [R(8, 21, 128, 128)]),
        "log softmax 1 of images": (lambda x: x.log_softmax(1), lambda: [R(8, 21, 128, 128)]),
        "softmax 2 of (16, 512, 128, 8)": (lambda x: x.softmax(2), lambda: [R(16, 64, 128, 8)]),
        "softmax 1 of (16, 512, 768)": (lambda x: x.softmax(1), lambda: [R(16, 128, 768)]),
        "softmax of short rows": (lambda x: x.softmax(-1), lambda: [R(100000, 8)]),
        "softmax of 49": (lambda x: x.softmax(-1), lambda: [R(8000, 49)]),
        "softmax of bf16": (lambda x: x.softmax(-1), lambda: [B(12 * 128, 512)]),
        "softmax of half": (lambda x: x.softmax(-1), lambda: [H(12 * 128, 512)]),
        "masked softmax": (
            lambda x, m: x.masked_fill(m, -1e9).softmax(-1),
            lambda: [R(4, 12, 128, 128), R(4, 1, 1, 128) > 1],
        ),
        "softmax over 2 dims": (lambda x: x.flatten(2).softmax(-1).view_as(x), lambda: [R(8, 17, 64, 48)]),
        "cross entropy of 30522": (F.cross_entropy, lambda: [R(256, 30522), I(30522, 256)]),
        "entropy": (lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1), lambda: [R(512, 1000)]),
    },
    "normalizations": {
        "layer norm": (lambda x, w, b: F.layer_norm(x, (768,), w, b), lambda: [R(2048, 768), R(768), R(768)]),
        "layer norm of bf16": (lambda x, w, b: F.layer_norm(x, (768,), w, b), lambda: [B(2048, 768), B(768), B(768)]),
        "layer norm of half": (lambda x, w, b: F.layer_norm(x, (768,), w, b), lambda: [H(2048, 768), H(768), H(768)]),
        "layer norm of 64": (lambda x, w, b: F.layer_norm(x, (64,), w, b), lambda: [R(20000, 64), R(64), R(64)]),
        "residual and layer norm": (
            lambda x, y, w, b: F.layer_norm(x + y, (768,), w, b),
            lambda: [R(2048, 768), R(2048, 768), R(768), R(768)],
        ),
        "RMS norm": (rms, lambda: [R(2048, 1024), R(1024)]),
        "RMS norm of bf16": (rms, lambda: [B(2048, 1024), B(1024)]),
        "RMS norm of heads": (rms, lambda: [R(4, 12, 512, 64), R(64)]),
        "channels norm": (channels_norm, lambda: [R(4, 96, 56, 56), R(96), R(96)]),
        "channels norm, last": (
            channels_norm,
            lambda: [R(4, 96, 56, 56).to(memory_format=LAST), R(96), R(96)],
        ),
        "channels norm by permuting": (
            lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b).permute(0, 3, 1, 2),
            lambda: [R(4, 96, 56, 56), R(96), R(96)],
        ),
        "norm of permuted images, last": (
            lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b),
            lambda: [R(4, 96, 56, 56), R(96), R(96)],
        ),
        "norm of tokens of images": (
            lambda x, w, b: F.layer_norm(x.flatten(2).transpose(1, 2), (96,), w, b),
            lambda: [R(4, 96, 56, 56), R(96), R(96)],
        ),
        "group norm": (lambda x, w, b: F.group_norm(x, 32, w, b), lambda: [R(4, 128, 32, 32), R(128), R(128)]),
        "group norm and SiLU": (
            lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
            lambda: [R(4, 320, 64, 64), R(320), R(320)],
        ),
        "group norm, last": (
            lambda x, w, b: F.group_norm(x, 32, w, b),
            lambda: [R(4, 128, 32, 32).to(memory_format=LAST), R(128), R(128)],
        ),
        "group norm of bf16": (lambda x, w, b: F.group_norm(x, 32, w, b), lambda: [B(4, 128, 32, 32), B(128), B(128)]),
        "group norm of 1 group": (lambda x, w, b: F.group_norm(x, 1, w, b), lambda: [images(), R(64), R(64)]),
        "instance norm": (F.instance_norm, lambda: [images()]),
        "instance norm of signals": (F.instance_norm, lambda: [R(16, 128, 1024)]),
        "batch norm, ReLU": (
            lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
            lambda: [images(), R(64), P(64), R(64), R(64)],
        ),
        "batch norm, ReLU, last": (
            lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
            lambda: [images().to(memory_format=LAST), R(64), P(64), R(64), R(64)],
        ),
        "batch norm, training": (
            lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True),
            lambda: [images(), R(64), P(64), R(64), R(64)],
        ),
        "batch norm, training, last": (
            lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True),
            lambda: [images().to(memory_format=LAST), R(64), P(64), R(64), R(64)],
        ),
        "batch norm of bf16": (
            lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
            lambda: [images().bfloat16(), R(64), P(64), R(64), R(64)],
        ),
        "batch norm of features": (
            lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True),
            lambda: [R(4096, 256), R(256), P(256), R(256), R(256)],
        ),
        "normalize rows": (lambda x: F.normalize(x, dim=-1), lambda: [R(4096, 512)]),
        "normalize channels": (lambda x: F.normalize(x, dim=1), lambda: [images()]),
        "weight norm": (lambda v, g: v * (g / v.norm(2, (1, 2), keepdim=True)), lambda: [R(512, 512, 3), R(512, 1, 1)]),
        "local response norm": (lambda x: F.local_response_norm(x, 5), lambda: [R(4, 96, 28, 28)]),
    },
    "pooling": {
        "max 3 by 2": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [R(4, 64, 112, 112)]),
        "max 3 by 2, last": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [R(4, 64, 112, 112).to(memory_format=LAST)]),
        "max 2 with places": (lambda x: F.max_pool2d(x, 2, return_indices=True), lambda: [images()]),
        "max 5 by 1": (lambda x: F.max_pool2d(x, 5, 1, 2), lambda: [R(4, 128, 20, 20)]),
        "max of signals": (lambda x: F.max_pool1d(x, 2), lambda: [R(16, 64, 4096)]),
        "max in 3 dims": (lambda x: F.max_pool3d(x, 2), lambda: [R(2, 32, 16, 56, 56)]),
        "mean 2": (lambda x: F.avg_pool2d(x, 2), lambda: [images()]),
        "mean 2, last": (lambda x: F.avg_pool2d(x, 2), lambda: [images().to(memory_format=LAST)]),
        "mean 3 by 1": (lambda x: F.avg_pool2d(x, 3, 1, 1), lambda: [R(4, 192, 35, 35)]),
        "mean less itself": (
            lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x,
            lambda: [R(8, 64, 56, 56)],
        ),
        "mean of bf16": (lambda x: F.avg_pool2d(x, 2), lambda: [images().bfloat16()]),
        "max of bf16": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [images().bfloat16()]),
        "to 1": (lambda x: F.adaptive_avg_pool2d(x, 1), lambda: [R(16, 512, 7, 7)]),
        "to 7": (lambda x: F.adaptive_avg_pool2d(x, 7), lambda: [R(8, 256, 14, 14)]),
        "to 6 of 50": (lambda x: F.adaptive_avg_pool2d(x, 6), lambda: [R(4, 256, 50, 50)]),
        "largest, to 7 of 20": (lambda x: F.adaptive_max_pool2d(x, 7), lambda: [R(8, 256, 20, 20)]),
        "to 100 of 512": (lambda x: F.adaptive_avg_pool1d(x, 100), lambda: [R(16, 64, 512)]),
        "unpooling": (
            lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            lambda: [images()],
        ),
        "unpooling of given places": (
            lambda x, i: F.max_unpool2d(x, i, 2),
            lambda: [*F.max_pool2d(images(), 2, return_indices=True)],
        ),
        "power mean": (
            lambda x: F.adaptive_avg_pool2d(x.clamp(1e-6).pow(3), 1).pow(1 / 3),
            lambda: [R(8, 256, 28, 28)],
        ),
    },
    "interpolation": {
        "nearest by 2": (lambda x: F.interpolate(x, scale_factor=2), lambda: [R(4, 64, 56, 56)]),
        "nearest by 2, last": (
            lambda x: F.interpolate(x, scale_factor=2),
            lambda: [R(4, 64, 56, 56).to(memory_format=LAST)],
        ),
        "nearest by 2, added": (
            lambda x, y: F.interpolate(x, scale_factor=2) + y,
            lambda: [R(4, 64, 28, 28), R(4, 64, 56, 56)],
        ),
        "bilinear by 2": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: [R(4, 64, 28, 28)]),
        "bilinear by 4, corners": (
            lambda x: F.interpolate(x, scale_factor=4, mode="bilinear", align_corners=True),
            lambda: [R(2, 21, 64, 64)],
        ),
        "bilinear to (384, 512)": (
            lambda x: F.interpolate(x, size=(384, 512), mode="bilinear"),
            lambda: [R(1, 21, 97, 129)],
        ),
        "bilinear, last": (
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            lambda: [R(4, 64, 28, 28).to(memory_format=LAST)],
        ),
        "bilinear down": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), lambda: [images()]),
        "bilinear of bf16": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: [B(4, 64, 28, 28)]),
        "bicubic by 2": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), lambda: [R(2, 64, 28, 28)]),
        "bicubic of positions": (
            lambda x: F.interpolate(x, size=(24, 32), mode="bicubic"),
            lambda: [R(1, 768, 14, 14)],
        ),
        "area by a half": (lambda x: F.interpolate(x, scale_factor=0.5, mode="area"), lambda: [images()]),
        "area to 24": (lambda x: F.interpolate(x, size=(24, 24), mode="area"), lambda: [images()]),
        "linear": (lambda x: F.interpolate(x, scale_factor=4, mode="linear"), lambda: [R(8, 64, 1024)]),
        "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), lambda: [R(1, 32, 8, 28, 28)]),
        "antialiased": (
            lambda x: F.interpolate(x, size=(96, 96), mode="bilinear", antialias=True),
            lambda: [R(4, 3, 224, 224)],
        ),
        "grid sample": (
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            lambda: [R(4, 64, 56, 56), R(4, 56, 56, 2).clamp(-1, 1)],
        ),
    },
    "cells": {
        "LSTM cell": (
            lambda x, h, c, w, u, b: torch.lstm_cell(x, (h, c), w, u, b, b),
            lambda: [R(64, 256), R(64, 256), R(64, 256), R(1024, 256), R(1024, 256), R(1024)],
        ),
        "GRU cell": (gru_cell, lambda: [R(64, 256), R(64, 256), R(768, 256), R(768, 256), R(768), R(768)]),
        "LSTM cell written out": (lstm_gates, lambda: [R(256, 2048), R(256, 512)]),
        "RNN cell": (
            lambda x, h, w, u, b: torch.rnn_tanh_cell(x, h, w, u, b, b),
            lambda: [R(1, 256), R(1, 256), R(256, 256), R(256, 256), R(256)],
        ),
    },
    "products": {
        "linear of 1 row": (F.linear, lambda: [R(1, 1024), R(4096, 1024), R(4096)]),
        "linear of 4 rows": (F.linear, lambda: [R(4, 1024), R(4096, 1024), R(4096)]),
        "linear of 16 rows": (F.linear, lambda: [R(16, 1024), R(4096, 1024), R(4096)]),
        "linear of 1 row of bf16": (F.linear, lambda: [B(1, 1024), B(4096, 1024), B(4096)]),
        "linear of 8 rows of bf16": (F.linear, lambda: [B(8, 1024), B(4096, 1024), B(4096)]),
        "linear of bf16": (F.linear, lambda: [B(256, 768), B(3072, 768), B(3072)]),
        "linear and GELU of bf16": (
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
            lambda: [B(256, 768), B(3072, 768), B(3072)],
        ),
        "linear of half": (F.linear, lambda: [H(64, 768), H(768, 768), H(768)]),
        "linear and GELU": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: [R(256, 768), R(3072, 768), R(3072)]),
        "linear of int8 weights": (
            lambda x, w, s: F.linear(x, w.to(x.dtype)) * s,
            lambda: [R(1, 1024), (R(4096, 1024) * 30).to(torch.int8), P(4096)],
        ),
        "matrix by vector": (torch.mv, lambda: [R(4096, 1024), R(1024)]),
        "vector by matrix": (lambda v, m: v @ m, lambda: [R(1024), R(1024, 4096)]),
        "matrices by vectors": (
            lambda x, y: (x @ y[..., None]).squeeze(-1),
            lambda: [R(128, 128, 64), R(128, 64)],
        ),
        "vectors by matrices": (
            lambda x, y: (y[:, None] @ x).squeeze(1),
            lambda: [R(128, 128, 64), R(128, 128)],
        ),
        "batched rows": (torch.bmm, lambda: [R(96, 1, 64), R(96, 64, 512)]),
        "batched columns": (torch.bmm, lambda: [R(96, 512, 64), R(96, 64, 1)]),
        "scores of one query": (
            lambda q, k: (q @ k.transpose(-1, -2) * 0.125).softmax(-1),
            lambda: [R(4, 12, 1, 64), R(4, 12, 512, 64)],
        ),
        "batched products": (torch.bmm, lambda: [R(96, 128, 64), R(96, 64, 128)]),
        "batched products of bf16": (torch.bmm, lambda: [B(96, 128, 64), B(96, 64, 128)]),
        "small matrices": (torch.bmm, lambda: [R(10000, 3, 3), R(10000, 3, 3)]),
        "matrices of 8": (torch.bmm, lambda: [R(4096, 8, 8), R(4096, 8, 8)]),
        "points turned": (
            lambda p, r: torch.einsum("bnd,bed->bne", p, r),
            lambda: [R(64, 4096, 3), R(64, 3, 3)],
        ),
        "interactions": (
            lambda x: (x @ x.transpose(1, 2)).flatten(1),
            lambda: [R(2048, 27, 16)],
        ),
        "bilinear form": (lambda x, y, w: ((x @ w) * y).sum(-1), lambda: [R(4096, 128), R(4096, 128), R(128, 128)]),
        "experts": (
            lambda x, w: torch.einsum("ecd,edf->ecf", x, w),
            lambda: [R(8, 64, 256), R(8, 256, 512)],
        ),
        "narrow linear": (F.linear, lambda: [R(8192, 64), R(2, 64), R(2)]),
        "thin linear": (lambda x, w, b: F.relu(F.linear(x, w, b)), lambda: [R(65536, 3), R(64, 3), R(64)]),
        "outer sum": (lambda x, y: torch.einsum("bld,bls->bds", x, y), lambda: [R(8, 256, 64), R(8, 256, 16)]),
        "state": (
            lambda h, a, b: (h * a.exp() + b[:, None]).sum(-1),
            lambda: [R(8, 1536, 16), R(1536, 16), R(8, 16)],
        ),
    },
    "convolutions": {
        "conv, norm, ReLU": (
            blocks,
            lambda: [R(2, 64, 56, 56), R(64, 64, 3, 3) / 24, R(64), R(64), P(64), R(64), R(64)],
        ),
        "conv, norm, ReLU of bf16": (
            blocks,
            lambda: [B(2, 64, 56, 56), B(64, 64, 3, 3) / 24, B(64), B(64), P(64).bfloat16(), B(64), B(64)],
        ),
        "1x1, SiLU": (lambda x, w: F.silu(F.conv2d(x, w)), lambda: [R(2, 96, 56, 56), R(192, 96, 1, 1) / 9]),
        "1x1 of bf16": (F.conv2d, lambda: [B(2, 96, 56, 56), B(192, 96, 1, 1) / 9]),
        "depthwise 3": (
            lambda x, w: F.silu(F.conv2d(x, w, padding=1, groups=192)),
            lambda: [R(2, 192, 56, 56), R(192, 1, 3, 3)],
        ),
        "depthwise 7": (
            lambda x, w: F.conv2d(x, w, padding=3, groups=96),
            lambda: [R(2, 96, 56, 56), R(96, 1, 7, 7)],
        ),
        "depthwise of bf16": (
            lambda x, w: F.conv2d(x, w, padding=1, groups=192),
            lambda: [B(2, 192, 56, 56), B(192, 1, 3, 3)],
        ),
        "causal signal": (
            lambda x, w, b: F.silu(F.conv1d(x, w, b, padding=3, groups=768)[..., :512]),
            lambda: [R(4, 768, 512), R(768, 1, 4), R(768)],
        ),
        "signal": (lambda x, w: F.gelu(F.conv1d(x, w, stride=2)), lambda: [R(2, 256, 1600), R(256, 256, 3) / 28]),
        "transposed": (
            lambda x, w: F.relu(F.conv_transpose2d(x, w, stride=2, padding=1)),
            lambda: [R(2, 64, 28, 28), R(64, 64, 4, 4) / 24],
        ),
        "squeeze and excite": (
            lambda x, a, b: x * F.conv2d(F.relu(F.conv2d(x.mean((2, 3), keepdim=True), a)), b).sigmoid(),
            lambda: [R(4, 192, 28, 28), R(12, 192, 1, 1), R(192, 12, 1, 1)],
        ),
    },
    "losses": {
        "MSE": (F.mse_loss, lambda: [R(512, 2048), R(512, 2048)]),
        "smooth L1": (F.smooth_l1_loss, lambda: [R(512, 2048), R(512, 2048)]),
        "BCE": (F.binary_cross_entropy_with_logits, lambda: [R(512, 1024), torch.rand(512, 1024)]),
        "KL": (
            lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
            lambda: [R(512, 1000), R(512, 1000)],
        ),
        "focal": (
            lambda x, y: (
                F.binary_cross_entropy_with_logits(x, y, reduction="none")
                * (1 - (x.sigmoid() * y + (1 - x.sigmoid()) * (1 - y))) ** 2
            ).mean(),
            lambda: [R(512, 1024), (R(512, 1024) > 0).float()],
        ),
        "dice": (
            lambda x, y: 1 - (2 * (x.sigmoid() * y).sum((2, 3)) + 1) / ((x.sigmoid() + y).sum((2, 3)) + 1),
            lambda: [R(8, 4, 128, 128), (R(8, 4, 128, 128) > 0).float()],
        ),
        "contrastive": (
            lambda x, y: F.cross_entropy(F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t() / 0.07, torch.arange(256)),
            lambda: [R(256, 512), R(256, 512)],
        ),
        "triplet": (F.triplet_margin_loss, lambda: [R(4096, 128), R(4096, 128), R(4096, 128)]),
        "total variation": (
            lambda x: x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean(),
            lambda: [R(8, 3, 256, 256)],
        ),
    },
    "gradients of": {
        "cross entropy": (F.cross_entropy, lambda: [R(256, 30522), I(30522, 256)]),
        "cross entropy of images": (F.cross_entropy, lambda: [R(4, 21, 128, 128), I(21, 4, 128, 128)]),
        "layer norm": (
            lambda x, w, b: F.layer_norm(x, (768,), w, b).square().sum(),
            lambda: [R(2048, 768), R(768), R(768)],
        ),
        "RMS norm": (lambda x, w: rms(x, w).square().sum(), lambda: [R(2048, 1024), R(1024)]),
        "group norm": (
            lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)).square().sum(),
            lambda: [R(4, 128, 32, 32), R(128), R(128)],
        ),
        "batch norm, ReLU": (
            lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)).square().sum(),
            lambda: [images(), R(64), R(64)],
        ),
        "channels norm": (
            lambda x, w, b: channels_norm(x, w, b).square().sum(),
            lambda: [R(4, 96, 56, 56), R(96), R(96)],
        ),
        "GELU": (lambda x: F.gelu(x).square().sum(), lambda: [R(1024, 3072)]),
        "gate": (lambda x, y: (F.silu(x) * y).square().sum(), lambda: [R(1024, 2048), R(1024, 2048)]),
        "softmax": (lambda x, y: (x.softmax(-1) * y).sum(), lambda: [R(4, 12, 128, 128), R(4, 12, 128, 128)]),
        "embedding": (lambda w, i: F.embedding(i, w).square().sum(), lambda: [R(30522, 256), I(30522, 16, 128)]),
        "embedding bag": (
            lambda w, i: F.embedding_bag(i, w, mode="sum").square().sum(),
            lambda: [R(20000, 64), I(20000, 2048, 20)],
        ),
        "gather": (lambda x, i: x.gather(1, i).square().sum(), lambda: [R(1024, 512), I(512, 1024, 512)]),
        "neighbours": (lambda x, s: x[s].square().sum(), lambda: [R(10000, 64), I(10000, 50000)]),
        "max pooling": (lambda x: F.max_pool2d(x, 3, 2, 1).square().sum(), lambda: [R(4, 64, 56, 56)]),
        "mean pooling": (lambda x: F.avg_pool2d(x, 2).square().sum(), lambda: [images()]),
        "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, 7).square().sum(), lambda: [R(8, 128, 14, 14)]),
        "bilinear": (
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").square().sum(),
            lambda: [R(4, 64, 28, 28)],
        ),
        "nearest": (lambda x: F.interpolate(x, scale_factor=2).square().sum(), lambda: [R(4, 64, 28, 28)]),
        "cat and split": (
            lambda x, y: (torch.cat([x, y], 1).chunk(4, 1)[1] ** 2).sum(),
            lambda: [images(), images()],
        ),
        "padding": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect").square().sum(), lambda: [images()]),
        "linear": (
            lambda x, w, b: F.gelu(F.linear(x, w, b)).square().sum(),
            lambda: [R(256, 512), R(512, 512), R(512)],
        ),
        "cumsum": (lambda x: x.cumsum(1).square().sum(), lambda: [R(8, 512, 256)]),
        "dropout": (lambda x: F.dropout(x, 0.1, True).square().sum(), lambda: [R(2048, 768)]),
        "sorted": (lambda x: (x.sort(-1)[0] * torch.arange(256)).sum(), lambda: [R(512, 256)]),
        "depthwise": (
            lambda x, w: F.conv2d(x, w, padding=1, groups=96).square().sum(),
            lambda: [R(2, 96, 28, 28), R(96, 1, 3, 3)],
        ),
    },
}
