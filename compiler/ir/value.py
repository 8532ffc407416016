# ruff: noqa: RUF023 (fields are positional: their order is the grammar's)
"""Values: what one iteration of a loop computes, as an interned tree (a shared subtree is computed once).

    Value ::= Const(number, dtype)
            | Load(buffer, indices, dtype)        buffer[indices], one index per dim of the buffer
            | Op(name, args, dtype)               a pointwise operation of `ops`
            | Number(index, dtype)                an index as a value
            | Guarded(condition, value, other)    value where condition holds, else other; what is not chosen is not
                                                  evaluated, so that its loads need not be in range
            | Result(reduction, component, dtype) what a reduction of this nest, or an accumulator in scope, has come to

Dtypes of values are what is computed in: bool, integers, float32 and float64. A load from a bfloat16 or float16 buffer
gives float32, a store into one rounds; the operation `round_bfloat16` (`round_float16`) rounds in between, where the
user's program says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .index import index as ix
from .index.index import Index, Loaded, Var
from .node import Node

HALVES = (torch.bfloat16, torch.float16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of a buffer's dtype are computed."""
    return torch.float32 if dtype in HALVES else dtype


class Value(Node):
    """A number of each iteration; `dtype` is what it is computed in."""

    __slots__ = ()
    dtype: torch.dtype


class Const(Value):
    """The same number everywhere: a Python bool, int or float, or an `Index` of sizes only (then see `Number`)."""

    __slots__ = ("number", "dtype")
    number: bool | int | float

    @classmethod
    def spelled(cls, fields: tuple[Any, ...]) -> Any:
        """The number's spelling: what compares equal yet differs (1, 1.0 and True; 0.0 and -0.0) stays apart."""
        number, dtype = fields
        return (number if isinstance(number, Index) else repr(number)), dtype


class Load(Value):
    """An element of a buffer, named; 16-bit floats arrive as float32."""

    __slots__ = ("buffer", "indices", "dtype")
    buffer: str
    indices: tuple[Any, ...]


class Op(Value):
    """A pointwise operation: `name` is one of `ops.OPS`."""

    __slots__ = ("name", "args", "dtype")
    name: str
    args: tuple[Value, ...]


class Number(Value):
    """An index as a value: positions, sizes."""

    __slots__ = ("index", "dtype")
    index: Any


class Guarded(Value):
    """`value` where `condition` holds, `other` elsewhere; only the chosen one is evaluated."""

    __slots__ = ("condition", "value", "other", "dtype")
    condition: Value
    value: Value
    other: Value


class Result(Value):
    """Component `component` of the reduction named `reduction`, once its loops are done (in a scan: so far)."""

    __slots__ = ("reduction", "component", "dtype")
    reduction: str
    component: int


def indices_of(value: Value) -> Iterator[Any]:
    """The indices that stand in a value's own node, not below."""
    if isinstance(value, Load):
        yield from value.indices
    elif isinstance(value, Number):
        yield value.index


def operands(value: Value) -> tuple[Value, ...]:
    """The values right below a value, those inside its indices (indirect indexing) included."""
    found = value._parts
    if found is None:
        found = tuple(_operands(value))
        object.__setattr__(value, "_parts", found)
    return found


def _operands(value: Value) -> Iterator[Value]:
    for field in value.fields():
        if isinstance(field, Value):
            yield field
        elif isinstance(field, tuple) and isinstance(value, Op):
            yield from field
    for number in indices_of(value):
        for atom in ix.atoms(number):
            if isinstance(atom, Loaded):
                yield atom.value


def walk(roots: Iterable[Value]) -> Iterator[Value]:
    """Every value reachable from `roots`, each once, operands before what uses them."""
    seen: set[Value] = set()
    stack = list(roots)
    stack.reverse()
    while stack:
        value = stack[-1]
        if value in seen:
            stack.pop()
            continue
        parts = operands(value)
        waiting = [o for o in parts if o not in seen] if parts else None
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        seen.add(value)
        yield value


def variables(roots: Iterable[Value]) -> set[Var]:
    """The loop variables that `roots` depend on."""
    return {
        atom
        for value in walk(roots)
        for number in indices_of(value)
        for atom in ix.atoms(number)
        if isinstance(atom, Var)
    }


class Rewriter:
    """Replaces parts of values and indices, bottom up, each shared part once.

    Args:
        value: given a value whose parts are rewritten already, what to put in its place; None keeps it.
        atom: the same for atoms of indices; None keeps it. Variables are atoms: substitution is `{var: index}.get`.
    """

    def __init__(
        self,
        value: Callable[[Value], Value | None] = lambda _: None,
        atom: Callable[[ix.Atom], Any] = lambda _: None,
    ) -> None:
        self._value, self._atom = value, atom
        self._done: dict[Value, Value] = {}
        self._indices: dict[Index, Any] = {}

    def __call__(self, root: Value) -> Value:
        """`root`, rewritten."""
        for value in walk([root]):
            if value not in self._done:
                made = self._parts(value)
                replaced = self._value(made)
                self._done[value] = made if replaced is None else replaced
        return self._done[root]

    def index(self, number: Any) -> Any:
        """An index with its atoms rewritten."""
        if not isinstance(number, Index):
            return number
        found = self._indices.get(number)
        if found is None:
            found = self._indices[number] = ix.rebuild(number, self._replaced)
        return found

    def _replaced(self, atom: ix.Atom) -> Any:
        made = self._atom(atom)
        if made is None and isinstance(atom, Loaded):
            return Loaded(self(atom.value), self.index(atom.size), atom.wrap).index()
        return made

    def _parts(self, value: Value) -> Value:
        if isinstance(value, Load):
            return Load(value.buffer, tuple(map(self.index, value.indices)), value.dtype)
        if isinstance(value, Number):
            return Number(self.index(value.index), value.dtype)
        if isinstance(value, Op):
            return Op(value.name, tuple(self._done[a] for a in value.args), value.dtype)
        if isinstance(value, Guarded):
            return Guarded(self._done[value.condition], self._done[value.value], self._done[value.other], value.dtype)
        return value


def substitute(root: Value, by: dict[Var, Any]) -> Value:
    """`root` with loop variables replaced by indices, within their ranges wherever the result is evaluated."""
    return Rewriter(atom=by.get)(root)  # type: ignore[arg-type]
