"""Products of signed bytes that a program computes of unsigned ones, as torchao's quantized layers on CPUs do.

    _int_mm((x.int() + 128).to(uint8), w) - 128 * sum(w, 0)   ->   _int_mm(x, w)

Instructions for bytes (VNNI) take unsigned ones on the left. Kernels flip a bit of each byte as they read it and begin
with the sums of columns; a program that spells it out writes bytes once more, and reads the weight for its sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, shape, val
from ..rewrites.pattern import Call, Term, cast, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import known
from .byte_products import copied, shares_places

_OFFSET = 128  # from signed bytes to unsigned ones


def signed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product of the bytes as they are."""
    return torch.ops.aten._int_mm(x, weight)


def of_signed_bytes(x: Any, weight: Any) -> Reason | None:
    """Both operands have a sign."""
    for one in (x, weight):
        if dtype(one) != torch.int8:
            return Reason("dtype-not-bytes", f"{describe(one)} is no signed byte", (one,), "int8", describe(one))
    return None


def on_cpu(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """A CPU, and sizes and strides for which torch's operator is right: it is wrong for a depth of 1."""
    x, weight = match.operands["x"], match.operands["weight"]
    if val(x).device.type != "cpu":
        return Reason("device-unsupported", "bytes are multiplied on CPUs", (x,), "cpu", str(val(x).device))
    if not known(shape(x)[0] >= 1) or not all(known(size >= 2) for size in shape(weight)):
        return Reason("kernel-unavailable", "a size may be zero, or one in the weight", (x, weight))
    if shares_places(weight):
        return Reason("kernel-unavailable", "the weight's entries share places in memory", (weight,))
    return None


def _multiplied(x: Any, weight: Any) -> Any:
    """A call of `_int_mm`, recorded or made."""
    if isinstance(x, Term) or isinstance(weight, Term):
        return Call("aten._int_mm", (x, weight))
    return torch.ops.aten._int_mm(x, weight)


def _tags(kind: str) -> dict[str, str]:
    return dict.fromkeys(("widened", "shifted"), kind)


_X, _WEIGHT = T("M 24", dtype=torch.int8), T("24 N", dtype=torch.int8)
_META = {"x": T("M 24", dtype=torch.int8, device="meta"), "weight": T("24 N", dtype=torch.int8, device="meta")}


@register_pattern(
    "shifted_bytes",
    family="product",
    stage="lowered",
    replacement=[Candidate("signed", signed, on_cpu)],
    samples=[
        *(Sample(x=_X, weight=_WEIGHT, tags=_tags(kind)) for kind in ("cast", "copied")),
        Sample(x=_META["x"], weight=_META["weight"], tags=_tags("cast"), refused="device-unsupported"),
        Sample(x=T("M 24", dtype=torch.int16), weight=_WEIGHT, tags=_tags("cast"), refused="dtype-not-bytes"),
        Sample(x=T("0 24", dtype=torch.int8), weight=_WEIGHT, tags=_tags("cast"), refused="kernel-unavailable"),
    ],
    guards=(of_signed_bytes,),
    profitable=True,
    dtypes=(torch.int8,),
    escapes="keep",
)  # fmt: skip
def shifted_bytes(x: Any, weight: Any) -> Any:
    """_int_mm((x.int() + 128).to(uint8), weight) - 128 * sum(weight, 0)"""
    wide = choose("widened", cast=lambda: cast(x, torch.int32), copied=lambda: copied(x, torch.int32))
    moved = wide + _OFFSET
    rows = choose("shifted", cast=lambda: cast(moved, torch.uint8), copied=lambda: copied(moved, torch.uint8))
    return _multiplied(rows, weight) - weight.sum(0, keepdim=True, dtype=torch.int32) * _OFFSET
