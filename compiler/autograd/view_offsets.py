"""The offsets of views of inputs that a program returns after it has written to them.

AOTAutograd gives a program views of its own inputs, and takes their sizes, strides and first element from what the
graph returns in their place. What a graph makes of an input that it writes to lies in memory of its own, which begins
at 0; the input may begin anywhere:

    x of 7 elements behind 5 others;  v = x[:3];  v.mul_(2);  return v        graph: begins at 0      program: at 5

Eager's operators copy what lies before the elements too, so that theirs begins at 5.

Of complex numbers made of an input's real ones, it wants to know by which views:

    x of real numbers;  z = view_as_complex(x.view(-1, 2));  z.mul_(2);  return z       graph: complex, and no view
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
    results = graph_module.graph.output_node().args[0]
    pairs = [
        (k, base)
        for k, base in views_of_inputs()
        if base < len(inputs) and (_may_begin_later(inputs[base]) or _is_complex_of_real(results[k], inputs[base]))
    ]
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


def _is_complex_of_real(result: Any, base: fx.Node) -> bool:
    value = val(result) if isinstance(result, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex() and not val(base).is_complex()


def _placed(result: Any, base: torch.Tensor) -> Any:
    """The view of `base` with the sizes and strides of `result`; the graph has written the elements to both."""
    if not isinstance(result, torch.Tensor):
        return result
    is_of_real = result.is_complex() and not base.is_complex()
    if (result.dtype.to_real() if is_of_real else result.dtype) != base.dtype:
        return result
    memory = result.untyped_storage()
    if memory.data_ptr() == base.untyped_storage().data_ptr():
        return result
    first = base.storage_offset()
    end = first + 1 + sum((n - 1) * stride for n, stride in zip(base.shape, base.stride(), strict=True))
    before = 0 if memory.nbytes() >= end * base.element_size() else first
    sizes, strides, offset = result.size(), result.stride(), result.storage_offset()
    if is_of_real:
        real = base.detach().as_strided((*sizes, 2), (*(2 * n for n in strides), 1), before + 2 * offset)
        return torch.view_as_complex(real).conj() if result.is_conj() else torch.view_as_complex(real)
    return base.detach().as_strided(sizes, strides, before + offset) if first else result
