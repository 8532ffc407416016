"""Facts of casts, scans, sums, joins and reads at known places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..graph import arguments, dtype, is_tensor, rank, shape, val
from ..symbolic import known_equal, product
from .evaluate import converted
from .fact import (
    REAL,
    Conditional,
    Fact,
    Number,
    Positions,
    Uniform,
    ends,
    make_choice,
    make_positions,
    nonnegative,
    same_number,
    settled,
)
from .sources import Read, full
from .views import moved

CASTS = ("aten.to", "aten._to_copy", "aten.type_as")
_INDEX = (torch.int64, torch.int32)


def cast(node: fx.Node, read: Read) -> Fact | None:
    """The numbers in another dtype, each as the cast makes it."""
    x = node.args[0]
    if not is_tensor(x) or dtype(node) not in REAL or dtype(x) not in REAL:  # type: ignore[arg-type]
        return None
    fact, source, kind = read(x), dtype(x), dtype(node)  # type: ignore[arg-type]

    def convert(number: Number) -> Number | None:
        return converted(number, source, kind)

    if isinstance(fact, Uniform):
        number = convert(fact.number)
        return None if number is None else Uniform(number, fact.exact)
    if isinstance(fact, Conditional):
        yes, no = convert(fact.yes), convert(fact.no)
        if yes is None or no is None:
            return None
        return make_choice(fact.conditions, yes, no, shape(node), fact.exact)
    return make_positions(fact.offset, fact.steps, val(node)) if isinstance(fact, Positions) else None


def _as_positions(fact: Fact | None, x: Any) -> Positions | None:
    """A fact about integers as positions."""
    if isinstance(fact, Uniform) and not isinstance(fact.number, float):
        return Positions(int(fact.number), (0,) * rank(x))
    return fact if isinstance(fact, Positions) else None


def _cumsum(node: fx.Node, read: Read) -> Fact | None:
    """`cumsum` of n everywhere  ->  n, 2 n, 3 n, ...; of zeros, zeros."""
    given = arguments(node)
    fact = read(given["self"])
    if not isinstance(fact, Uniform) or rank(node) == 0:
        return None
    if dtype(node).is_floating_point or isinstance(fact.number, float):
        return full(node, 0) if same_number(fact.number, type(fact.number)(0)) else None
    dim, number = given["dim"] % rank(node), int(fact.number)
    return make_positions(number, [number if d == dim else 0 for d in range(rank(node))], val(node))


def _sum(node: fx.Node, read: Read) -> Fact | None:
    """The sum of n everywhere over some dims  ->  n times their sizes, for integers."""
    x = node.args[0]
    fact = read(x)
    if not isinstance(fact, Uniform) or isinstance(fact.number, float) or dtype(node).is_floating_point:
        return None
    total = product(shape(x)[d] for d in _reduced(node, x))  # type: ignore[arg-type]
    return make_positions(settled(int(fact.number) * total), [0] * rank(node), val(node))


def _reduced(node: fx.Node, x: fx.Node) -> list[int]:
    dims = arguments(node).get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    return [d % max(rank(x), 1) for d in dims] if dims and rank(x) else list(range(rank(x)))


def _all_or_any(node: fx.Node, read: Read) -> Fact | None:
    """all, any, amin, amax of one number, where at least one is looked at."""
    x = node.args[0]
    fact = read(x)
    if not isinstance(fact, Uniform) or not all(nonnegative(shape(x)[d] - 1) for d in _reduced(node, x)):  # type: ignore[arg-type]
        return None
    number = converted(fact.number, dtype(x), dtype(node))  # type: ignore[arg-type]
    return None if number is None else Uniform(number, fact.exact)


def _joined(parts: Sequence[tuple[Fact | None, fx.Node]], dim: int) -> Positions | None:
    """Integers one after the other as positions, where each part goes on with the last."""
    places = [place for fact, x in parts if (place := _as_positions(fact, x)) is not None]
    sizes = [shape(x)[dim] for _, x in parts]
    if len(places) < len(parts) or len({len(p.steps) for p in places}) > 1:
        return None
    step = _common_step(places, sizes, dim)
    expected = Positions(places[0].offset, _with(places[0].steps, dim, step))
    whole = expected
    for place, size in zip(places, sizes, strict=True):
        own = _with(place.steps, dim, step) if known_equal(size, 1) else place.steps
        if not expected.same(Positions(place.offset, own)):
            return None
        expected = Positions(settled(expected.offset + step * size), expected.steps)
    return whole


def _with(steps: Sequence[Any], dim: int, step: Any) -> tuple[Any, ...]:
    return (*steps[:dim], step, *steps[dim + 1 :])


def _common_step(places: Sequence[Positions], sizes: Sequence[Any], dim: int) -> Any:
    """The step along `dim` of the first part with more than one entry, else from the first part to the second."""
    for place, size in zip(places, sizes, strict=True):
        if not known_equal(size, 1):
            return place.steps[dim]
    return settled(places[1].offset - places[0].offset) if len(places) > 1 else 0


def _cat(node: fx.Node, read: Read) -> Fact | None:
    """Tensors one after the other: one number in all, or positions of which each part goes on with the last."""
    parts = arguments(node)["tensors"]
    if not all(is_tensor(x) and dtype(x) == dtype(node) and rank(x) == rank(node) for x in parts) or not rank(node):
        return None
    facts = [read(x) for x in parts]
    uniform = [f for f in facts if isinstance(f, Uniform)]
    if len(uniform) == len(facts) and all(same_number(f.number, uniform[0].number) for f in uniform):
        return Uniform(uniform[0].number, all(f.exact for f in uniform))
    whole = _joined(list(zip(facts, parts, strict=True)), arguments(node).get("dim", 0) % rank(node))
    return None if whole is None else make_positions(whole.offset, whole.steps, val(node))


def _diff(node: fx.Node, read: Read) -> Fact | None:
    """`diff` of positions  ->  their step."""
    given = arguments(node)
    parts = [x for x in (given["prepend"], given["self"], given["append"]) if x is not None]
    integers = dtype(node) != torch.bool and not dtype(node).is_floating_point
    if given["n"] != 1 or not integers or any(dtype(x) != dtype(node) for x in parts):
        return None
    dim = given["dim"] % rank(node)
    whole = _joined([(read(x), x) for x in parts], dim)
    return None if whole is None else make_positions(whole.steps[dim], [0] * rank(node), val(node))


def _index(node: fx.Node, read: Read) -> Fact | None:
    """x[i, j] at known places inside of x."""
    x, indices = node.args[0], node.args[1]
    places = [None if i is None else _as_positions(read(i), i) for i in indices]  # type: ignore[union-attr, misc]
    for index, place, size in zip(indices, places, shape(x), strict=False):  # type: ignore[arg-type]
        if index is not None and (place is None or dtype(index) not in _INDEX or not _inside(place, index, size)):
            return None
    fact = read(x)
    whole = len(places) == rank(x) and None not in places  # type: ignore[arg-type]
    if not whole:
        return fact if isinstance(fact, Uniform) else None

    def read_at(p: Positions) -> Positions:
        total = Positions(p.offset, (0,) * rank(node))
        for place, step in zip(places, p.steps, strict=True):
            total = total.plus(place.aligned(rank(node)), step)  # type: ignore[union-attr]
        return total

    return moved(fact, val(node), read_at)


def _inside(place: Positions, index: fx.Node, size: Any) -> bool:
    limits = ends(place, shape(index))
    return limits is not None and nonnegative(limits[0]) and nonnegative(size - 1 - limits[1])


def _gather(node: fx.Node, read: Read) -> Fact | None:
    """A read of one number, at known places inside of the tensor."""
    x, dim, index = node.args[:3]
    fact, place = read(x), _as_positions(read(index), index)
    if not isinstance(fact, Uniform) or place is None or rank(x) == 0:  # type: ignore[arg-type]
        return None
    return fact if _inside(place, index, shape(x)[dim]) else None  # type: ignore[arg-type, index]


JOINS: dict[str, Callable[[fx.Node, Read], Fact | None]] = {
    **dict.fromkeys(CASTS, cast),
    **dict.fromkeys(("aten.all", "aten.any", "aten.amin", "aten.amax"), _all_or_any),
    **dict.fromkeys(("aten.cat", "aten.concat"), _cat),
    **dict.fromkeys(("aten.gather", "aten.index_select"), _gather),
    "aten.cumsum": _cumsum,
    "aten.sum": _sum,
    "aten.diff": _diff,
    "aten.index": _index,
}
