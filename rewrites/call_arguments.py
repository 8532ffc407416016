"""The arguments of a pattern's call against those of a graph's: defaults, order, dims counted from either end.

softmax(x, -1)   and   softmax(x, 3, dtype=None)  of rank 4      are one
add(x, 2)        and   add(2, x)                                 are one: the operator commutes
div(x, 1)        and   div(x, 1, rounding_mode="floor")          are not
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from . import compat
from .binding import differs
from .graph import arguments, describe, is_number, is_tensor, nodes_in, op_name, rank, val
from .pattern import Call, Swapped, Term
from .reason import Reason
from .symbolic import known_equal

COMMUTATIVE = frozenset(
    f"aten.{name}" for name in ("add", "mul", "maximum", "minimum", "logical_and", "logical_or", "eq", "ne")
)
_DIM_ARGUMENTS = frozenset(("dim", "dims", "dim0", "dim1", "dim2", "dimension"))
_EVERY_DIM = "every dim"  # the default of reductions that can be told their dims
_NEW_DIM = frozenset(("aten.unsqueeze", "aten.diag_embed", "aten.stack"))  # their dims count in the result


def arguments_differ(term: Call, node: fx.Node) -> Reason:
    """Why a call of the right operator is not the term's: an argument that the term leaves out, or another form."""
    plan, name = _plan(term, node.target), term.op.removeprefix("aten.")
    if plan is None:
        return differs(f"{term!r}", f"another form of {name}", (node,))
    given = _given(node)
    key, default = next((n, d) for n, d in plan[1] if not _is_default(n, d, given[n], node))
    return differs(f"{name} with {key}={default}", f"{key} = {describe(given[key])}", (node,))


def argument_pairs(term: Call, node: fx.Node) -> Iterator[list[tuple[Any, Any]]]:
    """Ways to pair a term's arguments with a call's: one, or two where the operator commutes."""
    plan = _plan(term, node.target)
    if plan is None:
        return
    given = _given(node)
    wanted, rest = plan
    if not all(_is_default(n, d, given[n], node) for n, d in rest):
        return
    pairs = [(_adapt(name, w, node), given[name]) for name, w in wanted]
    yield pairs
    if term.op in COMMUTATIVE and len(pairs) == 2:  # with a third, as in x + 2 * y, it does not commute
        (a, x), (b, y) = pairs
        yield [(a, y), (b, x)]


def wanted_argument(term: Call, node: fx.Node, name: str) -> Any:
    """The argument `name` that a term gives to a call of its operator; None where it gives none."""
    plan = _plan(term, node.target)
    return None if plan is None else dict(plan[0]).get(name)


_WHOLE = {torch.ops.aten.sum.default: "dim_IntList", torch.ops.aten.mean.default: "dim"}
_OVER_DIMS = frozenset((torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim))


def _given(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call; of a reduction over everything, those of one over each dim: sum(x), sum(x, [0, 1])."""
    given = arguments(node)
    if node.target not in _WHOLE:
        return given
    return given | {"dim": list(range(rank(node.args[0]))), "keepdim": False}  # type: ignore[arg-type]


_Arguments = tuple[tuple[str, Any], ...]


@lru_cache(maxsize=4096)
def _plan(term: Call, target: Any) -> tuple[_Arguments, _Arguments] | None:
    """The arguments of `target` that a term names, and the defaults of the others; None where they do not fit.

    What the target cannot do without, the term names: `div(x, 1)` is no `div(x, 1, rounding_mode="floor")`.
    """
    if target in _WHOLE:
        target = getattr(target.overloadpacket, _WHOLE[target])
    schema = compat.schema(target).arguments if isinstance(target, compat.OpOverload) else ()
    names = [a.name for a in schema] or [str(i) for i in range(len(term.args))]
    wanted = dict(zip(names, term.args, strict=False)) | dict(term.kwargs)
    if len(term.args) > len(names) or not set(wanted) <= set(names):
        return None
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    if target in _OVER_DIMS:
        defaults["dim"] = _EVERY_DIM
    if any(name not in wanted and name not in defaults for name in names if schema):
        return None
    rest = tuple((name, default) for name, default in defaults.items() if name not in wanted)
    return tuple(wanted.items()), rest


def _is_default(name: str, default: Any, value: Any, node: fx.Node) -> bool:
    """Whether a call gives an argument that a term leaves out its default: topk(x, 2, dim=1) of a matrix, -1."""
    return value is default or same_constant(_adapt(name, default, node), value)


def _adapt(name: str, wanted: Any, node: fx.Node) -> Any:
    """Dims are compared as the operator sees them: -1 and the last dim are one."""
    if isinstance(wanted, Term):
        return wanted
    if not (isinstance(wanted, Swapped) or name in _DIM_ARGUMENTS):
        return wanted
    first = next(filter(is_tensor, nodes_in(node.args)), None)
    if first is None:
        return wanted
    if wanted is _EVERY_DIM:
        return _Dims(tuple(_Dim(d, rank(first)) for d in range(rank(first))))
    dims = max(rank(node if op_name(node) in _NEW_DIM and is_tensor(node) else first), 1)
    if isinstance(wanted, Swapped):
        return wanted.dims(dims) if wanted.fits(dims) else wanted
    if isinstance(wanted, (list, tuple)):
        each = [_Dim(d, dims) if type(d) is int else d for d in wanted]
        return _Dims(tuple(each)) if name == "dim" and len(each) > 1 and all(type(d) is _Dim for d in each) else each
    return _Dim(wanted, dims) if type(wanted) is int else wanted


@dataclass(frozen=True)
class _Dim:
    """A dim of `rank` many, counted from either end; where one is reduced, operators take it as a list too."""

    dim: int
    rank: int

    def __repr__(self) -> str:
        return f"dim={self.dim}"

    def matches(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)) and len(value) == 1:
            (value,) = value
        in_range = isinstance(value, int) and -self.rank <= self.dim < self.rank
        return in_range and self.dim % self.rank == value % self.rank


@dataclass(frozen=True)
class _Dims:
    """Several dims that are reduced together, in any order."""

    dims: tuple[_Dim, ...]

    def __repr__(self) -> str:
        return f"dim={[d.dim for d in self.dims]}"

    def matches(self, value: Any) -> bool:
        if not isinstance(value, (list, tuple)) or len(value) != len(self.dims):
            return False
        return all(any(d.matches(v) for v in value) for d in self.dims)


def same_constant(a: Any, b: Any) -> bool:
    """Whether a constant of a pattern is the one found; -0.0 is not 0.0, and True is not 1."""
    if isinstance(a, Term):
        return False
    if isinstance(a, (_Dim, _Dims)):
        return a.matches(b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_constant, a, b))
    b = val(b)
    if isinstance(b, torch.Tensor) or isinstance(a, bool) is not isinstance(b, bool):
        return False
    if isinstance(a, float) and isinstance(b, float) and a == b == 0:
        return math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, float) and isinstance(b, (int, float)) and math.isfinite(a):
        return math.isclose(a, b, rel_tol=1e-9)
    return known_equal(a, b) if is_number(a) and is_number(b) else type(a) is type(b) and a == b
