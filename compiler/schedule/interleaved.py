"""Interleaved elements: a loop over all of them becomes a loop over groups, and one over the places within a group.

for i < 64: y[i] = a[i//2] if i%2 < 1 else b[i//2]   ->   for g < 32, k < 2: y[2*g + k] = a[g] if k < 1 else b[g]

Then kernels compute the values that are chosen among where they choose, each once for a group: rotary embeddings of
neighbours, joined with features that do not rotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..ir.index.index import Atom, Loaded, Quotient, Remainder, Var, add, atoms, mul
from ..ir.program import Definition, Item
from ..ir.value import Const, Guarded, Number, Op, Rewriter, walk
from .dependences import loads, values_in

_MOST = 8  # elements of a group


def by_groups(item: Item) -> Item:
    """An item whose loops over groups of elements, of which each is chosen by its place in the group, are two loops."""
    if not isinstance(item, Definition) or item.reductions or item.scan or len(item.stores) != 1:
        return item
    for var in item.loops:
        size = _size_of_group(item, var)
        if size:
            item = _split(item, var, size)
    return item


def _size_of_group(item: Definition, var: Var) -> int:
    """The number of elements in a group along a loop.

    0 where no choice depends on the place in a group, or where something depends on the loop in another way.
    """
    sizes = set(_chosen(item, var))
    if len(sizes) != 1 or not isinstance(var.extent, int):
        return 0
    (size,) = sizes
    found = [atom for number in _numbers(item) for atom in atoms(number)]
    parts = [atom for atom in found if isinstance(atom, (Quotient, Remainder)) and var in atoms(atom.index())]
    fitting = all(part.dividend == var.index() and part.divisor == size for part in parts)
    alone = fitting and not any(isinstance(atom, Loaded) for atom in found)
    return size if alone and size <= _MOST and var.extent % size == 0 else 0


def _chosen(item: Definition, var: Var) -> Iterator[int]:
    """The divisors of the loop's remainders by which values are chosen."""
    for value in walk([item.stores[0].value]):
        test = value.condition if isinstance(value, Guarded) else None
        if not isinstance(test, Op) or test.name != "lt" or not isinstance(test.args[1], Const):
            continue
        index = test.args[0].index if isinstance(test.args[0], Number) else 0
        for atom in atoms(index):
            if not isinstance(atom, Remainder) or not isinstance(atom.divisor, int):
                continue
            if atom.dividend == var.index() and atom.index() == index:
                yield atom.divisor


def _numbers(item: Definition) -> list[Any]:
    """All indices in a definition."""
    store = item.stores[0]
    places = [*store.indices, *(index for load in loads(item) for index in load.indices)]
    values = walk([store.value, *values_in(places)])
    return [*places, *(value.index for value in values if isinstance(value, Number))]


def _split(item: Definition, var: Var, size: int) -> Definition:
    group, place = Var(f"{var.name}g", var.extent // size), Var(f"{var.name}k", size)
    by: dict[Atom, Any] = {var: add(mul(group.index(), size), place.index())}
    rewrite = Rewriter(atom=by.get)
    (store,) = item.stores
    store = replace(store, indices=tuple(map(rewrite.index, store.indices)), value=rewrite(store.value))
    loops = [new for loop in item.loops for new in ((group, place) if loop is var else (loop,))]
    return replace(item, loops=tuple(loops), stores=(store,))
