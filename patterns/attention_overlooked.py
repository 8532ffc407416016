"""Attentions that no rule matched beyond their last product: what stands between their softmax and their values.

    softmax(q @ k.mT);  w = where(w > 0.1, w, 0);  w @ v      "aten.where changes the weights before ..."
    sigmoid(q @ k.mT) @ v                                     "the weights are a sigmoid of the scores ..."

The search for matches begins at a product, of which there are many in any program: that one is no attention is nothing
to tell, unless there is an attention.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from ..rewrites.graph import is_tensor, op_name, rank
from ..rewrites.moves import ALIASES, COPIES, EXPANDS, REORDERS, RESHAPES
from ..rewrites.reason import Reason
from .overlooked import differs, reached

_SOFTMAXES = ("aten.softmax", "aten._softmax", "aten._safe_softmax")
_PRODUCTS = ("aten.matmul", "aten.bmm", "aten.baddbmm", "aten.einsum", "aten.linear")
_KEPT = {"aten.to", "aten.dropout"} | RESHAPES | REORDERS | EXPANDS | ALIASES | COPIES
_LAYERS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", "aten.embedding", "aten.layer_norm")
_NO_SOFTMAX = {
    "aten.sigmoid": "the weights are a sigmoid of the scores, each by itself, not a softmax",
    "aten.exp": "exponents of scores multiply values, and nothing shows a softmax in them",
}


def overlooked_attentions(graph: fx.Graph) -> Iterator[tuple[fx.Node, Reason]]:
    """Each product that reads the weights of a softmax of scores, and what is done to them; sigmoids likewise."""
    for node in graph.nodes:
        name = op_name(node)
        if name in _SOFTMAXES:
            found = _product_of(node)
            if found is not None and _holds_product(node.args[0]):
                yield found[0], _reason(node, *found)
        elif name in _NO_SOFTMAX and _holds_product(node.args[0]):
            readers = [u for u in node.users if op_name(u) in _PRODUCTS[:-1] and u.args[0] is node]
            if readers and _is_batched(readers[0]):
                yield readers[0], differs("weights-differ", _NO_SOFTMAX[name], "softmax", node)


def _reason(softmax: fx.Node, product: fx.Node, changes: list[fx.Node]) -> Reason:
    if not changes:
        message = f"{op_name(product)} multiplies the weights of an attention in a way that no rule knows"
        return differs("weights-differ", message, "matmul(weights, value)", product, softmax)
    first = changes[0]
    message = f"{op_name(first)} changes the weights of an attention before they multiply its values"
    return differs("weights-differ", message, "dropout, or nothing", first, softmax)


def _product_of(softmax: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """A product that reads weights, and the operators that change them on the way there, first ones first."""
    changes: dict[fx.Node, list[fx.Node]] = {softmax: []}
    for node in reached(softmax, lambda n: filter(_goes_on, n.users)):
        for user in node.users:
            if op_name(user) in _PRODUCTS:
                return user, changes[node]
            changes.setdefault(user, changes[node] if op_name(user) in _KEPT else [*changes[node], user])
    return None


def _goes_on(node: fx.Node) -> bool:
    """Whether a value is computed from another one by anything but a layer."""
    name = op_name(node)
    return node.op == "call_function" and name not in (*_PRODUCTS, *_LAYERS) and name not in _SOFTMAXES


def _holds_product(scores: object) -> bool:
    """Whether scores are computed from a product of two batched tensors, or written in parts, which hides it."""
    nodes = reached(scores, lambda n: n.all_input_nodes if _goes_on(n) else ())
    return any("opaque" in n.meta or (op_name(n) in _PRODUCTS[:-1] and _is_batched(n)) for n in nodes)


def _is_batched(product: fx.Node) -> bool:
    operands = [a for a in product.all_input_nodes if is_tensor(a)]
    return len(operands) >= 2 and all(rank(a) >= 3 for a in operands)
