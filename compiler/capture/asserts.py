"""Preserves a program's assertions about sizes that depend on data, which tracing would otherwise fold.

    z = nonzero(x)                     z = nonzero(x)
    s = sym_size(z, 0)        ->       s = regraft.size(z, 0)
    assert_scalar(s == 4)              assert_scalar(s == 4)

After the assertion, the shape environment replaces the size of `z` by 4. If the graph is traced again, the size is 4
before the assertion, the condition is folded to True, and kernels for 4 rows read a tensor with another number of rows.
The result of `regraft.size` is opaque to the shape environment: it depends on the tensor, like a number read from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from ...rewrites import compat

_library = torch.library.Library("regraft", "FRAGMENT")
_library.define("size(Tensor self, int dim) -> SymInt")
_library.impl("size", lambda self, dim: self.shape[dim], "CompositeExplicitAutograd")
torch.library.register_fake("regraft::size", lambda self, dim: torch.library.get_ctx().new_dynamic_size(), lib=_library)

SIZE = torch.ops.regraft.size.default
ASSERT = torch.ops.aten._assert_scalar.default
_FUNCTIONS = {"FloorDiv": operator.floordiv, "Mod": operator.mod, "Max": torch.sym_max, "Min": torch.sym_min}
_SIZES = ("size", torch.ops.aten.sym_size.int)
_COUNTS = ("numel", torch.numel, torch.ops.aten.sym_numel.default)
_ASYNC = (torch.ops.aten._assert_async, torch.ops.aten._assert_async.default, getattr(torch, "_assert_async", None))
_ASYNC_MESSAGE = "Expected Tensor with single nonzero value, but got zero"  # like eager's
_INSERTED = "Runtime assertion failed for expression"  # Dynamo inserts these for implicit requirements of the program


def with_message(target: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """An assertion about a tensor, in the form that is never removed as dead."""
    if target in _ASYNC:
        return torch.ops.aten._assert_async.msg, args if len(args) > 1 else (*args, _ASYNC_MESSAGE)
    return target, args


def is_inserted(node: fx.Node) -> bool:
    """Whether Dynamo inserted an assertion; the user's own about the same sizes then comes first, with its message."""
    return node.target is ASSERT and str(node.args[1]).startswith(_INSERTED)


def is_about_sizes(node: fx.Node) -> bool:
    """Whether a node computes a number from sizes, or asserts a condition on such a number."""
    return node.target is ASSERT or node.target in (*_SIZES, *_COUNTS) or _is_number(node)


class Assertions:
    """The assertions of one of Dynamo's graphs, while it runs under the recorder."""

    def __init__(self) -> None:
        self._bound: dict[Any, tuple[torch.Tensor, int]] = {}
        self._sizes: dict[Any, Any] = {}

    def note(self, node: fx.Node, result: Any) -> None:
        """Remember the sizes of a result that are symbols which depend on data."""
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
            found = _sized_by(path, result)
            if found is not None:
                self._bound[symbol] = found

    def condition(self, node: Any, value: Callable[[fx.Node], Any]) -> Any:
        """The condition that one of Dynamo's nodes computes, as a condition on opaque sizes.

        Args:
            node: the node, or a number.
            value: returns the value that a node has computed.
        """
        if not isinstance(node, fx.Node):
            return node
        size = _size_read(node)
        if size is not None:
            return self._unfolded(size, value(node))
        if not _is_number(node) or not any(self._rests_on_sizes(arg) for arg in node.all_input_nodes):
            return value(node)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: self.condition(arg, value))
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _rests_on_sizes(self, node: fx.Node) -> bool:
        return _size_read(node) is not None or (
            _is_number(node) and any(map(self._rests_on_sizes, node.all_input_nodes))
        )

    def _unfolded(self, expr: Any, known: Any) -> Any:
        """A size, computed from results of `regraft.size`, if all its symbols are sizes that depend on data."""
        if isinstance(known, torch.SymInt) and known.node.expr == expr:
            return known  # its value is not known
        symbols = sorted(expr.free_symbols, key=str)
        if not symbols or not all(symbol in self._bound for symbol in symbols):
            return known
        compute = sympy.lambdify(symbols, expr, modules=[_FUNCTIONS])
        return compute(*(self._size(symbol) for symbol in symbols))

    def _size(self, symbol: Any) -> Any:
        if symbol not in self._sizes:
            self._sizes[symbol] = SIZE(*self._bound[symbol])
        return self._sizes[symbol]


def _sized_by(path: Sequence[Any], result: Any) -> tuple[torch.Tensor, int] | None:
    """The tensor and the dim whose size is at the path of a symbol in the result of a call."""
    for key in path:
        if getattr(key, "name", "") == "size" and isinstance(result, torch.Tensor):
            return result, path[-1].idx
        if not hasattr(key, "idx"):
            return None
        result = result[key.idx]
    return None


def _is_number(node: fx.Node) -> bool:
    """Whether a node is arithmetic with numbers."""
    if node.op != "call_function" or isinstance(node.target, compat.OPERATORS):
        return False
    inputs = node.all_input_nodes
    return bool(inputs) and not any(isinstance(arg.meta.get("example_value"), torch.Tensor) for arg in inputs)


def _size_read(node: fx.Node) -> Any:
    """The size that a node reads from a tensor, as an expression of the original symbols, or None."""
    sizes = next(_sizes_read(node), None)
    return compat.original_expression(sizes.node) if isinstance(sizes, torch.SymInt) else None


def _sizes_read(node: fx.Node) -> Iterator[Any]:
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return
    value = source.meta.get("example_value")
    if isinstance(value, torch.Tensor):
        if node.target in _SIZES and len(node.args) == 2 and isinstance(node.args[1], int):
            yield value.shape[node.args[1]]
        elif node.target in _COUNTS:
            yield value.numel()
    elif node.target is operator.getitem and isinstance(value, torch.Size) and isinstance(node.args[1], int):
        yield value[node.args[1]]
