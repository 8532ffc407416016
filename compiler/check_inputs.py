"""Inputs for a rule's property test: what is drawn, how it becomes tensors, how a counterexample is made smaller."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..rewrites.rule import Rule
from ..rewrites.sample import Sample, T

Layout = Literal["contiguous", "transposed", "sliced", "expanded"]
Values = Literal["plain", "large", "nan", "inf", "masked-row"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Drawn:
    """One drawn example of a sample."""

    sizes: tuple[tuple[str, int], ...]
    dtype: torch.dtype = torch.float32
    layout: Layout = "contiguous"
    values: Values = "plain"
    training: bool = False
    dynamic: bool = False
    seed: int = 0

    @property
    def ordinary(self) -> bool:
        """Whether the rule has to match: nothing empty, and nothing so small that it might as well be a scalar."""
        return all(size > 1 for _, size in self.sizes)

    def _plainer(self) -> Iterator[Drawn]:
        for i, (name, size) in enumerate(self.sizes):
            if size > 1:
                yield replace(self, sizes=(*self.sizes[:i], (name, size // 2), *self.sizes[i + 1 :]))
        plain = Drawn(self.sizes)
        for field in ("layout", "values", "training", "dynamic", "dtype"):
            if getattr(self, field) != getattr(plain, field):
                yield replace(self, **{field: getattr(plain, field)})

    def shrunk(self, fails: Callable[[Drawn], bool]) -> Drawn:
        """The plainest example found that still fails."""
        current, improved = self, True
        while improved:
            improved = False
            for smaller in current._plainer():
                if fails(smaller):
                    current, improved = smaller, True
                    break
        return current


def draw(source: random.Random, rule: Rule, sample: Sample, *, plain: bool) -> Drawn:
    """Draw an example; a `plain` one has the sample's own sizes and nothing odd.

    Only what runs before autograd is trained.
    """
    names = sorted({d for t in sample.operands.values() if isinstance(t, T) for d in t.dims.split() if not d.isdigit()})
    sizes = tuple((n, sample.sizes[n]) for n in names)
    if plain:
        return Drawn(sizes)
    if source.random() < 0.5:
        sizes = tuple((n, source.choice([0, 1, 1, 2, 3, 16, 17, s])) for n, s in sizes)
    return Drawn(
        _consistent(sizes),
        source.choice(_DTYPES),
        source.choice(["contiguous", "transposed", "sliced", "expanded"]),
        source.choice(["plain", "plain", "large", "nan", "inf", "masked-row"]),
        rule.stage == "forward" and source.random() < 0.5,
        source.random() < 0.3,
        source.randrange(1 << 30),
    )


def _consistent(sizes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Half of the time the value's head size E is query's, as in nearly every model."""
    table = dict(sizes)
    if "E" in table and "D" in table and table["D"] % 2 == 0:
        table["E"] = table["D"]
    return tuple(table.items())


def build(rule: Rule, sample: Sample, drawn: Drawn) -> list[Any]:
    """Operands in the pattern's order; None for what the sample leaves out."""
    generator = torch.Generator().manual_seed(drawn.seed)
    sizes = dict(drawn.sizes)
    operands = []
    for i, variable in enumerate(rule.variables):
        given = sample.operands.get(variable.name)
        operand = _tensor(given, sizes, drawn, generator, odd=i == 0) if isinstance(given, T) else given
        operands.append(operand)
    return operands


def _tensor(spec: T, sizes: dict[str, int], drawn: Drawn, generator: torch.Generator, *, odd: bool) -> torch.Tensor:
    shape = spec.shape(sizes)
    if spec.values == "bool":
        keep = torch.rand(shape, generator=generator) < 0.7
        return _open_rows(keep, drawn)
    dtype = spec.dtype or drawn.dtype
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if spec.values == "positive":
        values = values.abs() + 0.1
    if spec.values == "mask":
        keep = _open_rows(torch.rand(shape, generator=generator) < 0.7, drawn)
        values = torch.zeros(shape, dtype=torch.float64).masked_fill(~keep, -torch.inf)
    elif odd:
        values = _odd(values, drawn.values)
    x = _laid_out(values.to(dtype), drawn.layout)
    return x.requires_grad_(drawn.training and spec.gradient and spec.values == "normal")


def _open_rows(keep: torch.Tensor, drawn: Drawn) -> torch.Tensor:
    """Every row keeps something, except the first where a fully masked row is asked for."""
    if keep.dim() == 0 or keep.numel() == 0:
        return keep
    keep[..., 0] = True
    if drawn.values == "masked-row":
        keep.view(-1, keep.shape[-1])[0] = False
    return keep


def _odd(values: torch.Tensor, kind: Values) -> torch.Tensor:
    if kind == "large":
        return values * 30
    if kind in ("nan", "inf") and values.numel():
        values.view(-1)[values.numel() // 2] = torch.nan if kind == "nan" else torch.inf
    return values


def _laid_out(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The same values in another layout of memory."""
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced" and x.dim() >= 1:
        return torch.cat([x, x], -1)[..., : x.shape[-1]]
    if layout == "expanded" and x.dim() >= 1 and x.shape[0] > 1:
        return x[:1].expand(x.shape)
    return x.clone()
