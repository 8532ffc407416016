"""Softmax in parts, as attention over blocks of keys computes it, becomes one softmax over all of them.

    o = o * exp(m - n) + exp(s - n) @ v;  l = l * exp(m - n) + sum(exp(s - n));  ...;  o / l
    softmax(s1) @ v1 * exp(l1 - l) + softmax(s2) @ v2 * exp(l2 - l), with l = logaddexp(l1, l2) of logsumexp(s1), ...
        ->   softmax(cat([s1, s2])) @ cat([v1, v2])

Each part is read as ``exp(s + logs) @ v``. The logarithms that are added and subtracted on the way must cancel but for
one that all parts share: a maximum, or the logarithm of the sum of all exponents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known_equal, same_shape
from . import builders
from .analysis import is_float, is_literal, like, reduction, uniform
from .softmax import difference, quotient

aten = torch.ops.aten

_DEEPEST = 128  # operators from the result to the first part

_Log = Any  # a node with one number a row, or the scores whose exponents' sum it is the logarithm of
_Logs = Mapping[_Log, int]


@dataclass(frozen=True)
class _Exponents:
    """``exp(scores + logs) @ value``; the sums of rows of the exponents, where there is no value."""

    scores: fx.Node
    value: fx.Node | None
    logs: _Logs


@respelling("aten.div", "aten.mul")
def parts_over_sum(node: fx.Node, edit: Editor) -> fx.Node | None:
    """(exp(s1 - m) @ v1 + exp(s2 - m) @ v2) / (sum(exp(s1 - m)) + sum(exp(s2 - m)))  ->  softmax(cat(s)) @ cat(v)."""
    dividend, divisor = quotient(node)
    if not sees(node, divisor, "aten.add") or not sees(node, dividend, "aten.add") or not is_float(node):
        return None
    above, below = _parts(node, dividend), _parts(node, divisor)
    if not above or not below or len(above) != len(below) or len(above) < 2:
        return None
    if any(p.logs != above[0].logs for p in (*above, *below)) or any(p.value is not None for p in below):
        return None
    if not all(_is_maximum(node, log) for log in above[0].logs):
        return None
    same = {p.scores for p in above} == {p.scores for p in below}
    return _joined(node, edit, above) if same and len({p.scores for p in above}) == len(above) else None


@respelling("aten.add")
def softmaxes_by_their_sums(node: fx.Node, edit: Editor) -> fx.Node | None:
    """softmax(s1) @ v1 * exp(l1 - l) + softmax(s2) @ v2 * exp(l2 - l)  ->  softmax(cat([s1, s2])) @ cat([v1, v2])."""
    if (
        len(node.args) != 2
        or node.kwargs
        or not is_float(node)
        or not all(sees(node, a, "aten.mul") for a in node.args)
    ):
        return None
    if any(
        _factor(node, f) is not None for u in node.users if sees(None, u, "aten.mul") for f in u.args if f is not node
    ):
        return None  # a part itself
    parts = _parts(node, node)
    if not parts or len(parts) < 2:
        return None
    whole = {frozenset(p.scores for p in parts): -1}
    return (
        _joined(node, edit, parts)
        if len(next(iter(whole))) == len(parts) and all(p.logs == whole for p in parts)
        else None
    )


def _joined(node: fx.Node, edit: Editor, parts: list[_Exponents]) -> fx.Node | None:
    """softmax(cat(scores)) @ cat(values)."""
    batch, (rows, width) = shape(node)[:-2], shape(node)[-2:]
    scores, values = [], []
    for part in parts:
        if part.value is None or max(rank(part.scores), rank(part.value)) > rank(node):
            return None
        if min(rank(part.scores), rank(part.value)) < 2 or {dtype(part.scores), dtype(part.value)} != {dtype(node)}:
            return None
        columns = shape(part.scores)[-1]
        scores.append(builders.expand(edit, node, part.scores, [*batch, rows, columns]))
        values.append(builders.expand(edit, node, part.value, [*batch, columns, width]))
    weights = edit.call(aten.softmax.int, edit.call(aten.cat.default, scores, -1), -1)
    return edit.call(aten.matmul.default, weights, edit.call(aten.cat.default, values, -2))


def _parts(user: fx.Node, node: Any, depth: int = _DEEPEST) -> list[_Exponents] | None:
    """The parts of a sum; None if it has others."""
    if uniform(node) == 0:
        return []
    if not is_float(node) or depth == 0:
        return None
    if sees(user, node, "aten.add") and len(node.args) == 2 and not node.kwargs:
        left, right = (_parts(user, a, depth - 1) for a in node.args)
        return None if left is None or right is None else left + right
    if sees(user, node, "aten.mul"):
        return _multiplied(user, node, depth)
    if sees(user, node, "aten.matmul"):
        return _weighted(user, *node.args)
    over = reduction(user, node, "aten.sum")
    if over is None or over[1] != rank(over[0]) - 1 or not sees(user, over[0], "aten.exp"):
        return None
    return [_Exponents(*_exponent(user, over[0].args[0], None))]


def _multiplied(user: fx.Node, node: fx.Node, depth: int) -> list[_Exponents] | None:
    for x, factor in (node.args, node.args[::-1]):
        if uniform(factor) == 0:
            return []
        logs = _factor(user, factor)
        parts = None if logs is None else _parts(user, x, depth - 1)
        if logs is not None and parts is not None:
            return [_Exponents(p.scores, p.value, _total(p.logs, logs)) for p in parts]
    return None


def _weighted(user: fx.Node, weights: fx.Node, value: fx.Node) -> list[_Exponents] | None:
    if sees(user, weights, "aten.exp") and is_float(weights.args[0]):
        return [_Exponents(*_exponent(user, weights.args[0], value))]
    if sees(user, weights, "aten.softmax") and weights.args[1:] == (-1,):
        scores = weights.args[0]
        return [_Exponents(scores, value, {frozenset([scores]): -1})]
    return None


def _exponent(user: fx.Node, x: fx.Node, value: fx.Node | None) -> tuple[fx.Node, fx.Node | None, _Logs]:
    scores, log = difference(user, x)
    if scores is None or log is None or not like(x, scores) or not _is_of_rows(log):
        return x, value, {}
    return scores, value, _total({_key(user, log): -1})


def _factor(user: fx.Node, node: Any) -> _Logs | None:
    """The logarithm of a factor of rows: exp(a - b), sigmoid(a - b) = exp(a - logaddexp(a, b)), 1 - sigmoid(a - b)."""
    if not is_float(node) or not _is_of_rows(node):
        return None
    if sees(user, node, "aten.reshape") and same_shape(shape(node)[:-1], shape(node.args[0])):
        node = node.args[0]
    swapped = False
    if sees(user, node, "aten.add") and node.args[1] == 1 and not node.kwargs and sees(user, node.args[0], "aten.mul"):
        if node.args[0].args[1] != -1 or not sees(user, node.args[0].args[0], "aten.sigmoid"):
            return None
        node, swapped = node.args[0].args[0], True
    if not sees(user, node, "aten.exp", "aten.sigmoid"):
        return None
    a, b = difference(user, node.args[0])
    if a is None or b is None:
        return None
    a, b = (_key(user, b), _key(user, a)) if swapped else (_key(user, a), _key(user, b))
    if sees(user, node, "aten.exp"):
        return _total({a: 1}, {b: -1})
    both = a | b if isinstance(a, frozenset) and isinstance(b, frozenset) else None
    return None if both is None else _total({a: 1}, {both: -1})


def _total(*logs: _Logs) -> _Logs:
    total: Counter[_Log] = Counter()
    for some in logs:
        for log, count in some.items():
            total[log] += count
    return {log: count for log, count in total.items() if count}


def _key(user: fx.Node, log: Any) -> _Log:
    """The scores whose exponents' sum a value is the logarithm of; the value itself if it is none."""
    while sees(user, log, "aten.detach"):
        log = log.args[0]
    return _summed(user, log) or log


def _summed(user: fx.Node, log: Any) -> frozenset[fx.Node] | None:
    if sees(user, log, "aten.reshape") and same_shape(shape(log), [*shape(log.args[0]), 1]):
        log = log.args[0]
    if sees(user, log, "aten.logsumexp"):
        scores, dims = log.args[:2]
        return frozenset([scores]) if [d % rank(scores) for d in dims] == [rank(scores) - 1] else None
    if sees(user, log, "aten.logaddexp"):
        left, right = (_summed(user, a) for a in log.args)
        return None if left is None or right is None else left | right
    return None


def _is_of_rows(node: fx.Node) -> bool:
    return rank(node) > 0 and known_equal(shape(node)[-1], 1)


def _is_maximum(user: fx.Node, log: _Log) -> bool:
    """Whether a value is the largest of some numbers; others may be so large that they absorb the scores."""
    while sees(user, log, "aten.detach", "aten.clamp", "aten.clamp_min"):
        if arguments(log).get("max") is not None:
            return False
        log = log.args[0]
    if not isinstance(log, fx.Node):
        return False
    if sees(user, log, "aten.maximum"):
        return all(_is_maximum(user, a) for a in log.args)
    return is_literal(uniform(log)) or reduction(user, log, "aten.amax", "aten.max") is not None


SOFTMAX_PARTS: tuple[Respelling, ...] = (parts_over_sum, softmaxes_by_their_sums)
