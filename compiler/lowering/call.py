"""Lowering of one call: arguments by schema, the operator's lowering, and a check against the metadata.

%sum = aten.sum.dim_IntList(%x, [1])    ->    LOWERINGS["aten.sum"](lowering, x, [1], False, dtype=None)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from ...rewrites.compat import OpOverload, is_mutable
from .call_arguments import check_places, checked, lowered_arguments, overload_text
from .core import LOWERINGS, Lowering
from .decompose import lower_decomposed
from .fallbacks import kept
from .refused import refused
from .sizes import Unlowered


def find(target: OpOverload) -> Callable[..., Any] | None:
    """The lowering of an operator: that of the overload, or that of all overloads."""
    name = overload_text(target)
    return LOWERINGS.get(name) or LOWERINGS.get(name.rsplit(".", 1)[0])


def becomes_kernel(target: Any) -> bool:
    """Whether calls of an operator are lowered whatever their sizes; of products only small ones are."""
    return isinstance(target, OpOverload) and find(target) is not None and kept(overload_text(target)) is None


def lower_call(low: Lowering, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """The value of a node: a `Tensor`, or a tuple of them.

    Args:
        low: the lowering in progress; additions belong to the node `low.origin`.
        node: a call of an operator.
        values: the values of the nodes before it.

    Raises:
        Unlowered: the call is not covered; the caller rolls back.
    """
    low.current = node
    target = node.target
    if not isinstance(target, OpOverload):
        raise Unlowered("opaque", f"{getattr(target, '__name__', target)} is not an operator of ATen")
    function = find(target)
    reason = kept(overload_text(target))
    if function is None and reason is not None:
        raise Unlowered(*reason)
    if is_mutable(target):
        raise Unlowered("mutation", f"{target} writes to an argument")
    refusal = refused(node)
    if refusal is not None:
        raise Unlowered("refused", refusal)
    args, kwargs = lowered_arguments(low, node, values)
    check_places(low, node, (args, kwargs))
    if function is None:
        return lower_decomposed(low, node, args, kwargs, lower_call)
    return checked(function(low, *args, **kwargs), node.meta.get("val"), node)
