"""Places that are compared with numbers of 64 bits, the same for all lanes: in 32 bits, of which a vector holds more.

for j < 512: lt(Number(j, i64), n[i])   ->   lt(Number(j, i32), i32(min(max(n[i], -1), 512)))

Numbers beyond both ends of the places compare like the nearest number that is none of them. Masks made from lengths
are such comparisons: with lanes of 64 bits, all that they mask would have half as many.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...ir.accesses import loop_variables, rewritten, statements
from ...ir.dependence import Dependence
from ...ir.kernel import Kernel, Loop
from ...ir.ops import COMPARISONS
from ...ir.value import Const, Op, Rewriter, Value
from ..narrow import Narrower, fits_32_bits


def compare_places(kernel: Kernel) -> Kernel:
    """The flattened kernel in which innermost loops compare places in 32 bits."""
    inner = {s.var for s in statements(kernel.body) if isinstance(s, Loop) and not loop_variables(s.body)}
    narrow, dependence = Narrower(), Dependence()

    def compared(value: Value) -> Value | None:
        if not isinstance(value, Op) or value.name not in COMPARISONS or value.args[0].dtype != torch.int64:
            return None
        for k, (place, other) in enumerate((value.args, value.args[::-1])):
            found = narrow.narrowed(place)
            if found is None or not dependence.of(place) & inner or dependence.of(other) & inner:
                continue
            low, high = narrow.span(place) or (0, 0)
            if fits_32_bits((low - 1, high + 1)):
                args = (found, _limited(other, low - 1, high + 1))
                return Op(value.name, args if not k else args[::-1], value.dtype)
        return None

    rewrite = Rewriter(compared)
    return replace(kernel, body=tuple(rewritten(s, rewrite) for s in kernel.body))


def _limited(value: Value, low: int, high: int) -> Value:
    """A number of 64 bits, or the nearest of two that fit, in 32 bits."""
    for name, end in (("maximum", low), ("minimum", high)):
        value = Op(name, (value, Const(end, torch.int64)), torch.int64)
    return Op("cast", (value,), torch.int32)


__all__ = ["compare_places"]
