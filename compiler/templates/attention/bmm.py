"""The product of queries and keys: a product alone, or a call that also adds a bias and multiplies with factors.

%s = mm(%a, %b), bmm(%a, %b)                               raw product: the call's own value
%s = baddbmm(%bias, %a, %b, beta=0.5, alpha=0.125)         raw product * 0.125 + %bias * 0.5, which `Formulas` computes
"""

from __future__ import annotations

from typing import Any

from torch import fx

from ..common.formula import is_biased_product, packet, product_factors, raw_product

PRODUCTS = ("aten.bmm", "aten.mm")
"""What multiplies and does nothing else."""


def is_product(node: Any) -> bool:
    """Whether the node may compute scores."""
    return packet(node) in PRODUCTS or is_biased_product(node)


def is_batched(product: fx.Node) -> bool:
    """Whether a product has a batch dim."""
    return packet(product) == "aten.bmm" or is_biased_product(product)


def operands(product: fx.Node) -> tuple[Any, Any]:
    """The operands of a product."""
    left, right = product.args[1:3] if is_biased_product(product) else product.args[:2]
    return left, right


def factor(product: fx.Node) -> float:
    """The factor of the product in a call."""
    return product_factors(product)[1] if is_biased_product(product) else 1.0


def computed(product: fx.Node) -> tuple[fx.Node, ...]:
    """The call itself, if its value is more than the raw product and must be computed from it."""
    return (product,) if is_biased_product(product) else ()


def raw_name(product: fx.Node) -> str:
    """The name of the buffer from which formulas read the raw product."""
    return raw_product(product) if is_biased_product(product) else product.name
