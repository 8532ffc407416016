"""Operations of random programs with a number that may be symbolic: an int or float of any kind.

`EXACT` ones give small integers, the same in any order of evaluation; `ROUNDED` ones do not.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .random_ops import Operations, Tensor, limited, pick, ranked, real, whole

Number = Any  # int | float | SymInt | SymFloat

# Negative, zero, one, small and huge ints; floats.
NUMBERS = (-7, -3, -1, 0, 1, 2, 5, 13, 2**31, -(2**33) + 1, 2**40 + 3, -1.5, 0.0, 0.25, 3.0)
EXACT, ROUNDED = Operations(), Operations()
exact, rounded = EXACT.add, ROUNDED.add


def _int(number: Number) -> Any:
    return torch.sym_int(number)


def _small(x: Tensor) -> Tensor:
    return torch.remainder(x, 17) - 8


@exact
def counted(x: Tensor, y: Tensor, n: int, number: Number) -> Tensor:
    i, k = whole(x), _int(number)
    made = pick(
        (lambda: i + k, lambda: i * k, lambda: i + k // 3, lambda: i - k // -4, lambda: i + k % 5, lambda: i - k % -3,
         lambda: i // (k % 5 - 7), lambda: i % (k % 5 - 7), lambda: i.clamp(min=k), lambda: i.clamp(k, k + 2),
         lambda: torch.maximum(i * k, i), lambda: torch.where(i > 0, k, i), lambda: i.masked_fill(i < -k, k),
         lambda: i + abs(k), lambda: i + torch.sym_min(k, 3) - torch.sym_max(k, -2), lambda: torch.full_like(i, k),
         lambda: torch.add(i, i, alpha=k), lambda: torch.rsub(i, k, alpha=k), lambda: torch.arange(k, k + 6),
         lambda: torch.arange(k, k - 5, -1), lambda: torch.arange(k, k + 9, 3), lambda: i & k, lambda: i + (k >> 1),
         lambda: i + _int(number * 0.5), lambda: i + k % 99 * (k % 98)),
        n,
    )()  # fmt: skip
    return _small(made)


@exact
def asked(x: Tensor, y: Tensor, n: int, number: Number) -> Tensor:
    return pick((torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge), n)(
        x.clamp(-3, 3) if n % 2 else whole(x), number
    )


@exact
def placed(x: Tensor, y: Tensor, n: int, number: Number) -> Tensor:
    x, k = ranked(x), _int(number)
    return pick(
        (lambda: x[k:], lambda: x[:k], lambda: x[-k:], lambda: x[..., k : k + 3], lambda: torch.roll(x, k, 0),
         lambda: torch.roll(x, (k, -k), (0, -1)), lambda: x[: torch.sym_max(torch.sym_min(k, 5), 0) + 1],
         lambda: torch.tril(ranked(x, 2), k % 9 - 4), lambda: F.pad(x, (1, 2), value=k % 4)),
        n,
    )()  # fmt: skip


@exact
def read(x: Tensor, y: Tensor, n: int, number: Number) -> Tensor:
    """With a number that is known when run."""
    seen = whole(y).sum().clamp(-9, 9).item()
    return _small(pick((lambda: whole(x) + seen, lambda: whole(x) * seen, lambda: whole(x).clamp(min=seen)), n)())


@rounded
def scaled(x: Tensor, y: Tensor, n: int, number: Number) -> Tensor:
    x, s = real(x), number % 11
    made = pick(
        (lambda: x * s, lambda: x / (s + 1), lambda: torch.add(x, x, alpha=s / 3), lambda: F.leaky_relu(x, s / 7),
         lambda: F.elu(x, s / 3), lambda: F.softplus(x, s + 0.5), lambda: torch.where(x > s, x, s / 2),
         lambda: x.clamp(-s, s / 2), lambda: x * (1 - 0.5 ** (s / 2 + 1)), lambda: torch.full_like(x, s / 3),
         lambda: torch.lerp(x, x * 2, s / 9), lambda: torch.addcmul(x, x, x, value=s / 5), lambda: x + number),
        n,
    )()  # fmt: skip
    return limited(made, x)
