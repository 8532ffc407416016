"""The offsets of views of inputs that a program returns after it has written to them.

AOTAutograd gives a program views of its own inputs, and takes their sizes, strides and first element from what the
graph returns in their place. What a graph makes of an input that it writes to lies in memory of its own, which begins
at 0; the input may begin anywhere:

    x of 7 elements behind 5 others;  v = x[:3];  v.mul_(2);  return v        graph: begins at 0      program: at 5

Eager's operators copy what lies before the elements too, so that theirs begins at 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.compat import mark_boxed
from ...rewrites.compat.autograd import views_of_inputs
from ...rewrites.graph import val
from ...rewrites.symbolic import known_equal

Call = Callable[[list[Any]], Sequence[Any]]


def at_eagers_place(call: Call, graph_module: fx.GraphModule) -> Call:
    """A compiled graph whose results begin where the inputs do that AOTAutograd makes views of.

    Args:
        call: the graph, which takes its inputs as a list and clears it.
        graph_module: the graph, while AOTAutograd compiles it.
    """
    inputs = graph_module.graph.find_nodes(op="placeholder")
    pairs = [(k, base) for k, base in views_of_inputs() if base < len(inputs) and _may_begin_later(inputs[base])]
    if not pairs:
        return call

    def placed(args: list[Any]) -> Sequence[Any]:
        bases = [args[base] for _, base in pairs]
        results = list(call(args))
        for (k, _), base in zip(pairs, bases, strict=True):
            results[k] = _placed(results[k], base)
        return results

    mark_boxed(placed)
    return placed


def _may_begin_later(node: fx.Node) -> bool:
    value = val(node)
    return isinstance(value, torch.Tensor) and not known_equal(value.storage_offset(), 0)


def _placed(result: Any, base: torch.Tensor) -> Any:
    """The view of `base` with the sizes and strides of `result`; the graph has written the elements to both."""
    if not isinstance(result, torch.Tensor) or result.dtype != base.dtype or not base.storage_offset():
        return result
    if result.untyped_storage().data_ptr() == base.untyped_storage().data_ptr():
        return result
    return base.detach().as_strided(result.size(), result.stride(), base.storage_offset() + result.storage_offset())
