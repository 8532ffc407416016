"""Loop shapes: what a schedule makes of real programs, and trees built by hand, against eager and the interpreter."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from support.kernels import compiled_agrees, flat_buffer, kernel, one_unit, run_compiled
from support.thorough import one_row_in

from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.ir.index.index import Loaded, Size, Var, mul
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.kernel import Assign, Fold, Loop, Update
from regraft.compiler.ir.program import Reduction, Store
from regraft.compiler.ir.value import Const, Guarded, Load, Number, Op, Result

F32, I64 = torch.float32, torch.int64
R = torch.randn
HOST = cpp.host_target()


def causal_softmax(x):
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(x.masked_fill(hidden, float("-inf")), -1)


PROGRAMS = {
    "pointwise with broadcasts": (lambda x, b, c: (x + b) * c, R(33, 70), R(70), R(33, 1)),
    "one element": (lambda x: x + 1, R(1)),
    "no elements": (lambda x: (x + 1).sum(-1), R(3, 0)),
    "zero dims": (lambda x, y: x * y, R(()), R(())),
    "expanded": (lambda x: x.expand(5, 37) * 2, R(5, 1)),
    "strided": (lambda x: x + 1, R(40, 40)[::3, 1::2]),
    "transposed": (lambda x: x.t().contiguous() + 1, R(37, 70)),
    "transposed with another": (lambda x, y: x.t() * y, R(133, 70), R(70, 133)),
    "transposed bfloat16": (lambda x: x.t().contiguous(), R(40, 70).bfloat16()),
    "transposed bool": (lambda x: x.t().contiguous(), R(40, 70) > 0),
    "heads": (lambda x: x.view(2, 16, 4, 32).permute(0, 2, 3, 1).contiguous(), R(2, 16, 128)),
    "merged heads": (lambda x: x.transpose(1, 2).reshape(2, 16, 128) * 2, R(2, 4, 16, 32)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (70,), w, b), R(33, 70), R(70), R(70)),
    "layer_norm bfloat16": (lambda x: F.layer_norm(x, (70,)), R(33, 70).bfloat16()),
    "group_norm": (lambda x: F.group_norm(x, 2), R(2, 8, 7, 9)),
    "softmax": (lambda x: torch.softmax(x, -1), R(33, 70)),
    "softmax across": (lambda x: torch.softmax(x, 0), R(33, 70)),
    "causal softmax": (causal_softmax, R(3, 35, 35)),
    "variance": (lambda x: x.var(-1), R(5, 70)),
    "sum of a mask": (lambda x: (x > 0).sum(-1), R(33, 70)),
    "maxima over two dims": (lambda x: x.amax((0, 2)), R(9, 17, 31)),
    "bits that choose": (
        lambda x, w: w.gather(0, ((x > 0) * torch.arange(1, 4)).sum(-1)).sum(-1),
        R(33, 21, 3),
        R(7, 21),
    ),
    "counts": (lambda x: ((x > 0).sum(), (x > 0).sum(0), ((x > 0).sum(-1) > 30) * 5), R(33, 70)),
    "put back where it was": (
        lambda x, i: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 2.0)
        + torch.zeros_like(x).scatter_add(1, i, x[:, :2] * 3),
        R(33, 8),
        torch.arange(66).view(33, 2) % 8,
    ),
    "put back across": (lambda x: torch.zeros_like(x).scatter(0, x.argmin(0, keepdim=True), x[:1]) - x, R(5, 70)),
    "argmax": (lambda x: x.argmax(-1), R(33, 70)),
    "cumulative sum": (lambda x: x.cumsum(-1), R(33, 70)),
    "cumulative sum across": (lambda x: x.cumsum(0), R(33, 70)),
    "gelu": (lambda x, b: F.gelu(x + b), R(33, 70), R(70)),
    "float16": (lambda x: (x * 2).relu() + 1, R(33, 70).half()),
    "integers": (lambda x: (x // 3) % 5 + (x << 2), torch.randint(-100, 100, (33, 70))),
    "small integers wrap": (lambda x: x * 3 + x, torch.randint(0, 255, (70,), dtype=torch.uint8)),
    "padding": (lambda x: F.pad(x, (3, 4, 1, 2)), R(33, 70)),
    "concatenation": (lambda x, y: torch.cat([x, y], -1) * 2, R(33, 70), R(33, 7)),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, R(33, 70), torch.randint(0, 33, (4, 9))),
    "gather": (lambda x, i: x.gather(1, i), R(33, 70), torch.randint(0, 70, (33, 21))),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), R(2, 4, 15, 15)),
    "scatter with additions": (lambda x, i, y: x.index_add(0, i, y), R(20, 30), torch.randint(0, 20, (50,)), R(50, 30)),
    "cross entropy": (F.cross_entropy, R(33, 70), torch.randint(0, 70, (33,))),
}  # fmt: skip


@one_row_in(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_eagers(name):
    function, *inputs = PROGRAMS[name]
    compiled_agrees(function, *inputs)


def test_one_unit_finds_which_program_is_wrong():
    numbers = itertools.count()

    def another(x):
        return x + next(numbers)

    with pytest.raises(AssertionError) as caught, one_unit():
        compiled_agrees(lambda x: x.sin(), torch.randn(5))
        compiled_agrees(another, torch.randn(5))
    assert caught.value.__notes__ == ["program 1 of 2"]


NARROW = ["transposed bool", "layer_norm bfloat16", "softmax across", "causal softmax", "padding", "cross entropy"]


@one_row_in(3)
@pytest.mark.parametrize("target", ["avx2", "generic", "scalar"] if HOST.vector_bytes >= 32 else ["scalar"])
@pytest.mark.parametrize("name", NARROW)
def test_other_instruction_sets_agree(name, target):
    function, *inputs = PROGRAMS[name]
    compiled_agrees(function, *inputs, target=cpp.target(target))


@one_row_in(2)
@pytest.mark.parametrize("name", ["pointwise with broadcasts", "layer_norm", "softmax across", "transposed"])
def test_symbolic_sizes_agree(name):
    function, *inputs = PROGRAMS[name]
    compiled_agrees(function, *inputs, dynamic=True)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65])
def test_tails_touch_nothing_else(size):
    i = Var("i", size)
    body = [Loop(i, (Assign(Store("out", (i.index(),), Op("exp", (Load("x", (i.index(),), F32),), F32))),), True)]
    made = kernel("tail", [flat_buffer("x", size)], [flat_buffer("out", size)], body)
    memory = torch.full((size + 200,), 7.0)
    x = R(size)
    run_compiled(made, {"x": x, "out": memory[100 : 100 + size]})
    torch.testing.assert_close(memory[100 : 100 + size], x.exp())
    assert (memory[:100] == 7).all() and (memory[100 + size :] == 7).all()


def agree_with_interpreter(made, tensors, **tolerance):
    """Parallel iterations in any order, scratch poisoned: the interpreter and C++ agree."""
    copies = [{name: x.clone() for name, x in tensors.items()} for _ in range(2)]
    expected = run_kernel(made, copies[0], shuffle=random.Random(0))
    ours = run_compiled(made, copies[1])
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name], tensor, equal_nan=True, **tolerance)


def op(name, *args):
    return Op(name, args, args[-1].dtype)


def number(x):
    return Const(x, F32)


@pytest.mark.parametrize("rows, columns", [(5, 70), (3, 16), (1, 9000)])
def test_layer_norm_with_scratch(rows, columns):
    """Rows of 9000 elements have their scratch on the heap."""
    i, j, k = Var("i", rows), Var("j", columns), Var("k", columns)
    x = Load("x", (i.index() * columns + j.index(),), F32)
    total = Reduction("total", "sum", (Load("t", (j.index(),), F32),))
    mean = op("div", Result("total", 0, F32), number(float(columns)))
    apart = op("sub", Load("t", (k.index(),), F32), mean)
    squares = Reduction("squares", "sum", (op("mul", apart, apart),))
    spread = op("rsqrt", op("add", op("div", Result("squares", 0, F32), number(float(columns))), number(1e-5)))
    first = Fold((total,), (Loop(j, (Assign(Store("t", (j.index(),), op("mul", x, number(2.0)))), Update(total))),))
    second = Fold((squares,), (Loop(k, (Update(squares),)),))
    last = Loop(k, (Assign(Store("out", (i.index() * columns + k.index(),), op("mul", apart, spread))),))
    made = kernel(
        "layer_norm", [flat_buffer("x", rows * columns)], [flat_buffer("out", rows * columns)],
        [Loop(i, (first, second, last), True)], scratch=[flat_buffer("t", columns)],
    )  # fmt: skip
    agree_with_interpreter(made, {"x": R(rows * columns)}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [16, 37])
def test_scratch_of_one_column_is_kept_for_every_lane(columns):
    """softmax over rows: t[r] belongs to one column, and columns run in lanes."""
    rows = 9
    j, r, s = Var("j", columns), Var("r", rows), Var("s", rows)
    x = Load("x", (r.index() * columns + j.index(),), F32)
    top, total = Reduction("top", "max", (x,)), Reduction("total", "sum", (Load("t", (r.index(),), F32),))
    power = Assign(Store("t", (r.index(),), op("exp", op("sub", x, Result("top", 0, F32)))))
    share = op("div", Load("t", (s.index(),), F32), Result("total", 0, F32))
    body = (
        Fold((top,), (Loop(r, (Update(top),)),)),
        Fold((total,), (Loop(r, (power, Update(total))),)),
        Loop(s, (Assign(Store("out", (s.index() * columns + j.index(),), share)),)),
    )
    size = rows * columns
    made = kernel(
        "softmax", [flat_buffer("x", size)], [flat_buffer("out", size)], [Loop(j, body, True)], [flat_buffer("t", rows)]
    )
    agree_with_interpreter(made, {"x": R(size)})
    assert not HOST.vector_bytes or "op_exp(" in kernel_text(made, HOST)
    x = R(rows, columns)
    torch.testing.assert_close(run_compiled(made, {"x": x.flatten()})["out"].view(rows, columns), x.softmax(0))


def test_scratch_between_loops_outside_of_all():
    i, j, size = Var("i", 50), Var("j", 50), 50
    total = Reduction("total", "sum", (Load("t", (i.index(),), F32),))
    make = Assign(Store("t", (i.index(),), op("mul", Load("x", (i.index(),), F32), number(3.0))))
    less = op("sub", Load("t", (j.index(),), F32), Result("total", 0, F32))
    body = [
        Loop(i, (make,)),
        Fold((total,), (Loop(i, (Update(total),)),)),
        Loop(j, (Assign(Store("out", (j.index(),), less)),)),
    ]
    made = kernel("shared", [flat_buffer("x", size)], [flat_buffer("out", size)], body, [flat_buffer("t", size)])
    agree_with_interpreter(made, {"x": R(size)}, rtol=1e-5, atol=1e-4)


def test_a_loop_that_shifts_memory_keeps_its_order():
    """``x[i + 1] = x[i] + 1`` in order: no lanes."""
    i = Var("i", 40)
    store = Assign(Store("x", (i.index() + 1,), op("add", Load("x", (i.index(),), F32), number(1.0))))
    made = kernel("shift", [], [flat_buffer("x", 41)], [Loop(i, (store,))])
    agree_with_interpreter(made, {"x": torch.zeros(41)})


@one_row_in(3)
@pytest.mark.parametrize("mode", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, I64, torch.bool], ids=str)
def test_stores_that_combine_meet_in_order(mode, dtype):
    i, value = Var("i", 45), Load("y", (Var("i", 45).index(),), F32 if dtype == torch.bfloat16 else dtype)
    place = Loaded(Load("ids", (i.index(),), I64), 6, True).index()
    reads = [flat_buffer("ids", 45, I64), flat_buffer("y", 45, dtype)]
    body = [Loop(i, (Assign(Store("out", (place,), value, mode)),))]
    made = kernel("combine", reads, [flat_buffer("out", 6, dtype)], body)
    y = (R(45) * 2).to(dtype) if dtype != torch.bool else R(45) > 1
    tensors = {"ids": torch.arange(45) * 7 % 6 - 3, "y": y, "out": torch.ones(6).to(dtype)}
    agree_with_interpreter(made, tensors, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("varying", [True, False])
def test_what_is_guarded_is_not_read(varying):
    i, j = Var("i", 6), Var("j", 37)
    edge = j if varying else i
    inside = Op("lt", (Number(edge.index(), I64), Const(4, I64)), torch.bool)
    # Beyond the guard the index would run far out of the table.
    value = Guarded(inside, Load("x", (edge.index() * 5,), F32), op("neg", Load("y", (j.index(),), F32)), F32)
    store = Assign(Store("out", (i.index() * 37 + j.index(),), value))
    reads = [flat_buffer("x", 16), flat_buffer("y", 37)]
    made = kernel("guarded", reads, [flat_buffer("out", 222)], [Loop(i, (Loop(j, (store,), True),), True)])
    x, y = R(16), R(37)
    ours = run_compiled(made, {"x": x, "y": y})["out"].view(6, 37)
    rows, columns = torch.meshgrid(torch.arange(6), torch.arange(37), indexing="ij")
    at = columns if varying else rows
    assert torch.equal(ours, torch.where(at < 4, x[(at * 5).clamp(max=15)], -y))


def test_parallel_loops_over_a_product_of_sizes():
    s, t = Size("s", 0, None), Size("t", 0, None)
    i, j, k = Var("i", 3), Var("j", mul(s.index(), t.index())), Var("k", 16)
    at = k.index() + 16 * i.index() + 48 * j.index()  # of another order than the loops: none are joined
    loops = Loop(i, (Loop(j, (Loop(k, (Assign(Store("out", (at,), Number(at, I64))),), True),), True),), True)
    made = kernel("product", [], [flat_buffer("out", mul(48, j.extent), I64)], [loops], sizes=(s, t))
    out = run_compiled(made, {}, {"s": 5, "t": 7})["out"]
    assert torch.equal(out, torch.arange(48 * 35))


@pytest.mark.optimized
@one_row_in(2)
@pytest.mark.parametrize("images", [1, 2, 3, 5])
def test_pads_of_few_images(images):
    """Lanes that a mask leaves alone; GCC 12 vectorized what was left a second time, and stored what it never read."""

    def program(x):
        return x + 1, F.pad(x, (1, 1, 1, 1)), x.softmax(1), F.pad(x, (2, 0, 1, 3), value=2.0)

    torch._dynamo.reset()
    x = torch.randn(images, 3, 8, 8).to(memory_format=torch.channels_last)
    torch.testing.assert_close(torch.compile(program, backend="regraft")(x), program(x))


@pytest.mark.optimized
@pytest.mark.parametrize("target", [HOST.name, "scalar"])
def test_products_are_rounded_and_integers_wrap_around(target):
    """Compilers would round a product and a sum once, and take it that the next integer is greater."""
    target = cpp.target(target)
    compiled_agrees(lambda x, y, z: x * y + z, R(9, 99), R(9, 99), R(9, 99), target=target, rtol=0, atol=0)
    last = torch.full((99,), 2**31 - 1, dtype=torch.int32)
    compiled_agrees(lambda x: x + 1 > x, last, target=target)
