"""An operator that a pattern wants, found behind other views than the pattern's: near misses that name the difference.

program                                        pattern               near miss
matmul(permute(softmax(x, -1), [1, 0]), v)     matmul(softmax, v)    softmax over dim -2, where the pattern has dim -1
mul(softmax(x, -1), 2)                         x.softmax(-2) * 2     softmax over dim -1, where the pattern has dim -2
matmul(reshape(softmax(x, -1), [6, 4]), v)     matmul(softmax, v)    reshape of softmax
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from .binding import differs
from .call_arguments import wanted_argument
from .graph import arguments, describe, is_tensor, op_name, rank, reaches, sees
from .moves import CUTS, EXPANDS, REORDERS, RESHAPES
from .pattern import Call, Swapped
from .reason import Reason

VIEWED = EXPANDS | REORDERS | RESHAPES
_CHAIN = 3  # views, one upon the other, that near misses look through


def behind(value: Any) -> Any:
    """The value that another is a view of; itself where it is no view."""
    for _ in range(_CHAIN):
        if op_name(value) not in VIEWED:
            break
        value = value.args[0]
    return value


def other_views(term: Call, value: Any, user: fx.Node | None) -> tuple[list[Call], list[fx.Node], Reason] | None:
    """The same operator behind other views: the pattern's calls down to it, the program's, and the difference.

    None where there are no views, no such operator behind them, or where they are of one kind and not known to differ.
    """
    if term.op not in VIEWED and op_name(value) not in VIEWED:
        return None
    wanted, found, call, node = [term], [value], term, value
    while call.op in VIEWED and call.args and isinstance(call.args[0], Call) and len(wanted) <= _CHAIN:
        call = call.args[0]
        wanted.append(call)
    if call.op in VIEWED or call.op in CUTS:
        return None
    while op_name(node) in VIEWED and len(found) <= _CHAIN and reaches(user, node):
        node = node.args[0]
        found.append(node)
    if not sees(user, node, call.op):
        return None
    reason = _other_dim(wanted, found) or _other_views(wanted, found)
    return None if reason is None else (wanted, found, reason)


def _other_dim(wanted: Sequence[Call], found: Sequence[fx.Node]) -> Reason | None:
    """The dims that an operator works along, if these are known and differ."""
    call, node = wanted[-1], found[-1]
    before = _moved([_order_wanted(view) for view in wanted[:-1]], wanted_argument(call, node, "dim"), node)
    after = _moved([_order_found(view) for view in found[:-1]], arguments(node).get("dim"), node)
    if before is None or after is None or before == after:
        return None
    name = call.op.removeprefix("aten.")
    told = [f"{name} over dim {dim - rank(node)}" for dim in (before, after)]
    return differs(told[0], told[1], (node, *found[:-1]))


def _other_views(wanted: Sequence[Call], found: Sequence[fx.Node]) -> Reason | None:
    names = [call.op for call in wanted], [op_name(node) for node in found]
    if names[0] == names[1]:
        return None
    before, after = (" of ".join(name.removeprefix("aten.") for name in some) for some in names)
    return differs(before, f"{after}: {describe(found[-1]).partition(': ')[2]}", (found[-1], *found[:-1]))


def _order_wanted(view: Call) -> Any:
    return view.args[1] if view.op == "aten.permute" and len(view.args) > 1 else dict(view.kwargs).get("dims")


def _order_found(view: fx.Node) -> Any:
    return arguments(view).get("dims") if op_name(view) == "aten.permute" else None


def _moved(orders: Sequence[Any], dim: Any, node: fx.Node) -> int | None:
    """The position of a dim after at most one permutation; None where that is not known."""
    size = rank(node) if is_tensor(node) else 0
    if type(dim) is not int or not size or len(orders) > 1:
        return None
    for order in orders:
        if isinstance(order, Swapped):
            order = order.dims(size) if order.fits(size) else None
        if not isinstance(order, Sequence) or any(type(d) is not int for d in order) or len(order) != size:
            return None
        return [d % size for d in order].index(dim % size)
    return dim % size
