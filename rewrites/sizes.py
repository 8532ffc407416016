"""Symbolic sizes as graph nodes.

Rewrites compute with sizes as they stand in metadata (``val.shape``). Before such code can run, every symbolic
expression must become a node: one that is there already, or arithmetic over the symbols' own nodes.

    reshape(x, [s0, 2*s1])   ->   mul = sym.mul(2, arg1);  reshape(x, [arg0, mul])
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import reduce
from typing import Any

import sympy
import torch
from torch import fx

from .graph import is_tensor, val
from .symbolic import SYMBOLIC

_SIZE, _STRIDE = torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int


class SizeTable:
    """Finds or makes the node of a symbolic size. Placeholders are known from the start; nodes made are kept.

    Args:
        graph: where sizes are needed.
        unread: placeholders whose sizes must not be read.
    """

    def __init__(self, graph: fx.Graph, unread: Collection[fx.Node] = ()) -> None:
        self._graph = graph
        self._nodes: dict[sympy.Expr, fx.Node] = {}
        self._sizes: dict[sympy.Expr, tuple[Any, fx.Node, int, torch.SymInt]] = {}
        self._last: fx.Node | None = None
        for node in graph.nodes:
            if node.op != "placeholder":
                break
            self._last = node
            if node not in unread:
                self._note(node)

    def _note(self, node: fx.Node) -> None:
        value = val(node)
        if isinstance(value, SYMBOLIC):
            self._nodes.setdefault(value.node.expr, node)
        elif is_tensor(node):
            for read, numbers in ((_SIZE, value.shape), (_STRIDE, value.stride())):
                for dim, number in enumerate(numbers):
                    if isinstance(number, torch.SymInt):
                        self._sizes.setdefault(number.node.expr, (read, node, dim, number))

    def note(self, node: fx.Node) -> None:
        """Make a symbolic number that the graph computes known from here on (the caller keeps the order right)."""
        if isinstance(val(node), SYMBOLIC):
            self._nodes.setdefault(val(node).node.expr, node)

    def resolve(self, args: Any) -> Any:
        """`args` with every raw symbolic number replaced by a node, made at the graph's current insertion point."""
        if isinstance(args, (list, tuple)):
            return type(args)(self.resolve(a) for a in args)
        if isinstance(args, dict):
            return {k: self.resolve(v) for k, v in args.items()}
        return self.node(args) if isinstance(args, SYMBOLIC) else args

    def node(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """The node of one symbolic number, or a plain number where the expression has no symbols."""
        return self._build(value.node.expr)

    def symbol(self, name: str) -> Any:
        """The node of a size symbol, by its name.

        Raises:
            NotImplementedError: no input has it as a size, nor is it one.
        """
        for expr in (*self._nodes, *self._sizes):
            if expr.is_Symbol and str(expr) == name:
                return self._build(expr)
        raise NotImplementedError(f"no input gives the size {name}")

    def _build(self, expr: sympy.Expr) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_number:
            return float(expr)
        known = self._nodes.get(expr)
        if known is not None and not known._erased:
            return known
        if expr in self._sizes:
            read, node, dim, number = self._sizes[expr]
            return self._after_inputs(read, (node, dim), expr, number)
        return self._arithmetic(expr)

    def _after_inputs(self, target: Any, args: tuple[Any, ...], expr: sympy.Expr, meta: Any) -> fx.Node:
        """Sizes of inputs are read once, right after the inputs, where every later place can use them."""
        assert self._last is not None
        with self._graph.inserting_after(self._last):
            made = self._graph.call_function(target, args)
        made.meta = {"val": meta, "region": 0}
        self._nodes[expr] = made
        return made

    def _arithmetic(self, expr: sympy.Expr) -> fx.Node:
        target = _operator_of(expr)
        parts = [self._build(a) for a in expr.args]
        return reduce(lambda a, b: _call(self._graph, target, a, b), parts)


def _operator_of(expr: sympy.Expr) -> Callable[[Any, Any], Any]:
    name = type(expr).__name__
    table: dict[str, Callable[[Any, Any], Any]] = {
        "Add": operator.add, "Mul": operator.mul, "Pow": operator.pow, "FloorDiv": operator.floordiv,
        "CleanDiv": operator.floordiv, "PythonMod": operator.mod, "Mod": operator.mod,
        "FloatTrueDiv": operator.truediv, "IntTrueDiv": operator.truediv, "FloatPow": operator.pow,
        "PowByNatural": operator.pow, "Max": torch.sym_max, "Min": torch.sym_min,
    }  # fmt: skip
    if name not in table:
        raise NotImplementedError(f"no graph operation for the symbolic expression {expr} ({name})")
    return table[name]


def _call(graph: fx.Graph, target: Callable[[Any, Any], Any], a: Any, b: Any) -> fx.Node:
    made = graph.call_function(target, (a, b))
    made.meta["val"] = target(val(a), val(b))
    return made
