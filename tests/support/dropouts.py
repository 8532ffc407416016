"""Every way to write dropout that is known to us: functions of (x, p)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor


def drop_path(x: Tensor, p: float) -> Tensor:
    """Stochastic depth as vision models write it: one number a sample."""
    keep = 1 - p
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    kept = keep + torch.rand(shape, dtype=x.dtype, device=x.device)
    kept.floor_()
    return x.div(keep) * kept


def drop_path_by_bernoulli(x: Tensor, p: float) -> Tensor:
    """Stochastic depth as timm has it."""
    kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - p)
    kept.div_(1 - p)
    return x * kept


def in_place(x: Tensor, p: float) -> Tensor:
    return F.dropout(x * 1, p, True, inplace=True)


def mask_first(x: Tensor, p: float) -> Tensor:
    mask = (torch.rand_like(x) >= p).to(x.dtype) / (1 - p)
    return mask * x


# Whole elements: each is x * mask * scale.
ELEMENTS = {
    "functional": lambda x, p: F.dropout(x, p),
    "module": lambda x, p: nn.Dropout(p)(x),
    "torch": lambda x, p: torch.dropout(x, p, True),
    "in place": in_place,
    "torch, in place": lambda x, p: torch.dropout_(x * 1, p, True),
    "native": lambda x, p: torch.native_dropout(x, p, True)[0],
    "rand_like >": lambda x, p: x * (torch.rand_like(x) > p) / (1 - p),
    "rand_like >=, cast": lambda x, p: x * (torch.rand_like(x) >= p).to(x.dtype) * (1 / (1 - p)),
    "rand <": lambda x, p: (torch.rand(x.shape) < 1 - p) * x / (1 - p),
    "not <": lambda x, p: x * ~(torch.rand(x.shape) < p) / (1 - p),
    "scaled before": lambda x, p: x / (1 - p) * (torch.rand_like(x) > p),
    "mask first": mask_first,
    "where": lambda x, p: torch.where(torch.rand_like(x) < p, 0.0, x) / (1 - p),
    "where, scaled": lambda x, p: torch.where(torch.rand_like(x) >= p, x / (1 - p), 0.0),
    "masked_fill": lambda x, p: x.masked_fill(torch.rand_like(x) < p, 0.0) / (1 - p),
    "bernoulli of full": lambda x, p: x * torch.bernoulli(torch.full_like(x, 1 - p)) / (1 - p),
    "bernoulli_": lambda x, p: x * torch.empty_like(x).bernoulli_(1 - p) / (1 - p),
    "bernoulli(p)": lambda x, p: x * torch.bernoulli(x.detach(), 1 - p) / (1 - p),
    "bool bernoulli_": lambda x, p: x * torch.empty(x.shape, dtype=torch.bool).bernoulli_(1 - p) / (1 - p),
    "uniform_": lambda x, p: x * (torch.empty_like(x).uniform_() > p) / (1 - p),
    "dropped ones": lambda x, p: x * F.dropout(torch.ones_like(x), p),
}

# One number for several elements.
BROADCAST = {
    "dropout1d": lambda x, p: F.dropout1d(x.flatten(2), p).view(x.shape),
    "dropout2d": lambda x, p: F.dropout2d(x, p),
    "dropout3d": lambda x, p: F.dropout3d(x.unsqueeze(2), p).squeeze(2),
    "feature_dropout": lambda x, p: torch.feature_dropout(x, p, True),
    "drop path": drop_path,
    "drop path, bernoulli": drop_path_by_bernoulli,
    "row mask": lambda x, p: x * (torch.rand(x.shape[:-1]).unsqueeze(-1) > p) / (1 - p),
}

# What is dropped is not zero.
ALPHA = {
    "alpha": lambda x, p: F.alpha_dropout(x, p, True),
    "alpha module": lambda x, p: nn.AlphaDropout(p)(x),
    "feature alpha": lambda x, p: F.feature_alpha_dropout(x, p, True),
}

ALL = {**ELEMENTS, **BROADCAST, **ALPHA}
