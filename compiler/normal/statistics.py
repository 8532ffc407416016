"""Statistics of rows: one spelling each for means, population variances and reciprocal square roots.

(x - x.mean(-1, True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
    ->   mul(sub(x, m), rsqrt(add(mean(pow(sub(x, m), 2), [-1], True), eps)))       with m = mean(x, [-1], True)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees, shape, val
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, product, same_shape
from . import builders
from .analysis import is_float, is_literal, like, same_value, uniform
from .scale import scale_of

aten = torch.ops.aten


@respelling("aten.pow")
def power_as_root(node: fx.Node, edit: Editor) -> fx.Node | None:
    """pow(x, -0.5)  ->  rsqrt(x);  pow(x, 0.5)  ->  sqrt(x);  pow(x, -1)  ->  reciprocal(x).

    Only if eager computes it so: for tensor exponents, and for 16-bit types on CPUs, -0.0 gives 0.0 and -inf gives inf.
    """
    x, exponent = node.args
    if not is_float(x) or not like(node, x) or not is_literal(exponent):
        return None
    if exponent == -1:
        return edit.call(aten.reciprocal.default, x)
    if dtype(x) == torch.float16 and val(x).device.type == "cpu":
        return None
    roots = {-0.5: aten.rsqrt.default, 0.5: aten.sqrt.default}
    target = roots.get(exponent)
    return None if target is None else edit.call(target, x)


@respelling("aten.reciprocal")
def reciprocal_root(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reciprocal(sqrt(x))  ->  rsqrt(x)."""
    root = node.args[0]
    return edit.call(aten.rsqrt.default, root.args[0]) if sees(node, root, "aten.sqrt") and is_float(root) else None


@respelling("aten.div", "aten.true_divide")
def division_by_root(node: fx.Node, edit: Editor) -> fx.Node | None:
    """div(x, sqrt(v))  ->  mul(x, rsqrt(v)), for a tensor `v`."""
    x, root = node.args[:2]
    if arguments(node).get("rounding_mode") or not sees(node, root, "aten.sqrt"):
        return None
    if not is_float(x) or not is_float(root.args[0]):
        return None
    return edit.call(aten.mul.Tensor, x, edit.call(aten.rsqrt.default, root.args[0]))


@respelling("aten.mul")
def sum_as_mean(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(sum(x, [-1], True), 1 / n)  ->  mean(x, [-1], True), for `n` elements."""
    total, factor = node.args[0], scale_of(node)
    if not sees(node, total, "aten.sum") or not like(node, total):
        return None
    values = arguments(total)
    x, dims = values["self"], values.get("dim")
    if not dims or rank(x) == 0 or values.get("dtype") not in (None, dtype(x)) or not is_float(x):
        return None
    if not _is_inverse(factor, product(shape(x)[d] for d in dims)):
        return None
    return edit.call(aten.mean.dim, x, dims, values["keepdim"])


def _is_inverse(factor: Any, count: Any) -> bool:
    """Whether a factor is one divided by a number of elements; for a symbolic number, as the division is spelled."""
    if is_literal(factor):
        return isinstance(count, int) and math.isclose(factor * count, 1)
    if not isinstance(factor, fx.Node) or factor.target is not operator.truediv or factor.args[0] != 1.0:
        return False
    return known_equal(val(factor.args[1]), count)


_REDUCTIONS = ("aten.mean", "aten.sum")
_OF_EACH = ("aten.rsqrt", "aten.sqrt", "aten.reciprocal", "aten.add", "aten.mul", "aten.pow")


@respelling("aten.reshape")
def kept_dims(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(mean(x, [-1]), [..., 1])  ->  mean(x, [-1], True); also of rsqrt(mean(x, [-1]) + eps), and of sums."""
    return _kept(node, edit, node.args[0], shape(node))


@respelling("aten.sub", "aten.mul")
def leading_dims(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sub(x, mean(x, [0]))  ->  sub(x, mean(x, [0], True)); also mul(x, rsqrt(mean(x, [0, 1]) + eps))."""
    n = rank(node)
    for x, row in (node.args[:2], node.args[1::-1]):
        if not is_tensor(x) or not is_tensor(row) or not 0 < rank(row) < n or rank(x) != n:
            continue
        kept = _kept(node, edit, row, [1] * (n - rank(row)) + list(shape(row)))
        if kept is not None:
            args = [kept if a is row else a for a in node.args]
            return edit.call(node.target, *args, **node.kwargs)
    return None


def _kept(user: fx.Node, edit: Editor, row: fx.Node, sizes: Sequence[Any]) -> fx.Node | None:
    """A reduction, or a chain of elementwise calls of one, whose dims are kept with size 1: a value of these sizes."""
    path = [row]
    while sees(user, path[-1], *_OF_EACH) and not any(is_tensor(a) for a in path[-1].args[1:]):
        path.append(path[-1].args[0])
    if not sees(user, path[-1], *_REDUCTIONS):
        return None
    result = _with_dims(edit, path[-1], sizes)
    for call in reversed(path[:-1]):
        result = None if result is None else edit.call(call.target, result, *call.args[1:], **call.kwargs)
    return result


@respelling("aten.reshape")
def dropped_dims(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(mean(x, [-1], True), sizes without this dim)  ->  mean(x, [-1]); also of sums."""
    call = node.args[0]
    if not sees(node, call, *_REDUCTIONS):
        return None
    values = arguments(call)
    x, dims = values["self"], _dims(values)
    if dims is None or not values.get("keepdim") or values.get("dtype") not in (None, dtype(x)) or not is_float(x):
        return None
    gone = {d % rank(x) for d in dims if rank(x)}
    if not gone or not same_shape(shape(node), [s for d, s in enumerate(shape(x)) if d not in gone]):
        return None
    return edit.call(call.target, x, dims)


def _with_dims(edit: Editor, call: fx.Node, sizes: Sequence[Any]) -> fx.Node | None:
    """A reduction that keeps its dims with size 1, if it has these sizes then."""
    values = arguments(call)
    x, dims = values["self"], _dims(values)
    if dims is None or values.get("keepdim") or values.get("dtype") not in (None, dtype(x)) or not is_float(x):
        return None
    gone = {d % rank(x) for d in dims if rank(x)}  # of a number, dims name nothing
    if not same_shape(sizes, [1 if d in gone else s for d, s in enumerate(shape(x))]):
        return None
    return edit.call(call.target, x, dims, True)


@respelling("aten.mean")
def mean_of_means(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mean(mean(x, [-1], True), [-2], True)  ->  mean(x, [-2, -1], True), for other dims."""
    inner, values = node.args[0], arguments(node)
    if not sees(node, inner, "aten.mean") or not is_float(inner.args[0]) or dtype(inner.args[0]) != dtype(node):
        return None
    within = arguments(inner)
    n = rank(inner.args[0])
    first, second = dims_of(within, n), dims_of(values, n)
    if first is None or second is None or set(first) & set(second) or dtype(inner) != dtype(node):
        return None
    if not within.get("keepdim") or not values.get("keepdim"):
        return None
    return edit.call(aten.mean.dim, within["self"], sorted(first + second), True)


@respelling("aten.matmul")
def product_with_ones(node: fx.Node, edit: Editor) -> fx.Node | None:
    """matmul(x, full([n, 1], c))  ->  mul(sum(x, [-1], True), c), for a number `c`."""
    x, ones = node.args
    if rank(ones) != 2 or rank(x) < 2 or not known_equal(shape(ones)[1], 1) or not is_float(x):
        return None
    number = uniform(ones)
    if not number or not math.isfinite(number) or dtype(node) != dtype(x):
        return None
    return builders.scaled(edit, edit.call(aten.sum.dim_IntList, x, [-1], True), number)


@respelling("aten.pow", "aten.mul")
def squared_root(node: fx.Node, edit: Editor) -> fx.Node | None:
    """pow(norm(x, 2, [-1], True), 2)  ->  sum(pow(x, 2), [-1], True);  pow(std(x), 2)  ->  var(x); also y * y."""
    y, other = node.args
    if not (other is y if op_name(node) == "aten.mul" else other == 2) or not like(node, y) or not is_float(y):
        return None
    if sees(node, y, "aten.std") or (sees(node, y, "getitem") and sees(node, y.args[0], "aten.std_mean")):
        call = y.args[0] if op_name(y) == "getitem" else y
        return _variance(node, edit, call) if op_name(y) == "aten.std" or y.args[1] == 0 else None
    if sees(node, y, "aten.abs") and is_float(y.args[0]):
        return edit.call(aten.pow.Tensor_Scalar, y.args[0], 2)
    if not sees(node, y, "aten.linalg_vector_norm", "aten.norm", "aten.linalg_norm"):
        return None
    values = arguments(y)
    x, dims = next(iter(values.values())), _dims(values)
    order = values.get("ord", values.get("p"))
    if dims is None or order not in (2, None) or not is_float(x) or dtype(x) != dtype(node) or rank(x) == 0:
        return None
    if op_name(y) == "aten.linalg_norm" and len(dims) != 1:
        return None
    return edit.call(aten.sum.dim_IntList, edit.call(aten.pow.Tensor_Scalar, x, 2), dims, bool(values.get("keepdim")))


@respelling("aten.sub")
def squares_minus_square(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sub(mean(pow(x, 2), [-1], True), pow(mean(x, [-1], True), 2))  ->  the variance, as in `variance`.

    That of centered values loses no digits where the mean is large.
    """
    squares, square = node.args[:2]
    if arguments(node).get("alpha", 1) != 1 or not sees(node, squares, "aten.mean") or not is_float(node):
        return None
    if not sees(node, square, "aten.pow") or square.args[1] != 2 or not sees(node, square.args[0], "aten.mean"):
        return None
    powers, mean = squares.args[0], square.args[0]
    if not sees(node, powers, "aten.pow") or powers.args[1] != 2 or not same_value(powers.args[0], mean.args[0]):
        return None
    values = arguments(squares)
    same = dims_of(arguments(mean), rank(powers)) == dims_of(values, rank(powers))
    if not same or arguments(mean).get("keepdim") != values.get("keepdim") or not like(node, square):
        return None
    if {arguments(mean).get("dtype"), values.get("dtype")} - {None, dtype(node)}:
        return None
    return _variance(node, edit, mean, values | {"self": powers.args[0], "correction": 0})


@respelling("aten.clamp_min", "aten.clamp", "aten.relu", "aten.maximum")
def variance_is_positive(node: fx.Node, edit: Editor) -> fx.Node | None:
    """clamp_min(mean(pow(x, 2), [-1], True), 0)  ->  mean(pow(x, 2), [-1], True)."""
    mean, values = node.args[0], arguments(node)
    floor = 0 if op_name(node) == "aten.relu" else uniform(values.get("min", values.get("other")))
    if floor != 0 or values.get("max") is not None or not sees(node, mean, "aten.mean") or not like(node, mean):
        return None
    return mean if sees(node, mean.args[0], "aten.pow") and mean.args[0].args[1] == 2 and is_float(mean) else None


@respelling("aten.var")
def variance(node: fx.Node, edit: Editor) -> fx.Node | None:
    """var(x, [-1], correction=0, keepdim=True)  ->  mean(pow(sub(x, mean(x, [-1], True)), 2), [-1], True)."""
    return _variance(node, edit, node)


@respelling("getitem")
def variance_and_mean(node: fx.Node, edit: Editor) -> fx.Node | None:
    """getitem(var_mean(x, [-1], correction=0), 1)  ->  mean(x, [-1]); at 0, the variance as in `variance`."""
    both, index = node.args
    if not sees(node, both, "aten.var_mean", "aten.std_mean") or not is_tensor(node):
        return None
    if index == 0 and op_name(both) == "aten.std_mean":
        return None
    if index == 0:
        return _variance(node, edit, both)
    values = arguments(both)
    dims = _dims(values)
    return None if dims is None else edit.call(aten.mean.dim, values["self"], dims, bool(values.get("keepdim")))


def _variance(node: fx.Node, edit: Editor, call: fx.Node, values: dict[str, Any] | None = None) -> fx.Node | None:
    """The variance that `call` computes, or a call with `values`, if it is the population variance over some dims."""
    values = arguments(call) if values is None else values
    x, dims = values["self"], _dims(values)
    population = values.get("unbiased") is False or values.get("correction") == 0
    if dims is None or not population or not is_float(x) or dtype(node) != dtype(x) or rank(x) == 0:
        return None
    centered = edit.call(aten.sub.Tensor, x, edit.call(aten.mean.dim, x, dims, True))
    square = edit.call(aten.pow.Tensor_Scalar, centered, 2)
    return edit.call(aten.mean.dim, square, dims, bool(values.get("keepdim")))


def dims_of(values: dict[str, Any], n: int) -> list[int] | None:
    """The dims of a reduction of a tensor with `n` dims, in order and none negative; None for all dims."""
    dims = _dims(values)
    return None if dims is None or n == 0 else sorted(d % n for d in dims)


def _dims(values: dict[str, Any]) -> list[int] | None:
    """The dims of a reduction, as a list; None for all dims."""
    dims = values.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    return list(dims) if dims else None


STATISTICS: tuple[Respelling, ...] = (
    power_as_root, reciprocal_root, division_by_root, sum_as_mean, variance, variance_and_mean, kept_dims,
    leading_dims, dropped_dims, mean_of_means, product_with_ones, squared_root, squares_minus_square,
    variance_is_positive,
)  # fmt: skip
