"""The products of few rows that tensor cores may multiply as lanes hold their weights (see `gemm.triton_cores`).

Right operands are bytes, or halves of them, with nothing but a number subtracted, side by side along the depth. A
lane's elements, four by four, and all lanes of a warp must be of one column: a step has four places or more for each
lane, so that the compiler has no reason for another layout. That it has taken this one is checked when it has compiled
(see `codegen.triton.compile_worker`): what it lays out otherwise is no kernel.
"""

from __future__ import annotations

import torch

from ...ir.index.index import Index
from ..attention.description import address
from .description import Product, Prologue
from .halves import halves
from .triton_bytes import as_bytes

_EACH = 4  # places of a lane that one instruction multiplies: a register of bytes
_LANES = 32


def fits_cores(product: Product, depth: int, warps: int) -> bool:
    """Whether that may be done in steps of a depth, with so many warps."""
    found = halves(product)
    whole, high = (product, {}) if found is None else found
    places = depth if found is None else depth // 2
    right = [whole.right, *([] if whole.other is None else [whole.also]), *high.values()]
    if product.left is not None or product.dtype not in (torch.float16, torch.bfloat16):
        return False
    if product.batch.extent > 1 or product.a.column != 1:
        return False
    by_fours = all(prologue is not None and _lies_by_fours(whole, prologue) for prologue in right)
    return by_fours and places % (_EACH * _LANES * warps) == 0


def _lies_by_fours(product: Product, prologue: Prologue) -> bool:
    """Whether an operand is made of bytes, fours of which lie side by side along the depth at multiples of four."""
    bytes_read = as_bytes(prologue.value)
    if bytes_read is None or bytes_read.pairs(prologue.dtype, "") is None or product.step is None:
        return False
    buffer = next(b for b in prologue.buffers if b.name == bytes_read.loaded.buffer)
    at = address(buffer, bytes_read.loaded.indices)
    strides = dict(at.terms) if isinstance(at, Index) else {}
    others = [stride for monomial, stride in strides.items() if monomial != (product.step,)]
    return strides.get((product.step,)) == 1 and all(stride % _EACH == 0 for stride in others)
