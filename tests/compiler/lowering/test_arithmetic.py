"""Shorthand for values."""

from __future__ import annotations

import pytest
import torch

from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.value import Const, Load, Number, Op
from regraft.compiler.lowering.arithmetic import as_dtype, minus, op, over, plus, size_value, square, times, where
from regraft.compiler.lowering.sizes import Unlowered

F32 = torch.float32
A, B = (Load(name, (0,), F32) for name in "ab")


@pytest.mark.parametrize(("make", "name"), [(plus, "add"), (minus, "sub"), (times, "mul")])
def test_chains_go_from_the_left(make, name):
    assert make(A, B, 2) is Op(name, (Op(name, (A, B), F32), Const(2.0, F32)), F32)


def test_numbers_take_the_dtype_beside_them():
    assert over(1, A).args == (Const(1.0, F32), A)
    assert plus(Load("i", (0,), torch.int64), 1).args[1] is Const(1, torch.int64)
    assert where(op("lt", A, 0), 0, B) is Op(
        "where", (Op("lt", (A, Const(0.0, F32)), torch.bool), Const(0.0, F32), B), F32
    )


def test_functions_of_floats_take_no_integers():
    """What metadata tells wrongly costs one call its kernel; no code generator is asked for what it does not have."""
    for name in (name for name, info in OPS.items() if info.floating):
        for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64):
            with pytest.raises(Unlowered, match=name):
                op(name, *[Load("x", (0,), dtype)] * OPS[name].arity)


def test_comparisons_are_bool():
    assert op("eq", A, B).dtype == torch.bool
    assert square(A).args == (A, A)


def test_sizes_as_values():
    size = Size("s", 2, None).index()
    assert size_value(3, F32) is Const(3.0, F32)
    assert size_value(size, F32) is Op("cast", (Number(size, torch.int64),), F32)


def test_conversion_rounds_to_16_bits_only_what_has_more():
    assert as_dtype(A, torch.bfloat16, torch.bfloat16) is A
    assert as_dtype(A, F32, torch.bfloat16) is Op("round_bfloat16", (A,), F32)
    assert as_dtype(A, F32, torch.float64) is Op("cast", (A,), torch.float64)
