"""Pointwise operators against eager: all dtypes, special values, broadcasts, strides, empty and 0-d tensors."""

from __future__ import annotations

import math

import pytest
import torch
from support.kernels import compiled_agrees
from support.lowering import agree
from support.thorough import one_row_in, takes_turns

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TWO = (
    (torch.float32, torch.int64), (torch.bfloat16, torch.uint8), (torch.float64, torch.int32),
    (torch.float16, torch.int8), (torch.float32, torch.int16),
)  # fmt: skip
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 3.75, -3.25, 1e-30, -1e30, math.inf, -math.inf, math.nan, 7.0, 0.999]


def values(dtype):
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL, dtype=dtype).reshape(4, 4)
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True]).repeat(4).reshape(4, 4)
    info = torch.iinfo(dtype)
    return torch.tensor(
        [0, 1, 2, 3, 5, 7, 11, info.max, info.min, info.max - 1, 4, 6, 8, 9, 10, 100], dtype=dtype
    ).reshape(4, 4)


def close(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype in (torch.bfloat16, torch.float16) else {}


UNARY_ALL = (
    "abs",
    "neg",
    "sign",
    "square",
    "ceil",
    "floor",
    "trunc",
    "round",
    "isfinite",
    "isinf",
    "isnan",
    "logical_not",
)
UNARY_FLOAT = (
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma",
    "sigmoid", "sinc", "deg2rad", "rad2deg", "angle",
)  # fmt: skip
PREDICATES = ("isposinf", "isneginf", "signbit", "sgn", "nan_to_num", "positive")


@takes_turns("dtypes")
@pytest.mark.parametrize("dtypes", TWO, ids=str)
@pytest.mark.parametrize("name", (*UNARY_ALL, *UNARY_FLOAT, *PREDICATES))
def test_functions_of_one_number(name, dtypes):
    for dtype in dtypes:
        agree(getattr(torch, name), values(dtype), **close(dtype))


@pytest.mark.parametrize("name", ["isnan", "isfinite", "sqrt", "exp", "logical_not", "bitwise_not", "signbit"])
def test_functions_of_bools(name):
    agree(getattr(torch, name), values(torch.bool))


@one_row_in(4)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "name", ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"]
)
def test_bits(name, dtype):
    agree(getattr(torch, name), values(dtype), values(dtype).flip(0) % 7, exact=True)
    agree(torch.bitwise_not, values(dtype), exact=True)


ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge")
FLOATING = ("div", "atan2", "copysign", "hypot", "nextafter", "xlogy", "logaddexp", "logaddexp2", "heaviside", "pow")


@takes_turns("dtypes")
@pytest.mark.parametrize("dtypes", TWO, ids=str)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_and_comparisons(name, dtypes):
    for x in map(values, dtypes):
        agree(getattr(torch, name), x, x.flip(0, 1), exact=True)
        agree(getattr(torch, name), x[:, :1], x[2], exact=True)


@one_row_in(4)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_functions_of_two_floats(name, dtype):
    if name == "nextafter" and dtype == torch.float16:
        pytest.skip("eager does not have it for float16")
    x = values(dtype)
    stays = {"aten.nextafter.default"} if (name, dtype) == ("nextafter", torch.bfloat16) else set()
    agree(getattr(torch, name), x, x.t().contiguous().flip(0), extern=stays, **close(dtype))


@pytest.mark.parametrize(
    "name", ["logical_and", "logical_or", "logical_xor", "add", "mul", "bitwise_xor", "maximum", "eq"]
)
def test_bools(name):
    agree(getattr(torch, name), values(torch.bool), values(torch.bool).flip(1), exact=True)


@one_row_in(3)
@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8], ids=str)
def test_division(dtype, mode):
    x = values(dtype)
    y = x.flip(0) if dtype.is_floating_point else x.flip(0) % 5 + 1
    agree(lambda x, y: torch.div(x, y, rounding_mode=mode), x, y)
    agree(lambda x: (torch.div(x, 3, rounding_mode=mode), x % 3, torch.fmod(x, 3)), x)
    agree(lambda x, y: (torch.remainder(x, y), torch.fmod(x, y), torch.floor_divide(x, y)), x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits_are_rounded_before_they_become_integers(dtype):
    """Each difference is a whole unit: quotients, dividends that are numbers, and what is rounded to decimals."""

    def quotients(x, y):
        cut = torch.div(x, y, rounding_mode="trunc"), torch.div(x[0], y, rounding_mode="trunc")
        return *cut, torch.div(x, 0.3, rounding_mode="trunc"), 3.7 // y, 3.7 % y

    def decimals(x, y):
        return (x * y).round(decimals=1), x.round(decimals=4), x.round(decimals=-1), x.round(decimals=2)

    x, y = torch.linspace(-70, 71, 999).to(dtype), torch.linspace(0.6, 3, 999).to(dtype)
    compiled_agrees(quotients, x, y, rtol=0, atol=0)
    compiled_agrees(decimals, x, y, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_steps_of_16_bit_quotients_that_are_rounded_down(dtype):
    """Eager rounds each: 8616 // -9 is -959 in float16."""
    x = torch.linspace(-70, 71, 2999).to(dtype)
    special = torch.tensor([8616.0, 0, -0.0, math.inf, -math.inf, math.nan, 1e-6] * 3)
    y = torch.cat([torch.linspace(-3, 3, 2978), special]).to(dtype)

    def quotients(x, y):
        return x // y, y // x, 3 // y, 0.3 // x, x[5] // y, torch.div(y, x, rounding_mode="floor"), x // 0.3

    compiled_agrees(quotients, x, y, rtol=0, atol=0)
    compiled_agrees(lambda n, y: (n // y, y // n), torch.arange(-1499, 1500), y, rtol=0, atol=0)
    signs = torch.compile(lambda x, y: (x // y).nan_to_num(), backend="regraft")(x, y).signbit()
    assert torch.equal(signs, (x // y).nan_to_num().signbit())


@takes_turns("dtype")
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 7.0, 16, 17, 0.5, -0.5, -1, -2, -3, 2.5])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8], ids=str
)
def test_powers(exponent, dtype):
    if not dtype.is_floating_point and (isinstance(exponent, int) and exponent < 0):
        pytest.skip("eager refuses negative powers of integers")
    agree(lambda x: x**exponent, values(dtype), **close(dtype))


def test_powers_of_numbers():
    agree(
        lambda x: (2**x, 2.5**x, torch.float_power(x, 2), torch.float_power(x, -5)),
        torch.tensor([0.0, 1.0, -2.0, math.inf, math.nan]),
    )


@pytest.mark.parametrize("alpha", [1, 2, 0.5])
def test_alpha(alpha):
    x, y = torch.randn(3, 4), torch.randn(4)
    agree(
        lambda x, y: (torch.add(x, y, alpha=alpha), torch.sub(x, y, alpha=alpha), torch.rsub(x, y, alpha=alpha)), x, y
    )


def test_clamps():
    x, low, high = values(torch.float32), torch.full((4,), -1.0), torch.tensor([[2.0], [-2.0], [math.nan], [math.inf]])
    agree(lambda x: (x.clamp(-1, 1), x.clamp(min=0.5), x.clamp(max=0), x.clamp(2, 1)), x, exact=True)
    agree(lambda x, a, b: (x.clamp(a, b), torch.clamp_min(x, a), torch.clamp_max(x, b)), x, low, high, exact=True)
    agree(lambda x: (x.clamp(0, 5), x.clamp(min=1.5)), values(torch.int64), exact=True)


def test_choices():
    x, mask = values(torch.float32), values(torch.bool)
    agree(
        lambda x, m: (torch.where(m, x, 0.0), torch.where(m, 1, x.half()), torch.where(m, x.long(), 3)),
        x.nan_to_num(0, 9, 9),
        mask,
    )
    agree(lambda x, m: (x.masked_fill(m, -math.inf), x.masked_fill(m[0], torch.tensor(2))), x, mask)
    agree(lambda x, m: x.bfloat16().masked_fill(m, 0.1), x, mask, exact=True)


def test_combinations_of_three():
    x, a, b = torch.randn(3, 4), torch.randn(4), torch.rand(3, 1) + 0.5
    agree(lambda x, a, b: (torch.addcmul(x, a, b, value=0.3), torch.addcdiv(x, a, b, value=-2)), x, a, b)
    agree(
        lambda x, a, b: (torch.lerp(x, a.expand(3, 4), b), torch.lerp(x, x + a, 0.7), torch.lerp(x, x + a, 0.2)),
        x,
        a,
        b,
    )


def test_other_functions():
    x = values(torch.float32)
    agree(lambda x: (torch.frac(x), torch.round(x, decimals=2), torch.round(x * 100, decimals=-1)), x)
    agree(lambda x: [torch.round(x, decimals=n) for n in (308, -308, 309, -309, -(2**63), 2**63 - 1)], x.double())
    agree(
        lambda x: (torch.nan_to_num(x, 1.0, 2.0, -3.0), torch.special.xlog1py(x, x.abs()), torch.ldexp(x, x.sign())), x
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_two_beyond_float32(dtype):
    torch._dynamo.reset()
    x, exponents = torch.tensor([1e-20, 1e-38, 3.0, -1.0], dtype=dtype), torch.tensor([130, 200, -140, 7])
    compiled = torch.compile(lambda x, n: torch.ldexp(x, n) + 0, backend="regraft", options={"strict": True})
    for given in (exponents, exponents.short(), exponents.float()):
        torch.testing.assert_close(compiled(x, given), torch.ldexp(x, given) + 0, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_powers_of_two_by_integers(dtype):
    """Rounded once, subnormal numbers too; integers of 64 bits wrap around, as eager's do."""
    numbers = [1.5, -3.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-126 * 1.337, 2.0**-140, 1.999, 6e4, 2.0**-14]
    exponents = [0, 1, -1, 14, -24, -120, -127, -140, -149, -160, 127, 128, 130, 250, 277, -277, 2**31 - 1, -(2**31)]
    x = torch.tensor(numbers).to(dtype)[:, None].repeat(1, len(exponents))
    n = torch.tensor(exponents)
    agree(lambda x, n: torch.ldexp(x, n), x, n, exact=True)
    agree(lambda x, n: torch.ldexp(x[:, :3], n), x, torch.tensor([2**31, 2**32 + 1, -(2**40) - 3]), exact=True)
    agree(lambda x, n: torch.ldexp(x, n.to(torch.int16)), x, n.clamp(-300, 300), exact=True)
    agree(lambda x, n: torch.ldexp(x, n.to(torch.uint8)), x, n.clamp(0, 255), exact=True)
    compiled_agrees(lambda x, n: torch.ldexp(x, n), x, n)


@pytest.mark.parametrize("into", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_casts(dtype, into):
    x = torch.tensor([0, 1, 2, 3, 100], dtype=dtype)
    agree(lambda x: x.to(into), x, exact=True)


def test_casts_to_16_bits_round_inside_a_chain():
    x = torch.randn(64)
    made = agree(lambda x: x.to(torch.bfloat16).float() * 3, x, exact=True)
    assert "round_bfloat16" in str([item.stores for item in made.program.items])


def test_copies_keep_or_change_the_order_of_memory():
    x = torch.randn(2, 3, 4, 5)
    agree(lambda x: (x.clone(), x.permute(0, 3, 1, 2).clone(), x.to(memory_format=torch.channels_last)), x)
    agree(lambda x: (x.transpose(1, 2).contiguous(), torch.fill(x, 2.5), aten.zero(x), aten.copy(x, x[0])), x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(6, 8)[::2, 1::3],
        torch.randn(4, 1).expand(4, 5),
        torch.randn(3, 4).t(),
    ],
    ids=["0-d", "empty", "strided", "expanded", "transposed"],
)
def test_all_layouts(x, dynamic):
    agree(lambda x: (x + 1, x * x.exp(), x > 0, torch.where(x > 0, x, x.neg())), x, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_tensors_without_dims_are_rounded_where_eager_rounds_them(dtype):
    """As the second operand of products and quotients they are not: 3e5 is no float16, and the product is one."""

    def function(x, n):
        return x * n, n * x, x / n, n / x, x + n, torch.div(x, n, rounding_mode="trunc"), x.clone().mul_(n)

    x = (torch.arange(1, 20) * 3e-4).to(dtype)
    for number in (3e5, 1.0036, 2.0**-20):
        for n in (torch.tensor(number), torch.tensor(number, dtype=torch.float64)):
            compiled_agrees(function, x, n, rtol=0, atol=0)


@pytest.mark.parametrize("function", [lambda x, n: x * n, lambda x, n: x / n, lambda x, n: n / (x + 1000)])
def test_a_changing_number_that_float16_does_not_hold(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True)
    x = torch.linspace(-2e-3, 2e-3, 9).half()
    for number in (3e5, 65536.0, 1e-9, -2e5):
        torch.testing.assert_close(compiled(x, number), function(x, number), rtol=2e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * x).nan_to_num(),
        lambda x: (x * x).nan_to_num(posinf=7.0) * 0.5,
        lambda x: (x * -x).nan_to_num(neginf=-3.0) + 1,
        lambda x: torch.where((x * x).isinf(), 1.0, x * x),
        lambda x: (x * x).clamp(max=torch.finfo(x.dtype).max),
        lambda x: torch.where((x * x).isfinite(), x * x, 0.0).sum(),
    ],
)
def test_what_overflows_16_bits_is_infinite(function, dtype):
    """Operators that look for infinities see the rounded value, as eager does."""
    most = torch.finfo(dtype).max
    x = torch.tensor([1.5, most**0.5 * 1.2, -(most**0.5) * 2, most / 2, 0.0, math.nan, math.inf]).to(dtype)
    compiled_agrees(function, x, rtol=2**-7, atol=0)
