"""Weights of which a byte holds two: a step over bytes instead of elements, its low halves and its high ones apart.

b[k, j] = w[j, k // 2] & 15 if k % 2 == 0 else w[j, k // 2] >> 4
    ->   for t < depth / 2:   low[t, j] = w[j, t] & 15;   high[t, j] = w[j, t] >> 4;   k = 2 t, 2 t + 1

Each byte is then loaded once, with its neighbours, and no element asks which of the two it is.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.index.index import Var, add, mul
from ...ir.value import Const, Number, Op, Rewriter, Value, substitute
from .description import Product, Prologue


def halves(product: Product) -> tuple[Product, dict[str, Prologue]] | None:
    """The product over bytes, its right operands being their low halves, and what the high ones are, by operand.

    Returns:
        None where the right operands are not such halves. Operands are called ``"b"`` and ``"c"`` (`Product.other`).
    """
    if product.step is None or product.depth % 2 or product.left is not None or product.right is None:
        return None
    if (product.other is None) != (product.also is None):
        return None
    step = Var("t", product.depth // 2)
    given = {"b": product.right} | ({} if product.also is None else {"c": product.also})
    low = {name: _half(prologue, product.step, step, 0) for name, prologue in given.items()}
    high = {name: _half(prologue, product.step, step, 1) for name, prologue in given.items()}
    if None in low.values() or None in high.values():
        return None
    made = replace(product, depth=product.depth // 2, step=step, right=low["b"], also=low.get("c"))
    return made, {name: prologue for name, prologue in high.items() if prologue is not None}


def _half(prologue: Prologue, step: Var, bytes_step: Var, which: int) -> Prologue | None:
    """The elements at even places, or at odd ones; None where no choice between the two vanishes."""
    chosen = []

    def fold(value: Value) -> Value | None:
        if not isinstance(value, Op) or value.name != "where":
            return None
        condition = value.args[0]
        if not isinstance(condition, Op) or condition.name != "eq":
            return None
        place, wanted = condition.args
        if not isinstance(place, Number) or not isinstance(place.index, int) or not isinstance(wanted, Const):
            return None
        chosen.append(value)
        return value.args[1 if place.index == wanted.number else 2]

    value = Rewriter(fold)(substitute(prologue.value, {step: add(mul(2, bytes_step.index()), which)}))
    return replace(prologue, value=value) if chosen else None
