"""The pointwise operations of the loop IR: one table for the lowering, the interpreter and every code generator.

Each entry gives the operation's arity, its result dtype in terms of its operands', and eager's function for it, which
is the reference: NaN, infinities, signed zeros and integer wrap-around are eager's. Operands of one operation have one
dtype (`where` and the amount of a shift apart); casts are explicit. The rest of an entry says how the operation is
printed, simplified, differentiated and written in C++ and Triton (`op_info`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .hash32 import hash32
from .op_info import COSTLY, RANDOM, SLOW, Cpp, Kind, Laws, Neutral, OpInfo, Span, Triton
from .philox import philox


def _round_to(half: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda x: x.to(half).to(x.dtype)


def _philox_word(word: int) -> Callable[..., torch.Tensor]:
    return lambda seed, offset: philox(*torch.broadcast_tensors(seed, offset))[word]


def _normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return (1 + torch.erf(x * math.sqrt(0.5))) * 0.5


def _normal_pdf(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x * x * -0.5) * math.sqrt(0.5 / math.pi)


# -- spans and derivatives --------------------------------------------------------------------------------------------


def _products(a: Span, b: Span) -> Span:
    every = [x * y for x in a for y in b]
    return min(every), max(every)


def _either(a: Span, b: Span) -> Span:
    return min(a[0], b[0]), max(a[1], b[1])


def _less_square(f: Any, y: Any, _: Any) -> Any:
    return f.op("sub", f.one, f.op("mul", y, y))


def _of_sigmoid(f: Any, y: Any, _: Any) -> Any:
    return f.op("mul", y, f.op("sub", f.one, y))


def _of_reciprocal(f: Any, y: Any, _: Any) -> Any:
    return f.times(f.minus_one, f.op("mul", y, y))


# -- entries that are alike -------------------------------------------------------------------------------------------


def _function(name: str, reference: Callable[..., Any] | None = None, **more: Any) -> OpInfo:
    """A function of one float that C's library and libdevice have under its name."""
    more = {"floating": True, "work": COSTLY, "cpp": Cpp(libm=name, libmvec=True), **more}
    return OpInfo(1, "same", reference or getattr(torch, name), **more)


def _functions(names: str, **more: Any) -> dict[str, OpInfo]:
    return {name: _function(name, **more) for name in names.split()}


def _compare(name: str, sign: str, masks: str = "", truths: str = "") -> OpInfo:
    text = f"({{0}} {sign} {{1}})"
    # Triton orders truth values as signed bits.
    of_truths = f"({{0}}.to(tl.int32) {sign} {{1}}.to(tl.int32))"
    written = Cpp(truths=truths, masks=f"op_{masks}({{0}}, {{1}})" if masks else "")
    return OpInfo(
        2, "bool", getattr(torch, name), sign=sign, cpp=written, triton=Triton(text, text, "", of_truths, (0, 1))
    )


def _logic(name: str, sign: str, printed: str, neutral: bool | None, absorbing: bool | None) -> OpInfo:
    """Operands of any dtype are converted to truth values first."""
    given = None if absorbing is None else (None, None, absorbing)
    return OpInfo(
        2, "bool", getattr(torch, name), sign=printed, cpp=Cpp(truths=f"{{0}} {sign} {{1}}"),
        triton=Triton(truths=f"({{0}} {sign} {{1}})"), laws=Laws((None, None, neutral), given, commutes=True),
    )  # fmt: skip


def _bitwise(name: str, sign: str, neutral: Neutral, absorbing: Neutral | None, idempotent: bool) -> OpInfo:
    text = f"({{0}} {sign} {{1}})"
    laws = Laws(neutral, absorbing, commutes=True, idempotent=idempotent)
    written = Cpp(f"{{0}} {sign} {{1}}", f"{{0}} {sign} {{1}}")
    return OpInfo(
        2, "same", getattr(torch, name), bits=True, sign=sign, cpp=written, triton=Triton(text, text, "", text),
        laws=laws,
    )  # fmt: skip


def _shift(sign: str, reference: Callable[..., Any], triton: str) -> OpInfo:
    forms = Triton(triton, triton)
    laws = Laws((None, 0, None))
    return OpInfo(2, "same", reference, bits=True, sign=sign, triton=forms, laws=laws)


def _rounding(half: torch.dtype, name: str) -> OpInfo:
    form = f"{{0}}.to(tl.float32).to(tl.{name}).to({{dtype}})"
    return OpInfo(1, "same", _round_to(half), triton=Triton(form))


def _fast(reference: Callable[..., Any], formula: str, arity: int = 1, **more: Any) -> OpInfo:
    """A function for float32 whose error is up to 1e-5 of the result on GPUs; elsewhere it is the precise one."""
    return OpInfo(arity, "same", reference, floating=True, work=COSTLY, cpp=Cpp(formula=formula), **more)


def _named(name: str) -> Triton:
    return Triton(name)


OPS: dict[str, OpInfo] = {
    # Arithmetic. `div` is true division of floats; integers have `floordiv`, `truncdiv` and the two remainders.
    "add": OpInfo(
        2, "same", torch.add, sign="+", cpp=Cpp("{0} + {1}", "{0} | {1}"),
        triton=Triton("({0} + {1})", "({0} + {1})", "", "({0} | {1})", (0, 1)),
        laws=Laws((-0.0, 0, None), commutes=True), span=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    ),
    "sub": OpInfo(
        2, "same", torch.sub, sign="-", cpp=Cpp("{0} - {1}"),
        triton=Triton("({0} - {1})", "({0} - {1})", bare=(0, 1)),
        laws=Laws((0.0, 0, None)), span=lambda a, b: (a[0] - b[1], a[1] - b[0]),
    ),
    "mul": OpInfo(
        2, "same", torch.mul, sign="*", cpp=Cpp("{0} * {1}", "{0} & {1}"),
        triton=Triton("({0} * {1})", "({0} * {1})", "", "({0} & {1})", (0, 1)),
        laws=Laws((1.0, 1, True), (None, 0, False), commutes=True), span=_products,
    ),
    "div": OpInfo(
        2, "same", torch.div, floating=True, sign="/", work=SLOW, gpu="function", cpp=Cpp("{0} / {1}", "{0} & {1}"),
        triton=Triton("quotient", truths="({0} & {1})"), laws=Laws((1.0, None, None)), fast="fast_quotient",
    ),
    "floordiv": OpInfo(
        2, "same", lambda a, b: torch.div(a, b, rounding_mode="floor"), sign="//", work=SLOW, gpu="long",
        triton=Triton("floor_quotient_float", "floor_quotient"), laws=Laws((None, 1, None)), decides=True,
    ),
    "truncdiv": OpInfo(
        2, "same", lambda a, b: torch.div(a, b, rounding_mode="trunc"), work=SLOW,
        triton=Triton("trunc_quotient_float", "trunc_quotient"), laws=Laws((None, 1, None)), decides=True,
    ),
    "remainder": OpInfo(  # the sign of the divisor, as Python's %
        2, "same", torch.remainder, sign="%", work=SLOW, gpu="long", triton=Triton("remainder", "remainder"),
        decides=True,
    ),
    "fmod": OpInfo(  # the sign of the dividend, as C's
        2, "same", torch.fmod, work=SLOW, gpu="long", cpp=Cpp(libm="fmod"), triton=Triton(integers="trunc_rest"),
        decides=True,
    ),
    "pow": OpInfo(
        2, "same", torch.pow, sign="**", work=COSTLY, gpu="long", cpp=Cpp(libm="pow", lanes=True, libmvec=True),
        triton=Triton(integers="integer_power"),
    ),
    "atan2": OpInfo(
        2, "same", torch.atan2, floating=True, work=COSTLY, gpu="long",
        cpp=Cpp(libm="atan2", lanes=True, libmvec=True),
    ),
    "hypot": OpInfo(
        2, "same", torch.hypot, floating=True, work=SLOW, cpp=Cpp(libm="hypot", lanes=True, libmvec=True)
    ),
    "copysign": OpInfo(2, "same", torch.copysign, floating=True, cpp=Cpp(libm="copysign", lanes=True)),
    "nextafter": OpInfo(
        2, "same", torch.nextafter, floating=True, cpp=Cpp(libm="nextafter", lanes=True), decides=True
    ),
    "neg": OpInfo(
        1, "same", torch.neg, laws=Laws(involutive=True, keeps_rounded=True), no_larger=True,
        # Triton's own minus is 0 - x, which gives 0.0 for 0.0.
        triton=Triton("({0} * -1.0)", "(0 - {0})"), derivative=lambda f, y, x: f.minus_one,
    ),
    "abs": OpInfo(
        1, "same", torch.abs, cpp=Cpp(truths="{0}"), triton=Triton("tl.abs({0})", "tl.abs({0})", "{0}", "{0}"),
        laws=Laws(keeps_rounded=True), no_larger=True, derivative=lambda f, y, x: f.op("sign", x),
    ),
    "sign": OpInfo(
        1, "same", torch.sign, cpp=Cpp(truths="{0}"), triton=Triton("sign", "sign", "", "{0}"),
        laws=Laws(keeps_rounded=True), decides=True,
    ),
    "sqrt": _function("sqrt", work=SLOW, cpp=Cpp(libm="sqrt", lanes=True), triton=_named("square_root")),
    "rsqrt": _function("rsqrt", work=SLOW, cpp=Cpp(formula="1 / op_sqrt(a)")),
    "reciprocal": _function(
        "reciprocal", work=SLOW, cpp=Cpp(formula="1 / a"), triton=_named("reciprocal"), derivative=_of_reciprocal,
        fast="fast_reciprocal",
    ),
    **{
        name: _function(
            name, work=1, cpp=Cpp(libm=name, lanes=True), laws=Laws(keeps_rounded=True), decides=True
        )
        for name in ("floor", "ceil", "trunc")
    },
    "round": _function(  # half to even
        "round", work=1, cpp=Cpp(libm="nearbyint", lanes=True), triton=_named("libdevice.rint"),
        laws=Laws(keeps_rounded=True), decides=True,
    ),
    "exp": _function(
        "exp", gpu="function", cpp=Cpp(libm="exp", libmvec=True, polynomial=True), derivative=lambda f, y, x: y,
        fast="fast_exp",
    ),
    "log": _function(
        "log", gpu="function", cpp=Cpp(libm="log", libmvec=True, polynomial=True),
        derivative=lambda f, y, x: f.op("reciprocal", x),
    ),
    **_functions("expm1 log1p", gpu="function"),
    **_functions("exp2 log2 log10 asin acos atan cosh atanh erfc"),
    **_functions("tan sinh asinh acosh", gpu="long"),
    "sin": _function("sin", gpu="long", bounded=True, derivative=lambda f, y, x: f.op("cos", x)),
    "cos": _function(
        "cos", gpu="long", bounded=True, derivative=lambda f, y, x: f.times(f.minus_one, f.op("sin", x))
    ),
    "tanh": _function(
        "tanh", gpu="function", cpp=Cpp(libm="tanh", libmvec=True, polynomial=True), triton=_named("tanh"),
        bounded=True, derivative=_less_square,
    ),
    "erf": _function("erf", cpp=Cpp(libm="erf", libmvec=True, polynomial=True), bounded=True),
    "erfinv": _function("erfinv", gpu="long", cpp=Cpp()),
    "lgamma": _function("lgamma", gpu="long", cpp=Cpp(libm="lgamma")),
    "digamma": _function("digamma", gpu="long", cpp=Cpp(), triton=_named("digamma")),
    "sigmoid": _function(
        "sigmoid", gpu="function", cpp=Cpp(formula="1 / (1 + op_exp(-a))"), triton=_named("sigmoid"), bounded=True,
        derivative=_of_sigmoid, fast="fast_sigmoid",
    ),
    # The standard normal distribution: what part of it lies below, and its density; as eager's GELU has them.
    "normal_cdf": _function(
        "normal_cdf", _normal_cdf, registers=6, triton=_named("normal_cdf"), bounded=True,
        cpp=Cpp(formula="(op_erf(a * like(a, 0.70710678118654752440)) + like(a, 1)) * like(a, 0.5)"),
    ),
    "normal_pdf": _function(
        "normal_pdf", _normal_pdf, triton=_named("normal_pdf"), bounded=True,
        cpp=Cpp(formula="op_exp(a * a * like(a, -0.5)) * like(a, 0.39894228040143267794)"),
    ),
    # GPUs compute these instead if 16 bits are stored.
    "fast_exp": _fast(torch.exp, "op_exp(a)", gpu="function", triton=_named("fast_exp")),
    "fast_quotient": _fast(torch.div, "a / b", 2, gpu="function", triton=_named("fast_quotient")),
    "fast_reciprocal": _fast(torch.reciprocal, "1 / a", triton=_named("fast_reciprocal")),
    "fast_sigmoid": _fast(torch.sigmoid, "op_sigmoid(a)", gpu="function", triton=_named("fast_sigmoid")),
    "fast_tanh": _fast(
        torch.tanh, "op_tanh(a)", gpu="function", triton=_named("fast_tanh"), bounded=True, derivative=_less_square
    ),
    # Choice. `maximum` and `minimum` give NaN where either operand is NaN; of 0.0 and -0.0 either one, as in eager.
    "maximum": OpInfo(
        2, "same", torch.maximum, cpp=Cpp(truths="{0} | {1}"),
        triton=Triton("maximum", "maximum", "", "({0} | {1})", (1,)),
        laws=Laws(idempotent=True, keeps_rounded=True), no_larger=True,
        span=lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    ),
    "minimum": OpInfo(
        2, "same", torch.minimum, cpp=Cpp(truths="{0} & {1}"),
        triton=Triton("minimum", "minimum", "", "({0} & {1})", (1,)),
        laws=Laws(idempotent=True, keeps_rounded=True), no_larger=True,
        span=lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    ),
    "where": OpInfo(
        3, "same", torch.where, triton=Triton(bare=(1, 2)), laws=Laws(keeps_rounded=True), no_larger=True, span=_either
    ),
    # Comparison and logic.
    "eq": _compare("eq", "=="),
    "ne": _compare("ne", "!=", truths="{0} ^ {1}"),
    "lt": _compare("lt", "<", "gt"),
    "le": _compare("le", "<=", "ge"),
    "gt": _compare("gt", ">", "lt"),
    "ge": _compare("ge", ">=", "le"),
    "logical_and": _logic("logical_and", "&", "and", neutral=True, absorbing=False),
    "logical_or": _logic("logical_or", "|", "or", neutral=False, absorbing=True),
    "logical_xor": _logic("logical_xor", "^", "", neutral=False, absorbing=None),
    "logical_not": OpInfo(
        1, "bool", torch.logical_not, cpp=Cpp(truths="flip({0})"), triton=Triton(truths="({0} == 0)"),
        laws=Laws(involutive=True),
    ),
    "isnan": OpInfo(1, "bool", torch.isnan, floating=True, triton=Triton("({0} != {0})")),
    "isinf": OpInfo(1, "bool", torch.isinf, floating=True, triton=Triton('(tl.abs({0}) == float("inf"))')),
    "signbit": OpInfo(1, "bool", torch.signbit, triton=Triton("sign_bit", "({0} < 0)", "", "({0} != {0})")),
    # Bits: integers and bool.
    "bitwise_and": _bitwise("bitwise_and", "&", (None, -1, True), (None, 0, False), idempotent=True),
    "bitwise_or": _bitwise("bitwise_or", "|", (None, 0, False), (None, -1, True), idempotent=True),
    "bitwise_xor": _bitwise("bitwise_xor", "^", (None, 0, False), None, idempotent=False),
    "bitwise_not": OpInfo(
        1, "same", torch.bitwise_not, bits=True, cpp=Cpp("~{0}", "flip({0})"),
        # Triton 3.6 interprets ~ by a constant -1, which unsigned numbers do not have.
        triton=Triton("(~{0})", "(~{0})", "({0} ^ 255)", "({0} == 0)"),
        laws=Laws(involutive=True), span=lambda a: (-a[1] - 1, -a[0] - 1),
    ),
    "lshift": _shift("<<", torch.bitwise_left_shift, "shifted_left"),
    "rshift": _shift(">>", torch.bitwise_right_shift, "shifted_right"),
    # Conversion. `cast` converts as eager does; `bitcast` keeps the bits of an equally wide dtype.
    "cast": OpInfo(1, "given", lambda x, dtype: x.to(dtype), gpu="free", no_larger=True),
    "bitcast": OpInfo(1, "given", lambda x, dtype: x.view(dtype)),
    "round_bfloat16": _rounding(torch.bfloat16, "bfloat16"),
    "round_float16": _rounding(torch.float16, "float16"),
    # Philox 4x32, 10 rounds (see `philox`), key `seed`, counter `offset`: one of its 32-bit words as int64 in
    # [0, 2**32), operands (seed, offset) int64. What is drawn from bits (uniform, normal, masks) is arithmetic of the
    # lowering.
    **{
        f"philox{word}": OpInfo(
            2, "same", _philox_word(word), work=RANDOM, gpu="rounds",
            triton=Triton(integers=f"philox({{0}}, {{1}}, {word})"),
        )
        for word in range(4)
    },
    # A keyed hash (see `hash32`), operands (number, key0, key1) int32.
    "hash32": OpInfo(3, "same", hash32, work=COSTLY, triton=Triton(integers="hash32")),
}  # fmt: skip

ORDERS = ("lt", "le", "gt", "ge")
COMPARISONS = ("eq", "ne", *ORDERS)
DIVISIONS = ("floordiv", "truncdiv", "remainder", "fmod")
"""Of integers, these raise an error if the divisor is zero."""
SHIFTS = ("lshift", "rshift")

__all__ = ["COMPARISONS", "DIVISIONS", "OPS", "ORDERS", "SHIFTS", "Kind", "OpInfo"]
