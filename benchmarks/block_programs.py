"""Blocks of real models, images and signals: a third of what `operators.py --table blocks` runs.

Weights are inputs. With `--train` all floating inputs are leaves, as parameters are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from operator_programs import Program, R

LAST = torch.channels_last


def W(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Weights of a layer: small enough that its results are about as large as its inputs."""
    fan = 1
    for size in sizes[1:]:
        fan *= size
    return torch.randn(sizes) / fan**0.5


def P(*sizes: int) -> torch.Tensor:  # noqa: N802
    """Positive numbers that are not near 0."""
    return torch.rand(sizes) + 0.5


def norm(x, m, v, w, b):
    """Batch norm: in evaluation, or in training where gradients are wanted."""
    if torch.is_grad_enabled():
        return F.batch_norm(x, None, None, w, b, training=True)
    return F.batch_norm(x, m, v, w, b)


def N(c: int) -> list[torch.Tensor]:  # noqa: N802
    """What a batch norm is given."""
    return [R(c), P(c), P(c), R(c)]


def separable(x, d, p, m, v, w, b):
    """MobileNet's: depthwise, then pointwise."""
    return F.relu6(norm(F.conv2d(F.relu6(F.conv2d(x, d, padding=1, groups=x.shape[1])), p), m, v, w, b))


def inverted(x, e, d, p, n1, n2, n3):
    """MobileNetV2's inverted residual."""
    y = F.relu6(norm(F.conv2d(x, e), *n1.unbind(0)))
    y = F.relu6(norm(F.conv2d(y, d, padding=1, groups=y.shape[1]), *n2.unbind(0)))
    return x + norm(F.conv2d(y, p), *n3.unbind(0))


def fused(x, e, p, n1, n2):
    """EfficientNetV2's fused block."""
    return x + norm(F.conv2d(F.silu(norm(F.conv2d(x, e, padding=1), *n1.unbind(0))), p), *n2.unbind(0))


def bottleneck(x, a, b, c, n1, n2, n3):
    """ResNet's."""
    y = F.relu(norm(F.conv2d(x, a), *n1.unbind(0)))
    y = F.relu(norm(F.conv2d(y, b, padding=1), *n2.unbind(0)))
    return F.relu(x + norm(F.conv2d(y, c), *n3.unbind(0)))


def excite(x, a, b):
    """Squeeze and excite."""
    s = x.mean((2, 3), keepdim=True)
    return x * F.hardsigmoid(F.conv2d(F.relu(F.conv2d(s, a)), b))


def efficient_attention(x, k):
    """ECA: a convolution over the channels of a mean."""
    y = x.mean((2, 3))
    return x * F.conv1d(y[:, None], k, padding=1).sigmoid()[:, 0, :, None, None]


def cbam(x, k):
    """CBAM's attention of places."""
    s = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
    return x * F.conv2d(s, k, padding=3).sigmoid()


def shuffle(x, groups=4):
    """ShuffleNet's shuffle of channels."""
    b, c, h, w = x.shape
    return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)


def shuffle_unit(x, a, d, p):
    """ShuffleNetV2's unit."""
    left, right = x.chunk(2, 1)
    right = F.relu(F.conv2d(right, a))
    right = F.relu(F.conv2d(F.conv2d(right, d, padding=1, groups=right.shape[1]), p))
    return shuffle(torch.cat([left, right], 1), 2)


def convnext(x, d, w, b, u, v, g):
    """ConvNeXt's block."""
    y = F.conv2d(x, d, padding=3, groups=x.shape[1]).permute(0, 2, 3, 1)
    y = F.linear(F.gelu(F.linear(F.layer_norm(y, y.shape[-1:], w, b), u)), v)
    return x + (y * g).permute(0, 3, 1, 2)


def convmixer(x, d, p):
    """ConvMixer's block."""
    x = x + F.gelu(F.conv2d(x, d, padding=4, groups=x.shape[1]))
    return F.gelu(F.conv2d(x, p))


def fire(x, s, a, b):
    """SqueezeNet's fire module."""
    y = F.relu(F.conv2d(x, s))
    return torch.cat([F.relu(F.conv2d(y, a)), F.relu(F.conv2d(y, b, padding=1))], 1)


def up(x, skip, w):
    """U-Net's way up: interpolation, concatenation, convolution."""
    x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
    return F.relu(F.conv2d(torch.cat([skip, x], 1), w, padding=1))


def pyramid(a, b, c):
    """A feature pyramid's way down."""
    b = b + F.interpolate(a, size=b.shape[-2:])
    return b, c + F.interpolate(b, size=c.shape[-2:])


def aspp(x, a, b, c, p):
    """Atrous pyramid pooling."""
    parts = [F.conv2d(x, a), F.conv2d(x, b, padding=2, dilation=2), F.conv2d(x, c, padding=4, dilation=4)]
    whole = F.interpolate(F.conv2d(x.mean((2, 3), keepdim=True), p), size=x.shape[-2:], mode="bilinear")
    return F.relu(torch.cat([*parts, whole], 1))


def spp(x):
    """YOLO's pyramid of pools."""
    a = F.max_pool2d(x, 5, 1, 2)
    b = F.max_pool2d(a, 5, 1, 2)
    return torch.cat([x, a, b, F.max_pool2d(b, 5, 1, 2)], 1)


def focus(x):
    """YOLO's slices into channels."""
    return torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)


def boxes(x, anchors):
    """YOLO's boxes of what a head gives."""
    b, _, h, w = x.shape
    x = x.view(b, 3, 85, h, w).permute(0, 1, 3, 4, 2).sigmoid()
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack([xs, ys], -1).to(x.dtype)
    return torch.cat([(x[..., :2] * 2 + grid - 0.5) * 8, (x[..., 2:4] * 2) ** 2 * anchors, x[..., 4:]], -1)


def overlap(a, b):
    """Intersection over union of each pair of boxes."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])  # noqa: E731
    return inner / (area(a)[:, None] + area(b)[None] - inner)


def suppress(a, s):
    """Matrix NMS: scores lessened by the largest overlap with a better box."""
    order = s.argsort(descending=True)
    iou = overlap(a[order], a[order]).triu(1)
    return s[order] * (1 - iou.amax(0))


def deform(x, o):
    """Features read at learned offsets."""
    h, w = x.shape[-2:]
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
    grid = torch.stack([xs, ys], -1).to(x.dtype) + o.permute(0, 2, 3, 1).tanh() * 0.1
    return F.grid_sample(x, grid, align_corners=True)


def warp(x, flow):
    """An image moved by a flow."""
    h, w = x.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    at = torch.stack([xs, ys]).to(x.dtype) + flow
    at = torch.stack([at[:, 0] * 2 / (w - 1) - 1, at[:, 1] * 2 / (h - 1) - 1], -1)
    return F.grid_sample(x, at, padding_mode="border", align_corners=True)


def modulate(x, s, w):
    """StyleGAN's convolution: weights scaled by a style, then to norm 1."""
    b, c, h, _ = x.shape
    weight = w[None] * s[:, None, :, None, None]
    weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
    return F.conv2d(x.reshape(1, b * c, h, h), weight.flatten(0, 1), padding=1, groups=b).view(b, -1, h, h)


def adain(x, s):
    """Adaptive instance norm."""
    scale, shift = s[..., None, None].chunk(2, 1)
    return F.instance_norm(x) * (1 + scale) + shift


def spade(x, m, g, b):
    """Norm modulated by a map."""
    return F.group_norm(x, 8) * (1 + F.conv2d(m, g, padding=1)) + F.conv2d(m, b, padding=1)


def resnet_time(x, t, w, b, c, u):
    """A diffusion model's block: group norm, SiLU, convolution, time."""
    y = F.conv2d(F.silu(F.group_norm(x, 8, w, b)), c, padding=1)
    return x + F.silu(y + F.linear(F.silu(t), u)[:, :, None, None])


def wavenet(x, f, g, r):
    """WaveNet's gated, dilated, causal convolution."""
    y = F.pad(x, (4, 0))
    y = F.conv1d(y, f, dilation=4).tanh() * F.conv1d(y, g, dilation=4).sigmoid()
    return x + F.conv1d(y, r)


def tcn(x, a, b):
    """A temporal block: causal convolutions with the end cut off."""
    y = F.relu(F.conv1d(x, a, padding=4, dilation=2)[..., :-4])
    return F.relu(x + F.relu(F.conv1d(y, b, padding=4, dilation=2)[..., :-4]))


def conformer(x, p, d, m, v, w, b, q):
    """Conformer's convolution module."""
    y = F.glu(F.conv1d(x.transpose(1, 2), p), 1)
    y = F.conv1d(y, d, padding=7, groups=y.shape[1])
    return x + F.conv1d(F.silu(norm(y, m, v, w, b)), q).transpose(1, 2)


def mel(x, bank):
    """Logarithms of a mel spectrum."""
    s = torch.stft(x, 400, 160, window=torch.hann_window(400), return_complex=True)
    return (bank @ s.abs().square()).clamp(min=1e-10).log10()


def blur(x, k):
    """Blurred, then every second pixel."""
    return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), k.expand(x.shape[1], 1, 3, 3), stride=2, groups=x.shape[1])


def ssim(x, y):
    """Structural similarity by means of windows."""
    mean = lambda t: F.avg_pool2d(t, 7, 1)  # noqa: E731
    a, b = mean(x), mean(y)
    va, vb, cov = mean(x * x) - a * a, mean(y * y) - b * b, mean(x * y) - a * b
    return (((2 * a * b + 0.01) * (2 * cov + 0.03)) / ((a * a + b * b + 0.01) * (va + vb + 0.03))).mean()


def gram(x):
    """Gram matrices of features."""
    f = x.flatten(2)
    return f @ f.transpose(1, 2) / f.shape[-1]


PROGRAMS: dict[str, dict[str, Program]] = {
    "image blocks": {
        "separable": (separable, lambda: [R(2, 64, 56, 56), W(64, 1, 3, 3), W(128, 64, 1, 1), *N(128)]),
        "inverted residual": (
            inverted,
            lambda: [
                R(2, 24, 56, 56),
                W(144, 24, 1, 1),
                W(144, 1, 3, 3),
                W(24, 144, 1, 1),
                P(4, 144),
                P(4, 144),
                P(4, 24),
            ],
        ),
        "inverted residual, last": (
            inverted,
            lambda: [
                R(2, 24, 56, 56).to(memory_format=LAST),
                W(144, 24, 1, 1),
                W(144, 1, 3, 3),
                W(24, 144, 1, 1),
                P(4, 144),
                P(4, 144),
                P(4, 24),
            ],
        ),
        "fused block": (
            fused,
            lambda: [R(2, 32, 28, 28), W(128, 32, 3, 3), W(32, 128, 1, 1), P(4, 128), P(4, 32)],
        ),
        "bottleneck": (
            bottleneck,
            lambda: [
                R(1, 256, 28, 28),
                W(64, 256, 1, 1),
                W(64, 64, 3, 3),
                W(256, 64, 1, 1),
                P(4, 64),
                P(4, 64),
                P(4, 256),
            ],
        ),
        "squeeze and excite": (excite, lambda: [R(4, 96, 28, 28), W(24, 96, 1, 1), W(96, 24, 1, 1)]),
        "excite, last": (
            excite,
            lambda: [R(4, 96, 28, 28).to(memory_format=LAST), W(24, 96, 1, 1), W(96, 24, 1, 1)],
        ),
        "efficient channel attention": (efficient_attention, lambda: [R(4, 128, 28, 28), W(1, 1, 3)]),
        "attention of places": (cbam, lambda: [R(4, 128, 28, 28), W(1, 2, 7, 7)]),
        "channel shuffle": (lambda x: F.relu(shuffle(x)), lambda: [R(8, 128, 28, 28)]),
        "shuffle unit": (
            shuffle_unit,
            lambda: [R(4, 116, 28, 28), W(58, 58, 1, 1), W(58, 1, 3, 3), W(58, 58, 1, 1)],
        ),
        "ConvNeXt": (
            convnext,
            lambda: [R(2, 96, 28, 28), W(96, 1, 7, 7), P(96), R(96), W(384, 96), W(96, 384), R(96)],
        ),
        "ConvMixer": (convmixer, lambda: [R(2, 128, 16, 16), W(128, 1, 9, 9), W(128, 128, 1, 1)]),
        "fire": (fire, lambda: [R(2, 96, 28, 28), W(16, 96, 1, 1), W(64, 16, 1, 1), W(64, 16, 3, 3)]),
        "dense layer": (
            lambda x, m, v, w, b, c: torch.cat([x, F.conv2d(F.relu(norm(x, m, v, w, b)), c, padding=1)], 1),
            lambda: [R(2, 128, 28, 28), *N(128), W(32, 128, 3, 3)],
        ),
        "grouped bottleneck": (
            lambda x, a, g: F.relu(F.conv2d(F.relu(F.conv2d(x, a)), g, padding=1, groups=32)),
            lambda: [R(2, 128, 28, 28), W(128, 128, 1, 1), W(128, 4, 3, 3)],
        ),
        "stem and pool": (
            lambda x, w, m, v, a, b: F.max_pool2d(
                F.relu(norm(F.conv2d(x, w, stride=2, padding=3), m, v, a, b)), 3, 2, 1
            ),
            lambda: [R(1, 3, 224, 224), W(64, 3, 7, 7), *N(64)],
        ),
        "head": (
            lambda x, w, b: F.linear(F.relu6(x).mean((2, 3)), w, b),
            lambda: [R(8, 320, 7, 7), W(1000, 320), R(1000)],
        ),
        "U-Net way up": (up, lambda: [R(2, 64, 28, 28), R(2, 32, 56, 56), W(32, 96, 3, 3)]),
        "U-Net by transposing": (
            lambda x, s, w: F.relu(torch.cat([s, F.conv_transpose2d(x, w, stride=2)], 1)),
            lambda: [R(2, 64, 28, 28), R(2, 32, 56, 56), W(64, 32, 2, 2)],
        ),
        "feature pyramid": (pyramid, lambda: [R(2, 64, 14, 14), R(2, 64, 28, 28), R(2, 64, 56, 56)]),
        "atrous pyramid": (
            aspp,
            lambda: [R(1, 64, 32, 32), W(32, 64, 1, 1), W(32, 64, 3, 3), W(32, 64, 3, 3), W(32, 64, 1, 1)],
        ),
        "pyramid of pools": (spp, lambda: [R(2, 64, 20, 20)]),
        "slices into channels": (focus, lambda: [R(2, 3, 320, 320)]),
        "sub-pixels": (
            lambda x, w: F.relu(F.pixel_shuffle(F.conv2d(x, w, padding=1), 2)),
            lambda: [R(1, 32, 64, 64), W(128, 32, 3, 3)],
        ),
        "into sub-pixels": (lambda x: F.pixel_unshuffle(x, 2) * 2 - 1, lambda: [R(4, 16, 96, 96)]),
        "boxes of a head": (boxes, lambda: [R(2, 255, 40, 40), R(3, 1, 1, 2)]),
        "overlaps of boxes": (overlap, lambda: [torch.rand(500, 4).cumsum(1), torch.rand(400, 4).cumsum(1)]),
        "matrix suppression": (suppress, lambda: [torch.rand(300, 4).cumsum(1), torch.rand(300)]),
        "learned offsets": (deform, lambda: [R(2, 32, 40, 40), R(2, 2, 40, 40)]),
        "warped by a flow": (warp, lambda: [R(2, 16, 64, 64), R(2, 2, 64, 64)]),
        "modulated convolution": (modulate, lambda: [R(4, 32, 32, 32), R(4, 32), W(32, 32, 3, 3)]),
        "adaptive instance norm": (adain, lambda: [R(4, 64, 48, 48), R(4, 128)]),
        "norm by a map": (spade, lambda: [R(2, 64, 32, 32), R(2, 16, 32, 32), W(64, 16, 3, 3), W(64, 16, 3, 3)]),
        "residual with time": (
            resnet_time,
            lambda: [R(2, 64, 32, 32), R(2, 128), P(64), R(64), W(64, 64, 3, 3), W(64, 128)],
        ),
        "blurred pool": (blur, lambda: [R(2, 64, 56, 56), W(1, 1, 3, 3)]),
        "similarity of structure": (ssim, lambda: [R(2, 3, 128, 128), R(2, 3, 128, 128)]),
        "Gram matrices": (gram, lambda: [R(4, 64, 56, 56)]),
        "weight standardization": (
            lambda x, w: F.conv2d(
                x, (w - w.mean((1, 2, 3), keepdim=True)) / (w.var((1, 2, 3), keepdim=True) + 1e-5).sqrt(), padding=1
            ),
            lambda: [R(1, 64, 28, 28), R(64, 64, 3, 3)],
        ),
        "leaky and batch norm": (
            lambda x, c, m, v, w, b: F.leaky_relu(norm(F.conv2d(x, c, stride=2, padding=1), m, v, w, b), 0.2),
            lambda: [R(2, 32, 64, 64), W(64, 32, 4, 4), *N(64)],
        ),
        "generator": (
            lambda x, c, w, b: F.relu(
                F.batch_norm(F.conv_transpose2d(x, c, stride=2, padding=1), None, None, w, b, True)
            ),
            lambda: [R(4, 64, 16, 16), W(64, 32, 4, 4), P(32), R(32)],
        ),
        "volume": (
            lambda x, w: F.max_pool3d(F.relu(F.conv3d(x, w, padding=1)), 2),
            lambda: [R(1, 16, 8, 32, 32), W(16, 16, 3, 3, 3)],
        ),
        "shift": (
            lambda x: (
                torch.cat([x[:, :16].roll(1, 2), x[:, 16:32].roll(-1, 2), x[:, 32:48].roll(1, 3), x[:, 48:]], 1) + x
            ),
            lambda: [R(4, 64, 56, 56)],
        ),
        "pool mixer": (
            lambda x, w, b: x + F.avg_pool2d(F.group_norm(x, 1, w, b), 3, 1, 1, count_include_pad=False) - x,
            lambda: [R(2, 64, 56, 56), P(64), R(64)],
        ),
    },
    "signal blocks": {
        "WaveNet": (wavenet, lambda: [R(2, 64, 1024), W(64, 64, 2), W(64, 64, 2), W(64, 64, 1)]),
        "temporal block": (tcn, lambda: [R(4, 64, 512), W(64, 64, 3), W(64, 64, 3)]),
        "Conformer convolution": (
            conformer,
            lambda: [R(2, 256, 144), W(288, 144, 1), W(144, 1, 15), *N(144), W(144, 144, 1)],
        ),
        "gated convolution": (
            lambda x, w: F.glu(F.conv1d(x, w, padding=1), 1),
            lambda: [R(4, 128, 512), W(256, 128, 3)],
        ),
        "mel spectrum": (mel, lambda: [R(2, 16000), P(80, 201)]),
        "spectral layer": (
            lambda x, w: torch.fft.irfft(
                torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(w), n=256, dim=1, norm="ortho"
            ),
            lambda: [R(4, 256, 128), R(129, 128, 2)],
        ),
        "Fourier mixing": (lambda x: torch.fft.fft2(x, dim=(-1, -2)).real, lambda: [R(4, 128, 256)]),
        "long convolution": (
            lambda x, k: torch.fft.irfft(torch.fft.rfft(x, 1024) * torch.fft.rfft(k, 1024), 1024)[..., :512] + x,
            lambda: [R(4, 64, 512), R(64, 512)],
        ),
        "strided encoder": (
            lambda x, a, b: F.gelu(F.conv1d(F.gelu(F.conv1d(x, a, stride=5)), b, stride=2)),
            lambda: [R(1, 1, 8000), W(128, 1, 10), W(128, 128, 3)],
        ),
        "snake": (lambda x, a: x + (a[:, None] * x).sin().square() / a[:, None], lambda: [R(4, 64, 2048), P(64)]),
        "instance norm of signals": (lambda x: F.leaky_relu(F.instance_norm(x), 0.2), lambda: [R(4, 64, 2048)]),
        "decimated": (
            lambda x, w: F.avg_pool1d(F.relu(F.conv1d(x, w, padding=3)), 4),
            lambda: [R(4, 16, 2048), W(32, 16, 7)],
        ),
        "moving average": (
            lambda x: x - F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, 1),
            lambda: [R(32, 7, 336)],
        ),
        "patches of series": (
            lambda x, w: F.linear((x - x.mean(-1, keepdim=True)).unfold(-1, 16, 8), w),
            lambda: [R(32, 7, 336), W(128, 16)],
        ),
    },
}
