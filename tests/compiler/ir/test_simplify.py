"""Simplified values are the same, bit for bit."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples

from regraft.compiler.ir.evaluator import Evaluator
from regraft.compiler.ir.index.index import Loaded, Size, Var, add, mul
from regraft.compiler.ir.simplify import Simplifier, simplify
from regraft.compiler.ir.value import Const, Guarded, Load, Number, Op

F32, F64, I64, I32, BOOL = torch.float32, torch.float64, torch.int64, torch.int32, torch.bool
I, J = Var("i", 6), Var("j", 4)  # noqa: E741
X = Load("x", (I.index(),), F32)
N = Load("n", (I.index(),), I64)
B = Load("b", (I.index(),), BOOL)
TENSORS = {
    "x": torch.tensor([0.0, -0.0, 1.5, -2.25, float("nan"), float("inf")]),
    "n": torch.tensor([0, -1, 5, 2**62, -(2**63), 3]),
    "w": torch.tensor([0, -1, 2**31 - 1, -(2**31), 0x12345678, -19088744], dtype=torch.int32),
    "b": torch.tensor([True, False, True, True, False, False]),
}


def op(name, *args, dtype=None):
    return Op(name, args, dtype or args[-1].dtype)


def cast(value, dtype):
    return Op("cast", (value,), dtype)


def c(number, dtype=F32):
    return Const(number, dtype)


def position(index):
    return Number(index, I64)


def evaluated(value):
    grid = {I: torch.arange(6)[:, None], J: torch.arange(4)[None, :]}
    tensors = {name: t[:, None].expand(6, 4)[:, 0] for name, t in TENSORS.items()}
    return Evaluator(tensors, grid, {}, {}).value(value).expand(6, 4)


def bits(tensor):
    return tensor.view({F32: I32, F64: I64}.get(tensor.dtype, tensor.dtype))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (op("mul", X, c(1.0)), X),
        (op("div", X, c(8.0)), op("mul", X, c(0.125))),
        (op("div", X, c(-0.5)), op("mul", X, c(-2.0))),
        (op("div", X, c(3.0)), op("div", X, c(3.0))),
        (op("div", X, c(2.0**126)), op("div", X, c(2.0**126))),  # its reciprocal is denormal
        (op("div", X, c(0.0)), op("div", X, c(0.0))),
        (op("mul", c(1.0), X), X),
        (op("add", X, c(-0.0)), X),
        (op("add", X, c(0.0)), op("add", X, c(0.0))),
        (op("sub", X, c(0.0)), X),
        (op("sub", X, c(-0.0)), op("sub", X, c(-0.0))),
        (op("mul", X, c(0.0)), op("mul", X, c(0.0))),
        (op("div", X, c(1.0)), X),
        (op("add", N, c(0, I64)), N),
        (op("mul", N, c(0, I64)), c(0, I64)),
        (op("neg", op("neg", X)), X),
        (op("maximum", X, X), X),
        (op("eq", X, X, dtype=BOOL), op("eq", X, X, dtype=BOOL)),
        (op("where", c(True, BOOL), X, c(2.0)), X),
        (op("where", B, X, X), X),
        (op("logical_and", B, c(True, BOOL)), B),
        (op("logical_or", c(True, BOOL), B), c(True, BOOL)),
        (op("logical_not", op("logical_not", B)), B),
        (cast(cast(B, I64), F32), cast(B, F32)),
        (cast(cast(X, F64), F32), X),
        (cast(cast(X, I64), F32), cast(cast(X, I64), F32)),
        (cast(cast(N, F32), I64), cast(cast(N, F32), I64)),
        (cast(X, F32), X),
        (op("add", c(1.5), c(2.0)), c(3.5)),
        (cast(c(2.9), I64), c(2, I64)),
        (op("exp", c(0.0)), c(1.0)),
        (op("div", c(1.0), c(0.0)), c(float("inf"))),
        (op("floordiv", c(1, I64), c(0, I64)), op("floordiv", c(1, I64), c(0, I64))),
        (op("add", position(I.index()), c(3, I64)), position(I.index() + 3)),
        (op("floordiv", position(I.index() * 4 + J.index()), c(4, I64)), position(I.index())),
        (op("truncdiv", position(I.index() * 4 + J.index()), c(4, I64)), position(I.index())),
        (op("truncdiv", position(I.index() - 3), c(2, I64)), op("truncdiv", position(I.index() - 3), c(2, I64))),
        (cast(position(I.index()), F32), Number(I.index(), F32)),
        (position(3), c(3, I64)),
        (op("lt", position(I.index()), c(6, I64), dtype=BOOL), c(True, BOOL)),
        (op("ge", position(I.index()), c(6, I64), dtype=BOOL), c(False, BOOL)),
        (op("eq", position(I.index()), c(6, I64), dtype=BOOL), c(False, BOOL)),
        (op("ne", position(I.index()), position(I.index()), dtype=BOOL), c(False, BOOL)),
        (Guarded(op("lt", position(I.index()), c(6, I64), dtype=BOOL), X, c(0.0), F32), X),
        (Guarded(c(False, BOOL), X, c(0.0), F32), c(0.0)),
        (Load("x", (Loaded(position(J.index()), 6, True).index(),), F32), Load("x", (J.index(),), F32)),
        (Load("x", (Loaded(position(J.index() - 4), 6, True).index(),), F32), Load("x", (J.index() + 2,), F32)),
        (Load("x", (Loaded(position(I.index()), 5, True).index(),), F32),) * 2,
        (op("round_bfloat16", op("round_bfloat16", X)), op("round_bfloat16", X)),
        (op("round_float16", op("round_bfloat16", X)), op("round_float16", op("round_bfloat16", X))),
        (op("round_bfloat16", op("neg", op("round_bfloat16", X))), op("neg", op("round_bfloat16", X))),
        (op("round_bfloat16", cast(B, F32)), cast(B, F32)),
    ],
)
def test_identities(value, expected):
    assert simplify(value) is expected


def test_what_is_loaded_from_16_bits_is_rounded_already():
    assert simplify(op("round_bfloat16", X), {"x": torch.bfloat16}) is X
    assert simplify(op("round_bfloat16", X), {"x": torch.float16}) is not X


W = Load("w", (I.index(),), I32)
SHIFT, SHORT = (Number(mul(J.index(), 10), dtype) for dtype in (I64, I32))  # by up to 30
SHIFTED, SHIFTED_SHORT = op("rshift", cast(W, I64), SHIFT), op("rshift", W, SHORT)
MASKED, MASKED_SHORT = op("bitwise_and", SHIFTED, c(15, I64)), op("bitwise_and", SHIFTED_SHORT, c(15, I32))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (cast(SHIFTED, torch.int8), cast(SHIFTED_SHORT, torch.int8)),
        (cast(SHIFTED, I32), SHIFTED_SHORT),
        (SHIFTED, SHIFTED),
        (cast(op("rshift", cast(W, I64), c(31, I64)), torch.int16), cast(op("rshift", W, c(31, I32)), torch.int16)),
        (beyond := cast(op("rshift", cast(W, I64), c(32, I64)), torch.int16), beyond),
        (before := cast(op("rshift", cast(W, I64), Number(add(J.index(), -1), I64)), I32), before),
        (long := cast(op("rshift", N, c(3, I64)), I32), long),
        (MASKED, cast(MASKED_SHORT, I64)),
        (high := op("bitwise_and", SHIFTED, c(-16, I64)), high),
        (op("sub", MASKED, c(8, I64)), cast(op("sub", MASKED_SHORT, c(8, I32)), I64)),
        (cast(op("add", MASKED, c(1, I64)), F32), cast(op("add", MASKED_SHORT, c(1, I32)), F32)),
        (op("sub", MASKED, cast(W, I64)), op("sub", cast(MASKED_SHORT, I64), cast(W, I64))),  # may not fit
        (op("add", MASKED, c(2**31 - 2, I64)), op("add", cast(MASKED_SHORT, I64), c(2**31 - 2, I64))),
    ],
)  # fmt: skip
def test_words_stay_of_32_bits(value, expected):
    made = simplify(value)
    assert made == expected
    assert torch.equal(evaluated(made), evaluated(value))


@pytest.mark.parametrize(
    ("exponent", "bits_of_it"),
    [
        (op("bitwise_and", W, c(127, I32)), True),
        (op("sub", op("bitwise_and", W, c(127, I32)), c(126, I32)), True),
        (op("sub", op("bitwise_and", W, c(127, I32)), c(127, I32)), False),  # subnormal
        (op("bitwise_and", W, c(255, I32)), False),  # infinite
        (op("bitwise_and", cast(W, torch.uint8), c(127, torch.uint8)), True),
        (op("bitwise_and", N, c(63, I64)), True),
        (W, False),
    ],
)
def test_powers_of_two_by_few_integers(exponent, bits_of_it):
    value = op("pow", c(2.0), cast(exponent, F32))
    made = simplify(value)
    assert ("bitcast" in str(made)) == bits_of_it
    assert torch.equal(evaluated(made), evaluated(value))


@pytest.mark.parametrize("name", ["remainder", "fmod"])
@pytest.mark.parametrize("by", [1, -1])
def test_integers_leave_no_rest_of_one(name, by):
    assert simplify(op(name, N, c(by, I64), dtype=I64)) == c(0, I64)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", ["remainder", "fmod"])
def test_rests_of_powers_of_two_keep_every_bit(name, dtype):
    tiny, most = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    given = [0.0, -0.0, 0.3, -0.3, 7.9, -7.9, 8.0, -8.0, 1e9, -1e9, 16.0, -16.5, tiny, -tiny, tiny / 8, -tiny / 8]
    given += [most, -most, float("inf"), -float("inf"), float("nan"), 2.0**24 + 2, -(2.0**24) - 2, 2.0**60]
    x = torch.cat([torch.tensor(given, dtype=dtype), torch.randn(976, dtype=dtype) * 100])
    k = Var("k", 1000)
    loaded = Load("x", (k.index(),), dtype)
    for divisor in (1.0, 8.0, 2.0**60):
        made = simplify(op(name, loaded, c(divisor, dtype)))
        assert name not in str(made)
        found = Evaluator({"x": x}, {k: torch.arange(1000)}, {}, {}).value(made)
        expected = getattr(torch, name)(x, divisor)
        assert torch.equal(torch.isnan(found), torch.isnan(expected))
        known = ~torch.isnan(expected)
        assert torch.equal(bits(found[known]), bits(expected[known]))
    for divisor in (3.0, 0.5, -8.0, 0.0):
        assert name in str(simplify(op(name, loaded, c(divisor, dtype))))


def test_what_integers_can_be_decides_comparisons():
    rest = op("remainder", N, c(8, I64))
    held = op("minimum", op("maximum", N, c(-2, I64)), c(5, I64))
    for name, a, b, expected in (
        ("ge", rest, c(0, I64), True), ("lt", rest, c(8, I64), True), ("lt", rest, c(7, I64), None),
        ("gt", rest, c(7, I64), False), ("le", held, c(5, I64), True), ("lt", held, c(-2, I64), False),
        ("gt", c(6, I64), held, True), ("ge", held, rest, None), ("lt", N, c(8, I64), None),
    ):  # fmt: skip
        made = simplify(op(name, a, b, dtype=BOOL))
        assert made == (op(name, a, b, dtype=BOOL) if expected is None else c(expected, BOOL)), (name, a, b)


def test_sizes_decide_comparisons():
    size = Size("s", 2, None).index()
    assert simplify(op("gt", position(size), c(1, I64), dtype=BOOL)) is c(True, BOOL)
    undecided = op("gt", position(size), c(2, I64), dtype=BOOL)
    assert simplify(undecided) is undecided


def test_time_is_linear_in_shared_parts():
    value = X
    for _ in range(2_000):
        value = op("add", op("mul", value, c(1.0)), op("mul", value, value))
    start = time.perf_counter()
    simplifier = Simplifier()
    made = simplifier(value)
    assert time.perf_counter() - start < 10
    assert simplifier(made) is made


@st.composite
def values(draw, dtype=None, depth=4):
    dtype = dtype or draw(st.sampled_from([F32, I64, BOOL, I32, F64]))
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return leaf(draw, dtype)
    kind = draw(st.sampled_from(["unary", "binary", "binary", "where", "cast", "guard"]))

    def part(of):
        return draw(values(dtype=of, depth=depth - 1))

    if kind == "where":
        return op("where", part(BOOL), part(dtype), part(dtype))
    if kind == "guard":
        return Guarded(part(BOOL), part(dtype), part(dtype), dtype)
    if kind == "cast":
        return exact_cast(part(None), dtype)
    if dtype == BOOL:
        if kind == "unary":
            return op("logical_not", part(BOOL))
        if draw(st.booleans()):
            return op(
                draw(st.sampled_from(["logical_and", "logical_or", "bitwise_and", "bitwise_xor"])),
                part(BOOL),
                part(BOOL),
            )
        other = draw(st.sampled_from([F32, I64]))
        return op(draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])), part(other), part(other), dtype=BOOL)
    if kind == "unary":
        return op(draw(st.sampled_from(["neg", "abs"])), part(dtype))
    # Which of two zeros is the larger, eager decides by how it vectorizes.
    more = [] if dtype.is_floating_point else ["maximum", "minimum", "bitwise_and", "bitwise_or"]
    names = ["add", "sub", "mul", *more]
    return op(draw(st.sampled_from(names)), part(dtype), part(dtype))


def exact_cast(value, dtype):
    """Conversions of floats to integers out of range are nobody's promise."""
    if value.dtype.is_floating_point and not dtype.is_floating_point and dtype != BOOL:
        value = Op("gt", (value, Const(0.0, value.dtype)), BOOL)
    return cast(value, dtype)


def leaf(draw, dtype):
    if dtype == BOOL:
        return draw(st.sampled_from([B, c(True, BOOL), c(False, BOOL)]))
    if dtype.is_floating_point:
        number = draw(st.sampled_from([0.0, -0.0, 1.0, -1.5, float("inf"), float("nan")]))
        return draw(st.sampled_from([cast(X, dtype) if dtype != F32 else X, Const(number, dtype)]))
    number = Const(draw(st.sampled_from([0, 1, -1, 7, 2**31 - 1])), dtype)
    index = draw(st.sampled_from([I.index(), J.index(), I.index() * 4 + J.index() - 3]))
    return draw(st.sampled_from([number, Number(index, dtype), cast(N, dtype) if dtype != I64 else N]))


@settings(max_examples=examples(100, 250), deadline=None)
@given(values())
def test_random_values_keep_every_bit(value):
    made = simplify(value)
    assert made.dtype == value.dtype
    before, after = evaluated(value), evaluated(made)
    nan = before.isnan() & after.isnan()
    assert torch.equal(
        bits(torch.where(nan, 0, before).to(before.dtype)), bits(torch.where(nan, 0, after).to(after.dtype))
    )
