"""Draws for a sample: sizes, dtype, layout and values of every tensor, symbolic sizes or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from types import ModuleType
from typing import Any

import torch

from ....rewrites.rule import Rule
from ....rewrites.sample import LEADING, Sample
from .operands import LAYOUTS, WITH_GAPS, Look, differentiable, dim_names, looks_of, tensors

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OTHER_DTYPES = (torch.int64, torch.bool, torch.complex64, torch.uint8, torch.int32)  # a rule may not support them
LARGE = (64, 65, 130, 257, 1000)  # one dim at a time
EQUAL = (130, 65, 17, 9)  # all dims at once, the first that leaves operands small enough
MOST = 1 << 20  # elements that all operands may be broadcast to: beyond, a large dim is the smallest of these
INCOMING = ("contiguous", "transposed", "expanded", "of the first result", "of the last result")
"""How gradients of results come in: laid out in order; otherwise; all one number, as of a sum; of one result only."""
LEADING_SIZES = ((2,), (), (3, 2), (1,), (2, 1, 3), (0,))
_PLAIN_LAYOUTS, _PLAIN_VALUES = 2, 12  # how much likelier the plain one is than each other one


@dataclass(frozen=True)
class DrawnExample:
    """One drawn example of a sample.

    Args:
        sizes: the sizes of the named dims.
        dtype: the dtype of tensors without a fixed one.
        looks: layout and values of tensors, by parameter; plain if missing.
        dynamic: sizes are symbolic.
        nan: option ``nan``: ``"eager"``, or ``"safe"``, which allows rules to hide NaN.
        seed: of values and random draws.
        incoming: the form of incoming gradients: one of `INCOMING`.
    """

    sizes: tuple[tuple[str, Any], ...]
    dtype: torch.dtype = torch.float32
    looks: dict[str, Look] = field(default_factory=dict)
    dynamic: bool = False
    nan: str = "eager"
    seed: int = 0
    incoming: str = INCOMING[0]

    @classmethod
    def plain(cls, sample: Sample, factor: int = 1) -> DrawnExample:
        """The sizes of the sample, possibly times a factor, with plain layouts and values."""
        return cls(tuple((n, _times(factor, sample.sizes[n])) for n in dim_names(sample)))

    def ordinary(self, sample: Sample) -> bool:
        """Whether the rule must match: known sizes, within the ranges of the sample.

        Without ranges: no size is zero, or so small that a tensor is like a scalar. Strides are products of sizes
        if these are symbolic: otherwise it is not known whether a `reshape` copies.
        """
        if self.dtype not in DTYPES or (self.dynamic and any(look.layout in WITH_GAPS for look in self.looks.values())):
            return False
        return all(
            size in sample.ranges[name] if name in sample.ranges else min(_all(size), default=2) > 1
            for name, size in self.sizes
        )

    @property
    def full(self) -> bool:
        """Whether no named dim is empty."""
        return all(0 not in _all(size) for _, size in self.sizes)

    def __str__(self) -> str:
        sizes = " ".join(f"{n}={s}" for n, s in self.sizes)
        odd = [f"{name}: {look}" for name, look in self.looks.items() if look != Look()]
        facts = [sizes, str(self.dtype).removeprefix("torch."), *odd]
        facts += ["symbolic sizes"] if self.dynamic else []
        facts += ["nan='safe'"] if self.nan == "safe" else []
        facts += [f"gradients come in {self.incoming}"] if self.incoming != INCOMING[0] else []
        return ", ".join([f for f in facts if f] + [f"seed {self.seed}"])


def hypothesis() -> ModuleType:
    """The library hypothesis, which only checks of rules need.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to get it.
    """
    try:
        import hypothesis
    except ModuleNotFoundError as error:
        message = "checking rules needs hypothesis, which draws the examples: pip install 'regraft[check]'"
        raise ModuleNotFoundError(message, name="hypothesis") from error
    return hypothesis


def drawings(rule: Rule, samples: Sequence[Sample]) -> Any:
    """A strategy for pairs of a sample and its `DrawnExample` example; the first sample is the simplest."""
    st = hypothesis().strategies

    @st.composite
    def drawing(draw: Any) -> tuple[Sample, DrawnExample]:
        sample = draw(st.sampled_from(samples))
        names = dim_names(sample)
        large = draw(st.sampled_from((*((None,) * max(1, len(names))), *names)))
        sizes = tuple((n, draw(st.sampled_from(sizes_of(sample, n, large=n == large)))) for n in names)
        if large is not None and _broadcast(sample, dict(sizes)) > MOST:  # it may be in several places
            sizes = tuple((n, LARGE[0] if n == large and isinstance(s, int) else s) for n, s in sizes)
        dtype = draw(st.sampled_from((*DTYPES * 4, *OTHER_DTYPES)))
        looks = {}
        for name, spec in tensors(sample).items():
            layout = draw(st.sampled_from(_mostly_first(LAYOUTS, _PLAIN_LAYOUTS)))
            values = draw(st.sampled_from(_mostly_first(looks_of(spec, dtype), _PLAIN_VALUES)))
            trained = rule.stage == "forward" and differentiable(spec, dtype)  # rules after autograd have no gradients
            looks[name] = Look(layout, values, trained and draw(st.booleans()))
        dynamic, nan = draw(st.booleans()), draw(st.sampled_from(("eager", "eager", "eager", "safe")))
        incoming = draw(st.sampled_from(_mostly_first(INCOMING, len(INCOMING))))
        return sample, DrawnExample(sizes, dtype, looks, dynamic, nan, draw(st.integers(0, 9999)), incoming)

    return drawing()


def sizes_of(sample: Sample, name: str, *, large: bool = False) -> tuple[Any, ...]:
    """Mostly the size of the sample, or one in its range; also small and odd sizes, one beyond a vector, and zero."""
    if name == LEADING:
        return (*LEADING_SIZES, *((n,) for n in LARGE)) if large else LEADING_SIZES
    if name in sample.ranges:
        known = sample.ranges[name]
        return (known[0], known[-1], known[len(known) // 2], known[len(known) // 3], 1, known[-1] + 1)
    own = sample.sizes[name]
    return LARGE if large else (1, 2, own, own, own, own, 3, 16, 17, 0)


def fits(sample: Sample, sizes: Mapping[str, Any]) -> bool:
    """Whether operands with these sizes are small enough for many runs."""
    return _broadcast(sample, {n: sizes.get(n, sample.sizes[n]) for n in dim_names(sample)}) <= MOST


def _broadcast(sample: Sample, sizes: Mapping[str, Any]) -> int:
    """The number of elements of a result to which all operands of a sample are broadcast."""
    shapes = [reversed(spec.shape(sizes)) for spec in tensors(sample).values()]
    return math.prod(map(max, zip_longest(*shapes, fillvalue=1)))


def _times(factor: int, size: Any) -> Any:
    return tuple(factor * one for one in size) if isinstance(size, tuple) else factor * size


def _all(size: Any) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)


def _mostly_first(kinds: tuple[str, ...], times: int) -> tuple[str, ...]:
    return (kinds[0],) * times + kinds[1:] if len(kinds) > 1 else kinds
