"""Numbers of sizes as C++: expressions of symbols, indices of kernels, literals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from ...ir.index.index import Index, Least, Most, Quotient, Remainder, Size, terms
from .errors import NotInCppError

_INFIX = {
    "Add": " + ", "Mul": " * ", "Equality": " == ", "Unequality": " != ", "StrictLessThan": " < ", "LessThan": " <= ",
    "StrictGreaterThan": " > ", "GreaterThan": " >= ", "And": " && ", "Or": " || ",
}  # fmt: skip
_CALLS = {
    "FloorDiv": "floor_div", "CleanDiv": "floor_div", "Mod": "floor_mod", "PythonMod": "floor_mod",
    "PowByNatural": "power", "Pow": "power",
}  # fmt: skip
_FOLDS = {"Max": "most", "Min": "least"}
SCALARS = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int8: "Char", torch.uint8: "Byte", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
    torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2", torch.complex32: "ComplexHalf",
    torch.float8_e4m3fnuz: "Float8_e4m3fnuz", torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
    torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
}  # fmt: skip


def dtype_text(dtype: torch.dtype) -> str:
    """A dtype as ``ScalarType::Float``.

    Raises:
        NotInCppError: kernels do not know it.
    """
    if dtype not in SCALARS:
        raise NotInCppError("dtype", f"tensors of {dtype} are not known to C++")
    return f"ScalarType::{SCALARS[dtype]}"


def expression_text(expression: Any, names: Mapping[Any, str]) -> str:
    """An expression of symbols, each by its name.

    Raises:
        NotInCppError: a symbol has no name, or a function no C++.
    """
    if isinstance(expression, (bool, int)) or expression in (sympy.true, sympy.false):
        return integer_text(int(bool(expression)) if not isinstance(expression, int) else int(expression))
    if expression.is_Integer:
        return integer_text(int(expression))
    if expression.is_Symbol:
        if expression not in names:
            raise NotInCppError("size", f"the size {expression} is that of no input, and nothing computes it")
        return names[expression]
    kind = type(expression).__name__
    if kind not in _INFIX and kind not in _CALLS and kind not in _FOLDS and kind not in ("Not", "ModularIndexing"):
        raise NotInCppError("size", f"a size is computed as {expression} ({kind}), which is not known to C++")
    parts = [expression_text(part, names) for part in expression.args]
    if kind in _INFIX:
        return f"({_INFIX[kind].join(parts)})"
    if kind == "Not":
        return f"!({parts[0]})"
    if kind == "ModularIndexing":
        return f"floor_mod(floor_div({parts[0]}, {parts[1]}), {parts[2]})"
    return _folded(_FOLDS[kind], parts) if kind in _FOLDS else f"{_CALLS[kind]}({', '.join(parts)})"


def _folded(function: str, parts: Sequence[str]) -> str:
    text = parts[0]
    for part in parts[1:]:
        text = f"{function}({text}, {part})"
    return text


def index_text(number: Any, names: Mapping[str, str]) -> str:
    """An index of a kernel's sizes, sizes by the names given."""
    if not isinstance(number, Index):
        return integer_text(int(number))
    parts = []
    for monomial, factor in terms(number):
        atoms = [_atom(atom, names) for atom in monomial]
        parts.append(" * ".join(([integer_text(factor)] if factor != 1 or not atoms else []) + atoms))
    return " + ".join(parts) or integer_text(0)


_INDEX: Mapping[type, Callable[[str, str], str]] = {
    Quotient: lambda a, b: f"floor_div({a}, {b})",
    Remainder: lambda a, b: f"floor_mod({a}, {b})",
    Least: lambda a, b: f"least({a}, {b})",
    Most: lambda a, b: f"most({a}, {b})",
}


def _atom(atom: Any, names: Mapping[str, str]) -> str:
    if isinstance(atom, Size):
        return names[atom.name]
    a, b = (index_text(part, names) for part in atom.fields())
    return _INDEX[type(atom)](a, b)


def integer_text(number: int) -> str:
    """An integer of 64 bits."""
    return f"int64_t({number}ll)" if number != -(2**63) else "int64_t(-9223372036854775807ll - 1)"


def float_text(number: float) -> str:
    """A number of double precision, to its last bit."""
    if math.isnan(number):
        return '__builtin_nan("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf()"
    return number.hex()


def string_text(text: str) -> str:
    """A string of C++."""
    escaped = "".join(
        c if c.isascii() and c.isprintable() and c not in '"\\?' else "".join(f"\\{b:03o}" for b in c.encode())
        for c in text
    )
    return f'"{escaped}"'
