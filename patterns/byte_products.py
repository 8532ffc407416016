"""Products of bytes that a program computes in wider numbers, as quantized linear layers are written.

    linear((to(x) - z) * s, to(w) * t, bias)   ->   (int_mm(x, w.T) + (offset - z) * sum(w)) * s * t + bias

`x` and `w` hold 8 bits; `z` is zero or the zero point of `x`, `s` and `t` are scales that are constant along the depth.
The dequantized weight may be rounded to the dtype of `x`, as it is where scales are float64. Sums of products of bytes
are exact in 32 bits, where float32 rounds them; processors multiply bytes several times as fast (VNNI), and no
dequantized copy of the weight is written. Unsigned bytes become signed ones by an offset of 128.
Integers that were bytes, `x.int() @ w.int()`, are multiplied in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, is_tensor, op_name, rank, shape, val
from ..rewrites.pattern import Call, Term, cast, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import hint, known, known_equal, product
from ..rewrites.words import counted
from .dtypes import result_dtype
from .linear import overlaps

BYTES = (torch.int8, torch.uint8)
DEEPEST = 1 << 16  # longest sums of products of two bytes and their zero points that stay in 32 bits
FEWEST_ROWS = 4  # fewest rows for which sums of the rows of the weight pay
_OFFSET = 128  # from signed bytes to unsigned ones
_WIDE = (torch.float32, torch.float64)
_HOLD_BYTES = (torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, *_WIDE)


def in_bytes(  # noqa: PLR0913 - the operands of the pattern
    x: Any, zero: Any, shift: Any, scale: Any, factor: Any, weight: Any, weight_zero: Any, weight_shift: Any,
    weight_scale: Any, weight_factor: Any, bias: Any, kind: Any, dims: Any, *,
    result: torch.dtype, turned: bool,
) -> torch.Tensor:  # fmt: skip
    """The product in 32 bits, then scales and bias."""
    wide = torch.float32 if result in (torch.float16, torch.bfloat16) else result
    rows, more = as_signed(x, zero if shift is None else shift, wide)
    weight = weight.t() if turned else weight
    columns, more_columns = as_signed(weight, weight_zero if weight_shift is None else weight_shift, wide)
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    sums = torch.ops.aten._int_mm(flat, columns.t()).reshape(*rows.shape[:-1], columns.shape[0])
    of_rows = None if more_columns is None else rows.sum(-1, keepdim=True, dtype=torch.int32)
    sums = with_zero_points(converted(sums, wide), columns, more, more_columns, of_rows, rows.shape[-1])
    sums = scaled(sums, scale, factor, weight_scale, weight_factor)
    sums = converted(sums if bias is None else sums + converted(bias, wide), result)
    return sums if dims is None else sums.reshape([*dims[:-1], sums.shape[-1]])


def with_zero_points(
    sums: torch.Tensor, columns: torch.Tensor, more: Any, more_columns: Any, of_rows: Any, depth: int
) -> torch.Tensor:
    """Sums over a depth of bytes to which `more` was to be added, and `more_columns` to those of the weight.

    `columns` is the weight, the depth last, and `of_rows` the sums of the left operand.
    """
    wide = sums.dtype
    if more is not None:
        sums = sums + more * converted(columns.sum(-1, dtype=torch.int32), wide)
    if more_columns is not None:
        of_rows = converted(of_rows, wide)
        of_rows = of_rows if more is None else of_rows + more * depth
        sums = _outer_added(sums, _for_columns(more_columns), of_rows)
    return sums


def scaled(sums: torch.Tensor, scale: Any, factor: Any, weight_scale: Any, weight_factor: Any) -> torch.Tensor:
    """Sums times their scales, tensors of which that of the weight has one for each column."""
    wide = sums.dtype
    for number in (scale, factor, _for_columns(weight_scale), weight_factor):
        if number is not None:
            sums = sums * _poisoned(converted(number, wide))
    return sums


def _outer_added(sums: torch.Tensor, of_columns: Any, of_rows: torch.Tensor) -> torch.Tensor:
    """`sums + of_columns * of_rows`, by one operation, so that no kernel writes the outer product."""
    if isinstance(of_columns, torch.Tensor) and sums.is_floating_point():
        return torch.addcmul(sums, of_rows, of_columns)
    return sums + of_columns * of_rows


def _for_columns(number: Any) -> Any:
    """A number for each row of the weight, as one for each column of the product."""
    return number.reshape(-1) if isinstance(number, torch.Tensor) else number


def as_signed(x: torch.Tensor, zero: Any, wide: torch.dtype) -> tuple[torch.Tensor, Any]:
    """`x` as signed bytes, and what must be added to them for `x - zero`: a number, a tensor, or None for nothing."""
    offset = None
    if x.dtype == torch.uint8:  # by an operation on elements, which joins the kernel that quantizes
        x, offset = converted(converted(x, torch.int16) - _OFFSET, torch.int8), _OFFSET
    return x, offset if zero is None else (offset or 0) - converted(zero, wide)


def converted(value: Any, kind: torch.dtype) -> Any:
    """A tensor in another dtype, by the operator that passes after autograd know; numbers as they are."""
    same = not isinstance(value, torch.Tensor) or value.dtype == kind
    return value if same else torch.ops.aten._to_copy(value, dtype=kind)


def _poisoned(factor: Any) -> Any:
    """Infinite factors give NaN, as do infinite elements of both signs."""
    return factor + (factor - factor)


def applies(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """A CPU, and sizes and strides for which torch's operator is right: it is wrong for a depth of 1."""
    x, weight = match.operands["x"], match.operands["weight"]
    if val(x).device.type != "cpu":
        return Reason("device-unsupported", "bytes are multiplied on CPUs", (x,), "cpu", str(val(x).device))
    if not all(known(size >= 1) for size in shape(x)) or not all(known(size >= 2) for size in shape(weight)):
        return Reason("kernel-unavailable", "a size may be zero, or one in the weight", (x, weight))
    if shares_places(weight):
        return Reason("kernel-unavailable", "the weight's entries share places in memory", (weight,))
    rows = hint(product(shape(x)[:-1]))
    moved = dtype(x) == torch.uint8 or {"zero", "shift"} & match.operands.keys()
    if moved and rows is not None and rows < FEWEST_ROWS and result_dtype(match, policy).is_floating_point:
        message = f"{counted(rows, 'row')} take no longer than the sums of the weight's rows, which a zero point needs"
        return Reason("rows-few", message, (x,), f"{FEWEST_ROWS} rows, or signed bytes without zero point", describe(x))
    return None


def shares_places(weight: Any) -> bool:
    """Whether torch's operator is wrong for the strides of a weight."""
    return overlaps(weight) or not all(known(stride > 0) for stride in val(weight).stride())


def of_bytes(x: Any, weight: Any) -> Reason | None:
    """Both operands are bytes, rows and a matrix."""
    for one in (x, weight):
        if dtype(one) not in BYTES:
            return Reason("dtype-not-bytes", f"{describe(one)} has more bits", (one,), "int8 or uint8", describe(one))
    if rank(x) < 2 or rank(weight) != 2:
        return Reason("rank-too-low", "it is no product of rows and a matrix", (x, weight))
    return None


def sums_fit(match: Binding) -> Reason | None:
    """Sums of the depth stay in 32 bits."""
    weight = match.operands["weight"]
    depth = shape(weight)[0 if is_turned(match, {}) else -1]
    if not isinstance(depth, int):
        return Reason("kernel-unavailable", f"sums of {depth} products", (weight,), "a number", str(depth))
    if depth <= DEEPEST:
        return None
    return Reason("depth-too-large", f"sums of {depth} products", (weight,), f"at most {DEEPEST}", str(depth))


def constant_along_depth(match: Binding) -> Reason | None:
    """Scales and zero points are the same for all of a sum."""
    x, weight = match.operands["x"], match.operands["weight"]
    for name, of in (("zero", x), ("scale", x), ("weight_zero", weight), ("weight_scale", weight)):
        one = match.operands.get(name)
        if not is_tensor(one) or rank(one) == 0:
            continue
        sizes = [1] * (rank(of) - rank(one)) + [*shape(one)]
        if len(sizes) > rank(of) or sizes[0 if of is weight and is_turned(match, {}) else -1] != 1:
            message = f"{describe(one)} changes along the depth"
            return Reason("changes-along-depth", message, (one,), "one number for each row", describe(one))
    return None


def keeps_depth(match: Binding) -> Reason | None:
    """Rows are only counted in other dims between their conversion and the product."""
    dims, x = match.operands.get("dims"), match.operands["x"]
    if dims is None or known_equal(dims[-1], shape(x)[-1]):
        return None
    message = f"{describe(x)} has other rows in the product"
    return Reason("depth-moves", message, (x,), f"rows of {shape(x)[-1]}", f"rows of {dims[-1]}")


def computed_wider(match: Binding) -> Reason | None:
    """Bytes are widened before anything is computed with them, and integers are not scaled."""
    for node in match.matched:
        kind, name = dtype(node), op_name(node)
        if kind in _HOLD_BYTES and (kind.is_floating_point or name != "aten.mul"):
            continue
        message = f"{describe(node)} may not hold what is computed"
        return Reason("dtype-narrow", message, (node,), "floats, or integers of 16 bits and more", describe(node))
    return None


def rounded_to_floats(match: Binding) -> Reason | None:
    """A dequantized weight is rounded to no fewer digits than float32 has."""
    kind = dtype(match.matched[0])
    if dict(match.tags)["weight_rounded"] == "no" or kind in _WIDE:
        return None
    weight = match.operands["weight"]
    return Reason("dtype-narrow", f"the dequantized weight is rounded to {kind}", (weight,), "float32", str(kind))


def is_turned(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether rows of the weight go along the depth, `x @ weight`."""
    return dict(match.tags)["layout"] == "columns"


def widest(kind: Any, *operands: Any) -> Any:
    """`kind`, or the wider one of an operand: the reference of the property test has them in float64."""
    for one in operands:
        if isinstance(one, torch.Tensor) and isinstance(kind, torch.dtype):
            kind = torch.promote_types(kind, one.dtype)
    return kind


def copied(value: Any, kind: Any) -> Any:
    """A cast, as programs after autograd have it."""
    if isinstance(value, Term):
        return Call("aten._to_copy", (value,), (("dtype", kind),))
    return value.to(kind)


def dequantized(name: str, value: Any, zero: Any, shift: Any, scale: Any, factor: Any, kind: Any) -> Any:
    """(to(value) - zero) * scale, each part but the cast optional: of operand `x`, or of the weight."""
    side = "" if name == "x" else "weight_"
    wide = choose(name, cast=lambda: cast(value, kind), copied=lambda: copied(value, kind), promoted=value)
    moved = choose(side + "zero", none=wide, tensor=lambda: wide - zero, number=lambda: wide - shift)
    return choose(side + "scale", none=moved, tensor=lambda: moved * scale, number=lambda: moved * factor)


_ALTERNATIVES = {
    "x": "cast", "zero": "none", "scale": "none", "weight": "cast", "weight_zero": "none", "weight_scale": "none",
    "weight_rounded": "no", "layout": "rows", "bias": "no", "merged": "no",
}  # fmt: skip
_PARTS = {"zero": "zero", "shift": "zero", "scale": "scale", "factor": "scale"}
_KIND = (torch.int8, torch.uint8)


def tags_of(given: Mapping[str, Any]) -> dict[str, str]:
    """The alternatives that operands belong to."""
    tags = dict(_ALTERNATIVES)
    tags["layout"] = given.get("layout", "rows")
    for name in given:
        side, part = ("weight_", name.removeprefix("weight_")) if name.startswith("weight_") else ("", name)
        if part in _PARTS:
            tags[side + _PARTS[part]] = "number" if part in ("shift", "factor") else "tensor"
    tags["merged"] = "yes" if "dims" in given else "no"
    return tags | {"bias": "yes" if given.get("bias") is not None else "no"}


def _sample(refused: str = "", unsigned: bool = True, promoted: str = "", rounded: str = "no", **given: Any) -> Sample:
    """Bytes with these parts beside the casts; the alternatives follow from their names."""
    x, weight = T("B S 24", dtype=_KIND[unsigned]), T("N 24", dtype=torch.int8)
    operands: dict[str, Any] = {"x": x, "weight": weight}
    operands |= {"kind": torch.float32} | {name: value for name, value in given.items() if name != "layout"}
    tags = tags_of(given) | {"weight_rounded": rounded} | dict.fromkeys(filter(None, [promoted]), "promoted")
    return Sample(**operands, tags=tags, refused=refused)


_SCALE, _SCALES = (T(dims, dtype=torch.float32, values="moderate") for dims in ("B S 1", "N 1"))
_ROWS = T("M 24", dtype=torch.uint8)
_BIAS, _SCALED = T("N", dtype=torch.float32), T("N", "moderate", torch.float32)
_ZEROS, _WIDE_SCALES = T("N 1", dtype=torch.int64, below="256"), T("N 1", "moderate", torch.float64)


_META: dict[str, Any] = {"device": "meta"}
_NEAR_MISSES = [
    _sample("device-unsupported", x=T("M 24", dtype=torch.uint8, **_META), weight=T("N 24", dtype=torch.int8, **_META)),
    _sample("rank-too-low", x=T("24", dtype=torch.uint8)),
    _sample("dtype-not-bytes", x=T("M 24", dtype=torch.int16), factor=0.5),
    _sample("depth-too-large", x=T("1 65540", dtype=torch.uint8), weight=T("2 65540", dtype=torch.int8)),
    _sample("changes-along-depth", scale=T("24", dtype=torch.float32)),
    _sample("dtype-narrow", kind=torch.int8),
    _sample("depth-moves", dims=[-1, 12], weight=T("N 12", dtype=torch.int8)),
    _sample("dtype-narrow", kind=torch.int32, weight_factor=0.5, rounded="cast", x=T("M 24", dtype=torch.int8)),
]


@register_pattern(
    "byte_product",
    family="product",
    stage="lowered",
    replacement=[Candidate("int_mm", in_bytes, applies)],
    samples=[
        _sample(shift=3, factor=0.05, weight_scale=_SCALES, bias=_BIAS),
        _sample(shift=3, factor=0.05, weight_shift=0, weight_factor=0.01, x=_ROWS),
        _sample(unsigned=False, scale=_SCALE, weight_scale=_SCALES, bias=_BIAS),
        _sample(zero=T("B S 1", dtype=torch.int32), scale=_SCALE, weight_zero=_ZEROS, weight_scale=_SCALES,
                promoted="weight"),
        _sample(shift=3, factor=0.05, weight_zero=_ZEROS, weight_scale=_WIDE_SCALES, promoted="weight", rounded="cast"),
        _sample(shift=3, factor=0.05, weight_scale=_SCALES, bias=_BIAS, dims=[-1, 24]),
        _sample(factor=0.5, weight_factor=0.25, kind=torch.float64, x=_ROWS),
        _sample(unsigned=False, kind=torch.int32),
        _sample(scale=_SCALE, weight=T("24 N", dtype=torch.int8), weight_scale=_SCALED, layout="columns"),
        _sample(shift=7, kind=torch.int64, x=_ROWS),
        *_NEAR_MISSES,
    ],
    guards=(of_bytes, sums_fit, constant_along_depth, keeps_depth, computed_wider, rounded_to_floats),
    numbers=("shift", "factor", "weight_shift", "weight_factor", "kind", "dims"),
    derived={"result": result_dtype, "turned": is_turned},
    numerics=Numerics(slack=4.0),
    dtypes=BYTES,
    escapes="keep",
)  # fmt: skip
def byte_product(  # noqa: PLR0913 - the parts that may be there
    x: Any, zero: Any, shift: Any, scale: Any, factor: Any, weight: Any, weight_zero: Any, weight_shift: Any,
    weight_scale: Any, weight_factor: Any, bias: Any, kind: Any, dims: Any,
) -> Any:  # fmt: skip
    """linear((to(x) - zero) * scale, (to(weight) - zero) * scale, bias), each part but the casts optional."""
    narrow = widest(kind, scale, bias)

    def multiplied(kind: Any, rounded: Callable[[Any], Any]) -> Any:
        rows = dequantized("x", x, zero, shift, scale, factor, kind)
        left = choose("merged", no=rows, yes=lambda: rows.reshape(dims))
        right = dequantized("weight", weight, weight_zero, weight_shift, weight_scale, weight_factor, kind)
        right = rounded(right)
        right = choose("layout", rows=right, columns=lambda: right.transpose(0, 1))
        return choose("bias", yes=lambda: F.linear(left, right, bias), no=lambda: F.linear(left, right))

    return choose(
        "weight_rounded",
        no=lambda: multiplied(widest(narrow, weight_scale), lambda right: right),
        cast=lambda: multiplied(narrow, lambda right: cast(right, narrow)),
        copied=lambda: multiplied(narrow, lambda right: copied(right, narrow)),
    )
