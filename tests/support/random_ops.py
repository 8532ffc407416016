"""Operations of random programs: each takes three tensors of any shape and dtype and a number, and never refuses.

What an operation needs of its operands it makes of them: shapes are fitted, indices wrapped, divisors kept from zero.
`EXACT` operations give the same bits in any order of evaluation on small integers, `ROUNDED` ones do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Operation = Callable[..., Any]

LARGEST = 20_000
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


class Operations(dict[str, Operation]):
    """Operations by name."""

    def add(self, function: Operation) -> Operation:
        """As a decorator."""
        self[function.__name__] = function
        return function


EXACT, ROUNDED = Operations(), Operations()
exact, rounded = EXACT.add, ROUNDED.add


def pick(choices: Sequence[Any], n: int) -> Any:
    return choices[n % len(choices)]


def real(x: Tensor) -> Tensor:
    """As floats."""
    return x if x.is_floating_point() else x.to(torch.float32)


def numeric(x: Tensor) -> Tensor:
    return x.to(torch.int64) if x.dtype == torch.bool else x


def whole(x: Tensor) -> Tensor:
    """As integers that every dtype holds; NaN is 0."""
    return x.nan_to_num().clamp(-99, 99).to(torch.int64) if x.is_floating_point() else x.to(torch.int64)


def ranked(x: Tensor, least: int = 1) -> Tensor:
    """With at least so many dims."""
    while x.dim() < least:
        x = x.unsqueeze(0)
    return x


def flat(x: Tensor, ranks: int) -> Tensor:
    """With exactly so many dims: leading ones joined."""
    x = ranked(x, ranks)
    return x.flatten(0, x.dim() - ranks) if x.dim() > ranks else x


def fit(y: Tensor, x: Tensor) -> Tensor:
    """`y`, or as much of it as broadcasts to the shape of `x` without enlarging it."""
    pairs = zip(reversed(y.shape), reversed(x.shape), strict=False)
    if y.dim() <= x.dim() and all(a in (1, b) for a, b in pairs):
        return y
    if y.numel() == 0:
        return y.new_ones(())
    if y.numel() >= x.numel():
        return y.reshape(-1)[: x.numel()].reshape(x.shape)
    last = x.shape[-1] if x.dim() else 1
    return y.reshape(-1)[: last if y.numel() >= last else 1]


def full(y: Tensor, x: Tensor) -> Tensor:
    """`y` fitted to all of `x`."""
    return fit(y, x).expand(x.shape)


def alike(y: Tensor, x: Tensor) -> Tensor:
    return full(y, x).to(x.dtype)


def indices(y: Tensor, size: int) -> Tensor:
    return whole(y) % size


def dim_of(x: Tensor, n: int) -> int:
    """A dim, sometimes counted from the end."""
    dim = n % x.dim()
    return dim - x.dim() if (n // 5) % 2 else dim


def limited(result: Tensor, x: Tensor) -> Tensor:
    return result if result.numel() <= LARGEST else x


# -- pointwise ---------------------------------------------------------------------------------------------------------


@exact
def plain(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = numeric(x)
    ways = (
        torch.neg, torch.abs, torch.relu, torch.sign, lambda x: x * 2, lambda x: x + 1, lambda x: 3 - x,
        lambda x: x.clamp(-2, 3), lambda x: F.threshold(x, 1, -1), lambda x: x.clone(), torch.square,
        lambda x: x.clamp(min=1), lambda x: torch.where(x > 0, x, 0), lambda x: x * -1,
    )  # fmt: skip
    return pick(ways, n)(x)


@exact
def tested(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    ways = (
        torch.isnan, torch.isinf, torch.isfinite, torch.logical_not, lambda x: x > 0, lambda x: x != 1,
        lambda x: torch.where(x != x, 0, x).signbit(),  # the sign of NaN means nothing
        lambda x: x == 0, lambda x: x.to(torch.bool),
    )  # fmt: skip
    return pick(ways, n)(x)


@exact
def integral(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = real(x)
    return pick((torch.floor, torch.ceil, torch.trunc, torch.round, torch.frac, torch.nan_to_num), n)(x)


@exact
def bits(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = x if x.dtype == torch.bool else whole(x)
    y = alike(y if y.dtype == torch.bool else whole(y), x)
    ways = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, lambda x, y: ~x]
    if x.dtype != torch.bool:
        ways += [lambda x, y: x << (y & 7), lambda x, y: x >> (y & 7)]
    return pick(ways, n)(x, y)


@exact
def cast(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    dtype = pick((*DTYPES, torch.int32, torch.uint8, torch.float16), n)
    return (x if dtype.is_floating_point or dtype == torch.bool else whole(x)).to(dtype)


@exact
def arithmetic(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x, y = numeric(x), numeric(fit(y, x))
    ways = (
        torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: torch.where(x > y, x, y), lambda x, y: x - y + x, torch.rsub,
    )  # fmt: skip
    return pick(ways, n)(x, y)


@exact
def compared(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    y = fit(y, x)
    ways = (
        torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.logical_and, torch.logical_or,
        torch.logical_xor,
    )  # fmt: skip
    return pick(ways, n)(x, y)


@exact
def chosen(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    y, z = fit(y, x), fit(z, x)
    ways = (
        lambda: torch.where(y > 0, x, z), lambda: torch.where(y.to(torch.bool), z, x),
        lambda: x.masked_fill(full(y, x).to(torch.bool), 1), lambda: torch.where(y > z, 0, x),
        lambda: x.masked_fill(y < z, 0),
    )  # fmt: skip
    return pick(ways, n)()


@exact
def divided(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x, y = whole(x), whole(fit(y, x)) * 2 + 1
    return pick((torch.floor_divide, torch.remainder, torch.fmod, lambda x, y: x // 3, lambda x, y: x % -5), n)(x, y)


@exact
def extreme(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x, y = real(x), real(fit(y, x))
    y = y.nan_to_num() if n % 5 == 2 else y  # the sign of NaN means nothing
    return pick((torch.fmax, torch.fmin, torch.copysign, torch.maximum, torch.heaviside), n)(x, y.to(x.dtype))


@rounded
def curved(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    ways = (
        torch.exp, torch.tanh, torch.sigmoid, F.gelu, F.silu, lambda x: torch.log(x.abs() + 1), torch.sin, torch.cos,
        lambda x: torch.sqrt(x.abs()), lambda x: torch.rsqrt(x.abs() + 0.5), torch.erf, torch.log1p, torch.expm1,
        F.softplus, F.elu, F.leaky_relu, torch.atan, F.mish, F.hardswish, torch.reciprocal, F.logsigmoid, torch.exp2,
        lambda x: F.gelu(x, approximate="tanh"), F.selu, F.hardsigmoid, torch.log2, torch.sinh, torch.asinh, torch.erfc,
        lambda x: x.pow(3), lambda x: x.abs().pow(1.5), lambda x: torch.lgamma(x.abs() + 1), torch.tan,
    )  # fmt: skip
    return pick(ways, n)(real(x))


@rounded
def paired(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = real(x)
    y, z = real(fit(y, x)).to(x.dtype), real(fit(z, x)).to(x.dtype)
    ways = (
        torch.div, torch.atan2, torch.hypot, lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
        lambda a, b, c: torch.lerp(a, b, 0.3), torch.floor_divide, torch.remainder, torch.fmod,
        lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1), torch.logaddexp, lambda a, b, c: a.abs().pow(b),
        lambda a, b, c: torch.xlogy(a, b.abs()), lambda a, b, c: torch.div(a, b, rounding_mode="trunc"),
    )  # fmt: skip
    way = pick(ways, n)
    return way(x, y) if isinstance(way, type(torch.div)) else way(x, y, z)


# -- views -------------------------------------------------------------------------------------------------------------


@exact
def moved(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = ranked(x)
    a, b = n % x.dim(), (n // 7) % x.dim()
    order = [*range(n % x.dim(), x.dim()), *range(n % x.dim())]
    return pick((lambda: x.transpose(a, b), lambda: x.permute(order), lambda: x.movedim(a, b)), n // 3)()


@exact
def reshaped(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = ranked(x)
    d = n % x.dim()
    size = x.shape[d]
    part = next((k for k in (2, 3, 4, 5, 7, 11) if size and size % k == 0), 1)
    ways = (
        lambda: x.reshape(-1), lambda: x.unflatten(d, (part, size // part)) if x.dim() < 5 else x,
        lambda: x.unflatten(d, (size // part, part)) if x.dim() < 5 else x, lambda: x.flatten(0, d),
        lambda: x.unsqueeze(d) if x.dim() < 5 else x, lambda: x.squeeze(), lambda: x.squeeze(d),
        lambda: x.contiguous(), lambda: x.mT.reshape(-1) if x.dim() > 1 else x, lambda: x.flatten(d),
    )  # fmt: skip
    return pick(ways, n // 2)()


@exact
def sliced(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = ranked(x)
    d = dim_of(x, n)
    size = x.shape[d]
    start, step = (n // 3) % (size + 1), 1 + (n // 2) % 3
    ways = (
        lambda: x.narrow(d, start, size - start), lambda: torch.ops.aten.slice(x, d, start, size, step),
        lambda: x.select(d, start - 1) if start else x, lambda: torch.ops.aten.slice(x, d, -start - 1, 99, step),
        lambda: x.flip(d), lambda: x.roll(start, d), lambda: x.unfold(d, min(2, size), step) if x.dim() < 5 else x,
        lambda: x.diagonal(n % 3 - 1, 0, x.dim() - 1) if x.dim() > 1 else x, lambda: x.chunk(2, d)[-1],
        lambda: x.split([start, size - start], d)[n % 2], lambda: x.unbind(d)[-1] if size else x,
        lambda: x.rot90(n % 4, (0, x.dim() - 1)) if x.dim() > 1 else x,
    )  # fmt: skip
    return pick(ways, n)()


@exact
def expanded(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    sizes = [3 if s == 1 and (n >> d) & 1 else -1 for d, s in enumerate(x.shape)]
    ways = (
        lambda: x.expand(sizes), lambda: x.expand(2, *x.shape) if x.dim() < 5 else x,
        lambda: x.repeat_interleave(2, n % x.dim()) if x.dim() else x, lambda: x.repeat([2] + [1] * (x.dim() - 1)),
        lambda: x.repeat([1] * x.dim() + [2]) if 0 < x.dim() < 5 else x,
    )  # fmt: skip
    return limited(pick(ways, n)() if x.dim() else x.expand(3), x)


@exact
def triangle(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = ranked(x, 2)
    return pick((torch.tril, torch.triu), n)(x, n % 5 - 2)


@exact
def created(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = ranked(x)
    ways = (
        lambda: torch.arange(x.shape[-1], device=x.device) + numeric(x),
        lambda: torch.full_like(x, 1), lambda: torch.zeros_like(x), lambda: torch.arange(x.shape[0], device=x.device),
        lambda: x.new_ones(x.shape[-1:]),
        lambda: torch.eye(x.shape[0], x.shape[-1], device=x.device)[:100],
        lambda: torch.linspace(0, 4, 5, device=x.device).to(x.dtype),
        lambda: torch.arange(5, -5, -2, device=x.device),
    )  # fmt: skip
    return pick(ways, n)()


# -- reductions and scans ----------------------------------------------------------------------------------------------


@exact
def reduced(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x, keep = ranked(x), bool((n // 11) % 2)
    d = dim_of(x, n)
    some = sorted({n % x.dim(), (n // 3) % x.dim()})
    ways = [
        lambda: x.sum(d, keepdim=keep), lambda: x.sum(), lambda: x.sum(some, keepdim=keep), lambda: x.any(d, keep),
        lambda: x.all(d), lambda: x.any(), lambda: x.count_nonzero(d), lambda: x.sum(d, dtype=torch.float64),
    ]  # fmt: skip
    if x.numel():
        ways += [
            lambda: x.amax(d, keep), lambda: x.amin(some, keep), lambda: numeric(x).argmax(d, keep),
            lambda: numeric(x).argmin(d), lambda: numeric(x).argmax(), lambda: x.max(), lambda: x.max(d, keep)[n % 2],
            lambda: x.min(d, keep)[n % 2], lambda: torch.aminmax(x, dim=d)[n % 2],
        ]  # fmt: skip
    return pick(ways, n)()


@exact
def extremes(x: Tensor, y: Tensor, z: Tensor, n: int) -> Any:
    """Two results of one call."""
    x = ranked(x)
    d = dim_of(x, n)
    if x.shape[d] == 0:
        return x
    return pick(
        (lambda: x.max(d), lambda: x.min(d, True), lambda: numeric(x).cummax(d), lambda: numeric(x).cummin(d)), n
    )()


@exact
def scanned(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = numeric(ranked(x))
    return pick((lambda d: x.cumsum(d), lambda d: x.diff(dim=d), lambda d: x.clamp(-1, 1).cumprod(d)), n)(dim_of(x, n))


@rounded
def averaged(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x, keep = real(ranked(x)), bool((n // 11) % 2)
    d = dim_of(x, n)
    ways = (
        lambda: x.mean(d, keepdim=keep), lambda: x.mean(), lambda: x.var(d, keepdim=keep), lambda: x.prod(d),
        lambda: x.std(d, correction=0), lambda: x.logsumexp(d, keepdim=keep), lambda: x.norm(dim=d),
        lambda: torch.linalg.vector_norm(x, 1, d, keep), lambda: torch.var_mean(x, d)[n % 2], lambda: x.nansum(d),
        lambda: torch.linalg.vector_norm(x, 3), lambda: x.nanmean(d), lambda: x.logcumsumexp(d), lambda: x.cumsum(d),
    )  # fmt: skip
    return pick(ways, n)()


@rounded
def normalized(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = real(ranked(x))
    d, last = dim_of(x, n), x.shape[-1:]
    weight = real(full(y, x.new_empty(last))).to(x.dtype)
    three = flat(x, 3)
    ways = (
        lambda: x.softmax(d), lambda: x.log_softmax(d), lambda: F.layer_norm(x, last, weight),
        lambda: F.normalize(x, dim=d),
        lambda: F.rms_norm(x, last, weight), lambda: F.layer_norm(x, last), lambda: F.softmin(x, d),
        lambda: F.group_norm(three, 1) if x.numel() > 1 else x,
        lambda: F.batch_norm(three, None, None, training=True) if x.numel() > three.shape[1] else x,
        lambda: (x - x.mean(d, keepdim=True)) * torch.rsqrt(x.var(d, keepdim=True, correction=0) + 1e-5),
    )  # fmt: skip
    return pick(ways, n)()


# -- indexing ----------------------------------------------------------------------------------------------------------


@exact
def gathered(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = ranked(x)
    d = n % x.dim()
    size = x.shape[d]
    if not x.numel():
        return x
    at = indices(y, size).reshape(-1)[:50]
    signed = at - size if (n // 3) % 2 else at
    ways = (
        lambda: x.index_select(d, at), lambda: x.movedim(d, 0)[signed], lambda: x.gather(d, indices(full(y, x), size)),
        lambda: torch.take_along_dim(x, indices(full(y, x), size), d), lambda: x.reshape(-1).take(signed),
        lambda: F.embedding(at % x.shape[0], flat(x, 2)[: x.shape[0]]) if x.dim() > 1 else x[at % x.shape[0]],
        lambda: x[signed % x.shape[0], ..., signed % x.shape[-1]] if x.dim() > 1 else x,
    )  # fmt: skip
    return limited(pick(ways, n)(), x)


@exact
def scattered(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = numeric(ranked(x)).contiguous()
    d = n % x.dim()
    size = x.shape[d]
    if not x.numel():
        return x
    at, source = indices(full(y, x), size), alike(numeric(z), x)
    some = at.reshape(-1)[:size]
    part = source.narrow(d, 0, some.numel())
    ways = (
        lambda: x.scatter_add(d, at, source), lambda: x.scatter_reduce(d, at, source, "amax"),
        lambda: x.scatter_reduce(d, at, source, "amin", include_self=False), lambda: x.scatter(d, at, 2),
        lambda: x.index_add(d, some, part), lambda: x.index_fill(d, some, 1),
        lambda: x.index_put((indices(some, x.shape[0]),), source[:1], accumulate=True),
        lambda: x.scatter_add(d, at.narrow(d, 0, 1), source), lambda: x.index_put((x > 0,), x.new_ones(())),
        lambda: x.scatter_reduce(d, at, source.sign(), "prod"),
        lambda: x.index_copy(d, torch.arange(size, device=x.device), source),
        lambda: x.put(some, part.reshape(-1)[: some.numel()], accumulate=True),
    )  # fmt: skip
    return pick(ways, n)()


@exact
def inserted(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    """Writes of a part, in functional form."""
    x = ranked(x)
    d = n % x.dim()
    if not x.shape[d]:
        return x
    row, tail = x.select(d, -1), x.narrow(d, n % x.shape[d], x.shape[d] - n % x.shape[d])
    ways = (
        lambda: x.select_scatter(alike(y, row), d, -1), lambda: x.slice_scatter(alike(y, tail), d, n % x.shape[d]),
        lambda: x.diagonal_scatter(alike(y, x.diagonal(0, 0, 1)), 0, 0, 1) if x.dim() > 1 else x,
        lambda: F.one_hot(indices(x.reshape(-1)[:40], 5), 5),
    )  # fmt: skip
    return pick(ways, n)()


@exact
def joined(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = ranked(x)
    d = dim_of(x, n)
    y, z = full(y, x), full(z, x)
    ways = (
        lambda: torch.cat([x, y], d), lambda: torch.cat([y, x, z], d),
        lambda: torch.stack([x, y], d) if x.dim() < 5 else x,
        lambda: torch.cat([x.narrow(d, 0, x.shape[d] // 2), z], d), lambda: torch.cat([x, x.flip(d)], d),
    )  # fmt: skip
    return limited(pick(ways, n)(), x)


@exact
def padded(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = numeric(x) if n % 2 else real(x)
    three = flat(x, 3)
    last = three.shape[-1]
    ways = [lambda: F.pad(ranked(x), (n % 3, n % 2), value=1), lambda: F.pad(ranked(x, 2), (1, -1, 0, 2))]
    if three.numel() and last > 2:
        ways += [partial(F.pad, three, (2, 1), mode=mode) for mode in ("reflect", "replicate", "circular")]
    return limited(pick(ways, n // 2)() if x.dim() and x.shape[-1] else x, x)


# -- pooling, resampling, losses, calls --------------------------------------------------------------------------------


@rounded
def pooled(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = flat(real(x), 4)
    if not x.numel() or min(x.shape[2:]) < 2:
        return x
    ways = (
        lambda: F.max_pool2d(x, 2), lambda: F.avg_pool2d(x, 2, 1, 1), lambda: F.adaptive_avg_pool2d(x, (2, 3)),
        lambda: F.interpolate(x, scale_factor=2, mode="nearest"), lambda: F.interpolate(x, (3, 5), mode="bilinear"),
        lambda: F.max_pool2d(x, 2, 1, 1, return_indices=True)[n % 2], lambda: F.interpolate(x, (4, 2), mode="bicubic"),
        lambda: F.adaptive_max_pool2d(x, (2, 2)), lambda: F.avg_pool2d(x, 2, ceil_mode=True),
    )  # fmt: skip
    return limited(pick(ways, n)(), x)


@rounded
def lost(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    x = flat(real(x), 2)
    y, reduction = real(alike(y, x)), pick(("mean", "sum", "none"), n)
    if not x.numel():
        return x
    first = z.reshape(-1)[:1] if z.numel() else x.new_zeros(1)
    classes = indices(first, x.shape[1]).expand(x.shape[0])
    ways = (
        lambda: F.mse_loss(x, y, reduction=reduction), lambda: F.smooth_l1_loss(x, y, reduction=reduction),
        lambda: F.cross_entropy(x, classes, reduction=reduction), lambda: F.l1_loss(x, y, reduction=reduction),
        lambda: F.nll_loss(x, classes, reduction=reduction), lambda: F.huber_loss(x, y, reduction=reduction),
        lambda: F.binary_cross_entropy_with_logits(x, y.clamp(0, 1), reduction=reduction),
        lambda: F.kl_div(x, y, reduction="sum", log_target=True),
    )  # fmt: skip
    return pick(ways, n // 3)()


@rounded
def called(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    """What stays a call between kernels."""
    x = flat(real(x), 2)
    ways = (
        lambda: x @ x.mT if x.shape[0] < 100 else x,
        lambda: x.sort(-1)[0],
        lambda: x.mT @ x if x.shape[1] < 100 else x,
    )
    return pick(ways, n)()


# -- writes in place ---------------------------------------------------------------------------------------------------


@exact
def written(x: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    """In place, on whatever `x` is: an input, a view of one, an intermediate value."""
    if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)):
        return x
    y = alike(numeric(y) if x.dtype != torch.bool else y > 0, x)
    ways = [lambda: x.copy_(y), lambda: x.masked_fill_(y > 0, 1), lambda: x.zero_(), lambda: x.fill_(1)]
    if x.dtype != torch.bool:
        ways += [lambda: x.add_(y), lambda: x.mul_(2), lambda: x.sub_(1), lambda: x.clamp_(-3, 3), lambda: x.neg_()]
    if x.dim() and x.shape[0]:
        ways += [lambda: x[0].copy_(y[0]), lambda: x[-1:].fill_(0)]
    pick(ways, n)()
    return x
