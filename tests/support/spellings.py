"""Other Python spellings of ATen's calls, as functions of the call's own arguments.

mul(a, b)       ->      a * b, b * a, torch.mul(a, b), a.mul(b), a.clone().mul_(b), a / (1 / b)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Spelling = Callable[..., Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _over_reciprocal(a: Any, b: Any) -> Any:
    return a / (1.0 / b) if _is_number(b) and b else a * b


def _times_reciprocal(a: Any, b: Any) -> Any:
    return a * (1.0 / b) if _is_number(b) and b else a * b.reciprocal()


def _safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    x = x if dtype is None else x.to(dtype)
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def _powers(x: Any, n: Any) -> Any:
    return x * x if n == 2 else x * x * x if n == 3 else x**n


def _square(x: Any, n: Any) -> Any:
    return x.square() if n == 2 else x * x.square() if n == 3 else torch.pow(x, n)


def _ordered(x: Any, order: Any) -> Any:
    return x.movedim(tuple(order), tuple(range(len(order))))


def _narrowed(x: Any, dim: int = 0, start: int = 0, end: int = 2**63 - 1, step: int = 1) -> Any:
    return x[(..., slice(start, end, step))] if dim == -1 else torch.ops.aten.slice.Tensor(x, dim, start, end, step)


# By ATen's name; each takes the arguments of the call.
SPELLINGS: dict[str, tuple[Spelling, ...]] = {
    "mul": (
        operator.mul, lambda a, b: b * a, torch.mul, lambda a, b: a.mul(b), lambda a, b: a.clone().mul_(b),
        torch.multiply, _over_reciprocal,
    ),
    "add": (
        operator.add, lambda a, b: b + a, torch.add, lambda a, b: a.add(b), lambda a, b: a.clone().add_(b),
        lambda a, b: a - (-b), lambda a, b: torch.sum(torch.stack(torch.broadcast_tensors(a, b)), 0),
    ),
    "sub": (operator.sub, lambda a, b: a + (-b), torch.sub, lambda a, b: a.sub(b), torch.subtract),
    "div": (operator.truediv, torch.div, lambda a, b: a.div(b), torch.true_divide, _times_reciprocal),
    "neg": (operator.neg, lambda x: x * -1, torch.negative, lambda x: x.neg(), lambda x: x / -1),
    "pow": (operator.pow, torch.pow, _powers, _square, lambda x, n: x.pow(n), torch.float_power),
    "sqrt": (torch.sqrt, lambda x: x**0.5, lambda x: x.sqrt()),
    "rsqrt": (
        torch.rsqrt, lambda x: 1.0 / torch.sqrt(x), lambda x: x**-0.5, lambda x: x.sqrt().reciprocal(),
        lambda x: torch.pow(x, -0.5),
    ),
    "sigmoid": (
        torch.sigmoid, lambda x: x.sigmoid(), F.sigmoid, torch.special.expit, lambda x: 1 / (1 + torch.exp(-x)),
        lambda x: 0.5 * (torch.tanh(0.5 * x) + 1),
    ),
    "tanh": (torch.tanh, lambda x: x.tanh(), F.tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1),
    "erf": (torch.erf, lambda x: x.erf(), torch.special.erf, lambda x: 1 - torch.erfc(x)),
    "relu": (torch.relu, F.relu, lambda x: x.relu(), lambda x: x.clamp(min=0), lambda x: x * (x > 0)),
    "exp": (torch.exp, lambda x: x.exp(), lambda x: torch.exp2(x * 1.4426950408889634)),
    "abs": (torch.abs, abs, lambda x: x.abs(), torch.absolute, lambda x: torch.where(x < 0, -x, x)),
    "silu": (F.silu, lambda x: x * torch.sigmoid(x), lambda x: x / (1 + torch.exp(-x))),
    "gelu": (F.gelu, lambda x, **given: F.gelu(x.clone(), **given), lambda x, **given: F.gelu(x * 1.0, **given)),
    "softplus": (F.softplus, lambda x: torch.log1p(torch.exp(x)), lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "mean": (
        torch.mean, lambda x, dim, keep=False: x.mean(dim, keepdim=keep), lambda x, dim, keep=False: x.mean(dim, keep),
        lambda x, dim, keep=False: x.sum(dim, keepdim=keep) / x.shape[-1],
        lambda x, dim, keep=False: x.mean(-1).unsqueeze(-1) if keep else x.mean(-1),
        lambda x, dim, keep=False: F.adaptive_avg_pool1d(x, 1) if keep else x.mean(-1),
    ),
    "softmax": (
        lambda x, dim, dtype=None: F.softmax(x, dim=dim, dtype=dtype), lambda x, dim, dtype=None: x.softmax(dim, dtype),
        torch.softmax, _safe_softmax, lambda x, dim, dtype=None: torch.log_softmax(x, dim, dtype).exp(),
    ),
    "matmul": (
        operator.matmul, torch.matmul, lambda a, b: a.matmul(b), lambda a, b: torch.einsum("...ij,...jk->...ik", a, b),
        torch.bmm, torch.mm, lambda a, b: F.linear(a, b.transpose(-1, -2)),
        lambda a, b: (b.transpose(-1, -2) @ a.transpose(-1, -2)).transpose(-1, -2),
        lambda a, b: torch.tensordot(a, b, dims=1), lambda a, b: (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2),
    ),
    "linear": (
        F.linear, lambda x, w, b=None: x @ w.T if b is None else x @ w.T + b,
        lambda x, w, b=None: torch.einsum("...k,nk->...n", x, w) if b is None else torch.addmm(b, x, w.t()),
        lambda x, w, b=None: x.matmul(w.t()) if b is None else b + torch.matmul(x, w.transpose(0, 1)),
        lambda x, w, b=None: F.linear(x, w) if b is None else F.linear(x, w).add_(b),
        lambda x, w, b=None: torch.mm(x, w.mT) if b is None else torch.tensordot(x, w, ([-1], [1])) + b,
    ),
    "conv2d": (
        torch.conv2d, F.conv2d,
        lambda x, w, b=None, *more: F.conv2d(x, w, None, *more) + (0 if b is None else b.view(-1, 1, 1)),
    ),
    "batch_norm": (
        lambda x, w, b, m, v, training, momentum, eps, _: F.batch_norm(x, m, v, w, b, training, momentum, eps),
    ),
    "where": (
        torch.where, lambda c, a, b: torch.where(~c, b, a), lambda c, a, b: b.where(~c, a),
        lambda c, a, b: a.masked_fill(~c, b), lambda c, a, b: a.masked_fill(c.logical_not(), b),
    ),
    "masked_fill": (
        torch.masked_fill, lambda x, m, value: x.masked_fill(m, value), lambda x, m, value: torch.where(m, value, x),
        lambda x, m, value: x.clone().masked_fill_(m, value),
    ),
    "dropout": (
        lambda x, p, training: F.dropout(x, p, training), torch.dropout,
        lambda x, p, training: torch.nn.Dropout(p).train(training)(x),
        lambda x, p, training: F.dropout(x.clone(), p, training, inplace=True),
    ),
    "transpose": (
        torch.transpose, lambda x, a, b: x.transpose(a, b), torch.swapaxes, lambda x, a, b: x.swapdims(b, a),
        lambda x, a, b: x.movedim((a, b), (b, a)), lambda x, a, b: x.mT if {a, b} <= {-1, -2} else x.transpose(b, a),
    ),
    "permute": (torch.permute, lambda x, order: x.permute(*order), lambda x, order: x.permute(order), _ordered),
    "t": (torch.t, lambda x: x.T, lambda x: x.mT, lambda x: x.transpose(0, 1), lambda x: x.permute(1, 0)),
    "cat": (torch.cat, torch.concat, torch.concatenate, lambda xs, dim=0: torch.cat(tuple(xs), dim=dim)),
    "stack": (
        torch.stack, lambda xs, dim=0: torch.cat([x.unsqueeze(dim) for x in xs], dim),
        lambda xs, dim=0: torch.stack(tuple(xs), dim=dim),
    ),
    "slice": (_narrowed,),
    "unsqueeze": (torch.unsqueeze, lambda x, d: x.unsqueeze(d)),
    "squeeze": (lambda x, d: x.squeeze(d), lambda x, d: x.select(d, 0)),
    "reshape": (torch.reshape, lambda x, sizes: x.reshape(*sizes), lambda x, sizes: x.contiguous().view(sizes)),
    "view": (lambda x, sizes: x.view(*sizes), lambda x, sizes: x.reshape(sizes)),
    "expand": (lambda x, sizes: x.expand(*sizes), lambda x, sizes: torch.broadcast_to(x, sizes)),
    "floor": (torch.floor, lambda x: x.floor()),
    "ceil": (torch.ceil, lambda x: x.ceil(), lambda x: -torch.floor(-x)),
    "trunc": (torch.trunc, lambda x: x.trunc(), torch.fix),
    "maximum": (torch.maximum, torch.max, torch.fmax, lambda a, b: torch.where(a > b, a, b)),
    "minimum": (torch.minimum, torch.min, lambda a, b: torch.where(a < b, a, b)),
    "amax": (torch.amax, lambda x, dim, keep=False: x.max(dim[0], keepdim=keep).values),
    "clone": (torch.clone, lambda x: x.clone(), lambda x: x.contiguous()),
    "_to_copy": (lambda x, dtype: x.to(dtype), lambda x, dtype: x.type(dtype)),
    "view_as_complex": (torch.view_as_complex, lambda x: torch.complex(x[..., 0], x[..., 1])),
    "view_as_real": (torch.view_as_real, lambda x: torch.stack([x.real, x.imag], -1)),
}  # fmt: skip

# What gives a value again, put where one is read.
CANCELLING: dict[str, Spelling] = {
    "view and back": lambda x: x.reshape(-1).reshape(x.shape),
    "flat and back": lambda x: x.flatten().unflatten(0, tuple(x.shape)),
    "unsqueezed and squeezed": lambda x: x.unsqueeze(0).squeeze(0),
    "last dim added and taken": lambda x: x.unsqueeze(-1)[..., 0],
    "turned and back": lambda x: x.transpose(0, -1).transpose(0, -1),
    "turned, laid out, and back": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "permuted twice": lambda x: x.movedim(0, -1).movedim(-1, 0),
    "cast to its own dtype": lambda x: x.type_as(x),
    "widened and back": lambda x: x.to(torch.float64).type_as(x),
    "times one": lambda x: x * 1,
    "over one": lambda x: x / 1,
    "plus zero": lambda x: x + 0,
    "times -1 twice": lambda x: (-x).neg(),
    "copied": lambda x: x.clone(),
    "laid out": lambda x: x.contiguous(),
    "sliced whole": lambda x: x[:],
    "split and joined": lambda x: torch.cat(x.split(1, 0), 0),
    "chunked and joined": lambda x: torch.cat(x.chunk(2, -1), -1),
    "joined alone": lambda x: torch.cat([x]),
    "expanded to its shape": lambda x: x.expand(x.shape),
    "dropped in evaluation": lambda x: F.dropout(x, 0.5, False),
    "dropped with p = 0": lambda x: F.dropout(x, 0.0, True),
    "detached": lambda x: x.detach(),
    "padded by nothing": lambda x: F.pad(x, (0, 0)),
    "rolled twice": lambda x: x.roll(1, 0).roll(-1, 0),
    "squared and rooted": lambda x: x.sign() * (x * x).sqrt(),
    "rounded to bfloat16": lambda x: x.to(torch.bfloat16).type_as(x),
    "repeated once": lambda x: x.repeat(*[1] * x.dim()),
}

# Neighbours: what programs compute before and after.
NEIGHBOURS: dict[str, Spelling] = {
    "neg": torch.neg, "tanh": torch.tanh, "relu": torch.relu, "silu": F.silu, "sin": torch.sin,
    "scaled": lambda x: x * 0.125, "shifted": lambda x: x + 1.0, "halved": lambda x: x / 2,
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1), "copied": torch.clone,
    "normalized": lambda x: x / (x.abs().amax() + 1), "as float32": lambda x: x.float(),
    "as bfloat16": lambda x: x.to(torch.bfloat16), "masked": lambda x: torch.where(x > 0, x, 0.5 * x),
    "summed beside": lambda x: x + x.sum(-1, keepdim=True), "softmax": lambda x: torch.softmax(x, -1),
}  # fmt: skip


def _by_hand_norm(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _by_hand_layer_norm(x: Any) -> Any:
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt(centered.pow(2).mean(-1, keepdim=True) + 1e-5)


def _attention(x: Any) -> Any:
    return torch.softmax(x @ x.transpose(-1, -2) * 0.25, -1) @ x


# What other rules of the library match, put behind or before a program.
OF_OTHER_RULES: dict[str, Spelling] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x * 0.7071067811865476)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "rms_norm": _by_hand_norm,
    "layer_norm": _by_hand_layer_norm,
    "sdpa": _attention,
    "identity": lambda x: (x * 1) + 1,
    "idempotent": lambda x: torch.relu(torch.relu(x)),
    "reordered_twice": lambda x: x.transpose(0, -1).transpose(0, -1),
    "linear": lambda x: torch.relu(F.linear(x, torch.ones_like(x[..., :1].flatten()[:1]).expand(3, x.shape[-1]))),
    "merged_linear": lambda x: F.linear(x, x.flatten(0, -2)[:3]) + F.linear(x, x.flatten(0, -2)[:3].sin()),
}
