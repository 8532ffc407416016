"""Removes tables of blocks that are not needed: `BlockMask` computes them besides the mask function.

    dense = vmap(...)(kv_indices); q_indices = argsort(dense^T)
    flex_attention(q, k, v, f, (..., q_indices, mask_mod))   ->   flex_attention(q, k, v, f, (..., None, mask_mod))

A call that is decomposed (see `flex`) needs the function only. A mask that is created where it is used then costs
nothing, and its `vmap` does not prevent capture.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from .flex import is_flex, reads_tables
from .screen import writes_in_place

_SCOPES = ("lazy_load_decompositions", "_vmap_increment_nesting", "_vmap_decrement_nesting")
_MAPPED = ("_add_batch_dim", "_remove_batch_dim")
_FRESH = (
    "zeros",
    "ones",
    "full",
    "empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "zeros_like",
    "empty_like",
)
_WRITES = ("setitem", "iadd", "iand", "ifloordiv", "imod", "imul", "ior", "ipow", "isub", "itruediv", "ixor")
_RANDOM = ("rand", "bernoulli", "multinomial", "normal", "dropout")


def without_tables(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of `gm` without the tables that calls of flex attention need not read; `gm` if there are none."""
    calls = [node for node in gm.graph.nodes if is_flex(node.target) and not reads_tables(node, gm)]
    tables = {call: _tables(call) for call in calls}
    if not any(tables.values()):
        return gm
    copies: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, copies))
    graph.output_node().meta = dict(gm.graph.output_node().meta)
    unread = {copies[table] for some in tables.values() for table in some}
    for call in calls:
        copy = copies[call]
        given = tuple(None if part in unread else part for part in copy.args[4])  # type: ignore[union-attr]
        copy.args = (*copy.args[:4], given, *copy.args[5:])
    for node in reversed(_dead(graph, unread)):
        graph.erase_node(node)
    made = fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    made.meta, made.training = dict(gm.meta), gm.training
    return made


def _tables(call: fx.Node) -> list[fx.Node]:
    """The tensors that describe the blocks of the mask of a call."""
    return [part for part in call.args[4][2:-3] if isinstance(part, fx.Node)]  # type: ignore[index]


def _dead(graph: fx.Graph, unread: set[fx.Node]) -> list[fx.Node]:
    """The computations of values that are no longer read, in order."""
    scopes = {node for node in graph.nodes if _name(node) in _SCOPES}
    mapped = [node for node in graph.nodes if _name(node) in _MAPPED]
    dead = scopes | _sources(unread.union(node for node in mapped if not node.users))
    while True:
        needed = set() if dead.issuperset(mapped) else scopes
        alive = {
            node
            for node in dead
            if not dead.issuperset(node.users)
            or (_is_write(node) and not (node.args[0] in dead and _is_fresh(node.args[0])))
            or node in needed
        }
        if not alive:
            return [node for node in graph.nodes if node in dead]
        dead -= alive


def _sources(nodes: set[fx.Node]) -> set[fx.Node]:
    """Nodes, and the nodes that they are computed from without random numbers; writes to these are included."""
    found, stack = set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found and node.op in ("call_function", "call_method") and not _name(node).startswith(_RANDOM):
            found.add(node)
            stack.extend(node.all_input_nodes)
            stack.extend(user for user in node.users if _is_write(user) and user.args[0] is node)
    return found


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_write(node: fx.Node) -> bool:
    if node.op == "call_method":
        return writes_in_place(_name(node))
    module = getattr(node.target, "__module__", "")
    return _name(node) in _WRITES if module == "_operator" else node.op == "call_function" and _name(node)[-1:] == "_"


def _is_fresh(node: Any) -> bool:
    """Whether memory is new, rather than that of an input."""
    return isinstance(node, fx.Node) and _name(node) in _FRESH
