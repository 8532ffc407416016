"""Symbolic sizes as graph nodes.

Rewrites compute with sizes as they stand in metadata (``val.shape``). Before such code can run, every symbolic
expression must become a node: one that is there already, or arithmetic over the symbols' own nodes.

    reshape(x, [s0, 2*s1])          ->   mul = sym.mul(2, arg1);  reshape(x, [arg0, mul])
    y = nonzero(x);  zeros([u0])    ->   y = nonzero(x);  size = sym_size(y, 0);  zeros([size])

A symbol is the number of an input, or follows from one (a backward may be given `2 * s` alone), or is what a call of
the graph makes known when it runs: that call comes before all that speaks of the symbol. Python's numbers are computed
as Python does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import sympy
import torch
from torch import fx

from . import compat
from .graph import is_tensor, val
from .symbolic import SYMBOLIC

_UNREAD = "sizes_unread"
_SIZE, _STRIDE = torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int


@contextmanager
def sizes_unread(placeholders: Iterable[fx.Node]) -> Iterator[None]:
    """Within the block no table reads sizes of these inputs: of gradients that come in, while a graph is not yet split.

    What the forward needs would follow from them, and could be computed in the backward only.
    """
    marked = list(placeholders)
    for node in marked:
        node.meta[_UNREAD] = True
    try:
        yield
    finally:
        for node in marked:
            node.meta.pop(_UNREAD, None)


class SizeTable:
    """Finds or makes the node of a symbolic size. Placeholders are known from the start; nodes made are kept.

    Args:
        graph: where sizes are needed.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._nodes: dict[sympy.Expr, fx.Node] = {}
        self._sizes: dict[sympy.Expr, tuple[Any, fx.Node, int, torch.SymInt]] = {}
        self._last: fx.Node | None = None
        for node in graph.nodes:
            if node.op != "placeholder":
                break
            self._last = node
            if _UNREAD not in node.meta:
                self._note(node)

    def _note(self, node: fx.Node) -> None:
        value = val(node)
        if isinstance(value, SYMBOLIC):
            self._nodes.setdefault(value.node.expr, node)
            return
        for number, read, dim in _numbers(node):
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

    def computed(self, expr: sympy.Basic) -> Any:
        """The node of an expression of symbols."""
        return self._build(expr)

    def symbol(self, name: str) -> Any:
        """The node of a symbol, by its name.

        Raises:
            NotImplementedError: it is the number of no input, and no call makes it known.
        """
        for expr in (*self._nodes, *self._sizes):
            if expr.is_Symbol and str(expr) == name:
                return self._build(expr)
        return self._defined(name)

    def _build(self, expr: sympy.Basic) -> Any:
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        if expr.is_Integer:
            return int(expr)
        if expr.is_number:
            return float(expr)
        known = self._nodes.get(expr)
        if known is not None and not compat.is_erased(known):
            return known
        if expr in self._sizes:
            read, node, dim, number = self._sizes[expr]
            assert self._last is not None  # inputs are read where every later place can use their sizes
            return self._read(read, node, dim, number, after=self._last)
        return self._defined(str(expr)) if expr.is_Symbol else self._arithmetic(expr)

    def _read(self, target: Any, node: fx.Node, dim: int, number: torch.SymInt, after: fx.Node) -> fx.Node:
        """A size of a tensor, read once, as early as can be."""
        with self._graph.inserting_after(after):
            made = self._graph.call_function(target, (node, dim))
        made.meta = {"val": number, "region": after.meta.get("region", 0) if after is node else 0}
        self._nodes[number.node.expr] = made
        return made

    def _defined(self, name: str) -> fx.Node:
        """The node of a symbol that a call makes known: the number that it gives, or a size of its result."""
        for node in self._graph.nodes:
            if node.op not in ("call_function", "call_method", "call_module"):
                continue
            value = val(node)
            if isinstance(value, SYMBOLIC) and str(value.node.expr) == name:
                self._nodes[value.node.expr] = node
                return node
            for number, read, dim in _numbers(node):
                if str(number.node.expr) == name:
                    return self._read(read, node, dim, number, after=node)
        solved = self._solved(name)
        if solved is None:
            raise NotImplementedError(f"no input has the size {name}, and no call makes it known")
        return solved

    def _solved(self, name: str) -> Any:
        """A symbol that inputs have in sums and products only.

        ``s * t + t`` is a size, and ``t`` known   ->   (size - t) // max(t, 1)
        """
        known = {*self._nodes, *self._sizes}
        for expr in [e for e in (*self._nodes, *self._sizes) if name in map(str, e.free_symbols)]:
            symbol = next(s for s in expr.free_symbols if str(s) == name)
            terms = sympy.expand(expr)
            factor = terms.coeff(symbol)
            rest = sympy.expand(terms - factor * symbol)
            apart = not rest.has(symbol) and not factor.has(symbol)
            if apart and factor != 0 and rest.free_symbols | factor.free_symbols <= known:
                size = self._call(operator.sub, self._build(expr), self._build(rest))
                each = int(factor) if factor.is_Integer else self._call(torch.sym_max, self._build(factor), 1)
                return self._call(operator.floordiv, size, each)
        return None

    def _arithmetic(self, expr: sympy.Basic) -> Any:
        return _computed(type(expr).__name__, expr)([self._build(a) for a in _parts(expr)], self._call)

    def _call(self, target: Callable[..., Any], *args: Any) -> Any:
        if not any(isinstance(a, fx.Node) for a in args):
            return target(*args)
        made = self._graph.call_function(target, args)
        made.meta["val"] = target(*map(val, args))
        return made


def _numbers(node: fx.Node) -> Iterator[tuple[torch.SymInt, Any, int]]:
    """The symbolic sizes and strides of a tensor, with how each is read."""
    value = val(node)
    if not is_tensor(node) or value.layout != torch.strided:
        return
    for read, numbers in ((_SIZE, value.shape), (_STRIDE, value.stride())):
        for dim, number in enumerate(numbers):
            if isinstance(number, torch.SymInt):
                yield number, read, dim


def _parts(expr: sympy.Basic) -> list[sympy.Basic]:
    """The operands of an expression; of a choice, what it chooses from and by, in pairs laid flat."""
    if isinstance(expr, sympy.Piecewise):
        return [part for pair in expr.args for part in pair.args]
    return list(expr.args)


Call = Callable[..., Any]
Way = Callable[[list[Any], Call], Any]


def _computed(name: str, expr: sympy.Basic) -> Way:
    """How a function of symbols is computed.

    Raises:
        NotImplementedError: a function that no number of a program is made with.
    """
    if name in _FOLDS:
        return lambda parts, call: reduce(lambda a, b: call(_FOLDS[name], a, b), parts)
    if name in _CALLS:
        return lambda parts, call: call(_CALLS[name], *parts)
    if name in _WAYS:
        return _WAYS[name]
    raise NotImplementedError(f"no graph operation for the symbolic expression {expr} ({name})")


def _choice(parts: list[Any], call: Call) -> Any:
    """``Piecewise((a, p), (b, q), (c, True))   ->   a if p else (b if q else c)``."""
    *pairs, (otherwise, _) = zip(parts[::2], parts[1::2], strict=True)
    return reduce(lambda chosen, pair: call(torch.sym_ite, pair[1], pair[0], chosen), reversed(pairs), otherwise)


_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul, "Max": torch.sym_max, "Min": torch.sym_min,
    "And": operator.and_, "Or": operator.or_,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {
    "Pow": operator.pow, "FloatPow": operator.pow, "PowByNatural": operator.pow,
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
    "FloatTrueDiv": operator.truediv, "IntTrueDiv": operator.truediv,
    "Mod": operator.mod, "PythonMod": operator.mod, "LShift": operator.lshift, "RShift": operator.rshift,
    "BitwiseFn_bitwise_and": operator.and_, "BitwiseFn_bitwise_or": operator.or_, "BitwiseFn_bitwise_xor": operator.xor,
    "CeilToInt": math.ceil, "FloorToInt": math.floor, "TruncToInt": math.trunc, "RoundToInt": round,
    "RoundDecimal": round, "ToFloat": torch.sym_float, "Abs": operator.abs, "Not": torch.sym_not,
    "Where": torch.sym_ite,
    "Equality": operator.eq, "Unequality": operator.ne, "StrictLessThan": operator.lt, "LessThan": operator.le,
    "StrictGreaterThan": operator.gt, "GreaterThan": operator.ge,
}  # fmt: skip
_WAYS: dict[str, Way] = {
    "Identity": lambda parts, call: parts[0],
    "Piecewise": _choice,
    "ModularIndexing": lambda parts, call: call(operator.mod, call(operator.floordiv, *parts[:2]), parts[2]),
    "TruncToFloat": lambda parts, call: call(torch.sym_float, call(math.trunc, parts[0])),
}
_CALLS |= {  # what torch.fx records for them; they have no public names
    "OpaqueUnaryFn_sqrt": compat.symbolic_function("sqrt"),
    "OpaqueUnaryFn_log2": compat.symbolic_function("log2"),
    "OpaqueUnaryFn_sin": compat.symbolic_function("sin"),
    "OpaqueUnaryFn_cos": compat.symbolic_function("cos"),
    "OpaqueUnaryFn_tan": compat.symbolic_function("tan"),
    "OpaqueUnaryFn_asin": compat.symbolic_function("asin"),
    "OpaqueUnaryFn_acos": compat.symbolic_function("acos"),
    "OpaqueUnaryFn_atan": compat.symbolic_function("atan"),
    "OpaqueUnaryFn_sinh": compat.symbolic_function("sinh"),
    "OpaqueUnaryFn_cosh": compat.symbolic_function("cosh"),
    "OpaqueUnaryFn_tanh": compat.symbolic_function("tanh"),
}
