"""Bytes, and halves of them, as floats: what a GPU's lanes make of a register that holds four.

w[k, j] of int8              ->   xor with 128 each;           2**23 + w + 128  by its bits;  less 2**23 + 128
(w[t, j] & 15) - 8           ->   and with 15 each;            2**23 + w        by its bits;  less 2**23 + 8
(w[t, j] >> 4) - 8           ->   shifted, and with 15 each;   the same

A GPU's conversions take turns, and its compilers take bytes out of a register before they compute with them. Here four
are changed together, each then takes one instruction to become the low bits of a float, and one subtraction that is
exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...ir.value import Const, Load, Op, Value

_LEAST = 1 << 22  # of numbers that are subtracted along: float32 holds 2**23 and them
_EACH = 0x01010101  # a byte four times
_FLOATS = " ".join(f"prmt.b32 ${n}, four, 0x4B000000, 0x744{n};" for n in range(4))


@dataclass(frozen=True)
class Bytes:
    """Whole numbers that are bits of bytes, less a number.

    Args:
        loaded: the bytes.
        change: assembly that makes `four` of the register $4: four numbers without a sign.
        less: what they are too large by.
    """

    loaded: Load
    change: str
    less: int

    def text(self, loaded: str) -> str:
        """The numbers as float32, in Triton, given what holds the bytes."""
        return f'bytes_to_floats({loaded}, "{{ .reg .b32 four; {self.change} {_FLOATS} }}", {self.less})'


def as_bytes(value: Value) -> Bytes | None:
    """How to compute a value from a register of bytes, None for what is not made of a byte."""
    value, less = _less(value)
    if not isinstance(value, Op) or value.name != "cast" or value.dtype != torch.float32:
        return None
    (whole,) = value.args
    if isinstance(whole, Load) and whole.dtype == torch.int8:
        return Bytes(whole, f"xor.b32 four, $4, {128 * _EACH:#x};", less + 128)
    loaded, shift, mask = _bits(whole)
    if not isinstance(loaded, Load) or loaded.dtype != torch.uint8:
        return None
    first = f"shr.b32 four, $4, {shift};" if shift else "mov.b32 four, $4;"
    return Bytes(loaded, f"{first} and.b32 four, four, {mask * _EACH:#x};", less)


def _less(value: Value) -> tuple[Value, int]:
    """A value and the whole number that is subtracted from it."""
    if not isinstance(value, Op) or value.name not in ("sub", "add") or value.dtype != torch.float32:
        return value, 0
    number = value.args[1]
    if not isinstance(number, Const) or abs(number.number) > _LEAST or not float(number.number).is_integer():
        return value, 0
    return value.args[0], int(number.number) * (1 if value.name == "sub" else -1)


def _bits(value: Value) -> tuple[Value, int, int]:
    """What bits are taken of, how far they are shifted down, and which are left."""
    if isinstance(value, Op) and value.dtype == torch.uint8 and isinstance(value.args[-1], Const):
        number = value.args[-1].number
        if value.name == "bitwise_and":
            return value.args[0], 0, int(number)
        if value.name == "rshift" and 0 <= int(number) < 8:
            return value.args[0], int(number), 255 >> int(number)
    return value, 0, 255
