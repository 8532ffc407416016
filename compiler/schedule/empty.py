"""Definitions over empty spaces: a loop that never runs gets a body that no later step must treat specially.

m: for i < 0: fold max over j < 4 of x[i, j]; m[i] = fold     ->     m: for i < 0: m[0] = 0
s: for i < 4: fold sum over j < 0 of x[i, j]; s[i] = fold     ->     s: for i < 4: fold sum over j < 0 of 0; s[i] = fold

What a loop reads that is the same in all iterations may be read before it, and `x` has no memory.

Loops over a number that a call makes known are kept: the memory of the result has that size, so the call comes first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..ir.index.index import Index, Var
from ..ir.program import Definition, Item, Reduction, Store
from ..ir.value import Const
from .dependences import tokens_of


def without_empty_work(item: Item) -> Item:
    """`item`; where an extent of 0 keeps its stores from ever happening, an empty loop with the same stores.

    Where such an extent only leaves nothing to fold, the fold reads nothing.
    """
    if not isinstance(item, Definition):
        return item
    if not _never_stores(item):
        return _of_nothing(item) if any(var.extent == 0 for var in item.reduced) else item
    stores = tuple(Store(s.buffer, (0,) * len(s.indices), _zero(s.value.dtype), s.mode) for s in item.stores)
    late = tuple(var for var in item.loops if isinstance(var.extent, Index) and tokens_of(var.extent))
    return replace(item, loops=(*late, Var("never", 0)), stores=stores, reduced=(), reductions=(), scan=False)


def _never_stores(item: Definition) -> bool:
    around = (*item.loops, *item.reduced) if item.scan else item.loops
    return any(var.extent == 0 for var in around)


def _of_nothing(item: Definition) -> Definition:
    def zeros(reduction: Reduction) -> Reduction:
        return replace(reduction, values=tuple(_zero(value.dtype) for value in reduction.values))

    return replace(item, reductions=tuple(map(zeros, item.reductions)))


def _zero(dtype: torch.dtype) -> Const:
    number: Any = False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0
    return Const(number, dtype)
