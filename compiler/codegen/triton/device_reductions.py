"""Functions that generated kernels call to make one result of several: reductions, and softmax block by block.

Copied into the source of kernels as the functions of `device_library` are.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .device_library import maximum, minimum

# -- reductions: how two partial results make one ---------------------------------------------------------------------


@triton.jit
def join_sum(x, y):
    """The sum."""
    return x + y


@triton.jit
def join_prod(x, y):
    """The product."""
    return x * y


@triton.jit
def join_max(x, y):
    """NaN where either is."""
    return maximum(x, y)


@triton.jit
def join_min(x, y):
    """NaN where either is."""
    return minimum(x, y)


@triton.jit
def join_any(x, y):
    """Truth values as integers."""
    return x | y


@triton.jit
def join_all(x, y):
    """Truth values as integers."""
    return x & y


@triton.jit
def join_xor(x, y):
    """Bits that differ."""
    return x ^ y


@triton.jit
def join_argmax(x, i, y, j):
    """NaN before anything, then the lowest position."""
    lost = x != x
    tie = (x == y) | (lost & (y != y))
    left = (tie & (i <= j)) | ((tie == 0) & (lost | (x > y)))
    return tl.where(left, x, y), tl.where(left, i, j)


@triton.jit
def join_argmin(x, i, y, j):
    """NaN before anything, then the lowest position."""
    lost = x != x
    tie = (x == y) | (lost & (y != y))
    left = (tie & (i <= j)) | ((tie == 0) & (lost | (x < y)))
    return tl.where(left, x, y), tl.where(left, i, j)


@triton.jit
def first_of(lanes, top, positions):
    """The lowest position of a NaN, or else of what is `top`: the largest or smallest of all."""
    return tl.min(tl.where((lanes == top) | (lanes != lanes), positions, 9223372036854775807), 1, keep_dims=True)


@triton.jit
def fold_argmax(lanes, positions):
    """The result over all lanes, by two folds that take less time than one of pairs."""
    top = tl.reduce(lanes, 1, join_max, keep_dims=True)
    return top, first_of(lanes, top, positions)


@triton.jit
def fold_argmin(lanes, positions):
    """The result over all lanes, by two folds that take less time than one of pairs."""
    top = tl.reduce(lanes, 1, join_min, keep_dims=True)
    return top, first_of(lanes, top, positions)


@triton.jit
def join_welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Means, sums of squared differences, counts."""
    n = n_a + n_b
    share = tl.where(n_b == 0, 0.0, n_b / tl.where(n == 0, 1.0, n))
    delta = tl.where((n_a == 0) | (n_b == 0), 0.0, mean_b - mean_a)
    mean = tl.where(n_a == 0, mean_b, mean_a + delta * share)
    return mean, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def welford_about(mean, means, m2s, counts, n):
    """The result of `n` elements with this mean, given the states of all lanes. With an infinity, both are NaN."""
    delta = tl.where(counts == 0, 0.0, means - mean)
    m2 = tl.sum(m2s + delta * delta * counts, 1, keep_dims=True)
    return tl.where((m2 != m2) & (n > 1), m2, mean), m2, n


@triton.jit
def fold_welford(means, m2s, counts):
    """The result over all lanes: first the mean of all, then the differences of each lane from it."""
    n = tl.sum(counts, 1, keep_dims=True)
    mean = tl.sum(means * (counts / tl.where(n == 0, 1.0, n)), 1, keep_dims=True)
    return welford_about(mean, means, m2s, counts, n)


@triton.jit
def fold_counted_welford(means, m2s, counts, number):
    """The same if the number of elements of all lanes is known.

    Triton 3.6 lets every thread sum all lanes of a value that depends on no load: 200 us for a row of 8192.
    """
    whole = tl.cast(number, means.dtype)
    mean = tl.sum(means * (counts / tl.maximum(whole, 1.0)), 1, keep_dims=True)
    return welford_about(mean, means, m2s, counts, tl.full(mean.shape, whole, means.dtype))


@triton.jit
def add_welford(mean, m2, x, share):
    """One more element, which is this share of all so far: the same in every lane, so that no lane divides."""
    delta = x - mean
    mean = mean + delta * share
    return mean, m2 + delta * (x - mean)


@triton.jit
def add_welford_inside(mean, m2, x, share, inside):
    """One more element where there is one."""
    mean_x, m2_x = add_welford(mean, m2, x, share)
    return tl.where(inside, mean_x, mean), tl.where(inside, m2_x, m2)


@triton.jit
def softmax_scale(x, top):
    """exp(x - top), and 0 of minus infinity, whatever top is."""
    return tl.where(x == float("-inf"), 0.0, libdevice.exp(x - top))


@triton.jit
def join_softmax(top_a, sum_a, top_b, sum_b):
    """Maxima, sums of exp(x - maximum), by one power: of the larger of the two the power is 1.

    It is 1 for equal infinities too: `tl.minimum` takes the number if the difference is none.
    """
    left = top_a > top_b
    power = libdevice.exp2(tl.minimum(tl.abs(top_a - top_b) * -1.4426950408889634, 0.0))
    total = tl.fma(tl.where(left, sum_b, sum_a), power, tl.where(left, sum_a, sum_b))
    return maximum(top_a, top_b), total


@triton.jit
def add_softmax(top, total, x):
    """One more element, by one power: of the larger of the two the power is 1. Of a plus infinity, see fold_softmax."""
    up = x > top
    power = libdevice.exp2(tl.where(up, top - x, x - top) * 1.4426950408889634)
    power = tl.where(x == float("-inf"), 0.0, power)
    return tl.where(up | (x != x), x, top), tl.where(up, total * power + 1.0, total + power)


@triton.jit
def fold_softmax(top_lanes, total_lanes):
    """The result over all lanes: the maximum first, then sums scaled once. NaN where the maximum is plus infinity."""
    top = tl.reduce(top_lanes, 1, join_max, keep_dims=True)
    return top, tl.sum(total_lanes * softmax_scale(top_lanes, top), 1, keep_dims=True)


@triton.jit
def join_logaddexp(x, y):
    """log(exp(x) + exp(y)), of infinities too."""
    top = tl.where((x != x) | (x > y), x, y)
    made = top + libdevice.log1p(libdevice.exp(tl.abs(x - y) * -1))
    return tl.where((x == y) & (tl.abs(x) == float("inf")), x, made)


# -- attention: softmax block by block --------------------------------------------------------------------------------


@triton.jit
def fast_tanh(x):
    """Within 3e-7 of it, by one power and one quotient."""
    two = tl.full(x.shape, 2.0, tl.float32)
    return 1.0 - libdevice.fast_dividef(two, 1.0 + libdevice.exp2(x * 2.8853900817779268))


@triton.jit
def scaled_softmax_step(x, top, total, factor: tl.constexpr):
    """The same as `softmax_step`, of scores of which `factor` (above 0) times as much is the exponent of 2.

    Maxima are of exponents. Scores are multiplied and shifted in one instruction.
    """
    new = tl.maximum(top, tl.max(x, 1) * factor)
    shift = tl.where(new == float("-inf"), 0.0, new)
    p = libdevice.exp2(tl.fma(x, tl.full(x.shape, factor, tl.float32), tl.broadcast_to(shift[:, None] * -1.0, x.shape)))
    rescale = libdevice.exp2(top - shift)
    return p, new, total * rescale + tl.sum(p, 1), rescale


@triton.jit
def shifted_power(x, shift, factor: tl.constexpr):
    """2 to the power of x * factor + shift, multiplied and shifted in one instruction."""
    return libdevice.exp2(tl.fma(x, tl.full(x.shape, factor, tl.float32), tl.broadcast_to(shift, x.shape)))


@triton.jit
def softmax_step(x, top, total, log2_base: tl.constexpr):
    """One more block of a row's scores: base^(x - top), top and sum so far, and what results so far scale by.

    Powers are fast ones, of numbers up to 0, as precise as the difference; the tiniest are 0.
    """
    new = tl.maximum(top, tl.max(x, 1))
    shift = tl.where(new == float("-inf"), 0.0, new)
    down, step = x - shift[:, None], top - shift
    if log2_base != 1.0:
        down, step = down * log2_base, step * log2_base
    p, rescale = libdevice.exp2(down), libdevice.exp2(step)
    return p, new, total * rescale + tl.sum(p, 1), rescale
