"""The product of queries and keys, as it is called: alone, or in one call with a bias and factors.

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
    """Whether scores may be made here."""
    return packet(node) in PRODUCTS or is_biased_product(node)


def is_batched(product: fx.Node) -> bool:
    """Whether a product is one for each batch."""
    return packet(product) == "aten.bmm" or is_biased_product(product)


def operands(product: fx.Node) -> tuple[Any, Any]:
    """The operands of a product."""
    left, right = product.args[1:3] if is_biased_product(product) else product.args[:2]
    return left, right


def factor(product: fx.Node) -> float:
    """The factor of the product in a call."""
    return product_factors(product)[1] if is_biased_product(product) else 1.0


def computed(product: fx.Node) -> tuple[fx.Node, ...]:
    """The call itself, where its value is more than the raw product: to be computed of that."""
    return (product,) if is_biased_product(product) else ()


def raw_name(product: fx.Node) -> str:
    """The buffer that formulas read the raw product from."""
    return raw_product(product) if is_biased_product(product) else product.name
