"""Facts on values from the graph alone: one number, positions, a choice between two numbers, a small tensor.

    ones(B, S)[:, None, None, :]                      Uniform(1.0)
    (1 - ones(B, 1, 1, S)) * finfo.min                Uniform(-0.0)
    arange(S)[None] <= arange(S)[:, None] + P         Choice([i + P - j >= 0], True, False)
    cumsum(ones(B, S), -1) - 1                        Positions(0, (0, 1))

Sizes may be symbolic; what is known holds for every value of the symbols, and nothing is assumed (no guard). Inputs,
parameters and buffers are not known, nor are random numbers and memory that is written to later.

    fact.py        the kinds of facts
    evaluate.py    calls on single numbers and small tensors, by eager itself
    sources.py     full, zeros, ones, arange, tril, triu
    views.py       views and copies
    pointwise.py   elementwise arithmetic, comparisons, selections
    joins.py       casts, scans, sums, joins, reads at known places
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from .. import compat
from ..graph import is_tensor, op_name, val
from .evaluate import (
    MAX_BYTES,
    example,
    is_known_exactly,
    is_same_on_cpu,
    on_cpu,
    plainly,
    summary,
    table_of,
)  # fmt: skip
from .fact import REAL, Conditional, Fact, Positions, Table, Uniform, ends, nonnegative
from .joins import CASTS, JOINS
from .pointwise import ELEMENTWISE, EXACT, is_exact, takes_gradient
from .sources import SOURCES
from .views import VIEWS

__all__ = [
    "MAX_BYTES", "Conditional", "Fact", "Positions", "Table", "Uniform", "derive", "ends", "example", "fact_of",
    "facts_of_graph", "gets_gradient", "is_cheap", "is_known_exactly", "is_same_on_cpu", "literal", "nonnegative",
    "on_cpu", "summary",
]  # fmt: skip

_RULES: Mapping[str, Callable[[fx.Node, Callable[[Any], Fact | None]], Fact | None]] = {
    **SOURCES, **VIEWS, **ELEMENTWISE, **JOINS,
}  # fmt: skip
_CONSTANT = re.compile(r"_tensor_constant\d+$")  # what tracing names a tensor literal of the program


def fact_of(node: Any) -> Fact | None:
    """The fact on a node of a mirror, or None. Remembered in the node's metadata."""
    if not is_tensor(node):
        return None
    todo = [node]
    while todo:
        current = todo[-1]
        waiting = [] if _is_told(current) else [n for n in _operands(current) if not _is_told(n)]
        if waiting:
            todo.extend(waiting)
            continue
        todo.pop()
        if not _is_told(current):
            _tell(current, derive(current, _told))
    return _told(node)


def gets_gradient(value: Any) -> bool:
    """Whether gradients may flow into a value: not where it is known to be constant."""
    return takes_gradient(value, fact_of)


def _operands(node: fx.Node) -> list[fx.Node]:
    """The operands that facts about a call may rest on."""
    if node.op != "call_function" or "opaque" in node.meta:
        return []
    return [n for n in node.all_input_nodes if is_tensor(n)]


def _is_told(node: fx.Node) -> bool:
    return "fact" in node.meta or "fact" in node.meta.get("memo", ())


def _told(node: Any) -> Fact | None:
    return node.meta.get("fact") if isinstance(node, fx.Node) else None


def _tell(node: fx.Node, fact: Fact | None) -> None:
    """What is known stays known; what is not may be, once operands are spelled differently."""
    if fact is not None:
        node.meta["fact"] = fact
    else:
        node.meta.setdefault("memo", {})["fact"] = None


def facts_of_graph(graph: fx.Graph, leaves: set[fx.Node]) -> dict[fx.Node, Fact]:
    """The facts of all nodes of a graph of which something is known, in order; nothing is known of `leaves`."""
    known: dict[fx.Node, Fact] = {}
    for node in graph.nodes:
        fact = None if node in leaves or not is_tensor(node) else derive(node, known.get)
        if fact is not None:
            known[node] = fact
    return known


def derive(node: fx.Node, read: Callable[[Any], Fact | None]) -> Fact | None:
    """The fact on a tensor node, given those on its operands by `read`."""
    value = val(node)
    if "opaque" in node.meta or value.layout != torch.strided or value.dtype not in REAL or value.is_quantized:
        return None
    constant = literal(node)
    if constant is not None:
        return summary(constant)
    if node.op != "call_function" or not isinstance(node.target, compat.OpOverload):
        return None
    name = op_name(node)
    rule = _RULES.get(name)
    fact = None if rule is None else rule(node, read)
    return fact if fact is not None else table_of(node, read, _keeps_bits(node))


def is_cheap(node: fx.Node) -> bool:
    """Whether a call computes an element with no more than a few instructions: as well done anew as read."""
    name = op_name(node)
    return name in SOURCES or name in VIEWS or name in CASTS or name in EXACT


def _keeps_bits(node: fx.Node) -> bool:
    """Whether computing a call on the CPU, on tensors that may have other strides, gives eager's bits."""
    name = op_name(node)
    moves = name in VIEWS or name in CASTS or name in ("aten.cat", "aten.index", "aten.gather", "aten.stack")
    return not val(node).dtype.is_floating_point or moves or is_exact(node) or not node.all_input_nodes


def literal(node: fx.Node) -> torch.Tensor | None:
    """The value of a tensor literal of the program, which was a constant when the graph was captured, on the CPU."""
    tensor = getattr(val(node), "constant", None)
    if tensor is None and node.op == "get_attr" and _CONSTANT.match(str(node.target)):
        tensor = getattr(node.graph.owning_module, str(node.target), None)
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta or hasattr(tensor, "fake_mode"):
        return None
    if tensor.numel() * tensor.dtype.itemsize > MAX_BYTES:
        return None
    with plainly():
        return tensor.cpu()
