"""Philox against Random123's known answers, and as a source of bits."""

import pytest
import torch

from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.philox import philox


@pytest.mark.parametrize(
    ("seed", "offset", "words"),
    [
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ],
)
def test_known_answers(seed, offset, words):
    drawn = philox(torch.tensor(seed), torch.tensor(offset))
    assert " ".join(f"{int(word):08x}" for word in drawn) == words


def scalar(seed, offset):
    """The definition, in Python's unbounded integers."""
    mask = 0xFFFFFFFF
    key = [seed & mask, seed >> 32 & mask]
    c = [offset & mask, offset >> 32 & mask, 0, 0]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [right >> 32 ^ c[1] ^ key[0], right & mask, left >> 32 ^ c[3] ^ key[1], left & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return c


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
@pytest.mark.parametrize("offset", [0, 1, -1, 2**32, 2**63 - 1])
def test_every_bit_of_seed_and_offset_counts(seed, offset):
    assert [int(w) for w in philox(torch.tensor(seed), torch.tensor(offset))] == scalar(seed, offset)


def test_words_are_uniform():
    offsets = torch.arange(20_000)
    for word in range(4):
        drawn = OPS[f"philox{word}"].reference(torch.tensor(7), offsets)
        assert drawn.dtype == torch.int64
        assert drawn.min() >= 0 and drawn.max() < 2**32
        assert abs(drawn.double().mean() / 2**32 - 0.5) < 0.01
        assert len(drawn.unique()) > 19_990
