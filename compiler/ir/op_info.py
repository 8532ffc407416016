"""The columns of the table of operations (`ops`): meaning, cost, laws, and forms in C++ and Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["same", "bool", "given"]
Neutral = tuple[Any, Any, Any]
"""A constant for floats, for integers and for truth values; None where there is none."""
Span = tuple[int, int]
"""The least and the greatest that a whole number can be."""


@dataclass(frozen=True)
class Cpp:
    """An operation in C++. Without any of these, `op_<name>` stands in a prelude, for scalars and for vectors.

    Args:
        numbers: the expression for numbers, of scalars or vectors alike: ``"{0} + {1}"``; by default a call of
            ``op_<name>``.
        truths: the same for truth values.
        masks: the same for vectors of truth values, in which true (-1) is less than false (0).
        libm: the function of C's library that computes scalars.
        lanes: whether vectors call the function of scalars lane by lane.
        libmvec: whether glibc has it for vectors, which then replaces `lanes`.
        polynomial: whether `<name>_f32` of the prelude computes vectors of float32.
        formula: an expression of other operations on ``a``, for scalars and vectors of floats.
    """

    numbers: str = ""
    truths: str = ""
    masks: str = ""
    libm: str = ""
    lanes: bool = False
    libmvec: bool = False
    polynomial: bool = False
    formula: str = ""


@dataclass(frozen=True)
class Triton:
    """An operation in Triton: the name of a function, or an expression: ``"({0} + {1})"``.

    Args:
        floats: for floats; by default the function of libdevice with the operation's name.
        integers: for integers; none by default.
        unsigned: for uint8, where that differs.
        truths: for truth values; none by default.
        bare: the operands that may be bare numbers, if one that is left is not.
    """

    floats: str = ""
    integers: str = ""
    unsigned: str = ""
    truths: str = ""
    bare: tuple[int, ...] = ()


@dataclass(frozen=True)
class Laws:
    """Identities of an operation that hold bit by bit.

    Args:
        neutral: the right operand that changes nothing.
        absorbing: the operand that is the result, whatever the other one is.
        commutes: whether the operands may be swapped.
        idempotent: whether two equal operands give that operand.
        involutive: whether a second application undoes the first.
        keeps_rounded: whether the result has 16 bits if all operands have.
    """

    neutral: Neutral | None = None
    absorbing: Neutral | None = None
    commutes: bool = False
    idempotent: bool = False
    involutive: bool = False
    keeps_rounded: bool = False


@dataclass(frozen=True)
class OpInfo:
    """One pointwise operation.

    Args:
        arity: number of operands.
        result: its dtype: ``"same"`` as the (last) operand's, ``"bool"``, or ``"given"`` by the node (casts).
        reference: eager's function, on tensors: the operands, then the result's dtype where given.
        floating: takes floating operands only; `bits`: takes integers and truth values only.
        sign: the sign between its operands in printed text; by default the operation is printed as a call.
        work: the approximate number of machine operations.
        gpu: on GPUs: ``"free"``, ``"simple"``, a ``"function"`` of several instructions, ``"long"`` code that should
            not be repeated for many elements, or ``"rounds"`` of a loop.
        registers: values that it holds meanwhile on a GPU.
        cpp: its form in C++; `triton`: its form in Triton.
        laws: identities, for `simplify`.
        span: the least and the greatest result on whole numbers, given those of the operands.
        bounded: the magnitude is at most 1.
        no_larger: the magnitude is at most that of the operands.
        decides: a small error of an operand may become a large one of the result.
        derivative: the derivative by the operand, given an object with functions for operations, the result and the
            operand.
        fast: the operation for float32 that replaces it where 16 bits are stored: within 1e-5 of the result.
    """

    arity: int
    result: Kind
    reference: Callable[..., Any]
    floating: bool = False
    bits: bool = False
    sign: str = ""
    work: int = 1
    gpu: Literal["free", "simple", "function", "long", "rounds"] = "simple"
    registers: int = 1
    cpp: Cpp = Cpp()
    triton: Triton = Triton()
    laws: Laws = Laws()
    span: Callable[..., Span] | None = None
    bounded: bool = False
    no_larger: bool = False
    decides: bool = False
    derivative: Callable[[Any, Any, Any], Any] | None = None
    fast: str = ""

    @property
    def slow(self) -> bool:
        """Whether it takes more than a cycle or two."""
        return self.work > 1

    @property
    def costly(self) -> bool:
        """Whether it takes more than a few cycles an element, so that computing it twice is worth a look."""
        return self.work >= COSTLY


SLOW, COSTLY, RANDOM = 4, 16, 64  # machine operations of a division or root, a function, a random number
