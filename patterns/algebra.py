"""Identities that keep every bit, including NaN, infinities and the sign of zero.

    x * 1, x / 1, x - 0, x ** 1, where(c, x, x), maximum(x, x), -(-x), cat([x])   ->   x
    to(to(x, wider), dtype of x), view(x, its own shape), a slice of all          ->   x
    relu(relu(x)), abs(abs(x)), floor(floor(x))                                   ->   once
    permute(permute(x, a), b)                                                     ->   permute(x, c), or x

They run on the program after autograd. The normal form removes more, but it may round, and it only changes the program
where another rule matches. Kernels fuse most of these operators anyway; the rules save calls and copies that would
remain. Not included, because they are not identities: x + 0 (turns -0 into 0), x * 0, x - x, sqrt(x) ** 2, exp(log(x)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from ..rewrites.binding import Binding
from ..rewrites.graph import arguments, describe, dtype, is_tensor, nodes_in, op_name, rank, shape, val, widens
from ..rewrites.pattern import ANYTHING, Call, Term, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import EXACT, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import same_shape

Free = Callable[[], Any]  # an argument that a pattern does not compare, with the values of samples


def called(name: str, *operands: Any, free: tuple[Free, ...] = (), to: Free | None = None) -> Any:
    """A call of ``aten.name`` with arguments that are not compared; on tensors, the operator is called."""
    first = operands[0][0] if isinstance(operands[0], list) else operands[0]
    if isinstance(first, Term):
        kwargs = (("dtype", ANYTHING),) if to else ()
        return Call(f"aten.{name}", (*operands, *(ANYTHING for _ in free)), kwargs)
    return getattr(torch.ops.aten, name)(*operands, *(value() for value in free), **({"dtype": to()} if to else {}))


def itself(x: Any, condition: Any) -> Any:
    """The operand."""
    return x


def real(x: Any) -> Any:
    """x is not complex: a complex product with 1 turns infinities into NaN."""
    if not dtype(x).is_complex:
        return None
    return Reason("complex", f"{describe(x)} is complex", (x,), "real numbers", describe(x))


def same_value(match: Binding) -> Reason | None:
    """The result has the shape, dtype and device of the operand: nothing is broadcast or promoted.

    Strides may differ: they are restored if readers rely on them.
    """
    x, result = match.operands["x"], match.matched[0]
    placed = dtype(x) == dtype(result) and val(x).device == val(result).device
    if placed and same_shape(shape(x), shape(result)):
        return None
    message = f"{describe(result)} is not {describe(x)} again"
    return Reason("value-differs", message, (result, x), describe(x), describe(result))


def fixed_sizes(match: Binding) -> Reason | None:
    """The sizes of a view are numbers that the program does not compute."""
    computed = list(nodes_in([value for node in match.matched for value in node.args[1:] if _is_size(value)]))
    if not computed:
        return None
    return Reason("size-symbolic", f"{describe(computed[0])} may differ from call to call", (match.matched[0],))


def one_result(match: Binding) -> Reason | None:
    """The program does not return one tensor twice: writes to one result would change the other."""
    x, result = match.operands["x"], match.matched[0]
    if not (isinstance(x, fx.Node) and _is_returned(x) and _is_returned(result)):
        return None
    return Reason("returned-twice", f"{describe(result)} and {describe(x)} are both returned", (result, x))


def _is_returned(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _is_size(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, fx.Node) and not is_tensor(value))


def nothing_subtracted(match: Binding) -> Reason | None:
    """The number subtracted is 0 and not -0, which would turn -0 into 0."""
    node = match.matched[0]
    if op_name(node) != "aten.sub" or math.copysign(1.0, arguments(node)["other"]) > 0:
        return None
    return Reason("negative-zero", "x - (-0.0) turns -0.0 into 0.0", (node,), "0.0", "-0.0")


def widened(match: Binding) -> Reason | None:
    """A cast and the cast back lose nothing."""
    x, casts = match.operands["x"], [n for n in match.matched if op_name(n) == "aten._to_copy"]
    if len(casts) < 2:
        return None
    own, between = dtype(x), dtype(casts[-1])
    one_kind = own.is_floating_point == between.is_floating_point and between != torch.bool
    if one_kind and not between.is_complex and widens(own, between):
        return None
    message = f"{between} does not hold every number of {own}"
    return Reason("cast-narrows", message, tuple(casts), f"a dtype wider than {own}", str(between))


_IDENTITIES = (
    "times_one", "over_one", "minus_zero", "to_the_first", "larger", "smaller", "negated", "inverted", "joined",
    "cast", "there_and_back", "view", "expand", "slice",
)  # fmt: skip
_FOR_INTEGERS = {"inverted"}
_FOR_TRUTH = ("inverted", "joined", "cast", "view", "expand", "slice")  # masks are moved and joined like numbers


def _identity_samples() -> Iterator[Sample]:
    for name in _IDENTITIES:
        kind = torch.int64 if name in _FOR_INTEGERS else None
        yield Sample(x=T("N M", dtype=kind), tags={"identity": name})
    for name in _FOR_TRUTH:
        yield Sample(x=T("N M", dtype=torch.bool), tags={"identity": name})
    either = {"identity": "either"}
    yield Sample(x=T("N M"), condition=T("N M", values="bool"), tags=either)
    yield Sample(x=T("M"), condition=T("N M", values="bool"), tags=either, refused="value-differs")
    yield Sample(x=T("N M", dtype=torch.int64), tags={"identity": "over_one"}, refused="value-differs")
    yield Sample(x=T("N M", dtype=torch.complex64), tags={"identity": "times_one"}, refused="complex")


@register_pattern(
    "identity",
    family="algebra",
    stage="simplify",
    replacement=itself,
    samples=list(_identity_samples()),
    guards=(real, fixed_sizes, same_value, nothing_subtracted, widened, one_result),
    numerics=EXACT,
    escapes="keep",
    profitable=True,
)
def identity(x: Any, condition: Any) -> Any:
    """x * 1, where(c, x, x), -(-x), to(to(x, wider), own dtype), cat([x]), view(x, own shape), ...  ->  x."""

    def cast(value: Any, dtype: Free) -> Any:
        return called("_to_copy", value, to=dtype)

    return choose(
        "identity",
        times_one=lambda: called("mul", x, 1),
        over_one=lambda: called("div", x, 1),
        minus_zero=lambda: called("sub", x, 0),
        to_the_first=lambda: called("pow", x, 1),
        either=lambda: called("where", condition, x, x),
        larger=lambda: called("maximum", x, x),
        smaller=lambda: called("minimum", x, x),
        negated=lambda: called("neg", called("neg", x)),
        inverted=lambda: called("bitwise_not", called("bitwise_not", x)),
        joined=lambda: called("cat", [x], free=(lambda: 0,)),
        there_and_back=lambda: cast(cast(x, lambda: torch.float64), lambda: x.dtype),
        cast=lambda: cast(x, lambda: x.dtype),
        view=lambda: called("view", x, free=(lambda: list(x.shape),)),
        expand=lambda: called("expand", x, free=(lambda: list(x.shape),)),
        slice=lambda: called("slice", x, free=(lambda: 0, lambda: 0, lambda: x.shape[0])),
    )


_IDEMPOTENT = ("relu", "abs", "floor", "ceil", "trunc")


def _twice(name: str, x: Any) -> Callable[[], Any]:
    return lambda: called(name, called(name, x))


def once(x: Any, *, function: Any) -> torch.Tensor:
    """The function, applied once."""
    return function(x)


def the_function(match: Binding, policy: Mapping[str, str]) -> Any:
    """The operator that was applied twice."""
    return match.matched[0].target


@register_pattern(
    "idempotent",
    family="algebra",
    stage="simplify",
    replacement=once,
    samples=[Sample(x=T("N M"), tags={"function": name}) for name in _IDEMPOTENT],
    derived={"function": the_function},
    numerics=EXACT,
    escapes="keep",
    profitable=True,
)
def idempotent(x: Any) -> Any:
    """relu(relu(x)), abs, floor, ceil, trunc  ->  once."""
    return choose("function", **{name: _twice(name, x) for name in _IDEMPOTENT})


_MOVES = ("permute", "transpose", "t")


def composed(match: Binding, policy: Mapping[str, str]) -> list[int]:
    """The order of dims after two reorderings."""
    outer, inner = (_order(n) for n in match.matched)
    return [inner[d] for d in outer]


def _order(node: fx.Node) -> list[int]:
    order = list(range(rank(node)))
    if op_name(node) == "aten.permute":
        return [d % len(order) for d in arguments(node)["dims"]]
    if op_name(node) == "aten.t":
        return order[::-1]
    if order:  # a number has no dims, though 0 and -1 name one
        a, b = (arguments(node)[n] for n in ("dim0", "dim1"))
        order[a], order[b] = order[b], order[a]
    return order


def reordered(x: Any, *, order: list[int]) -> torch.Tensor:
    """One reordering; x itself if the order is unchanged."""
    return x if order == sorted(order) else torch.permute(x, order)


@register_pattern(
    "reordered_twice",
    family="algebra",
    stage="simplify",
    replacement=reordered,
    samples=[Sample(x=T("N M"), tags={"outer": a, "inner": b}) for a in _MOVES for b in _MOVES],
    derived={"order": composed},
    numerics=EXACT,
    escapes="keep",
    profitable=True,
)
def reordered_twice(x: Any) -> Any:
    """permute(permute(x, a), b), transpose and t likewise  ->  one permute, or x."""

    def moved(tag: str, value: Any) -> Any:
        return choose(
            tag,
            permute=lambda: called("permute", value, free=(lambda: [1, 0],)),
            transpose=lambda: called("transpose", value, free=(lambda: 0, lambda: -1)),
            t=lambda: called("t", value),
        )

    return moved("outer", moved("inner", x))
