"""Gates, as activations are written by hand: x * (1 + erf(x * c)) / 2, x * (1 + tanh(p(x))) / 2, x * sigmoid(x).

Cubic polynomials have one spelling, as do the error function and related functions. A gate is multiplied by its own
input first:

    u * x * sigmoid(x)                          ->   (x * sigmoid(x)) * u
    tanh(0.79788 * x * (1 + 0.044715 * x * x))  ->   tanh((x + pow(x, 3) * 0.044715) * 0.79788)
    x * sigmoid(2 * p(x))                       ->   x * ((tanh(p(x)) + 1) * 0.5)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, is_tensor, op_name, sees
from ...rewrites.respell import Respelling, respelling
from . import builders
from .analysis import is_float, is_literal, like
from .scale import scale_of

aten = torch.ops.aten

_CUBE = 0.044715  # of the polynomial whose tanh stands for the error function
_MOST_TERMS = 12  # of a polynomial that is read: bounds the time of compiling

Polynomial = dict[int, float]  # the coefficient of each power


@respelling("aten.tanh", "aten.sigmoid")
def cubic(node: fx.Node, edit: Editor) -> fx.Node | None:
    """tanh(x * (a + b * x * x)), however written  ->  tanh(mul(add(x, mul(pow(x, 3), b / a)), a)), for GELU's b / a.

    sigmoid(2 * p)  ->  mul(add(tanh(p), 1), 0.5)
    """
    argument, sigmoid = node.args[0], op_name(node) == "aten.sigmoid"
    x = _variable(node, argument)
    found = None if x is None else _polynomial(node, argument, x, [0])
    if x is None or found is None or set(found) != {1, 3} or found[1] == 0 or not like(node, x):
        return None
    ratio, slope = found[3] / found[1], found[1] / (2 if sigmoid else 1)
    if not math.isclose(ratio, _CUBE, rel_tol=1e-6) or (not sigmoid and _is_settled(node, argument, x)):
        return None
    cube = builders.scaled(edit, edit.call(aten.pow.Tensor_Scalar, x, 3), _CUBE)
    tanh = edit.call(aten.tanh.default, builders.scaled(edit, edit.call(aten.add.Tensor, x, cube), slope))
    return builders.scaled(edit, edit.call(aten.add.Tensor, tanh, 1), 0.5) if sigmoid else tanh


def _is_settled(user: fx.Node, argument: Any, x: fx.Node) -> bool:
    """Whether an argument of tanh is ``mul(add(x, mul(pow(x, 3), c)), a)``."""
    total: Any = argument.args[0] if sees(user, argument, "aten.mul") else None
    if not sees(user, total, "aten.add") or total.args[0] is not x or not sees(user, total.args[1], "aten.mul"):
        return False
    cube = total.args[1].args[0]
    return sees(user, cube, "aten.pow") and cube.args[0] is x


def _variable(user: fx.Node, node: Any) -> fx.Node | None:
    """The only tensor in the sums, products and powers of a value; None if there are several."""
    found, todo, seen = None, [node], 0
    while todo:
        n, seen = todo.pop(), seen + 1
        if is_literal(n):
            continue
        if seen > 4 * _MOST_TERMS or not is_float(n):
            return None
        if sees(user, n, "aten.add", "aten.mul", "aten.pow") and dtype(n) == dtype(user):
            todo.extend(n.args)
        elif found is None or n is found:
            found = n
        else:
            return None
    return found


def _polynomial(user: fx.Node, node: Any, x: fx.Node, count: list[int]) -> Polynomial | None:
    """A value as a polynomial of `x`, of the third power at most."""
    count[0] += 1
    if node is x or is_literal(node):
        return {1: 1.0} if node is x else {0: float(node)}
    if count[0] > _MOST_TERMS or not isinstance(node, fx.Node) or len(node.args) != 2 or node.kwargs:
        return None
    a, b = node.args
    if op_name(node) == "aten.pow":
        base = _polynomial(user, a, x, count)
        return _power(base, b) if base is not None and b in (2, 3) else None
    left, right = _polynomial(user, a, x, count), _polynomial(user, b, x, count)
    if left is None or right is None:
        return None
    result = _summed(left, right) if op_name(node) == "aten.add" else _multiplied(left, right)
    return result if result and max(result) <= 3 else None


def _summed(a: Polynomial, b: Polynomial) -> Polynomial:
    return {power: a.get(power, 0.0) + b.get(power, 0.0) for power in a | b}


def _multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for p, left in a.items():
        for q, right in b.items():
            result[p + q] = result.get(p + q, 0.0) + left * right
    return result


def _power(base: Polynomial, exponent: float) -> Polynomial | None:
    result = base
    for _ in range(int(exponent) - 1):
        result = _multiplied(result, base)
    return result if max(result) <= 3 else None


@respelling("aten.special_ndtr")
def normal_distribution(node: fx.Node, edit: Editor) -> fx.Node | None:
    """special.ndtr(x)  ->  mul(add(erf(mul(x, sqrt(0.5))), 1), 0.5)."""
    x = node.args[0]
    if not is_float(x):
        return None
    return builders.scaled(edit, edit.call(aten.add.Tensor, _erf(edit, x, math.sqrt(0.5)), 1), 0.5)


@respelling("aten.erfc")
def complement_of_erf(node: fx.Node, edit: Editor) -> fx.Node | None:
    """erfc(mul(x, -s))  ->  add(erf(mul(x, s)), 1)."""
    x = node.args[0]
    factor = scale_of(x) if sees(node, x, "aten.mul") else None
    if not is_literal(factor) or factor >= 0:
        return None
    return edit.call(aten.add.Tensor, _erf(edit, x.args[0], -factor), 1)


def _erf(edit: Editor, x: fx.Node, factor: float) -> fx.Node:
    return edit.call(aten.erf.default, builders.scaled(edit, x, factor))


@respelling("aten.add")
def common_factor(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(mul(erf(y), 0.5), 0.5)  ->  mul(add(erf(y), 1), 0.5);  add(mul(x, erf(y)), x)  ->  mul(x, add(erf(y), 1))."""
    if node.kwargs or not is_float(node):
        return None
    for term, other in (node.args[:2], node.args[1::-1]):
        if not sees(node, term, "aten.mul") or not like(node, term):
            continue
        for a, b in (term.args, term.args[::-1]):
            if _is_step(node, a) and like(node, a) and _same(node, b, other):
                gate = edit.call(aten.add.Tensor, a, 1)
                return builders.scaled(edit, gate, b) if is_literal(b) else edit.call(aten.mul.Tensor, b, gate)
    return None


def _is_step(user: fx.Node, node: Any) -> bool:
    return sees(user, node, "aten.erf", "aten.tanh")


def _same(user: fx.Node, a: Any, b: Any) -> bool:
    """Whether two values are one: the same number or node, or the same multiple of one."""
    if is_literal(a) and is_literal(b):
        return a == b
    if a is b:
        return True
    scaled = all(sees(user, n, "aten.mul") and is_literal(n.args[1]) for n in (a, b))
    return scaled and a.args[0] is b.args[0] and a.args[1] == b.args[1]


@respelling("aten.mul")
def own_gate(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(mul(u, x), sigmoid(x))  ->  mul(mul(x, sigmoid(x)), u); other gates likewise, and numbers stay with x.

    mul(mul(x, 0.5), mul(sigmoid(x), 2))  ->  mul(x, sigmoid(x));  mul(mul(u, sigmoid(x)), x) likewise
    """
    for product, x in (node.args, node.args[::-1]):
        if not sees(node, product, "aten.mul") or not like(node, product):
            continue
        for gate, factor in (product.args, product.args[::-1]):
            if is_tensor(factor) and factor is not x and is_tensor(gate) and _is_gate_of(node, gate, x):
                return edit.call(aten.mul.Tensor, edit.call(aten.mul.Tensor, x, gate), factor)
    for gate, rest in ((node.args[1], node.args[0]), (node.args[0], node.args[1])):
        x = _gated(node, gate)
        if x is None or not like(node, gate) or not like(node, x):
            continue
        factors, number = _factors(node, rest)
        twice = sees(node, gate, "aten.mul") and sees(node, gate.args[0], "aten.sigmoid")
        if x not in factors or (len(factors) < 2 and not twice):
            continue
        factors.remove(x)
        if twice:
            gate, number = gate.args[0], number * gate.args[1]
        result = builders.scaled(edit, edit.call(aten.mul.Tensor, x, gate), number)
        for factor in factors:
            result = edit.call(aten.mul.Tensor, result, factor)
        return result
    return None


def _is_gate_of(user: fx.Node, gate: fx.Node, x: Any) -> bool:
    return like(user, gate) and like(user, x) and _gated(user, gate) is x


def _factors(user: fx.Node, product: Any) -> tuple[list[fx.Node], float]:
    """The factors of a product: tensors of the type of `user`, in order, and the numbers among them as one."""
    if is_literal(product):
        return [], product
    if not sees(user, product, "aten.mul") or dtype(product) != dtype(user):
        return [product], 1
    (left, a), (right, b) = (_factors(user, f) for f in product.args)
    return left + right, a * b


def _gated(user: fx.Node, gate: Any) -> fx.Node | None:
    """`x` of sigmoid(x), tanh(softplus(x)), and of one plus the erf or tanh of a multiple or cubic of x."""
    if sees(user, gate, "aten.tanh") and sees(user, gate.args[0], "aten.softplus"):
        return gate.args[0].args[0]
    while sees(user, gate, "aten.mul") and is_literal(gate.args[1]):
        gate = gate.args[0]
    if sees(user, gate, "aten.sigmoid"):
        return gate.args[0]
    if not sees(user, gate, "aten.add") or gate.args[1] != 1 or not _is_step(user, gate.args[0]):
        return None
    argument = gate.args[0].args[0]
    return _variable(gate, argument)


GATES: tuple[Respelling, ...] = (cubic, normal_distribution, complement_of_erf, common_factor, own_gate)
