"""Projections of one input, merged into one product.

    linear(x, wq, bq), linear(x, wk, bk), linear(x, wv, bv)         also x @ wq.T + bq, ...
        ->  split(linear(x, cat([wq, wk, wv]), cat([bq, bk, bv])))
    x @ wq, x @ wk, x @ wv
        ->  split(x @ cat([wq, wk, wv], 1))

Examples are query, key and value of an attention, gate and up projection of a gated layer, and keys and values of a
cross attention. Two are merged at a time, until no pair is left. One large product uses a device better than several
small ones, and `x` is read once. A frozen weight is concatenated once; other weights are copied at each call, which is
seldom faster. Both are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.effects import wants_gradient
from ..rewrites.graph import describe, dtype, op_name, rank, shape
from ..rewrites.pattern import choose
from ..rewrites.products import with_other_products
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, as_recorded, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import hint, known_equal, product
from ..rewrites.words import counted
from .packing import only_changing, only_frozen, prepared

NEARBY = 2  # most products between the two: the merged result stays in memory from the first use to the last
MIN_ROWS = 32  # with fewer rows, a product is limited by reading its weights, and copying them takes twice as long
_MERGED = ("aten.linear", "aten.matmul")
_PRODUCTS = (*_MERGED, "aten.scaled_dot_product_attention", "aten.convolution", "aten.conv2d")


def merged(
    x: Any, later: Any, later_bias: Any, weight: Any, bias: Any, *, columns: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """One product, weights and biases concatenated at every call."""
    both, biases = _stacked(weight, later, columns), _biases(weight, bias, later, later_bias, columns)
    return _split(_product(x, both, biases, columns), weight, columns)


def merged_frozen(
    x: Any, later: Any, later_bias: Any, weight: Any, bias: Any, *, columns: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """One product, weights and biases concatenated once."""
    both = prepared(_stacked, weight, later, settings=(columns,))
    biases = prepared(_biases, weight, bias, later, later_bias, settings=(columns,))
    return _split(_product(x, both, biases, columns), weight, columns)


def by_columns(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether the outputs are the columns of the weights, ``x @ w``, not their rows."""
    return dict(match.tags)["weights"] == "columns"


def _product(x: Any, weight: Any, bias: Any, columns: bool) -> torch.Tensor:
    if not columns:
        return F.linear(x, weight, bias)
    return x @ weight if bias is None else x @ weight + bias


def _stacked(weight: Any, later: Any, columns: bool) -> torch.Tensor:
    return torch.cat([weight, later], int(columns))


def _biases(weight: Any, bias: Any, later: Any, later_bias: Any, columns: bool) -> Any:
    """Both biases in one tensor, with zeros for a missing one; None if both are missing."""
    if bias is None and later_bias is None:
        return None
    pairs, dim = ((weight, bias), (later, later_bias)), int(columns)
    parts = [w.new_zeros(w.shape[dim]) if b is None else b for w, b in pairs]
    return torch.cat(parts)


def _split(result: torch.Tensor, weight: Any, columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns of the later product and of the earlier one, in the order of the pattern."""
    width = weight.shape[int(columns)]
    return result[..., width:], result[..., :width]


def _frozen(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """Weights and biases are known at compile time."""
    return only_frozen(*_weights(match))


def _changing(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """A weight or bias is not known, and there are enough rows for the copies to pay."""
    x, rows = match.operands["x"], hint(product(shape(match.operands["x"])[:-1]))
    if rows is not None and rows < MIN_ROWS:
        message = f"with {counted(rows, 'row')}, reading each weight once costs less than copying it (option freezing)"
        return Reason("rows-few", message, (x,), f"{MIN_ROWS} rows, or frozen weights", describe(x))
    return only_changing(*_weights(match))


def _weights(match: Binding) -> list[fx.Node]:
    given = (match.operands.get(n) for n in ("weight", "bias", "later", "later_bias"))
    return [w for w in given if w is not None]


def rows(x: Any) -> Reason | None:
    """The input has rows of floating-point numbers, and another product reads it, which most products lack."""
    if rank(x) < 2:
        return Reason("rank-too-low", "a single row is a vector", (x,), "two or more dims", describe(x))
    if not dtype(x).is_floating_point:
        return Reason("kernel-unavailable", "it is no product of floats", (x,), "floating point", describe(x))
    if sum(op_name(user) in _MERGED for user in x.users) < 2:
        message = f"nothing else is multiplied by {describe(x)}"
        return Reason("output-missing", message, (x,), "another product of the same input", "nothing")
    return None


def trained_apart(match: Binding) -> Reason | None:
    """No gradient flows to the weights: otherwise each step would copy and keep them, and split their gradients."""
    trained = next((w for w in _weights(match) if wants_gradient(w)), None)
    if trained is None:
        return None
    message = f"{describe(trained)} is trained: merging would copy it at every step"
    return Reason("weight-trained", message, (trained,), "weights without gradients", describe(trained))


def matrices(x: Any, weight: Any, later: Any) -> Reason | None:
    """Weights are matrices of the input's dtype; batches of matrices cannot be concatenated."""
    for one in (weight, later):
        if rank(one) != 2 or dtype(one) != dtype(x):
            wanted = f"a matrix of {dtype(x)}".replace("torch.", "")
            return Reason("weight-no-matrix", f"{describe(one)} is no weight", (one,), wanted, describe(one))
    return None


def one_bias_each(match: Binding) -> Reason | None:
    """A bias has one number for each column, so that it can be concatenated like the columns."""
    dim = int(by_columns(match, {}))
    for name in ("", "later_"):
        bias, weight = match.operands.get(f"{name}bias"), match.operands[name.rstrip("_") or "weight"]
        if bias is None:
            continue
        if rank(bias) != 1 or not known_equal(shape(bias)[0], shape(weight)[dim]) or dtype(bias) != dtype(weight):
            wanted = "one number for each column"
            return Reason("bias-broadcasts", f"{describe(bias)} is broadcast", (bias,), wanted, describe(bias))
    return None


def nearby(match: Binding) -> Reason | None:
    """The products are in the order of the pattern, with few products between them."""
    products = [node for node in match.matched if op_name(node) in _MERGED]
    later, first = products[0], products[-1]
    if later <= first:
        return Reason("pair-reversed", "the match begins at the other product of the pair", (later, first))
    node, others = later.prev, 0
    while node is not first and others <= NEARBY:
        others += op_name(node) in _PRODUCTS and node.args[0] is not later.args[0]
        node = node.prev
    if others <= NEARBY:
        return None
    message = f"{describe(first)} stands {others} products before {describe(later)}: merged, it would live as long"
    return Reason("products-apart", message, (later, first), f"at most {NEARBY} products in between")


_BIASES: tuple[dict[str, T], ...] = (
    {"later_bias": T("M"), "bias": T("N")},
    {"later_bias": T("M")},
    {"bias": T("N")},
    {},
)


def _sample(biases: Mapping[str, T], *, frozen: bool, **changes: Any) -> Sample:
    weights = {"x": T("B S K"), "later": T("M K", frozen=frozen), "weight": T("N K", frozen=frozen)}
    given = {n: T(t.dims, gradient=False, frozen=frozen) for n, t in biases.items()}
    weights = {n: T(t.dims, gradient=n == "x", frozen=t.frozen) for n, t in weights.items()}
    tags = {n: "yes" if n in biases else "no" for n in ("later_bias", "bias")} | {"weights": "rows"}
    return Sample(**(weights | given | changes), tags=tags, sizes={"S": 20})


def _columns(sample: Sample, **changes: Any) -> Sample:
    """The same product with transposed weights."""
    turned = {n: replace(sample.operands[n], dims=f"K {side}") for n, side in (("later", "M"), ("weight", "N"))}
    refused = changes.pop("refused", "")
    operands = sample.operands | turned | changes
    return Sample(**operands, tags=sample.tags | {"weights": "columns"}, sizes=sample.given_sizes, refused=refused)


@register_pattern(
    "merged_linear",
    family="product",
    replacement=[Candidate("merged_frozen", merged_frozen, _frozen), Candidate("merged", merged, _changing)],
    samples=[_sample(biases, frozen=frozen) for frozen in (True, False) for biases in _BIASES]
    + [_columns(_sample(biases, frozen=frozen)) for frozen in (True, False) for biases in (_BIASES[0], _BIASES[3])]
    + [
        _columns(_sample({}, frozen=False), later=T("B K M"), weight=T("B K N"), refused="weight-no-matrix"),
        Sample(x=T("K"), later=T("M K"), weight=T("N K"), tags={"later_bias": "no", "bias": "no"},
               refused="rank-too-low"),
        Sample(x=T("S K", dtype=torch.int64), later=T("M K", dtype=torch.int64), weight=T("N K", dtype=torch.int64),
               tags={"later_bias": "no", "bias": "no"}, refused="kernel-unavailable"),
        Sample(x=T("S K"), later=T("M K"), weight=T("N K"), tags={"later_bias": "no", "bias": "no"},
               refused="rows-few"),
        Sample(x=T("S K"), later=T("M K"), later_bias=T("1 1"), weight=T("N K"), tags={"bias": "no"},
               refused="bias-broadcasts"),
    ],
    guards=(rows, matrices, trained_apart, one_bias_each, nearby),
    derived={"columns": by_columns},
    numerics=Numerics(slack=4.0),
    spell=lambda declaration: with_other_products(as_recorded(declaration)),
    advice={
        "weight-trained": "it is for inference: turn gradients of the weights off",
    },
)  # fmt: skip
def merged_linear(x: Any, later: Any, later_bias: Any, weight: Any, bias: Any) -> Any:
    """linear(x, later, later_bias) after linear(x, weight, bias), or x @ w; biases are optional."""

    def product(name: str, w: Any, b: Any) -> Any:
        return choose(
            "weights",
            rows=lambda: choose(name, yes=lambda: F.linear(x, w, b), no=lambda: F.linear(x, w)),
            columns=lambda: choose(name, yes=lambda: torch.matmul(x, w) + b, no=lambda: torch.matmul(x, w)),
        )

    return product("later_bias", later, later_bias), product("bias", weight, bias)
