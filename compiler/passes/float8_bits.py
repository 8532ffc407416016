"""Numbers of 8 bits with an exponent, computed of their bits, which kernels know as bytes.

    w.to(float32), w float8_e4m3fn   ->   bits = w.view(uint8); bits_as_float((bits & 127) * 2**20 + 120 * 2**23), ...

A conversion of a CPU takes a nanosecond a number, thirty times as long, and joins no kernel. The result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, is_tensor, val
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten

_WIDER = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # what holds every one of these numbers
_BITS = 23  # of float32 behind the exponent


@dataclass(frozen=True)
class _Format:
    """Bits behind the exponent; what the exponent is moved by; and the least bits of what is no number."""

    digits: int
    moved: int
    nan: int
    infinite: int | None = None


_FORMATS = {
    torch.float8_e4m3fn: _Format(3, 120, 127),
    torch.float8_e5m2: _Format(2, 112, 125, 124),
}


@replaces_calls(aten._to_copy.default)
def convert_float8_bits(editor: Editor, call: fx.Node) -> fx.Node | None:
    """Compute a conversion from 8 bits on a CPU by operations on integers."""
    x: Any = call.args[0]
    if not is_tensor(x) or call.kwargs.keys() != {"dtype"} or dtype(call) not in _WIDER or dtype(x) not in _FORMATS:
        return None
    if val(x).device.type != "cpu" or val(x).layout != torch.strided:
        return None
    made = _converted(editor, x, _FORMATS[dtype(x)])
    return made if dtype(call) == torch.float32 else editor.call(aten._to_copy.default, made, dtype=dtype(call))


def _converted(editor: Editor, x: fx.Node, form: _Format) -> fx.Node:
    call = editor.call
    bits = call(aten._to_copy.default, call(aten.view.dtype, x, torch.uint8), dtype=torch.int32)
    size = call(aten.bitwise_and.Scalar, bits, 127)
    whole = call(aten.__lshift__.Scalar, size, _BITS - form.digits)
    found = call(aten.view.dtype, call(aten.add.Tensor, whole, form.moved << _BITS), torch.float32)
    least = 2.0 ** (form.moved - 127 - form.digits + 1)  # the smallest number; those without exponent are multiples
    small = call(aten.mul.Tensor, call(aten._to_copy.default, size, dtype=torch.float32), least)
    found = call(aten.where.self, call(aten.lt.Scalar, size, 1 << form.digits), small, found)
    if form.infinite is not None:
        found = call(aten.masked_fill.Scalar, found, call(aten.eq.Scalar, size, form.infinite), float("inf"))
    found = call(aten.masked_fill.Scalar, found, call(aten.ge.Scalar, size, form.nan), float("nan"))
    return call(aten.where.self, call(aten.gt.Scalar, bits, 127), call(aten.neg.default, found), found)
