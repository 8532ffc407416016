"""Matrix products, padded with zeros to sizes for which a device has fast kernels.

    linear(x, weight, bias)   ->   slice(linear(pad(x), pad(weight), pad(bias)))        mm, addmm and bmm alike

Tensor cores, and to a lesser degree vector units, need each row of a matrix to begin at a multiple of 16 bytes;
otherwise slower kernels run. The vocabulary of BERT, with 30522 words, is the known example. A frozen weight is padded
once. Padding an input costs a copy, and so does a result that must be dense: measurements include both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, op_name, promised, rank, val
from ..rewrites.layout import ALIGNED, is_kernel, missing
from ..rewrites.moves import RESHAPES, VIEWS
from ..rewrites.pattern import Call, Term, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, register_pattern
from ..rewrites.sample import Sample, T
from .linear import bias_per_column
from .packing import is_frozen, prepared

MOST = 1.25  # largest ratio of the work of a product after padding to its work before
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MOVES = VIEWS | RESHAPES | {"getitem"}

Sizes = tuple[int, int, int]  # rows, columns and inner size of a product, or the padding of each


def padded(x: Any, weight: Any, bias: Any, *, dense: bool, constant: bool, bytes_: int) -> torch.Tensor:
    """The product of padded operands, without the padding of the result; without gaps in memory if `dense`."""
    rows, columns, inner = added(x, weight, bytes_)
    prepare = prepared if constant else _at_each_call
    wide = prepare(_padded, weight, settings=(columns, inner) if weight.dim() == 2 else (inner, columns))
    x = _padded(x, rows, inner)
    if weight.dim() == 3:
        y = torch.bmm(x, wide)
    else:
        y = F.linear(x, wide, bias if bias is None else prepare(_padded, bias, settings=(columns,)))
    y = y[..., : y.shape[-2] - rows, : y.shape[-1] - columns]
    return y.clone(memory_format=torch.contiguous_format) if dense else y


def _padded(x: torch.Tensor, *more: int) -> torch.Tensor:
    """`x` with zeros after the end of its last dims."""
    if not any(more):
        return x
    return torch.constant_pad_nd(x, [pad for n in reversed(more) for pad in (0, n)])


def _at_each_call(function: Any, x: torch.Tensor, *, settings: tuple[int, ...]) -> torch.Tensor:
    return function(x, *settings)


def added(x: Any, weight: Any, bytes_: int) -> Sizes:
    """The padding of rows, columns and inner size that makes rows in memory multiples of `bytes_`.

    Rows that are aligned to 16 bytes are not padded. The number of rows matters only if they are contiguous in memory.
    """
    sizes = _aligned_sizes(x, weight)
    return tuple(0 if s is None else missing(s, x.dtype.itemsize, bytes_) for s in sizes)  # type: ignore[return-value]


def _aligned_sizes(x: torch.Tensor, weight: torch.Tensor) -> tuple[Any, Any, Any]:
    """Rows, columns and inner size; None for the rows if their number does not matter."""
    side_by_side = x.dim() == weight.dim() and x.stride(-1) != 1 and x.stride(-2) == 1
    return x.shape[-2] if side_by_side else None, weight.shape[0 if weight.dim() == 2 else -1], x.shape[-1]


def needed_dense(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether the result, or a view of it, is returned or read by a kernel that relies on its strides."""
    return _read_dense(match.matched[0])


def _read_dense(node: fx.Node) -> bool:
    return any(
        (user.op == "output" and node in promised(user))
        or is_kernel(user)
        or (op_name(user) in _MOVES and _read_dense(user))
        for user in node.users
    )


def known_before(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether weight and bias are frozen, so that they are padded once."""
    given = (match.operands.get(n) for n in ("weight", "bias"))
    return all(is_frozen(w) for w in given if w is not None)


def grows_little(match: Binding, policy: Mapping[str, str], bytes_: int) -> Reason | None:
    """Padding increases the work of the product only a little."""
    x, weight = match.operands["x"], match.operands["weight"]
    growth = 1.0
    for size, more in zip(_aligned_sizes(val(x), val(weight)), added(val(x), val(weight), bytes_), strict=True):
        growth *= 1 + more / size if more else 1
    if growth <= MOST:
        return None
    message = f"padding would make the product {growth:.2f} times as large"
    return Reason("mostly-padding", message, (x, weight), f"at most {MOST}", f"{growth:.2f}")


def supported(x: Any, weight: Any) -> Reason | None:
    """The operands are rows and a matrix, or batches of matrices, of a dtype that needs alignment."""
    if dtype(x) not in _DTYPES or dtype(weight) != dtype(x):
        wanted = "one of float16, bfloat16, float32"
        return Reason("kernel-unavailable", f"padding is not for {describe(x)}", (x, weight), wanted, describe(x))
    if rank(x) < 2 or rank(weight) not in (2, 3):
        return Reason("rank-too-low", "it is no product of matrices", (x, weight))
    return None


def static(x: Any, weight: Any) -> Reason | None:
    """Sizes are known and positive, so that the padding is known."""
    sizes = [s for s in _aligned_sizes(val(x), val(weight)) if s is not None]
    symbolic = next((s for s in sizes if type(s) is not int), None)
    if symbolic is not None:
        return Reason("size-symbolic", f"size {symbolic} may differ between calls", (x,), "fixed sizes", describe(x))
    if 0 in sizes:
        return Reason("empty", "the product is empty", (x, weight))
    return None


def misaligned(x: Any, weight: Any) -> Reason | None:
    """A row does not begin at a multiple of 16 bytes."""
    if any(added(val(x), val(weight), ALIGNED)):
        return None
    return Reason("already-aligned", "every row begins at a multiple of 16 bytes", (x, weight), "a size to pad")


def _candidate(bytes_: int) -> Candidate:
    return Candidate(f"to_{bytes_}_bytes", partial(padded, bytes_=bytes_), partial(grows_little, bytes_=bytes_))


def _samples() -> Iterator[Sample]:
    yield Sample(x=T("20 125"), weight=T("61 125", frozen=True), bias=T("61"), tags={"product": "linear_bias"})
    yield Sample(x=T("B S 125"), weight=T("61 125"), tags={"product": "linear"})
    yield Sample(x=T("B 50 125"), weight=T("B 125 61"), tags={"product": "bmm"})
    linear = {"product": "linear"}
    yield Sample(x=T("20 64"), weight=T("64 64"), tags=linear, refused="already-aligned")
    yield Sample(x=T("20 125"), weight=T("2 125"), tags=linear, refused="mostly-padding")
    yield Sample(x=T("20 125"), weight=T("0 125"), tags=linear, refused="empty")
    yield Sample(x=T("125"), weight=T("61 125"), tags=linear, refused="rank-too-low")
    biased = {"product": "linear_bias"}
    yield Sample(x=T("20 125"), weight=T("61 125"), bias=T("1"), tags=biased, refused="bias-broadcasts")
    yield Sample(x=T("20 125"), weight=T("61 125"), bias=T("20 1"), tags=biased, refused="bias-broadcasts")
    whole = torch.float64
    yield Sample(x=T("20 125", dtype=whole), weight=T("61 125", dtype=whole), tags=linear, refused="kernel-unavailable")


@register_pattern(
    "padded_product",
    family="padding",
    stage="lowered",
    replacement=[_candidate(ALIGNED), _candidate(128)],
    samples=list(_samples()),
    guards=(supported, static, bias_per_column, misaligned),
    derived={"dense": needed_dense, "constant": known_before},
    numerics=Numerics(slack=4.0),
)
def padded_product(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias, with bias optional, or a batch of products x @ weight."""
    return choose(
        "product",
        linear_bias=lambda: F.linear(x, weight, bias),
        linear=lambda: F.linear(x, weight),
        bmm=lambda: Call("aten.bmm", (x, weight)) if isinstance(x, Term) else torch.bmm(x, weight),
    )
