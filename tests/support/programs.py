"""Random programs out of what attention is made of, for property tests: a list of numbers is a program.

Each step takes the current value and one number, from which it picks dims, sizes and operands; all are total, so that
any list of steps runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
LARGEST = 4096


@dataclass
class Operands:
    """Further inputs of a program: made in the first run, handed back in the same order in later ones."""

    given: list[Tensor] | None = None
    made: list[Tensor] = field(default_factory=list)
    used: int = 0

    def take(self, make: Callable[[], Tensor]) -> Tensor:
        if self.given is None:
            self.made.append(make())
            return self.made[-1]
        self.used += 1
        return self.given[self.used - 1]


def _dims(x: Tensor, n: int) -> tuple[int, int]:
    return n % x.dim(), (n // 7) % x.dim()


def _broadcastable(x: Tensor, n: int) -> list[int]:
    """Sizes that broadcast to those of `x`: some are 1, leading ones may be missing."""
    sizes = [1 if (n >> d) & 1 else int(s) for d, s in enumerate(x.shape)]
    return sizes[(n // 31) % x.dim() :]


def _permute(x: Tensor, n: int, more: Operands) -> Tensor:
    order = list(range(x.dim()))
    a, b = _dims(x, n)
    order[a], order[b] = order[b], order[a]
    order = order[n % 3 % x.dim() :] + order[: n % 3 % x.dim()]
    return x.permute(order)


def _split(x: Tensor, n: int, more: Operands) -> Tensor:
    d = n % x.dim()
    return x.unflatten(d, (2, int(x.shape[d]) // 2)) if x.shape[d] % 2 == 0 and x.dim() < 6 else x


def _merge(x: Tensor, n: int, more: Operands) -> Tensor:
    d = n % x.dim()
    return x.flatten(d, d + 1) if d + 1 < x.dim() and x.dim() > 2 else x


def _unsqueeze(x: Tensor, n: int, more: Operands) -> Tensor:
    return x.unsqueeze(n % (x.dim() + 1)) if x.dim() < 6 else x


def _expand(x: Tensor, n: int, more: Operands) -> Tensor:
    sizes = [2 if s == 1 and (n >> d) & 1 else -1 for d, s in enumerate(x.shape)]
    return x.expand(sizes) if x.numel() * 2 ** sizes.count(2) <= LARGEST else x


def _repeat(x: Tensor, n: int, more: Operands) -> Tensor:
    d = n % x.dim()
    if x.numel() * 2 > LARGEST:
        return x
    return x.repeat_interleave(2, d) if n % 2 else x.repeat([2 if i == d else 1 for i in range(x.dim())])


def _right(x: Tensor, n: int, more: Operands) -> Tensor:
    sizes = [*map(int, x.shape[:-2]), int(x.shape[-1]), 2 + n % 3]
    other = more.take(lambda: torch.randn(sizes[n % 2 if x.dim() > 3 else 0 :], dtype=x.dtype))
    return x @ other if n % 5 else x @ other.mT.contiguous().mT * 0.25


def _left(x: Tensor, n: int, more: Operands) -> Tensor:
    sizes = [*map(int, x.shape[:-2]), 2 + n % 3, int(x.shape[-2])]
    other = more.take(lambda: torch.randn(sizes, dtype=x.dtype))
    return (other * 0.5) @ x if n % 2 else (x.mT @ other.mT).mT


def _scores(x: Tensor, n: int, more: Operands) -> Tensor:
    other = more.take(lambda: torch.randn([*map(int, x.shape[:-2]), 4, int(x.shape[-1])], dtype=x.dtype))
    letters = "abcefg"[: x.dim() - 2]
    ways = (
        lambda: x @ other.mT,
        lambda: torch.einsum(f"{letters}sd,{letters}td->{letters}st", x, other),
        lambda: torch.einsum(f"{letters}sd,{letters}td->s{letters}t", x, other),
        lambda: x * 0.5 @ other.transpose(-2, -1) / 2,
    )
    return ways[n % len(ways)]()


def _softmax(x: Tensor, n: int, more: Operands) -> Tensor:
    d = n % x.dim()
    e = (x - x.amax(d, keepdim=True)).exp() if n % 2 else None
    ways = (
        lambda: x.softmax(d),
        lambda: x.log_softmax(d).exp(),
        lambda: e / e.sum(d, keepdim=True) if e is not None else x.softmax(-1),
        lambda: (x - x.logsumexp(d, keepdim=True)).exp(),
        lambda: x.softmax(-1),
    )
    return ways[(n // 5) % len(ways)]()


def _scale(x: Tensor, n: int, more: Operands) -> Tensor:
    ways = (
        lambda: x * 0.7, lambda: x / 1.3, lambda: 2 * x, lambda: -x, lambda: x * torch.full([], 0.3, dtype=x.dtype),
        lambda: x / math.sqrt(x.shape[-1]), lambda: 1 - x, lambda: x - 0.5, lambda: x + 0, lambda: x * 1.0,
    )  # fmt: skip
    return ways[n % len(ways)]()


def _bias(x: Tensor, n: int, more: Operands) -> Tensor:
    m = more.take(lambda: torch.randn(_broadcastable(x, n), dtype=x.dtype))
    ways = (
        lambda: x + m,
        lambda: m + x,
        lambda: x - m,
        lambda: (x + m) * 0.5,
        lambda: torch.add(x, m, alpha=0.5),
        lambda: x * m,
    )
    return ways[n % len(ways)]()


def _mask(x: Tensor, n: int, more: Operands) -> Tensor:
    m = more.take(lambda: torch.rand(_broadcastable(x, n)) > 0.3)
    ways = (
        lambda: x.masked_fill(m, -1e5), lambda: torch.where(m, x, -1e5), lambda: torch.where(m, -1e5, x),
        lambda: x.masked_fill(~m, -1e5), lambda: x.masked_fill(m == 0, -1e5), lambda: x + torch.where(m, 0.0, -1e5),
        lambda: x * m.to(x.dtype) + (1 - m.to(x.dtype)) * -1e5, lambda: x.masked_fill(m | ~m, -1e5) + x,
        lambda: x + (1.0 - m.to(x.dtype)) * -1e5, lambda: x.masked_fill(m.expand(x.shape).clone(), -1e5),
    )  # fmt: skip
    return ways[n % len(ways)]()


def _pointwise(x: Tensor, n: int, more: Operands) -> Tensor:
    ways = (
        lambda: torch.tanh(x), lambda: x.clone(), lambda: x.clamp(min=-1e4), lambda: F.dropout(x, 0.3, False),
        lambda: x.float().unsqueeze(0).to(x.dtype).squeeze(0) * 0 + x,
        lambda: x.double().to(x.dtype).mT.contiguous().mT,
    )  # fmt: skip
    return ways[n % len(ways)]()


STEPS = (
    _permute, _split, _merge, _unsqueeze, _expand, _repeat, _right, _left, _scores, _softmax, _softmax, _scale, _scale,
    _bias, _mask, _mask, _pointwise,
)  # fmt: skip


def run(program: Sequence[tuple[int, int]], x: Tensor, more: Operands) -> Tensor:
    """The value of `program` on `x`."""
    for step, number in program:
        if x.dim() < 2:
            x = x.unsqueeze(0)
        new = STEPS[step % len(STEPS)](x, number, more)
        x = new if new.numel() <= LARGEST else x
    return x.clone()
