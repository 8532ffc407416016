"""Random numbers as functions of a seed: their distributions, and that nothing of a call is found in another.

Seeds are fixed, so that the tests are deterministic; limits are what a sound generator stays within at one in 10,000 of
seeds or fewer.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.compiler.ir.hash32 import M0, M1, hash32
from regraft.compiler.lowering import lower
from regraft.compiler.prims import is_hashed, keys, ops, threshold, word

from ..support.lowering import run, trace

N = 1 << 16
SEED = 0x1234_5678_9ABC_DEF0
BITS = pytest.mark.parametrize("fast", [False, True], ids=["philox", "hash"])


def sigmas(count, expected, variance):
    return abs(float(count) - expected) / math.sqrt(variance)


def chi_square(cells, expected):
    """Deviations of a chi-square statistic from its mean, of so many equally (or as `expected`) likely cells."""
    degrees = cells.numel() - 1
    return float(((cells - expected).square() / expected).sum() - degrees) / math.sqrt(2 * degrees)


def pairs_apart(a, b):
    """Chi-square of pairs of uniform numbers, in 16 x 16 cells."""
    cells = torch.bincount(((a * 16).long() * 16 + (b * 16).long()).flatten(), minlength=256).double()
    return chi_square(cells, a.numel() / 256)


@functools.cache
def words(seed, fast):
    return word([N], torch.tensor(seed), fast=fast)


def uniform(seed, fast):
    return (words(seed, fast).double() + 0.5) * 2.0**-32


@BITS
@pytest.mark.parametrize("p", [0.001, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_rates(p, fast):
    for seed in range(8):
        assert sigmas((words(seed, fast) < threshold(p)).sum(), N * p, N * p * (1 - p)) < 4


def test_what_is_rare_is_met_to_2_to_the_33():
    assert threshold(2.0**-32) == 1
    assert threshold(1.0) == 2**32 and threshold(0.0) == 0
    assert abs(threshold(0.1) / 2**32 - 0.1) <= 2**-33
    seed = torch.tensor(SEED)
    assert not ops.bernoulli([999], 0.0, seed).any() and ops.bernoulli([999], 1.0, seed).all()


@BITS
def test_every_byte_is_uniform(fast):
    bits = words(SEED, fast)
    for shift in (0, 8, 16, 24):
        assert abs(chi_square(torch.bincount(bits >> shift & 255, minlength=256).double(), N / 256)) < 4


@BITS
def test_neighbours_are_independent(fast):
    """In a row, between rows of common widths, and elements of a vector, a tile or a page apart."""
    drawn = uniform(SEED, fast)
    for lag in (1, 2, 3, 4, 8, 16, 32, 64, 128, 768, 1024, 3072, 4096, 32768):
        a, b = drawn[:-lag], drawn[lag:]
        assert abs((a - 0.5).mul(b - 0.5).mean()) * 12 * math.sqrt(len(a)) < 4.5, lag
        assert abs(pairs_apart(a, b)) < 4.5, lag


@BITS
@pytest.mark.parametrize("p", [0.25, 0.5, 0.9])
def test_patterns_of_a_mask_are_as_likely_as_they_should_be(p, fast):
    """All 256 patterns of 8 elements, side by side and below each other."""
    ones = torch.tensor([k.bit_count() for k in range(256)], dtype=torch.float64)
    expected = N / 8 * p**ones * (1 - p) ** (8 - ones)
    seen = expected > 5
    mask = (words(SEED, fast) < threshold(p)).long().view(-1, 64)
    for flat in (mask.flatten(), mask.t().flatten()):
        patterns = functools.reduce(lambda a, k: a | flat[k::8] << k, range(8), 0)
        assert abs(chi_square(torch.bincount(patterns, minlength=256).double()[seen], expected[seen])) < 4.5


@BITS
def test_calls_are_independent(fast):
    """Of seeds that differ in one bit, or by one; also when shifted against each other."""
    drawn = uniform(SEED, fast)
    for other in [SEED + 1, *(SEED ^ (1 << bit) for bit in (0, 1, 16, 31, 32, 33, 48, 62))]:
        theirs = uniform(other, fast)
        for shift in (0, 1, 64):
            a, b = drawn[shift:], theirs[: N - shift]
            assert abs((a - 0.5).mul(b - 0.5).mean()) * 12 * math.sqrt(len(a)) < 4.5
            assert abs(pairs_apart(a, b)) < 4.5
        assert (drawn == theirs).sum() < 5


@BITS
def test_places_count_beyond_rows_and_layouts(fast):
    seed = torch.tensor(SEED)
    flat = ops.uniform([24], seed, torch.float32, False, fast)
    assert torch.equal(flat, ops.uniform([2, 3, 4], seed, torch.float32, False, fast).flatten())
    assert torch.equal(flat[:5], ops.uniform([5], seed, torch.float32, False, fast))


def test_masks_with_more_elements_than_there_are_hashes_are_philoxs():
    assert is_hashed([2**16, 2**16]) and is_hashed([])
    assert not is_hashed([2**16, 2**16, 2])


def test_the_hash_is_the_bijection_that_its_definition_says():
    numbers = torch.arange(1 << 16)
    assert len(hash32(numbers, torch.tensor(1), torch.tensor(2)).unique()) == 1 << 16

    def mix(x):
        x = (x ^ x >> 16) * M0 & 0xFFFFFFFF
        x = (x ^ x >> 15) * M1 & 0xFFFFFFFF
        return x ^ x >> 16

    for number, key0, key1 in [(0, 0, 0), (1, 2, 3), (-1, -2, -3), (2**31 - 1, -(2**31), 7)]:
        expected = mix(mix((number ^ key0) & 0xFFFFFFFF) + key1 & 0xFFFFFFFF)
        drawn = int(hash32(*(torch.tensor(n, dtype=torch.int32) for n in (number, key0, key1))))
        assert drawn & 0xFFFFFFFF == expected


def test_a_change_of_one_bit_changes_half_of_the_hash():
    numbers, seed = torch.arange(4096), torch.tensor(SEED)
    plain = hash32(numbers, *keys(seed))
    for bit in range(63):
        changed = [hash32(numbers, *keys(seed ^ (1 << bit)))]
        changed += [hash32(numbers ^ (1 << bit), *keys(seed))] if bit < 32 else []
        for other in changed:
            flips = torch.stack([(plain ^ other) >> k & 1 for k in range(32)]).double().mean(1)
            assert (flips - 0.5).abs().max() < 0.05, bit


SEEDS = st.integers(0, 2**63 - 2)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = st.lists(st.integers(0, 5), max_size=4)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.floats(0, 1), SEEDS, st.booleans())
def test_kernels_and_operators_agree_on_masks(size, p, seed, fast):
    def function(seed):
        return ops.bernoulli(size, p, seed, fast)

    seed = torch.tensor(seed)
    module = trace(function, seed)
    assert torch.equal(run(module, _lowered(module), [seed]), function(seed))


@settings(max_examples=40, deadline=None)
@given(SHAPES, SEEDS, st.sampled_from(FLOATS), st.booleans(), st.booleans())
def test_kernels_and_operators_agree_on_numbers(size, seed, dtype, interior, fast):
    def function(seed):
        drawn = ops.uniform(size, seed, dtype, interior, fast)
        return drawn, ops.normal(size, seed, dtype), ops.integers(size, -3, 2**40, seed, torch.int64)

    seed = torch.tensor(seed)
    module = trace(function, seed)
    for made, expected in zip(run(module, _lowered(module), [seed]), function(seed), strict=True):
        torch.testing.assert_close(made, expected)
        assert made.dtype == expected.dtype
    drawn = function(seed)[0]
    assert ((drawn >= 0) & (drawn < 1)).all() or interior
    assert not interior or ((drawn > 0) & (drawn <= 1)).all()


def _lowered(module):
    made = lower(module, strict=True)
    assert not made.kept
    return made
