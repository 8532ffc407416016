"""Pointwise operations as Triton expressions, and the library functions that they call."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...ir.value import Op
from .dtypes import type_name

_INFIX = {"add": "+", "sub": "-", "mul": "*"}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
# What arithmetic means for truth values, where it means anything.
_TRUTH = {"add": "|", "mul": "&", "maximum": "|", "minimum": "&", "div": "&"}
# Functions of the library; what is in neither table is libdevice's under the same name.
_FLOATS = {
    "div": "quotient", "floordiv": "floor_quotient_float", "truncdiv": "trunc_quotient_float", "sqrt": "square_root",
    "reciprocal": "reciprocal", "sigmoid": "sigmoid", "digamma": "digamma", "signbit": "sign_bit",
    "round": "libdevice.rint", "fast_tanh": "fast_tanh", "normal_cdf": "normal_cdf", "normal_pdf": "normal_pdf",
    "fast_exp": "fast_exp", "fast_quotient": "fast_quotient", "fast_reciprocal": "fast_reciprocal",
    "fast_sigmoid": "fast_sigmoid", "tanh": "tanh",
}  # fmt: skip
_ANY = {
    "sign": "sign", "maximum": "maximum", "minimum": "minimum", "lshift": "shifted_left", "rshift": "shifted_right",
    "remainder": "remainder", "hash32": "hash32",
}  # fmt: skip
_INTEGERS = {
    "floordiv": "floor_quotient", "pow": "integer_power", "truncdiv": "trunc_quotient", "fmod": "trunc_rest",
}  # fmt: skip


# Operations with a block in which a bare number takes on the block's dtype, and their operands that may be one.
_TAKES_NUMBERS = {**dict.fromkeys([*_INFIX, *COMPARE], (0, 1)), "where": (1, 2), "maximum": (1,), "minimum": (1,)}


def number_operands(value: Op) -> tuple[int, ...]:
    """Which operands may be bare numbers, if one that is left is not."""
    return _TAKES_NUMBERS.get(value.name, ())


def operation_text(value: Op, args: list[str]) -> str:
    """The operation on operands that are names or calls."""
    name, taken = value.name, value.args[-1].dtype
    if name in ("cast", "bitcast"):
        return conversion_text(args[0], taken, value.dtype, bits=name == "bitcast")
    if name == "where":
        return f"tl.where({', '.join(args)})"
    if name in _LOGIC or name == "logical_not":
        return _logic(name, [conversion_text(arg, taken, torch.bool) for arg in args])
    if taken == torch.bool:
        return _of_truth(name, args)
    return _of_numbers(name, args, value.dtype if name not in ("signbit",) else taken)


def conversion_text(text: str, source: torch.dtype, to: torch.dtype, bits: bool = False) -> str:
    """A value of one dtype as another."""
    if source == to:
        return text
    if bits:
        return f"{text}.to({type_name(to)}, bitcast=True)"
    if to == torch.bool:
        return f"({text} != 0)"
    if source.is_floating_point and to in (torch.uint8, torch.int8, torch.int16):
        # Through a wider integer, as eager goes: what does not fit wraps.
        text = f"{text}.to(tl.int64)" if to == torch.uint8 else f"{text}.to(tl.int32)"
    return f"{text}.to({type_name(to)})"


def _logic(name: str, args: list[str]) -> str:
    return f"({args[0]} == 0)" if name == "logical_not" else f"({args[0]} {_LOGIC[name]} {args[1]})"


def _of_truth(name: str, args: list[str]) -> str:
    sign = _TRUTH.get(name) or _BITS.get(name)
    if sign is not None:
        return f"({args[0]} {sign} {args[1]})"
    if name == "bitwise_not":
        return f"({args[0]} == 0)"
    if name in ("abs", "sign"):
        return args[0]
    if name in COMPARE:  # of integers: Triton orders truth values as signed bits
        return f"({args[0]}.to(tl.int32) {COMPARE[name]} {args[1]}.to(tl.int32))"
    if name == "signbit":
        return f"({args[0]} != {args[0]})"
    raise NotImplementedError(f"{name} of truth values")


def _of_numbers(name: str, args: list[str], dtype: torch.dtype) -> str:
    listed, floating = ", ".join(args), dtype.is_floating_point
    sign = _INFIX.get(name) or _BITS.get(name) or COMPARE.get(name)
    if sign is not None:
        return f"({args[0]} {sign} {args[1]})"
    if name in _UNARY:
        return _UNARY[name](args[0], dtype)
    if name.startswith("philox"):
        return f"philox({listed}, {name.removeprefix('philox')})"
    if not floating and name not in _ANY:
        return _of_integers(name, args)
    function = _ANY.get(name) or _FLOATS.get(name) or f"libdevice.{name}"
    return f"{function}({listed})"


def _rounded(half: torch.dtype) -> Callable[[str, torch.dtype], str]:
    return lambda x, dtype: f"{x}.to(tl.float32).to({type_name(half)}).to({type_name(dtype)})"


_UNARY: dict[str, Callable[[str, torch.dtype], str]] = {
    # Triton's own minus is 0 - x, which gives 0.0 for 0.0.
    "neg": lambda x, dtype: f"({x} * -1.0)" if dtype.is_floating_point else f"(0 - {x})",
    "abs": lambda x, dtype: x if dtype == torch.uint8 else f"tl.abs({x})",
    # Triton 3.6 interprets ~ by a constant -1, which unsigned numbers do not have.
    "bitwise_not": lambda x, dtype: f"({x} ^ 255)" if dtype == torch.uint8 else f"(~{x})",
    "isnan": lambda x, _: f"({x} != {x})",
    "isinf": lambda x, _: f'(tl.abs({x}) == float("inf"))',
    "round_bfloat16": _rounded(torch.bfloat16),
    "round_float16": _rounded(torch.float16),
}


def _of_integers(name: str, args: list[str]) -> str:
    if name == "signbit":
        return f"({args[0]} < 0)"
    return f"{_INTEGERS[name]}({', '.join(args)})"
