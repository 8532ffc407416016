"""The cases that are tried before chance: every dtype, layout, kind of size, rank and variant at least once.

    bfloat16, float16, float64 with gradients      each dim large, 1, 0 in turn
    every layout, sizes symbolic and not           every variant (variants.py), every other dtype
    all dims equal, and all of them large

The groups take turns, so that a short sweep has some of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ....rewrites.rule import Rule
from ....rewrites.sample import LEADING, Sample
from .drawn import DTYPES, EQUAL, INCOMING, LARGE, LEADING_SIZES, OTHER_DTYPES, DrawnExample, fits
from .operands import LAYOUTS, Look, differentiable, dim_names, looks_of, tensors

Example = tuple[Sample, DrawnExample]
_SMALL = (1, 0, 3, 17, 2, 16)  # sizes of one dim


def sweep(rule: Rule, samples: Sequence[Sample], varied: Sequence[Sample], seed: int) -> list[Example]:
    """The examples to try in any case, in the order of turns."""
    first, second = varied[::2], varied[1::2]
    groups = [
        _dtypes(samples), _large(samples), _varied(first), _laid_out(samples), _small(samples), _equal(samples),
        _varied(second), _others(samples),
    ]  # fmt: skip
    trained = rule.stage == "forward"
    found = enumerate(_in_turns(groups), start=seed)
    odd = (INCOMING[3], INCOMING[1], INCOMING[4], INCOMING[2]) if len(rule.outputs) > 1 else INCOMING[1:3]
    ways = odd if trained else INCOMING[:1]
    return [(sample, _finished(sample, drawn, number, trained, ways)) for number, (sample, drawn) in found]


def _in_turns(groups: Iterable[Iterable[Example]]) -> Iterator[Example]:
    for round_ in itertools.zip_longest(*groups):
        yield from (example for example in round_ if example is not None)


def _finished(sample: Sample, drawn: DrawnExample, number: int, trained: bool, ways: Sequence[str]) -> DrawnExample:
    """With a seed of its own, and gradients for every second one: of these every second comes in an odd way."""
    looks = {
        name: replace(
            drawn.looks.get(name, Look()), gradient=trained and number % 2 == 0 and differentiable(spec, drawn.dtype)
        )
        for name, spec in tensors(sample).items()
    }
    incoming = ways[number // 4 % len(ways)] if number % 4 == 2 else INCOMING[0]
    return replace(drawn, looks=looks, seed=number, incoming=incoming)


def _dtypes(samples: Sequence[Sample]) -> Iterator[Example]:
    """Each with gradients and without, which take turns."""
    kinds = (torch.bfloat16, torch.float64, torch.float16, torch.float32)
    for sample, dtype in zip(itertools.cycle(samples), itertools.islice(itertools.cycle(kinds), 6), strict=False):
        yield sample, replace(DrawnExample.plain(sample), dtype=dtype)


def _large(samples: Sequence[Sample]) -> Iterator[Example]:
    for number, (sample, name) in enumerate(_each_dim(samples)):
        for size in (LARGE[1 + number % 2], LARGE[3 + number % 2]):
            own = sample.ranges.get(name)
            chosen: Any = own[-1] if own else (size,) if name == LEADING else size
            drawn = _resized(sample, name, chosen)
            yield sample, replace(drawn, dtype=DTYPES[number % 2 * 3], dynamic=number % 2 == 1)


def _small(samples: Sequence[Sample]) -> Iterator[Example]:
    for number, (sample, name) in enumerate(_each_dim(samples)):
        for size in LEADING_SIZES[1:] if name == LEADING else _SMALL:
            yield sample, replace(_resized(sample, name, size), dynamic=number % 2 == 0)


def _equal(samples: Sequence[Sample]) -> Iterator[Example]:
    """All dims of one size, the sample's largest, and another one that is as large as can be."""
    for number, sample in enumerate(samples):
        names = [n for n in dim_names(sample) if n != LEADING and n not in sample.ranges]
        if len(names) > 1:
            own = max(sample.sizes[n] for n in names)
            for size in (own, *[s for s in EQUAL if fits(sample, dict.fromkeys(names, s))][:1]):
                plain = DrawnExample.plain(sample)
                sizes = tuple((n, size if n in names else s) for n, s in plain.sizes)
                yield sample, replace(plain, sizes=sizes, dtype=DTYPES[number % 2 * 3])


def _each_dim(samples: Sequence[Sample]) -> Iterator[tuple[Sample, str]]:
    seen = set()
    for sample in samples:
        for name in dim_names(sample):
            if name not in seen:
                seen.add(name)
                yield sample, name


def _resized(sample: Sample, name: str, size: Any) -> DrawnExample:
    plain = DrawnExample.plain(sample)
    return replace(plain, sizes=tuple((n, size if n == name else s) for n, s in plain.sizes))


def _varied(varied: Sequence[Sample]) -> Iterator[Example]:
    for number, sample in enumerate(varied):
        yield sample, replace(DrawnExample.plain(sample), dtype=DTYPES[number % 2 * 3])


def _laid_out(samples: Sequence[Sample]) -> Iterator[Example]:
    for number, (sample, layout) in enumerate(zip(itertools.cycle(samples), LAYOUTS[1:], strict=False)):
        looks = {
            name: Look(layout if place == number % 2 or number % 3 == 0 else LAYOUTS[(number + place) % len(LAYOUTS)])
            for place, name in enumerate(tensors(sample))
        }
        dtype = DTYPES[number % len(DTYPES)]
        yield sample, replace(DrawnExample.plain(sample), looks=looks, dtype=dtype, dynamic=number % 2 == 0)


def _others(samples: Sequence[Sample]) -> Iterator[Example]:
    for sample, dtype in zip(itertools.cycle(samples), OTHER_DTYPES, strict=False):
        yield sample, replace(DrawnExample.plain(sample), dtype=dtype)
        if dtype is OTHER_DTYPES[0]:
            yield sample, replace(DrawnExample.plain(sample), nan="safe")
    for sample in samples:
        yield sample, replace(DrawnExample.plain(sample), dynamic=True)


def with_other_values(sample: Sample, drawn: DrawnExample, turn: int, count: int) -> list[DrawnExample]:
    """The same example with `count` other kinds of values, one operand at a time: they need no other program."""
    found = []
    for name, spec in tensors(sample).items():
        own = drawn.looks.get(name, Look())
        kinds = [kind for kind in looks_of(spec, drawn.dtype) if kind != own.values]
        found += [replace(drawn, looks=drawn.looks | {name: replace(own, values=kind)}) for kind in kinds]
    step = max(1, len(found) // count)
    return [found[(turn + i * step) % len(found)] for i in range(min(count, len(found)))]
