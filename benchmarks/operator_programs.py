"""Programs of one or two operators, as people write them: what `operators.py` runs, by kind.

Each is a function and what makes its inputs. Sizes are those at which such operators stand in models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Program = tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]


def R(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Normal random numbers."""
    return torch.randn(sizes)


def I(below: int, *sizes: int) -> torch.Tensor:  # noqa: E743, N802
    """Random integers from 0 on."""
    return torch.randint(0, below, sizes)


def X() -> torch.Tensor:  # noqa: N802
    """The numbers of most elementwise programs."""
    return torch.randn(512, 512)


PROGRAMS: dict[str, dict[str, Program]] = {
    "reductions": {
        "sum 0": (lambda x: (x * 2).sum(0), lambda: [R(32, 64, 128)]),
        "sum 1": (lambda x: (x * 2).sum(1), lambda: [R(32, 64, 128)]),
        "sum 2": (lambda x: (x * 2).sum(2), lambda: [R(32, 64, 128)]),
        "sum (0, 1)": (lambda x: (x * 2).sum((0, 1)), lambda: [R(32, 64, 128)]),
        "sum (1, 2)": (lambda x: (x * 2).sum((1, 2)), lambda: [R(32, 64, 128)]),
        "sum (0, 2)": (lambda x: (x * 2).sum((0, 2)), lambda: [R(32, 64, 128)]),
        "sumall": (lambda x: (x * x).sum(), lambda: [R(256, 1024)]),
        "mean0tall": (lambda x: x.mean(0), lambda: [R(4096, 64)]),
        "var0": (lambda x: x.var(0), lambda: [R(1024, 128)]),
        "var-1": (lambda x: x.var(-1), lambda: [R(1024, 128)]),
        "std(0,2,3)": (lambda x: x.std((0, 2, 3)), lambda: [R(8, 32, 28, 28)]),
        "amax1": (lambda x: x.amax(1), lambda: [R(32, 64, 128)]),
        "max.idx": (lambda x: x.max(1), lambda: [R(32, 64, 128)]),
        "argmax-1": (lambda x: x.argmax(-1), lambda: [R(512, 1000)]),
        "argmax0": (lambda x: x.argmax(0), lambda: [R(512, 1000)]),
        "prod": (lambda x: x.prod(-1), lambda: [R(512, 64)]),
        "logsumexp": (lambda x: x.logsumexp(-1), lambda: [R(512, 1000)]),
        "logsumexp0": (lambda x: x.logsumexp(0), lambda: [R(512, 1000)]),
        "norm2": (lambda x: x.norm(dim=-1), lambda: [R(512, 512)]),
        "norm1": (lambda x: x.norm(p=1, dim=-1), lambda: [R(512, 512)]),
        "norm3": (lambda x: x.norm(p=3, dim=-1), lambda: [R(512, 512)]),
        "any": (lambda x: (x > 2).any(-1), lambda: [R(512, 512)]),
        "count": (lambda x: (x > 0).sum(), lambda: [R(512, 512)]),
        "meanint": (lambda x: x.float().mean(), lambda: [I(100, 512, 512)]),
        "sumbool": (lambda x: (x > 0).sum(1), lambda: [R(512, 512)]),
        "sumi64": (lambda x: x.sum(1), lambda: [I(100, 512, 512)]),
    },
    "softmax": {
        "softmax of (64, 4, 128, 128)": (lambda x: x.softmax(-1), lambda: [R(64, 4, 128, 128)]),
        "softmax of (64, 1000)": (lambda x: x.softmax(-1), lambda: [R(64, 1000)]),
        "softmax of (8, 21, 64, 64)": (lambda x: x.softmax(1), lambda: [R(8, 21, 64, 64)]),
        "softmax of (512, 512)": (lambda x: x.softmax(0), lambda: [R(512, 512)]),
        "softmax of (32, 32000)": (lambda x: x.softmax(-1), lambda: [R(32, 32000)]),
        "softmax of (4096, 16)": (lambda x: x.softmax(-1), lambda: [R(4096, 16)]),
        "logsoftmax": (lambda x: x.log_softmax(1), lambda: [R(64, 10000)]),
        "cross entropy": (F.cross_entropy, lambda: [R(64, 10000), I(10000, 64)]),
        "cross entropy of images": (F.cross_entropy, lambda: [R(4, 21, 64, 64), I(21, 4, 64, 64)]),
        "gumbel": (lambda x: (x / 0.5).softmax(-1).cumsum(-1), lambda: [R(64, 1000)]),
    },
    "normalizations": {
        "layer norm": (lambda x: F.layer_norm(x, (768,)), lambda: [R(128, 768)]),
        "group norm": (lambda x: F.group_norm(x, 8), lambda: [R(8, 64, 28, 28)]),
        "instance norm": (F.instance_norm, lambda: [R(8, 64, 28, 28)]),
        "batch norm": (F.batch_norm, lambda: [R(8, 64, 28, 28), R(64), R(64).abs() + 1]),
        "batch norm, training": (
            lambda x, m, v: F.batch_norm(x, m, v, training=True),
            lambda: [R(8, 64, 28, 28), R(64), R(64).abs() + 1],
        ),
        "RMS norm": (lambda x, w: F.rms_norm(x, (768,), w), lambda: [R(128, 768), R(768)]),
        "layer norm of channels first": (
            lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (64,)).permute(0, 3, 1, 2),
            lambda: [R(8, 64, 28, 28)],
        ),
        "normalized": (lambda x: F.normalize(x, dim=1), lambda: [R(8, 64, 28, 28)]),
        "cosine similarity": (lambda x, y: F.cosine_similarity(x, y, dim=-1), lambda: [R(512, 256), R(512, 256)]),
        "local response norm": (lambda x: F.local_response_norm(x, 5), lambda: [R(4, 32, 28, 28)]),
    },
    "movement": {
        "transpose": (lambda x: x.t() * 2, lambda: [R(1024, 1024)]),
        "permute4": (lambda x: x.permute(0, 2, 3, 1) + 1, lambda: [R(8, 64, 28, 28)]),
        "cat": (lambda x, y: torch.cat([x, y], 1) * 2, lambda: [R(64, 256), R(64, 512)]),
        "catlast": (lambda x, y: torch.cat([x, y], -1) * 2, lambda: [R(64, 64, 32), R(64, 64, 32)]),
        "stack": (lambda x, y: torch.stack([x, y], -1), lambda: [R(256, 256), R(256, 256)]),
        "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), lambda: [R(8, 32, 32, 32)]),
        "padreflect": (lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), lambda: [R(8, 32, 32, 32)]),
        "roll": (lambda x: torch.roll(x, (3, 3), (1, 2)), lambda: [R(8, 32, 32, 32)]),
        "flip": (lambda x: x.flip(-1) * 2, lambda: [R(256, 1024)]),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), lambda: [R(4, 32, 28, 28)]),
        "fold": (lambda x: F.fold(x, (28, 28), 3, padding=1), lambda: [R(4, 288, 784)]),
        "pixshuf": (lambda x: F.pixel_shuffle(x, 2) + 1, lambda: [R(8, 64, 28, 28)]),
        "repeat": (lambda x: x.repeat(4, 2) + 1, lambda: [R(128, 256)]),
        "repint": (lambda x: x.repeat_interleave(4, 1) + 1, lambda: [R(32, 8, 64, 64)]),
        "expandadd": (lambda x, y: x[:, None] + y[None], lambda: [R(512, 64), R(512, 64)]),
        "tril": (lambda x: x.tril() * 2, lambda: [R(512, 512)]),
        "onehot": (lambda x: F.one_hot(x, 64).float(), lambda: [I(64, 1024)]),
        "window": (
            lambda x: x.view(4, 8, 7, 8, 7, 32).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 32) * 2,
            lambda: [R(4, 56, 56, 32)],
        ),
        "chunkgate": (lambda x: x[:, :1024] * x[:, 1024:].sigmoid(), lambda: [R(256, 2048)]),
        "rotated halves": (lambda x: torch.cat([-x[..., 32:], x[..., :32]], -1) * 2 + x, lambda: [R(8, 8, 128, 64)]),
        "unfold1": (lambda x: x.unfold(-1, 16, 8).mean(-1), lambda: [R(64, 4096)]),
        "diag": (lambda x: x.diagonal().sum(), lambda: [R(512, 512)]),
        "contig": (lambda x: x.transpose(1, 2).contiguous(), lambda: [R(8, 128, 4, 64).transpose(1, 2)]),
        "complex": (
            lambda x: (torch.view_as_complex(x) * torch.view_as_complex(x).conj()).abs(),
            lambda: [R(256, 512, 2)],
        ),
    },
    "indexing": {
        "embed": (lambda w, i: F.embedding(i, w) * 2, lambda: [R(30000, 256), I(30000, 8, 128)]),
        "embbag": (lambda w, i: F.embedding_bag(i, w, mode="sum"), lambda: [R(10000, 64), I(10000, 128, 20)]),
        "gather": (lambda x, i: x.gather(1, i) * 2, lambda: [R(512, 512), I(512, 512, 64)]),
        "index0": (lambda x, i: x[i] + 1, lambda: [R(1000, 128), I(1000, 2000)]),
        "index2": (lambda x, i, j: x[i, j] + 1, lambda: [R(1000, 128), I(1000, 20000), I(128, 20000)]),
        "maskfill": (lambda x, m: x.masked_fill(m, 0.0) * 2, lambda: [R(512, 512), R(512, 512) > 0]),
        "where": (lambda x: torch.where(x > 0, x, x * 0.1), lambda: [R(512, 512)]),
        "scatadd": (
            lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 64), s),
            lambda: [R(1000, 64), I(1000, 5000), R(5000, 64)],
        ),
        "indexadd": (lambda x, i, s: x.index_add(0, i, s), lambda: [R(1000, 64), I(1000, 5000), R(5000, 64)]),
        "indexput": (
            lambda x, i, s: x.index_put((i,), s),
            lambda: [R(1000, 64), torch.randperm(1000)[:500], R(500, 64)],
        ),
        "scatter": (lambda x, i: x.scatter(1, i, 1.0), lambda: [R(512, 100), I(100, 512, 5)]),
        "selects": (lambda x, i: x.index_select(1, i) * 2, lambda: [R(512, 512), I(512, 256)]),
        "bucket": (torch.bucketize, lambda: [R(64, 1024), torch.linspace(-2, 2, 50)]),
        "searchs": (lambda x, b: torch.searchsorted(b, x), lambda: [R(64, 1024), torch.linspace(-2, 2, 50)]),
        "take_along": (lambda x, i: torch.take_along_dim(x, i, 1), lambda: [R(512, 512), I(512, 512, 32)]),
        "topk": (lambda x: x.topk(5, -1), lambda: [R(256, 1000)]),
        "sort": (lambda x: x.sort(-1), lambda: [R(256, 256)]),
        "argsort": (lambda x: x.argsort(-1), lambda: [R(64, 256)]),
        "isin": (lambda x: torch.isin(x, torch.tensor([1, 5, 7])), lambda: [I(100, 64, 1024)]),
        "histc": (lambda x: torch.histc(x, 20), lambda: [R(10000)]),
        "nonz": (lambda x: (x > 1).nonzero(), lambda: [R(100, 100)]),
        "uniq": (lambda x: x.unique(), lambda: [I(100, 1000)]),
    },
    "images": {
        "maxpool": (lambda x: F.max_pool2d(x, 2), lambda: [R(8, 32, 56, 56)]),
        "maxpool3s2": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [R(8, 32, 56, 56)]),
        "avgpool": (lambda x: F.avg_pool2d(x, 3, 1, 1), lambda: [R(8, 32, 28, 28)]),
        "adapt1": (lambda x: F.adaptive_avg_pool2d(x, 1), lambda: [R(8, 256, 14, 14)]),
        "adapt7": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), lambda: [R(8, 64, 14, 14)]),
        "adaptmax": (lambda x: F.adaptive_max_pool2d(x, 4), lambda: [R(8, 64, 14, 14)]),
        "up2n": (lambda x: F.interpolate(x, scale_factor=2), lambda: [R(8, 32, 28, 28)]),
        "up2b": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: [R(8, 32, 28, 28)]),
        "up2c": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), lambda: [R(4, 16, 28, 28)]),
        "downb": (
            lambda x: F.interpolate(x, size=(17, 19), mode="bilinear", align_corners=True),
            lambda: [R(8, 32, 56, 56)],
        ),
        "areadown": (lambda x: F.interpolate(x, size=(14, 14), mode="area"), lambda: [R(8, 32, 56, 56)]),
        "gridsample": (
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            lambda: [R(4, 16, 32, 32), R(4, 32, 32, 2).clamp(-1, 1)],
        ),
        "maxpool1d": (lambda x: F.max_pool1d(x, 4), lambda: [R(16, 64, 1024)]),
        "avgpool1d": (lambda x: F.avg_pool1d(x, 4), lambda: [R(16, 64, 1024)]),
        "lppool": (lambda x: F.lp_pool2d(x, 2, 2), lambda: [R(8, 32, 28, 28)]),
        "maxunpool": (
            lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            lambda: [R(4, 16, 28, 28)],
        ),
        "conv1x1": (lambda x, w: F.relu(F.conv2d(x, w)), lambda: [R(4, 64, 28, 28), R(64, 64, 1, 1)]),
        "conv3x3": (lambda x, w: F.relu(F.conv2d(x, w, padding=1)), lambda: [R(4, 64, 28, 28), R(64, 64, 3, 3)]),
        "dwconv": (
            lambda x, w: F.relu(F.conv2d(x, w, padding=1, groups=64)),
            lambda: [R(4, 64, 28, 28), R(64, 1, 3, 3)],
        ),
        "dwconv7": (lambda x, w: F.conv2d(x, w, padding=3, groups=64) + x, lambda: [R(4, 64, 28, 28), R(64, 1, 7, 7)]),
        "conv1d": (lambda x, w: F.gelu(F.conv1d(x, w, padding=2)), lambda: [R(4, 64, 512), R(64, 64, 5)]),
        "dwconv1d": (
            lambda x, w: F.silu(F.conv1d(x, w, padding=3, groups=256)[..., :512]),
            lambda: [R(4, 256, 512), R(256, 1, 4)],
        ),
        "convt": (lambda x, w: F.relu(F.conv_transpose2d(x, w, stride=2)), lambda: [R(4, 64, 14, 14), R(64, 32, 2, 2)]),
        "conv3d": (lambda x, w: F.relu(F.conv3d(x, w, padding=1)), lambda: [R(1, 16, 8, 28, 28), R(16, 16, 3, 3, 3)]),
        "convgroup": (
            lambda x, w: F.relu(F.conv2d(x, w, padding=1, groups=8)),
            lambda: [R(4, 64, 28, 28), R(64, 8, 3, 3)],
        ),
        "convstem": (
            lambda x, w: F.relu(F.conv2d(x, w, stride=2, padding=3)),
            lambda: [R(2, 3, 112, 112), R(32, 3, 7, 7)],
        ),
        "convcl": (
            lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
            lambda: [R(4, 64, 28, 28).to(memory_format=torch.channels_last), R(64, 64, 3, 3)],
        ),
    },
    "products": {
        "product and GELU": (lambda x, w: F.gelu(x @ w), lambda: [R(128, 512), R(512, 512)]),
        "matrix by vector": (lambda x, w: x @ w, lambda: [R(2048, 2048), R(2048)]),
        "lin1": (lambda x, w, b: F.relu(F.linear(x, w, b)), lambda: [R(1, 1024), R(1024, 1024), R(1024)]),
        "lin8": (lambda x, w, b: F.relu(F.linear(x, w, b)), lambda: [R(8, 1024), R(1024, 1024), R(1024)]),
        "mlp-small": (lambda x, w, v: F.relu(x @ w) @ v, lambda: [R(32, 16), R(16, 64), R(64, 4)]),
        "bmm": (lambda x, y: x @ y * 0.1, lambda: [R(64, 64, 32), R(64, 32, 64)]),
        "bmmsmall": (lambda x, y: x @ y + 1, lambda: [R(2048, 4, 4), R(2048, 4, 4)]),
        "matrices by vectors": (lambda x, y: (x @ y[..., None]).squeeze(-1), lambda: [R(512, 16, 16), R(512, 16)]),
        "einsum": (
            lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y) * 0.1,
            lambda: [R(4, 4, 64, 32), R(4, 4, 64, 32)],
        ),
        "einsum2": (lambda x, y: torch.einsum("bi,bj->bij", x, y), lambda: [R(256, 64), R(256, 64)]),
        "outer": (torch.outer, lambda: [R(512), R(512)]),
        "cdist": (torch.cdist, lambda: [R(256, 64), R(256, 64)]),
        "dot": (torch.dot, lambda: [R(100000), R(100000)]),
        "addmm": (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), lambda: [R(128), R(128, 128), R(128, 128)]),
        "bilinear": (F.bilinear, lambda: [R(64, 32), R(64, 32), R(16, 32, 32)]),
        "sdpa": (lambda q: F.scaled_dot_product_attention(q, q, q), lambda: [R(2, 8, 128, 64)]),
        "sdpa, causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), lambda: [R(2, 8, 128, 64)]),
        "attention written out": (lambda q: (q @ q.transpose(-1, -2) / 8).softmax(-1) @ q, lambda: [R(2, 8, 128, 64)]),
        "linear attention": (
            lambda q: q.softmax(-1) @ (q.softmax(-2).transpose(-1, -2) @ q),
            lambda: [R(2, 8, 256, 64)],
        ),
        "kron": (torch.kron, lambda: [R(32, 32), R(16, 16)]),
        "chain": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), lambda: [R(64, 256), R(256, 64), R(64, 256)]),
    },
    "elementwise": {
        "fmod": (lambda x: torch.fmod(x, 0.3), lambda: [X()]),
        "remainder": (lambda x: x % 0.3, lambda: [X()]),
        "remtensor": (lambda x, y: x % y, lambda: [X(), X().abs() + 0.1]),
        "floordiv": (lambda x: x // 0.3, lambda: [X()]),
        "divtrunc": (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), lambda: [X()]),
        "irem": (lambda x: x % 7, lambda: [I(1000, 512, 512)]),
        "ifloordiv": (lambda x: x // 7, lambda: [I(1000, 512, 512)]),
        "iremt": (lambda x, y: x % y, lambda: [I(1000, 512, 512), I(50, 512, 512) + 1]),
        "i32rem": (lambda x, y: x % y, lambda: [I(1000, 512, 512).int(), I(50, 512, 512).int() + 1]),
        "bits": (lambda x: x & 7 | x << 2, lambda: [I(1000, 512, 512)]),
        "from bytes": (lambda x: (x.float() / 255 - 0.5) / 0.2, lambda: [I(255, 512, 512).to(torch.uint8)]),
        "to bytes": (lambda x: (x * 255).clamp(0, 255).to(torch.uint8), lambda: [X().abs()]),
        "casthalf": (lambda x: (x * 2).half(), lambda: [X()]),
        "castbf": (lambda x: (x * 2).bfloat16(), lambda: [X()]),
        "bfadd": (lambda x: x * 2 + 1, lambda: [X().bfloat16()]),
        "bfgelu": (F.gelu, lambda: [X().bfloat16()]),
        "fp16gelu": (F.gelu, lambda: [X().half()]),
        "f64": (lambda x: (x * x + 1).sqrt().exp(), lambda: [X().double()]),
        "clamp": (lambda x: x.clamp(-1, 1).abs(), lambda: [X()]),
        "lerp": (lambda x, y: torch.lerp(x, y, 0.3), lambda: [X(), X() + 1]),
        "addcmul": (lambda x, y: torch.addcmul(x, y, x, value=0.3), lambda: [X(), X() + 1]),
        "isnan": (lambda x: x.isnan().any(), lambda: [X()]),
        "nan2num": (lambda x: x.nan_to_num(), lambda: [X()]),
        "cumsum0": (lambda x: x.cumsum(0), lambda: [X()]),
        "cumsum1": (lambda x: x.cumsum(1), lambda: [X()]),
        "cummax": (lambda x: x.cummax(1)[0], lambda: [X()]),
        "diff": (lambda x: x.diff(dim=-1), lambda: [X()]),
        "rand": (lambda x: x + torch.rand_like(x), lambda: [X()]),
        "randn": (lambda x: x + torch.randn_like(x), lambda: [X()]),
        "dropout": (lambda x: F.dropout(x, 0.1, True), lambda: [X()]),
        "bernoulli": (lambda x: torch.bernoulli(x.sigmoid()), lambda: [X()]),
        "small": (lambda x, y: (x + y) * 2, lambda: [R(4, 4), R(4, 4)]),
        "scalar": (lambda x: (x * 2 + 1).tanh(), lambda: [R(())]),
        "multi": (lambda x, y: (x + y, x - y, x * y, x / y), lambda: [R(64, 64), R(64, 64)]),
        "arange": (lambda x: x + torch.arange(512), lambda: [X()]),
        "sincos": (lambda x: (x.sin(), x.cos()), lambda: [X()]),
        "posenc": (
            lambda t: torch.cat(
                [
                    (t[:, None] * torch.exp(-torch.arange(128) / 128 * 9)).sin(),
                    (t[:, None] * torch.exp(-torch.arange(128) / 128 * 9)).cos(),
                ],
                -1,
            ),
            lambda: [R(64)],
        ),
        "mse": (F.mse_loss, lambda: [X(), X() + 1]),
        "smoothl1": (F.smooth_l1_loss, lambda: [X(), X() + 1]),
        "bce": (F.binary_cross_entropy_with_logits, lambda: [X(), (X() > 0).float()]),
        "kl": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1)), lambda: [X(), X() + 1]),
        "glu": (F.glu, lambda: [X()]),
        "prelu": (F.prelu, lambda: [R(8, 64, 28, 28), R(64)]),
        "hist": (lambda x: torch.bincount(x, minlength=100), lambda: [I(100, 10000)]),
        "logical": (lambda x, y: (x > 0) & (y < 0) | (x == y), lambda: [X(), X() + 0.5]),
        "erfinv": (lambda x: torch.erfinv(x.tanh()), lambda: [X()]),
        "lgamma": (lambda x: torch.lgamma(x.abs() + 0.1), lambda: [X()]),
        "pow5": (lambda x: x**5, lambda: [X()]),
        "powt": (lambda x, y: x.abs() ** y, lambda: [X(), X()]),
        "fft": (lambda x: torch.fft.rfft(x).abs(), lambda: [R(64, 1024)]),
        "stft": (
            lambda x: torch.stft(x, 256, return_complex=True, window=torch.hann_window(256)).abs(),
            lambda: [R(4, 8000)],
        ),
        "inv": (lambda x: torch.linalg.inv(x + torch.eye(16) * 4) * 2, lambda: [R(32, 16, 16)]),
        "solve": (lambda x, y: torch.linalg.solve(x + torch.eye(16) * 4, y), lambda: [R(32, 16, 16), R(32, 16, 2)]),
        "det": (torch.linalg.det, lambda: [R(32, 8, 8)]),
        "svdvals": (torch.linalg.svdvals, lambda: [R(4, 16, 16)]),
        "cross": (torch.linalg.cross, lambda: [R(4096, 3), R(4096, 3)]),
        "quat": (lambda q: q / q.norm(dim=-1, keepdim=True), lambda: [R(4096, 4)]),
        "meshgrid": (lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij"), -1), lambda: [R(128), R(128)]),
        "vander": (lambda x: torch.vander(x, 8), lambda: [R(512)]),
        "trapz": (lambda x: torch.trapezoid(x, dim=-1), lambda: [X()]),
        "rnncell": (
            lambda x, h, w, u, b: torch.lstm_cell(x, (h, h), w, u, b, b),
            lambda: [R(32, 64), R(32, 128), R(512, 64), R(512, 128), R(512)],
        ),
    },
}
