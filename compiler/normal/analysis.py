"""Properties of values that several respellings use: is a value a number, a constant, scores, or probabilities?

Nothing here changes a graph or adds a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import fx

from ...rewrites.facts import Uniform, fact_of
from ...rewrites.graph import arguments, dtype, is_number, is_tensor, op_name, rank, sees, shape, val
from ...rewrites.moves import ALIASES, COPIES, CUTS, EXPANDS, REORDERS, RESHAPES
from ...rewrites.purity import is_pure, is_random
from ...rewrites.symbolic import known_equal, same_shape

Number = int | float
Factor = Any  # a Python number, a symbolic number, a node with such a number, or a node with a 0-d tensor

VIEWS = ("aten.permute", "aten.reshape", "aten.expand")

CASTS = ("aten.to", "aten._to_copy", "aten.type_as")

# Elementwise operations that may occur between scores and softmax, or between probabilities and their product.
UNARY = (
    "aten.tanh", "aten.neg", "aten.exp", "aten.clamp", "aten.clamp_min", "aten.clamp_max", "aten.relu", "aten.sigmoid",
    "aten.nan_to_num", "aten.abs", "aten.sqrt", "aten.square",
)  # fmt: skip
BINARY = ("aten.add", "aten.sub", "aten.rsub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum")
SELECT = ("aten.where", "aten.masked_fill")
DROPOUT = ("aten.dropout", "aten.native_dropout")
POINTWISE = (*UNARY, *BINARY, *SELECT, *CASTS)
# Searches may find views before `views.py` turns them into one of VIEWS.
CHAIN = RESHAPES | REORDERS | EXPANDS | CUTS | ALIASES | COPIES | {*POINTWISE, *DROPOUT}

_DEEPEST = 12  # operators of two values that are compared

PRODUCTS = ("aten.matmul", "aten.bmm", "aten.baddbmm", "aten.einsum")
SOFTMAXES = ("aten.softmax", "aten._softmax", "aten.special_softmax", "aten._safe_softmax")


def is_literal(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a plain Python number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_scalar(value: Any) -> bool:
    """Whether a value scales a whole tensor: a number of any kind, or a tensor of one element."""
    return is_number(value) or (is_tensor(value) and all(known_equal(s, 1) for s in shape(value)))


def is_float(node: Any) -> bool:
    """Whether a node is a tensor of a real floating type."""
    return is_tensor(node) and dtype(node).is_floating_point


def is_bool(node: Any) -> bool:
    """Whether a node is a boolean tensor."""
    return is_tensor(node) and dtype(node) == torch.bool


def like(node: fx.Node, other: Any) -> bool:
    """Whether two tensor nodes have equal shape, dtype and device, for all values of their symbols."""
    if not is_tensor(node) or not is_tensor(other):
        return False
    a, b = val(node), val(other)
    return a.dtype == b.dtype and a.device == b.device and same_shape(a.shape, b.shape)


def same_value(a: Any, b: Any, depth: int = _DEEPEST) -> bool:
    """Whether two values are known to be equal: the same node, the same constant, or the same pure calls of equals.

    Calls are compared down to `depth` operators.
    """
    if a is b:
        return True
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        if uniform(a) is not None and uniform(a) == uniform(b) and like(a, b):
            return True
        return depth > 0 and _may_be_compared(a, b) and same_value(a.args, b.args, depth - 1)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_value(x, y, depth) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and isinstance(a, (int, float, str, torch.dtype, torch.device)) and a == b


def _may_be_compared(a: fx.Node, b: fx.Node) -> bool:
    """Whether two nodes are calls of one pure operator that give equal values for equal operands."""
    if a.target is not b.target or "opaque" in a.meta or "opaque" in b.meta or a.op != "call_function":
        return False
    return is_pure(a) and not is_random(a) and a.kwargs == b.kwargs and a.meta.get("region") == b.meta.get("region")


def last(node: fx.Node, dim: Any) -> bool:
    """Whether `dim` names the last dimension of `node`."""
    return isinstance(dim, int) and dim in (-1, rank(node) - 1)


def uniform(value: Any) -> Number | None:
    """The number that all elements of a value are known to equal, or None; booleans are 0 and 1.

    full([2, 3], -inf), expand(scalar_tensor(-inf), ...), zeros(...) * 2 + 1, arange(s) < s   ->   the number
    """
    if is_tensor(value):
        fact = fact_of(value)
        value = fact.number if isinstance(fact, Uniform) else None
    if isinstance(value, bool):
        return int(value)
    return value if is_literal(value) else None


def factor_of(value: Any) -> Factor | None:
    """`value` as a factor: a plain number if it is known, or else the value itself if it is a scalar, or else None."""
    known = uniform(value)
    if known is not None:
        return known
    return value if is_scalar(value) and not _is_deviation(value) else None


def _is_deviation(value: Any) -> bool:
    """Whether a value is ``sqrt(statistics + eps)`` or its inverse: a norm's, which of a lone row has one element."""
    root = is_tensor(value) and rank(value) > 0 and op_name(value) in ("aten.sqrt", "aten.rsqrt")
    return root and op_name(value.args[0]) == "aten.add"


def is_statistic(value: Any) -> bool:
    """Whether a value is a mean of rows, or the inverse root of one plus a number."""
    if sees(None, value, "aten.rsqrt") and sees(None, value.args[0], "aten.add"):
        value = value.args[0].args[0]
    return sees(None, value, "aten.mean") and bool(arguments(value).get("keepdim"))


def holds_product(node: Any) -> bool:
    """Whether a value is scores: elementwise operations and views of a batched product of two computed values."""
    return _reaches(node, "holds_product", _is_batched_product)


def is_scaled_product(node: Any) -> bool:
    """Whether a value is a batched product itself, or a scalar multiple, cast or permutation of one.

    The permutation must be one of batch dims, or swap the two operands of the product.
    """
    while isinstance(node, fx.Node) and "opaque" not in node.meta:
        if _is_batched_product(node):
            return True
        if op_name(node) not in ("aten.mul", "aten.div", "aten.permute", *CASTS) or (
            len(node.args) > 1 and is_tensor(node.args[1])
        ):
            return False
        if op_name(node) == "aten.permute" and not _within_product(node.args[1]):
            return False
        node = node.args[0]
    return False


def _within_product(order: Sequence[int]) -> bool:
    """Whether a permutation keeps the last dim, or exchanges it with the one before it."""
    n, last_two = len(order), [d % len(order) for d in order[-2:]]
    return last_two[-1] == n - 1 or last_two == [n - 1, n - 2]


def directness(node: Any) -> int:
    """How directly a term of a sum is scores: 2 for a scaled product, 1 for a term that contains one, 0 for a bias."""
    return 2 if is_scaled_product(node) else int(holds_product(node))


def holds_softmax(node: Any) -> bool:
    """Whether a value is probabilities: elementwise operations, dropout and views of a softmax."""
    return _reaches(node, "holds_softmax", lambda n: op_name(n) in SOFTMAXES)


def _is_batched_product(node: fx.Node) -> bool:
    name = op_name(node)
    if name not in PRODUCTS:
        return False
    if name == "aten.einsum":
        return len(node.args[1]) == 2 and all(rank(x) >= 3 for x in node.args[1])
    operands = node.args[1:3] if name == "aten.baddbmm" else node.args[:2]
    return all(is_tensor(x) and rank(x) >= 3 for x in operands)


def _reaches(node: Any, memo: str, found: Callable[[fx.Node], bool]) -> bool:
    """Search depth-first through `CHAIN`; the result is cached in the metadata of the node until the next sweep."""
    if not isinstance(node, fx.Node):
        return False
    memos = node.meta.setdefault("memo", {})
    if memo not in memos:
        memos[memo] = found(node) or (
            op_name(node) in CHAIN
            and "opaque" not in node.meta
            and any(_reaches(n, memo, found) for n in node.all_input_nodes if is_tensor(n))
        )
    return memos[memo]


def reduction(user: fx.Node, node: Any, *names: str) -> tuple[fx.Node, int] | None:
    """(input, dim) if `node` is one of the reductions `names` over one dim, which is kept as size 1; else None.

    sum(x, [d], keepdim=True)   or   reshape(sum(x, [d]), [..., 1, ...])   ->   (x, d)
    """
    inner = node.args[0] if sees(user, node, "aten.reshape", "aten.unsqueeze", "aten.view") else node
    if op_name(inner) == "getitem" and inner.args[1] == 0:
        inner = inner.args[0]
    if not sees(user, inner, *names) or not is_tensor(inner.args[0]):
        return None
    x, dims = inner.args[0], arguments(inner).get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    if rank(x) == 0 or not isinstance(dims, (list, tuple)) or len(dims) != 1:
        return None
    if arguments(inner).get("dtype") not in (None, dtype(x)):
        return None
    dim = dims[0] % rank(x)
    kept = [1 if d == dim else s for d, s in enumerate(shape(x))]
    return (x, dim) if same_shape(shape(node), kept) else None
