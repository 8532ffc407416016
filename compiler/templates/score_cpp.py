"""C++ of the score function `f`: scalar statements of one (row, key), branch-free, for a loop over vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..ir.index import Atom, Index, Least, Most, Quotient, Remainder, Var, terms
from ..ir.program import Buffer
from ..ir.value import Const, Load, Number, Op, Value, walk
from .attention import SCORE, address

C_TYPES: dict[torch.dtype, str] = {
    torch.float32: "float", torch.float64: "double", torch.bool: "bool", torch.uint8: "unsigned char",
    torch.int8: "signed char", torch.int16: "short", torch.int32: "int", torch.int64: "long",
    torch.bfloat16: "gemm::bfloat16",
}  # fmt: skip

_OPERATORS: dict[str, str] = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}",
    "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "logical_and": "({0} != 0) & ({1} != 0)", "logical_or": "({0} != 0) | ({1} != 0)", "logical_not": "{0} == 0",
    "logical_xor": "({0} != 0) ^ ({1} != 0)",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
    "where": "{0} ? {1} : {2}", "isnan": "{0} != {0}",
    "maximum": "({0} != {0} || {0} > {1}) ? {0} : {1}", "minimum": "({0} != {0} || {0} < {1}) ? {0} : {1}",
    "exp": "score::exp({0})", "tanh": "score::tanh({0})", "sigmoid": "1.0f / (1.0f + score::exp(-{0}))",
}  # fmt: skip
_FLOAT_OPERATORS = {
    "abs": "__builtin_fabsf({0})", "sqrt": "__builtin_sqrtf({0})", "floor": "__builtin_floorf({0})",
    "ceil": "__builtin_ceilf({0})", "round": "__builtin_rintf({0})", "trunc": "__builtin_truncf({0})",
}  # fmt: skip

PRELUDE = r"""
namespace score {

// Relative error 1e-7; 0 below -87.3, as denormals would be; infinity above 88.7.
static inline float exp(float x) {
  float n = x * 1.44269504f + 12582912.0f;
  const int k = __builtin_bit_cast(int, n);
  n -= 12582912.0f;
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  float y = p * __builtin_bit_cast(float, (k - 0x4B400000 + 126) << 23) * 2.0f;
  y = x > 88.72f ? __builtin_inff() : y;
  return x < -87.3f ? 0.0f : y;
}

// Relative error 3e-7: odd polynomial near 0, where 1 - exp(-2x) would cancel.
static inline float tanh(float x) {
  float a = __builtin_fabsf(x), s = x * x;
  float e = exp(-2.0f * a), far = (1.0f - e) / (1.0f + e);
  far = x < 0.0f ? -far : far;
  float p = s * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * s + -5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s + -3.33332819422e-1f;
  float near = p * s * x + x;
  return a < 0.625f ? near : far;
}

}  // namespace score
"""


class ScoreError(Exception):
    """A score function that has no C++ here; the message says what in it."""


class ScoreCpp:
    """Emits values as `const` statements, each once.

    Args:
        names: C++ expressions of variables.
        buffers: the buffers that loads name, and the C++ pointers to them.
    """

    def __init__(self, names: Mapping[Var, str], buffers: Mapping[str, tuple[Buffer, str]]) -> None:
        self._names, self._buffers = names, buffers

    def statements(self, root: Value, raw: str) -> tuple[list[str], str]:
        """Statements that compute `root`, and the expression that is it; `raw` stands for `SCORE`."""
        lines: list[str] = []
        known: dict[Value, str] = {SCORE: raw}
        for number, value in enumerate(walk([root])):
            if value in known:
                continue
            text = self._text(value, known)
            if isinstance(value, Const):
                known[value] = text
                continue
            known[value] = f"t{number}"
            lines.append(f"const {_c_type(value.dtype)} t{number} = {text};")
        return lines, known[root]

    def index(self, number: Any) -> str:
        """C++ of an index."""
        products = [self._product(monomial, coefficient) for monomial, coefficient in terms(number)]
        return " + ".join(products) or "0"

    def _product(self, monomial: tuple[Atom, ...], coefficient: int) -> str:
        factors = [self._atom(atom) for atom in monomial]
        return " * ".join(([f"({coefficient}L)"] if coefficient != 1 or not factors else []) + factors)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Var) and atom in self._names:
            return self._names[atom]
        if isinstance(atom, (Quotient, Remainder)) and _nonnegative(atom.dividend):
            sign = "/" if isinstance(atom, Quotient) else "%"
            return f"(({self.index(atom.dividend)}) {sign} ({self.index(atom.divisor)}))"
        if isinstance(atom, (Least, Most)):
            a, b = self.index(atom.a), self.index(atom.b)
            return f"(({a}) {'<' if isinstance(atom, Least) else '>'} ({b}) ? ({a}) : ({b}))"
        raise ScoreError(f"the index {Index((((atom,), 1),))}")

    def _text(self, value: Value, known: Mapping[Value, str]) -> str:
        if isinstance(value, Const):
            return _constant(value)
        if isinstance(value, Number):
            return f"({_c_type(value.dtype)})({self.index(value.index)})"
        if isinstance(value, Load) and value.buffer in self._buffers:
            buffer, pointer = self._buffers[value.buffer]
            at = f"{pointer}[{self.index(address(buffer, value.indices))}]"
            return f"gemm::number({at})" if buffer.dtype == torch.bfloat16 else at
        if isinstance(value, Op):
            return self._operation(value, [known[a] for a in value.args])
        raise ScoreError(type(value).__name__)

    def _operation(self, value: Op, args: list[str]) -> str:
        if value.name == "cast":
            return f"({_c_type(value.dtype)})({args[0]})" if value.dtype != torch.bool else f"{args[0]} != 0"
        single = value.args[0].dtype == torch.float32 or value.dtype == torch.float32
        form = _OPERATORS.get(value.name) or (_FLOAT_OPERATORS.get(value.name) if single else None)
        if form is None or (value.name in ("exp", "tanh", "sigmoid") and not single):
            raise ScoreError(f"the operation {value.name} on {value.dtype}")
        return form.format(*args)


def _constant(value: Const) -> str:
    if value.dtype == torch.bool:
        return "true" if value.number else "false"
    if not value.dtype.is_floating_point:
        return f"({_c_type(value.dtype)})({value.number}L)"
    number = float(value.number)
    if number != number:
        return '(float)__builtin_nanf("")'
    if number in (float("inf"), float("-inf")):
        return "__builtin_inff()" if number > 0 else "(-__builtin_inff())"
    return f"({_c_type(value.dtype)})({number.hex()})"


def _c_type(dtype: torch.dtype) -> str:
    if dtype not in C_TYPES:
        raise ScoreError(f"values of {dtype}")
    return C_TYPES[dtype]


def _nonnegative(number: Any) -> bool:
    from ..ir.bounds import known_nonnegative

    return known_nonnegative(number)
