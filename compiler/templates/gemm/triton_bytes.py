"""Bytes, and halves of them, as floats: what a GPU's lanes make of a register that holds four.

w[k, j] of int8              ->   xor with 128 each;           2**23 + w + 128  by its bits;  less 2**23 + 128
(w[t, j] & 15) - 8           ->   and with 15 each;            2**23 + w        by its bits;  less 2**23 + 8
(w[t, j] >> 4) - 8           ->   shifted, and with 15 each;   the same

A GPU's conversions take turns, and its compilers take bytes out of a register before they compute with them. Here four
are changed together, each then takes one instruction to become the low bits of a float, and one subtraction that is
exact. For tensor cores (see `gemm.triton_cores`) every other byte becomes a 16-bit float at a time:

float16    1024 + u     by its bits;  less 1024 + number
bfloat16   128 + u      of 7 bits, the same;  of 8, without the highest, less 128 or 256 as that says
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...ir.value import Const, Load, Op, Value

_LEAST = 1 << 22  # of numbers that are subtracted along: float32 holds 2**23 and them
_EACH = 0x01010101  # a byte four times
_HALF, _SEVEN = 1 << 10, 1 << 7  # from which on float16, and bfloat16, hold whole numbers and no others
_FLOATS = " ".join(f"prmt.b32 ${n}, four, 0x4B000000, 0x744{n};" for n in range(4))


@dataclass(frozen=True)
class Bytes:
    """Whole numbers that are bits of bytes, less a number.

    Args:
        loaded: the bytes.
        change: assembly that makes `four` of the register $4: four numbers without a sign.
        less: what they are too large by.
        shift, mask: how far bits of a byte are shifted down, and which are left; 8 of them may have a sign.
    """

    loaded: Load
    change: str
    less: int
    shift: int
    mask: int

    def text(self, loaded: str) -> str:
        """The numbers as float32, in Triton, given what holds the bytes."""
        return f'bytes_to_floats({loaded}, "{{ .reg .b32 four; {self.change} {_FLOATS} }}", {self.less})'

    def pairs(self, dtype: torch.dtype, loaded: str) -> str | None:
        """Assembly that makes 16-bit floats `even` of bytes 0 and 2 of a register, and `odd` of 1 and 3.

        Args:
            dtype: of the floats.
            loaded: the register.

        Returns:
            None where there is none by which every number is exact.
        """
        highest = 0x80 if self.loaded.dtype == torch.int8 else 0  # turns a number with a sign into one without
        lines = [f"shr.b32 four, {loaded}, {self.shift};" if self.shift else f"mov.b32 four, {loaded};"]
        lines.append("shr.b32 up, four, 8;")
        both = (("even", "four"), ("odd", "up"))
        if dtype == torch.float16 and abs(self.less) <= _HALF:
            lines.append(_numbers(1, -_HALF - self.less, dtype))
            for made, source in both:
                lines.append(_chosen(made, source, self.mask, _of_float(_HALF, dtype) ^ highest))
                lines.append(f"fma.rn.f16x2 {made}, {made}, by, less;")
        elif dtype == torch.bfloat16 and self.mask < _SEVEN and abs(self.less) <= _SEVEN:
            lines.append(_numbers(1, -_SEVEN - self.less, dtype))
            for made, source in both:
                lines.append(_chosen(made, source, self.mask, _of_float(_SEVEN, dtype)))
                lines.append(f"fma.rn.bf16x2 {made}, {made}, by, less;")
        elif dtype == torch.bfloat16 and self.less == _SEVEN:
            lines.append(_numbers(-1, 0, dtype))
            for made, source in both:
                lines.append(_chosen(made, source, _SEVEN - 1, _of_float(_SEVEN, dtype)))
                lines.append(_chosen("high", source, _SEVEN, _of_float(_SEVEN, dtype) | highest ^ 0x80))
                lines.append(f"fma.rn.bf16x2 {made}, high, by, {made};")
        else:
            return None
        return f".reg .b32 four, up, high, even, odd, by, less; {' '.join(lines)}"


def _numbers(by: int, less: int, dtype: torch.dtype) -> str:
    """Assembly for what all are multiplied by, and what is added: these are no immediate operands."""
    by_bits, less_bits = _twice(_of_float(by, dtype)), _twice(_of_float(less, dtype))
    return f"mov.b32 by, {by_bits}; mov.b32 less, {less_bits};"


def _chosen(made: str, source: str, mask: int, changed: int) -> str:
    """Assembly for some bits of every other byte, with others changed: (source and mask) xor changed."""
    return f"lop3.b32 {made}, {source}, {_twice(mask)}, {_twice(changed)}, 0x6a;"


def _twice(bits: int) -> str:
    return f"{bits << 16 | bits:#x}"


def _of_float(number: int, dtype: torch.dtype) -> int:
    return int(torch.tensor(number, dtype=dtype).view(torch.int16)) & 0xFFFF


def as_bytes(value: Value) -> Bytes | None:
    """How to compute a value from a register of bytes, None for what is not made of a byte."""
    value, less = _less(value)
    if not isinstance(value, Op) or value.name != "cast" or value.dtype != torch.float32:
        return None
    (whole,) = value.args
    if isinstance(whole, Load) and whole.dtype == torch.int8:
        return Bytes(whole, f"xor.b32 four, $4, {128 * _EACH:#x};", less + 128, 0, 255)
    loaded, shift, mask = _bits(whole)
    if not isinstance(loaded, Load) or loaded.dtype != torch.uint8:
        return None
    first = f"shr.b32 four, $4, {shift};" if shift else "mov.b32 four, $4;"
    return Bytes(loaded, f"{first} and.b32 four, four, {mask * _EACH:#x};", less, shift, mask)


def _less(value: Value) -> tuple[Value, int]:
    """A value and the whole number that is subtracted from it."""
    if not isinstance(value, Op) or value.name not in ("sub", "add") or value.dtype != torch.float32:
        return value, 0
    number = value.args[1]
    if not isinstance(number, Const) or abs(number.number) > _LEAST or not float(number.number).is_integer():
        return value, 0
    return value.args[0], int(number.number) * (1 if value.name == "sub" else -1)


def _bits(value: Value) -> tuple[Value, int, int]:
    """The word that bits are taken of, how far they are shifted down, and the bits that are left."""
    if isinstance(value, Op) and value.dtype == torch.uint8 and isinstance(value.args[-1], Const):
        number = value.args[-1].number
        if value.name == "bitwise_and":
            return value.args[0], 0, int(number)
        if value.name == "rshift" and 0 <= int(number) < 8:
            return value.args[0], int(number), 255 >> int(number)
    return value, 0, 255
