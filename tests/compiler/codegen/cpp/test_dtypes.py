"""Numbers as C++ literals: those of 32 bits are rounded as torch rounds them, also far out and near zero."""

import math

import pytest
import torch

from regraft.compiler.codegen.cpp.dtypes import literal

NUMBERS = [0.0, -0.0, 0.1, -2.5, 1 + 2**-24, 1 + 3 * 2**-24, 1e-40, -1e-46, 3.4028235677973366e38, 3e38, 1e300, -1e39]


@pytest.mark.parametrize("number", NUMBERS)
def test_floats_are_rounded_as_torch_rounds_them(number):
    exact = torch.tensor(number, dtype=torch.float64)
    rounded = exact.to(torch.float32).item()
    text = f"{'-' if rounded < 0 else ''}__builtin_inff()" if math.isinf(rounded) else f"{rounded.hex()}f"
    assert literal(number, torch.float32) == text
    assert literal(number, torch.float64) == number.hex()


def test_what_is_no_number():
    assert literal(math.nan, torch.float32) == '__builtin_nanf("")'
    assert literal(-math.inf, torch.float64) == "-__builtin_inf()"
    assert literal(-(2**63), torch.int64) == "(-9223372036854775807ll - 1)"
    assert literal(True, torch.bool) == "true"
