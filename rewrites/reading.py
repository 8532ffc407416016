"""A graph in normal form as data that can be compared, and turned into terms of a pattern.

    %mul = mul(%x, 0.125);  %add = add(%mul, %y)     ->     0: mul(x, 0.125)    1: add(#0, y)    gives #1

Two readings of one function, traced with different values of a number, show where that number went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from . import compat
from .graph import op_name, val
from .pattern import ANYTHING, HIDDEN, Call, PatternError, Term
from .purity import is_pure, is_random
from .spelling import Sized
from .symbolic import SYMBOLIC

Place = tuple[Any, ...]
"""The place of a constant: the number of a call, then keys into its arguments."""


@dataclass(frozen=True)
class _Ref:
    """The result of an earlier call."""

    row: int

    def __repr__(self) -> str:
        return f"#{self.row}"


@dataclass(frozen=True)
class _Given:
    """An operand."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Reading:
    """Calls in order, each an operator with its arguments, and the outputs; `text` is equal where they mean the same.

    Args:
        rows: the calls.
        outputs: of the graph.
        used: the operands that the outputs depend on.
    """

    rows: tuple[tuple[str, tuple[Any, ...], Mapping[str, Any]], ...]
    outputs: tuple[Any, ...]
    used: frozenset[str]

    @property
    def text(self) -> str:
        """The reading as text."""
        lines = [f"{op}{args!r}{dict(kwargs)!r}" for op, args, kwargs in self.rows]
        return "\n".join([*lines, repr(self.outputs)])


def read(graph: fx.Graph, operands: Mapping[fx.Node, str], symbols: Mapping[Any, str]) -> Reading:
    """The reading of a graph in normal form.

    Args:
        graph: it has no dead calls.
        operands: the parameter that each placeholder is.
        symbols: the dim that each symbolic size is.

    Raises:
        PatternError: it does something that no pattern can say.
    """
    reader = _Reader(operands, symbols)
    for node in graph.nodes:
        if node.op == "call_function" and not is_pure(node) and not is_random(node):
            raise PatternError(f"it calls {_name(node)}(), which writes or checks something: patterns are functional")
    given = graph.output_node().args[0]
    outputs = tuple(reader.value(o) for o in (given if isinstance(given, (list, tuple)) else (given,)))
    return Reading(tuple(reader.rows), outputs, frozenset(reader.used))


class _Reader:
    """Reads values, and what they follow from, once each."""

    def __init__(self, operands: Mapping[fx.Node, str], symbols: Mapping[Any, str]) -> None:
        self.rows: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = []
        self.used: set[str] = set()
        self._operands, self._symbols = operands, symbols
        self._known: dict[fx.Node, Any] = {}

    def value(self, value: Any) -> Any:
        """A value as a reading has it."""
        if isinstance(value, fx.Node):
            if value not in self._known:
                self._known[value] = self._node(value)
            return self._known[value]
        if isinstance(value, SYMBOLIC):
            return self._size(value)
        if isinstance(value, (list, tuple)):
            return [self.value(v) for v in value]
        if isinstance(value, torch.device):
            return ANYTHING  # that of the operands
        return value

    def _node(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            self.used.add(self._operands[node])
            return _Given(self._operands[node])
        if isinstance(val(node), SYMBOLIC):
            return self._size(val(node))
        if node.op == "get_attr":
            raise PatternError(
                "it reads a tensor that is none of its parameters, such as the weight of a module: make it a parameter "
                "(def pattern(x, weight): return F.linear(x, weight)); what torch.vmap makes is one too: write that out"
            )
        if "opaque" in node.meta:
            raise PatternError(f"it reads {_name(node)}() again after it was written to: patterns are functional")
        is_operator = isinstance(node.target, compat.OpOverload) or op_name(node) == "getitem"
        if not is_operator:
            raise PatternError(f"it calls {_name(node)}, which is no operator that a pattern can name")
        args, kwargs = _without_defaults(node)
        row = op_name(node), tuple(self.value(a) for a in args), {k: self.value(v) for k, v in kwargs.items()}
        self.rows.append(row)
        return _Ref(len(self.rows) - 1)

    def _size(self, value: Any) -> Any:
        expression = value.node.expr
        if not expression.free_symbols:
            return type(value.node.hint)(expression)
        unknown = expression.free_symbols - self._symbols.keys()
        if unknown:
            raise PatternError(
                f"it depends on a value that only a run can tell ({expression}), as item() and nonzero() give"
            )
        return Sized(expression, {s: HIDDEN + self._symbols[s] for s in sorted(expression.free_symbols, key=str)})


def _name(node: fx.Node) -> str:
    return op_name(node).removeprefix("aten.")


def _without_defaults(node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call but those that are their defaults anyway."""
    args, kwargs = list(node.args), dict(node.kwargs)
    if not isinstance(node.target, compat.OpOverload):
        return args, kwargs
    schema = compat.schema(node.target).arguments
    while args and schema[len(args) - 1].has_default_value() and _is(args[-1], schema[len(args) - 1].default_value):
        args.pop()
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return args, {k: v for k, v in sorted(kwargs.items()) if not (k in defaults and _is(v, defaults[k]))}


def _is(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, fx.Node) and value == default


def differences(a: Reading, b: Reading, given: tuple[Any, Any]) -> list[tuple[Place, Any, Any]] | None:
    """The places at which two readings have different constants; None where they differ in more than that.

    Lists that are the given values themselves are one constant.
    """
    if [row[0] for row in a.rows] != [row[0] for row in b.rows] or repr(a.outputs) != repr(b.outputs):
        return None
    found: list[tuple[Place, Any, Any]] = []
    for i, ((_, x, u), (_, y, v)) in enumerate(zip(a.rows, b.rows, strict=True)):
        if u.keys() != v.keys() or not _compare((i,), [*x, *u.values()], [*y, *v.values()], given, found):
            return None
    return found


def _compare(place: Place, a: Any, b: Any, given: tuple[Any, Any], found: list[tuple[Place, Any, Any]]) -> bool:
    """Collect constants that differ; False where something else does."""
    if isinstance(a, list) and isinstance(b, list):
        if len(place) > 1 and (a, b) == tuple(list(g) if isinstance(g, (list, tuple)) else g for g in given):
            found.append((place, a, b))
            return True
        pairs = enumerate(zip(a, b, strict=False))
        return len(a) == len(b) and all(_compare((*place, k), x, y, given, found) for k, (x, y) in pairs)
    if isinstance(a, (Term, _Ref, _Given)) or isinstance(b, (Term, _Ref, _Given)):
        return repr(a) == repr(b)
    if type(a) is not type(b):
        return False
    if a != b:
        found.append((place, a, b))
    return True


def terms(reading: Reading, operands: Mapping[str, Term], marks: Mapping[Place, Term]) -> tuple[Any, ...]:
    """The terms of a reading's outputs.

    Args:
        reading: what to turn into terms.
        operands: the term of each operand.
        marks: the terms that stand where constants did.
    """
    made: list[Term] = []

    def term(value: Any, place: Place) -> Any:
        if place in marks:
            return marks[place]
        if isinstance(value, _Ref):
            return made[value.row]
        if isinstance(value, _Given):
            return operands[value.name]
        return [term(v, (*place, k)) for k, v in enumerate(value)] if isinstance(value, list) else value

    for i, (op, args, kwargs) in enumerate(reading.rows):
        values = [term(v, (i, k)) for k, v in enumerate((*args, *kwargs.values()))]
        made.append(Call(op, tuple(values[: len(args)]), tuple(zip(kwargs, values[len(args) :], strict=True))))
    return tuple(term(o, ("output", k)) for k, o in enumerate(reading.outputs))
