"""Facts of views and copies: where an element of the result comes from.

positions [s, 1, t], steps (2, 0, 1)     permute(2, 0, 1)  ->  (1, 2, 0)        slice(0, 3)  ->  offset + 6
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..graph import arguments, dtype, is_tensor, rank, shape, val
from ..moves import ALIASES, COPIES, EXPANDS, RESHAPES
from ..symbolic import known_equal
from .fact import Fact, Positions, Table, Uniform, make_choice, make_positions, nonnegative, settled
from .sources import INTEGER, Read

Moved = Positions | None
Move = Callable[[fx.Node, fx.Node, Positions], Moved]  # the call, its operand, positions in that


def moved(fact: Fact | None, value: torch.Tensor, move: Callable[[Positions], Moved]) -> Fact | None:
    """A fact about a tensor as one about a view `value` of it, given what becomes of positions."""
    if fact is None or isinstance(fact, (Uniform, Table)):
        return fact if isinstance(fact, Uniform) else None
    if isinstance(fact, Positions):
        new = move(fact)
        return None if new is None else make_positions(new.offset, new.steps, value)
    conditions = [c for c in map(move, fact.conditions) if c is not None]
    if len(conditions) < len(fact.conditions):
        return None
    return make_choice(conditions, fact.yes, fact.no, value.shape, fact.exact)


def _by(move: Move) -> Callable[[fx.Node, Read], Fact | None]:
    def of(node: fx.Node, read: Read) -> Fact | None:
        x = node.args[0] if node.args else None
        if not is_tensor(x) or dtype(x) != dtype(node):  # type: ignore[arg-type]
            return None
        return moved(read(x), val(node), lambda p: move(node, x, p))  # type: ignore[arg-type]

    return of


def _nothing(_node: fx.Node, _x: fx.Node, _p: Positions) -> Moved:
    return None


def _same(_node: fx.Node, _x: fx.Node, p: Positions) -> Moved:
    return p


def _permuted(p: Positions, dims: Sequence[int]) -> Positions:
    return Positions(p.offset, tuple(p.steps[d] for d in dims))


def _permute(node: fx.Node, _x: fx.Node, p: Positions) -> Moved:
    return _permuted(p, arguments(node)["dims"])


def _transpose(node: fx.Node, x: fx.Node, p: Positions) -> Moved:
    given = list(arguments(node).values())
    a, b = given[1:3] if len(given) > 2 else (-2, -1)
    dims = list(range(rank(x)))
    if len(dims) > 1:
        dims[a], dims[b] = dims[b], dims[a]
    return _permuted(p, dims)


def _regroup(node: fx.Node, x: fx.Node, p: Positions) -> Moved:
    """Views that only add or drop dims of size 1."""
    counted = [(size, step) for size, step in zip(shape(x), p.steps, strict=True) if not known_equal(size, 1)]
    steps: list[Any] = []
    for size in shape(node):
        if known_equal(size, 1):
            steps.append(0)
        elif counted and known_equal(counted[0][0], size):
            steps.append(counted.pop(0)[1])
        else:
            return None
    return None if counted else Positions(p.offset, tuple(steps))


def _expand(node: fx.Node, x: fx.Node, p: Positions) -> Moved:
    aligned = p.aligned(rank(node))
    missing = rank(node) - rank(x)
    grows = [not known_equal(a, b) for a, b in zip(shape(x), shape(node)[missing:], strict=True)]
    moving = [not (isinstance(s, int) and s == 0) for s in p.steps]
    return None if any(g and m for g, m in zip(grows, moving, strict=True)) else aligned


def _repeat(node: fx.Node, x: fx.Node, p: Positions) -> Moved:
    """Repeats along dims in which nothing changes."""
    repeats = arguments(node)["repeats"] if "repeats" in arguments(node) else arguments(node)["dims"]
    if len(repeats) < rank(x):
        return None
    aligned = p.aligned(rank(node))
    moving = [not (isinstance(s, int) and s == 0) for s in aligned.steps]
    again = [not known_equal(val(r), 1) for r in repeats]
    return None if any(m and r for m, r in zip(moving, again, strict=True)) else aligned


def _flip(node: fx.Node, x: fx.Node, p: Positions) -> Moved:
    offset, steps = p.offset, list(p.steps)
    for dim in {d % rank(x) for d in arguments(node)["dims"]}:
        offset = settled(offset + steps[dim] * (shape(x)[dim] - 1))
        steps[dim] = settled(-steps[dim])
    return Positions(offset, tuple(steps))


def _start(index: Any, size: Any) -> Any:
    """An index that may be negative as one that is not, or None where that is not known."""
    index = val(index)
    if not isinstance(index, INTEGER):
        return None
    for start in (index, index + size):
        if nonnegative(start):
            return start
    return None


def _slice(node: fx.Node, x: fx.Node, p: Positions) -> Moved:
    given = arguments(node)
    dim, step = given["dim"] % rank(x), val(given["step"])
    start = _start(given["start"] or 0, shape(x)[dim])
    if start is None:
        return None
    steps = list(p.steps)
    offset = settled(p.offset + start * steps[dim])
    steps[dim] = settled(steps[dim] * step)
    return Positions(offset, tuple(steps))


def _select(node: fx.Node, x: fx.Node, p: Positions) -> Moved:
    given = arguments(node)
    dim = given["dim"] % rank(x)
    index = _start(given["index"], shape(x)[dim])
    if index is None:
        return None
    return Positions(settled(p.offset + index * p.steps[dim]), (*p.steps[:dim], *p.steps[dim + 1 :]))


VIEWS: dict[str, Callable[[fx.Node, Read], Fact | None]] = {
    **dict.fromkeys(
        [*ALIASES, *COPIES, "aten.lift_fresh", "aten.lift_fresh_copy", "aten.positive"], _by(_same)
    ),
    **dict.fromkeys(RESHAPES, _by(_regroup)),
    **dict.fromkeys(("aten.transpose", "aten.swapaxes", "aten.swapdims", "aten.t", "aten.mT"), _by(_transpose)),
    **dict.fromkeys(EXPANDS, _by(_expand)),
    **dict.fromkeys(("aten.movedim", "aten.roll"), _by(_nothing)),
    **dict.fromkeys(("aten.repeat", "aten.tile"), _by(_repeat)),
    "aten.flip": _by(_flip),
    "aten.permute": _by(_permute),
    "aten.slice": _by(_slice),
    "aten.select": _by(_select),
}  # fmt: skip
