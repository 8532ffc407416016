"""Philox 4x32 with 10 rounds (Salmon et al., SC 2011), in int64 tensors: the reference of the operations philox0 to 3.

    key      seed, as two 32-bit words, low word first
    counter  (low word of offset, high word of offset, 0, 0)
    round    (c0, c1, c2, c3) -> (hi(M1*c2) ^ c1 ^ k0, lo(M1*c2), hi(M0*c0) ^ c3 ^ k1, lo(M0*c0)), then key += (W0, W1)

Random123's known answer for seed 0 and offset 0: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
"""

from __future__ import annotations

import torch

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox(seed: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The four words, each int64 in [0, 2**32), of int64 seeds and offsets of any sign (their bits count)."""
    zero = torch.zeros_like(offset)
    c0, c1, c2, c3 = offset & _WORD, (offset >> 32) & _WORD, zero, zero
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(ROUNDS):
        # The product's upper bit may land in the sign: the masks after shifting undo that.
        left, right = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (
            ((right >> 32) & _WORD) ^ c1 ^ k0,
            right & _WORD,
            ((left >> 32) & _WORD) ^ c3 ^ k1,
            left & _WORD,
        )
        k0, k1 = (k0 + W0) & _WORD, (k1 + W1) & _WORD
    return c0, c1, c2, c3
