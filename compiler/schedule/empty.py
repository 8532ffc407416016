"""Definitions over empty spaces: a loop that never runs gets a body that no later step must treat specially.

m: for i < 0: fold max over j < 4 of x[i, j]; m[i] = fold     ->     m: for i < 0: m[0] = 0

Loops over a number that a call makes known are kept: the memory of the result has that size, so the call comes first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..ir.index.index import Index, Var
from ..ir.program import Definition, Item, Store
from ..ir.value import Const
from .dependences import tokens_of


def without_empty_work(item: Item) -> Item:
    """`item`; where an extent of 0 keeps its stores from ever happening, an empty loop with the same stores."""
    if not isinstance(item, Definition) or not _never_stores(item):
        return item
    stores = tuple(Store(s.buffer, (0,) * len(s.indices), _zero(s.value.dtype), s.mode) for s in item.stores)
    late = tuple(var for var in item.loops if isinstance(var.extent, Index) and tokens_of(var.extent))
    return replace(item, loops=(*late, Var("never", 0)), stores=stores, reduced=(), reductions=(), scan=False)


def _never_stores(item: Definition) -> bool:
    around = (*item.loops, *item.reduced) if item.scan else item.loops
    return any(var.extent == 0 for var in around)


def _zero(dtype: torch.dtype) -> Const:
    number: Any = False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0
    return Const(number, dtype)
