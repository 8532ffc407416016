"""Pairs of PyTorch's own attentions: the call of the forward, and that of the backward which reads its results.

%call = _scaled_dot_product_efficient_attention(%q, %k, %v, %bias, True, 0.1)
%back = _scaled_dot_product_efficient_attention_backward(%grad, %q, %k, %v, %bias, %call[0], %call[1], ...)
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from .....rewrites import compat
from .....rewrites.compat import argument
from ...common.formula import packet
from ..gradient_layout import Places
from ..match import FoundAttention, at
from ..sdpa import given_mask
from .forward_backward import (
    NoBackwardError,
    Pair,
    check_gone,
    check_order,
    dying,
    heads_of,
    read_operand,
    root,
    variables_of,
    written_operand,
)

_NAMES = ("q", "k", "v", "scores")


def pair_sdpa(call: fx.Node, found: FoundAttention) -> Pair:
    """The backward of a call of one of `sdpa.SDPA` whose forward is known.

    Raises:
        NoBackwardError: there is none, several, or one of something else.
        Unlowered: its operands cannot be read in place.
    """
    backward = _backward_of(call)
    attention = found.attention
    row, key, depth, width = variables_of(attention)
    heads = heads_of(attention)
    q, k = (node.meta["val"].shape[1] for node in call.args[:2])  # type: ignore[union-attr]
    if q != k:
        raise NoBackwardError("shared-heads", f"{q} heads of queries share {k} of keys: their gradients are sums", call)
    gradient, out = read_operand(argument(backward, _first(backward)), (*heads, at(row), at(width)), row, width)
    results = {_NAMES[user.args[1]]: user for user in backward.users if user.users}  # type: ignore[index]
    if "scores" in results:
        _check_bias(results["scores"], given_mask(call), found)
    columns = {"q": (row, depth), "k": (key, depth), "v": (key, width), "scores": (row, key)}
    written = {
        name: written_operand(node, (*heads, *map(at, columns[name])), *columns[name]) for name, node in results.items()
    }
    check_order(gradient, results.values())
    dead = dying(call.graph, [found.output, *results.values()], [*found.inputs, gradient])
    check_gone([call, backward], dead, "the attention")
    return Pair(found, gradient, Places(out=out, **written), results, tuple(reversed(dead)))


def _first(backward: fx.Node) -> str:
    return str(compat.schema(backward.target).arguments[0].name)  # type: ignore[union-attr]


def _backward_of(call: fx.Node) -> fx.Node:
    name = f"{packet(call)}_backward"
    # Others may read the result as their q, k or v.
    found = [node for node in _readers(call) if packet(node) == name and _is_result(argument(node, "logsumexp"), call)]
    if len(found) != 1:
        raise NoBackwardError("no-backward", f"{len(found)} backward calls read {call.name}", call)
    (backward,) = found
    for theirs, ours in _shared(call, backward):
        if not _is_same(theirs, ours):
            raise NoBackwardError("other-backward", f"{backward.name} has other arguments than {call.name}", backward)
    return backward


def _is_result(node: Any, call: fx.Node) -> bool:
    return isinstance(node, fx.Node) and root(node).args[:1] == (call,)


def _is_same(a: Any, b: Any) -> bool:
    nodes = isinstance(a, fx.Node) or isinstance(b, fx.Node)
    return root(a) is root(b) if nodes else type(a) is type(b) and bool(a == b)


def _readers(call: fx.Node) -> dict[fx.Node, None]:
    """The nodes that read the results of a call, by other names too."""
    found, queue = dict[fx.Node, None](), [call]
    for node in queue:
        for user in node.users:
            if user.target is operator.getitem or root(user) is not user:
                queue.append(user)
            else:
                found[user] = None
    return found


def _shared(call: fx.Node, backward: fx.Node) -> list[tuple[Any, Any]]:
    """Arguments that both have, and the results of the one that the other gets."""
    given = {a.name for a in compat.schema(call.target).arguments}  # type: ignore[union-attr]
    taken = [a.name for a in compat.schema(backward.target).arguments]  # type: ignore[union-attr]
    both = [(_or_default(call, name), _or_default(backward, name)) for name in taken if name in given]
    results = {user.args[1]: user for user in call.users}
    return [*both, *((results.get(k), argument(backward, name)) for k, name in enumerate(("out", "logsumexp")))]


def _or_default(call: fx.Node, name: str) -> Any:
    schema = next(a for a in compat.schema(call.target).arguments if a.name == name)  # type: ignore[union-attr]
    given = argument(call, name)
    return schema.default_value if given is None and schema.has_default_value() else given


def _check_bias(node: fx.Node, bias: Any, found: FoundAttention) -> None:
    attention = found.attention
    sizes = tuple(var.extent for var in (*attention.lead, attention.row, attention.key))
    if not isinstance(bias, fx.Node) or tuple(node.meta["val"].shape) != sizes:
        raise NoBackwardError(
            "bias-sizes", f"the bias's gradient is {tuple(node.meta['val'].shape)}, not {sizes}", node
        )
