"""A keyed hash of 32-bit numbers, in int32 tensors: the reference of the operation hash32, the bits of ``rng="fast"``.

    key    two 32-bit words
    hash   mix(mix(n ^ k0) + k1)            a bijection for every key: equal hashes only where numbers are equal
    mix    Wellons' lowbias32: x ^= x >> 16, x *= 7feb352d, x ^= x >> 15, x *= 846ca68b, x ^= x >> 16

Four multiplications and a dozen shifts in lanes of 32 bits, where Philox takes ten rounds in lanes of 64.
"""

from __future__ import annotations

import torch

M0, M1 = 0x7FEB352D, 0x846CA68B
_WORD = 0xFFFFFFFF


def hash32(number: torch.Tensor, key0: torch.Tensor, key1: torch.Tensor) -> torch.Tensor:
    """The hash, as int32 of any sign, of int32 numbers under a key of two int32 words; operands broadcast."""
    number, key0, key1 = (part.long() & _WORD for part in (number, key0, key1))
    mixed = _mixed((_mixed(number ^ key0) + key1) & _WORD)
    return (mixed - ((mixed >> 31) << 32)).int()


def _mixed(x: torch.Tensor) -> torch.Tensor:
    # A product's upper bits may land in the sign: masks undo that.
    x = ((x ^ (x >> 16)) * M0) & _WORD
    x = ((x ^ (x >> 15)) * M1) & _WORD
    return x ^ (x >> 16)
