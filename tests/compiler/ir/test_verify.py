"""Each kind of wrong is found, and called by its name; what is well formed passes."""

from dataclasses import replace

import pytest
import torch

from regraft.compiler.ir.index.index import Loaded, Size, Var
from regraft.compiler.ir.kernel import Assign, Fold, Kernel, Loop, Param, Update
from regraft.compiler.ir.program import Buffer, Definition, Extern, Program, Reduction, Store
from regraft.compiler.ir.value import Const, Guarded, Load, Number, Op, Result
from regraft.compiler.ir.verify import MalformedError, require, verify_kernel, verify_program

F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool
CPU = torch.device("cpu")
S = Size("s", 1, None)
I, J, R = Var("i", 8), Var("j", S.index()), Var("r", 4)  # noqa: E741
i, j, r = I.index(), J.index(), R.index()
X, N, H = Load("x", (i,), F32), Load("n", (i,), I64), Load("h", (i,), F32)
BUFFERS = [
    Buffer("x", F32, (8,), (1,), CPU, "input"),
    Buffer("n", I64, (8,), (1,), CPU, "input"),
    Buffer("h", torch.float16, (8,), (1,), CPU, "input"),
    Buffer("m", F32, (8, 4), (4, 1), CPU, "input"),
    Buffer("v", F32, (S.index(),), (1,), CPU, "input"),
    Buffer("y", F32, (8,), (1,), CPU),
    Buffer("z", F32, (8,), (1,), CPU),
]


def op(name, *args, dtype=None):
    return Op(name, args, dtype or args[-1].dtype)


def c(number, dtype=F32):
    return Const(number, dtype)


def program(*items, outputs=()):
    return Program({b.name: b for b in BUFFERS}, list(items), outputs)


def stores(value, *indices, buffer="y", loops=(I,), **more):
    return Definition("d", loops, (Store(buffer, indices or (i,), value),), **more)


def folds(reduction, value=None, **more):
    return stores(value or Result("f", 0, F32), reduced=(R,), reductions=(reduction,), **more)


def codes(findings):
    return {finding.code for finding in findings}


LT = op("lt", Number(i, I64), c(4, I64), dtype=BOOL)
M = Load("m", (i, r), F32)


@pytest.mark.parametrize(
    "item",
    [
        stores(op("exp", X)),
        stores(H),
        stores(op("where", LT, X, c(0.0))),
        stores(op("cast", N, dtype=F32)),
        stores(Guarded(LT, Load("m", (0, i), F32), c(0.0), F32)),
        stores(Load("x", (Loaded(N, 8, True).index(),), F32)),
        stores(Load("x", (7 - i,), F32)),
        stores(Load("v", (j,), F32), 3, loops=(J,)),
        stores(c(1.0), Loaded(N, 8, True).index()),
        stores(op("cast", op("lshift", N, op("cast", N, dtype=torch.int32), dtype=I64), dtype=F32)),
        stores(op("cast", op("philox0", N, Number(i, I64)), dtype=F32)),
        stores(Load("x", (i + 100,), F32), loops=(I, Var("none", 0))),
        folds(Reduction("f", "sum", (M,))),
        folds(Reduction("f", "argmax", (M, Number(r, I64))), op("cast", Result("f", 1, I64), dtype=F32)),
        folds(Reduction("f", "welford", (M,)), Result("f", 2, F32)),
        Definition("d", (I,), (Store("m", (i, r), Result("f", 0, F32)),), (R,), (Reduction("f", "sum", (M,)),), True),
    ],
)
def test_well_formed_definitions_pass(item):
    require(verify_program(program(item)))


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (stores(op("nothing", X)), "unknown"),
        (stores(Load("nowhere", (i,), F32)), "unknown"),
        (stores(X, buffer="nowhere"), "unknown"),
        (folds(Reduction("f", "median", (M,))), "unknown"),
        (stores(op("exp", X, X)), "arity"),
        (folds(Reduction("f", "argmax", (M,))), "arity"),
        (stores(Result("f", 1, F32), reduced=(R,), reductions=(Reduction("f", "sum", (M,)),)), "arity"),
        (stores(X, reduced=(R,)), "arity"),
        (stores(op("add", X, c(1.0, F64), dtype=F32)), "dtype"),
        (stores(op("exp", N)), "dtype"),
        (stores(op("exp", X, dtype=F64)), "dtype"),
        (stores(op("where", N, X, X)), "dtype"),
        (stores(op("lt", X, X, dtype=F32)), "dtype"),
        (stores(op("bitwise_and", X, X)), "dtype"),
        (stores(op("bitcast", X, dtype=I64)), "dtype"),
        (stores(N), "dtype"),
        (stores(c(1)), "dtype"),
        (stores(Load("h", (i,), torch.float16)), "dtype"),
        (stores(Guarded(N, X, X, F32)), "dtype"),
        (stores(Guarded(LT, X, c(0.0, F64), F32)), "dtype"),
        (stores(Load("x", (Loaded(X, 8, True).index(),), F32)), "dtype"),
        (folds(Reduction("f", "sum", (M,)), Result("f", 0, F64)), "dtype"),
        (folds(Reduction("f", "argmax", (M, M))), "dtype"),
        (stores(Load("m", (i,), F32)), "rank"),
        (stores(X, i, 0), "rank"),
        (stores(Load("v", (j,), F32)), "scope"),
        (stores(X, j), "scope"),
        (stores(M), "scope"),
        (stores(Result("f", 0, F32)), "scope"),
        (stores(Load("x", (i + 1,), F32)), "range"),
        (stores(Load("x", (i - 1,), F32)), "range"),
        (stores(X, i * 2), "range"),
        (stores(Load("v", (i,), F32)), "range"),
        (stores(Load("x", (Loaded(N, 9, True).index(),), F32)), "range"),
        (stores(Guarded(op("lt", Load("x", (i + 1,), F32), X, dtype=BOOL), X, X, F32)), "range"),
        (stores(Load("z", (i,), F32)), "order"),
        (Definition("d", (I,), (Store("y", (i,), X, "add"),)), "order"),
        (Extern("d", None, ("y",), ("z",)), "order"),
        (stores(X, loops=(I, Var("i", 9))), "name"),
    ],
)
def test_what_is_wrong_is_found(item, code):
    assert code in codes(verify_program(program(item)))


def test_names_are_unique():
    twice = program(stores(X), stores(X))
    assert codes(verify_program(twice)) == {"name"}
    reduction = Reduction("f", "sum", (M,))
    again = program(folds(reduction), replace(folds(reduction), name="e"))
    assert codes(verify_program(again)) == {"name"}
    assert codes(verify_program(Program({"a b": replace(BUFFERS[0], name="a b")}))) == {"name"}


def test_outputs_are_written():
    assert codes(verify_program(program(outputs=("y",)))) == {"order"}
    assert codes(verify_program(program(outputs=("nowhere",)))) == {"unknown"}
    assert not verify_program(program(stores(X), outputs=("x", "y")))


def test_findings_raise_with_their_text():
    with pytest.raises(MalformedError, match=r"d: arity: exp takes 1 operands, got 2") as raised:
        require(verify_program(program(stores(op("exp", X, X)))))
    assert [finding.where for finding in raised.value.findings] == ["d"]


def kernel(*body, params=(("x", "read"), ("y", "write")), sizes=(), scratch=()):
    by_name = {b.name: b for b in BUFFERS}
    given = tuple(Param(by_name[name], access) for name, access in params)
    return Kernel("k", given, sizes, tuple(by_name[name] for name in scratch), body)


def assign(value, buffer="y", index=i):
    return Assign(Store(buffer, (index,), value))


TOTAL = Reduction("total", "sum", (X,))
SUM = Fold((TOTAL,), (Loop(I, (Update(TOTAL),)),))


@pytest.mark.parametrize(
    "made",
    [
        kernel(Loop(I, (assign(X),), parallel=True)),
        kernel(SUM, Loop(I, (assign(Result("total", 0, F32)),))),
        kernel(Fold((TOTAL,), (Loop(I, (Update(TOTAL), assign(Result("total", 0, F32)))),))),
        kernel(Loop(I, (assign(X, "z"), assign(Load("z", (i,), F32)))), scratch=("z",)),
        kernel(Loop(J, (assign(Load("v", (j,), F32), index=0),)), params=(("v", "read"), ("y", "write")), sizes=(S,)),
    ],
)
def test_well_formed_kernels_pass(made):
    require(verify_kernel(made))


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (kernel(assign(X)), "scope"),
        (kernel(Loop(I, (assign(Result("total", 0, F32)),)), SUM), "scope"),
        (kernel(Loop(I, (Update(TOTAL), assign(X)))), "scope"),
        (kernel(Loop(J, (assign(c(1.0), index=0),))), "scope"),
        (kernel(Loop(I, (Loop(Var("i", 3), (assign(X),)),))), "name"),
        (kernel(Loop(I, (assign(X),)), params=(("x", "read"), ("y", "write"), ("y", "read"))), "name"),
        (kernel(Loop(I, (assign(X),)), params=(("x", "read"), ("y", "read"))), "access"),
        (kernel(), "access"),
        (kernel(Loop(I, (assign(Load("z", (i,), F32)),)), scratch=("z",)), "order"),
        (kernel(Loop(I, (assign(Load("y", (i,), F32)),))), "order"),
        (kernel(Fold((TOTAL,), (Loop(I, (assign(X),)),))), "order"),
        (kernel(Loop(I, (assign(X, index=i + 1),))), "range"),
    ],
)
def test_what_is_wrong_with_kernels_is_found(made, code):
    assert code in codes(verify_kernel(made))
