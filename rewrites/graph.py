"""Reading FX graphs of ATen operations: operator names, arguments by schema, metadata.

Nothing here changes a graph; `editor.py` does that.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import fx

from . import compat

SYMBOLIC_OPERATORS = {
    operator.mul: "mul", operator.add: "add", operator.sub: "sub", operator.truediv: "truediv", operator.pow: "pow",
    operator.neg: "neg", operator.floordiv: "floordiv",
}  # fmt: skip


# By the identity of operators, which hash slowly; they are kept, so that no id comes back as another's.
_names: dict[int, tuple[Any, str]] = {}


def packet_name(target: Any) -> str:
    """Name of an operator without its overload, e.g. ``"aten.matmul"``; for Python's, ``"getitem"``, ``"sym.mul"``."""
    known = _names.get(id(target))
    if known is not None:
        return known[1]
    if isinstance(target, compat.OpOverload):
        name = f"{target.namespace}.{compat.schema(target).name.split('::')[-1]}"
        _names[id(target)] = target, name
        return name
    if target is operator.getitem:
        return "getitem"
    if target in SYMBOLIC_OPERATORS:
        return f"sym.{SYMBOLIC_OPERATORS[target]}"
    return getattr(target, "__name__", None) or str(target)  # the text of a generated kernel may be very long


# Of operators whose schemas torch tests; and of those that have no effects but what their schemas declare.
TORCH_NAMESPACES = frozenset({"aten", "prims", "prim"})
KNOWN_NAMESPACES = TORCH_NAMESPACES | {"regraft", "mkldnn", "onednn"}


def op_name(node: Any) -> str:
    """`packet_name` of a call node; the node's kind (``"placeholder"``, ...) otherwise; ``""`` for what is no node."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op != "call_function":
        return node.op
    known = _names.get(id(node.target))  # as `packet_name` does: this runs a hundred times for each call of a program
    return known[1] if known is not None else packet_name(node.target)


def sees(user: fx.Node | None, node: Any, *names: str) -> bool:
    """Whether `node` is a call of one of the operators `names` that `user` may look through.

    A node that later writes can change (see `effects.py`), or that ran under another autocast or grad mode than its
    user, is a leaf: its value may be read but not recomputed elsewhere.
    """
    return op_name(node) in names and reaches(user, node)


def reaches(user: fx.Node | None, node: fx.Node) -> bool:
    """Whether `user` may look through a call, whatever its operator; see `sees`."""
    if "opaque" in node.meta:
        return False
    return user is None or user.meta.get("region") == node.meta.get("region")


@cache
def _parameters(target: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((a.name, a.default_value) for a in compat.schema(target).arguments)


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of an ATen call by the names of its schema, defaults filled in; a copy, free to change."""
    if not isinstance(node.target, compat.OpOverload):
        return {str(i): a for i, a in enumerate(node.args)} | node.kwargs
    values = {}
    for position, (name, default) in enumerate(_parameters(node.target)):
        if position < len(node.args):
            values[name] = node.args[position]
        else:
            values[name] = node.kwargs.get(name, default)
    return values


def mark_returned(graph: fx.Graph, count: int) -> None:
    """Note that only the first outputs of a graph go to the program; the others are another graph's to read.

    Those of them that are no views now are none to autograd, whatever they are computed by later.
    """
    output = graph.output_node()
    values = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    output.meta["returned"] = count
    output.meta["apart"] = frozenset(place for place, value in enumerate(values[:count]) if _is_apart(value))


def _is_apart(value: Any) -> bool:
    if not is_tensor(value) or value.op != "call_function":
        return False
    return not gives_view(value.args[0] if op_name(value) == "getitem" else value)


def apart(output: fx.Node) -> list[fx.Node]:
    """The outputs that are no views to autograd; each once."""
    places = output.meta.get("apart", ())
    values = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    return list(dict.fromkeys(values[place] for place in sorted(places) if isinstance(values[place], fx.Node)))


def promised(output: fx.Node) -> list[fx.Node]:
    """The outputs whose strides are promised: what the program gets, and what is of symbolic size."""
    count = output.meta.get("returned", 1 << 30)
    values = enumerate(nodes_in(output.args[0]))
    return [node for place, node in values if place < count or not has_known_strides(node)]


def has_known_strides(node: Any) -> bool:
    """Whether a value is a tensor of static sizes and strides."""
    value = val(node)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def val(node: Any) -> Any:
    """The metadata value of a node (a fake tensor, a symbolic number, a tuple of them), or the constant itself."""
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def is_tensor(node: Any) -> bool:
    """Whether a value is a node that holds one tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def shape(node: fx.Node) -> tuple[Any, ...]:
    """Sizes of a tensor node, each an int or a SymInt."""
    return tuple(val(node).shape)


def rank(node: fx.Node) -> int:
    """Number of dims of a tensor node."""
    return val(node).dim()


def dtype(node: fx.Node) -> torch.dtype:
    """Dtype of a tensor node."""
    return val(node).dtype


def widens(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Whether torch promotes a dtype to another one beside it; some (of 8 bits) it does not promote at all."""
    try:
        return narrow == wide or torch.promote_types(narrow, wide) == wide
    except RuntimeError:
        return False


def is_number(value: Any) -> bool:
    """A Python or symbolic number, or a node that holds one (bool excluded)."""
    value = val(value)
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(value, bool)


def nodes_in(value: Any) -> Iterator[fx.Node]:
    """Every node inside an argument, depth first, through lists, tuples, dicts and slices."""
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        yield from nodes_in(list(value.values()))
    elif isinstance(value, slice):
        yield from nodes_in([value.start, value.stop, value.step])


# Calls that change the dtype alone, below autograd.
CASTS = ("aten._to_copy", "prims.convert_element_type")


def gives_view(node: Any) -> bool:
    """Whether a node is a call whose result, or one of its results, looks at the memory of an argument."""
    target = node.target
    if not isinstance(target, compat.OpOverload):
        return False
    return any(told.alias_info is not None for told in compat.schema(target).returns)


def describe(value: Any) -> str:
    """One operand as a person would write it: ``softmax: bfloat16[2, 12, s0, s0]``, a constant, or a symbolic size."""
    if not isinstance(value, fx.Node):
        return str(value)
    meta = value.meta.get("val")
    name = op_name(value).removeprefix("aten.")
    return f"{name}: {_typed(meta)}"


def _typed(value: Any) -> str:
    """A tensor's dtype and sizes; those of several results in parentheses."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_typed, value))})"
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
