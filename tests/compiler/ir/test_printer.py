"""Texts: readable, deterministic, never longer than the tree has distinct parts."""

import torch

from regraft.compiler.ir.index.index import Loaded, Size, Var, least, most
from regraft.compiler.ir.kernel import Assign, Fold, Kernel, Loop, Param, Update
from regraft.compiler.ir.printer import buffer_text, index_text, kernel_text, program_text, value_text
from regraft.compiler.ir.program import Buffer, Definition, Extern, Program, Reduction, Store
from regraft.compiler.ir.value import Const, Guarded, Load, Number, Op, Result

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
CPU = torch.device("cpu")
I, J, S = Var("i", 8), Var("j", 16), Size("s", 1, None)  # noqa: E741
i, j, s = I.index(), J.index(), S.index()
X = Load("x", (i, j), F32)


def test_indices():
    assert index_text(7) == "7"
    assert index_text(i * 16 + j - 3) == "16*i + j - 3"
    assert index_text(-i) == "-i"
    assert index_text((i * 3 + j) // 5) == "((3*i + j)//5)"
    assert index_text(j // 3 * s + j % s) == "(j//3)*s + (j%s)"
    assert index_text(least(s, i)) in ("min(i, s)", "min(s, i)")
    assert index_text(most(s, i) - 1).startswith("max(")
    assert index_text(Loaded(Load("ids", (i,), I64), s, True).index() * 2) == "2*index(ids[i])"
    assert repr(i + 1) == "i + 1"


def test_values():
    assert value_text(Op("add", (X, Const(1.0, F32)), F32)) == "(x[i, j] + 1.0)"
    assert value_text(Op("cast", (Number(i + 1, I64),), F32)) == "float32(i + 1)"
    assert value_text(Op("bitcast", (X,), torch.int32)) == "bits_as_int32(x[i, j])"
    assert value_text(Const(1.0, torch.float64)) == "float64(1.0)"
    assert value_text(Result("sum", 0, F32)) == "sum"
    assert value_text(Result("sum", 1, F32)) == "sum.1"
    condition = Op("lt", (Number(i, I64), Const(3, I64)), BOOL)
    assert value_text(Guarded(condition, X, Const(0.0, F32), F32)) == "(x[i, j] if (i < 3) else 0.0)"


def test_shared_parts_are_written_once():
    value = Op("exp", (X,), F32)
    for _ in range(200):
        value = Op("add", (value, value), F32)
    text = value_text(value)
    assert text.count("exp(x[i, j])") == 1
    assert len(text) < 200 * 40


def test_long_lines_are_broken_up():
    value = X
    for k in range(100):
        value = Op("maximum", (value, Load(f"a_long_name_{k}", (i, j), F32)), F32)
    assert max(map(len, value_text(value).split("; "))) < 400


def test_buffers():
    assert buffer_text(Buffer("x", F32, (8, s), (s, 1), CPU)) == "x: float32[8, s]"
    assert buffer_text(Buffer("x", torch.bfloat16, (8, 4), (1, 8), CPU)) == "x: bfloat16[8, 4] strides [1, 8]"
    assert buffer_text(Buffer("n", I64, (), (), CPU, "input", True)) == "n: int64 scalar"
    assert buffer_text(Buffer("x", F32, (8,), (1,), torch.device("cuda", 0))) == "x: float32[8] on cuda:0"


def sample():
    x, y = Buffer("x", F32, (8, 16), (16, 1), CPU, "input"), Buffer("y", F32, (8,), (1,), CPU)
    fold = Reduction("fold", "sum", (Op("mul", (X, X), F32),))
    item = Definition("y", (I,), (Store("y", (i,), Result("fold", 0, F32), "add"),), (J,), (fold,))
    call = Extern("z", None, ("y",), ("z",), "sort")
    return x, y, fold, Program({"x": x, "y": y}, [item, call], ("y",))


def test_programs():
    assert program_text(sample()[-1]) == (
        "program\n"
        "    input x: float32[8, 16]\n"
        "    made y: float32[8]\n"
        "    y: for i < 8:\n"
        "        fold fold = sum over j < 16 of (x[i, j] * x[i, j])\n"
        "        y[i] += fold\n"
        "    z: extern(y) -> z  (sort)\n"
        "    return y\n"
    )


def test_kernels():
    x, y, fold, _ = sample()
    body = (Fold((fold,), (Loop(J, (Update(fold),)),)), Assign(Store("y", (i,), Result("fold", 0, F32))))
    kernel = Kernel("k0", (Param(x, "read"), Param(y, "write")), (S,), (), (Loop(I, body, parallel=True),))
    assert kernel_text(kernel) == (
        "kernel k0\n"
        "    read x: float32[8, 16]\n"
        "    write y: float32[8]\n"
        "    size s\n"
        "    for i < 8 parallel:\n"
        "        fold fold = sum:\n"
        "            for j < 16:\n"
        "                update fold with (x[i, j] * x[i, j])\n"
        "        y[i] = fold\n"
    )
