"""Lets calls on a GPU read numbers that change from call to call as tensors, so that one CUDA graph serves all of them.

    n: an int that is no size                 t = scalar_tensor(n)       (on the CPU; `host_scalars` copies it)
    y = add(x, n)                      ->     y = add(x, t)
    p = arange(n, n + 8)                      p = add(arange(0, 8), t)
    z = full([4], n)                          z = mul(full([4], 1), t)
    s = slice(x, 0, n, n + 2)                 s = index_select(x, 0, add(arange(0, 2), t))
    w = slice_scatter(x, y, 0, n, n + 2)      w = index_copy(x, 0, add(arange(0, 2), t), y)

A CUDA graph repeats the arguments with which its kernels were launched, so that each value of such a number would need
a graph of its own. Sliding-window caches count tokens in Python ints, decoding loops their position, training loops
their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor, RewriteError, require_same_meta
from ...rewrites.graph import arguments, op_name, val
from ...rewrites.purity import erase_dead
from ...rewrites.symbolic import known, symbols_of
from ...rewrites.views import renew_views
from ...rewrites.walk import recompiles

aten = torch.ops.aten

_NUMBERS = (torch.SymInt, torch.SymFloat)
# Not 16 bits: eager rounds a tensor to them before it computes, but not a number. Not narrower integers: eager refuses
# numbers that they cannot hold.
_AS_NUMBERS = (torch.bool, torch.int64, torch.float32, torch.float64)
_OF_TENSORS = {
    aten.where.ScalarOther: aten.where.self,
    aten.where.ScalarSelf: aten.where.self,
    aten.clamp.default: aten.clamp.Tensor,
    aten.clamp_min.default: aten.clamp_min.Tensor,
    aten.clamp_max.default: aten.clamp_max.Tensor,
}
_AS_THEY_ARE = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.div.Tensor_mode})


@recompiles
def numbers_to_device(graph_module: fx.GraphModule) -> int:
    """Give calls on a GPU tensors for numbers that are symbolic, in place; returns the number of calls.

    Either all calls that read a number take a tensor for it, or none does: where a size depends on it, or a call needs
    the number itself, a CUDA graph serves one value only.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph = graph_module.graph
    fixed = _sizes(graph)
    readers = {node: symbols for node, symbols in _readers(graph) if not symbols <= fixed}
    if not readers:
        return 0
    editor = Editor(graph)
    made = {node: _of_tensors(editor, node) for node in readers}
    fixed |= _union(readers[node] for node, new in made.items() if new is None)
    done = {node: new for node, new in made.items() if new is not None and not readers[node] <= fixed}
    for node, new in done.items():
        editor.replace(node, new)
    if any(op_name(node) in _PLACED for node in done):
        renew_views(graph)
    erase_dead(graph, [node for pair in made.items() for node in pair if node is not None])
    return len(done)


def _readers(graph: fx.Graph) -> Iterator[tuple[fx.Node, frozenset[Any]]]:
    """Calls on a GPU that are given symbolic numbers, with the symbols of these."""
    for node in graph.nodes:
        symbols = _union(symbols_of(val(x)) for x in node.all_input_nodes if isinstance(val(x), _NUMBERS))
        if node.op == "call_function" and symbols and _is_on_gpu(node):
            yield node, symbols


def _is_on_gpu(node: fx.Node) -> bool:
    return any(x.device.type == "cuda" for x in _tensors(val(node)))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(x, torch.Tensor)]


def _sizes(graph: fx.Graph) -> frozenset[Any]:
    """The symbols on which sizes and strides of tensors on a GPU depend."""
    tensors = [x for node in graph.nodes if _is_on_gpu(node) for x in _tensors(val(node))]
    return _union(symbols_of(n) for x in tensors for n in (*x.shape, *x.stride()))


def _union(sets: Iterable[frozenset[Any]]) -> frozenset[Any]:
    return frozenset[Any]().union(*sets)


# -- the calls --------------------------------------------------------------------------------------------------------


def _of_tensors(editor: Editor, node: fx.Node) -> fx.Node | None:
    """The same of tensors, before a call that takes numbers; None where there is no such call."""
    form = _PLACED.get(op_name(node))
    if form is None:
        form = _FORMS.get(op_name(node), _elementwise)
        if any(x.dtype not in _AS_NUMBERS for n in (node, *node.all_input_nodes) for x in _tensors(val(n))):
            return None
    with editor.at(node):
        try:
            new = form(editor, node)
            if new is not None:
                require_same_meta(node, new)
        except (RewriteError, RuntimeError, TypeError, NotImplementedError):  # no such call
            return None
    return new


def _elementwise(editor: Editor, node: fx.Node) -> fx.Node | None:
    """``eq.Scalar(x, n)  ->  eq.Tensor(x, t)``."""
    target = _target(node.target)
    if target is None or torch.Tag.pointwise not in target.tags:
        return None
    if any(map(_is_number, node.kwargs.values())):  # alpha
        return None
    return editor.call(target, *(_tensor(editor, x) for x in node.args), **node.kwargs)


def _target(target: Any) -> Any:
    """The overload that takes tensors in place of numbers."""
    if not isinstance(target, compat.OpOverload):
        return None
    if target in _AS_THEY_ARE:
        return target
    if target in _OF_TENSORS:
        return _OF_TENSORS[target]
    packet = target.overloadpacket
    return getattr(packet, "Tensor", None) if target is getattr(packet, "Scalar", None) else None


def _tensor(editor: Editor, x: Any, dtype: torch.dtype | None = None) -> Any:
    """A number as a tensor on the CPU; other arguments as they are."""
    if not _is_number(x):
        return x
    dtype = dtype or (torch.float64 if isinstance(val(x), torch.SymFloat) else torch.int64)
    return editor.call(aten.scalar_tensor.default, x, dtype=dtype, device=torch.device("cpu"))


def _is_number(x: Any) -> bool:
    return isinstance(x, fx.Node) and isinstance(val(x), _NUMBERS)


def _subtracted(editor: Editor, node: fx.Node) -> fx.Node | None:
    """``rsub(x, n)  ->  sub(t, x)``."""
    x, number, alpha = (arguments(node)[key] for key in ("self", "other", "alpha"))
    return None if _is_number(alpha) else editor.call(aten.sub.Tensor, _tensor(editor, number), x, alpha=alpha)


def _masked(editor: Editor, node: fx.Node) -> fx.Node | None:
    """``masked_fill(x, mask, n)  ->  where(mask, t, x)``."""
    x, mask, number = (arguments(node)[key] for key in ("self", "mask", "value"))
    return editor.call(aten.where.self, mask, _tensor(editor, number), x)


def _filled(editor: Editor, node: fx.Node) -> fx.Node | None:
    """``full([4], n)  ->  mul(full([4], 1), t)``, which keeps the sign of a zero."""
    given = arguments(node)
    value = next(given[key] for key in ("fill_value", "s") if key in given)
    ones = editor.call(aten.full.default, list(val(node).shape), 1, dtype=val(node).dtype, device=val(node).device)
    return editor.call(aten.mul.Tensor, ones, _tensor(editor, value, val(node).dtype))


def _counted(editor: Editor, node: fx.Node) -> fx.Node | None:
    """``arange(n, n + 8)  ->  add(arange(0, 8), t)``."""
    given, meta = arguments(node), val(node)
    start, step = given.get("start"), given.get("step", 1)
    if start is None or meta.dtype != torch.int64 or not isinstance(step, int):
        return None
    end = meta.shape[0] * step
    places = editor.call(aten.arange.start_step, 0, end, step, dtype=meta.dtype, device=meta.device)
    return editor.call(aten.add.Tensor, places, _tensor(editor, start))


def _picked(editor: Editor, node: fx.Node) -> fx.Node | None:
    """``slice(x, 0, n, n + 2)``, ``select(x, 0, n)``: elements of x, which nobody needs as a view of it."""
    if any(op_name(user) in _OF_MEMORY for user in node.users):
        return None
    x, dim = arguments(node)["self"], arguments(node)["dim"]
    picks = op_name(node) == "aten.select"
    places = _places(editor, node, 1 if picks else val(node).shape[dim])
    if places is None:
        return None
    rows = editor.call(aten.index_select.default, x, dim, places)
    return editor.call(aten.select.int, rows, dim, 0) if picks else rows


def _placed(editor: Editor, node: fx.Node) -> fx.Node | None:
    """``slice_scatter(x, y, 0, n, n + 2)``, ``select_scatter(x, y, 0, n)``."""
    x, y, dim = (arguments(node)[key] for key in ("self", "src", "dim"))
    if op_name(node) == "aten.select_scatter":
        y = editor.call(aten.unsqueeze.default, y, dim if dim >= 0 else dim + val(x).dim())
    places = _places(editor, node, val(y).shape[dim])
    return None if places is None else editor.call(aten.index_copy.default, x, dim, places, y)


def _places(editor: Editor, node: fx.Node, count: Any) -> fx.Node | None:
    """``n, n + 1, ...``; None where n may be negative, which would count from the end, or rows are left out."""
    given = arguments(node)
    first = given["index"] if "index" in given else given["start"]
    if not _is_number(first) or not known(val(first) >= 0) or given.get("step", 1) != 1:
        return None
    device = val(node).device
    steps = editor.call(aten.arange.start_step, 0, count, 1, dtype=torch.int64, device=device)
    return editor.call(aten.add.Tensor, steps, _tensor(editor, first))


# Their readers would see that the result is no view.
_OF_MEMORY = ("output", "aten.as_strided", "aten.copy_")
_PLACED: dict[str, Callable[[Editor, fx.Node], fx.Node | None]] = {
    "aten.slice": _picked, "aten.select": _picked, "aten.slice_scatter": _placed, "aten.select_scatter": _placed,
}  # fmt: skip
_FORMS: dict[str, Callable[[Editor, fx.Node], fx.Node | None]] = {
    "aten.rsub": _subtracted, "aten.masked_fill": _masked, "aten.full": _filled, "aten.scalar_tensor": _filled,
    "aten.arange": _counted,
}  # fmt: skip
