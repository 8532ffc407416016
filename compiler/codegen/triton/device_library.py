"""Functions that generated kernels call: eager's meaning where Triton's own operations differ.

Functions that reduce several values to one are in `device_reductions`. The generator copies the functions that a kernel
calls, directly or not, into its source, so that the source stands alone. Both files are read as text: they need Triton
only if they are imported.
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
def bytes_to_floats(x, bits: tl.constexpr, less: tl.constexpr):
    """Four bytes of a register at a time as float32, less a whole number: `bits` makes those of 2**23 + x of them."""
    made = tl.inline_asm_elementwise(bits, "=r,=r,=r,=r,r", [x], tl.int32, is_pure=True, pack=4)
    return made.to(tl.float32, bitcast=True) - (8388608.0 + less)


@triton.jit
def every_other(x):
    """Four 16-bit floats of a lane at a time, in the order 0, 2, 1, 3."""
    change: tl.constexpr = "prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632;"
    return tl.inline_asm_elementwise(change, "=r,=r,r,r", [x], x.dtype, is_pure=True, pack=4)


@triton.jit
def add_products_of_bytes(total, x, w, multiply: tl.constexpr):
    """Products of bytes by tensor cores added to sums over four lanes and four places, for `own_sums` to find.

    `x`, of which `every_other` has come, and the bytes `w` are those of four places of a lane, all of one column, as
    are its warp's; `multiply` takes them from $4 and $5, and $6, the sums from $7 on.
    """
    constraints: tl.constexpr = "=f,=f,=f,=f,r,r,r,f,f,f,f"
    return tl.inline_asm_elementwise(multiply, constraints, [x, w, total], tl.float32, is_pure=True, pack=4)


@triton.jit
def own_sums(total):
    """Of what tensor cores have summed, what is of a lane's own column: on the diagonal of 8 x 8; 0 elsewhere."""
    diagonal: tl.constexpr = (
        "{ .reg .b32 lane, line, at; .reg .f32 own; .reg .pred here, second; mov.u32 lane, %laneid; "
        "and.b32 line, lane, 4; setp.ne.u32 second, line, 0; shr.u32 line, lane, 3; and.b32 at, lane, 3; "
        "setp.eq.u32 here, line, at; selp.f32 own, $5, $4, second; selp.f32 $0, own, 0f00000000, here; "
        "mov.f32 $1, 0f00000000; mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; }"
    )
    constraints: tl.constexpr = "=f,=f,=f,=f,f,f,f,f"
    return tl.inline_asm_elementwise(diagonal, constraints, [total], tl.float32, is_pure=True, pack=4)


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
    """The result of a division by 0 on GPUs: all 32 bits set."""
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
    unit = libdevice.copysign(tl.full(y.shape, 1.0, y.dtype), y)
    whole = tl.where(near == 0, libdevice.copysign(near * 0.0, x) * unit, whole)
    return tl.where(y == 0, x * (unit * float("inf")), whole)


@triton.jit
def trunc_quotient_float(x, y):
    """Towards 0."""
    return libdevice.trunc(quotient(x, y))


@triton.jit
def integer_power(x, y):
    """Eager's: by repeated squaring, which wraps; a negative exponent gives 0 but for bases 1 and -1."""
    base, left = x + y * 0, tl.where(y < 0, y * 0, y)  # a base that is a number has the shape of the exponent
    result = base * 0 + tl.full([1, 1], 1, x.dtype)
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


# -- indices ----------------------------------------------------------------------------------------------------------


@triton.jit
def floor_div(a, b):
    """Towards minus infinity; the divisor may be a number of the program's text, and is not 0."""
    whole = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), whole - 1, whole)


@triton.jit
def floor_mod(a, b):
    """The sign of the divisor."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def wrapped(at, size):
    """Negative indices count from the end."""
    return tl.where(at < 0, at + size, at)
