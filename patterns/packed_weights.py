"""Products with weights of few bits in the formats of torch's own operators.

    _weight_int8pack_mm(x, weight, scales)                   ->   linear(x, (weight * scales).to(x.dtype))
    _weight_int4pack_mm_for_cpu(x, packed, group, s_and_z)   ->   x @ ((nibbles(packed) - 8) * s + z)

Torch's operators for CPUs multiply one row after the other. With some rows, a weight that is dequantized once and a
product of a library take a fraction of the time, and with few rows of float32 a generated kernel that dequantizes what
it reads does. Candidates are not measured: as calls of ATen, dequantizing would seem several times as slow as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites import compat
from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, has_known_strides, shape, val
from ..rewrites.pattern import Call, Term
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import hint, known
from ..rewrites.words import counted
from .byte_products import converted

_BLOCK = 64  # columns whose nibbles are packed together, on CPUs with vectors of 512 bits
ENOUGH_ROWS = 32  # fewest rows of 16 bits for which dequantizing the weight pays
_MIDDLE = 8  # the nibble that stands for zero
_HALF = torch.bfloat16


def with_bytes(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A product with the weight in the dtype of `x`; scaled first, so that no sum overflows before it is scaled."""
    wide = converted(weight, torch.float32) * converted(scales, torch.float32).unsqueeze(-1)
    return F.linear(x, converted(wide, x.dtype))


def with_nibbles(x: torch.Tensor, packed: torch.Tensor, group: int, scales: torch.Tensor) -> torch.Tensor:
    """A product with the weight in the dtype of `x`, its rows along the depth."""
    depth, columns = x.shape[-1], packed.shape[0]
    blocks = packed.reshape(columns // _BLOCK, depth, _BLOCK // 2)
    both = torch.cat([torch.bitwise_and(blocks, 15), torch.bitwise_right_shift(blocks, 4)], -1)
    rows = both.permute(1, 0, 2).reshape(depth // group, group, columns)
    scale, zero = converted(scales, torch.float32).unsqueeze(1).unbind(-1)
    weight = (converted(rows, torch.float32) - _MIDDLE) * scale + zero
    return x @ converted(weight, x.dtype).reshape(depth, columns)


def on_cpu(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """A CPU, and no empty tensor."""
    x = match.operands["x"]
    if val(x).device.type != "cpu":
        return Reason("device-unsupported", "packed weights are measured on CPUs only", (x,), "cpu", str(val(x).device))
    if all(known(size >= 1) for size in shape(x)):
        return None
    return Reason("kernel-unavailable", "a size may be zero", (x,))


def can_unpack(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """The format of packed nibbles is known: it depends on the vectors of the CPU and on the number of columns.

    Torch's operator reads weight and scales as if they were contiguous, and gives other results where they are not.
    """
    for one in (match.operands["packed"], match.operands["scales"]):
        if not has_known_strides(one) or not val(one).is_contiguous():
            message = f"torch's operator reads {describe(one)} as if it were contiguous"
            return Reason("kernel-unavailable", message, (one,), "contiguous, of known sizes", describe(one))
    columns = shape(match.operands["packed"])[0]
    if isinstance(columns, int) and columns % _BLOCK == 0 and is_packed_in_blocks():
        return on_cpu(match, policy)
    message = f"{columns} columns are packed in another way"
    return Reason("kernel-unavailable", message, expected=f"a multiple of {_BLOCK}, on vectors of 512 bits")


@cache
def is_packed_in_blocks() -> bool:
    """Whether torch packs nibbles as `with_nibbles` reads them, on this CPU."""
    with compat.no_dispatch_modes():
        weight = torch.arange(_BLOCK * 32, dtype=torch.int32).reshape(_BLOCK, 32) % 13
        scales = torch.stack([torch.ones(1, _BLOCK), torch.full((1, _BLOCK), float(_MIDDLE))], -1)
        try:
            packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight, 1)
        except RuntimeError:
            return False
        return torch.equal(with_nibbles(torch.eye(32), packed, 32, scales).t(), weight.float())


def enough_rows(x: Any) -> Reason | None:
    """So many rows that torch's operator takes longer than dequantizing; for float32 it has no kernel of vectors."""
    rows = hint(shape(x)[0])
    if dtype(x) == torch.float32 or rows is None or rows >= ENOUGH_ROWS:
        return None
    message = f"{counted(rows, 'row')} wait for the weight, which torch's operator reads as it is"
    return Reason("rows-few", message, (x,), f"{ENOUGH_ROWS} rows, or float32", describe(x))


def _call(name: str, formula: Any, *operands: Any) -> Any:
    """A call of an operator of ATen, recorded or made; in float64, which it does not take, what it stands for.

    Operands of a made call are contiguous: the operators of CPUs read others as if they were, beyond their memory.
    """
    if any(isinstance(one, Term) for one in operands):
        return Call(f"aten.{name}", operands)
    if operands[0].dtype == torch.float64:
        return formula(*operands)
    return getattr(torch.ops.aten, name)(*(x.contiguous() if isinstance(x, torch.Tensor) else x for x in operands))


_KINDS = (torch.float32, _HALF)
_BYTES, _NIBBLES = T("16 32", dtype=torch.int8, below="128"), T("128 16", dtype=torch.uint8, below="256")


@register_pattern(
    "int8_weight",
    family="product",
    stage="lowered",
    replacement=[Candidate("dequantized", with_bytes, on_cpu)],
    samples=[
        *(Sample(x=T("40 32", "positive", kind), weight=_BYTES, scales=T("16", "positive", kind)) for kind in _KINDS),
        Sample(x=T("0 32", dtype=torch.float32), weight=_BYTES, scales=T("16", dtype=torch.float32),
               refused="kernel-unavailable"),
        Sample(x=T("M 32", device="meta"), weight=T("16 32", dtype=torch.int8, device="meta"),
               scales=T("16", device="meta"), refused="device-unsupported"),
        Sample(x=T("M 32", dtype=_HALF), weight=_BYTES, scales=T("16", dtype=_HALF), refused="rows-few"),
    ],
    guards=(enough_rows,),
    profitable=True,
    numerics=Numerics(slack=16.0),  # the weight is rounded, where torch's operator rounds only the result
)  # fmt: skip
def int8_weight(x: Any, weight: Any, scales: Any) -> Any:
    """_weight_int8pack_mm(x, weight, scales)  ->  linear(x, to(weight) * scales)"""
    return _call("_weight_int8pack_mm", with_bytes, x, weight, scales)


@register_pattern(
    "int4_weight",
    family="product",
    stage="lowered",
    replacement=[Candidate("dequantized", with_nibbles, can_unpack)],
    samples=[
        *(Sample(x=T("40 32", "positive", kind), packed=_NIBBLES, group=32, scales=T("1 128 2", "positive", kind))
          for kind in _KINDS),
        Sample(x=T("M 32", dtype=_HALF), packed=_NIBBLES, group=32, scales=T("1 128 2", dtype=_HALF),
               refused="rows-few"),
        Sample(x=T("40 32", dtype=_HALF), packed=T("48 16", dtype=torch.uint8, below="256"), group=32,
               scales=T("1 48 2", dtype=_HALF), refused="kernel-unavailable"),
    ],
    guards=(enough_rows,),
    profitable=True,
    numbers=("group",),
    numerics=Numerics(slack=16.0),  # the weight is rounded, where torch's operator rounds only the result
)  # fmt: skip
def int4_weight(x: Any, packed: Any, group: Any, scales: Any) -> Any:
    """_weight_int4pack_mm_for_cpu(x, packed, group, scales and zeros)  ->  x @ (nibbles * scale + zero)"""
    return _call("_weight_int4pack_mm_for_cpu", with_nibbles, x, packed, group, scales)
