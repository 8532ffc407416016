"""Models of images as their users write them: numbers and tables made in the forward, numpy, masks, buffers.

What `training_models` lacks: a program whose small parts lie on the CPU, depend on data, or break the graph. Names
begin with ``user_``; `user_data` has models of other data.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from training_models import Built, images, model, of

Tensor = torch.Tensor


def convs(widths: list[int], stride: int = 2) -> nn.Sequential:
    """Convolutions with batch norm and ReLU, each halving the image."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


class Codebook(nn.Module):
    """Vector quantization whose codes are running means of what chose them."""

    def __init__(self, width: int, codes: int) -> None:
        super().__init__()
        self.encoder = convs([3, width // 2, width])
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width // 2, 3, 4, 2, 1)
        )
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """The image again, or the loss."""
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat = z.reshape(-1, z.shape[-1]).float()
        far = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.float().t() + self.codes.float().pow(2).sum(1)
        at = far.argmin(1)
        hot = F.one_hot(at, self.codes.shape[0]).to(flat.dtype)
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.99).add_(hot.sum(0), alpha=0.01)
                self.sums.mul_(0.99).add_(hot.t() @ flat, alpha=0.01)
                total = self.counts.sum()
                smooth = (self.counts + 1e-5) / (total + self.codes.shape[0] * 1e-5) * total
                self.codes.copy_(self.sums / smooth[:, None])
        chosen = F.embedding(at, self.codes).view_as(z).to(z.dtype)
        straight = z + (chosen - z).detach()
        out = self.decoder(straight.permute(0, 3, 1, 2))
        return out if labels is None else F.mse_loss(out.float(), x.float()) + 0.25 * F.mse_loss(z, chosen.detach())


@model
def user_codebook(size: str) -> Built:
    """Nearest codes, and buffers that are updated in the forward."""
    x = images(size, 32, of(size, 16, 64, 128))
    return Codebook(of(size, 8, 128, 256), of(size, 16, 512, 1024)), {"x": x, "labels": torch.zeros(1)}


class Contrast(nn.Module):
    """Two augmented views of each image, which are to be alike."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convs([3, width, 2 * width, 4 * width]), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 128))

    def augmented(self, x: Tensor) -> Tensor:
        """Flipped, cropped, brighter or darker, grey at times."""
        n = x.shape[0]
        turn = torch.eye(2, 3, device=x.device, dtype=x.dtype).repeat(n, 1, 1)
        turn[:, 0, 0] = torch.where(torch.rand(n, device=x.device) < 0.5, -1.0, 1.0).to(x.dtype)
        turn[:, :, :2] = turn[:, :, :2] * (0.5 + 0.5 * torch.rand(n, 1, 1, device=x.device)).to(x.dtype)
        x = F.grid_sample(x, F.affine_grid(turn, x.shape, align_corners=False), align_corners=False)
        x = x * (0.6 + 0.8 * torch.rand(n, 1, 1, 1, device=x.device)).to(x.dtype)
        grey = (x * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1).to(x)).sum(1, keepdim=True).expand_as(x)
        return torch.where(torch.rand(n, 1, 1, 1, device=x.device) < 0.2, grey, x)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Features, or the loss of pairs."""
        if labels is None:
            return self.head(self.body(x))
        z = F.normalize(self.head(self.body(torch.cat([self.augmented(x), self.augmented(x)]))).float(), dim=1)
        n = x.shape[0]
        scores = z @ z.t() / 0.1
        scores = scores.masked_fill(torch.eye(2 * n, dtype=torch.bool).to(z.device), float("-inf"))
        return F.cross_entropy(scores, torch.cat([torch.arange(n) + n, torch.arange(n)]).to(z.device))


@model
def user_contrast(size: str) -> Built:
    """Augmentation in the forward, a mask and targets made on the CPU."""
    return Contrast(of(size, 8, 64, 64)), {"x": images(size, 128, of(size, 16, 96, 160)), "labels": torch.zeros(1)}


class Rays(nn.Module):
    """A radiance field: encoded places, a deep network, densities multiplied along rays."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(63 if k == 0 else width, width) for k in range(5)])
        self.second = nn.ModuleList([nn.Linear(width + 63 if k == 0 else width, width) for k in range(3)])
        self.density, self.color = nn.Linear(width, 1), nn.Sequential(nn.Linear(width, width // 2), nn.ReLU())
        self.out = nn.Linear(width // 2, 3)

    def forward(self, origins: Tensor, directions: Tensor, labels: Tensor | None = None) -> Tensor:
        """Colors of rays, or the loss."""
        depth = torch.linspace(2.0, 6.0, 64).to(origins)
        places = origins[:, None] + directions[:, None] * depth[None, :, None]
        powers = 2.0 ** torch.arange(10).to(places)
        angles = (places[..., None, :] * powers[:, None]).flatten(-2)
        x = given = torch.cat([places, angles.sin(), angles.cos()], -1)
        for layer in self.first:
            x = F.relu(layer(x))
        x = torch.cat([x, given], -1)
        for layer in self.second:
            x = F.relu(layer(x))
        steps = torch.cat([depth[1:] - depth[:-1], torch.tensor([1e4]).to(depth)])
        opaque = 1 - torch.exp(-F.relu(self.density(x)[..., 0].float()) * steps)
        through = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], -1), -1)[:, :-1]
        seen = ((opaque * through)[..., None] * torch.sigmoid(self.out(self.color(x)).float())).sum(1)
        return seen if labels is None else F.mse_loss(seen, labels.float())


@model
def user_rays(size: str) -> Built:
    """Tables of frequencies and depths made on the CPU, products along rays."""
    n = of(size, 8, 1024, 4096)
    rays = {"origins": torch.randn(n, 3), "directions": torch.randn(n, 3)}
    return Rays(of(size, 16, 256, 256)), rays | {"labels": torch.rand(n, 3)}


class Denoiser(nn.Module):
    """A diffusion transformer for images of patches; noise and schedule in the forward."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        betas = np.linspace(1e-4, 0.02, 1000)
        self.register_buffer("kept", torch.from_numpy(np.cumprod(1.0 - betas)))  # float64
        self.patch, self.width = nn.Conv2d(4, width, 2, 2), width
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.names = nn.Embedding(11, width)
        self.place = nn.Parameter(torch.zeros(1, 256, width))
        self.layers = nn.ModuleList(Modulated(width) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 16)

    def forward(self, x: Tensor, classes: Tensor, labels: Tensor | None = None) -> Tensor:
        """The noise, or the loss."""
        n = x.shape[0]
        t = torch.randint(0, 1000, (n,), device=x.device)
        a = self.kept[t].view(-1, 1, 1, 1).float()
        noise = torch.randn_like(x)
        noisy = (a.sqrt() * x + (1 - a).sqrt() * noise).to(x.dtype)
        speed = torch.exp(-math.log(10000) * torch.arange(start=0, end=128, dtype=torch.float32) / 128)
        angles = t[:, None].float() * speed.to(t.device)[None]
        c = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype))
        if self.training:
            drop = torch.rand(n, device=x.device) < 0.1
            classes = torch.where(drop, torch.full_like(classes, 10), classes)
        c = c + self.names(classes)
        h = self.patch(noisy).flatten(2).transpose(1, 2)
        h = h + self.place[:, : h.shape[1]]
        for layer in self.layers:
            h = layer(h, c)
        side = x.shape[-1] // 2
        out = self.out(self.norm(h)).view(n, side, side, 2, 2, 4)
        out = torch.einsum("nhwpqc->nchpwq", out).reshape(n, 4, 2 * side, 2 * side)
        return out if labels is None else F.mse_loss(out.float(), noise.float())


class Modulated(nn.Module):
    """A layer whose norms are scaled and shifted by a condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Like `x`."""
        shift, scale, gate, shift_b, scale_b, gate_b = self.condition(c)[:, None].chunk(6, -1)
        n, s, w = x.shape
        q, k, v = self.qkv(self.a(x) * (1 + scale) + shift).reshape(n, s, 3, w // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + gate * self.proj((((q * 64**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + gate_b * self.mlp(self.b(x) * (1 + scale_b) + shift_b)


@model
def user_denoiser(size: str) -> Built:
    """A schedule in float64, frequencies made on the CPU, modulated layers."""
    n, side = of(size, 2, 16, 32), of(size, 8, 32, 32)
    inputs = {"x": torch.randn(n, 4, side, side), "classes": torch.arange(n) % 10, "labels": torch.zeros(1)}
    return Denoiser(of(size, 64, 384, 768), of(size, 1, 4, 12)), inputs


class Styled(nn.Module):
    """Weights scaled by a style for each image, blurred upsampling, noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(256, 256), nn.LeakyReLU(0.2))))
        self.start = nn.Parameter(torch.randn(1, width, 8, 8))
        self.styles = nn.ModuleList(nn.Linear(256, width) for _ in range(4))
        self.weights = nn.ParameterList(torch.randn(width, width, 3, 3) for _ in range(4))
        self.noise, self.rgb = nn.Parameter(torch.zeros(4)), nn.Conv2d(width, 3, 1)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Images, or the loss of a critic that is always right."""
        w = self.map(F.normalize(z, dim=1))
        x = self.start.to(w.dtype).expand(z.shape[0], -1, -1, -1)
        tap = torch.tensor([1.0, 3.0, 3.0, 1.0])
        blur = (torch.outer(tap, tap) / tap.sum() ** 2 * 4).to(x)
        for k, (style, weight) in enumerate(zip(self.styles, self.weights, strict=True)):
            x = self.scaled(x, weight, style(w))
            n, c, h, _ = x.shape
            wide = x.new_zeros(n, c, h, 2, h, 2)
            wide[:, :, :, 0, :, 0] = x
            wide = F.pad(wide.reshape(n, c, 2 * h, 2 * h), (2, 1, 2, 1))
            x = F.conv2d(wide, blur.expand(c, 1, 4, 4), groups=c)
            x = F.leaky_relu(x + self.noise[k].to(x.dtype) * torch.randn(n, 1, 2 * h, 2 * h).to(x), 0.2) * math.sqrt(2)
        out = self.rgb(x)
        return out if labels is None else F.softplus(-out.float().mean((1, 2, 3))).mean()

    @staticmethod
    def scaled(x: Tensor, weight: Tensor, style: Tensor) -> Tensor:
        """A convolution whose weights are scaled for each image, and normalized."""
        n, c, h, w = x.shape
        own = weight[None] * (style[:, None, :, None, None] + 1)
        own = own * torch.rsqrt(own.float().pow(2).sum((2, 3, 4), keepdim=True) + 1e-8).to(own.dtype)
        out = F.conv2d(x.reshape(1, n * c, h, w), own.reshape(n * c, c, 3, 3).to(x.dtype), padding=1, groups=n)
        return out.reshape(n, c, h, w)


@model
def user_styled(size: str) -> Built:
    """Convolutions grouped by image, a filter and noise made on the CPU."""
    return Styled(of(size, 8, 128, 256)), {"z": torch.randn(of(size, 2, 8, 16), 256), "labels": torch.zeros(1)}


class Detector(nn.Module):
    """Anchors made by numpy, boxes, a focal loss and the hardest background."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = convs([3, width, 2 * width, 4 * width, 4 * width])
        self.classes, self.boxes = nn.Conv2d(4 * width, 3 * 10, 3, padding=1), nn.Conv2d(4 * width, 3 * 4, 3, padding=1)

    def forward(self, x: Tensor, truth: Tensor, labels: Tensor | None = None) -> Tensor:
        """Boxes and scores of the best places, or the loss."""
        h = self.body(x)
        n, _, rows, columns = h.shape
        y, w = np.meshgrid(np.arange(rows) * 16 + 8, np.arange(columns) * 16 + 8, indexing="ij")
        centers = torch.as_tensor(np.stack([w, y], -1).reshape(-1, 1, 2).repeat(3, 1)).to(h)
        sizes = torch.tensor([[32.0, 32.0], [64.0, 32.0], [32.0, 64.0]]).to(h).expand(rows * columns, 3, 2)
        anchors = torch.cat([centers, sizes], -1).reshape(1, -1, 4)
        moved = self.boxes(h).permute(0, 2, 3, 1).reshape(n, -1, 4)
        logits = self.classes(h).permute(0, 2, 3, 1).reshape(n, -1, 10).float()
        boxes = torch.cat(
            [anchors[..., :2] + moved[..., :2] * anchors[..., 2:], anchors[..., 2:] * moved[..., 2:].exp()], -1
        )
        if labels is None:
            best, at = logits.amax(-1).sigmoid().topk(20)
            return torch.cat([boxes.gather(1, at[..., None].expand(-1, -1, 4)), best[..., None].to(boxes.dtype)], -1)
        far = (boxes[..., :2].float() - truth[:, None, :2].float()).norm(dim=-1)
        near = far < 40
        target = torch.zeros_like(logits)
        target[near] = F.one_hot(labels, 10).float()[:, None].expand(-1, near.shape[1], -1)[near]
        p = logits.sigmoid()
        focal = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        focal = focal * (1 - (p * target + (1 - p) * (1 - target))) ** 2
        hard = focal.sum(-1).masked_fill(near, 0).topk(50, dim=1).values.mean()
        shape = F.smooth_l1_loss(boxes.float(), truth[:, None].float().expand_as(boxes), reduction="none").sum(-1)
        return hard + (shape * near).sum() / near.sum().clamp(min=1)


@model
def user_detector(size: str) -> Built:
    """Anchors by numpy, rows chosen by masks, the largest of many."""
    x = images(size, 32, of(size, 96, 256, 320))
    n = len(x)
    truth = torch.cat([torch.rand(n, 2) * 200, 20 + torch.rand(n, 2) * 50], 1)
    return Detector(of(size, 8, 32, 64)), {"x": x, "truth": truth, "labels": torch.arange(n) % 10}
