"""Index arithmetic and comparisons of whole numbers are no wider than they must be."""

import torch

from regraft.compiler.codegen.flatten import flatten, flatten_value
from regraft.compiler.ir.index.index import Loaded, Size, Var, mul
from regraft.compiler.ir.kernel import Assign, Fold, Kernel, Loop, Param, Update
from regraft.compiler.ir.program import Buffer, Reduction, Store
from regraft.compiler.ir.value import Const, Load, Number, Op, Result

I16, I32, I64 = torch.int16, torch.int32, torch.int64
BUFFERS = [
    Buffer(name, dtype, (64,), (1,), torch.device("cpu"))
    for name, dtype in [("short", I16), ("whole", I32), ("long", I64), ("x", torch.float32)]
]
VAR = Var("i", 64)


def loaded(name, dtype):
    return Op("cast", (Load(name, (VAR.index(),), dtype),), I64)


def flat(value):
    return flatten_value(value, BUFFERS)


def test_comparisons_of_what_fits():
    place = Op("add", (loaded("short", I16), Number(mul(VAR.index(), 56), I64)), I64)
    found = flat(Op("eq", (place, Number(VAR.index(), I64)), torch.bool))
    assert {arg.dtype for arg in found.args} == {I32}
    limited = Op("minimum", (Op("maximum", (loaded("whole", I32), Const(0, I64)), I64), Const(9, I64)), I64)
    assert flat(Op("lt", (limited, Const(5, I64)), torch.bool)).args[0].dtype == I32
    product = Op("mul", (loaded("short", I16), loaded("short", I16)), I64)
    assert flat(Op("lt", (product, Const(5, I64)), torch.bool)).args[0].dtype == I32


def test_what_is_limited_is_limited_before_it_is_cast():
    """Whatever the number is: its lower 32 bits alone may be another one."""
    number = Load("long", (VAR.index(),), I64)
    limited = Op("minimum", (Op("maximum", (number, Const(0, I64)), I64), Const(9, I64)), I64)
    assert flat(Op("lt", (limited, Const(5, I64)), torch.bool)).args[0] == Op("cast", (flat(limited),), I32)


def test_comparisons_of_what_may_not_fit():
    for value in (
        Load("long", (VAR.index(),), I64),
        Op("add", (loaded("whole", I32), Const(1, I64)), I64),
        Op("add", (loaded("short", I16), Const(2**31, I64)), I64),
        Op("mul", (loaded("short", I16), loaded("whole", I32)), I64),
        Op("minimum", (Load("long", (VAR.index(),), I64), Const(9, I64)), I64),
    ):
        assert flat(Op("eq", (value, Const(3, I64)), torch.bool)).args[0].dtype == I64


def test_indices_from_memory():
    def index(value):
        (found,) = flat(Load("x", (Loaded(value, 64, False).index(),), torch.float32)).indices
        return found.terms[0][0][0].value.dtype

    assert index(loaded("whole", I32)) == I32
    assert index(Op("cast", (Load("long", (VAR.index(),), I64),), I64)) == I64


def placed(position, extent=64):
    """``argmax`` over a loop, its place stored: what flattening makes of the reduction and of the store."""
    i = Var("k", extent)
    reduction = Reduction("r", "argmax", (Load("x", (i.index(),), torch.float32), position(i)))
    body = (
        Fold((reduction,), (Loop(i, (Update(reduction),)),)),
        Assign(Store("long", (0,), Result("r", 1, I64))),
    )
    kernel = Kernel("k", tuple(Param(b, "read") for b in BUFFERS), (), (), body)
    fold, store = flatten(kernel).body
    return fold.reductions[0].values[1].dtype, store.store.value


def test_places_of_reductions():
    dtype, stored = placed(lambda i: Number(i.index(), I64))
    assert dtype == I32 and stored == Op("cast", (Result("r", 1, I32),), I64)
    marked = lambda i: Op("bitwise_not", (Number(i.index(), I64),), I64)  # noqa: E731
    assert placed(marked)[0] == I32


def test_places_that_may_not_fit():
    assert placed(lambda i: Number(i.index() + 2**31, I64)) == (I64, Result("r", 1, I64))
    assert placed(lambda i: Load("long", (i.index(),), I64))[0] == I64
    # Over nothing, a place is the greatest number of 64 bits.
    assert placed(lambda i: Number(i.index(), I64), extent=0)[0] == I64
    assert placed(lambda i: Number(0, I64), extent=Size("n", 0, 9).index())[0] == I64


def summed(value, *extents, reducer="sum"):
    """A sum over loops, stored: its dtype, and what is stored."""
    loops = [Var(f"k{n}", extent) for n, extent in enumerate(extents)]
    reduction = Reduction("r", reducer, (value(*loops),))
    body = Update(reduction)
    for var in reversed(loops):
        body = Loop(var, (body,))
    stored = Assign(Store("long", (0,), Result("r", 0, I64)))
    kernel = Kernel("k", tuple(Param(b, "read") for b in BUFFERS), (), (), (Fold((reduction,), (body,)), stored))
    fold, store = flatten(kernel).body
    return fold.reductions[0].values[0].dtype, store.store.value


def positive(i, *_):
    return Op("cast", (Op("gt", (Load("x", (i.index(),), torch.float32), Const(0.0, torch.float32)), torch.bool),), I64)


def test_sums_that_fit():
    kept = Op("cast", (Result("r", 0, I32),), I64)
    assert summed(positive, 64) == (I32, kept)
    assert summed(positive, 64, 2**20) == (I32, kept)
    assert summed(positive, 0) == (I32, kept)
    weighted = lambda i: Op("mul", (positive(i), Number(i.index(), I64)), I64)  # noqa: E731
    assert summed(weighted, 64) == (I32, kept)
    assert summed(lambda i: Op("cast", (Load("short", (i.index(),), I16),), I64), 64)[0] == I32


def test_sums_that_may_not_fit():
    kept = Result("r", 0, I64)
    assert summed(positive, 64, 2**25) == (I64, kept)
    assert summed(positive, Size("n", 0, None).index()) == (I64, kept)
    assert summed(lambda i: Load("long", (i.index(),), I64), 2) == (I64, kept)
    assert summed(lambda i: Op("cast", (Load("whole", (i.index(),), I32),), I64), 2) == (I64, kept)
    assert summed(positive, 64, reducer="prod")[0] == I64


def test_the_greatest_of_whole_numbers_is_no_place():
    """What an `argmax` of 32 bits finds can be any number, where its place is a small one."""
    i = Var("k", 64)
    reduction = Reduction("r", "argmax", (Load("whole", (i.index(),), I32), Number(i.index(), I64)))
    more = Op("add", (Op("cast", (Result("r", 0, I32),), I64), Const(2**31 - 70, I64)), I64)
    body = Fold((reduction,), (Loop(i, (Update(reduction),)),)), Assign(Store("long", (0,), more))
    _, store = flatten(Kernel("k", tuple(Param(b, "read") for b in BUFFERS), (), (), body)).body
    assert store.store.value == more
