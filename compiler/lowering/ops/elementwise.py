"""Pointwise operators: eager's type promotion, broadcasting, and the one definition that they become.

add(%x: bfloat16[8, 1], %y: float32[4])    ->    float32[8, 4]: cast(x[i, 0]) + y[j]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch

from ...ir.index.index import Index
from ...ir.value import HALVES, Const, Op, Value, compute_dtype
from ..arithmetic import Operand, op
from ..core import Lowering, Tensor, cast
from ..scalars import Scalar, literal
from ..sizes import Unlowered

Kind = Literal["default", "int_to_float", "bool_to_long", "always_bool", "first"]


def elementwise(
    low: Lowering,
    operands: Sequence[Any],
    compute: Callable[..., Value],
    kind: Kind = "default",
    *,
    opmath: bool = False,
    dtype: torch.dtype | None = None,
    decides: bool | None = None,
) -> Tensor:
    """One pointwise definition.

    Args:
        low: the lowering in progress.
        operands: tensors, numbers, indices and scalars, broadcast against each other.
        compute: given one value for each operand, all of the promoted dtype's compute dtype, the result's value.
        kind: how dtypes promote; ``"first"`` goes by the first operand alone.
        opmath: Python numbers, and tensors without dims that are the second operand and lie on the CPU, are used as
            they are; by default they round to the promoted dtype, as tensors do.
        dtype: of the result, where that is not the promoted one.
        decides: a small error of an operand may become a large one, by default in what gives truth values: operands of
            16 bits are rounded as eager has them, also where they are taken on from what computes them. So are those
            that others promote.
    """
    decides = kind == "always_bool" if decides is None else decides
    common = promoted(operands[:1] if kind == "first" else operands)
    if kind == "int_to_float" and not common.is_floating_point:
        common = torch.get_default_dtype()
    elif kind == "bool_to_long" and common == torch.bool:
        common = torch.int64
    result = dtype if dtype is not None else torch.bool if kind == "always_bool" else common
    sizes = broadcast(o.sizes for o in operands if isinstance(o, Tensor))

    numbered = list(enumerate(operands))

    def value(indices: tuple[Any, ...]) -> Value:
        return compute(*(_operand(o, indices, common, opmath and is_scalar(k, o), decides) for k, o in numbered))

    return low.pointwise(value, sizes, result)


def is_scalar(place: int, operand: Any) -> bool:
    """Whether eager's kernels, which may take a second operand as a number, take this one so."""
    if not isinstance(operand, Tensor):
        return True
    return place == 1 and not operand.sizes and operand.buffer.device.type == "cpu"


def _operand(operand: Any, indices: tuple[Any, ...], common: torch.dtype, opmath: bool, decides: bool) -> Value:
    computed = compute_dtype(common)
    if isinstance(operand, Tensor):
        value = element(operand, indices)
        value = cast(rounded(value, operand.dtype) if decides else widened(value, operand.dtype, common), computed)
        return value if opmath or _fits(operand.dtype, common) else rounded(value, common)
    value = literal(operand, computed)
    if opmath or isinstance(operand, bool) or common == computed:
        return value
    if isinstance(operand, (Index, Scalar)):
        return rounded(value, common)
    return literal(float(torch.tensor(operand, dtype=common)), computed)


def rounded(value: Value, dtype: torch.dtype) -> Value:
    """`value` as a tensor of `dtype` would hold it: rounded to 16 bits where that is what it has."""
    return Op(f"round_{str(dtype).removeprefix('torch.')}", (value,), value.dtype) if dtype in HALVES else value


def widened(value: Value, dtype: torch.dtype, common: torch.dtype) -> Value:
    """An element of a tensor of `dtype` as `common`'s computation takes it: a half meets wider numbers as eager has it.

    x + (w + 1), w of 16 bits     before: x + (w + 1)      after, x of 32: x + round_bfloat16(w + 1)
    """
    return rounded(value, dtype) if dtype != common else value


def at_most(a: Value, limit: Operand) -> Value:
    """The smaller; NaN if either is. Of two zeros it is the limit, or `a` if the limit is a number."""
    return _limited("minimum", a, limit)


def at_least(a: Value, limit: Operand) -> Value:
    """The larger, likewise."""
    return _limited("maximum", a, limit)


def _limited(name: str, a: Value, limit: Operand) -> Value:
    known = isinstance(limit, Const) or not isinstance(limit, Value)
    return op(name, limit, a) if known else op(name, a, limit)


def _fits(dtype: torch.dtype, into: torch.dtype) -> bool:
    """Whether elements of `dtype` need no rounding to be of `into`."""
    return dtype in (into, torch.bool) or into == compute_dtype(into)


def element(tensor: Tensor, indices: Sequence[Any]) -> Value:
    """The element of a tensor that is broadcast to a space of indices."""
    skipped = len(indices) - len(tensor.sizes)
    return tensor.at(tuple(0 if size == 1 else i for i, size in zip(indices[skipped:], tensor.sizes, strict=True)))


def broadcast(shapes: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    """The sizes that shapes broadcast to."""
    shapes = list(shapes)
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_broadcast_size(sizes) for sizes in zip(*padded, strict=True))


def _broadcast_size(sizes: Sequence[Any]) -> Any:
    wide = {size for size in sizes if size != 1}
    if len(wide) > 1:
        raise Unlowered("symbolic", f"sizes {sorted(map(str, wide))} that are equal only when run")
    return wide.pop() if wide else 1


def promoted(operands: Sequence[Any]) -> torch.dtype:
    """The dtype that eager computes a mix of tensors and numbers in.

    Tensors with dims go before 0-d ones and those before numbers, except that a higher kind (bool, integer, floating)
    always wins.
    """
    groups: tuple[list[torch.dtype], ...] = ([], [], [])
    for operand in operands:
        groups[_precedence(operand)].append(_dtype(operand))
    result: torch.dtype | None = None
    for group in groups:
        for dtype in _merged(group):
            result = dtype if result is None else _combined(result, dtype)
    assert result is not None, "no operands"
    return result


def _precedence(operand: Any) -> int:
    return 2 if not isinstance(operand, Tensor) else 0 if operand.sizes else 1


def _dtype(operand: Any) -> torch.dtype:
    if isinstance(operand, Tensor):
        return operand.dtype
    if isinstance(operand, bool):
        return torch.bool
    kind = operand.value.dtype if isinstance(operand, Scalar) else torch.int64
    return torch.get_default_dtype() if isinstance(operand, float) or kind.is_floating_point else kind


def _merged(dtypes: Sequence[torch.dtype]) -> list[torch.dtype]:
    merged = list(dtypes[:1])
    for dtype in dtypes[1:]:
        merged[0] = torch.promote_types(merged[0], dtype)
    return merged


def _combined(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    if higher.is_floating_point:
        return higher
    return torch.promote_types(higher, lower) if higher == torch.bool or lower.is_floating_point else higher
