"""Additions to the sum that a softmax by hand divides by: a number too small to count, or the exponent of a sink."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, rank, sees, shape
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal
from . import builders
from .analysis import is_float, is_literal, last, like, reduction, same_value, uniform
from .softmax import difference, quotient
from .split_attention import columns_of

aten = torch.ops.aten

SHIFTED = "shifted"
"""In the metadata of a `logsumexp` that was written less a maximum: that of rows that hold infinity is NaN."""


# -- numbers too small to count


@respelling("aten.add", "aten.clamp", "aten.clamp_min")
def sum_of_one_or_more(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sum(exp(x - max(x, [d])), [d]) + 1e-9, or clamp(sum(...), min=1e-9)  ->  sum(...), which is 1 or more."""
    total = node.args[0]
    if not is_float(node) or not like(node, total) or not _leaves_ones(node) or not sees(node, total, "aten.sum"):
        return None
    exponents, values = total.args[0], arguments(total)
    if not sees(node, exponents, "aten.exp") or dtype(exponents) != dtype(node):
        return None
    x, largest = difference(node, exponents.args[0])
    over = None if x is None or largest is None else reduction(node, _attached(node, largest), "aten.amax", "aten.max")
    if over is None or _attached(node, over[0]) is not x or not is_float(x) or not like(exponents, x):
        return None
    dims = values.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    summed = isinstance(dims, (list, tuple)) and [d % rank(exponents) for d in dims] == [over[1]]
    return total if summed else None


def _leaves_ones(node: fx.Node) -> bool:
    """Whether an addition or a bound leaves numbers from 1 on as they are, in their type."""
    values = arguments(node)
    if "other" in values:
        least = torch.finfo(dtype(node)).eps / 4
        return is_literal(values["other"]) and values.get("alpha", 1) == 1 and 0 <= values["other"] <= least
    return is_literal(values["min"]) and values["min"] <= 1 and values.get("max") is None


def _attached(user: fx.Node, node: Any) -> Any:
    return node.args[0] if sees(user, node, "aten.detach") else node


@respelling("aten.linalg_vector_norm", "aten.norm")
def norm_of_exponents(node: fx.Node, edit: Editor) -> fx.Node | None:
    """linalg_vector_norm(exp(x), 1, [d], True)  ->  sum(exp(x), [d], True), since exponents are positive."""
    values = arguments(node)
    x, dims = next(iter(values.values())), values.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    order = values.get("ord", values.get("p"))
    if not sees(node, x, "aten.exp") or order != 1 or not dims or not is_float(x) or dtype(x) != dtype(node):
        return None
    return edit.call(aten.sum.dim_IntList, x, list(dims), values["keepdim"])


@respelling("aten.slice")
def sum_by_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """slice(matmul(exp(x), cat([v, ones], -1)), -1, -1, END)  ->  sum(exp(x), [-1], True).

    The part of `v` is matmul(exp(x), v).
    """
    found = columns_of(node, node)
    if found is None or not sees(node, found[0], "aten.matmul") or not sees(node, found[0].args[0], "aten.exp"):
        return None
    exponents, joined = found[0].args
    if not sees(node, joined, "aten.cat") or not last(joined, arguments(joined).get("dim", 0)):
        return None
    if not any(_is_of_ones(part) for part in joined.args[0]):
        return None
    start = 0
    for part in joined.args[0]:
        if known_equal(start, found[1]) and known_equal(start + shape(part)[-1], found[2]):
            if _is_of_ones(part):
                return edit.call(aten.sum.dim_IntList, exponents, [-1], True)
            return edit.call(aten.matmul.default, exponents, part)
        start = start + shape(part)[-1]
    return None


def _is_of_ones(part: fx.Node) -> bool:
    return uniform(part) == 1 and known_equal(shape(part)[-1], 1)


# -- logarithms


@respelling("aten.log")
def logarithm_of_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """log(sum(exp(x), [d], True))  ->  logsumexp(x, [d], True)."""
    total = node.args[0]
    exponents: Any = total.args[0] if sees(node, total, "aten.sum") else None
    if not sees(node, exponents, "aten.exp") or not is_float(exponents.args[0]) or dtype(total) != dtype(exponents):
        return None
    values = arguments(total)
    dims = [values["dim"]] if isinstance(values.get("dim"), int) else values.get("dim")
    if not dims or rank(exponents) == 0:
        return None
    return edit.call(aten.logsumexp.default, exponents.args[0], list(dims), bool(values.get("keepdim")))


@respelling("aten.add")
def logarithm_and_shift(node: fx.Node, edit: Editor) -> fx.Node | None:
    """logsumexp(x - m, [d], True) + m  ->  logsumexp(x, [d], True), for a maximum `m`."""
    if arguments(node).get("alpha", 1) != 1 or not is_float(node):
        return None
    for total, shift in (node.args[:2], node.args[1::-1]):
        if not sees(node, total, "aten.logsumexp") or not is_tensor(shift) or not like(node, total):
            continue
        x, largest = difference(node, total.args[0])
        if x is None or largest is None or not like(total.args[0], x) or not like(node, shift):
            continue
        dims = total.args[1]
        over = reduction(node, _attached(node, largest), "aten.amax", "aten.max")
        if over is None or over[0] is not x or [d % rank(x) for d in dims] != [over[1]]:
            continue
        if _bare(_attached(node, shift)) is _bare(_attached(node, largest)):
            whole = edit.call(aten.logsumexp.default, x, *total.args[1:])
            whole.meta[SHIFTED] = True
            return whole
    return None


def _bare(node: Any) -> Any:
    """A value before it is reshaped."""
    while sees(None, node, "aten.reshape"):
        node = node.args[0]
    return node


# -- sinks


@respelling("aten.mul")
def sum_beside_sink(node: fx.Node, edit: Editor) -> fx.Node | None:
    """softmax(x, -1) * sigmoid(logsumexp(x, [-1], True) - s)  ->  slice(softmax(cat([x, s], -1), -1), -1, 0, -1).

    Also after the product with values: kernels that return the logarithm of the sum are corrected in this way.
    """
    for weighted, gate in (node.args[:2], node.args[1::-1]):
        if not sees(node, gate, "aten.sigmoid") or not is_tensor(weighted) or not like(node, weighted):
            continue
        values = weighted.args[1] if sees(node, weighted, "aten.matmul") else None
        weights = weighted if values is None else weighted.args[0]
        total, sink = difference(node, gate.args[0])
        if total is None or sink is None or not sees(node, weights, "aten.softmax") or weights.args[1:] != (-1,):
            continue
        if sees(node, sink, "aten.logsumexp"):  # of other keys, whose attention is added: see `softmax_parts.py`
            continue
        x, over = weights.args[0], reduction(node, total, "aten.logsumexp")
        if over is not None and over[1] == rank(x) - 1 and same_value(over[0], x) and _is_one_column(sink, x):
            return _beside(edit, node, x, sink, values)
    return None


@respelling("aten.exp")
def exponents_over_logarithm_and_sink(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp(x - logaddexp(logsumexp(x, [-1], True), s))  ->  slice(softmax(cat([x, s], -1), -1), -1, 0, -1).

    Also exp(x - logsumexp(cat([x, s], -1), [-1], True)).
    """
    x, total = difference(node, node.args[0])
    if x is None or total is None or not is_float(x) or not like(node, x):
        return None
    if sees(node, total, "aten.logaddexp"):
        for part, sink in (total.args, total.args[::-1]):
            over = reduction(node, part, "aten.logsumexp") if is_tensor(part) and is_tensor(sink) else None
            sink = sink.args[0] if sees(node, sink, "aten.expand") else sink
            if over is not None and over[1] == rank(x) - 1 and same_value(over[0], x) and _is_one_column(sink, x):
                return _beside(edit, node, x, sink, None)
        return None
    over = reduction(node, total, "aten.logsumexp")
    if over is None or not sees(node, over[0], "aten.cat") or over[0].args[1:] != (-1,) or over[1] != rank(x) - 1:
        return None
    columns = over[0].args[0]
    places = [k for k, part in enumerate(columns) if part is x]
    if len(columns) != 2 or len(places) != 1 or not known_equal(shape(columns[1 - places[0]])[-1], 1):
        return None
    return _beside(edit, node, x, columns[1 - places[0]], None)


@respelling("aten.div", "aten.mul")
def exponents_over_sum_and_sink(node: fx.Node, edit: Editor) -> fx.Node | None:
    """exp(x - m) / (sum(exp(x - m), [-1], True) + exp(s - m))  ->  slice(softmax(cat([x, s], -1), -1), -1, 0, -1).

    The division may follow a product with values. `m` is a maximum of `x`, or of it and something else. A positive
    number `a` in the place of `exp(s)` is a sink of ``log(a)`` if none is subtracted.
    """
    dividend, divisor = quotient(node)
    values = None
    if sees(node, dividend, "aten.matmul") and rank(dividend.args[1]) >= 2:
        dividend, values = dividend.args
    found = None if divisor is None else _sum_and_sink(node, dividend, divisor)
    if found is None:
        return None
    return _beside(edit, node, *found, values)


def _beside(edit: Editor, node: fx.Node, x: fx.Node, sink: fx.Node | float, values: fx.Node | None) -> fx.Node:
    """Weights of `x` beside a sink, multiplied by values if there are any."""
    if isinstance(sink, float):
        columns = edit.call(aten.constant_pad_nd.default, x, [0, 1], sink)
    else:
        columns = edit.call(aten.cat.default, [x, builders.expand(edit, node, sink, [*shape(x)[:-1], 1])], -1)
    weights = edit.call(aten.slice.Tensor, edit.call(aten.softmax.int, columns, -1), -1, 0, -1)
    return weights if values is None else edit.call(aten.matmul.default, weights, values)


def _sum_and_sink(user: fx.Node, exponents: Any, divisor: Any) -> tuple[fx.Node, fx.Node | float] | None:
    """(x, s) of exponents `exp(x - m)` and a divisor `sum(exp(x - m)) + exp(s - m)`; `s` is 0 for `exp(-m)`."""
    if not sees(user, exponents, "aten.exp") or not sees(user, divisor, "aten.add"):
        return None
    if is_literal(divisor.args[1]):
        return _sum_and_number(user, exponents, divisor)
    x, shift = difference(user, exponents.args[0])
    if x is None or shift is None or not is_float(x) or not like(exponents, x):
        return None
    if arguments(divisor).get("alpha", 1) != 1 or not _is_a_maximum(user, shift, x):
        return None
    for total, other in (divisor.args[:2], divisor.args[1::-1]):
        over = reduction(user, total, "aten.sum") if is_tensor(total) else None
        if over != (exponents, rank(x) - 1) or not like(divisor, total) or not sees(user, other, "aten.exp"):
            continue
        if _is_negative(user, other.args[0], shift):
            return x, 0.0
        sink, subtracted = difference(user, other.args[0])
        if sink is not None and subtracted is shift and _is_one_column(sink, x):
            return x, sink
    return None


def _sum_and_number(user: fx.Node, exponents: fx.Node, divisor: fx.Node) -> tuple[fx.Node, float] | None:
    """(x, log(a)) of exponents `exp(x)` and a divisor `sum(exp(x)) + a`.

    What is subtracted from `x`, such as its maximum, is part of it: the sink stands beside the scores as they are.
    """
    x, (total, number) = exponents.args[0], divisor.args[:2]
    if not is_float(x) or arguments(divisor).get("alpha", 1) != 1 or number <= 0 or not is_tensor(total):
        return None
    over = reduction(user, total, "aten.sum")
    return (x, math.log(number)) if over == (exponents, rank(x) - 1) and like(divisor, total) else None


def _is_negative(user: fx.Node, node: Any, of: fx.Node) -> bool:
    if sees(user, node, "aten.neg"):
        return node.args[0] is of
    return sees(user, node, "aten.mul") and node.args[0] is of and node.args[1] == -1


def _is_one_column(sink: fx.Node, x: fx.Node) -> bool:
    if dtype(sink) != dtype(x) or not 0 < rank(sink) <= rank(x) or not known_equal(shape(sink)[-1], 1):
        return False
    sizes = zip(reversed(shape(sink)), reversed([*shape(x)[:-1], 1]), strict=False)
    return all(known_equal(a, 1) or known_equal(a, b) for a, b in sizes)


def _is_a_maximum(user: fx.Node, node: Any, x: fx.Node) -> bool:
    """Whether a value is the maximum of `x` along the last dimension, or the larger of it and another one.

    Another term may be so large that it absorbs `x`.
    """
    node = _attached(user, node)
    if sees(user, node, "aten.maximum"):
        return any(_is_a_maximum(user, part, x) for part in node.args)
    if sees(user, node, "aten.clamp", "aten.clamp_min"):
        return arguments(node).get("max") is None and _is_a_maximum(user, node.args[0], x)
    over = reduction(user, node, "aten.amax", "aten.max") if is_tensor(node) else None
    return over is not None and _attached(user, over[0]) is x and over[1] == rank(x) - 1


SUMS = (
    sum_of_one_or_more, norm_of_exponents, sum_by_product, logarithm_of_sum, logarithm_and_shift,
    exponents_over_sum_and_sink, exponents_over_logarithm_and_sink, sum_beside_sink,
)  # fmt: skip
