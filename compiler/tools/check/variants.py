"""Operands that no sample has, but that the rule may fire on: other ranks, broadcasts, dtypes, numbers, alternatives.

Sample(x=T("B N"), y=T("N"), eps=1e-5)

    another rank      x=T("P B N"), T("N"), T("")       all operands that share the leading dim change together
    broadcast         x=T("1 N"), T("B 1"); y=T("P N")  one operand changes alone
    mixed dtypes      y=T("N", dtype=torch.float64)
    another number    eps=0.0, -1e-5, 1
    an alternative    tags={"spelling": "where"}

A rule may refuse any of them. It must be right if it fires; what eager does not take is no program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ....rewrites.rule import Rule
from ....rewrites.sample import LEADING, Sample, T
from .operands import tensors

_SIZES = {"P": 2, "Q": 3}
_NEW = tuple(_SIZES)


class Variant(Sample):
    """A sample that is another one but for one thing; a rule may refuse it."""

    def __init__(
        self, sample: Sample, what: str, operands: Mapping[str, Any], tags: Mapping[str, str] | None = None
    ) -> None:
        named = frozenset[str]().union(*(o.names for o in operands.values() if isinstance(o, T)))
        sizes = _SIZES | sample.given_sizes | sample.ranges
        super().__init__(
            tags=sample.tags if tags is None else tags, sizes={n: s for n, s in sizes.items() if n in named}, **operands
        )
        self.what = what

    def __repr__(self) -> str:
        return f"{super().__repr__()}, {self.what}"


def variants(rule: Rule, sample: Sample) -> Iterator[Variant]:
    """What may be asked of a rule beside a sample; the kinds take turns."""
    kinds = _other_ranks(sample), _other_numbers(rule, sample), _mixed_dtypes(sample), _broadcasts(sample)
    changes = (one for round_ in itertools.zip_longest(*kinds) for one in round_ if one is not None)
    for what, changed in changes:
        yield Variant(sample, what, sample.operands | changed)
    for tag, labels in rule.tags.items():
        for label in labels:
            if label != sample.tags.get(tag, labels[0]):
                yield Variant(sample, f"alternative {tag}={label}", sample.operands, sample.tags | {tag: label})


def _other_ranks(sample: Sample) -> Iterator[tuple[str, dict[str, T]]]:
    yield from _without_leading(sample)
    given = {name: spec for name, spec in tensors(sample).items() if not spec.dims.startswith(LEADING)}
    if not given:
        return
    rank = max(len(spec.dims.split()) for spec in given.values())
    new = [name for name in _NEW if not any(name in spec.names for spec in tensors(sample).values())]
    more = [(f"{count} more leading dims", _in_front(given, new[:count])) for count in range(1, len(new) + 1)]
    fewer = [(f"no more than {left} dims", _last(given, left)) for left in (0, *reversed(range(1, rank)))]
    for pair in itertools.zip_longest(more, fewer):
        yield from (one for one in pair if one is not None)


def _without_leading(sample: Sample) -> Iterator[tuple[str, dict[str, T]]]:
    """Fewer dims than those behind `...`."""
    given = tensors(sample)
    named = {name: [dim for dim in spec.dims.split() if dim != LEADING] for name, spec in given.items()}
    if any(spec.dims.startswith(LEADING) for spec in given.values()):
        for left in range(max(map(len, named.values()))):
            changed = {name: dims[max(len(dims) - left, 0) :] for name, dims in named.items()}
            yield f"no more than {left} dims", {name: _spelled(given[name], dims) for name, dims in changed.items()}


def _in_front(given: Mapping[str, T], dims: Sequence[str]) -> dict[str, T]:
    return {name: _spelled(spec, [*dims, *spec.dims.split()]) for name, spec in given.items()}


def _last(given: Mapping[str, T], count: int) -> dict[str, T]:
    """Those of the highest rank share their leading dims, or broadcast them."""
    return {name: _spelled(spec, spec.dims.split()[-count:] if count else []) for name, spec in given.items()}


def _broadcasts(sample: Sample) -> Iterator[tuple[str, dict[str, T]]]:
    for name, spec in tensors(sample).items():
        dims = spec.dims.split()
        for place in sorted({0, len(dims) - 1} if dims and dims[0] != LEADING else {len(dims) - 1} - {-1, 0}):
            if dims[place] != "1":
                changed = [*dims[:place], "1", *dims[place + 1 :]]
                yield f"dim {place} of {name} broadcast", {name: _spelled(spec, changed)}
        if dims and dims[0] != LEADING:
            yield f"{name} with a dim less", {name: _spelled(spec, dims[1:])}
            if "P" not in dims:
                yield f"{name} with a dim more", {name: _spelled(spec, ["P", *dims])}


def _mixed_dtypes(sample: Sample) -> Iterator[tuple[str, dict[str, T]]]:
    given = {name: spec for name, spec in tensors(sample).items() if spec.dtype is None}
    for name, spec in given.items() if len(given) > 1 else ():
        numbers = (torch.float64, torch.bfloat16, torch.int64) if spec.values == "normal" else (torch.float64,)
        for dtype in numbers if spec.values != "bool" else ():
            yield f"{name} alone as {str(dtype).removeprefix('torch.')}", {name: replace(spec, dtype=dtype)}


def _other_numbers(rule: Rule, sample: Sample) -> Iterator[tuple[str, dict[str, Any]]]:
    numbers = {v.name for v in rule.variables if v.number}
    for name, value in sample.operands.items():
        if name in numbers and isinstance(value, (bool, int, float)):
            for other in _others(value):
                yield f"{name}={other!r}", {name: other}


def _others(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    return (-value, 0, value + 1) if isinstance(value, int) else (-value, 0.0, 2 * value + 0.25, 1)


def _spelled(spec: T, dims: list[str]) -> T:
    return replace(spec, dims=" ".join(dims))
