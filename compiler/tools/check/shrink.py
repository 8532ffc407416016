"""A counterexample made small: one thing at a time is made plain, as long as it stays a counterexample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ....rewrites.sample import LEADING, Sample
from .drawn import INCOMING, DrawnExample
from .operands import Look
from .result import Failure


def smallest(failure: Failure, failing: Callable[[DrawnExample], Failure | None]) -> Failure:
    """The failure of the plainest example that `failing` still says fails, made from this one step by step."""
    best = failure
    while True:
        least = _cost(best.drawn)
        tried = (failing(drawn) for drawn in _plainer(best.sample, best.drawn) if _cost(drawn) < least)
        found = next((one for one in tried if one is not None), None)
        if found is None:
            return best
        best = found


def _cost(drawn: DrawnExample) -> tuple[int, int, int]:
    """How far from plain an example is: what is odd, how large it is, which seed it has."""
    odd = sum((look.layout != "contiguous") + (look.values != "plain") + look.gradient for look in drawn.looks.values())
    odd += drawn.dynamic + (drawn.nan != "eager") + (drawn.incoming != INCOMING[0]) + (drawn.dtype != torch.float32)
    sizes = (sum(size) + len(size) if isinstance(size, tuple) else size for _, size in drawn.sizes)
    return odd, sum(size or 100 for size in sizes), drawn.seed  # nothing at all is odder than something


def _plainer(sample: Sample, drawn: DrawnExample) -> Iterator[DrawnExample]:
    """The same with one thing made plain or smaller; all at once is tried first."""
    yield from _all_at_once(sample, drawn)
    for change in ({"dynamic": False}, {"nan": "eager"}, {"incoming": INCOMING[0]}, {"dtype": torch.float32}):
        yield replace(drawn, **change)  # type: ignore[arg-type]
    for name, look in drawn.looks.items():
        for plain in ({"gradient": False}, {"layout": "contiguous"}, {"values": "plain"}):
            yield replace(drawn, looks=drawn.looks | {name: replace(look, **plain)})  # type: ignore[arg-type]
    for place, (name, size) in enumerate(drawn.sizes):
        for smaller in _smaller(name, size):
            yield replace(drawn, sizes=(*drawn.sizes[:place], (name, smaller), *drawn.sizes[place + 1 :]))
    yield replace(drawn, seed=0)


def _all_at_once(sample: Sample, drawn: DrawnExample) -> Iterator[DrawnExample]:
    plain = DrawnExample.plain(sample)
    ones = tuple((name, () if name == LEADING else 1) for name, _ in plain.sizes)
    yield replace(plain, sizes=ones)
    yield replace(drawn, sizes=ones, seed=0)
    looks = {name: replace(Look(), gradient=look.gradient) for name, look in drawn.looks.items()}
    yield replace(plain, looks=looks)
    yield replace(plain, looks=looks, incoming=drawn.incoming)
    yield plain


def _smaller(name: str, size: object) -> Iterator[object]:
    if name == LEADING:
        yield from ((1,), ()) if size not in ((), (1,)) else ((),) if size else ()
    elif isinstance(size, int) and size > 1:
        yield from sorted({1, 2, size // 2, size - 1})
