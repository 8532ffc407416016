"""The pointwise operations of the loop IR: one table for the lowering, the interpreter and every code generator.

Each entry gives the operation's arity, its result dtype in terms of its operands', and eager's function for it, which
is the reference: NaN, infinities, signed zeros and integer wrap-around are eager's. Operands of one operation have one
dtype (`where` and the amount of a shift apart); casts are explicit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from .hash32 import hash32
from .philox import philox

Kind = Literal["same", "bool", "given"]


@dataclass(frozen=True)
class OpInfo:
    """One pointwise operation.

    Args:
        arity: number of operands.
        result: its dtype: ``"same"`` as the (last) operand's, ``"bool"``, or ``"given"`` by the node (casts).
        reference: eager's function, on tensors: the operands, then the result's dtype where given.
        floating: takes floating operands only.
        costly: takes more than a few cycles an element, so that computing it twice is worth a look.
    """

    arity: int
    result: Kind
    reference: Callable[..., Any]
    floating: bool = False
    costly: bool = False


def _round_to(half: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda x: x.to(half).to(x.dtype)


def _philox_word(word: int) -> Callable[..., torch.Tensor]:
    return lambda seed, offset: philox(*torch.broadcast_tensors(seed, offset))[word]


def _normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return (1 + torch.erf(x * math.sqrt(0.5))) * 0.5


def _normal_pdf(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x * x * -0.5) * math.sqrt(0.5 / math.pi)


def _unary(names: str, **more: Any) -> dict[str, OpInfo]:
    return {name: OpInfo(1, "same", getattr(torch, name), **more) for name in names.split()}


def _compare(names: str) -> dict[str, OpInfo]:
    return {name: OpInfo(2, "bool", getattr(torch, name)) for name in names.split()}


OPS: dict[str, OpInfo] = {
    # Arithmetic. `div` is true division of floats; integers have `floordiv`, `truncdiv` and the two remainders.
    "add": OpInfo(2, "same", torch.add),
    "sub": OpInfo(2, "same", torch.sub),
    "mul": OpInfo(2, "same", torch.mul),
    "div": OpInfo(2, "same", torch.div, floating=True),
    "floordiv": OpInfo(2, "same", lambda a, b: torch.div(a, b, rounding_mode="floor")),
    "truncdiv": OpInfo(2, "same", lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "remainder": OpInfo(2, "same", torch.remainder),  # the sign of the divisor, as Python's %
    "fmod": OpInfo(2, "same", torch.fmod),  # the sign of the dividend, as C's
    "pow": OpInfo(2, "same", torch.pow, costly=True),
    "atan2": OpInfo(2, "same", torch.atan2, floating=True, costly=True),
    "hypot": OpInfo(2, "same", torch.hypot, floating=True),
    "copysign": OpInfo(2, "same", torch.copysign, floating=True),
    "nextafter": OpInfo(2, "same", torch.nextafter, floating=True),
    "neg": OpInfo(1, "same", torch.neg),
    "abs": OpInfo(1, "same", torch.abs),
    "sign": OpInfo(1, "same", torch.sign),
    "sqrt": OpInfo(1, "same", torch.sqrt, floating=True),
    "rsqrt": OpInfo(1, "same", torch.rsqrt, floating=True),
    "reciprocal": OpInfo(1, "same", torch.reciprocal, floating=True),
    **_unary("floor ceil trunc round", floating=True),  # round: half to even
    **_unary("exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan", floating=True, costly=True),
    **_unary("sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid", floating=True, costly=True),
    # The standard normal distribution: what part of it lies below, and its density; as eager's GELU has them.
    "normal_cdf": OpInfo(1, "same", _normal_cdf, floating=True, costly=True),
    "normal_pdf": OpInfo(1, "same", _normal_pdf, floating=True, costly=True),
    # Choice. `maximum` and `minimum` give NaN where either operand is NaN; of 0.0 and -0.0 either one, as in eager.
    "maximum": OpInfo(2, "same", torch.maximum),
    "minimum": OpInfo(2, "same", torch.minimum),
    "where": OpInfo(3, "same", torch.where),
    # Comparison and logic.
    **_compare("eq ne lt le gt ge logical_and logical_or logical_xor"),
    "logical_not": OpInfo(1, "bool", torch.logical_not),
    "isnan": OpInfo(1, "bool", torch.isnan, floating=True),
    "isinf": OpInfo(1, "bool", torch.isinf, floating=True),
    "signbit": OpInfo(1, "bool", torch.signbit),
    # Bits: integers and bool.
    "bitwise_and": OpInfo(2, "same", torch.bitwise_and),
    "bitwise_or": OpInfo(2, "same", torch.bitwise_or),
    "bitwise_xor": OpInfo(2, "same", torch.bitwise_xor),
    "bitwise_not": OpInfo(1, "same", torch.bitwise_not),
    "lshift": OpInfo(2, "same", torch.bitwise_left_shift),
    "rshift": OpInfo(2, "same", torch.bitwise_right_shift),
    # Conversion. `cast` converts as eager does; `bitcast` keeps the bits of an equally wide dtype.
    "cast": OpInfo(1, "given", lambda x, dtype: x.to(dtype)),
    "bitcast": OpInfo(1, "given", lambda x, dtype: x.view(dtype)),
    "round_bfloat16": OpInfo(1, "same", _round_to(torch.bfloat16)),
    "round_float16": OpInfo(1, "same", _round_to(torch.float16)),
    # Philox 4x32, 10 rounds (see `philox`), key `seed`, counter `offset`: one of its 32-bit words as int64 in
    # [0, 2**32), operands (seed, offset) int64. What is drawn from bits (uniform, normal, masks) is arithmetic of the
    # lowering.
    **{f"philox{word}": OpInfo(2, "same", _philox_word(word), costly=True) for word in range(4)},
    # A keyed hash (see `hash32`), operands (number, key0, key1) int32.
    "hash32": OpInfo(3, "same", hash32, costly=True),
}
