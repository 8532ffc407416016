"""Functions that generated kernels call: eager's meaning where Triton's own operations differ, and reductions.

The generator copies those that a kernel uses into its source, with what they call, so that the source stands alone.
This module is read as text, and needs Triton only if it is imported.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# -- order of kernels -------------------------------------------------------------------------------------------------


@triton.jit
def let_later_begin():
    """Let kernels after this one begin that wait by themselves."""
    gdc_launch_dependents()


@triton.jit
def await_earlier():
    """Wait until all kernels before this one have ended, and what they wrote can be read."""
    gdc_wait()


# -- arithmetic -------------------------------------------------------------------------------------------------------


@triton.jit
def minus_zero(dtype):
    """-0.0 of a dtype, as a block of one element that no compiler sees through.

    Triton keeps no sign of a 0 (what equals 0 becomes the null value), and of `selp.f32 r, 1.0, -0.0, c` NVIDIA's
    assembler makes an instruction that gives 1.0 or +0.0.
    """
    nothing = tl.full([1, 1], 0, tl.int32)
    bits = tl.inline_asm_elementwise("mov.b32 $0, 0x80000000;", "=r,r", [nothing], tl.int32, is_pure=True, pack=1)
    return bits.to(tl.float32, bitcast=True).to(dtype)


@triton.jit
def sign(x):
    """0 of NaN, as eager has it."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def quotient(x, y):
    """Rounded as IEEE has it."""
    return x / y if x.dtype == tl.float64 else tl.div_rn(x, y)


@triton.jit
def reciprocal(x):
    """Rounded as IEEE has it."""
    return quotient(tl.full([1, 1], 1.0, x.dtype), x)


@triton.jit
def square_root(x):
    """Rounded as IEEE has it."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return quotient(tl.full([1, 1], 1.0, x.dtype), 1.0 + libdevice.exp(x * -1))


@triton.jit
def tensor_float(x):
    """float32 rounded to the 10 bits that tensor cores take, as libraries have it: they would cut the rest off."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def fast_exp(x):
    """Within 1e-5 of it, relatively, by one power of two."""
    return libdevice.exp2(x * 1.4426950408889634)


@triton.jit
def fast_quotient(x, y):
    """Within two units in the last place."""
    return x / y


@triton.jit
def fast_reciprocal(x):
    """Within two units in the last place."""
    return 1.0 / x


@triton.jit
def fast_sigmoid(x):
    """By one power and one division, of a number from 1 on; below 1e-37 it is 0."""
    one = tl.full(x.shape, 1.0, tl.float32)
    return libdevice.fast_dividef(one, one + libdevice.exp2(x * -1.4426950408889634))


@triton.jit
def horner(x, total, factor: tl.constexpr):
    """One step of Horner's scheme, total * x + factor, rounded once."""
    return tl.fma(total, x, tl.full(x.shape, factor, tl.float32))


@triton.jit
def tanh_single(x):
    """Within three units in the last place, without a branch: near 0 an odd polynomial of degree 11, else one power."""
    size = tl.abs(x)
    square = size * size
    p = horner(square, tl.full(x.shape, -0.006282464601099491, tl.float32), 0.021077752113342285)
    p = horner(square, p, -0.05385385453701019)
    p = horner(square, p, 0.13332602381706238)
    p = horner(square, p, -0.33333319425582886)
    two = tl.full(x.shape, 2.0, tl.float32)
    far = 1.0 - libdevice.fast_dividef(two, 1.0 + libdevice.exp2(size * 2.8853900817779268))
    return libdevice.copysign(tl.where(size < 0.55, tl.fma(size * square, p, size), far), x)


@triton.jit
def tanh_double(x):
    """The library's."""
    return libdevice.tanh(x)


@triton.jit
def tanh(x):
    """The hyperbolic tangent; the library's has a branch for each element, which takes long to compile and to run."""
    return tanh_double(x) if x.dtype == tl.float64 else tanh_single(x)


@triton.jit
def normal_tail(x):
    """Twice the part of the normal distribution beyond |x|, as a power of two; float32.

    The exponent is a polynomial of degree 8 without a constant, fitted to log2(erfc(|x| / sqrt(2))) on [0, 5.5]: the
    error of the part is below 1.6e-8 and below 0.4% of it. From there on it falls at least as fast, to 0 at infinity.
    """
    size = tl.abs(x)
    p = horner(size, tl.full(x.shape, -1.954024128281162e-06, tl.float32), 3.0173898267094046e-05)
    p = horner(size, p, -0.00014858001668471843)
    p = horner(size, p, -0.00021360907703638077)
    p = horner(size, p, 0.0071459547616541386)
    p = horner(size, p, -0.05254168063402176)
    p = horner(size, p, -0.4591968357563019)
    p = horner(size, p, -1.1511061191558838)
    return libdevice.exp2(p * size)


@triton.jit
def normal_cdf_single(x):
    """From the tail on either side, so that nothing cancels where the result is small."""
    tail = normal_tail(x)
    return tl.where(x > 0, horner(tail, tl.full(x.shape, -0.5, tl.float32), 1.0), tail * 0.5)


@triton.jit
def normal_cdf_double(x):
    """By the error function."""
    return (libdevice.erf(x * 0.70710678118654752440) + 1.0) * 0.5


@triton.jit
def normal_cdf(x):
    """The part of the normal distribution below x."""
    return normal_cdf_double(x) if x.dtype == tl.float64 else normal_cdf_single(x)


@triton.jit
def normal_pdf_single(x):
    """By a power of two."""
    return libdevice.exp2(x * x * -0.72134752044448170) * 0.39894228040143267794


@triton.jit
def normal_pdf_double(x):
    """By the exponential function."""
    return libdevice.exp(x * x * -0.5) * 0.39894228040143267794


@triton.jit
def normal_pdf(x):
    """The density of the normal distribution."""
    return normal_pdf_double(x) if x.dtype == tl.float64 else normal_pdf_single(x)


@triton.jit
def maximum(x, y):
    """NaN where either is: one instruction for float32."""
    if x.dtype == tl.float32:
        found = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    else:
        found = tl.where((x != x) | (x > y), x, y)
    return found


@triton.jit
def minimum(x, y):
    """NaN where either is: one instruction for float32."""
    if x.dtype == tl.float32:
        found = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    else:
        found = tl.where((x != x) | (x < y), x, y)
    return found


@triton.jit
def divisor(y):
    """A divisor of integers that always gives something: 1 for 0, and for -1, by which the least integer overflows."""
    special = (y == 0) | (y == -1) if y.dtype.is_int_signed() else y == 0
    return tl.where(special, y * 0 + tl.full([1, 1], 1, y.dtype), y)


@triton.jit
def of_nothing(y):
    """What GPUs give for a division by 0: all of 32 bits."""
    return y * 0 + tl.full([1, 1], -1, tl.int64).to(tl.uint32).to(y.dtype)


@triton.jit
def trunc_quotient(x, y):
    """Integers, towards 0."""
    whole = x // divisor(y)
    whole = tl.where(y == -1, 0 - x, whole) if x.dtype.is_int_signed() else whole
    return tl.where(y == 0, of_nothing(y), whole)


@triton.jit
def trunc_rest(x, y):
    """Integers: the sign of the dividend."""
    return tl.where(y == 0, of_nothing(y), x % divisor(y))


@triton.jit
def remainder(x, y):
    """The sign of the divisor, as Python's %."""
    rest = libdevice.fmod(x, y) if x.dtype.is_floating() else trunc_rest(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def floor_quotient(x, y):
    """Integers, towards minus infinity."""
    whole = trunc_quotient(x, y)
    return tl.where((y != 0) & (x % divisor(y) != 0) & ((x < 0) != (y < 0)), whole - 1, whole)


@triton.jit
def floor_quotient_float(x, y):
    """Eager's: the quotient without the remainder, to the nearest integer below."""
    rest = libdevice.fmod(x, y)
    near = quotient(x - rest, y)
    near = tl.where((rest != 0) & ((y < 0) != (rest < 0)), near - 1.0, near)
    whole = libdevice.floor(near)
    whole = tl.where(near - whole > 0.5, whole + 1.0, whole)
    exact = quotient(x, y)
    whole = tl.where(near == 0, libdevice.copysign(near * 0.0, exact), whole)
    return tl.where(y == 0, exact, whole)


@triton.jit
def trunc_quotient_float(x, y):
    """Towards 0."""
    return libdevice.trunc(quotient(x, y))


@triton.jit
def integer_power(x, y):
    """Eager's: by repeated squaring, which wraps; a negative exponent gives 0 but for bases 1 and -1."""
    result, base, left = x * 0 + tl.full([1, 1], 1, x.dtype), x, tl.where(y < 0, y * 0, y)
    for _ in range(x.dtype.primitive_bitwidth):
        result = tl.where((left & 1) == 1, result * base, result)
        base = base * base
        left = left >> 1
    unit = (x == 1).to(x.dtype)
    if x.dtype.is_int_signed():
        unit = tl.where(x == -1, tl.where((y & 1) == 1, x, x * x), unit)
    return tl.where(y < 0, unit, result)


@triton.jit
def shifted_left(x, y):
    """Shifting by too much, or by less than nothing, leaves nothing."""
    inside = (y >= 0) & (y < x.dtype.primitive_bitwidth)
    return tl.where(inside, x << tl.where(inside, y, y * 0), x * 0)


@triton.jit
def shifted_right(x, y):
    """Shifting by too much, or by less than nothing, leaves the sign."""
    last = x.dtype.primitive_bitwidth - 1
    inside = (y >= 0) & (y <= last)
    shifted = x >> tl.where(inside, y, y * 0 + last)
    return shifted if x.dtype.is_int_signed() else tl.where(inside, shifted, x * 0)


@triton.jit
def sign_bit(x):
    """Of zeros and NaN too."""
    integer = tl.int64 if x.dtype == tl.float64 else tl.int32
    return x.to(integer, bitcast=True) < 0


@triton.jit
def digamma(x):
    """Recurrence up to 10, then the asymptotic series; reflection below 0."""
    one, pi = tl.full([1, 1], 1.0, x.dtype), tl.full([1, 1], 3.14159265358979323846, x.dtype)
    whole = x == libdevice.trunc(x)
    mirrored = (x < 0) & (whole == 0)
    shift = tl.where(mirrored, quotient(pi * -1.0, libdevice.tan((x - libdevice.trunc(x)) * pi)), 0.0)
    z = tl.where(mirrored, 1.0 - x, x)
    for _ in range(10):
        small = z < 10
        shift = tl.where(small, shift - quotient(one, z), shift)
        z = tl.where(small, z + 1.0, z)
    s = quotient(one, z * z)
    tail = s * 8.33333333333333333333e-2 - 2.10927960927960927961e-2
    tail = s * tail + 7.57575757575757575758e-3
    tail = s * tail - 4.16666666666666666667e-3
    tail = s * tail + 3.96825396825396825397e-3
    tail = s * tail - 8.33333333333333333333e-3
    tail = s * tail + 8.33333333333333333333e-2
    made = shift + libdevice.log(z) - quotient(one * 0.5, z) - s * tail
    made = tl.where((x < 0) & whole, float("nan"), made)
    return tl.where(x == 0, libdevice.copysign(one * float("inf"), x * -1.0), made)


# -- random numbers ---------------------------------------------------------------------------------------------------


@triton.jit
def philox(seed, offset, word: tl.constexpr):
    """One word of Philox 4x32, 10 rounds: key `seed`, counter `offset` (see `ir/philox.py`).

    Both halves of a product are one instruction where they are those of a product of 64 bits.
    """
    m0, m1 = tl.full([1, 1], 0xD2511F53, tl.uint64), tl.full([1, 1], 0xCD9E8D57, tl.uint64)
    w0, w1 = tl.full([1, 1], 0x9E3779B9, tl.uint32), tl.full([1, 1], 0xBB67AE85, tl.uint32)
    c0, c1 = offset.to(tl.uint32), (offset >> 32).to(tl.uint32)
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c2 = c0 ^ c0
    c3 = c2
    for _ in tl.static_range(10):
        left, right = m0 * c0.to(tl.uint64), m1 * c2.to(tl.uint64)
        c0, c1 = (right >> 32).to(tl.uint32) ^ c1 ^ k0, right.to(tl.uint32)
        c2, c3 = (left >> 32).to(tl.uint32) ^ c3 ^ k1, left.to(tl.uint32)
        k0, k1 = k0 + w0, k1 + w1
    chosen = c0 if word == 0 else c1 if word == 1 else c2 if word == 2 else c3
    return chosen.to(tl.int64)


@triton.jit
def lowbias32(x):
    """One round of Wellons' mixing."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * tl.full([1, 1], 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def hash32(number, key0, key1):
    """A keyed hash (see `ir/hash32.py`)."""
    mixed = lowbias32(number.to(tl.uint32, bitcast=True) ^ key0.to(tl.uint32, bitcast=True))
    return lowbias32(mixed + key1.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)


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
    """What lanes come to, by two folds that take less than one of pairs."""
    top = tl.reduce(lanes, 1, join_max, keep_dims=True)
    return top, first_of(lanes, top, positions)


@triton.jit
def fold_argmin(lanes, positions):
    """What lanes come to, by two folds that take less than one of pairs."""
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
def fold_welford(means, m2s, counts):
    """What lanes come to: the mean of all, then how each differs from it. With an infinity, both are NaN."""
    n = tl.sum(counts, 1, keep_dims=True)
    mean = tl.sum(means * (counts / tl.where(n == 0, 1.0, n)), 1, keep_dims=True)
    delta = tl.where(counts == 0, 0.0, means - mean)
    m2 = tl.sum(m2s + delta * delta * counts, 1, keep_dims=True)
    return tl.where((m2 != m2) & (n > 1), m2, mean), m2, n


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
    """Maxima, sums of exp(x - maximum)."""
    top = tl.where((top_a != top_a) | (top_a > top_b), top_a, top_b)
    return top, sum_a * softmax_scale(top_a, top) + sum_b * softmax_scale(top_b, top)


@triton.jit
def add_softmax(top, total, x):
    """One more element, by one power: of the larger of the two the power is 1. Of a plus infinity, see fold_softmax."""
    up = x > top
    power = libdevice.exp2(tl.where(up, top - x, x - top) * 1.4426950408889634)
    power = tl.where(x == float("-inf"), 0.0, power)
    return tl.where(up | (x != x), x, top), tl.where(up, total * power + 1.0, total + power)


@triton.jit
def fold_softmax(top_lanes, total_lanes):
    """What lanes come to: the maximum first, then every sum is scaled once. NaN where the maximum is plus infinity."""
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


# -- indices ----------------------------------------------------------------------------------------------------------


@triton.jit
def floor_mod(a, b):
    """The sign of the divisor."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def wrapped(at, size):
    """Negative indices count from the end."""
    return tl.where(at < 0, at + size, at)
