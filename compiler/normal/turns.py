"""Rotations of pairs: the negated half comes first, and halves are joined by `cat`.

x * cos + cat([b, -a]) * sin     ->   x * cos + cat([-b, a]) * (sin * -1)
x * cos - cat([-b, a]) * sin     ->   x * cos + cat([-b, a]) * (sin * -1)
stack([-b, a], -2).flatten(-2)   ->   cat([-b, a], -1)
cat([b * sin + a * cos, b * cos - a * sin], -1)   ->   cat([a * cos - b * (sin * -1), b * cos + a * (sin * -1)], -1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal
from . import builders
from .analysis import is_float, last, like
from .reshape_groups import ReshapedDims, regroup
from .scale import scale_of

aten = torch.ops.aten


@respelling("aten.reshape")
def stacked_in_a_row(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(stack([a, b], -2), [..., 2 * n])  ->  cat([a, b], -1), of any dim and number of parts."""
    stack = node.args[0]
    if not sees(node, stack, "aten.stack"):
        return None
    parts, dim = stack.args[0], arguments(stack).get("dim", 0)
    groups = regroup(shape(stack), shape(node))
    if groups is None or not isinstance(dim, int) or len(parts) < 2:
        return None
    dim, n = dim % rank(stack), rank(node)
    kept = [ReshapedDims((d,), (d,)) for d in range(dim)]
    if groups != [
        *kept,
        ReshapedDims((dim, dim + 1), (dim,)),
        *[ReshapedDims((d + 1,), (d,)) for d in range(dim + 1, n)],
    ]:
        return None
    return edit.call(aten.cat.default, list(parts), dim if dim < n - 1 else -1)


@respelling("aten.complex")
def complex_of_pairs(node: fx.Node, edit: Editor) -> fx.Node | None:
    """complex(a, b)  ->  view_as_complex(stack([a, b], -1))."""
    a, b = node.args
    if not like(a, b) or not is_float(a) or dtype(a) == torch.float16:
        return None
    return edit.call(aten.view_as_complex.default, edit.call(aten.stack.default, [a, b], -1))


@respelling("aten.stack")
def pairs_of_complex(node: fx.Node, edit: Editor) -> fx.Node | None:
    """stack([real(z), imag(z)], -1)  ->  view_as_real(z)."""
    parts, dim = node.args[0], arguments(node).get("dim", 0)
    if len(parts) != 2 or not last(node, dim):
        return None
    taken = [_part_of_complex(node, part) for part in parts]
    (z, first), (other, second) = taken
    return (
        edit.call(aten.view_as_real.default, z) if z is not None and z is other and (first, second) == (0, 1) else None
    )


@respelling("aten.cat")
def halves_of_complex(node: fx.Node, edit: Editor) -> fx.Node | None:
    """cat([real(z), imag(z)], -1)  ->  reshape(permute(view_as_real(z), [..., -1, -2]), sizes)."""
    parts = _parts(node, node)
    if parts is None:
        return None
    (z, first), (other, second) = (_part_of_complex(node, part) for part in parts)
    if z is None or z is not other or (first, second) != (0, 1):
        return None
    pairs = edit.call(aten.view_as_real.default, z)
    return builders.reshape(edit, node, builders.swap_last(edit, node, pairs), shape(node))


def _part_of_complex(user: fx.Node, node: Any) -> tuple[fx.Node | None, int]:
    """(z, 0) of real(z), and (z, 1) of imag(z)."""
    if sees(user, node, "aten.real", "aten.imag"):
        z = node.args[0]
        return (z, int(sees(user, node, "aten.imag"))) if dtype(z).is_complex else (None, 0)
    if sees(user, node, "aten.select") and sees(user, node.args[0], "aten.view_as_real"):
        x, dim, index = node.args
        return (x.args[0], index) if last(x, dim) else (None, 0)
    return None, 0


@respelling("aten.mul")
def turned_back(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(cat([b, mul(a, -1)], -1), sin)  ->  mul(cat([mul(b, -1), a], -1), mul(sin, -1))."""
    for turned, sin in (node.args, node.args[::-1]):
        parts = _parts(node, turned)
        if parts is None or not is_float(sin) or not is_float(node) or rank(sin) == 0:
            continue
        first, second = parts
        if _is_negated(node, first) or not _is_negated(node, second):
            continue
        joined = edit.call(aten.cat.default, [builders.scaled(edit, first, -1), second.args[0]], *turned.args[1:])
        return edit.call(aten.mul.Tensor, joined, builders.scaled(edit, sin, -1))
    return None


@respelling("aten.mul")
def sign_of_table(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(cat([b, a], -1), cat([mul(s, -1), s], -1))  ->  mul(cat([mul(b, -1), a], -1), cat([s, s], -1)).

    The table may be reshaped, with rows of the same size.
    """
    for turned, table in (node.args, node.args[::-1]):
        whole = _of_equal_rows(node, table)
        halves, signs = _parts(node, turned), _parts(node, whole)
        if halves is None or signs is None or not _is_negated(node, signs[0]) or _is_negated(node, signs[1]):
            continue
        if any(_is_negated(node, h) for h in halves) or not like(node, turned):
            continue
        if not known_equal(shape(halves[0])[-1], shape(signs[0])[-1]):
            continue
        joined = edit.call(aten.cat.default, [builders.scaled(edit, halves[0], -1), halves[1]], -1)
        plain = edit.call(aten.cat.default, [signs[0].args[0], signs[1]], -1)
        return edit.call(aten.mul.Tensor, joined, builders.reshape(edit, node, plain, shape(table)))
    return None


def _of_equal_rows(user: fx.Node, node: Any) -> Any:
    """What a reshape that keeps the size of rows reads; other nodes themselves."""
    if not sees(user, node, "aten.reshape") or min(rank(node), rank(node.args[0])) == 0:
        return node
    return node.args[0] if known_equal(shape(node)[-1], shape(node.args[0])[-1]) else node


@respelling("aten.roll")
def rolled_row(node: fx.Node, edit: Editor) -> fx.Node | None:
    """roll(x, n, -1)  ->  cat([x[..., -n:], x[..., :-n]], -1), for rows of a known size."""
    values = arguments(node)
    x, shifts, dims = values["self"], values["shifts"], values.get("dims") or []
    if not is_float(x) or len(dims) != 1 or not last(x, dims[0]) or not isinstance(shape(x)[-1], int):
        return None
    size = shape(x)[-1]
    if not isinstance(shifts[0], int) or size == 0 or shifts[0] % size == 0:
        return None
    cut, dim = size - shifts[0] % size, rank(x) - 1
    parts = [edit.call(aten.slice.Tensor, x, dim, *bounds) for bounds in ((cut, builders.END), (0, cut))]
    return edit.call(aten.cat.default, parts, -1)


@respelling("aten.select")
def one_of_flipped(node: fx.Node, edit: Editor) -> fx.Node | None:
    """select(flip(x, [d]), d, i)  ->  select(x, d, size - 1 - i)."""
    flipped, dim, index = node.args
    if not sees(node, flipped, "aten.flip") or not all(isinstance(v, int) for v in (dim, index)):
        return None
    x, n = flipped.args[0], rank(flipped)
    size = shape(x)[dim]
    if [d % n for d in flipped.args[1]] != [dim % n] or not isinstance(size, int):
        return None
    return edit.call(aten.select.int, x, dim, size - 1 - index % size)


@respelling("aten.sub")
def turned_back_by_difference(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sub(mul(x, cos), mul(cat([mul(b, -1), a], -1), sin))  ->  add(mul(x, cos), mul(cat(...), mul(sin, -1)))."""
    first, second = node.args[:2]
    if arguments(node).get("alpha", 1) != 1 or not sees(node, second, "aten.mul") or not like(node, second):
        return None
    for turned, sin in (second.args, second.args[::-1]):
        parts = _parts(node, turned)
        if parts is not None and _is_negated(node, parts[0]) and is_float(sin) and rank(sin) > 0:
            turn = edit.call(aten.mul.Tensor, turned, builders.scaled(edit, sin, -1))
            return edit.call(aten.add.Tensor, first, turn)
    return None


@respelling("aten.cat", "aten.stack")
def pair_by_products(node: fx.Node, edit: Editor) -> fx.Node | None:
    """cat([a * c + b * s * -1, a * s + b * c], -1)  ->  cat([a * c - b * s, b * c + a * s], -1).

    Turned back, cat([a * c + b * s, b * c - a * s], -1), `s` is negated; what else is joined stays outside.
    """
    parts, dim = list(node.args[0]), arguments(node).get("dim", 0)
    if len(parts) < 2 or not last(node, dim) or (len(parts) > 2 and sees(None, node, "aten.stack")):
        return None
    first, second = _terms(node, parts[0]), _terms(node, parts[1])
    found = None if first is None or second is None else _turn(parts[0], first, second)
    if found is None:
        return None
    (a, b, c, s), back = found
    plain = sees(node, parts[0], "aten.sub") and all(t.plain for t in (*first, *second)) and not back  # type: ignore[misc]
    if plain and len(parts) == 2 and dim == -1:
        return None
    s = builders.scaled(edit, s, -1) if back else s
    left = edit.call(aten.sub.Tensor, edit.call(aten.mul.Tensor, a, c), edit.call(aten.mul.Tensor, b, s))
    right = edit.call(aten.add.Tensor, edit.call(aten.mul.Tensor, b, c), edit.call(aten.mul.Tensor, a, s))
    pair = edit.call(node.target, [left, right], -1)
    return pair if len(parts) == 2 else edit.call(aten.cat.default, [pair, *parts[2:]], -1)


@dataclass(frozen=True)
class _SignedProduct:
    """``x * y * sign``, `plain` where it is a product as it is."""

    factors: tuple[fx.Node, fx.Node]
    sign: int
    plain: bool


def _terms(user: fx.Node, node: Any) -> list[_SignedProduct] | None:
    """The two products of tensors that are added or subtracted."""
    if not sees(user, node, "aten.add", "aten.sub") or len(node.args) != 2 or node.kwargs or not is_float(node):
        return None
    terms = []
    for term, sign in zip(node.args, (1, -1 if sees(user, node, "aten.sub") else 1), strict=True):
        value, own = (term.args[0], -sign) if _is_negated(user, term) else (term, sign)
        if not sees(user, value, "aten.mul") or not like(node, value) or not all(map(is_float, value.args)):
            return None
        negated = [_is_negated(user, f) for f in value.args]
        factors = [f.args[0] if n else f for f, n in zip(value.args, negated, strict=True)]
        terms.append(
            _SignedProduct((factors[0], factors[1]), own * (-1) ** sum(negated), value is term and not any(negated))
        )
    return terms


def _turn(
    node: fx.Node, first: list[_SignedProduct], second: list[_SignedProduct]
) -> tuple[tuple[fx.Node, fx.Node, fx.Node, fx.Node], bool] | None:
    """((a, b, c, s), False) of a * c - b * s and b * c + a * s; True for a * c + b * s and b * c - a * s."""
    signs = [sorted(t.sign for t in terms) for terms in (first, second)]
    back = signs == [[1, 1], [-1, 1]]
    if signs != [[-1, 1], [1, 1]] and not back:
        return None
    (plus, minus), others = sorted(second if back else first, key=lambda t: -t.sign), first if back else second
    for large, c in (plus.factors, plus.factors[::-1]):
        for other, s in (minus.factors, minus.factors[::-1]):
            a, b = (other, large) if back else (large, other)
            wanted = [{a, c}, {b, s}] if back else [{b, c}, {a, s}]
            found = [set(t.factors) for t in others]
            if like(node, a) and like(node, b) and found in (wanted, wanted[::-1]):
                return (a, b, c, s), back
    return None


def _parts(user: fx.Node, node: Any) -> list[fx.Node] | None:
    """The two parts that `node` joins along the last dim."""
    if not sees(user, node, "aten.cat") or not is_float(node) or len(node.args[0]) != 2:
        return None
    return list(node.args[0]) if last(node, arguments(node).get("dim", 0)) else None


def _is_negated(user: fx.Node, node: Any) -> bool:
    return is_tensor(node) and sees(user, node, "aten.mul") and scale_of(node) == -1


TURNS: tuple[Respelling, ...] = (
    stacked_in_a_row,
    complex_of_pairs,
    pairs_of_complex,
    halves_of_complex,
    turned_back,
    turned_back_by_difference,
    pair_by_products,
    sign_of_table,
    rolled_row,
    one_of_flipped,
)
