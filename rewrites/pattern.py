"""The pattern language: terms, and how ordinary PyTorch functions become them.

A pattern is a small immutable term. Running a function once on `Variable`s records it:

    def pattern(x, y):                       Call("aten.relu", (Call("aten.add", (x, y)),))
        return torch.relu(x + y)

What one function cannot say by itself is said with two helpers, which also work on tensors: `choose` (alternatives) and
`optional` (a part that may be missing). A variant of a pattern is an alternative inside it, never a copy of it.

Terms are written in normal form's spelling, whatever the function's own was: ``x.mT``, ``x.transpose(-2, -1)`` and
``x.permute(0, 1, 3, 2)`` are one term, and so are ``x / 8`` and ``x * 0.125``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from . import compat

HIDDEN = "·"
"""First letter of tags and dims that no user has named; reports leave them out."""


class PatternError(ValueError):
    """A pattern or rule was declared wrongly."""


class Term:
    """A node of a pattern; behaves like a tensor while the pattern function is recorded."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Term:
        return record(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("mT", "mH"):
            return swap(self, -2, -1)
        if name in ("shape", "dtype", "device", "ndim", "T"):
            raise PatternError(f"a pattern may not read .{name} of an operand: declare `dims`, or use a guard")
        if not hasattr(torch.ops.aten, name):
            raise PatternError(f"a pattern calls .{name}(), which is no ATen operator")
        return lambda *args, **kwargs: call(name, self, *_listed(name, args), **kwargs)

    def _parts(self) -> list[Any]:
        """The terms that it is directly made of."""
        return []

    def transpose(self, dim0: int, dim1: int) -> Term:
        """Exchange two dims."""
        return swap(self, dim0, dim1)

    swapaxes = transpose

    def __bool__(self) -> bool:
        raise PatternError("a pattern may not branch on an operand: use choose() or optional()")

    def __getitem__(self, index: Any) -> Term:
        raise PatternError("a pattern may not index or unpack an operand: use select() or slice()")

    def __iter__(self) -> Iterator[Term]:
        return self[:]

    def __eq__(self, other: object) -> Any:  # terms are keys too: only a pattern under record compares values
        return call("eq", self, other) if _recording.get() else self is other

    def __ne__(self, other: object) -> Any:
        return call("ne", self, other) if _recording.get() else self is not other

    __hash__ = object.__hash__

    def __lt__(self, other: Any) -> Term:
        return call("lt", self, other)

    def __le__(self, other: Any) -> Term:
        return call("le", self, other)

    def __gt__(self, other: Any) -> Term:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Term:
        return call("ge", self, other)

    def __add__(self, other: Any) -> Term:
        return call("add", self, other)

    def __sub__(self, other: Any) -> Term:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Term:
        return call("rsub", self, other)

    def __mul__(self, other: Any) -> Term:
        return call("mul", self, other)

    def __truediv__(self, other: Any) -> Term:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Term:
        return call("mul", call("reciprocal", self), other)

    def __matmul__(self, other: Any) -> Term:
        return call("matmul", self, other)

    def __neg__(self) -> Term:
        return call("neg", self)

    def __pow__(self, exponent: Any) -> Term:
        return call("pow", self, exponent)

    def __invert__(self) -> Term:
        return call("logical_not", self)

    __radd__, __rmul__ = __add__, __mul__


_VARIADIC = frozenset(("permute", "view", "reshape", "expand", "repeat", "tile", "flip"))


def _listed(method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Methods that take sizes or dims one by one get them as the list that operators take."""
    listed = not args or isinstance(args[0], (list, tuple)) or (isinstance(args[0], Variable) and args[0].is_list)
    return args if listed or method not in _VARIADIC else (list(args),)


@dataclass(frozen=True, eq=False)
class Variable(Term):
    """An operand of the pattern. `number` variables bind Python or symbolic numbers and one-element tensors.

    Args:
        name: the parameter's.
        number: it binds no tensor operand.
        kinds: what a `number` may be besides: types of constants, e.g. ``bool``, ``list``, ``str``.
    """

    name: str
    number: bool = False
    kinds: frozenset[type] = frozenset()

    @property
    def is_list(self) -> bool:
        """Whether it binds lists, of dims or sizes."""
        return bool(self.kinds & {list, tuple})

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Anything(Term):
    """An argument that is free: it is not compared. A guard may look at it on the matched node."""

    def __repr__(self) -> str:
        return "anything"


ANYTHING = Anything()


@dataclass(frozen=True, eq=False)
class Call(Term):
    """A call of an ATen operator; arguments not given must have their schema's default value."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def _parts(self) -> list[Any]:
        return [*self.args, *(v for _, v in self.kwargs)]

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs)]
        return f"{self.op.removeprefix('aten.')}({', '.join(given)})"


@dataclass(frozen=True, eq=False)
class Choice(Term):
    """Alternatives of one part of a pattern; the label of the one that matched becomes a tag of the match."""

    tag: str
    options: tuple[tuple[str, Any], ...]

    def _parts(self) -> list[Any]:
        return [option for _, option in self.options]

    def __repr__(self) -> str:
        return f"<{self.tag}: {' | '.join(label for label, _ in self.options)}>"


@dataclass(frozen=True)
class Swapped:
    """The dims of a permutation that exchanges two dims, for operands of any rank."""

    dim0: int
    dim1: int

    def fits(self, rank: int) -> bool:
        """Whether a tensor of this rank has both dims."""
        return all(-rank <= d < rank for d in (self.dim0, self.dim1))

    def dims(self, rank: int) -> list[int]:
        """The permutation for an operand of this rank."""
        order = list(range(rank))
        a, b = self.dim0 % rank, self.dim1 % rank
        order[a], order[b] = order[b], order[a]
        return order


def swap(x: Term, dim0: int, dim1: int) -> Term:
    """The term of ``x.transpose(dim0, dim1)``."""
    return Call("aten.permute", (x, Swapped(dim0, dim1)))


def _adapted() -> dict[Any, Callable[..., Term]]:
    """Functions of `torch.nn.functional` whose parameters are not their ATen operator's."""
    from torch.nn import functional as F

    def layer_norm(input: Term, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Term:
        return call("layer_norm", input, normalized_shape, weight, bias, eps)

    def softmax(input: Term, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Term:
        return call("softmax", input, dim, dtype)

    def dropout(input: Term, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Term:  # noqa: ARG001
        return call("dropout", input, p, training)

    def unary(name: str) -> Callable[..., Term]:
        return lambda input, inplace=False: call(name, input)

    named = {F.softmax: softmax, F.dropout: dropout, F.layer_norm: layer_norm}
    return named | {f: unary(f.__name__) for f in (F.relu, F.silu, F.hardswish, F.mish, F.sigmoid, F.tanh)}


def record(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Term:
    """The term of a call of a torch function on terms."""
    adapted = _adapted().get(func)
    if adapted is not None:
        return adapted(*args, **kwargs)
    if isinstance(func, compat.OpOverload):
        func = func.overloadpacket
    name = getattr(func, "__name__", str(func))
    if name in ("transpose", "swapaxes", "swapdims"):
        return swap(args[0], *args[1:], **kwargs)
    return call(name, *args, **kwargs)


def call(name: str, *args: Any, **kwargs: Any) -> Term:
    """The term of ``aten.name(*args, **kwargs)``, in normal form's spelling.

    Raises:
        PatternError: ATen has no such operator, or none of its overloads takes these arguments.
    """
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        raise PatternError(f"a pattern calls {name}(), which is no ATen operator")
    schemas = [s for o in packet.overloads() if _accepts(s := compat.schema(getattr(packet, o)), args, kwargs)]
    if not schemas:
        raise PatternError(f"no overload of aten.{name} takes {len(args)} arguments and {sorted(kwargs)}")
    if all(s.is_mutable for s in schemas):
        raise PatternError(f"a pattern calls {name}(), which writes to its operand: patterns are functional")
    if name in ("bmm", "mm"):
        name = "matmul"
    if name == "neg":
        name, args = "mul", (args[0], -1)
    if name == "div" and isinstance(args[1], (int, float)) and not kwargs:
        name, args = "mul", (args[0], 1 / args[1])
    if name == "sub" and isinstance(args[1], (int, float)) and not kwargs:
        name, args = "add", (args[0], -args[1])
    return Call(f"aten.{name}", tuple(args), tuple(sorted(kwargs.items())))


def _accepts(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    names = [a.name for a in schema.arguments]
    required = [a.name for a in schema.arguments if not a.has_default_value()]
    given = set(names[: len(args)]) | set(kwargs)
    return len(args) <= len(names) and given <= set(names) and given >= set(required)


_chosen: ContextVar[tuple[dict[str, str], dict[str, tuple[str, ...]]] | None] = ContextVar(
    "regraft_chosen", default=None
)


@contextmanager
def choosing(tags: dict[str, str]) -> Iterator[dict[str, tuple[str, ...]]]:
    """Run pattern functions on tensors with these alternatives taken; gets every tag that is met, with its labels."""
    met: dict[str, tuple[str, ...]] = {}
    token = _chosen.set((tags, met))
    try:
        yield met
    finally:
        _chosen.reset(token)


def choose(tag: str, **options: Any) -> Any:
    """One of several alternatives, each a value or a function of no argument that gives it.

    Recorded, it becomes a `Choice`; run on tensors, it gives the alternative named by `choosing` (by default the
    first).
    """
    if not options:
        raise PatternError(f"choose({tag!r}) has no alternatives")
    if _recording.get():
        return Choice(tag, tuple((label, _force(option)) for label, option in options.items()))
    tags, met = _chosen.get() or ({}, {})
    met[tag] = tuple(options)
    label = tags.get(tag, next(iter(options)))
    if label not in options:
        raise PatternError(f"choose({tag!r}) has no alternative {label!r}; it has {', '.join(options)}")
    return _force(options[label])


def cast(value: Any, dtype: Any = ANYTHING) -> Any:
    """A conversion to another dtype; recorded without `dtype`, to any (guards should look)."""
    if isinstance(value, Term):
        return Call("aten.to", (value, dtype))
    return value if isinstance(dtype, Anything) else value.to(dtype)


def optional(tag: str, value: Any, applied: Callable[[Any], Any]) -> Any:
    """`applied(value)`, or `value` as it is where the part is missing; tag `tag` is ``"yes"`` or ``"no"``."""
    return choose(tag, yes=lambda: applied(value), no=value)


def _force(option: Any) -> Any:
    return option() if callable(option) and not isinstance(option, (Term, torch.Tensor)) else option


_recording: ContextVar[bool] = ContextVar("regraft_recording", default=False)


def record_function(function: Callable[..., Any], variables: Sequence[Variable]) -> tuple[Any, ...]:
    """The terms of a pattern function's outputs, in order.

    Raises:
        PatternError: it does something that is no pattern.
    """
    token = _recording.set(True)
    try:
        out = function(*variables)
    except PatternError:
        raise
    except Exception as error:
        raise PatternError(f"pattern {function.__name__} cannot be recorded: {error}") from error
    finally:
        _recording.reset(token)
    outputs = out if isinstance(out, tuple) else (out,)
    for term in outputs:
        if not isinstance(term, (Call, Choice)):
            raise PatternError(
                f"pattern {function.__name__} returns {term!r}: an output must be computed by an operator"
            )
    return outputs


def subterms(term: Any) -> Iterator[Term]:
    """Every term inside `term`, itself first; shared ones once: alternatives share so much that paths are countless."""
    todo, seen = [term], set()
    while todo:
        item = todo.pop()
        if isinstance(item, (list, tuple)):
            todo.extend(reversed(item))
        elif isinstance(item, Term) and item not in seen:
            seen.add(item)
            yield item
            todo.extend(reversed(item._parts()))


def root_ops(term: Any) -> frozenset[str]:
    """The operators that a match of `term` can be rooted at; empty where a variable may stand for anything."""
    if isinstance(term, Call):
        return frozenset((term.op,))
    if isinstance(term, Choice):
        found = [root_ops(option) for _, option in term.options]
        return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def required_ops(term: Any) -> frozenset[str]:
    """Operators that every match of `term` contains."""
    return _required_ops(term, {})


def _required_ops(term: Any, known: dict[Term, frozenset[str]]) -> frozenset[str]:
    """`known` holds the answers for shared terms, each found once."""
    if not isinstance(term, (Call, Choice)):
        return frozenset()
    if term not in known:
        inner = [_required_ops(part, known) for part in term._parts()]
        if isinstance(term, Call):
            known[term] = frozenset((term.op,)).union(*inner)
        else:
            known[term] = frozenset.intersection(*inner)
    return known[term]


_Calls = frozenset[int]
_OfOptions = Callable[["Choice", list[_Calls]], _Calls]


def size(term: Any) -> int:
    """Number of operators in the largest match of `term`: of alternatives, the largest counts."""
    return len(_calls(term, lambda choice, options: max(options, key=len), {}))


def least_size(term: Any) -> int:
    """Number of operators in the smallest match of `term`."""
    return len(_calls(term, _smallest, {}))


def needed_size(term: Any, met: Collection[int]) -> int:
    """How many of the calls met every match needs; of alternatives, no more than the smallest has.

    Args:
        term: or terms.
        met: identities of calls, none of them of `optional_calls`.
    """
    least: dict[int, _Calls] = {}

    def of_options(choice: Choice, options: list[_Calls]) -> _Calls:
        most: _Calls = max(options, key=len)
        return frozenset(sorted(most)[: len(_calls(choice, _smallest, least))])

    return len(_calls(term, of_options, {}, met))


def optional_calls(term: Any) -> _Calls:
    """Identities of the calls that a match can do without: they stand around another option of their choice."""
    found: set[int] = set()
    known: dict[int, _Calls] = {}
    for choice in (one for one in subterms(term) if isinstance(one, Choice)):
        options = [_calls(option, lambda _, every: _united(every), known) for _, option in choice.options]
        found.update(*(more - less for more in options for less in options if less < more))
    return frozenset(found)


def _smallest(_choice: Choice, options: list[_Calls]) -> _Calls:
    return min(options, key=len)


def _united(calls: list[_Calls]) -> _Calls:
    return frozenset[int]().union(*calls)


def _calls(term: Any, of_options: _OfOptions, known: dict[int, _Calls], met: Collection[int] | None = None) -> _Calls:
    """The calls of a match, or those of them that were met; `known` holds the answers for shared terms."""
    if isinstance(term, (list, tuple)):
        return _united([_calls(part, of_options, known, met) for part in term])
    if not isinstance(term, Term):
        return frozenset()
    if id(term) not in known:
        inner = [_calls(part, of_options, known, met) for part in term._parts()]
        whole = of_options(term, inner) if isinstance(term, Choice) and inner else _united(inner)
        counts = isinstance(term, Call) and (met is None or id(term) in met)
        known[id(term)] = whole | {id(term)} if counts else whole
    return known[id(term)]


def tags_of(terms: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    """All tags of a pattern with their labels.

    Raises:
        PatternError: a tag stands for different sets of alternatives.
    """
    tags: dict[str, tuple[str, ...]] = {}
    for term in subterms(tuple(terms)):
        if isinstance(term, Choice) and not term.tag.startswith(HIDDEN):
            labels = tuple(label for label, _ in term.options)
            if tags.setdefault(term.tag, labels) != labels:
                raise PatternError(f"tag {term.tag!r} has alternatives {tags[term.tag]} and {labels}: it is one choice")
    return tags
