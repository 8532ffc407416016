"""Common subexpression elimination: equal calls are computed once, such as masks that each layer computes.

    m1 = clone(mask); a = sdpa(q, k, v, m1);  m2 = clone(mask); b = sdpa(q2, k2, v2, m2)    ->    both read m1

Left alone are results of the program (two results stay two tensors), tensors that are written to, and random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import autograd
from ...rewrites.graph import arguments, is_tensor, op_name, rank, val
from ...rewrites.purity import is_pure, is_random, mutable, returned_storages, storages
from ...rewrites.walk import recompiles


@recompiles
def eliminate_common_subexpressions(graph_module: fx.GraphModule) -> int:
    """Merge equal calls of a functional graph, in place; returns the number of calls removed.

    Args:
        graph_module: after autograd; writes to inputs may stand at its end.
    """
    graph = graph_module.graph
    returned = returned_storages(graph)
    written = mutable(graph)
    first: dict[Any, fx.Node] = {}
    gone = 0
    for node in list(graph.nodes):
        if not _is_plain(node) or node in written or storages(node) & returned:
            continue
        known = first.setdefault(_call(node), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
            gone += 1
    return gone


def _call(node: fx.Node) -> Any:
    """A call as a dictionary key: defaults are given, and dims are counted from the first one."""
    given = arguments(node)
    x = next(iter(given.values()), None)
    named = [name for name in ("dim", "dims") if name in given]
    # Where dims are added, and in gradients, dims are those of another tensor.
    if named and is_tensor(x) and rank(x) >= rank(node) and not op_name(node).endswith("_backward"):
        given |= {name: _from_first(given[name], rank(x)) for name in named}
    return node.target, frozen(given)


def _from_first(dims: Any, count: int) -> Any:
    if isinstance(dims, (list, tuple)):
        return [_from_first(dim, count) for dim in dims]
    return dims + count if isinstance(dims, int) and dims < 0 else dims


def equate_sizes(graph_module: fx.GraphModule) -> int:
    """Give the data-dependent sizes of equal calls one name; returns the number of names removed.

    a = nonzero(m); b = nonzero(m); x.expand(size(a), size(b))    ->    both sizes are u0, in metadata
    y = x[:n]; z = cat([y, x[n:]]), gradient of size u1 + u2      ->    a gradient of z's size, u7 + u8

    When equal calls are merged, here or in autograd's partition, no call would define the second size any more. No call
    defines the sizes of gradients that come in: autograd has them from an earlier trace of the program.
    """
    defining = sum(bool(node.meta.get("unbacked_bindings")) for node in graph_module.graph.nodes)
    if not defining:
        return 0
    renamed = _equate_gradients(graph_module.graph)
    return renamed + _equate_calls(graph_module.graph) if defining > 1 else renamed


def _equate_gradients(graph: fx.Graph) -> int:
    """Give gradients that come in the sizes of the results that they are gradients of."""
    pairs = [
        (size, wanted)
        for gradient, result in autograd.gradients_of_results(graph)
        for size, wanted in zip(_sizes(val(gradient)), _sizes(val(result)), strict=False)
    ]
    # Single symbols first: they determine the rest of a sum.
    single = [pair for pair in pairs if compat.is_unbacked(pair[0])]
    return sum(compat.equate_unbacked(*pair) for pair in (*single, *pairs))


def _equate_calls(graph: fx.Graph) -> int:
    first: dict[Any, fx.Node] = {}
    same: dict[fx.Node, fx.Node] = {}
    renamed = 0
    for node in graph.nodes:
        if node.op != "call_function" or not is_pure(node) or is_random(node):
            continue
        key = (node.target, *(frozen(fx.node.map_arg(given, _known_as(same))) for given in (node.args, node.kwargs)))
        known = first.setdefault(key, node)
        if known is not node:
            same[node] = known
            pairs = zip(_sizes(val(node)), _sizes(val(known)), strict=False)
            renamed += sum(compat.equate_unbacked(size, other) for size, other in pairs)
    return renamed


def _known_as(same: dict[fx.Node, fx.Node]) -> Callable[[fx.Node], fx.Node]:
    return lambda node: same.get(node, node)


def _sizes(value: Any) -> list[Any]:
    """The sizes of all tensors among results, and the numbers among the results."""
    leaves = compat.tree_leaves(value)
    return [size for leaf in leaves for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]


def _is_plain(node: fx.Node) -> bool:
    """Whether a call returns one tensor, and the same values each time."""
    if node.op != "call_function" or not isinstance(node.target, compat.OpOverload) or not is_tensor(node):
        return False
    return node.target.namespace == "aten" and is_pure(node) and not is_random(node) and "recompute" not in node.meta


def frozen(value: Any) -> Any:
    """Arguments as a dictionary key: numbers of different types differ, and NaN equals only itself."""
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return tuple((name, frozen(item)) for name, item in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", frozen(value.start), frozen(value.stop), frozen(value.step))
    if isinstance(value, (int, float, complex, bool)):
        return (type(value).__name__, repr(value))
    return (
        value if isinstance(value, (fx.Node, str, torch.dtype, torch.device, type(None))) else (type(value), id(value))
    )
